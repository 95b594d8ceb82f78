"""The TLS of a listener: what its settings say, as an OpenSSL context that follows its files.

    listener.name.<name>.ssl.<setting>, or ssl.<setting>  ->  TlsSettings  ->  ssl.SSLContext

The files may be replaced while the broker runs (a certificate is renewed). `current` looks at most once a
second whether one of them is another one, and reads them then: connections that are made from then on get the
new certificate, those that exist go on. Files that cannot be used, half-written ones perhaps, are reported
once, and the context before stays.

The file with the key has the certificate first, then those of the authorities between it and the one that
clients trust, and the private key, encrypted or not, before or after them (PEM).

Source: Kafka's broker configurations (ssl.*); KIP-651 (PEM), KIP-103 (listener.name.*).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ...errors import InvalidSetting, shown
from ...runtime.locks import Lock
from ...security.pem import check_dates, how_to_convert, identities, read_pem
from ...security.principal import ANONYMOUS, Principal
from ...security.ssl_principal import PrincipalMapping
from ..settings.broker_settings import BrokerSettings
from .listeners import Listener
from .tls_errors import reason_of

logger = logging.getLogger(__name__)

_CHECK_S: Final = 1.0
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_NO_RENEGOTIATION: Final = getattr(ssl, "OP_NO_RENEGOTIATION", 0)


class Tls(NamedTuple):
    """What a new connection needs."""

    context: ssl.SSLContext
    principal_of: Callable[[bytes | None], Principal]


class ListenerTls:
    """The TLS of one listener. Thread-safe.

    Args:
        settings: the broker's, with the listener's own in place of the general ones.

    Raises InvalidSetting, which names the file and what is wrong with it.
    """

    def __init__(self, listener: Listener, settings: BrokerSettings) -> None:
        self._name = listener.name
        self._settings = settings
        mapping = PrincipalMapping(settings.ssl_principal_mapping_rules)
        # With SASL the principal is the one that authenticates by SASL.
        self._principal_of = _anonymous if listener.protocol.has_sasl else mapping.of_certificate
        self._files = settings.ssl_keystore_location, settings.ssl_truststore_location
        self._lock = Lock()
        self._identities = identities(*self._files)
        self._tls = Tls(make_context(settings), self._principal_of)
        self._checked = time.monotonic()

    @property
    def requires_certificates(self) -> bool:
        """Whether clients have to present a certificate."""
        return self._settings.ssl_client_auth == "required"

    def current(self) -> Tls:
        """The TLS of a connection that is made now. May read files."""
        if time.monotonic() - self._checked >= _CHECK_S:
            self.reload()
        return self._tls

    def reload(self) -> None:
        """Read the files if they are others than the last time."""
        with self._lock:
            self._checked = time.monotonic()
            current = identities(*self._files)
            if current == self._identities:
                return
            self._identities = current
            try:
                self._tls = Tls(make_context(self._settings), self._principal_of)
            except InvalidSetting as error:
                logger.error("listener %s keeps the certificate that it has: %s", self._name, error)
            else:
                logger.warning("listener %s has read its certificates again", self._name)


def _anonymous(certificate: bytes | None) -> Principal:
    return ANONYMOUS


def make_context(settings: BrokerSettings) -> ssl.SSLContext:
    """A server's context. Raises InvalidSetting."""
    for setting in ("ssl_keystore_type", "ssl_truststore_type"):
        kind = getattr(settings, setting)
        if kind.upper() != "PEM":
            raise InvalidSetting(f"{setting} is {shown(kind)}: {how_to_convert('FILE.jks')}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, settings)
    context.options |= _NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    if settings.ssl_truststore_location:
        data = read_pem("ssl_truststore_location", settings.ssl_truststore_location)
        try:
            context.load_verify_locations(cadata=data.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise InvalidSetting(
                f"ssl_truststore_location: {settings.ssl_truststore_location} has no certificates in PEM"
            ) from None
        # A certificate in it is trusted itself, as in Java, whether it is an authority's or not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    elif settings.ssl_client_auth != "none":
        raise InvalidSetting(
            f"ssl_client_auth={settings.ssl_client_auth} needs ssl_truststore_location: the PEM file of the "
            "authorities whose clients may connect"
        )
    return context


def _set_versions(context: ssl.SSLContext, settings: BrokerSettings) -> None:
    versions = {
        protocol.strip() for protocol in settings.ssl_enabled_protocols.split(",") if protocol.strip()
    }
    if not versions or versions - _VERSIONS.keys():
        raise InvalidSetting(
            f"ssl_enabled_protocols is {', '.join(_VERSIONS)} or one of them, not "
            f"{shown(settings.ssl_enabled_protocols)}: earlier versions of TLS are broken"
        )
    context.minimum_version, context.maximum_version = (_VERSIONS[choose(versions)] for choose in (min, max))
    suites = [suite.strip() for suite in settings.ssl_cipher_suites.split(",") if suite.strip()]
    # Those of TLS 1.3 are not ours to choose: OpenSSL has three, all of them good.
    of_tls12 = [openssl_name(suite) for suite in suites if not is_tls13(suite)]
    if of_tls12:
        try:
            context.set_ciphers(":".join(of_tls12))
        except ssl.SSLError:
            raise InvalidSetting(
                f"ssl_cipher_suites: OpenSSL has none of {settings.ssl_cipher_suites}"
            ) from None
    elif suites:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def is_tls13(suite: str) -> bool:
    """Whether it is a suite of TLS 1.3, which say nothing of keys."""
    return suite.startswith("TLS_") and "_WITH_" not in suite


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2 that may have Java's (IANA's)."""
    keys, separator, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return suite
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return ("" if keys == "RSA" else f"{keys}_").replace("_", "-") + cipher.replace("_", "-")


def _load_key(context: ssl.SSLContext, settings: BrokerSettings) -> None:
    path = settings.ssl_keystore_location
    if not path:
        raise InvalidSetting(
            "a listener with TLS needs ssl_keystore_location: a PEM file with its private key and certificate"
        )
    data = read_pem("ssl_keystore_location", path)
    source = f"ssl_keystore_location: {path}"
    for marker, content in ((b"-----BEGIN CERTIFICATE", "certificate"), (b"PRIVATE KEY-----", "private key")):
        if marker not in data:
            raise InvalidSetting(f"{source} has no {content}: both belong into this file, as PEM")
    try:
        context.load_cert_chain(path, password=settings.ssl_key_password.reveal() or _no_password)
    except _NoPassword:
        raise InvalidSetting(f"{source}: the private key is encrypted: give ssl_key_password") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "the private key does not belong to the first certificate"
        elif settings.ssl_key_password and b"ENCRYPTED" in data:
            reason = "the private key cannot be decrypted: ssl_key_password is wrong, or the file is damaged"
        else:
            reason = f"it cannot be used: {reason_of(error)}"
        raise InvalidSetting(f"{source}: {reason}") from None
    except OSError as error:
        raise InvalidSetting(f"{source} cannot be read: {error.strerror}") from None
    check_dates(source, data)


class _NoPassword(Exception):
    """OpenSSL asks for a password that there is not."""


def _no_password() -> str:
    raise _NoPassword
