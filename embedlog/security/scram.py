"""SCRAM credentials: what is stored of a password.

    SCRAM-SHA-256   salt=<base64>,stored_key=<base64>,server_key=<base64>,iterations=4096

A credential proves that a client knows the password. A reader of it can try passwords, at the cost of
`iterations` hashes each, and can pretend to be the server; it cannot be sent in place of the password.

Source: RFC 5802, RFC 7677 (SCRAM), RFC 8018 (PBKDF2); KIP-84; Kafka's `ScramCredentialUtils` for the text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..errors import InvalidArgument, shown

MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
MIN_SALT: Final = 12  # bytes; scramp refuses shorter ones
MAX_SALT: Final = 1_024
SALT: Final = 32
MAX_NAME: Final = 255  # bytes of UTF-8
_MAX_PASSWORD: Final = 1_024

DIGESTS: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> its hash function, as hashlib calls it."""
NUMBERS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms' numbers on the wire."""


class ScramCredential(NamedTuple):
    """The credential of one user, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<ScramCredential: {self.iterations} iterations>"

    def encode(self) -> str:
        """The text that Kafka stores."""
        salt, stored, server = (base64.b64encode(part).decode() for part in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def decode(cls, mechanism: str, text: str) -> ScramCredential:
        """Raises InvalidArgument, whose message has nothing of the text."""
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            credential = cls(salt, stored, server, int(fields["iterations"]))
        except (KeyError, ValueError, binascii.Error):
            raise InvalidArgument(f"a credential of {mechanism} cannot be read") from None
        size = hashlib.new(DIGESTS[mechanism]).digest_size
        if not (
            len(stored) == len(server) == size
            and MIN_SALT <= len(salt) <= MAX_SALT
            and credential.iterations >= MIN_ITERATIONS
        ):
            raise InvalidArgument(f"a credential of {mechanism} has impossible sizes")
        return credential

    def matches(self, mechanism: str, password: bytes) -> bool:
        """Whether it is of this password. Computes for milliseconds."""
        salted = salted_password(mechanism, password, self.salt, self.iterations)
        computed = from_salted_password(mechanism, salted, self.salt, self.iterations)
        return hmac.compare_digest(computed.stored_key, self.stored_key)


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's SaltedPassword. Computes for milliseconds, without the GIL."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, iterations)


def from_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a SaltedPassword."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    return ScramCredential(
        salt,
        hashlib.new(digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", digest),
        iterations,
    )


def credential_of(mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> ScramCredential:
    """A new credential, with a random salt. `password` has passed `check_password`."""
    salt = secrets.token_bytes(SALT)
    salted = salted_password(mechanism, password.encode(), salt, iterations)
    return from_salted_password(mechanism, salted, salt, iterations)


def fake_credential(mechanism: str, name: str, secret: bytes) -> ScramCredential:
    """What a user who does not exist seems to have: always the same, and of no password.

    secret: nobody else knows it, or he could tell it from a real one.
    """
    keys = [
        hmac.digest(secret, f"{purpose}:{mechanism}:{name}".encode(), "sha512")
        for purpose in ("salt", "stored key", "server key")
    ]
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    return ScramCredential(keys[0][:SALT], keys[1][:size], keys[2][:size], MIN_ITERATIONS)


def check_user(name: str) -> str:
    """Return a user's name. Raises InvalidArgument.

    It is its own SASLprep form: clients and brokers that prepare names, and those that do not, agree on it.
    """
    if not name or name in (".", "..") or len(name.encode(errors="replace")) > MAX_NAME:
        raise InvalidArgument(f"a user's name has 1 to {MAX_NAME} bytes, and is not . or ..")
    if not _is_prepared(name):
        raise InvalidArgument(
            f"{shown(name)} cannot name a user: characters are printable, and those that SASLprep (RFC 4013) "
            "keeps as they are"
        )
    return name


def check_password(password: str) -> str:
    """Return a password. Raises InvalidArgument, without the password; as `check_user`."""
    if not password or len(password) > _MAX_PASSWORD:
        raise InvalidArgument(f"a password has 1 to {_MAX_PASSWORD:,} characters")
    if not _is_prepared(password):
        raise InvalidArgument(
            "the password has characters that clients read in two ways (SASLprep, RFC 4013): control "
            "characters, unusual spaces, ligatures, characters of both directions. Choose one without"
        )
    return password


def _is_prepared(text: str) -> bool:
    """Raises InvalidArgument if scramp is needed and not installed."""
    if text.isascii():
        return text.isprintable()
    from .libraries import scramp

    try:
        return bool(scramp().utils.saslprep(text) == text)
    except scramp().ScramException:
        return False
