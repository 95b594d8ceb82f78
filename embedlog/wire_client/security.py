"""How a client's connections are secured: TLS by OpenSSL, then SASL (sasl.py).

A broker's certificate is always checked: that an authority in ssl_cafile (or one that the system trusts) has
issued it, that it has not expired, and that it is for the host in the address, unless ssl_check_hostname is
off. TLS 1.2 is the oldest. The files are read again when they have changed, at the next connection.

`TlsSocket` has the methods of a socket that connection.py calls. The kernel's timeouts (SO_RCVTIMEO) do not
end a call of OpenSSL, so it sets Python's.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final

from ..errors import BrokerUnavailable, EmbedlogError, InvalidSetting, TlsFailed, UnsupportedByBackend
from ..runtime.forking import no_fork
from ..runtime.locks import Lock
from ..security.pem import identities
from .sasl import Sasl
from .security_names import CONVERT
from .settings import ClientSettings

_JOIN_BYTES: Final = 1 << 16
_JKS: Final = b"\xfe\xed\xfe\xed"
_DER: Final = b"\x30"

_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})  # OpenSSL's X509_V_ERR_...
_NOT_YET: Final = frozenset({9})
_EXPIRED: Final = frozenset({10})
_OTHER_HOST: Final = frozenset({62, 64})

# OpenSSL's reason -> what it means here.
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "this port does not speak TLS: use security_protocol PLAINTEXT or "
    "SASL_PLAINTEXT, or the broker's other port",
    "UNSUPPORTED_PROTOCOL": "the broker offers no TLS of version 1.2 or newer",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker offers no TLS of version 1.2 or newer",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the broker agrees to no cipher (ssl_ciphers), or wants a certificate "
    "of the client (ssl_certfile, ssl_keyfile)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker wants a certificate of the client: give ssl_certfile "
    "and ssl_keyfile",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know who issued our certificate (ssl_certfile)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker does not accept our certificate (ssl_certfile)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the broker does not accept our certificate (ssl_certfile)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate (ssl_certfile) has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate (ssl_certfile) is revoked",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the broker does not accept this kind of certificate",
    "TLSV1_UNRECOGNIZED_NAME": "the broker has no certificate for this host's name",
}

logger = logging.getLogger(__name__)


class _ClosedAtOnce(OSError):
    """The broker closed the connection during the handshake."""


class ClientSecurity:
    """Secures connections. Thread-safe. Raises InvalidSetting, UnsupportedByBackend."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.protocol = settings.security_protocol
        self.has_tls = settings.security_protocol in ("SSL", "SASL_SSL")
        has_sasl = settings.security_protocol.startswith("SASL_")
        self.sasl = Sasl(settings) if has_sasl else None
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None
        self._files: object = None
        if self.has_tls:
            self.context()

    def wrapped(self, connected: socket.socket, host: str, deadline: float) -> TlsSocket:
        """TLS over a connected socket, after the handshake; closes it if that fails. Raises OSError."""
        tls: socket.socket = connected
        try:
            connected.settimeout(max(deadline - time.monotonic(), 0.001))
            tls = secured = self.context().wrap_socket(
                connected, server_hostname=host.rstrip("."), do_handshake_on_connect=False
            )
            secured.do_handshake()
        except BaseException as error:
            with no_fork:
                tls.close()
            if isinstance(error, ConnectionError | ssl.SSLEOFError):
                raise _ClosedAtOnce from error
            raise
        return TlsSocket(secured)

    def explained(self, error: OSError, where: str, host: str) -> BrokerUnavailable | None:
        """The error for one of OpenSSL's; None for others."""
        return _tls_error(error, where, host) if self.has_tls else None

    def context(self) -> ssl.SSLContext:
        """From the files as they are, or as they were if new ones cannot be read. Raises InvalidSetting."""
        with self._lock:
            files = identities(
                self._settings.ssl_cafile, self._settings.ssl_certfile, self._settings.ssl_keyfile
            )
            if self._context is None:
                self._context = _context(self._settings)
            elif files != self._files:
                try:
                    self._context = _context(self._settings)
                except EmbedlogError as error:
                    logger.warning("the old certificates are used: %s", error)
            self._files = files
            return self._context


class TlsSocket:
    """The methods that connection.py calls. A call that times out raises BlockingIOError.

    For one thread at a time, except `shutdown`.
    """

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls

    def fileno(self) -> int:
        return self._tls.fileno()

    def settimeout(self, seconds: float) -> None:
        """Set the timeout of each call from now on."""
        self._tls.settimeout(seconds)

    def sendmsg(self, pieces: Sequence[memoryview]) -> int:
        """Send the first pieces, or a part of them; returns how many bytes. Repeat it with the same."""
        first = pieces[0]
        if len(first) < _JOIN_BYTES and len(pieces) > 1:
            first = memoryview(b"".join(pieces)) if sum(map(len, pieces)) <= _JOIN_BYTES else first
        try:
            return self._tls.send(first[:_JOIN_BYTES])
        except TimeoutError:
            raise BlockingIOError from None
        except OSError:
            self._raise_alert()
            raise

    def recv(self, size: int) -> bytes:
        try:
            return self._tls.recv(size)
        except TimeoutError:
            raise BlockingIOError from None

    def recv_into(self, view: memoryview) -> int:
        try:
            return self._tls.recv_into(view)
        except TimeoutError:
            raise BlockingIOError from None

    def _raise_alert(self) -> None:
        """Why the broker closes, if it said so: with TLS 1.3 it sees our certificate after the handshake."""
        try:
            self._tls.settimeout(0.0)
            self._tls.recv(1)
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLWantReadError | ssl.SSLEOFError):
                raise
        except OSError:
            pass

    def has_pending(self) -> bool:
        """Whether bytes are decrypted already, which no poll of the socket reports."""
        return self._tls.pending() > 0

    def is_quiet(self) -> bool:
        """Whether nothing has come while idle, but for what TLS itself sends (TLS 1.3's tickets)."""
        if self._tls.pending():
            return False
        self._tls.settimeout(0.0)
        try:
            self._tls.recv(1)
        except ssl.SSLWantReadError:
            return True
        return False

    def shutdown(self, how: int) -> None:
        """Shut down the connection beneath: SSLSocket's own shutdown is not for another thread."""
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        self._tls.close()


def _tls_error(error: OSError, where: str, host: str) -> BrokerUnavailable | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"broker {where}: {_certificate(error, host)}")
    if isinstance(error, ssl.SSLEOFError):
        return BrokerUnavailable(f"broker {where} closed the connection")
    if isinstance(error, _ClosedAtOnce):
        return BrokerUnavailable(
            f"broker {where} closed the connection during the TLS handshake: is it a port for PLAINTEXT?"
        )
    if isinstance(error, ssl.SSLError):
        reason = _REASONS.get(error.reason or "")
        if reason is not None:
            return TlsFailed(f"broker {where}: {reason}")
        return BrokerUnavailable(f"broker {where}: TLS failed: {error.reason or error.strerror or 'unknown'}")
    return None


def _certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code in _UNKNOWN_AUTHORITY:
        return (
            f"its certificate is from an authority that is not known here ({error.verify_message}): give "
            "that authority's certificate as ssl_cafile"
        )
    if code in _EXPIRED:
        return "its certificate has expired"
    if code in _NOT_YET:
        return "its certificate is not valid yet: do the clocks agree?"
    if code in _OTHER_HOST:
        return (
            f"its certificate is for another host than {host}: use a name that is in the certificate "
            "(ssl_check_hostname=False would trust any host of that authority)"
        )
    return f"its certificate is not accepted: {error.verify_message}"


def _context(settings: ClientSettings) -> ssl.SSLContext:
    """Raises InvalidSetting, UnsupportedByBackend."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.ssl_check_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    if settings.ssl_ciphers:
        try:
            context.set_ciphers(settings.ssl_ciphers.replace(",", ":"))
        except ssl.SSLError:
            raise InvalidSetting("ssl_ciphers names no cipher of OpenSSL") from None
    _load_authorities(context, settings.ssl_cafile)
    if settings.ssl_certfile:
        _load_own(context, settings)
    elif settings.ssl_keyfile:
        raise InvalidSetting("ssl_keyfile needs ssl_certfile, the certificate that belongs to it")
    return context


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    if not path:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    elif os.path.isdir(path):
        context.load_verify_locations(capath=path)
    else:
        _check_pem("ssl_cafile", path)
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError:
            raise InvalidSetting(f"ssl_cafile: {path} has no certificate in PEM") from None


def _load_own(context: ssl.SSLContext, settings: ClientSettings) -> None:
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile or settings.ssl_certfile
    _check_pem("ssl_certfile", certificate)
    _check_pem("ssl_keyfile", key)
    try:
        # A function, also without a password: OpenSSL would ask the terminal otherwise.
        context.load_cert_chain(certificate, key, password=settings.ssl_password.reveal)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"ssl_keyfile: the key in {key} does not belong to the certificate in {certificate}"
        elif _is_encrypted(key):
            message = f"ssl_password is not that of the key in {key}"
        else:
            message = (
                f"ssl_certfile, ssl_keyfile: no certificate with its key in PEM in {certificate} and {key}"
            )
        raise InvalidSetting(message) from None
    except OSError as error:
        raise InvalidSetting(f"ssl_certfile: {error.strerror}") from None


def _is_encrypted(path: str) -> bool:
    with open(path, "rb") as file:
        return b"ENCRYPTED" in file.read()


def _check_pem(name: str, path: str) -> None:
    """That a file can be read, and is no store of Java's. Raises InvalidSetting, UnsupportedByBackend."""
    try:
        with open(path, "rb") as file:
            begun = file.read(4)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"{name}: {path} cannot be read: {getattr(error, 'strerror', error)}") from None
    if begun == _JKS or begun[:1] == _DER:
        kind = "JKS" if begun == _JKS else "PKCS12 (or DER)"
        raise UnsupportedByBackend(f"{name}: {path} is a {kind} file: {CONVERT}")
