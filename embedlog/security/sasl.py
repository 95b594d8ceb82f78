"""The server's side of SASL's mechanisms: tokens in, tokens out. No sockets, no threads.

    PLAIN           one token with the password; it is compared with the user's SCRAM credential
    SCRAM-SHA-256   client's first, server's first, client's final, server's final
    SCRAM-SHA-512   the same
    OAUTHBEARER     one token with a signed JWT; a refused one is answered with a challenge, which the client
                    acknowledges before it is told that it has failed

A failure never says whether a user exists: an unknown user has a credential, too, which no password matches.

Source: RFC 4422, RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER); KIP-12, KIP-43, KIP-84, KIP-255.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from ..errors import EmbedlogError
from ..errors.public import PublicError
from .libraries import scramp
from .scram import DIGESTS, MAX_NAME, ScramCredential
from .users import UserStore, credential_or_fake

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *DIGESTS, OAUTHBEARER)

_KVSEP: Final = "\x01"
_OAUTH_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01"
)
_BEARER: Final = re.compile(r"(?i:bearer) +([-A-Za-z0-9._~+/]+=*)")


class AuthenticationFailed(PublicError):
    """The client is not who it says, or says it in a wrong way.

    The message goes to the client; `cause` only into the log. Neither has a secret.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Step(NamedTuple):
    """An answer. `user` is the client once it is authenticated, `expires_ms` when its token expires."""

    token: bytes
    user: str | None = None
    expires_ms: int | None = None


class Verified(NamedTuple):
    """Whose token it is, and until when (ms since the epoch)."""

    user: str
    expires_ms: int


class Mechanism(Protocol):
    """One authentication. For one thread at a time."""

    name: str

    @property
    def waits(self) -> bool:
        """Whether the next step computes or waits for longer than an event loop may."""

    def step(self, token: bytes) -> Step:
        """Answer a token. Raises AuthenticationFailed, and what a UserStore raises."""


class Plain:
    """[authzid] NUL user NUL password."""

    name = PLAIN
    waits = True

    def __init__(self, users: UserStore) -> None:
        self._users = users

    def step(self, token: bytes) -> Step:
        try:
            authzid, user, password = token.decode().split("\0")
        except ValueError:
            raise _malformed(self.name, "not authzid NUL user NUL password") from None
        if not user or not password:
            raise _malformed(self.name, "the user or the password is empty")
        if authzid not in ("", user):
            raise _refused(self.name, "it wants to act as another user")
        # The same number of hashes for everyone: of the first mechanism that the user has, or seems to have.
        credentials = self._users.credentials(user) if len(user.encode()) <= MAX_NAME else {}
        mechanism = next((name for name in DIGESTS if name in credentials), next(iter(DIGESTS)))
        credential = credential_or_fake(self._users, user, mechanism)
        if not credential.matches(mechanism, password.encode()):
            raise _refused(self.name, "wrong password, or no such user")
        return Step(b"", user)


class Scram:
    """A conversation of four messages, which scramp checks."""

    def __init__(self, name: str, users: UserStore) -> None:
        self.name = name
        self._users = users
        self._user = ""
        self._begun = False
        self._server = scramp().ScramMechanism(name).make_server(self._credential_of)

    @property
    def waits(self) -> bool:
        return self._users.waits and not self._begun

    def step(self, token: bytes) -> Step:
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise _malformed(self.name, "not UTF-8") from None
        try:
            if not self._begun:
                self._begun = True
                self._server.set_client_first(message)
                return Step(self._server.get_server_first().encode())
            self._accept_nonce_of_librdkafka(message)
            self._server.set_client_final(message)
            return Step(self._server.get_server_final().encode(), self._user)
        except scramp().ScramException as error:
            cause = error.__cause__
            if isinstance(cause, EmbedlogError):  # the credential could not be read
                raise cause from None
            raise _refused(self.name, str(error.args[0])) from None

    def _accept_nonce_of_librdkafka(self, message: str) -> None:
        """Before 2.6.1 it puts its own nonce before the whole one once more, which Kafka accepts.

        What the server has chosen is still at the end, and the proof is of the message as it came.
        """
        server = self._server
        nonce = str(server.nonce)
        doubled = nonce[: -len(str(server.s_nonce))] + nonce
        if f",r={doubled}," in message:
            server.nonce = scramp().core.Nonce(doubled)

    def _credential_of(self, user: str) -> ScramCredential:
        self._user = user
        if len(user.encode()) > MAX_NAME:
            raise _malformed(self.name, "the user's name is too long")
        return credential_or_fake(self._users, user, self.name)


class OAuthBearer:
    """A JWT, which `verify` checks.

    verify: the token's user and expiry. Raises AuthenticationFailed.
    """

    name = OAUTHBEARER

    def __init__(self, verify: Callable[[str], Verified]) -> None:
        self._verify = verify
        self._failure: AuthenticationFailed | None = None

    @property
    def waits(self) -> bool:
        return self._failure is None

    def step(self, token: bytes) -> Step:
        if self._failure is not None:
            raise self._failure  # whatever comes: RFC 7628 has the client send one byte 1
        authzid, bearer = _parse_oauth(token)
        try:
            verified = self._verify(bearer)
            if authzid not in ("", verified.user):
                raise _refused(self.name, "it wants to act as another user")
        except AuthenticationFailed as error:
            self._failure = error
            return Step(json.dumps({"status": "invalid_token"}).encode())
        return Step(b"", verified.user, verified.expires_ms)


def _parse_oauth(token: bytes) -> tuple[str, str]:
    """The authorization id, and the bearer token."""
    try:
        match = _OAUTH_FIRST.fullmatch(token.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise _malformed(OAUTHBEARER, "not RFC 7628's first message")
    pairs: dict[str, Any] = dict(pair.partition("=")[::2] for pair in match["pairs"].split(_KVSEP) if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise _malformed(OAUTHBEARER, "no bearer token")
    return (match["authzid"] or "").replace("=2C", ",").replace("=3D", "="), bearer[1]


def _refused(mechanism: str, cause: str) -> AuthenticationFailed:
    """The error in Kafka's words."""
    return AuthenticationFailed(
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}",
        cause,
    )


def _malformed(mechanism: str, cause: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"The client's message of {mechanism} is malformed: {cause}", cause)
