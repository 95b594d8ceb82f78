"""Who may ask the page for anything: a middleware before all of its routes.

    Host         one of the names that the page is served by, so that a foreign name which resolves to this
                 machine (DNS rebinding) gets nothing
    Origin       of a request that changes something: the page's own
    token        in the printed address, once; then a cookie that no script reads and no other site sends
    CSRF token   in every form: made of the visitor's cookie and a secret of this process

Source: OWASP, "Cross-Site Request Forgery Prevention" (signed double submit); the Fetch standard, "Origin".
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

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


class Guard:
    """Rejects requests that are not allowed, and adds the security headers to every response.

    Args:
        hosts: the values of Host that are accepted, with their ports; empty for any (the application that
            mounts the page has checked it).
        token: what a visitor shows once, as `?token=`; None if the application that mounts the page knows its
            visitors.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
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

        answer: ASGIApp = self._check(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _check(self, request: Request) -> Response | None:
        """The response to a request that goes no further. Gives others `request.state.csrf`."""
        host = request.headers.get("host", "").lower()
        if self._hosts and host not in self._hosts:
            return _refusal(f"this page is served as {' or '.join(sorted(self._hosts))}", 421)
        if request.method not in _SAFE_METHODS and not _is_own(request.headers, host):
            return _refusal("a request of another site", 403)
        shown = request.query_params.get("token")
        if self._token is not None and shown is not None:
            if hmac.compare_digest(shown.encode(), self._token.encode()):
                return self._let_in(request)
            return _refusal("that token is not this page's: use the address that `embedlog ui` printed", 403)
        visitor = _visitor_of(request.headers)
        if self._token is not None and not self._is_known(visitor):
            return _refusal("open the address that `embedlog ui` printed: it has a token in it", 401)
        if not visitor:
            visitor = "of the application that mounts the page"
        request.scope.setdefault("state", {})["csrf"] = self._sign("csrf", visitor)
        return None

    def _let_in(self, request: Request) -> Response:
        """Remember the visitor, and take the token out of the address."""
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

    def _sign(self, what: str, number: str) -> str:
        return hmac.new(self._secret, f"{what}:{number}".encode(), hashlib.sha256).hexdigest()


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
    given = fields.pop("csrf", [""])[-1]
    if not hmac.compare_digest(given.encode(), request.state.csrf.encode()):
        raise Refused("the form is not of this page, or older than it: load the page again")
    return {name: values[-1] for name, values in fields.items()}


def check_writable(request: Request) -> None:
    """Raises HTTPException on a page that changes nothing."""
    if not request.app.state.site.writable:
        raise HTTPException(403, "This page changes nothing: start it with --writable")


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


def _visitor_of(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(_VISITOR)
    except CookieError:
        return ""
    return found.value[:_MAX_COOKIE_CHARACTERS] if found else ""
