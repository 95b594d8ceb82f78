"""A certificate authority and certificates for one team, in one directory.

    ca.pem             the authority's certificate: clients trust it
    ca-key.pem         its key; needed only to issue more certificates
    broker.pem         the broker's key, its certificate, and the authority's
    page.pem           the same of the page (`embedlog ui --secure`)
    NAME.pem           a client's, for mutual TLS, where one was asked for

Keys are ECDSA over P-256, which all of Kafka's clients support; files with a key have mode 0600. What is
there is kept: another certificate is issued only when the broker gets another name, or when the one that is
there expires soon. The authority lasts `_AUTHORITY_DAYS`: a new one would shut out everybody who trusts it.

Needs cryptography (extra `security`).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..errors import InvalidArgument, StorageError
from ..files.filesystem import FileSystem

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_AUTHORITY_DAYS: Final = 3_650
_DAYS: Final = 397  # what TLS clients accept at most
_RENEWED_BEFORE_DAYS: Final = 60
_CLOCKS_DIFFER: Final = datetime.timedelta(hours=1)

_AUTHORITY: Final = "ca.pem"
_AUTHORITY_KEY: Final = "ca-key.pem"
BROKER: Final = "broker"
PAGE: Final = "page"


class Certificates:
    """The certificates in a directory, which is created (mode 0700) if it does not exist.

    name: of the team or the log; a part of the authority's name, which people see.

    Raises InvalidArgument without cryptography; StorageError.
    """

    def __init__(self, path: str, name: str) -> None:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise InvalidArgument(
                "certificates are made with cryptography, which is not installed: "
                "pip install 'embedlog[security]'"
            ) from None
        self.path = os.path.abspath(path)
        self._fs = FileSystem()
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be created: {error.strerror}", path=self.path) from error
        if not os.path.exists(self.authority):
            self._make_authority(name)

    @property
    def authority(self) -> str:
        """The path of the authority's certificate."""
        return os.path.join(self.path, _AUTHORITY)

    def of_server(self, hosts: Iterable[str], server: str = BROKER) -> str:
        """The path of a server's key and certificates.

        Args:
            hosts: names and addresses that clients may know it by.
            server: BROKER or PAGE.

        Raises StorageError, InvalidArgument.
        """
        names = sorted(set(hosts))
        path = os.path.join(self.path, f"{server}.pem")
        if not self._is_good(path, names):
            self._issue(path, names[0] if names else server, names)
        return path

    def of_client(self, name: str) -> str:
        """The path of a client's key and certificates, for mutual TLS; its principal is User:CN=<name>."""
        if not name or set(name) & set("/\0") or name in (".", "..", "ca", "ca-key", BROKER, PAGE):
            raise InvalidArgument(f"a certificate cannot be called {name!r}: choose another name")
        path = os.path.join(self.path, f"{name}.pem")
        if not self._is_good(path, []):
            self._issue(path, name, [])
        return path

    # -- inside ------------------------------------------------------------------------------------------

    def _make_authority(self, name: str) -> None:
        from cryptography import x509

        key = _new_key()
        builder = (
            _builder(_named(f"{name} embedlog authority"), key, _AUTHORITY_DAYS)
            .issuer_name(_named(f"{name} embedlog authority"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
        )
        certificate = builder.sign(key, _sha256())
        self._write(_AUTHORITY_KEY, _pem_of_key(key), private=True)
        self._write(_AUTHORITY, _pem(certificate), private=False)

    def _issue(self, path: str, common_name: str, hosts: list[str]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509.oid import ExtendedKeyUsageOID

        authority = x509.load_pem_x509_certificate(self._read(self.authority))
        try:
            signer = load_pem_private_key(self._read(os.path.join(self.path, _AUTHORITY_KEY)), None)
        except ValueError as error:
            raise StorageError(f"{_AUTHORITY_KEY} is not a key: {error}", path=self.path) from None
        key = _new_key()
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_named(common_name), key, _DAYS)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
        )
        if hosts:
            alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(signer, _sha256())  # type: ignore[arg-type]
        chain = _pem_of_key(key) + _pem(certificate) + _pem(authority)
        self._write(os.path.basename(path), chain, private=True)

    def _is_good(self, path: str, hosts: list[str]) -> bool:
        """Whether a certificate is there, has these names, is this authority's, and lasts."""
        from cryptography import x509

        try:
            certificate = x509.load_pem_x509_certificates(self._read(path))[0]
        except (FileNotFoundError, ValueError):
            return False
        authority = x509.load_pem_x509_certificate(self._read(self.authority))
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_RENEWED_BEFORE_DAYS)
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # of several kinds
            return False
        return certificate.not_valid_after_utc > soon and set(hosts) <= _names(certificate)

    def _read(self, path: str) -> bytes:
        try:
            return self._fs.read_file(path)
        except FileNotFoundError:
            if path.endswith(_AUTHORITY_KEY):
                raise StorageError(
                    f"{path} is gone, so no certificate can be issued: put it back, or remove {self.path} to "
                    "begin with a new authority, which all clients must then trust",
                    path=path,
                ) from None
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error

    def _write(self, name: str, contents: bytes, *, private: bool) -> None:
        path = os.path.join(self.path, name)
        try:
            self._fs.write_file(path, contents, private=private)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", path=path) from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])  # at most 64 (RFC 5280)


def _builder(subject: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(certificate: x509.Certificate) -> set[str]:
    from cryptography import x509

    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {
        *alternatives.get_values_for_type(x509.DNSName),
        *map(str, alternatives.get_values_for_type(x509.IPAddress)),
    }


def _sha256() -> hashes.SHA256:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
