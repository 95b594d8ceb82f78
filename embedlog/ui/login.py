"""Visitors who log in: the log's users, with the passwords that a broker's clients have.

    visitor ---> form (csrf of a guest's cookie) ---> password checked as SASL PLAIN ---> session

A session is a random number in a cookie; everything else about it stays here, in memory. It ends by logout,
by age, and when the user's password is changed or the user is deleted; open streams end with it.

Who guesses waits: after a few failures each further attempt from an address has to come later than the last
one, whatever it says. That a user does not exist takes as long to find out as that a password is wrong.

Source: OWASP, "Session Management", "Authentication".
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import secrets
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ..runtime.locks import Lock
from ..security.sasl import AuthenticationFailed, Plain
from ..security.scram import ScramCredential
from ..security.users import UserStore
from ..wording import visible
from .guard import GUEST, SESSION, AuthenticatedUser, form, visitor_of
from .rendering import page

logger = logging.getLogger(__name__)

_LASTS_S: Final = 12 * 3_600.0
_IDLE_S: Final = 3_600.0
_MOST_SESSIONS: Final = 1_000
_MOST_OF_A_USER: Final = 20
_DELAY_S: Final = 0.1  # until a wrong password is answered: it hides how long the check took
_FREE_ATTEMPTS: Final = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_FORGOTTEN_S: Final = 900.0
_MOST_COUNTED: Final = 100
_MOST_ADDRESSES: Final = 10_000
_CHECKS_AT_ONCE: Final = 2
_CHECKS_WAITING: Final = 50
_LONGEST_NAME: Final = 255
_LONGEST_ADDRESS: Final = 2_000
_LOGIN, _LOGOUT = "/login", "/logout"


class Session:
    """A user who has logged in."""

    def __init__(self, user: str, credentials: Mapping[str, ScramCredential], now: float) -> None:
        self.user = user
        self.credentials = credentials
        self.began = self.used = now
        self.pages: dict[str, ASGIApp] = {}  # by the host that asks: it keeps them for all of the user's


class Login:
    """Knows who has logged in. Its own pages are `routes()`.

    Args:
        users: the log's.
        pages_of: the pages as a user at a host may see them.
    """

    def __init__(self, users: UserStore, pages_of: Callable[[str, str], ASGIApp]) -> None:
        self._users = users
        self._pages_of = pages_of
        self._pauses = _Pauses()
        self._lock = Lock()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # guarded by _lock; by the cookie's hash
        self._pages: weakref.WeakValueDictionary[tuple[str, str], ASGIApp] = weakref.WeakValueDictionary()
        self._checks = 0
        self._limiter: anyio.CapacityLimiter | None = None  # made in the event loop

    def authenticate(self, request: Request, cookie: str) -> AuthenticatedUser | Response | None:
        """See `guard.Authenticator`. Raises what reading users raises."""
        path, session = request.url.path, self._session(cookie)
        if path == _LOGIN or path.startswith("/static/"):
            return None
        if session is None:
            return _to_login(request)
        session.used = time.monotonic()
        host = _host_of(request)
        if host not in session.pages:
            pages = self._pages.get((session.user, host)) or self._pages_of(session.user, host)
            session.pages = {host: pages}
            self._pages[session.user, host] = pages
        pages_seen = None if path == _LOGOUT else session.pages[host]
        return AuthenticatedUser(pages_seen, session.user, lambda: self._session(cookie) is None)

    def routes(self) -> list[BaseRoute]:
        """Of what a visitor needs to come in and to go."""
        return [
            Route(_LOGIN, self._form),
            Route(_LOGIN, self._log_in, methods=["POST"]),
            Route(_LOGOUT, self._log_out, methods=["POST"]),
        ]

    # -- pages ---------------------------------------------------------------------------------------------

    def _form(self, request: Request) -> Response:
        if self._session(visitor_of(request.headers, SESSION)) is not None:
            return RedirectResponse(_own(request.query_params.get("next", "")), 303)
        return _page(request, request.query_params.get("next", ""))

    async def _log_in(self, request: Request) -> Response:
        fields = await form(request)
        user_name, following = fields.get("user", ""), fields.get("next", "")
        host = _host_of(request)
        pause_s = self._pauses.begin(host, time.monotonic())
        if pause_s or self._checks >= _CHECKS_WAITING:
            response = _page(request, following, "Too many attempts: wait a minute, then try again.", 429)
            response.headers["Retry-After"] = str(int(pause_s) + 1)
            return response
        answered = time.monotonic() + _DELAY_S
        credentials = self._users.credentials(user_name)  # before: another password ends the session
        try:
            user = await self._authenticated(user_name, fields.get("password", ""))
        except AuthenticationFailed as error:
            logger.warning("%s: no login as %s: %s", host, visible(user_name[:80]), error.cause)
            await anyio.sleep(max(answered - time.monotonic(), 0))
            return _page(request, following, "That is not a user of this log with that password.", 403)
        self._pauses.succeeded(host)
        number = secrets.token_urlsafe(32)
        self._end(visitor_of(request.headers, SESSION))
        self._begin(number, Session(user, credentials, time.monotonic()))
        logger.info("%s has logged in from %s", visible(user), host)
        response = RedirectResponse(_own(following), 303)
        _set_cookie(response, SESSION, number)
        return response

    async def _log_out(self, request: Request) -> Response:
        await form(request)
        self._end(visitor_of(request.headers, SESSION))
        logger.info("logged out")
        response = RedirectResponse(_LOGIN, 303)
        response.delete_cookie(SESSION, secure=True, httponly=True, samesite="strict")
        return response

    async def _authenticated(self, user: str, password: str) -> str:
        """The user. Raises AuthenticationFailed."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_CHECKS_AT_ONCE)
        self._checks += 1
        try:
            token = f"\0{user[: _LONGEST_NAME + 1]}\0{password}".encode(errors="replace")
            step = await anyio.to_thread.run_sync(Plain(self._users).step, token, limiter=self._limiter)
        finally:
            self._checks -= 1
        assert step.user is not None, "PLAIN has one step"
        return step.user

    # -- sessions ------------------------------------------------------------------------------------------

    def _session(self, cookie: str) -> Session | None:
        """The session of a cookie, if it goes on."""
        with self._lock:
            session = self._sessions.get(_hash(cookie))
        if session is None:
            return None
        now = time.monotonic()
        is_young = now - session.began < _LASTS_S and now - session.used < _IDLE_S
        if is_young and self._users.credentials(session.user) == session.credentials:
            return session
        self._end(cookie)
        return None

    def _begin(self, number: str, session: Session) -> None:
        with self._lock:
            hashes = [
                digest for digest, kept_session in self._sessions.items() if kept_session.user == session.user
            ]
            surplus = hashes[: max(len(hashes) + 1 - _MOST_OF_A_USER, 0)]
            for digest in surplus:
                del self._sessions[digest]
            while len(self._sessions) >= _MOST_SESSIONS:
                self._sessions.popitem(last=False)
            self._sessions[_hash(number)] = session

    def _end(self, cookie: str) -> None:
        with self._lock:
            self._sessions.pop(_hash(cookie), None)


def _to_login(request: Request) -> Response:
    """The answer to a visitor who has not logged in: the form, if a browser wants to show something."""
    shows = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
    if request.method == "POST" or not shows:
        return PlainTextResponse("log in first\n", 401)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(_LOGIN if path == "/" else f"{_LOGIN}?next={quote(path, safe='')}", 303)


def _set_cookie(response: Response, name: str, number: str) -> None:
    response.set_cookie(name, number, httponly=True, samesite="strict", secure=True)


def _host_of(request: Request) -> str:
    """The visitor's address."""
    return request.client.host if request.client else ""


def _page(request: Request, following: str, problem: str = "", status: int = 200) -> Response:
    response = page(request, "login.html", status=status, following=_own(following), problem=problem)
    if request.state.guest:
        _set_cookie(response, GUEST, request.state.guest)
    return response


def _own(path: str) -> str:
    """Where to go after the login: a path of this page, or its first one."""
    is_own = path.startswith("/") and len(path) < _LONGEST_ADDRESS and path[1:2] not in ("/", "\\")
    return path if is_own and path.isprintable() else "/"


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()


class _Pauses:
    """How long an address has to wait between two attempts. For one thread; memory is bounded."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, when the last one began

    def begin(self, host: str, now: float) -> float:
        """An attempt begins, which counts as failed until it has succeeded; or so many seconds are left until
        there may be one."""
        key = _network(host)
        count, last = self._failed.pop(key, (0, now))
        if now - last > _FORGOTTEN_S:
            count = 0
        left_s = 0.0
        if count >= _FREE_ATTEMPTS:
            left_s = last + min(_FIRST_PAUSE_S * 2.0 ** (count - _FREE_ATTEMPTS), _LONGEST_PAUSE_S) - now
        self._failed[key] = (count, last) if left_s > 0 else (min(count + 1, _MOST_COUNTED), now)
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)
        return max(left_s, 0.0)

    def succeeded(self, host: str) -> None:
        """The attempt was none: others from there count as they did before."""
        key = _network(host)
        count, last = self._failed.get(key, (1, 0.0))
        if count > 1:
            self._failed[key] = (count - 1, last)
        else:
            self._failed.pop(key, None)


def _network(host: str) -> str:
    """An address; of IPv6 the network that one customer has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
