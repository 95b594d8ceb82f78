"""Tokens that must not be believed, and key sets that change, as the checking of tokens sees them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from secured import Issuer

from embedlog.errors import InvalidSetting
from embedlog.security.oauthbearer import Jwks, JwtVerifier
from embedlog.security.sasl import AuthenticationFailed

_ZERO = "A" * 43  # 32 bytes


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def verifier(signer: Issuer, **changes: Any) -> JwtVerifier:
    given = {"audience": "embedlog", "issuer": "us", "sub_claim": "sub", "leeway_s": 30.0, **changes}
    return JwtVerifier(Jwks(str(signer.path), 3_600), **given)


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"sub": "alice", "iat": now, "exp": now + 600, "aud": "embedlog", "iss": "us", **changes}


def test_a_good_token(issuer: Issuer) -> None:
    verified = verifier(issuer).verify(issuer.token("alice", lasts_s=600))
    assert verified.user == "alice"
    assert abs(verified.expires_ms / 1000 - time.time() - 600) < 60
    assert verifier(issuer, sub_claim="email").verify(issuer.token(email="a@b.c")).user == "a@b.c"
    assert verifier(issuer, audience="other, embedlog").verify(issuer.token(aud=["x", "embedlog"])).user
    assert verifier(issuer, audience="", issuer="").verify(issuer.token(aud="any", iss="anybody")).user


def without_signature(issuer: Issuer) -> str:
    return f"{part({'alg': 'none', 'kid': 'one'})}.{part(claims())}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """HS256, with what everybody knows as the secret."""
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims())}"
    signature = hmac.new(issuer.public_pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{part(signature)}"


def signed_by_another(issuer: Issuer, algorithm: str = "RS256", kid: str = "one", **headers: Any) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(claims(), key, algorithm, headers={"kid": kid, **headers})


def with_its_own_key(issuer: Issuer) -> str:
    """The header offers the key to check it with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    headers = {"kid": "one", "jwk": jwk, "jku": "https://attacker.invalid/keys"}
    return jwt.encode(claims(), key, "RS256", headers=headers)


def of_another_curve(issuer: Issuer) -> str:
    return jwt.encode(claims(), ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "one"})


def altered(issuer: Issuer) -> str:
    header, _, signature = issuer.token("alice").split(".")
    return f"{header}.{part(claims(sub='admin'))}.{signature}"


FORGED = [
    without_signature,
    signed_with_the_public_key,
    signed_by_another,
    lambda issuer: signed_by_another(issuer, kid="unknown"),
    with_its_own_key,
    of_another_curve,
    altered,
    lambda issuer: issuer.token(aud="somebody else"),
    lambda issuer: issuer.token(iss="somebody else"),
    lambda issuer: issuer.token(lasts_s=-31),
    lambda issuer: issuer.token(nbf=int(time.time()) + 3_600),
    lambda issuer: issuer.token(iat=int(time.time()) + 3_600),
    lambda issuer: issuer.token(exp="tomorrow"),
    lambda issuer: jwt.encode({"sub": "alice", "aud": "embedlog", "iss": "us"}, issuer.key, "RS256"),
    lambda issuer: issuer.token(sub=""),
    lambda issuer: issuer.token(sub="alice\nINFO all is well"),
    lambda issuer: issuer.token(sub=None),
    lambda issuer: issuer.token() + "." + issuer.token(),
    lambda issuer: "x" * (1 << 20),
    lambda issuer: "",
    lambda issuer: "..",
    lambda issuer: f"{part(b'[]')}.{part({})}.",
    lambda issuer: f"{part({'alg': 'RS256', 'kid': ['one']})}.{part(claims())}.x",
    lambda issuer: f"{part({'alg': ['RS256'], 'kid': 'one'})}.{part(claims())}.x",
    lambda issuer: f"{part(b'[' * 40_000)}.{part(claims())}.x",
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_token_that_is_not_to_be_believed(issuer: Issuer, forged: Any) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        verifier(issuer).verify(forged(issuer))
    assert str(refused.value).startswith("Authentication failed during authentication")  # and says no more


def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    assert verifier(issuer).verify(issuer.token(lasts_s=-5)).user == "alice"


def test_a_file_of_keys_is_read_again(issuer: Issuer) -> None:
    found = verifier(issuer)
    assert found.verify(issuer.token()).user == "alice"
    issuer.publish("two")
    assert found.verify(issuer.token(kid="two")).user == "alice"
    with pytest.raises(AuthenticationFailed):
        found.verify(issuer.token(kid="one"))
    issuer.path.write_text("half of i")
    assert found.verify(issuer.token(kid="two")).user == "alice"  # as it was
    issuer.path.unlink()
    assert found.verify(issuer.token(kid="two")).user == "alice"


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ("", "Expecting value"),
        ("{}", "has no keys"),
        ('{"keys": []}', "no public key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]}', "no public key"),
        ('{"keys": [{"kty": "RSA", "n": "x", "e": "y", "use": "enc"}]}', "no public key"),
        ('{"keys": [{"kty": "RSA", "kid": "one"}, 7]}', "no public key"),
        ('{"keys": [{"kty": "RSA", "kid": "one", "alg": ["RS256"]}]}', "no public key"),
        (
            f'{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": ["one"], "x": "{_ZERO}"}}]}}',
            "no public key",
        ),
        (f'{{"keys": [{{"kty": "EC", "crv": "P-256", "x": "{_ZERO}", "y": "{_ZERO}"}}]}}', "no public key"),
        ("[" * 100_000, "nested too deeply"),
        (" " * (2 << 20), "more than"),
    ],
)
def test_a_set_of_keys_that_cannot_be(tmp_path: Path, contents: str, says: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(contents)
    with pytest.raises(InvalidSetting, match=says):
        Jwks(str(path), 3_600)


@pytest.mark.parametrize("url", ["http://127.0.0.1/keys", "ftp://127.0.0.1/keys", "data:,{}"])
def test_keys_come_by_https_or_from_a_file(url: str) -> None:
    with pytest.raises(InvalidSetting, match="https address or a file"):
        Jwks(url, 3_600)


class Keys(http.server.BaseHTTPRequestHandler):
    """Serves `document`, or redirects to `elsewhere`."""

    document = b""
    elsewhere = ""
    garbage = b""
    asked = 0
    stalls: threading.Event | None = None  # until it is set
    stalled = threading.Event()

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.stalls is not None:
            self.stalled.set()
            self.stalls.wait()
        if self.garbage:
            self.wfile.write(self.garbage)
            return
        self.send_response(302 if self.elsewhere else 200)
        if self.elsewhere:
            self.send_header("Location", self.elsewhere)
        self.end_headers()
        self.wfile.write(self.document)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Keys]]]:
    """The address of a server with a certificate that this process trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    handler = type("Handler", (Keys,), {})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}/keys", handler
        finally:
            server.shutdown()
            thread.join()


def test_keys_are_fetched_seldom(issuer: Issuer, keys: tuple[str, type[Keys]]) -> None:
    url, handler = keys
    handler.document = issuer.jwks("one").encode()
    now = 0.0
    jwks = Jwks(url, 3_600, lambda: now)
    assert handler.asked == 1
    for made_up in range(1_000):
        assert jwks.key(f"made-up-{made_up}") is None
    assert handler.asked == 1
    now = 11.0
    handler.document = issuer.jwks("two").encode()
    assert jwks.key("two") is not None  # it rotated: fetched again, once
    assert jwks.key("three") is None
    assert handler.asked == 2
    now = 4_000.0
    handler.document = b"out of order"
    assert jwks.key("two") is not None  # the old ones go on
    assert handler.asked == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    ],
    ids=["garbage", "too many headers", "half"],
)
def test_keys_go_on_beside_a_server_out_of_order(
    issuer: Issuer, keys: tuple[str, type[Keys]], answer: bytes
) -> None:
    url, handler = keys
    handler.document = issuer.jwks("one").encode()
    now = 0.0
    jwks = Jwks(url, 3_600, lambda: now)
    handler.garbage = answer
    now = 4_000.0
    assert jwks.key("one") is not None
    assert handler.asked == 2
    assert Jwks(url, 3_600).key("one") is None  # a broker starts


def test_known_keys_do_not_wait_for_a_server_that_stalls(
    issuer: Issuer, keys: tuple[str, type[Keys]]
) -> None:
    url, handler = keys
    handler.document = issuer.jwks("one").encode()
    now = 0.0
    jwks = Jwks(url, 3_600, lambda: now)
    now = 4_000.0
    handler.stalls, handler.stalled = threading.Event(), threading.Event()
    fetching = threading.Thread(target=jwks.key, args=("made up",))
    fetching.start()
    try:
        handler.stalled.wait()
        assert jwks.key("one") is not None
        assert fetching.is_alive()
    finally:
        handler.stalls.set()
        fetching.join()


def test_a_redirection_leaves_no_https(issuer: Issuer, keys: tuple[str, type[Keys]]) -> None:
    url, handler = keys
    handler.elsewhere = "http://127.0.0.1:1/keys"
    handler.document = issuer.jwks("one").encode()
    assert Jwks(url, 3_600).key("one") is None


def test_a_server_that_nobody_vouches_for(
    issuer: Issuer, keys: tuple[str, type[Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = keys
    handler.document = issuer.jwks("one").encode()
    monkeypatch.delenv("SSL_CERT_FILE")
    assert Jwks(url, 3_600).key("one") is None
    assert handler.asked == 0
