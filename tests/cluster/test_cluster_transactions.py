"""Transactions over three broker processes: each topic has a partition on each of them.

What is decided is the same everywhere, whichever broker is killed and when: the tests stop one before it can
take its marker, so that an end stays prepared, and kill its coordinator then.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers, cluster
from cli_commands import Run, runner
from confluent_kafka import Consumer, KafkaException, TopicPartition
from programs import crash
from transactional_clients import CLIENTS, Fenced, Transactional
from wire import Wire
from zookeepers import WAIT_S, Znodes, eventually, know_each_other

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.errors import InvalidArgument, ProducerFenced
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.offsets_topic import partition_for

SESSION_MS = 3_000
COORDINATORS = 6
OFFSETS = 3
SETTINGS = (
    "--set",
    f"zookeeper.session.timeout.ms={SESSION_MS}",
    "--set",
    f"transaction.state.log.num.partitions={COORDINATORS}",
    "--set",
    f"offsets.topic.num.partitions={OFFSETS}",
)
STATE = "__transaction_state"

Make = Callable[..., Transactional]

_FIRST, *_OTHERS = CLIENTS
SOME_CLIENTS = pytest.mark.parametrize(
    "client", [_FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in _OTHERS)]
)
"""The first of them in `make test`: each test has a cluster of its own."""


@pytest.fixture(scope="module")
def brokers(zookeeper_server: ZooKeepers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A cluster for the tests that stop none of it."""
    directory = tmp_path_factory.mktemp("cluster")
    connect = f"{zookeeper_server.connect_string}/{directory.name}"
    with cluster(directory, connect, 3, *SETTINGS) as brokers:
        yield brokers


@pytest.fixture
def own(zookeeper: Znodes, tmp_path: Path) -> Iterator[Brokers]:
    """A cluster for one test, which kills brokers."""
    with cluster(tmp_path, zookeeper.connect, 3, *SETTINGS) as brokers:
        yield brokers


_topics = itertools.count()


def a_topic(brokers: Brokers) -> str:
    """A new topic with a partition on each broker."""
    topic = f"t{next(_topics)}"
    brokers.create(topic, 3)
    return topic


def partitions_by_broker(brokers: Brokers, topic: str) -> dict[int, int]:
    return {leader: number for number, leader in brokers.leaders(topic).items()}


def coordinated_by(brokers: Brokers, broker: int, prefix: str = "tx") -> str:
    """A transactional id that this broker coordinates."""

    def leaders() -> dict[int, int]:
        found = brokers.leaders(STATE, broker)
        return found if len(found) == COORDINATORS and min(found.values()) >= 0 else {}

    with embedlog.open(f"kafka://{brokers[broker].address}") as log, contextlib.suppress(Exception):
        log.transactions()
    first = CLIENTS["confluent-kafka"](brokers.bootstrap, "the topic is created for its first id")
    with closing(first):
        first.init()
    placed = eventually(leaders, f"{STATE} is led")
    for number in itertools.count():
        transactional_id = f"{prefix}-{number}"
        if placed[partition_for(transactional_id, COORDINATORS)] == broker:
            return transactional_id
    raise AssertionError


@pytest.fixture
def make() -> Iterator[Callable[..., Transactional]]:
    """Makes producers, each of which has begun."""
    with ExitStack() as made:

        def make(
            bootstrap: str,
            client: str = "confluent-kafka",
            transactional_id: str = "tx",
            timeout_ms: int = 60_000,
        ) -> Transactional:
            producer = CLIENTS[client](bootstrap, transactional_id, timeout_ms)
            made.enter_context(closing(producer))
            producer.init()
            return producer

        yield make


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command."""
    return runner(capsys, tmp_path, monkeypatch)


def committed(brokers: Brokers, topic: str) -> dict[int, list[bytes]]:
    """What is committed, by partition, up to the log end: nothing may be open."""
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log:

        def is_over() -> bool:
            return all(
                log.backend.fetch(
                    topic, number, edges.log_end_offset, 1, read_committed=True
                ).last_stable_offset
                == edges.log_end_offset
                for number, edges in log.offsets(topic).items()
            )

        eventually(is_over, f"nothing of {topic} is open")
        return {
            number: [
                record.value or b"" for record in log.read(topic, number, isolation_level="read_committed")
            ]
            for number in log.offsets(topic)
        }


def everywhere(values: list[bytes]) -> dict[int, list[bytes]]:
    """The same in each partition."""
    return dict.fromkeys(range(3), values)


def state_of(brokers: Brokers, transactional_id: str) -> str:
    """The state as its coordinator describes it."""
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
        return next(
            (each.state for each in log.transactions() if each.transactional_id == transactional_id), ""
        )


# -- all is well ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinator", range(3))
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.slow
def test_what_is_committed_and_aborted_on_three_brokers(
    brokers: Brokers, make: Make, client: str, coordinator: int
) -> None:
    topic = a_topic(brokers)
    producer = make(brokers.bootstrap, client, coordinated_by(brokers, coordinator, f"{topic}-{client}"))
    for number in range(6):
        producer.begin()
        for partition in range(3):
            producer.send(topic, b"%d" % number, partition)
        producer.flush()
        if number % 3:
            producer.commit()
        else:
            producer.abort()
    expected = [b"%d" % number for number in range(6) if number % 3]
    assert committed(brokers, topic) == everywhere(expected)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.slow
def test_results_and_offsets_are_one_transaction(brokers: Brokers, make: Make, client: str) -> None:
    """With groups that each of the brokers coordinates; each transaction is aborted first."""
    topic, output = a_topic(brokers), a_topic(brokers)
    groups = [f"{topic}-{client}-{number}" for number in range(6)]

    def offset_of(group: str) -> int:
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group})
        with closing(consumer):
            (found,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
            return int(found.offset)

    for group in groups:
        producer = make(brokers.bootstrap, client, group)
        for upto, commits in ((3, False), (3, True), (7, False)):
            producer.begin()
            for partition in range(3):
                producer.send(output, b"%d" % upto, partition)
            producer.send_offsets({(topic, 0): upto}, group)
            if commits:
                producer.commit()
            else:
                producer.abort()
        assert offset_of(group) == 3
    assert committed(brokers, output) == everywhere([b"3"] * len(groups))


def test_transactions_of_the_library_over_the_wire(brokers: Brokers) -> None:
    """With transaction.version 2: the partitions' brokers add them to the transaction."""
    topic, output = a_topic(brokers), a_topic(brokers)
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
        log.append_many(topic, [b"%d" % number for number in range(20)])
        for number in range(9):
            name = f"{topic}-{number}"
            with contextlib.suppress(RuntimeError), log.transaction(name) as tx:
                for partition in range(3):
                    tx.append(output, name.encode(), partition=partition)
                if number % 3 == 0:
                    raise RuntimeError("aborted")
        for _ in range(30):  # the same id again and again: each is over before the next one begins
            with log.transaction(topic) as tx:
                tx.append(output, b"again", partition=2)
        group = f"{topic}-group"
        with log.consumer(topic, group=group, auto_commit=False) as consumer:
            read = 0
            while read < 20:
                with log.transaction(topic) as tx:
                    records = consumer.poll(1_000)
                    tx.append_many(output, [record.value for record in records], partition=1)
                    tx.commit_offsets(consumer)
                    read += len(records)
        assert sum(each.offset for each in log.group(group).offsets().values()) == 20
    found = committed(brokers, output)
    names = [f"{topic}-{number}".encode() for number in range(9) if number % 3]
    assert found[0] == names
    assert found[1][: len(names)] == names
    assert sorted(map(int, found[1][len(names) :])) == list(range(20))
    assert found[2] == names + [b"again"] * 30


@pytest.mark.parametrize("client", CLIENTS)
def test_a_second_producer_fences_the_first(brokers: Brokers, make: Make, client: str) -> None:
    topic = a_topic(brokers)
    name = f"{topic}-{client}"
    first = make(brokers.bootstrap, client, name)
    first.begin()
    for partition in range(3):
        first.send(topic, b"old", partition)
    first.flush()
    second = make(brokers.bootstrap, client, name)
    with pytest.raises(Fenced):
        first.commit()
    second.begin()
    for partition in range(3):
        second.send(topic, b"new", partition)
    second.commit()
    assert committed(brokers, topic) == everywhere([b"new"])


def test_a_zombie_is_fenced_in_each_partition(brokers: Brokers) -> None:
    topic = a_topic(brokers)
    address = f"kafka://{brokers.bootstrap}"
    with ExitStack() as ends:
        log, later = (ends.enter_context(embedlog.open(address)) for _ in range(2))
        ends.enter_context(pytest.raises(ProducerFenced))
        tx = ends.enter_context(log.transaction(topic))
        tx.append(topic, b"old", partition=0)
        with later.transaction(topic) as other:
            for partition in range(3):
                other.append(topic, b"new", partition=partition)
        for partition in range(3):
            with pytest.raises(ProducerFenced):
                tx.append(topic, b"late", partition=partition)
    assert committed(brokers, topic) == everywhere([b"new"])


@pytest.mark.parametrize("client", CLIENTS)
def test_what_takes_too_long_is_aborted_everywhere(brokers: Brokers, make: Make, client: str) -> None:
    topic = a_topic(brokers)
    name = f"{topic}-{client}"
    slow = make(brokers.bootstrap, client, name, 1_000)
    slow.begin()
    for partition in range(3):
        slow.send(topic, b"late", partition)
    with contextlib.suppress(Exception):  # perhaps it is too late already
        slow.flush()
    eventually(lambda: state_of(brokers, name) == "CompleteAbort", "it is aborted")
    with pytest.raises(Fenced):
        slow.commit()
    assert committed(brokers, topic) == everywhere([])


def test_producer_ids_are_unique(brokers: Brokers) -> None:
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
        for number in range(12):
            with log.transaction(f"unique-{number}") as tx:
                tx.append(a_topic(brokers) if not number else "t0", b"v", partition=number % 3)
        found = [each for each in log.transactions() if each.transactional_id.startswith("unique-")]
    assert len({each.producer_id for each in found}) == 12


def test_the_command_line_asks_all_brokers(brokers: Brokers, run: Run) -> None:
    topic = a_topic(brokers)
    names = [coordinated_by(brokers, number, topic) for number in range(3)]
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log, ExitStack() as transactions:
        for name in names:
            tx = transactions.enter_context(log.transaction(name))
            for partition in range(3):
                tx.append(topic, b"v", partition=partition)
        address = ("--bootstrap-server", brokers[1].address)
        listed = [
            json.loads(line) for line in run("transactions", "list", *address, "--json").out.splitlines()
        ]
        assert {each["transactional_id"] for each in listed if each["state"] == "Ongoing"} >= set(names)
        for name in names:
            told = json.loads(run("transactions", "describe", *address, name, "--json").out)
            assert len(told["partitions"]) == 3
            run("transactions", "abort", *address, name)
            eventually(lambda n=name: state_of(brokers, n) != "Ongoing", "aborted")
        transactions.pop_all()
    assert committed(brokers, topic) == everywhere([])


# -- brokers that are away -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
@SOME_CLIENTS
def test_what_was_prepared_is_finished_when_all_are_back(
    own: Brokers, make: Make, client: str, commits: bool
) -> None:
    """A partition's broker stops before it gets its marker; then the coordinator's broker is killed."""
    topic = a_topic(own)
    name = coordinated_by(own, 0)
    producer = make(own.bootstrap, client, name)
    producer.begin()
    for partition in range(3):
        producer.send(topic, b"v", partition)
    producer.flush()
    own[2].pause()
    if commits:
        producer.commit()
    else:
        producer.abort()
    prepared = "PrepareCommit" if commits else "PrepareAbort"
    eventually(lambda: described(own, 0)[name]["state"] == prepared, "its end is prepared")
    own[0].kill()
    own[2].kill()
    own[2].start()
    own[0].start()
    assert committed(own, topic) == everywhere([b"v"] if commits else [])
    completed = "CompleteCommit" if commits else "CompleteAbort"
    eventually(lambda: state_of(own, name) == completed, "the end is complete")


def described(brokers: Brokers, number: int) -> dict[str, Any]:
    """What one broker's coordinator knows."""
    with embedlog.open(brokers[number].directory, mode="r") as log:
        return {each.transactional_id: each._asdict() for each in log.transactions()}


@SOME_CLIENTS
@pytest.mark.parametrize("killed", range(3))
@pytest.mark.slow
def test_a_transaction_outlives_any_broker(own: Brokers, make: Make, client: str, killed: int) -> None:
    """Killed and started again while the transaction is open: it is committed, also its offsets."""
    topic = a_topic(own)
    group = "g"
    name = coordinated_by(own, 0)
    producer = make(own.bootstrap, client, name)
    producer.begin()
    for partition in range(3):
        producer.send(topic, b"a", partition)
    producer.flush()
    own[killed].kill()
    own[killed].start()
    for partition in range(3):
        producer.send(topic, b"b", partition)
    producer.flush()
    producer.send_offsets({(topic, 0): 1}, group)
    producer.commit()
    assert committed(own, topic) == everywhere([b"a", b"b"])
    with embedlog.open(f"kafka://{own.bootstrap}") as log:
        eventually(lambda: sum(each.offset for each in log.group(group).offsets().values()) == 1)


@pytest.mark.slow
def test_a_deleted_topic_needs_no_marker(own: Brokers, make: Make) -> None:
    topic, other = a_topic(own), a_topic(own)
    name = coordinated_by(own, 0)
    away = partitions_by_broker(own, topic)[2]
    kept = partitions_by_broker(own, other)[1]
    producer = make(own.bootstrap, transactional_id=name)
    producer.begin()
    producer.send(topic, b"v", away)
    producer.send(other, b"v", kept)
    producer.flush()
    own[2].pause()
    producer.commit()
    eventually(lambda: described(own, 0)[name]["state"] == "PrepareCommit", "its end is prepared")
    own[2].kill()

    def is_deleted() -> bool:
        # A client waits for the controller that it knows, which may have been broker 2.
        admin = own.admin(0, 1)
        with contextlib.suppress(KafkaException):
            admin.delete_topics([topic], request_timeout=5)[topic].result(WAIT_S)
        return topic not in admin.list_topics(timeout=WAIT_S).topics

    eventually(is_deleted, "the topic is deleted")
    eventually(lambda: described(own, 0)[name]["state"] == "CompleteCommit", "the end is complete")
    own[2].start()
    assert committed(own, other)[kept] == [b"v"]


@pytest.mark.slow
def test_the_coordinator_of_an_id_is_away_until_it_is_back(own: Brokers, make: Make) -> None:
    topic = a_topic(own)
    name = coordinated_by(own, 0)
    make(own.bootstrap, transactional_id=name)
    own[0].kill()

    def told(number: int) -> int:
        with Wire(own[number], host=own[number].host) as wire:
            request = FindCoordinatorRequest(key=name, key_type=1, coordinator_keys=[name])
            return int(wire.ask(request, 3).error_code)

    for number in (1, 2):
        eventually(lambda n=number: told(n) == ErrorCode.COORDINATOR_NOT_AVAILABLE, "its leader is away")
    own[0].start()
    producer = make(own.bootstrap, transactional_id=name)
    producer.begin()
    producer.send(topic, b"v", 1)
    producer.commit()
    assert committed(own, topic)[1] == [b"v"]


def test_a_directory_brings_its_transactional_ids_along(zookeeper: Znodes, tmp_path: Path) -> None:
    """One that a program has used alone becomes the first broker; another transaction was open in it."""
    with embedlog.open(tmp_path / "broker-0") as log:
        log.create_topic("t", partitions=3)
        with log.transaction("before") as tx:
            tx.append("t", b"a", partition=0)
        producer = log.producer(transactional_id="open")
        producer.begin_transaction()
        producer.send("t", b"open", partition=1).result()
        crashed = crash(tmp_path / "broker-0", tmp_path / "crashed")
        producer.close()
    shutil.rmtree(tmp_path / "broker-0")
    crashed.rename(tmp_path / "broker-0")
    with cluster(tmp_path, zookeeper.connect, 2, *SETTINGS) as brokers:
        with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
            assert {each.transactional_id for each in log.transactions()} == {"before", "open"}
            for name in ("before", "after"):
                with log.transaction(name) as tx:
                    tx.append("t", name.encode(), partition=2)
            log.abort_transaction("open")
            ids = {each.transactional_id: each.producer_id for each in log.transactions()}
        assert len(set(ids.values())) == 3
        assert committed(brokers, "t") == {0: [b"a"], 1: [], 2: [b"before", b"after"]}
        assert set(brokers.leaders(STATE).values()) == {0}


def test_the_program_of_a_broker_has_no_transactions_of_another_one(
    zookeeper: Znodes, tmp_path: Path
) -> None:
    """It would be stored where no other broker looks for it."""
    with ExitStack() as ends:
        first, second = (
            ends.enter_context(Broker(tmp_path / f"{number}", broker_id=number, zookeeper=zookeeper.connect))
            for number in range(2)
        )
        with pytest.raises(InvalidArgument), first.log.transaction("too early"):
            pass
        assert first.log.topics() == []
        coordination = first.context.coordination
        know_each_other(coordination, second.context.coordination)

        def coordinated(number: int) -> str:
            names = (f"tx-{each}" for each in range(200))
            found = {}
            for name in names:
                at = coordination.coordinator_of(name, STATE)
                if at is not None:
                    found[at.node_id] = name
            return found.get(number, "")

        own, other = (eventually(lambda n=number: coordinated(n)) for number in range(2))
        with pytest.raises(InvalidArgument, match="another broker"), first.log.transaction(other):
            pass
        coordination.create_topic("t", 1, {}, {0: [0]})
        with first.log.transaction(own) as tx:
            tx.append("t", b"v")
        assert [each.transactional_id for each in first.log.transactions()] == [own]
        assert second.log.transactions() == []
        partition = coordination.partition_of(other, STATE)
        assert partition is not None
        assert first.context.store.partition(*partition).log.next_offset == 0
