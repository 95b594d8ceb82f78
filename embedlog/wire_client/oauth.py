"""Tokens for SASL's OAUTHBEARER: from a function of the application, or from an authorization server.

    provider   an object with token(), as kafka-python has it, or a function, as confluent-kafka's oauth_cb:
               the token alone, or (token, expiry[, principal[, extensions]])
    server     POST grant_type=client_credentials to sasl_oauthbearer_token_endpoint_url; its token is kept
               for four fifths of its time

The server must be reached by https, since it is sent the client's secret; by http on this machine alone. It
is not trusted further: its answer is limited in size, redirections are not followed, and the token has the
characters that RFC 6750 gives it.

Source: RFC 6749, 4.4; RFC 7628; KIP-255, KIP-768.
"""

from __future__ import annotations

import base64
import inspect
import ipaddress
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote_plus, urlencode, urlsplit

from ..errors import AuthenticationFailed, BrokerUnavailable, InvalidSetting, shown
from ..runtime.locks import Lock
from .settings import ClientSettings

_URL: Final = "sasl_oauthbearer_token_endpoint_url"
_MAX_BYTES: Final = 1 << 20
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_USED: Final = 0.8  # of a token's time
_DEFAULT_LIFETIME_S: Final = 300.0


class Token(NamedTuple):
    """A bearer token, and SASL extensions by name."""

    value: str
    extensions: Mapping[str, str] = {}


class Tokens:
    """Provides a client's tokens. Thread-safe. Raises InvalidSetting."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._provider = settings.sasl_oauth_token_provider
        self._lock = Lock()
        self._kept: tuple[Token, float] | None = None  # and until when
        url = settings.sasl_oauthbearer_token_endpoint_url
        if self._provider is None and not url:
            raise InvalidSetting(
                "sasl_mechanism OAUTHBEARER needs sasl_oauth_token_provider (a function that returns a "
                f"token), or {_URL} with sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret"
            )
        if self._provider is not None:
            if not callable(self._provider) and not callable(getattr(self._provider, "token", None)):
                raise InvalidSetting("sasl_oauth_token_provider must be a function, or have a method token")
            return
        if not settings.sasl_oauthbearer_client_id or not settings.sasl_oauthbearer_client_secret:
            raise InvalidSetting(
                f"{_URL} needs sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret"
            )
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname)):
            raise InvalidSetting(
                f"{_URL} must begin with https://: the client's secret would be sent in the clear otherwise"
            )

    def token(self, timeout_s: float) -> Token:
        """A token that is valid now. May wait. Raises AuthenticationFailed, BrokerUnavailable."""
        if self._provider is not None:
            return self._provided()
        with self._lock:
            if self._kept is None or time.monotonic() >= self._kept[1]:
                self._kept = self._requested(timeout_s)
            return self._kept[0]

    # -- the application's function ------------------------------------------------------------------------

    def _provided(self) -> Token:
        provider: Any = self._provider
        ask = provider if callable(provider) else provider.token
        try:
            token = ask("") if _takes_an_argument(ask) else ask()
        except Exception as error:
            raise AuthenticationFailed(f"sasl_oauth_token_provider raised {type(error).__name__}") from error
        extensions: Any = {}
        if isinstance(token, tuple) and token:
            extensions = token[3] if len(token) > 3 else {}
            token = token[0]
        elif callable(getattr(provider, "extensions", None)):
            extensions = provider.extensions()
        if inspect.iscoroutine(token):
            token.close()
            raise AuthenticationFailed("sasl_oauth_token_provider is a coroutine: it must be a function")
        return _checked(token, extensions, "sasl_oauth_token_provider")

    # -- the authorization server --------------------------------------------------------------------------

    def _requested(self, timeout_s: float) -> tuple[Token, float]:
        settings = self._settings
        form = {"grant_type": "client_credentials"}
        if settings.sasl_oauthbearer_scope:
            form["scope"] = settings.sasl_oauthbearer_scope
        client = quote_plus(settings.sasl_oauthbearer_client_id)
        secret = quote_plus(settings.sasl_oauthbearer_client_secret.reveal())
        request = urllib.request.Request(
            settings.sasl_oauthbearer_token_endpoint_url,
            data=urlencode(form).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode(),
            },
        )
        began = time.monotonic()
        try:
            with _opener(settings).open(request, timeout=max(timeout_s, 0.001)) as response:
                body = response.read(_MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    raise BrokerUnavailable(f"{_URL}: the server answers {error.code}") from None
                details = _error_of(error.read(_MAX_BYTES))
                raise AuthenticationFailed(f"{_URL}: the server answers {error.code}{details}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise BrokerUnavailable(f"{_URL}: the server cannot be reached: {reason}") from None
        token_response = _object(body)
        token = _checked(token_response.get("access_token"), {}, _URL)
        lifetime_s = token_response.get("expires_in")
        is_known = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool) and lifetime_s > 0
        return token, began + (float(lifetime_s) if is_known else _DEFAULT_LIFETIME_S) * _USED  # type: ignore[arg-type]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, which would carry the secret elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(settings: ClientSettings) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    authorities = settings.ssl_cafile
    if authorities:
        is_directory = os.path.isdir(authorities)
        context.load_verify_locations(
            cafile=None if is_directory else authorities, capath=authorities if is_directory else None
        )
    return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))


def _is_here(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _takes_an_argument(function: Any) -> bool:
    """Whether it must be given one, as confluent-kafka's oauth_cb must."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:
        return False
    return False


def _checked(token: object, extensions: object, where: str) -> Token:
    """Raises AuthenticationFailed; the message does not show the token."""
    if isinstance(token, bytes):
        token = token.decode("latin-1")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise AuthenticationFailed(f"{where}: no bearer token came from it")
    if not isinstance(extensions, Mapping):
        _bad_extensions(where)
    for name, value in extensions.items():
        text = isinstance(name, str) and isinstance(value, str)
        if not text or name == "auth" or not _EXTENSION_NAME.fullmatch(name):
            _bad_extensions(where)
        if not _EXTENSION_VALUE.fullmatch(value):
            _bad_extensions(where)
    return Token(token, dict(extensions))


def _bad_extensions(where: str) -> NoReturn:
    raise AuthenticationFailed(f"{where}: extensions are a dict of names of letters, and printable values")


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        response = json.loads(body) if len(body) <= _MAX_BYTES else None
    except ValueError:
        response = None
    if not isinstance(response, dict):
        raise AuthenticationFailed(f"{_URL}: the server's answer is not a JSON object")
    return response


def _error_of(body: bytes) -> str:
    """RFC 6749's error code, which has no secret."""
    try:
        response = json.loads(body)
        return f" ({shown(response['error'])})" if isinstance(response["error"], str) else ""
    except (ValueError, KeyError, TypeError):
        return ""
