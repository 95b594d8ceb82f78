"""Files of keys and rules that are replaced, or written in place, without another size."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tls import Authority, serving

from embedlog.security.document import Document
from embedlog.security.oauthbearer import Jwks
from embedlog.security.pem import identities
from embedlog.wire_client.security import ClientSecurity
from embedlog.wire_client.settings import ClientSettings

BEFORE_NS = 1_800_000_000_000_000_000


def write_in_place(path: Path, contents: bytes, time_ns: int) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(contents)
    os.utime(path, ns=(BEFORE_NS, time_ns))


# 100 ns are less than a float of this time can tell. A restored file has the time of its backup.
@pytest.mark.parametrize("later_ns", [100, -100, 1_000_000_000, -1_000_000_000])
def test_a_key_is_noticed(tmp_path: Path, later_ns: int) -> None:
    key, authority = tmp_path / "key.pem", tmp_path / "ca.pem"
    paths = str(key), str(authority), str(tmp_path / "none.pem")
    write_in_place(key, b"the first key", BEFORE_NS)
    write_in_place(authority, b"an authority", BEFORE_NS)
    before = identities(*paths)
    assert identities(*paths) == before
    write_in_place(key, b"another key!!", BEFORE_NS + later_ns)
    after = identities(*paths)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    assert after[2] == ()


def test_a_key_that_takes_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    """Of the same size and time, as files of one archive are."""
    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    write_in_place(key, b"the first key", BEFORE_NS)
    write_in_place(other, b"another key!!", BEFORE_NS)
    before = identities(str(key))
    other.rename(key)
    assert identities(str(key)) != before


@pytest.mark.parametrize("later_ns", [100, -100])
def test_rules_are_noticed(tmp_path: Path, later_ns: int) -> None:
    path = tmp_path / "users.json"
    write_in_place(path, b'{"version": 1, "users": ["alice"]}', BEFORE_NS)
    document = Document(str(path), 1, check_s=0)
    assert document.read() == {"users": ["alice"]}
    write_in_place(path, b'{"version": 1, "users": ["carol"]}', BEFORE_NS + later_ns)
    assert document.read() == {"users": ["carol"]}


@pytest.mark.parametrize("later_ns", [100, -100])
def test_keys_of_tokens_are_noticed(tmp_path: Path, later_ns: int) -> None:
    path = tmp_path / "keys.json"
    point = base64.urlsafe_b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    key = b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "%s", "x": "' + point.rstrip(b"=") + b'"}]}'
    write_in_place(path, key % b"one", BEFORE_NS)
    jwks = Jwks(path.as_uri(), 3600)
    assert jwks.key("one") is not None
    write_in_place(path, key % b"two", BEFORE_NS + later_ns)
    assert jwks.key("two") is not None
    assert jwks.key("one") is None


@pytest.mark.parametrize("later_ns", [100, -100])
def test_a_listener_reads_its_certificate_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, later_ns: int
) -> None:
    authority = Authority(tmp_path)
    keystore = authority.server("listener.pem")  # `serving` makes a server.pem
    contents = keystore.read_bytes()
    write_in_place(keystore, contents, BEFORE_NS)
    with serving(authority, ssl_keystore_location=str(keystore)) as broker:
        broker.reload_certificates()
        assert "has read its certificates again" not in caplog.text
        write_in_place(keystore, contents, BEFORE_NS + later_ns)
        broker.reload_certificates()
        assert caplog.text.count("has read its certificates again") == 1


@pytest.mark.parametrize("later_ns", [100, -100])
def test_a_client_reads_its_authorities_again(tmp_path: Path, later_ns: int) -> None:
    authority = Authority(tmp_path)
    contents = authority.file.read_bytes()
    write_in_place(authority.file, contents, BEFORE_NS)
    settings = {"security_protocol": "SSL", "ssl_cafile": str(authority.file)}
    security = ClientSecurity(ClientSettings().with_changes(settings))
    before = security.context()
    assert security.context() is before
    write_in_place(authority.file, contents, BEFORE_NS + later_ns)
    assert security.context() is not before
