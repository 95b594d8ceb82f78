"""The producers of a partition: what its writer knows, its files tell, and its broker."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest

import embedlog
from embedlog import Log
from embedlog.cluster import Broker
from embedlog.errors import CorruptCheckpoint, PartitionNotFound, TopicNotFound, TransactionAborted
from embedlog.model import ProducerDescription, TopicPartition

TP = TopicPartition("t", 0)
Told = dict[int, list[ProducerDescription]]


def told(log: Log) -> Told:
    """Without times: the writer's clock is not in the log."""
    partitions = [TopicPartition("t", number) for number in range(log.describe_topic("t").partitions)]
    return {
        name.partition: sorted(each._replace(last_timestamp_ms=0) for each in found)
        for name, found in log.backend.producers(partitions).items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_the_files_tell_what_the_writer_knows(path: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with embedlog.open(path) as log, embedlog.open(path, mode="r") as reader:
        log.create_topic("t", 2, segment_bytes=2_000, flush_ms=dice.choice((1, 1_000)))
        assert told(log) == told(reader) == {0: [], 1: []}
        for step in range(40):
            what = dice.randrange(5)
            if what < 3:
                with (
                    contextlib.suppress(TransactionAborted),
                    log.transaction(f"tx-{dice.randrange(3)}") as transaction,
                ):
                    for _ in range(dice.randrange(1, 4)):
                        transaction.append("t", b"x" * dice.randrange(300), partition=dice.randrange(2))
                        assert told(reader) == told(log)
                    if what == 2:
                        raise TransactionAborted("as it was to be")
            elif what == 3:
                log.append_many("t", [b"y" * 100] * dice.randrange(9))
            else:
                log.flush()
            assert told(reader) == told(log), step
            with embedlog.open(path, mode="r") as late:
                assert told(late) == told(log), step
        assert sum(len(found) for found in told(log).values()) > 2
        known = told(log)
        log.backup(tmp_path / "copy")
    for place in (path, tmp_path / "copy"):
        with embedlog.open(place, mode="r") as reader:
            assert told(reader) == known
        with embedlog.open(place) as log:
            assert told(log) == known


def test_an_open_transaction(path: Path) -> None:
    with embedlog.open(path) as log, embedlog.open(path, mode="r") as reader:
        log.create_topic("t")
        log.append_many("t", [b"x"] * 3)
        began_ms = time.time_ns() // 1_000_000
        with log.transaction("tx") as transaction:
            transaction.append("t", b"1")
            transaction.append("t", b"2")
            for each in (log, reader):
                (found,) = each.backend.producers([TP])[TP]
                assert (found.last_sequence, found.transaction_start) == (1, 3)
                assert began_ms <= found.last_timestamp_ms <= time.time_ns() // 1_000_000
        for each in (log, reader):
            (found,) = each.backend.producers([TP])[TP]
            assert found.transaction_start == -1
            with pytest.raises(TopicNotFound):
                each.backend.producers([TopicPartition("none", 0)])
            with pytest.raises(PartitionNotFound):
                each.backend.producers([TP, TopicPartition("t", 3)])


def test_producers_of_brokers(path: Path) -> None:
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        embedlog.open(path, mode="r") as reader,
    ):
        log.create_topic("t", 3)
        log.append_many("t", [b"x"] * 5, partition=1)
        with log.transaction("tx") as transaction:
            transaction.append("t", b"1", partition=2)
            assert told(log) == told(reader)
            found = told(log)
            assert [len(found[number]) for number in range(3)] == [0, 1, 1]
            assert found[1][0].last_sequence == 4
            assert found[2][0].transaction_start == 0
            (described,) = log.transactions()
            assert described.producer_id == found[2][0].producer_id
        for each in (log, reader):
            with pytest.raises(TopicNotFound):
                each.backend.producers([TopicPartition("none", 0)])
            with pytest.raises(PartitionNotFound):
                each.backend.producers([TP, TopicPartition("t", 3)])


def test_a_damaged_file(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        with log.transaction("tx") as transaction:
            transaction.append("t", b"1")
    for snapshot in (path / "t_0").glob("*.snapshot"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    with embedlog.open(path, mode="r") as reader, pytest.raises(CorruptCheckpoint):
        reader.backend.producers([TP])
