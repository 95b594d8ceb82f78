"""Listeners by name: what the settings say, and a broker with several of them."""

from __future__ import annotations

import socket
from pathlib import Path

import confluent_kafka.admin
import pytest

import embedlog
from embedlog.cluster import AddressInUse, Broker
from embedlog.cluster.network.listeners import inter_broker_listener, parse_listeners
from embedlog.cluster.settings.broker_settings import BrokerSettings
from embedlog.errors import DirectoryLocked, InvalidArgument, InvalidSetting
from embedlog.security.protocol import SecurityProtocol


def settings(**given: str) -> BrokerSettings:
    return BrokerSettings().with_changes(given)


def test_names_protocols_and_advertised_addresses() -> None:
    found = parse_listeners(
        settings(
            listeners="PLAINTEXT://127.0.0.1:9092, CLIENTS://0.0.0.0:9093,SSL://[::1]:0",
            listener_security_protocol_map="CLIENTS:SASL_SSL",
            advertised_listeners="CLIENTS://broker1.example.com:19093",
        )
    )
    assert [(each.name, each.protocol, each.host, each.port) for each in found] == [
        ("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092),
        ("CLIENTS", SecurityProtocol.SASL_SSL, "0.0.0.0", 9093),
        ("SSL", SecurityProtocol.SSL, "::1", 0),
    ]
    assert [(each.advertised_host, each.advertised_port) for each in found] == [
        ("127.0.0.1", 0),
        ("broker1.example.com", 19093),
        ("::1", 0),
    ]
    assert found[2].at_port(4711).advertised_port == found[2].at_port(4711).port == 4711
    assert found[1].at_port(9093).advertised_port == 19093


def test_a_wildcard_is_advertised_by_the_machines_name() -> None:
    (found,) = parse_listeners(settings(listeners="PLAINTEXT://:9092"))
    assert found.advertised_host == socket.gethostname()


def test_other_brokers_use_the_first_or_the_named_one() -> None:
    listeners = parse_listeners(settings(listeners="PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"))
    assert inter_broker_listener(settings(), listeners).name == "PLAINTEXT"
    assert inter_broker_listener(settings(inter_broker_listener_name="SSL"), listeners).name == "SSL"
    with pytest.raises(InvalidSetting, match="'SASL_SSL' is not one of the listeners"):
        inter_broker_listener(settings(inter_broker_listener_name="SASL_SSL"), listeners)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": ","}, "has no listener"),
        ({"listeners": "127.0.0.1:9092"}, "not NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:65536"}, "not NAME://host:port"),
        ({"listeners": "PLAINTEXT://a b:1"}, "not NAME://host:port"),
        ({"listeners": "CLIENTS://127.0.0.1:1"}, "listener_security_protocol_map=CLIENTS:"),
        ({"listeners": "SSL://a:1,SSL://a:2"}, "has SSL twice"),
        ({"listeners": "SSL://a:1,PLAINTEXT://a:1"}, "have one address"),
        ({"listeners": "SSL://a:1", "advertised_listeners": "A://b:1"}, "'A', which is not one of"),
        ({"listeners": "A://a:1", "listener_security_protocol_map": "A:TLS"}, "not NAME:PROTOCOL"),
    ],
)
def test_wrong_listeners(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        parse_listeners(settings(**given))


def test_a_broker_answers_at_each_listener() -> None:
    with Broker(
        listeners="INSIDE://127.0.0.1:0,OUTSIDE://[::1]:0",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    ) as broker:
        inside, outside = broker.listeners
        assert broker.port == inside.port
        for address in (f"127.0.0.1:{inside.port}", f"[::1]:{outside.port}"):
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
            assert admin.list_topics(timeout=30).brokers


@pytest.mark.parametrize("given", [{"host": "127.0.0.1"}, {"port": 0}, {"advertised_port": 1}])
def test_one_way_to_give_the_address(given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="leave out host, port"):
        Broker(listeners="PLAINTEXT://127.0.0.1:0", **given)


def test_every_listener_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="allow_remote=True"):
        Broker(
            listeners="PLAINTEXT://127.0.0.1:0,A://0.0.0.0:0", listener_security_protocol_map="A:PLAINTEXT"
        )


def test_no_port_stays_bound_if_another_one_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as other:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            free = sock.getsockname()[1]
        with pytest.raises(AddressInUse) as refused:
            Broker(
                listeners=f"A://127.0.0.1:{free},B://127.0.0.1:{taken.getsockname()[1]}",
                listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
            )
        other.bind(("127.0.0.1", free))  # the error is still known, and with it what it has seen
        assert str(taken.getsockname()[1]) in str(refused.value)


def test_no_port_stays_bound_if_the_directory_is_locked(tmp_path: Path) -> None:
    with embedlog.open(tmp_path), socket.socket() as listener, socket.socket() as metrics:
        ports = []
        with socket.socket() as one, socket.socket() as other:
            for sock in (one, other):
                sock.bind(("127.0.0.1", 0))
                ports.append(sock.getsockname()[1])
        with pytest.raises(DirectoryLocked) as refused:
            Broker(tmp_path, port=ports[0], metrics_port=ports[1])
        for sock, port in zip((listener, metrics), ports, strict=True):
            sock.bind(("127.0.0.1", port))
        assert "is open for writing" in str(refused.value)  # known still, as above
