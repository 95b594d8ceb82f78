"""Two brokers with mutual TLS alone: their clients of every kind, and what they ask each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from certificates import Authority
from zookeepers import Znodes, eventually, know_each_other

import embedlog
from embedlog import Log, TlsFailed
from embedlog.cluster import Broker
from embedlog.cluster.classic import ConsumerConnector, Producer, ProducerData
from embedlog.mirroring import Mirror

PARTITIONS = 4


class Secured(NamedTuple):
    """Brokers whose only listener wants a client's certificate."""

    bootstrap: str
    config: str  # of a client
    authority: Authority
    connect: str

    def open(self, **settings: Any) -> Log:
        return embedlog.open(f"kafka://{self.bootstrap}", **{"client_config": self.config, **settings})


def config_of(authority: Authority, path: Path, name: str) -> str:
    path.write_text(
        f"security.protocol=SSL\nssl.truststore.location={authority.file}\nssl.truststore.type=PEM\n"
        f"ssl.keystore.location={authority.issue(name=name)}\nssl.keystore.type=PEM\n"
    )
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def serving(tmp_path: Path, zookeeper: Znodes) -> Iterator[Callable[..., Secured]]:
    """Starts brokers; `config` is theirs as clients of each other."""
    authority = Authority(tmp_path)
    with ExitStack() as closing:

        def serve(**settings: Any) -> Secured:
            given = {
                "listeners": "SSL://127.0.0.1:0",
                "ssl_keystore_location": authority.issue(),
                "ssl_truststore_location": authority.file,
                "ssl_client_auth": "required",
                "offsets_topic_num_partitions": 2,
                "transaction_state_log_num_partitions": 2,
                "inter_broker_client_config": config_of(authority, tmp_path / "broker.properties", "broker"),
                **settings,
            }
            brokers = [
                closing.enter_context(
                    Broker(
                        tmp_path / f"broker-{number}", broker_id=number, zookeeper=zookeeper.connect, **given
                    )
                )
                for number in range(2)
            ]
            know_each_other(*(broker.context.coordination for broker in brokers))
            config = config_of(authority, tmp_path / "client.properties", "alice")
            found = Secured(
                ",".join(f"127.0.0.1:{broker.listeners[0].port}" for broker in brokers),
                config,
                authority,
                zookeeper.connect,
            )
            with found.open() as log:
                eventually(lambda: len(log.backend.describe_cluster().brokers) == 2)  # type: ignore[attr-defined]
            return found

        yield serve


def test_transactions_over_both_brokers(serving: Callable[..., Secured]) -> None:
    """Permissions and markers go from one broker to the other, for each coordinator."""
    secured = serving()
    with secured.open() as log:
        log.create_topic("t", partitions=PARTITIONS)
        for number in range(6):
            with suppress(ZeroDivisionError), log.transaction(f"id-{number}") as tx:
                for partition in range(PARTITIONS):
                    tx.append("t", b"%d" % number, partition=partition)
                if number % 2:
                    raise ZeroDivisionError

        def committed(partition: int) -> list[bytes | None]:
            found = log.read("t", partition, isolation_level="read_committed")
            return [record.value for record in found]

        for partition in range(PARTITIONS):
            eventually(lambda partition=partition: committed(partition) == [b"0", b"2", b"4"])
        with log.consumer("t", group="g", stop_at_end=True, isolation_level="read_committed") as consumer:
            assert len(list(consumer)) == 3 * PARTITIONS
        assert log.group("g").describe().lag == 0


def test_a_broker_without_a_certificate_asks_in_vain(serving: Callable[..., Secured], tmp_path: Path) -> None:
    """So the test above shows that the settings are used."""
    plain = tmp_path / "plain.properties"
    plain.write_text("security.protocol=PLAINTEXT\n")
    secured = serving(inter_broker_client_config=str(plain))
    with secured.open() as log:
        log.create_topic("t", partitions=PARTITIONS)
    with (
        secured.open(default_api_timeout_ms=2_000, delivery_timeout_ms=2_000) as log,
        pytest.raises(embedlog.EmbedlogError),
        log.transaction("id") as tx,
    ):
        for partition in range(PARTITIONS):
            tx.append("t", b"x", partition=partition)


def test_the_clients_of_the_design_documents(serving: Callable[..., Secured]) -> None:
    """They find the endpoints of their protocol in ZooKeeper."""
    secured = serving(
        listeners="OUT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        listener_security_protocol_map="OUT:SSL",
        inter_broker_listener_name="PLAINTEXT",
        inter_broker_client_config="",
    )
    with secured.open() as log:
        log.create_topic("t", partitions=PARTITIONS)
    with Producer(zk_connect=secured.connect, client_config=secured.config) as producer:
        producer.send([ProducerData("t", b"%d" % number) for number in range(20)])
    with ConsumerConnector(
        secured.connect,
        "g",
        client_config=secured.config,
        auto_offset_reset="smallest",
        offsets_storage="kafka",
    ) as connector:
        [stream] = connector.create_message_streams({"t": 1})["t"]
        assert sorted(int(next(stream).value or b"") for _ in range(20)) == list(range(20))
        connector.commit_offsets()
    with secured.open() as log:
        assert sum(each.offset for each in log.group("g").offsets().values()) == 20


def test_a_stream_says_that_its_broker_does_not_want_it(
    serving: Callable[..., Secured], tmp_path: Path
) -> None:
    secured = serving()
    with secured.open() as log:
        log.create_topic("t")
    bare = tmp_path / "bare.properties"
    bare.write_text(f"security.protocol=SSL\nssl.ca.location={secured.authority.file}\n")
    with ConsumerConnector(
        secured.connect, "g", client_config=str(bare), auto_offset_reset="smallest"
    ) as connector:
        [stream] = connector.create_message_streams({"t": 1})["t"]
        with pytest.raises(TlsFailed, match="certificate"):
            next(stream)


def test_a_mirror_to_and_from(serving: Callable[..., Secured], tmp_path: Path) -> None:
    secured = serving()
    given = {"client_config": secured.config}
    with embedlog.open(tmp_path / "here") as here:
        here.create_topic("up", partitions=2)
        here.append_many("up", [b"1", b"2", b"3"])
        with Mirror(here, f"kafka://{secured.bootstrap}", target_settings=given) as mirror:
            assert mirror.run(until_caught_up=True).records == 3
    with Mirror(f"kafka://{secured.bootstrap}", tmp_path / "back", source_settings=given) as mirror:
        assert mirror.run(until_caught_up=True).records == 3
    with embedlog.open(tmp_path / "back", mode="r") as back:
        assert sum(edge.log_end_offset for edge in back.offsets("up").values()) == 3
