"""A client of brokers with TLS and SASL that are not as they should be."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import scramp
from certificates import Authority
from secure_peers import Peer, Says, accepted, refused

import embedlog
from embedlog import AuthenticationFailed, BrokerUnavailable, EmbedlogError, RequestTimedOut, TlsFailed
from embedlog.cluster import Broker
from embedlog.cluster.classic import SimpleConsumer
from embedlog.wire.apis.metadata import MetadataRequest, MetadataResponse
from embedlog.wire_client.client_config import client_settings
from embedlog.wire_client.connection import Connection, security_of

PASSWORD = "alice's secret"
USER = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
SALT, STORED, SERVER, ITERATIONS = scramp.ScramMechanism("SCRAM-SHA-256").make_auth_info(PASSWORD)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server(certificate: str, **settings: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


def plain() -> Says:
    return lambda said: accepted() if said == f"\0alice\0{PASSWORD}".encode() else refused("no such user")


class Scram:
    """A broker's half of SCRAM-SHA-256; `tampers` changes what it says."""

    def __init__(self, tampers: Callable[[int, str], str] = lambda step, said: said, lifetime_ms: int = 0):
        self._tampers = tampers
        self._lifetime_ms = lifetime_ms

    def __call__(self) -> Says:
        mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
        exchange: Any = None

        def says(said: bytes) -> Any:
            nonlocal exchange
            if not said.startswith(b"c="):
                exchange = mechanism.make_server(lambda user: (SALT, STORED, SERVER, ITERATIONS))
                exchange.set_client_first(said.decode())
                return accepted(self._tampers(0, exchange.get_server_first()).encode())
            try:
                exchange.set_client_final(said.decode())
            except scramp.ScramException:
                return refused("invalid credentials")
            return accepted(self._tampers(1, exchange.get_server_final()).encode(), self._lifetime_ms)

        return says


def opened(port: int, host: str = "127.0.0.1", **settings: Any) -> None:
    """Opens and closes the log; fails within a second of request_timeout_ms."""
    with embedlog.open(f"kafka://{host}:{port}", **{"request_timeout_ms": 20_000, **settings}) as log:
        assert log.topics() == []


def fails(error: type[EmbedlogError], said: str, port: int, **settings: Any) -> None:
    with pytest.raises(error, match=said) as caught:
        opened(port, **settings)
    assert type(caught.value) is error
    assert PASSWORD not in str(caught.value) + repr(caught.value)


# -- TLS ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_that_is_good(authority: Authority, version: ssl.TLSVersion, host: str) -> None:
    tls = server(authority.issue(), minimum_version=version, maximum_version=version)
    with Peer(tls=tls) as peer:
        opened(peer.port, host, security_protocol="SSL", ssl_cafile=authority.file)
        assert peer.asked[:2] == ["ApiVersions", "Metadata"]


def test_certificates_that_are_not(authority: Authority, tmp_path: Path) -> None:
    trusted = {"security_protocol": "SSL", "ssl_cafile": authority.file}
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with Peer(tls=server(authority.issue())) as peer:
        fails(
            TlsFailed, "give that authority's certificate as ssl_cafile", peer.port, security_protocol="SSL"
        )
        fails(TlsFailed, "ssl_cafile", peer.port, **{**trusted, "ssl_cafile": other.file})
    with Peer(tls=server(authority.issue(expired=True))) as peer:
        fails(TlsFailed, "has expired", peer.port, **trusted)
    with Peer(tls=server(authority.issue("example.com", "10.0.0.1"))) as peer:
        fails(TlsFailed, "for another host than 127.0.0.1", peer.port, **trusted)
        fails(TlsFailed, "for another host than localhost", peer.port, host="localhost", **trusted)
        opened(peer.port, ssl_check_hostname=False, **trusted)
        unknown = {**trusted, "ssl_check_hostname": False, "ssl_cafile": other.file}
        fails(TlsFailed, "ssl_cafile", peer.port, **unknown)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_broker_with_old_tls(authority: Authority) -> None:
    tls = server(
        authority.issue(), minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1
    )
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with Peer(tls=tls) as peer:
        fails(TlsFailed, "1.2 or newer", peer.port, security_protocol="SSL", ssl_cafile=authority.file)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_broker_that_wants_our_certificate(
    authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    tls = server(authority.issue(), verify_mode=ssl.CERT_REQUIRED, maximum_version=version)
    tls.load_verify_locations(authority.file)
    trusted = {"security_protocol": "SSL", "ssl_cafile": authority.file}
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with Peer(tls=tls) as peer:
        locked = authority.issue(name="alice", password=PASSWORD)
        opened(peer.port, ssl_certfile=authority.issue(name="alice"), **trusted)
        opened(peer.port, ssl_certfile=locked, ssl_password=PASSWORD, **trusted)
        fails(TlsFailed, "certificate of the client", peer.port, **trusted)
        fails(TlsFailed, "ssl_certfile", peer.port, ssl_certfile=other.issue(name="alice"), **trusted)
        expired = authority.issue(name="alice", expired=True)
        fails(TlsFailed, "has expired", peer.port, ssl_certfile=expired, **trusted)


def test_the_wrong_kind_of_port(authority: Authority) -> None:
    trusted = {"security_protocol": "SSL", "ssl_cafile": authority.file}
    with (
        Peer(tls=server(authority.issue())) as peer,
        pytest.raises(BrokerUnavailable, match=r"this port speaks? TLS"),  # an alert comes, or a reset
    ):
        opened(peer.port)
    with Peer(closes_at="Metadata") as peer:
        fails(BrokerUnavailable, "does this port want SASL .security_protocol SASL_PLAINTEXT", peer.port)
    with Peer(tls=server(authority.issue()), closes_at="Metadata") as peer:
        fails(BrokerUnavailable, "does this port want SASL .security_protocol SASL_SSL", peer.port, **trusted)
    with Broker(authority.file + "-log") as broker:
        fails(BrokerUnavailable, "PLAINTEXT", broker.port, **trusted)


@pytest.mark.parametrize("place", ["TLS", "ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata"])
def test_a_broker_that_stalls(authority: Authority, place: str) -> None:
    given = {"security_protocol": "SASL_SSL", "ssl_cafile": authority.file, "sasl_mechanism": "PLAIN", **USER}
    with Peer(plain, server(authority.issue()), stalls_at=place) as peer:
        fails(
            RequestTimedOut,
            f"broker 127.0.0.1:{peer.port} did not respond in time",
            peer.port,
            request_timeout_ms=300,
            **given,
        )


@pytest.mark.parametrize("place", ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata"])
def test_a_broker_that_closes_in_between(authority: Authority, place: str) -> None:
    given = {"security_protocol": "SASL_SSL", "ssl_cafile": authority.file, "sasl_mechanism": "PLAIN", **USER}
    with Peer(plain, server(authority.issue()), closes_at=place) as peer:
        fails(BrokerUnavailable, "closed the connection", peer.port, **given)


def test_an_idle_connection_with_tickets_is_used_again(authority: Authority) -> None:
    """TLS 1.3's tickets come after the handshake: they are no answer that nobody asked for."""
    settings = client_settings({"security_protocol": "SSL", "ssl_cafile": authority.file})
    with Peer(tls=server(authority.issue())) as peer:
        deadline = time.monotonic() + 60
        security = security_of(settings)
        with closing(Connection(("127.0.0.1", peer.port), settings, deadline, security)) as connection:
            for _ in range(5):
                connection.exchange(MetadataRequest(topics=[]), MetadataResponse, deadline)
                assert connection.is_usable()
            connection.send(MetadataRequest(topics=[]), deadline)
            assert not connection.is_usable()  # somebody waits for a response
            connection.receive(MetadataResponse, deadline)
            connection.abort()
            assert not connection.is_usable()


# -- SASL --------------------------------------------------------------------------------------------------


def test_passwords() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT"}
    with Peer(plain) as peer:
        opened(peer.port, sasl_mechanism="PLAIN", **given, **USER)
        wrong = {**USER, "sasl_plain_password": "x"}
        fails(
            AuthenticationFailed,
            r"does not accept the user 'alice' \(PLAIN\): 'no such user'",
            peer.port,
            sasl_mechanism="PLAIN",
            **given,
            **wrong,
        )
    with Peer(Scram()) as peer:
        opened(peer.port, sasl_mechanism="SCRAM-SHA-256", **given, **USER)
        fails(
            AuthenticationFailed,
            "invalid credentials",
            peer.port,
            sasl_mechanism="SCRAM-SHA-256",
            **given,
            **wrong,
        )


def test_a_failure_is_not_tried_again() -> None:
    with Peer(plain) as peer:
        wrong = {**USER, "sasl_plain_password": "x"}
        fails(
            AuthenticationFailed,
            "no such user",
            peer.port,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            **wrong,
        )
        assert peer.asked.count("SaslAuthenticate") == 1


def test_a_mechanism_that_is_not_offered() -> None:
    with Peer(plain, mechanisms=("GSSAPI", "PLAIN\n")) as peer:
        given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", **USER}
        fails(
            AuthenticationFailed,
            r"does not offer .*SCRAM-SHA-512; it offers GSSAPI, PLAIN\\n",
            peer.port,
            **given,
        )


def _other_signature(step: int, said: str) -> str:
    return said if step == 0 else "v=" + "A" * 43 + "="


def _other_nonce(step: int, said: str) -> str:
    return said if step else "r=other" + said[said.index(",") :]


def _own_nonce(step: int, said: str) -> str:
    return said if step else said.split(",")[0][: 2 + 64] + said[said.index(",") :]


def _iterations(count: str) -> Callable[[int, str], str]:
    return lambda step, said: said if step else said[: said.index(",i=")] + f",i={count}"


@pytest.mark.parametrize(
    ("tampers", "said"),
    [
        (_other_signature, "does not prove that it knows the user's password"),
        (lambda step, said: said if step == 0 else "", "does not prove"),
        (lambda step, said: said if step == 0 else "e=other-error", "does not prove"),
        (_other_nonce, "does not prove"),
        (_own_nonce, "does not prove"),
        (_iterations("1"), "does not prove"),
        (_iterations("1000001"), "asks for 1,000,001 iterations"),
        (_iterations("9999999999999999999"), "iterations"),
        (_iterations("9" * 5000), "does not prove"),
        (lambda step, said: "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "does not prove"),
        (lambda step, said: "x" * (1 << 17), "does not follow"),
    ],
)
def test_a_broker_that_does_not_know_the_password(tampers: Callable[[int, str], str], said: str) -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **USER}
    with Peer(Scram(tampers)) as peer:
        fails(AuthenticationFailed, said, peer.port, **given)
        assert "Metadata" not in peer.asked


def test_a_broker_that_never_ends() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    with Peer(lambda: lambda said: accepted(b'{"status":"invalid_token"}')) as peer:
        fails(
            AuthenticationFailed, "invalid_token", peer.port, sasl_oauth_token_provider=lambda: "t", **given
        )
        assert peer.asked.count("SaslAuthenticate") == 2


def test_a_session_is_renewed() -> None:
    """The broker says that it ends in a millisecond: each request that follows renews it first."""
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **USER}
    settings = client_settings(given)
    with Peer(Scram(lifetime_ms=1)) as peer:
        deadline = time.monotonic() + 60
        security = security_of(settings)
        with closing(Connection(("127.0.0.1", peer.port), settings, deadline, security)) as connection:
            while time.monotonic() < deadline and peer.asked.count("SaslHandshake") < 3:
                connection.exchange(MetadataRequest(topics=[]), MetadataResponse, deadline)
            assert peer.asked.count("SaslAuthenticate") == 2 * peer.asked.count("SaslHandshake")


def test_a_session_that_ends_between_a_request_and_its_response() -> None:
    """Requests that follow without a wait for the response are not held up: the next one renews it."""
    settings = client_settings(
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **USER}
    )
    with Peer(Scram(lifetime_ms=1)) as peer:
        deadline = time.monotonic() + 60
        security = security_of(settings)
        with closing(Connection(("127.0.0.1", peer.port), settings, deadline, security)) as connection:
            for _ in range(3):
                del peer.asked[:]
                for _ in range(3):
                    session_ends = time.monotonic() + 0.001
                    while time.monotonic() <= session_ends:
                        pass
                    connection.send(MetadataRequest(topics=[]), deadline)
                for _ in range(3):
                    connection.receive(MetadataResponse, deadline)
                renewal = ["SaslHandshake", "SaslAuthenticate", "SaslAuthenticate"]
                assert peer.asked == [*renewal, "Metadata", "Metadata", "Metadata"]


# -- tokens ------------------------------------------------------------------------------------------------


class Provider:
    """As kafka-python has it."""

    def token(self) -> str:
        return "a.b-c"

    def extensions(self) -> dict[str, str]:
        return {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (lambda: "a.b-c", b"n,,\x01auth=Bearer a.b-c\x01\x01"),
        (lambda config: ("a.b-c", 5.0), b"n,,\x01auth=Bearer a.b-c\x01\x01"),
        (lambda config: ("t", 5.0, "p", {"x": "y z"}), b"n,,\x01auth=Bearer t\x01x=y z\x01\x01"),
        (Provider(), b"n,,\x01auth=Bearer a.b-c\x01logicalCluster=lkc-1\x01\x01"),
    ],
)
def test_tokens_of_a_function(provider: object, said: bytes) -> None:
    heard: list[bytes] = []
    with Peer(lambda: lambda said: (heard.append(said), accepted())[1]) as peer:
        opened(
            peer.port,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )
    assert heard == [said]


async def _coroutine() -> str:
    return "t"


@pytest.mark.parametrize(
    "provider",
    [
        lambda: "a\x01b",
        lambda: "",
        lambda: None,
        lambda: 1 / 0,
        lambda: ("t", 0, "", {"auth": "x"}),
        _coroutine,
    ],
)
def test_functions_that_return_no_token(provider: object) -> None:
    with Peer(plain) as peer:
        fails(
            AuthenticationFailed,
            "sasl_oauth_token_provider",
            peer.port,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )


class AuthorizationServer(HTTPServer):
    """Answers with what `answer` is: a status and a body."""

    answer: tuple[int, bytes] = (200, b"")
    seen: list[tuple[str, dict[str, list[str]]]]


class _Handler(BaseHTTPRequestHandler):
    server: AuthorizationServer

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.seen.append((self.headers["Authorization"], form))
        status, body = self.server.answer
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def tokens(authority: Authority) -> Iterator[AuthorizationServer]:
    found = AuthorizationServer(("127.0.0.1", 0), _Handler)
    found.seen = []
    found.socket = server(authority.issue()).wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_tokens_of_a_server(authority: Authority, tokens: AuthorizationServer) -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"https://127.0.0.1:{tokens.server_port}/token",
        "sasl.oauthbearer.client.id": "id:1",
        "sasl.oauthbearer.client.secret": PASSWORD,
        "sasl.oauthbearer.scope": "kafka",
        "ssl_cafile": authority.file,
    }
    heard: list[bytes] = []
    with Peer(lambda: lambda said: (heard.append(said), accepted())[1]) as peer:
        tokens.answer = 200, json.dumps({"access_token": "t-1", "expires_in": 3600}).encode()
        settings = client_settings(given)
        security = security_of(settings)
        deadline = time.monotonic() + 60
        for _ in range(2):  # the second has the token that is kept
            Connection(("127.0.0.1", peer.port), settings, deadline, security).close()
        assert heard == [b"n,,\x01auth=Bearer t-1\x01\x01"] * 2
        assert tokens.seen == [
            (
                "Basic aWQlM0ExOmFsaWNlJTI3cytzZWNyZXQ=",
                {"grant_type": ["client_credentials"], "scope": ["kafka"]},
            )
        ]
        for answer, error, said in [
            ((401, b'{"error": "invalid_client"}'), AuthenticationFailed, "401 .'invalid_client'"),
            ((200, b"[]"), AuthenticationFailed, "not a JSON object"),
            ((200, b"x" * (2 << 20)), AuthenticationFailed, "not a JSON object"),
            ((200, b'{"access_token": "a b"}'), AuthenticationFailed, "no bearer token"),
            ((302, b""), AuthenticationFailed, "302"),
            ((500, b""), BrokerUnavailable, "500"),
            ((503, b""), BrokerUnavailable, "503"),
        ]:
            tokens.answer = answer
            fails(error, said, peer.port, **given)
        fails(BrokerUnavailable, "certificate verify failed", peer.port, **{**given, "ssl_cafile": ""})


# -- the clients of the design documents ---------------------------------------------------------------------


def test_a_simple_consumer(authority: Authority, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={authority.file}\nsasl.mechanism=PLAIN\n"
        f"sasl.username=alice\nsasl.password={PASSWORD}\n"
    )
    config.chmod(0o600)
    with (
        Peer(plain, server(authority.issue())) as peer,
        SimpleConsumer("127.0.0.1", peer.port, client_config=str(config)) as consumer,
        pytest.raises(EmbedlogError, match="ListOffsets"),  # which this peer does not offer
    ):
        consumer.get_offsets_before("t", 0, -1, 1)
    assert peer.asked == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
    with (
        Peer(plain, server(authority.issue("example.com"))) as peer,
        SimpleConsumer("127.0.0.1", peer.port, client_config=str(config)) as consumer,
        pytest.raises(TlsFailed, match="another host"),
    ):
        consumer.get_offsets_before("t", 0, -1, 1)
