"""Certificates of an authority of the tests' own, in files."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.ca = trustme.CA()
        self.file = str(directory / "ca.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def issue(self, *hosts: str, name: str | None = None, expired: bool = False, password: str = "") -> str:
        """The path of a PEM file with a key (PKCS8, as Java wants it) and its certificates."""
        self._count += 1
        until = None
        if expired:
            until = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        made = self.ca.issue_cert(*(hosts or ("127.0.0.1", "localhost")), common_name=name, not_after=until)
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        path = self._directory / f"certificate-{self._count}.pem"
        path.write_bytes(pem + b"".join(each.bytes() for each in made.cert_chain_pems))
        path.chmod(0o600)
        return str(path)
