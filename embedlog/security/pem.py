"""Certificates and keys as text (PEM), in files that settings name: read, and checked for usual mistakes.

Source: RFC 7468 (PEM); KIP-651 (PEM in Kafka's settings).
"""

from __future__ import annotations

import datetime
from typing import Final

from ..errors import InvalidSetting
from .file_identity import file_identity

_MAX_FILE_BYTES: Final = 4 << 20


def check_dates(where: str, pem: bytes) -> None:
    """Raises InvalidSetting if the certificate does not hold now."""
    try:
        from cryptography import x509
    except ImportError:
        raise InvalidSetting("TLS needs cryptography: pip install 'embedlog[security]'") from None
    certificate = x509.load_pem_x509_certificates(pem)[0]
    now = datetime.datetime.now(datetime.UTC)
    if certificate.not_valid_after_utc < now:
        raise InvalidSetting(
            f"{where}: the certificate expired on {certificate.not_valid_after_utc:%F %T} UTC"
        )
    if certificate.not_valid_before_utc > now:
        raise InvalidSetting(
            f"{where}: the certificate is not valid before {certificate.not_valid_before_utc:%F %T} UTC; is "
            "the clock right?"
        )


def read_pem(setting: str, path: str) -> bytes:
    """A file with PEM. Raises InvalidSetting."""
    try:
        with open(path, "rb") as file:
            pem = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidSetting(f"{setting}: {path} cannot be read: {error.strerror}") from None
    if pem[:4] == b"\xfe\xed\xfe\xed" or pem[:2] == b"\x30\x82":
        raise InvalidSetting(f"{setting}: {path} is not PEM: {how_to_convert(path)}")
    return pem


def identities(*paths: str) -> list[tuple[int, ...]]:
    """Tell files from those that have been at these paths before; () for one that cannot be seen."""
    identities: list[tuple[int, ...]] = []
    for path in paths:
        try:
            identities.append(file_identity(path))
        except OSError:
            identities.append(())
    return identities


def how_to_convert(path: str) -> str:
    """What to do with a store that is not PEM."""
    return (
        f"convert it with `keytool -importkeystore -srckeystore {path} -destkeystore keystore.p12 "
        "-deststoretype PKCS12` (one of type PKCS12 needs no first step) and `openssl pkcs12 -in "
        "keystore.p12 -out keystore.pem`"
    )
