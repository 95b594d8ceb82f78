"""A team's authority and certificates, as TLS sees them."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from embedlog.errors import InvalidArgument, StorageError
from embedlog.security import certificates
from embedlog.security.certificates import Certificates


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Shake hands in memory. Returns the server's side. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[1]


def contexts(made: Certificates, hosts: list[str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made.authority)
    server.load_cert_chain(made.of_server(hosts))
    return server, ssl.create_default_context(cafile=made.authority)


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(str(tmp_path / "tls"), "flights")


def test_clients_trust_each_name_and_no_other(made: Certificates) -> None:
    server, client = contexts(made, ["localhost", "127.0.0.1", "::1", "broker.example.com"])
    for host in ("localhost", "127.0.0.1", "::1", "broker.example.com"):
        handshake(server, client, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, "example.com")
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate in certificate chain"):
        handshake(server, ssl.create_default_context(), "localhost")


def test_mutual_tls(made: Certificates) -> None:
    server, client = contexts(made, ["localhost"])
    server.verify_mode = ssl.CERT_REQUIRED
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # so that the client hears of it in the handshake
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server, client, "localhost")
    client.load_cert_chain(made.of_client("alice"))
    peer = handshake(server, client, "localhost").getpeercert()
    assert peer is not None
    assert peer["subject"] == ((("commonName", "alice"),),)
    client.load_cert_chain(made.of_server(["localhost"]))
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(server, client, "localhost")


def test_keys_are_private(made: Certificates) -> None:
    made.of_server(["localhost"])
    made.of_client("alice")
    path = Path(made.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    private = {"alice.pem", "broker.pem", "ca-key.pem"}
    assert {name for name, mode in modes.items() if mode == 0o600} == private
    assert set(modes) == private | {"ca.pem"}
    assert "PRIVATE" not in (path / "ca.pem").read_text()


def test_what_is_good_is_kept(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(made.of_server(["localhost", "a.example.com"]))
    first, authority = path.read_bytes(), Path(made.authority).read_bytes()
    again = Certificates(made.path, "flights")
    again.of_server(["localhost"])
    assert path.read_bytes() == first
    again.of_server(["b.example.com"])
    assert path.read_bytes() != first
    assert Path(made.authority).read_bytes() == authority
    handshake(*contexts(again, ["b.example.com"]), "b.example.com")
    monkeypatch.setattr(certificates, "_DAYS", 10)
    path.unlink()
    short = Path(again.of_server(["localhost"])).read_bytes()
    assert Path(again.of_server(["localhost"])).read_bytes() != short  # it expires soon
    path.write_bytes(b"garbage")
    handshake(*contexts(again, ["localhost"]), "localhost")


def test_one_of_another_authority_is_replaced(made: Certificates, tmp_path: Path) -> None:
    other = Certificates(str(tmp_path / "other"), "others")
    stranger = Path(other.of_server(["localhost"])).read_bytes()
    (Path(made.path) / "broker.pem").write_bytes(stranger)
    assert Path(made.of_server(["localhost"])).read_bytes() != stranger


def test_a_lost_key_of_the_authority(made: Certificates) -> None:
    (Path(made.path) / "ca-key.pem").unlink()
    with pytest.raises(StorageError, match="put it back"):
        made.of_server(["localhost"])


@pytest.mark.parametrize("name", ["", "a/b", "..", "ca", "ca-key", "broker", "a\0"])
def test_names_of_files(made: Certificates, name: str) -> None:
    with pytest.raises(InvalidArgument, match="choose another name"):
        made.of_client(name)
