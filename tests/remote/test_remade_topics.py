"""What a client that looked at a topic before finds once another client has made it again, or let it grow.

The clients keep their metadata for ten minutes here, so that nothing but a second look can tell them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import Log, OutOfOrderSequence, PartitionNotFound, TopicPartition
from embedlog.backends.shared import _CLIENT
from embedlog.cluster import Broker

LONG_MS = 600_000
Pair = tuple[Log, Log]
T0 = TopicPartition("t", 0)


@pytest.fixture(params=["wire", "shared"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A client, and another one that changes topics."""
    if request.param == "shared":
        monkeypatch.setitem(_CLIENT, "metadata_max_age_ms", LONG_MS)
        with (
            embedlog.open(tmp_path / "log", shared=True) as owner,
            embedlog.open(tmp_path / "log", shared=True) as client,
        ):
            yield client, owner
        return
    with Broker(offsets_topic_num_partitions=2) as broker:
        path = f"kafka://{broker.bootstrap_servers}"
        with (
            embedlog.open(path, metadata_max_age_ms=LONG_MS, retry_backoff_ms=5) as client,
            embedlog.open(path, retry_backoff_ms=5) as other,
        ):
            yield client, other


def remake(log: Log, partitions: int, records: int = 0, **settings: int) -> None:
    log.delete_topic("t")
    log.create_topic("t", partitions, **settings)
    if records:
        log.append_many("t", [b"new %d" % i for i in range(records)], partition=0)


@pytest.fixture
def known(pair: Pair) -> Pair:
    """The client knows a topic of one partition by heart: it has written to it and read it."""
    client, other = pair
    other.create_topic("t")
    client.append("t", b"old")
    client.append_many("t", [b"old"] * 9)
    assert len(list(client.read("t"))) == 10
    return pair


@pytest.mark.parametrize("change", ["remade", "grown"])
def test_a_partition_that_came_since_is_written_and_read(known: Pair, change: str) -> None:
    client, other = known
    if change == "remade":
        remake(other, 3)
    else:
        other.create_partitions("t", 3)
    assert client.append("t", b"0", partition=2)[:3] == ("t", 2, 0)
    assert [record.value for record in client.read("t", 2)] == [b"0"]


@pytest.mark.parametrize(
    "act", ["append_many", "read", "read_at", "assign", "producer", "transaction", "reset"]
)
def test_the_first_to_use_a_new_partition(known: Pair, act: str) -> None:
    client, other = known
    other.create_partitions("t", 3)
    other.append("t", b"0", partition=2)
    if act == "append_many":
        assert client.append_many("t", [b"1", b"2"], partition=2)[1].offset == 2
    elif act == "read":
        assert [record.value for record in client.read("t", 2)] == [b"0"]
    elif act == "read_at":
        record = client.read_at("t", 2, 0)
        assert record is not None and record.value == b"0"
    elif act == "assign":
        with client.consumer(group="g", stop_at_end=True) as consumer:
            consumer.assign([TopicPartition("t", 2)])
            consumer.seek_to_beginning()
            assert [record.value for record in consumer] == [b"0"]
    elif act == "producer":
        with client.producer() as producer:
            assert producer.send("t", b"1", partition=2).result().offset == 1
    elif act == "transaction":
        with client.transaction("tx") as transaction:
            transaction.append("t", b"1", partition=2)
        assert [record.value for record in client.read("t", 2)] == [b"0", b"1"]
    else:
        assert client.group("g").reset("t", to="earliest", partitions=2)


def test_a_partition_that_there_is_not_is_refused_as_before(known: Pair) -> None:
    client, other = known
    remake(other, 2)
    for act in (
        lambda: client.append("t", b"", partition=2),
        lambda: client.append_many("t", [b""], partition=2),
        lambda: client.read("t", 2),
    ):
        with pytest.raises(PartitionNotFound, match=r"'t' has partitions 0 to 1; there is no 2"):
            act()


def test_a_read_finds_all_partitions_of_a_topic_made_again(known: Pair) -> None:
    client, other = known
    remake(other, 3)
    for partition in range(3):
        other.append("t", b"new", partition=partition)
    assert sorted(record[:3] for record in client.read("t")) == [("t", n, 0) for n in range(3)]
    remake(other, 2, 4)
    assert len(list(client.read("t"))) == 4


def test_a_record_goes_to_a_partition_that_is_left(pair: Pair) -> None:
    """A key's partition is chosen among those of the old topic first."""
    client, other = pair
    other.create_topic("t", 4)
    keys = [b"%d" % i for i in range(8)]
    old = {client.append("t", b"old", key=key).partition for key in keys}
    assert max(old) > 1
    remake(other, 2)
    new = [client.append("t", b"new", key=key).partition for key in keys]
    assert new == [other.append("t", b"new", key=key).partition for key in keys]


def test_the_settings_are_those_of_the_new_topic(known: Pair) -> None:
    client, other = known
    assert client.describe_topic("t").settings == {}
    remake(other, 2, max_message_bytes=2_000)
    client.append("t", b"small", partition=1)
    with pytest.raises(embedlog.RecordTooLarge):
        client.append("t", bytes(3_000), partition=1)


@pytest.mark.parametrize("group", ["g", None])
def test_the_lag_is_that_of_the_new_topic(known: Pair, group: str | None) -> None:
    client, other = known
    with client.consumer("t", group) as consumer:
        read = 0
        while read < 10:
            read += len(consumer.poll(10))
        assert consumer.lag() == consumer.estimated_lag() == {T0: 0}
        remake(other, 1, 7)
        assert consumer.lag() == consumer.estimated_lag() == {T0: 7}
        remake(other, 1, 15)
        assert consumer.lag() == consumer.estimated_lag() == {T0: 15}
        new = 0
        while new < 15:
            new += len(consumer.poll(10))
        assert consumer.lag() == consumer.estimated_lag() == {T0: 0}


def test_the_lag_in_a_directory_is_that_of_the_new_topic(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        log.append_many("t", [b"old"] * 10, partition=0)
        with log.consumer("t", "g") as consumer:
            read = 0
            while read < 10:
                read += len(consumer.poll(10))
            remake(log, 1, 7)  # the other partition is gone
            assert consumer.lag() == consumer.estimated_lag() == {T0: 7}


def test_producers_go_on_in_a_topic_made_again(known: Pair) -> None:
    """Their sequence numbers are of partitions that are gone."""
    client, other = known
    with client.producer() as producer:
        for made in range(3):
            assert producer.send("t", b"%d" % made).result().offset == (0 if made else 10)
            assert producer.send("t", b"%d" % made).result().offset == (1 if made else 11)
            remake(other, 1)
    with client.producer(transactional_id="tx") as transactional:
        for _ in range(2):
            transactional.begin_transaction()
            transactional.send("t", b"in it")
            transactional.commit_transaction()
            assert [record.value for record in other.read("t")] == [b"in it"]
            remake(other, 1)


def test_a_transaction_over_a_topic_that_is_made_again_meanwhile(known: Pair) -> None:
    """It cannot be whole any more, so it fails; the next one of its id is of the new topic alone."""
    client, other = known
    with pytest.raises(OutOfOrderSequence), client.transaction("tx") as transaction:
        transaction.append("t", b"gone")
        remake(other, 1)
        transaction.append("t", b"not alone")
    with client.transaction("tx") as transaction:
        transaction.append("t", b"stays")
    assert [record.value for record in other.read("t")] == [b"stays"]
