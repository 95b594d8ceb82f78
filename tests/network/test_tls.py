"""TLS with real clients: versions, client certificates, addresses, new certificates, the metrics port."""

from __future__ import annotations

import datetime
import json
import logging
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from tls import (
    EACH_WITH_TLS,
    VERSIONS,
    Authority,
    Security,
    TlsClient,
    TlsWire,
    at,
    librdkafka,
    serving,
)
from wire import TIMEOUT_S, Wire, batch_of, fetch, produce, records_of

from embedlog.cluster import Broker
from embedlog.cluster.network import tls_context
from embedlog.cluster.network.connection import Connection
from embedlog.errors import InvalidSetting, UnknownSetting
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.describe_cluster import DescribeClusterRequest
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.frames import encode_request

DAY = datetime.timedelta(days=1)
LARGE = [bytes([65 + n]) * 900_000 for n in range(24)]  # more than a socket takes at once


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def broker(authority: Authority) -> Iterator[Broker]:
    with serving(authority) as broker:
        yield broker


def connections(broker: Broker) -> list[Connection]:
    return [each for processor in broker.server.processors for each in list(processor.connections)]


def principals(broker: Broker) -> set[str]:
    return {str(connection.principal) for connection in connections(broker)}


# -- clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", EACH_WITH_TLS)
@pytest.mark.parametrize("version", VERSIONS)
def test_clients(authority: Authority, version: str, client: TlsClient) -> None:
    with serving(authority, ssl_enabled_protocols=version) as broker:
        client.produce(broker.bootstrap_servers, Security(authority), "t", LARGE)
        assert client.consume(broker.bootstrap_servers, Security(authority), "t", len(LARGE)) == LARGE


@pytest.mark.parametrize("client", EACH_WITH_TLS)
@pytest.mark.parametrize("version", VERSIONS)
def test_clients_with_certificates(authority: Authority, version: str, client: TlsClient) -> None:
    settings: dict[str, Any] = {
        "ssl_client_auth": "required",
        "ssl_truststore_location": str(authority.file),
        "ssl_enabled_protocols": version,
    }
    security = Security(authority, authority.client("alice"))
    with serving(authority, **settings) as broker:
        client.produce(broker.bootstrap_servers, security, "t", [b"one", b"two"])
        assert client.consume(broker.bootstrap_servers, security, "t", 2) == [b"one", b"two"]


def test_records_go_through_whole(broker: Broker, authority: Authority) -> None:
    """A fetch of many files' regions, and produce requests in pieces of every kind of size."""
    batches = [
        batch_of(*([bytes([n % 251]) * size] * 3)) for n, size in enumerate((1, 16_384, 65_537, 300_000))
    ]
    with TlsWire(broker, authority.context()) as wire:
        broker.log.create_topic("t")
        for batch in batches * 5:
            assert wire.produce("t", batch).error_code == 0
        for step in (53, 1_000, 16_383, 40_000):
            request = b"".join(map(bytes, encode_request(produce("t", batches[1]), 7, 1, "w")))  # type: ignore[arg-type]
            for pos in range(0, len(request), step):
                wire.socket.sendall(request[pos : pos + step])
            wire.receive_frame()
        found: list[bytes] = []
        while len(found) < 72:
            part = records_of(wire.fetch("t", len(found), max_bytes=10 << 20))
            assert part
            found += [record.value or b"" for record in part]
    assert [len(value) for value in found[:12]] == [1] * 3 + [16_384] * 3 + [65_537] * 3 + [300_000] * 3


# -- who is it --------------------------------------------------------------------------------------------


def test_the_principal_is_the_certificates_name(authority: Authority) -> None:
    with (
        serving(authority, ssl_client_auth="required", ssl_truststore_location=str(authority.file)) as broker,
        TlsWire(broker, authority.context(authority.client("alice"))) as wire,
    ):
        wire.ask(ApiVersionsRequest(), 0)
        (name,) = principals(broker)
        assert name.startswith("User:CN=alice,OU=clients,O=Example")


def test_the_principal_by_rules(authority: Authority) -> None:
    with serving(
        authority,
        ssl_client_auth="requested",
        ssl_truststore_location=str(authority.file),
        ssl_principal_mapping_rules="RULE:^CN=([^,]+),OU=clients.*$/$1@example/U",
    ) as broker:
        with TlsWire(broker, authority.context(authority.client("alice"))) as wire:
            wire.ask(ApiVersionsRequest(), 0)
            assert principals(broker) == {"User:ALICE@EXAMPLE"}
        with TlsWire(broker, authority.context(authority.issue("other.pem", "other.example"))) as wire:
            assert wire.is_closed_by_peer()  # no rule matches
        with TlsWire(broker, authority.context()) as wire:
            wire.ask(ApiVersionsRequest(), 0)
            assert "User:ANONYMOUS" in principals(broker)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("auth", ["required", "requested"])
def test_a_strangers_certificate_is_refused(
    authority: Authority, tmp_path: Path, auth: str, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path).client("mallory")
    context = authority.context(stranger)
    context.minimum_version = context.maximum_version = version
    with (
        serving(authority, ssl_client_auth=auth, ssl_truststore_location=str(authority.file)) as broker,
        pytest.raises((ssl.SSLError, ConnectionError)),
        TlsWire(broker, context) as wire,
    ):
        wire.ask(ApiVersionsRequest(), 0)
    assert "the client's certificate is not accepted" in caplog.text


def test_no_certificate_where_one_is_required(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(authority, ssl_client_auth="required", ssl_truststore_location=str(authority.file)) as broker,
        pytest.raises((ssl.SSLError, ConnectionError)),
        TlsWire(broker, authority.context()) as wire,
    ):
        wire.ask(ApiVersionsRequest(), 0)
    assert "the client has no certificate (ssl.client.auth=required)" in caplog.text


def test_a_certificate_itself_may_be_trusted(authority: Authority) -> None:
    """As in Java's truststores: what is in it needs no authority."""
    alice, bob = (authority.client(name) for name in ("alice", "bob"))
    pinned = authority.directory / "pinned.pem"
    text = alice.read_text()
    pinned.write_text(text[text.index("-----BEGIN CERTIFICATE") : text.index("-----END CERTIFICATE") + 26])
    with serving(authority, ssl_client_auth="required", ssl_truststore_location=str(pinned)) as broker:
        with TlsWire(broker, authority.context(alice)) as wire:
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        with pytest.raises((ssl.SSLError, ConnectionError)), TlsWire(broker, authority.context(bob)) as wire:
            wire.ask(ApiVersionsRequest(), 0)


# -- what clients refuse ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["expired", "another authority", "another host"])
def test_clients_refuse(
    tmp_path: Path,
    authority: Authority,
    case: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong certificates are the client's to notice. It does, and we say so."""
    settings: dict[str, str] = {}
    if case == "expired":
        monkeypatch.setattr(tls_context, "check_dates", lambda *_: None)  # it expires while the broker runs
        past = datetime.datetime.now(datetime.UTC) - DAY
        old = authority.issue("old.pem", "127.0.0.1", not_before=past - DAY, not_after=past)
        settings["ssl_keystore_location"] = str(old)
    elif case == "another host":
        settings["ssl_keystore_location"] = str(authority.issue("else.pem", "elsewhere.example"))
    trusted = Authority(tmp_path) if case == "another authority" else authority
    with serving(authority, **settings) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsWire(broker, trusted.context())
        admin = confluent_kafka.admin.AdminClient(librdkafka(broker.bootstrap_servers, Security(trusted)))
        with pytest.raises(confluent_kafka.KafkaException):
            admin.list_topics(timeout=1)
    assert "connection closed: the TLS handshake failed: " in caplog.text


# -- addresses --------------------------------------------------------------------------------------------


def test_clients_are_told_the_listener_that_they_came_through(authority: Authority) -> None:
    with serving(
        authority,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,OUT://127.0.0.1:0",
        listener_security_protocol_map="OUT:SSL",
        advertised_listeners="OUT://broker.example.com:19093",
    ) as broker:
        plain, secure, out = broker.listeners
        assert told(Wire(broker)) == ("127.0.0.1", plain.port)
        assert told(TlsWire(at(secure.port), authority.context())) == ("127.0.0.1", secure.port)
        assert told(TlsWire(at(out.port), authority.context())) == ("broker.example.com", 19093)


def told(wire: Wire) -> tuple[str, int]:
    """The one address in Metadata, DescribeCluster and FindCoordinator."""
    with wire:
        (first,) = wire.ask(MetadataRequest(topics=None), 9).brokers
        (second,) = wire.ask(DescribeClusterRequest(), 0).brokers
        third = wire.ask(FindCoordinatorRequest(key="g"), 2)
    found = {(each.host, each.port) for each in (first, second, third)}
    (address,) = found
    return address


# -- new certificates -------------------------------------------------------------------------------------


def serial(broker: Broker, authority: Authority) -> int:
    """Of the certificate that a new client sees."""
    with TlsWire(broker, authority.context()) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        found = wire.socket.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def test_certificates_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    keystore = authority.server()
    with serving(authority, ssl_keystore_location=str(keystore)) as broker:
        with TlsWire(broker, authority.context()) as before:
            first = serial(broker, authority)
            other = authority.server("other.pem")
            whole = other.read_bytes()
            keystore.write_bytes(whole[: len(whole) // 2])
            broker.reload_certificates()
            broker.reload_certificates()
            assert caplog.text.count("keeps the certificate that it has") == 1
            assert serial(broker, authority) == first
            other.replace(keystore)
            second = first
            while second == first:  # a new connection notices, once the second is over
                second = serial(broker, authority)
            assert before.ask(ApiVersionsRequest(), 0).error_code == 0
        assert "has read its certificates again" in caplog.text


def test_the_server_reads_certificates_again_at_sighup(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    keystore = authority.server()
    command = [*(sys.executable, "-m", "embedlog", "serve", str(tmp_path / "log"), "--json")]
    command += ["--set", "listeners=SSL://127.0.0.1:0", "--set", f"ssl.keystore.location={keystore}"]
    pipe = subprocess.PIPE  # of no terminal
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        began = json.loads(process.stdout.readline())
        assert began["listeners"] == [f"SSL://127.0.0.1:{began['port']}"]
        authority.server("other.pem").replace(keystore)
        process.send_signal(signal.SIGHUP)
        assert "has read its certificates again" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


# -- settings ---------------------------------------------------------------------------------------------


def wrong(authority: Authority, case: str) -> dict[str, Any]:
    path = authority.directory / "wrong.pem"
    good = authority.server().read_text()
    other = authority.server("other.pem").read_text()
    key, other_key = (text[: text.index("-----BEGIN CERTIFICATE")] for text in (good, other))
    chain = good[len(key) :]
    path.write_text(
        {
            "no key": chain,
            "no certificate": key,
            "another key": other_key + chain,
            "damaged": good.replace("\nM", "\n!"),
            "jks": "\x00",
        }.get(case, good)
    )
    if case == "jks":
        path.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    return {"ssl_keystore_location": str(path)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("no key", "has no private key: both belong"),
        ("no certificate", "has no certificate: both belong"),
        ("another key", "the private key does not belong to the first certificate"),
        ("damaged", "it cannot be used"),
        ("jks", "is not PEM: convert it with `keytool -importkeystore"),
        ({"ssl_keystore_location": ""}, "needs ssl_keystore_location"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "/nowhere.pem cannot be read: No such file"),
        ({"ssl_keystore_type": "JKS"}, "keytool -importkeystore"),
        ({"ssl_truststore_type": "PKCS12"}, "openssl pkcs12"),
        ({"ssl_client_auth": "required"}, "ssl_client_auth=required needs ssl_truststore_location"),
        ({"ssl_client_auth": "want"}, "none, requested, required"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "earlier versions of TLS are broken"),
        ({"ssl_enabled_protocols": ""}, "ssl_enabled_protocols is TLSv1.2"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_NOTHING"}, "OpenSSL has none of TLS_RSA_WITH_NOTHING"),
        ({"ssl_principal_mapping_rules": "RULE:("}, "neither DEFAULT nor"),
        (
            {"metrics_port": 0, "metrics_ssl": True, "listeners": "PLAINTEXT://127.0.0.1:0"},
            "metrics_ssl needs",
        ),
    ],
    ids=str,
)
def test_wrong_settings(authority: Authority, given: str | dict[str, Any], says: str) -> None:
    settings = wrong(authority, given) if isinstance(given, str) else given
    with pytest.raises(InvalidSetting, match=says), serving(authority, **settings):
        pass


def test_an_expired_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    past = datetime.datetime.now(datetime.UTC) - DAY
    path = authority.issue("old.pem", "127.0.0.1", not_before=past - DAY, not_after=past)
    with pytest.raises(InvalidSetting, match=r"old\.pem: the certificate expired on "):
        Broker(listeners="SSL://127.0.0.1:0", ssl_keystore_location=str(path))


def test_an_encrypted_key(authority: Authority) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    text = authority.server().read_bytes()
    chain = text[text.index(b"-----BEGIN CERTIFICATE") :]
    key = load_pem_private_key(text[: len(text) - len(chain)], None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"opensesame")
    )
    path = authority.directory / "encrypted.pem"
    path.write_bytes(key + chain)
    options = {"ssl_keystore_location": str(path)}
    with serving(authority, **options, ssl_key_password="opensesame") as broker:
        assert "opensesame" not in repr(broker.settings) + str(broker.settings.ssl_keystore_location)
        assert "ssl_key_password=[hidden]" in repr(broker.settings)
        described = describe(broker, authority)
        assert described["ssl.key.password"].value is None
        assert described["ssl.key.password"].is_sensitive
        assert described["ssl.keystore.location"].value == str(path)
    with (
        pytest.raises(InvalidSetting, match="is encrypted: give ssl_key_password"),
        serving(authority, **options),
    ):
        pass
    with pytest.raises(InvalidSetting, match="ssl_key_password is wrong") as caught:
        Broker(listeners="SSL://127.0.0.1:0", ssl_key_password="opensezame", **options)
    assert "opensezame" not in str(caught.value)


def describe(broker: Broker, authority: Authority) -> Any:
    admin = confluent_kafka.admin.AdminClient(librdkafka(broker.bootstrap_servers, Security(authority)))
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.BROKER, "0")
    return admin.describe_configs([resource])[resource].result(TIMEOUT_S)


def test_each_listener_may_have_its_own(authority: Authority) -> None:
    with serving(
        authority,
        listeners="SSL://127.0.0.1:0,STRICT_ONE://127.0.0.1:0",
        listener_security_protocol_map="STRICT_ONE:SSL",
        ssl_truststore_location=str(authority.file),
        **{"listener.name.strict_one.ssl.client.auth": "required"},
    ) as broker:
        first, strict = broker.listeners
        with TlsWire(at(first.port), authority.context()) as wire:
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        with TlsWire(at(strict.port), authority.context(authority.client("alice"))) as wire:
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            TlsWire(at(strict.port), authority.context()) as wire,
        ):
            wire.ask(ApiVersionsRequest(), 0)
    for name in ("listener.name.other.ssl.client.auth", "listener.name.ssl.broker.id"):
        with (
            pytest.raises(UnknownSetting, match="there is no such listener"),
            serving(authority, **{name: "none"}),
        ):
            pass


@pytest.mark.parametrize(
    "suite", ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"]
)
def test_cipher_suites(authority: Authority, suite: str) -> None:
    with (
        serving(authority, ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites=suite) as broker,
        TlsWire(broker, authority.context()) as wire,
    ):
        assert isinstance(wire.socket, ssl.SSLSocket)
        cipher = wire.socket.cipher()
        assert cipher is not None
        assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


# -- the metrics port -------------------------------------------------------------------------------------


def test_metrics_over_https(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with serving(authority, metrics_port=0, metrics_ssl=True) as broker:
        url = f"127.0.0.1:{broker.metrics_port}/metrics"
        with TlsWire(broker, authority.context()) as wire:
            wire.ask(ApiVersionsRequest(), 0)
        with urllib.request.urlopen(
            f"https://{url}", context=authority.context(), timeout=TIMEOUT_S
        ) as answer:
            text = answer.read().decode()
        assert "embedlog_ssl_handshakes 0.0" in text
        assert 'embedlog_requests_total{api="ApiVersions",error="NONE"} 1.0' in text
        with socket.create_connection(("127.0.0.1", broker.metrics_port or 0), TIMEOUT_S) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert b"embedlog" not in plain.recv(4096)
    assert "the client speaks HTTP without TLS" in caplog.text


# -- the wrong kind of client -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_bytes", "says"),
    [
        (
            b"\x00\x00\x00\x1a\x00\x12\x00\x00\x00\x00\x00\x01",
            "Kafka's protocol without TLS: set security.protocol",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP without TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the client does not speak TLS"),
        (b"\x16\x03\x01\x00\x05hello", "the TLS handshake failed: "),
        (b"\x16" * 5_000, "the TLS handshake failed: "),
    ],
)
def test_what_is_not_tls(
    broker: Broker, first_bytes: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Wire(broker) as wire:
        wire.socket.sendall(first_bytes)
        while wire.socket.recv(4096):  # an alert, perhaps
            pass
    (line,) = [
        each.getMessage() for each in caplog.records if each.name == "embedlog.cluster.network.connection"
    ]
    assert says in line


def test_tls_on_a_plaintext_port(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker, pytest.raises((ssl.SSLError, ConnectionError)):
        TlsWire(broker, authority.context())
    assert caplog.text.count("this is TLS; the listener is plaintext") == 1


def test_fetch_and_produce_on_one_connection_of_each_kind(authority: Authority) -> None:
    """What one listener stores, the other one serves."""
    with (
        serving(authority, listeners="SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0") as broker,
        TlsWire(broker, authority.context()) as wire,
        Wire(at(broker.listeners[1].port)) as plain,
    ):
        broker.log.create_topic("t")
        assert wire.produce("t", batch_of(b"x" * 200_000)).error_code == 0
        assert plain.ask(fetch("t", 0), 11).responses == wire.ask(fetch("t", 0), 11).responses
