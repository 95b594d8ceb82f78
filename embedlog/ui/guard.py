"""Who may ask the page for anything: a middleware before all of its routes.

    Host         one of the names that the page is served by, so that a foreign name which resolves to this
                 machine (DNS rebinding) gets nothing
    Origin       of a request that changes something: the page's own
    token        in the printed address, once; then a cookie that no script reads and no other site sends
    login        where other machines come in: a user of the log, with a session (login.py)
    CSRF token   in every form: made of the visitor's cookie and a secret of this process

Source: OWASP, "Cross-Site Request Forgery Prevention" (signed double submit); the Fetch standard, "Origin".
"""

from __future__ import annotations

import contextvars
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..wording import visible

SESSION: Final = "__Host-embedlog"
"""The cookie of a user who has logged in. The prefix has browsers take it from this page alone."""
GUEST: Final = "__Host-embedlog-guest"
"""The cookie of one who is about to: another, since a link of another site shows the page neither."""

_visitor: contextvars.ContextVar[str] = contextvars.ContextVar("embedlog_visitor", default="")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_MAX_FORM_BYTES: Final = 64 << 10
_VISITOR: Final = "embedlog_visitor"
_MAX_COOKIE_CHARACTERS: Final = 200
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AuthenticatedUser(NamedTuple):
    """A user who has logged in: the pages as he may see them (None: what guests see), and whether the session
    has ended since."""

    pages: ASGIApp | None
    user: str
    has_ended: Callable[[], bool]


class Authenticator(Protocol):
    """Knows which visitors have logged in: login.py."""

    def authenticate(self, request: Request, cookie: str) -> AuthenticatedUser | Response | None:
        """The user of a session's cookie; the response that says to log in; None for what guests see."""


class Guard:
    """Rejects requests that are not allowed, and adds the security headers to every response.

    Args:
        hosts: the values of Host that are accepted, with their ports; empty for any (the application that
            mounts the page has checked it).
        token: what a visitor shows once, as `?token=`; None if the application that mounts the page knows its
            visitors, or if there is an `authenticator`.
        authenticator: of users. The pages are each user's then, and `app` is what guests see.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        token: str | None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
        self._authenticator = authenticator
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        answer: ASGIApp | AuthenticatedUser | None = self._check_source(request)
        if answer is None:
            if self._authenticator is None:
                answer = self._check_token(request)
            else:
                answer = self._check_login(request, self._authenticator)
        if not isinstance(answer, AuthenticatedUser):
            await (answer or self._app)(scope, receive, send_with_headers)
            return

        async def receive_during_the_session() -> Message:
            return {"type": "http.disconnect"} if answer.has_ended() else await receive()

        token = _visitor.set(answer.user)
        try:
            await (answer.pages or self._app)(scope, receive_during_the_session, send_with_headers)
        finally:
            _visitor.reset(token)

    def _check_source(self, request: Request) -> Response | None:
        """The response to a request that another site has sent, or has led here."""
        host = request.headers.get("host", "").lower()
        if self._hosts and host not in self._hosts:
            return _refusal(f"this page is served as {' or '.join(sorted(self._hosts))}", 421)
        if request.method not in _SAFE_METHODS and not _is_own(request.headers, host):
            return _refusal("a request of another site", 403)
        return None

    def _check_token(self, request: Request) -> Response | None:
        """The response to a request that goes no further. Gives others `request.state.csrf`."""
        token = request.query_params.get("token")
        if self._token is not None and token is not None:
            if hmac.compare_digest(token.encode(), self._token.encode()):
                return self._remember_visitor(request)
            return _refusal("that token is not this page's: use the address that `embedlog ui` printed", 403)
        visitor = visitor_of(request.headers, _VISITOR)
        if self._token is not None and not self._is_known(visitor):
            return _refusal("open the address that `embedlog ui` printed: it has a token in it", 401)
        self._set_state(request, visitor or "of the application that mounts the page")
        return None

    def _check_login(
        self, request: Request, authenticator: Authenticator
    ) -> AuthenticatedUser | Response | None:
        """As `Authenticator.authenticate`. A guest without a cookie gets one with the form."""
        session = visitor_of(request.headers, SESSION)
        answer = authenticator.authenticate(request, session)
        if isinstance(answer, AuthenticatedUser):
            self._set_state(request, session, user=answer.user)
        elif answer is None:
            guest_cookie = visitor_of(request.headers, GUEST)
            guest = "" if guest_cookie else secrets.token_urlsafe(32)
            self._set_state(request, guest_cookie or guest, guest=guest)
        return answer

    def _set_state(self, request: Request, visitor: str, *, user: str = "", guest: str = "") -> None:
        state = request.scope.setdefault("state", {})
        state |= {"csrf": self._sign("csrf", visitor), "user": user, "guest": guest}

    def _remember_visitor(self, request: Request) -> Response:
        """Set the visitor's cookie, and take the token out of the address."""
        number = secrets.token_urlsafe(24)
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        response = RedirectResponse(f"{request.url.path}{'?' if rest else ''}{urlencode(rest)}", 303)
        response.set_cookie(
            _VISITOR,
            f"{number}.{self._sign('visitor', number)}",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path=f"{request.scope.get('root_path', '')}/",
        )
        return response

    def _is_known(self, visitor: str) -> bool:
        number, _, signature = visitor.partition(".")
        return hmac.compare_digest(signature.encode(), self._sign("visitor", number).encode())

    def _sign(self, purpose: str, number: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{number}".encode(), hashlib.sha256).hexdigest()


async def form(request: Request) -> dict[str, str]:
    """The fields of a form that this page made. Raises Refused for any other."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise Refused("the form is larger than any of this page's")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        raise Refused("that is no form") from None
    csrf = fields.pop("csrf", [""])[-1]
    if not hmac.compare_digest(csrf.encode(), request.state.csrf.encode()):
        raise Refused("the form is not of this page, or older than it: load the page again")
    return {name: values[-1] for name, values in fields.items()}


def check_writable(request: Request) -> None:
    """Raises HTTPException on a page that changes nothing."""
    if not request.app.state.site.writable:
        raise HTTPException(403, "This page changes nothing: start it with --writable")


def say_who(record: logging.LogRecord) -> bool:
    """A filter of log lines: puts the user who has asked for something before what was done."""
    if user := _visitor.get():
        record.msg, record.args = f"{visible(user)}: {record.getMessage()}", ()
    return True


class Refused(Exception):
    """A form that is refused: why."""


def _refusal(why: str, status: int) -> Response:
    return PlainTextResponse(f"{why}\n", status)


def _is_own(headers: Headers, host: str) -> bool:
    """Whether the page itself sent the request, and no other site: browsers say so."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    return urlsplit(origin).netloc.lower() == host


def visitor_of(headers: Headers, cookie: str) -> str:
    """The value of a visitor's cookie; empty if there is none."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(cookie)
    except CookieError:
        return ""
    return morsel.value[:_MAX_COOKIE_CHARACTERS] if morsel else ""
