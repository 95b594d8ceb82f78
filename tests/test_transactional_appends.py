"""Transactional batches and markers in a partition: who may append them, and what they change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Clock, FaultyFileSystem, crash, open_log, partition_of, store_of, values
from housekeeping import housekeep

from embedlog import Log
from embedlog.codec import encode_batch, encode_control_batch
from embedlog.config import DAY_MS
from embedlog.errors import (
    ConcurrentTransactions,
    FlushFailed,
    InvalidProducerEpoch,
    InvalidTxnState,
    LogFull,
    OutOfOrderSequence,
    PartitionFailed,
    TransactionCoordinatorFenced,
)
from embedlog.model import OpenTransaction
from embedlog.partition import Partition
from embedlog.storage.producer_state import FIRST_MIRROR_ID

T = 1_700_000_000_000


def batch_of(
    producer: int, epoch: int = 0, sequence: int = 0, *values: bytes, transactional: bool = True
) -> bytearray:
    return encode_batch(
        [(None, value, (), T) for value in values or (b"v",)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def end(partition: Partition, producer: int, epoch: int, *, commit: bool = True, **options: int) -> int:
    return partition.end_transaction(producer, epoch, commit=commit, timestamp_ms=T, **options).base_offset


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path) as log:
        log.create_topic("t")
        yield log


@pytest.fixture
def partition(log: Log) -> Partition:
    return partition_of(log)


def committed(log: Log) -> list[bytes | None]:
    return [value for _, value in values(log, isolation_level="read_committed")]


# -- permission --------------------------------------------------------------------------------------------


def test_a_batch_outside_a_known_transaction_is_refused(log: Log, partition: Partition) -> None:
    with pytest.raises(InvalidTxnState, match="no transaction of epoch 0"):
        partition.append(batch_of(1))
    partition.allow_transaction(1, 0)
    with pytest.raises(InvalidTxnState, match="no transaction of epoch 1"):
        partition.append(batch_of(1, epoch=1))
    assert partition.append(batch_of(1)).base_offset == 0
    assert partition.append(batch_of(1, 0, 1)).base_offset == 1
    assert end(partition, 1, 1) == 2
    assert partition.append(batch_of(2, transactional=False)).base_offset == 3
    assert committed(log) == [b"v"] * 3


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_after_its_marker_opens_no_transaction(partition: Partition, version: int) -> None:
    """What hung a transaction before KIP-890: the marker overtakes a batch."""
    partition.allow_transaction(1, 0, transaction_version=version)
    end(partition, 1, version - 1, commit=False, transaction_version=version)
    with pytest.raises(InvalidTxnState if version == 1 else InvalidProducerEpoch):
        partition.append(batch_of(1))
    assert partition.open_transactions() == []
    assert partition.log.last_stable_offset == 1


def test_a_permission_survives_a_reopening_but_no_restart(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    partition = partition_of(log)
    log.append("t", b"0", flush=True)
    partition.allow_transaction(1, 0)
    fs.fail("sync", path=".kafka")
    with pytest.raises(FlushFailed):
        log.append("t", b"lost", flush=True)
    with pytest.raises(PartitionFailed):
        partition.allow_transaction(1, 0)
    with pytest.raises(PartitionFailed):
        end(partition, 1, 1)
    log.reopen("t", 0)
    offset = partition_of(log).append(batch_of(1)).base_offset
    crash(log)
    with open_log(tmp_path) as log:
        partition = partition_of(log)
        (found,) = partition.open_transactions()
        assert found[:3] == (1, 0, offset)
        with pytest.raises(InvalidTxnState):
            partition.append(batch_of(2))
        assert partition.append(batch_of(1, 0, 1)).base_offset == offset + 1, "an open one needs none"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_permission_asked_for_before_a_marker_is_worth_nothing(
    log: Log, partition: Partition, version: int, is_open: bool
) -> None:
    """With earlier versions the epoch is the same afterwards, so it cannot tell."""
    epoch_after = version - 1
    if is_open:
        partition.allow_transaction(1, 0, transaction_version=version)
        partition.append(batch_of(1))
    asked_at = partition.log.next_offset
    end(partition, 1, epoch_after, transaction_version=version)
    with pytest.raises((ConcurrentTransactions, InvalidProducerEpoch)):
        partition.allow_transaction(1, 0, transaction_version=version, asked_at=asked_at)
    with pytest.raises((InvalidTxnState, InvalidProducerEpoch)):
        partition.append(batch_of(1, 0, is_open))
    asked_at = partition.log.next_offset
    end(partition, 2, 0, commit=False, transaction_version=version)  # another producer's
    partition.allow_transaction(1, epoch_after, transaction_version=version, asked_at=asked_at)
    partition.append(batch_of(1, epoch_after, is_open if version == 1 else 0))
    end(partition, 1, 2 * epoch_after, transaction_version=version)
    assert committed(log) == [b"v"] * (1 + is_open)


def test_a_marker_before_a_crash_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    partition = partition_of(log)
    asked_at = partition.log.next_offset
    end(partition, 1, 0, transaction_version=1)
    crash(log)
    with open_log(tmp_path) as log, pytest.raises(ConcurrentTransactions):
        partition_of(log).allow_transaction(1, 0, transaction_version=1, asked_at=asked_at)


def test_a_repeated_batch_is_answered_also_after_its_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    partition = partition_of(log)
    partition.allow_transaction(1, 0, transaction_version=1)
    for sequence in range(3):
        partition.append(batch_of(1, 0, sequence))
    end(partition, 1, 0, transaction_version=1)
    assert partition.append(batch_of(1, 0, 1)).base_offset == 1
    log.close()
    with open_log(tmp_path) as log:  # the snapshot has the last batch only
        assert partition_of(log).append(batch_of(1, 0, 1)).base_offset == 1
        with pytest.raises(InvalidTxnState):
            partition_of(log).append(batch_of(1, 0, 3))


def test_offset_commits_have_no_sequence(partition: Partition) -> None:
    partition.allow_transaction(1, 0)
    for offset in range(3):
        assert partition.append(batch_of(1, 0, -1)).base_offset == offset
    end(partition, 1, 1)
    with pytest.raises(InvalidProducerEpoch):
        partition.append(batch_of(1, 0, -1))


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_producer_may_begin_with_that_is_not_known(partition: Partition, version: int) -> None:
    """One of version 1 may have been forgotten, and counts on; one of version 2 begins with 0."""
    partition.allow_transaction(1, 5, transaction_version=version)
    if version == 1:
        assert partition.append(batch_of(1, 5, 7)).base_offset == 0
        return
    with pytest.raises(OutOfOrderSequence, match="not with 0"):
        partition.append(batch_of(1, 5, 7))
    end(partition, 1, 6)
    partition.allow_transaction(1, 6)
    with pytest.raises(OutOfOrderSequence, match="the next one is 0"):
        partition.append(batch_of(1, 6, 7))
    assert partition.append(batch_of(1, 6, 0)).base_offset == 1


def test_a_producer_in_a_transaction_sends_nothing_outside_it(partition: Partition) -> None:
    partition.allow_transaction(1, 0)
    partition.append(batch_of(1))
    with pytest.raises(InvalidTxnState, match="open transaction since offset 0"):
        partition.append(batch_of(1, 0, 1, transactional=False))


def test_markers_come_from_the_coordinator_only(log: Log, partition: Partition) -> None:
    marker = encode_control_batch(commit=True, producer_id=1, producer_epoch=0, timestamp_ms=T)
    partition.append(batch_of(1, transactional=False))
    for _ in range(2):
        with pytest.raises(InvalidTxnState, match="control batch"):
            partition.append(bytearray(marker))
        with pytest.raises(InvalidTxnState, match="control batch"):
            log.backend.append("t", 0, bytearray(marker))
        log.flush()
    assert partition.appender.append_copied(marker).base_offset == 1, "but a copy has all that its source has"


# -- epochs ------------------------------------------------------------------------------------------------


def test_a_later_epoch_fences(partition: Partition) -> None:
    partition.allow_transaction(1, 3)
    with pytest.raises(InvalidProducerEpoch):
        partition.allow_transaction(1, 2)
    partition.append(batch_of(1, 3))
    with pytest.raises(InvalidProducerEpoch):
        partition.allow_transaction(1, 2)
    for version in (1, 2):
        with pytest.raises(InvalidProducerEpoch):
            end(partition, 1, 2, transaction_version=version)
    end(partition, 1, 4)
    with pytest.raises(InvalidProducerEpoch):
        partition.append(batch_of(1, 3, 1))
    with pytest.raises(InvalidProducerEpoch):
        partition.append(batch_of(1, 3, 1, transactional=False))


def test_a_late_marker_does_not_end_the_next_transaction(partition: Partition) -> None:
    """KIP-1228: with version 2, a marker is of a later epoch than what it ends."""
    partition.allow_transaction(1, 0)
    partition.append(batch_of(1))
    assert end(partition, 1, 1, commit=False) == 1
    assert end(partition, 1, 1, commit=False) == 2, "a coordinator that died repeats it (KAFKA-19999)"
    partition.allow_transaction(1, 1)
    assert partition.append(batch_of(1, 1)).base_offset == 3
    with pytest.raises(InvalidProducerEpoch, match="cannot end"):
        end(partition, 1, 1, commit=False)
    (found,) = partition.open_transactions()
    assert found[:3] == (1, 1, 3)
    assert partition.append(batch_of(1, 1, 1)).base_offset == 4


def test_before_version_2_a_marker_has_the_epoch_of_its_transaction(log: Log, partition: Partition) -> None:
    for sequence in range(3):
        partition.allow_transaction(1, 0, transaction_version=1)
        partition.append(batch_of(1, 0, sequence, b"%d" % sequence))
        end(partition, 1, 0, commit=sequence != 1, transaction_version=1)
    assert committed(log) == [b"0", b"2"]


def test_an_earlier_coordinator_is_fenced(log: Log, partition: Partition) -> None:
    end(partition, 1, 0, coordinator_epoch=4)
    with pytest.raises(TransactionCoordinatorFenced):
        end(partition, 1, 1, coordinator_epoch=3)
    end(partition, 2, 0, coordinator_epoch=3)
    partition.append(batch_of(1, 1, transactional=False))  # a new epoch of the producer changes nothing
    log.reopen("t", 0)
    with pytest.raises(TransactionCoordinatorFenced):
        end(partition, 1, 2, coordinator_epoch=3)
    assert partition.log.known_producers()[1].coordinator_epoch == 4


@pytest.mark.parametrize("how", ["close", "crash", "flushed crash"])
def test_a_coordinator_epoch_survives(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    end(partition_of(log), 1, 7, coordinator_epoch=4)
    if how == "flushed crash":
        housekeep(store_of(log))
    log.close() if how == "close" else crash(log)
    with open_log(tmp_path) as log:
        producer = partition_of(log).log.known_producers()[1]
        assert (producer.epoch, producer.coordinator_epoch) == (7, 4)
        with pytest.raises(TransactionCoordinatorFenced):
            end(partition_of(log), 1, 8, coordinator_epoch=3)


# -- the last stable offset --------------------------------------------------------------------------------


def test_open_transactions_are_told_the_oldest_first(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock) as log:
        log.create_topic("t")
        partition = partition_of(log)
        for producer in (3, 1, 2):
            partition.allow_transaction(producer, 0)
            partition.append(batch_of(producer))
        clock.now_ms += 5
        partition.append(batch_of(3, 0, 1))
        log.append("t", b"plain")
        three, one, two = (3, 0, 0, T + 5), (1, 0, 1, T), (2, 0, 2, T)
        assert partition.open_transactions() == [OpenTransaction(*each) for each in (three, one, two)]
        assert partition.log.last_stable_offset == 0
        end(partition, 1, 1)
        assert partition.log.last_stable_offset == 0
        end(partition, 3, 1, commit=False)
        assert partition.log.last_stable_offset == 2
        end(partition, 2, 1)
        assert partition.log.last_stable_offset == 8
        assert partition.open_transactions() == []


def test_the_log_start_may_pass_the_begin_of_a_transaction(log: Log, partition: Partition) -> None:
    """A consumer that starts where read_committed ends must not start before the log does."""
    partition.allow_transaction(1, 0)
    for sequence in range(3):
        partition.append(batch_of(1, 0, sequence))
    log.delete_records("t", 0, 2)
    assert partition.log.last_stable_offset == 2
    with open_log_reader(log) as reader:
        assert committed(reader) == committed(log) == []
    log.reopen("t", 0)
    assert partition.log.last_stable_offset == 2
    end(partition, 1, 1)
    assert committed(log) == [b"v"]


def test_a_range_of_a_file_goes_on_where_it_was_held_back(partition: Partition) -> None:
    """Not at the end of the file, which the reader also asked for."""
    partition.append(batch_of(2, transactional=False))
    partition.allow_transaction(1, 0)
    begins = partition.log.log_end[1]
    partition.append(batch_of(1))
    held = partition.reader.file_range(1, 1 << 20, read_committed=True)
    assert (held.size, held.last_stable_offset) == (0, 1)
    end(partition, 1, 1)
    found = partition.reader.file_range(1, 1 << 20, read_committed=True)
    assert (found.pos, found.pos + found.size) == (begins, partition.log.log_end[1])


def open_log_reader(log: Log) -> Log:
    import embedlog

    return embedlog.open(log.path, mode="r")


@pytest.mark.parametrize("flush", [True, False])
def test_a_marker_wakes_and_may_be_durable(log: Log, partition: Partition, flush: bool) -> None:
    partition.allow_transaction(1, 0)
    partition.append(batch_of(1))
    woken = threading.Event()
    partition.log.add_listener(woken.set)
    ended = partition.end_transaction(1, 1, commit=True, timestamp_ms=T, flush=flush)
    assert woken.is_set()
    assert ended.durable is flush
    assert partition.is_flushed is flush


def test_a_full_log_lets_transactions_end(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=200_000, segment_bytes=20_000) as log:
        log.create_topic("t")
        partition = partition_of(log)
        partition.allow_transaction(1, 0)
        partition.append(batch_of(1))
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(5_000))
        end(partition, 1, 1)
        assert partition.log.last_stable_offset == partition.log.high_watermark.offset


# -- idle producers ----------------------------------------------------------------------------------------


def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, producer_id_expiration_ms=DAY_MS) as log:
        log.create_topic("t")
        partition = partition_of(log)
        partition.append(batch_of(1, transactional=False))
        partition.allow_transaction(2, 0)
        partition.append(batch_of(2))
        end(partition, 3, 0)
        partition.allow_transaction(3, 0)
        end(partition, 4, 0)
        partition.appender.append_copied(batch_of(FIRST_MIRROR_ID, transactional=False))
        clock.now_ms += DAY_MS - 1
        partition.append(batch_of(5, transactional=False))
        housekeep(store_of(log))
        assert partition.log.known_producers().keys() == {1, 2, 3, 4, 5, FIRST_MIRROR_ID}
        clock.now_ms += 1
        housekeep(store_of(log))
        assert partition.log.known_producers().keys() == {2, 3, 5, FIRST_MIRROR_ID}
        end(partition, 2, 1)
        assert partition.append(batch_of(1, 0, 7, transactional=False)).base_offset == 7, "as if it were new"
        clock.now_ms += DAY_MS
        housekeep(store_of(log))
        assert partition.log.known_producers().keys() == {3, FIRST_MIRROR_ID}


@pytest.mark.parametrize("how", ["close", "crash"])
def test_the_time_of_idling_goes_on_over_a_restart(tmp_path: Path, how: str) -> None:
    """It does not depend on the records' timestamps: who loads old events is not idle."""
    clock = Clock(T + 100 * DAY_MS)
    log = open_log(tmp_path, clock=clock)
    log.create_topic("t")
    partition_of(log).append(batch_of(1, transactional=False))
    log.close() if how == "close" else crash(log)
    clock.now_ms += DAY_MS // 2
    with open_log(tmp_path, clock=clock) as log:
        housekeep(store_of(log))
        assert partition_of(log).log.known_producers().keys() == {1}
        clock.now_ms += DAY_MS
        housekeep(store_of(log))
        assert partition_of(log).log.known_producers() == {}
