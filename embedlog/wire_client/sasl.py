"""SASL: a client proves to a broker who it is, and the broker that it knows that.

    SaslHandshake      the mechanism; the broker answers with those that it offers
    SaslAuthenticate   the mechanism's messages, until both are done -> the session's lifetime (KIP-368)

A mechanism is a generator: it yields what the client says and is sent what the broker answers. PLAIN says
name and password; SCRAM proves that the client knows the password, and is proven that the broker knows it,
too; OAUTHBEARER shows a token.

A broker is not trusted before that: SCRAM's iterations are bounded, since the client computes them, and the
broker's signature is checked. Messages of errors have no secret.

Source: RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM), RFC 7628 (OAUTHBEARER); KIP-12, 43, 84, 152, 255, 368.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ..errors import AuthenticationFailed, InvalidSetting, UnsupportedByBackend, shown
from ..wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ..wire.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ..wire.error_codes import ErrorCode
from ..wire.messages import Request, Response
from .client_config import PASSWORD
from .oauth import Token, Tokens
from .security_names import MECHANISMS
from .settings import ClientSettings

R = TypeVar("R", bound=Response)
Messages: TypeAlias = Generator[bytes, bytes, None]

_MAX_BYTES: Final = 1 << 16
_MAX_ITERATIONS: Final = 1_000_000  # about a second; Kafka's own brokers allow 16,384
_ITERATIONS: Final = re.compile(r"(?:.*,)?i=([0-9]{1,20})(?:,.*)?", re.DOTALL)
_MAX_STEPS: Final = 8
_SHOWN: Final = 500


class Exchange(Protocol):
    """Sends a request to the broker, and returns its response."""

    def __call__(self, request: Request, response: type[R], /) -> R: ...


class Sasl:
    """Authenticates the connections of a client. Thread-safe. Raises InvalidSetting, UnsupportedByBackend."""

    def __init__(self, settings: ClientSettings) -> None:
        self.mechanism = mechanism = settings.sasl_mechanism
        self._settings = settings
        self._tokens: Tokens | None = None
        if not mechanism:
            raise InvalidSetting(
                f"security_protocol {settings.security_protocol} needs sasl_mechanism: one of "
                f"{', '.join(MECHANISMS)}"
            )
        if mechanism == "OAUTHBEARER":
            self._tokens = Tokens(settings)
            return
        if not settings.sasl_plain_username:
            raise InvalidSetting(
                f"sasl_mechanism {mechanism} needs a user: kafka://user@host:9093, or sasl_plain_username"
            )
        if not settings.sasl_plain_password:
            raise InvalidSetting(
                f"sasl_mechanism {mechanism} needs the user's password: in the environment ({PASSWORD}), in "
                "a file (client_config), or as sasl_plain_password"
            )
        if "\0" in settings.sasl_plain_username + settings.sasl_plain_password.reveal():
            raise InvalidSetting("a user's name and password have no NUL character")
        if mechanism != "PLAIN":
            scram = _scram_client()
            try:
                scram.ScramClient(
                    [mechanism], settings.sasl_plain_username, settings.sasl_plain_password.reveal()
                )
            except scram.ScramException:
                raise InvalidSetting(
                    "the user's name or password has characters that SASL does not allow (RFC 4013)"
                ) from None

    def authenticate(self, exchange: Exchange, where: str, timeout_s: float) -> float:
        """Authenticate a connection, or authenticate it again. `where` names the broker in errors.

        Returns after how many seconds it must be done again; 0 for never. Raises AuthenticationFailed,
        BrokerUnavailable, and what `exchange` raises.
        """
        mechanism = self.mechanism
        greeted = exchange(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if greeted.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                f"broker {where} does not authenticate by SASL at this port: use security_protocol SSL or "
                "PLAINTEXT, or its other port"
            )
        if greeted.error_code:
            offered = ", ".join(shown(name)[1:-1] for name in greeted.mechanisms[:10]) or "none"
            raise AuthenticationFailed(
                f"broker {where} does not offer sasl_mechanism {mechanism}; it offers {offered}"
            )
        steps = self._steps(where, timeout_s)
        message = next(steps)
        for _ in range(_MAX_STEPS):
            response = exchange(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
            if response.error_code:
                raise AuthenticationFailed(self._refused(where, response))
            if len(response.auth_bytes) > _MAX_BYTES:
                break
            try:
                message = steps.send(bytes(response.auth_bytes))
            except StopIteration:
                return max(response.session_lifetime_ms, 0) / 1000
        raise AuthenticationFailed(f"broker {where} does not follow {mechanism}")

    def _steps(self, where: str, timeout_s: float) -> Messages:
        settings = self._settings
        if self._tokens is not None:
            return _oauth(self._tokens.token(timeout_s), where)
        user, password = settings.sasl_plain_username, settings.sasl_plain_password.reveal()
        if self.mechanism == "PLAIN":
            return _plain(user, password)
        return _scram(self.mechanism, user, password, where)

    def _refused(self, where: str, response: SaslAuthenticateResponse) -> str:
        identity = "the token" if self._tokens else f"the user {shown(self._settings.sasl_plain_username)}"
        details = f": {_quoted(response.error_message)}" if response.error_message else ""
        return f"broker {where} does not accept {identity} ({self.mechanism}){details}"


def _quoted(text: str) -> str:
    """The text of a broker that is not trusted yet."""
    return repr(text[:_SHOWN])


def _plain(user: str, password: str) -> Messages:
    yield f"\0{user}\0{password}".encode()


def _oauth(token: Token, where: str) -> Messages:
    extensions = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
    refusal = yield f"n,,\x01auth=Bearer {token.value}{extensions}\x01\x01".encode()
    if refusal:
        yield b"\x01"  # the broker then says what is wrong
        raise AuthenticationFailed(
            f"broker {where} does not accept the token: {_quoted(refusal.decode('utf-8', 'replace'))}"
        )


def _scram(mechanism: str, user: str, password: str, where: str) -> Messages:
    scram = _scram_client()
    try:
        client = scram.ScramClient([mechanism], user, password)
        first = (yield client.get_client_first().encode()).decode()
        iterations = _ITERATIONS.fullmatch(first)
        if iterations is not None and int(iterations[1]) > _MAX_ITERATIONS:
            raise AuthenticationFailed(
                f"broker {where} asks for {int(iterations[1]):,} iterations of {mechanism}, more than "
                f"{_MAX_ITERATIONS:,}: is it yours?"
            )
        client.set_server_first(first)
        final = (yield client.get_client_final().encode()).decode()
        client.set_server_final(final)
    except (scram.ScramException, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, scram.ScramException) else "its message is not text"
        raise AuthenticationFailed(
            f"broker {where} does not prove that it knows the user's password ({mechanism}): {reason}. "
            "Is it yours?"
        ) from None


def _scram_client() -> Any:
    """The library."""
    try:
        import scramp
    except ImportError as error:
        raise UnsupportedByBackend(
            "SCRAM needs the library scramp: pip install 'embedlog[security]'"
        ) from error
    return scramp
