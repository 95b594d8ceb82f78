"""Sessions with a real ZooKeeper that wants TLS, certificates or passwords."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from wire import Wire
from zookeepers import eventually, started

from embedlog.cluster import Broker
from embedlog.cluster.classic import ConsumerConnector, Producer, ProducerData
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import Extras, ZooKeepers
from embedlog.cluster.zookeeper.security import Security
from embedlog.errors import EmbedlogError, InvalidArgument, ZooKeeperError, ZooKeeperUnavailable
from embedlog.wire.apis.metadata import MetadataRequest

_SECRET = "kept-secret-7"


class Secured:
    """A server, its address with TLS, and files of certificates."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.other = trustme.CA(), trustme.CA()
        self.directory = directory
        self.truststore = self._write("authority.pem", self.authority.cert_pem)
        self.strange_truststore = self._write("strange.pem", self.other.cert_pem)
        self.keystore = self._identity("client.pem", self.authority, "broker.example.com")
        self.strange_keystore = self._identity("stranger.pem", self.other, "broker.example.com")
        self.server_keystore = self._identity("server.pem", self.authority, "127.0.0.1")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

        self.server: ZooKeepers

    @property
    def plain(self) -> str:
        """The address without TLS."""
        return self.server.connect_string

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def security(self) -> Security:
        return Security(True, self.keystore, self.truststore)

    def _identity(self, name: str, authority: trustme.CA, host: str) -> str:
        issued = authority.issue_cert(host, common_name=host)
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)  # Java wants PKCS 8
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._write(name, chain + pem)

    def _write(self, name: str, pem: trustme.Blob | bytes) -> str:
        path = self.directory / name
        path.write_bytes(pem if isinstance(pem, bytes) else pem.bytes())
        path.chmod(0o600)
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server that has TLS and wants clients' certificates, and knows a password."""
    found = Secured(tmp_path_factory.mktemp("certificates"))
    jaas = found.directory / "jaas.conf"
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
        f'user_broker="{_SECRET}" user_other="{_SECRET}"; }};'
    )
    config = {
        "secureClientPort": found.port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": found.server_keystore,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": found.truststore,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.clientHostnameVerification": "false",
        "ssl.hostnameVerification": "false",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    extras = Extras(config, [f"-Djava.security.auth.login.config={jaas}"], netty=True)
    with started(extras=extras) as server:
        found.server = server
        yield found


def test_a_session_over_tls_is_who_its_certificate_says(secured: Secured) -> None:
    with ZooKeeper(secured.address, security=secured.security, set_acl=True) as session:
        session.create("/over-tls", b"1")
        acls, _ = session.kazoo.get_acls("/over-tls")
        assert {each.id.scheme for each in acls} == {"x509", "world"}
        assert any("CN=broker.example.com" in each.id.id for each in acls)
        with ZooKeeper(secured.plain) as nobody:
            assert nobody.get("/over-tls") is not None
            with pytest.raises(ZooKeeperError, match="credentials"):
                nobody.write("/over-tls", b"2")
        session.write("/over-tls", b"3")


@pytest.mark.slow
def test_who_is_not_trusted_and_trusts_not(secured: Secured) -> None:
    for wrong in (
        secured.security._replace(truststore=secured.strange_truststore),
        secured.security._replace(truststore=""),  # the system's authorities have not issued it
    ):
        with pytest.raises(ZooKeeperUnavailable, match="certificate verify failed"):
            # The server's first handshakes may take longer than a second.
            ZooKeeper(secured.address, security=wrong, connect_timeout_s=4.0)
    for wrong in (
        secured.security._replace(keystore=secured.strange_keystore),
        secured.security._replace(keystore=""),
        Security(),
    ):
        with pytest.raises(ZooKeeperUnavailable):
            ZooKeeper(secured.address, security=wrong, connect_timeout_s=1.0)


@pytest.mark.slow
def test_a_certificate_of_another_host(secured: Secured) -> None:
    address = f"localhost:{secured.port}"
    with pytest.raises(ZooKeeperUnavailable, match="Hostname mismatch"):
        ZooKeeper(address, security=secured.security, connect_timeout_s=1.0)
    with ZooKeeper(address, security=secured.security._replace(check_hostname=False)) as session:
        assert session.is_connected


def test_sasl_says_who_may_change_what_was_made(secured: Secured) -> None:
    sasl = Security(sasl_mechanism="DIGEST-MD5")
    with ZooKeeper(secured.plain, auth=f"broker:{_SECRET}", security=sasl, set_acl=True) as session:
        session.create("/by-sasl", b"1")
        acls, _ = session.kazoo.get_acls("/by-sasl")
        assert {(each.id.scheme, each.id.id) for each in acls} == {("sasl", "broker"), ("world", "anyone")}
    with (
        ZooKeeper(secured.plain, auth=f"other:{_SECRET}", security=sasl) as other,
        pytest.raises(ZooKeeperError, match="credentials"),
    ):
        other.write("/by-sasl", b"2")
    with ZooKeeper(secured.plain, auth=f"broker:{_SECRET}", security=sasl) as again:
        again.write("/by-sasl", b"3")


def test_a_wrong_password_is_an_error_that_does_not_tell_it(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(EmbedlogError) as caught:
        ZooKeeper(
            secured.plain,
            auth="broker:wrong-but-private",
            security=Security(sasl_mechanism="DIGEST-MD5"),
            connect_timeout_s=2.0,
        )
    assert "wrong-but-private" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"zookeeper_ssl_keystore_location": "/x.pem"}, "zookeeper_ssl_client_enable"),
        ({"zookeeper_ssl_client_enable": True, "zookeeper_ssl_keystore_location": "/no.pem"}, "/no.pem"),
        ({"zookeeper_ssl_client_enable": True, "zookeeper_ssl_truststore_location": "/no.pem"}, "/no.pem"),
        ({"zookeeper_sasl_mechanism": "DIGEST-MD5"}, "zookeeper_auth"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Broker(tmp_path, zookeeper="127.0.0.1:1", **settings)


def test_a_broker_and_classic_clients_over_tls_and_sasl(secured: Secured, tmp_path: Path) -> None:
    tls = {
        "zookeeper_ssl_client_enable": True,
        "zookeeper_ssl_keystore_location": secured.keystore,
        "zookeeper_ssl_truststore_location": secured.truststore,
        "zookeeper_sasl_mechanism": "DIGEST-MD5",
    }
    connect, auth = f"{secured.address}/secured", f"broker:{_SECRET}"
    with Broker(tmp_path, zookeeper=connect, zookeeper_auth=auth, zookeeper_set_acl=True, **tls) as broker:
        broker.context.coordination.create_topic("t", 1, {})
        with Wire(broker) as wire:
            assert wire.ask(MetadataRequest(topics=None), 9).topics[0].name == "t"
        with Producer(connect, zookeeper_auth=auth, **tls) as writes:
            writes.send(ProducerData("t", b"x"))
        with ConsumerConnector(
            connect, "g", zookeeper_auth=auth, auto_offset_reset="smallest", **tls
        ) as reads:
            (stream,) = reads.create_message_streams({"t": 1})["t"]
            assert next(iter(stream)).value == b"x"
        with ZooKeeper(f"{secured.plain}/secured") as nobody:
            eventually(lambda: nobody.get("/brokers/topics/t"))
            with pytest.raises(ZooKeeperError, match="credentials"):
                nobody.write("/brokers/topics/t", b"")
    assert _SECRET not in repr(broker) + repr(broker.settings)


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.slow
def test_a_session_outlives_a_restart_of_the_server(secured: Secured, over_tls: bool) -> None:
    security = (secured.security if over_tls else Security())._replace(sasl_mechanism="DIGEST-MD5")
    address = secured.address if over_tls else secured.plain
    with ZooKeeper(address, session_timeout_s=30, auth=f"broker:{_SECRET}", security=security) as session:
        before = session.session_id
        (server,) = secured.server.servers
        server.kill()
        server.start()
        server.wait_until_ready()
        assert eventually(lambda: session.is_connected and session.session_id) == before
        session.write("/after-a-restart", b"1")
