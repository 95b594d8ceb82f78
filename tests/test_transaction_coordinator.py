"""Transactions over real stores: partitions and offsets of a group, killed and cut off at every call."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import Clock, FaultyFileSystem, Image, PowerCutFileSystem, open_log, partition_of, store_of
from programs import crash

import embedlog
from embedlog import Log, LogFull, TopicPartition
from embedlog.backends.local import WriterBackend
from embedlog.codec import encode_batch
from embedlog.errors import (
    Closed,
    ConcurrentTransactions,
    FlushFailed,
    InvalidArgument,
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TopicNotFound,
    TransactionNotFound,
    UnknownMember,
)
from embedlog.files.names import TRANSACTION_STATE_TOPIC
from embedlog.groups.coordinator import GroupCoordinator
from embedlog.groups.machines.transaction import ProducerIdAndEpoch
from embedlog.groups.offsets import OFFSETS_TOPIC
from embedlog.groups.transaction_coordinator import TransactionCoordinator
from embedlog.model import CommittedOffset
from embedlog.wire.transaction_state import TransactionState

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
IN = TopicPartition("in", 0)
TIMEOUT_MS = 60_000


class Producer:
    """A transactional producer, as a client would be one."""

    def __init__(self, log: Log, coordinator: TransactionCoordinator, name: str = "loader-1") -> None:
        self.log = log
        self.coordinator = coordinator
        self.name = name
        self.producer = coordinator.init_producer_id(name, timeout_ms=TIMEOUT_MS)
        self.sequences: dict[TopicPartition, int] = {}

    def write(self, name: TopicPartition, *values: bytes) -> None:
        self.coordinator.add_partitions(self.name, self.producer, [name])
        self.append(name, *values)

    def append(self, name: TopicPartition, *values: bytes) -> None:
        first = self.sequences.get(name, 0)
        batch = encode_batch(
            [(None, value, (), 1_000) for value in values],
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            base_sequence=first,
            transactional=True,
        )
        store_of(self.log).partition(*name).append(batch)
        self.sequences[name] = first + len(values)

    def commit_offset(self, group: str, offset: int) -> None:
        offsets = {IN: CommittedOffset(offset, -1, "", -1)}
        self.coordinator.commit_offsets(self.name, self.producer, group, offsets)

    def end(self, *, commit: bool, flush: bool = False) -> None:
        self.producer = self.coordinator.end(self.name, self.producer, commit=commit, flush=flush)
        self.sequences = {}


def groups_of(log: Log) -> GroupCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.coordinator


def coordinator_of(log: Log) -> TransactionCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.transactions


@contextmanager
def opened(path: Path, **options: object) -> Iterator[tuple[Log, TransactionCoordinator]]:
    with open_log(path, offsets_topic_num_partitions=2, **options) as log:  # type: ignore[arg-type]
        log.create_topic("t", partitions=2, exist_ok=True)
        log.create_topic("in", exist_ok=True)
        yield log, coordinator_of(log)


def committed(log: Log) -> tuple[list[bytes], list[bytes], int | None]:
    """What a read_committed reader sees of both partitions, and the group's offset."""
    values = [
        [record.value or b"" for record in log.read("t", partition, isolation_level="read_committed")]
        for partition in (0, 1)
    ]
    offset = groups_of(log).committed_offsets("g").get(IN)
    return values[0], values[1], None if offset is None else offset.offset


def has_open_transactions(log: Log) -> bool:
    return any(partition.open_transactions() for partition in store_of(log).partitions())


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_partitions_and_offsets(path: Path, commit: bool) -> None:
    with opened(path) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1", b"2")
        producer.write(B, b"3")
        producer.write(A, b"4")
        producer.commit_offset("g", 7)
        assert committed(log) == ([], [], None)
        assert groups_of(log).pending_offsets("g") == {IN}
        producer.end(commit=commit)
        expected = ([b"1", b"2", b"4"], [b"3"], 7) if commit else ([], [], None)
        assert committed(log) == expected
        assert groups_of(log).pending_offsets("g") == set()
        assert not has_open_transactions(log)
        described = coordinator.describe("loader-1")
        assert described.state is (
            TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        )
        assert coordinator.transactional_ids() == ["loader-1"]
        killed = crash(path, path.parent / "killed")
    for each in (path, killed):
        with opened(each) as (log, coordinator):
            assert committed(log) == expected
            assert coordinator.describe("loader-1") == described
            producer = Producer(log, coordinator)
            producer.write(B, b"5")
            producer.end(commit=True)
            assert committed(log)[1] == [*expected[1], b"5"]


def test_zombies_get_nothing_in(path: Path) -> None:
    with opened(path) as (log, coordinator):
        zombie = Producer(log, coordinator)
        zombie.write(A, b"lost")
        zombie.commit_offset("g", 9)
        producer = Producer(log, coordinator)
        assert producer.producer.producer_id == zombie.producer.producer_id
        for attempt in (
            lambda: zombie.append(A, b"late"),
            lambda: zombie.append(B, b"late"),
            lambda: zombie.write(B, b"late"),
            lambda: zombie.commit_offset("g", 10),
            lambda: zombie.end(commit=True),
            lambda: zombie.end(commit=False),
        ):
            with pytest.raises((ProducerFenced, InvalidProducerEpoch, InvalidTxnState)):
                attempt()
        producer.write(A, b"kept")
        producer.end(commit=True)
        assert committed(log) == ([b"kept"], [], None)


def test_what_is_late_never_opens_a_transaction(path: Path) -> None:
    with opened(path) as (log, coordinator):
        producer = Producer(log, coordinator)
        late = Producer(log, coordinator, "other")
        late.producer, late.name = producer.producer, producer.name
        producer.write(A, b"1")
        producer.end(commit=True)
        with pytest.raises(InvalidProducerEpoch):
            late.append(A, b"late")
        with pytest.raises(InvalidTxnState):
            late.append(B, b"late")
        with pytest.raises(InvalidTxnState):  # nothing has added the partition
            producer.append(A, b"early")
        assert not has_open_transactions(log)


def test_a_transaction_is_aborted_after_its_time_also_by_the_next_process(path: Path) -> None:
    clock = Clock()
    with opened(path, clock=clock) as (log, coordinator):
        first = Producer(log, coordinator)
        first.write(A, b"1")
        clock.now_ms += TIMEOUT_MS - 1
        coordinator.look()
        assert coordinator.describe("loader-1").state is TransactionState.ONGOING
        clock.now_ms += 1
        coordinator.look()
        assert not has_open_transactions(log)
        with pytest.raises(ProducerFenced):
            first.end(commit=True)
        second = Producer(log, coordinator)
        second.write(A, b"2")
        killed = crash(path, path.parent / "killed")
    with opened(killed, clock=clock) as (log, coordinator):
        coordinator.load()
        assert coordinator.look() == TIMEOUT_MS
        second.log, second.coordinator = log, coordinator
        second.append(A, b"3")  # its producer lives in another process, and goes on
        second.end(commit=True)
        assert committed(log)[0] == [b"2", b"3"]
        second.write(B, b"4")
        clock.now_ms += TIMEOUT_MS
        coordinator.look()
        assert committed(log) == ([b"2", b"3"], [], None)


def test_an_unused_id_is_forgotten(path: Path) -> None:
    clock = Clock()
    with opened(path, clock=clock) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        producer.end(commit=True)
        clock.now_ms += 7 * 86_400_000 - 1
        coordinator.look()
        assert coordinator.transactional_ids() == ["loader-1"]
        clock.now_ms += 1
        assert coordinator.look() is None
        with pytest.raises(TransactionNotFound, match="loader-1"):
            coordinator.describe("loader-1")
    with opened(path, clock=clock) as (log, coordinator):
        assert coordinator.transactional_ids() == []
        again = Producer(log, coordinator)
        assert again.producer.producer_id > producer.producer.producer_id
        assert committed(log)[0] == [b"1"]


def test_an_operator_aborts(path: Path) -> None:
    with opened(path) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        coordinator.abort("loader-1")
        coordinator.abort("loader-1")  # nothing is open
        assert committed(log) == ([], [], None)
        with pytest.raises(ProducerFenced):
            producer.write(A, b"2")
        with pytest.raises(TransactionNotFound):
            coordinator.abort("nobody")


def test_a_marker_that_cannot_be_written_comes_later(path: Path) -> None:
    fs = FaultyFileSystem(path)
    clock = Clock()
    with opened(path, fs=fs, clock=clock) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        producer.write(B, b"2")
        fs.fail("sync", path="t_1")
        with pytest.raises(StorageError):
            partition_of(log, "t", 1).flush()
        producer.end(commit=True)
        assert coordinator.describe("loader-1").state is TransactionState.PREPARE_COMMIT
        with pytest.raises(ConcurrentTransactions):
            producer.write(A, b"3")
        with pytest.raises(ConcurrentTransactions):
            Producer(log, coordinator)
        log.reopen("t", 1)
        clock.now_ms += 1_000
        coordinator.look()
        assert coordinator.describe("loader-1").state is TransactionState.COMPLETE_COMMIT
        assert not has_open_transactions(log)
        producer.write(A, b"3")
        producer.end(commit=True)
        assert committed(log)[0] == [b"1", b"3"]


def test_a_deleted_topic_ends_no_transaction(path: Path) -> None:
    with opened(path) as (log, coordinator):
        log.create_topic("gone")
        producer = Producer(log, coordinator)
        producer.write(TopicPartition("gone", 0), b"1")
        producer.write(A, b"2")
        log.delete_topic("gone")
        producer.end(commit=True)
        assert committed(log)[0] == [b"2"]
        with pytest.raises(TopicNotFound):
            producer.write(TopicPartition("gone", 0), b"3")


def test_a_full_disk_leaves_the_transaction_as_it_was(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with opened(path, fs=fs) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        fs.fail("write", errno.ENOSPC, path=TRANSACTION_STATE_TOPIC)
        with pytest.raises(StorageError):
            producer.end(commit=True)
        assert coordinator.describe("loader-1").state is TransactionState.ONGOING
        producer.end(commit=True)
        assert committed(log)[0] == [b"1"]


def test_a_full_log_lets_transactions_end(path: Path) -> None:
    with opened(path, max_bytes=3 << 20, segment_bytes=1 << 20) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        with pytest.raises(LogFull):
            for _ in range(100):
                log.append("in", b"x" * (100 << 10))
        producer.end(commit=True)
        assert committed(log)[0] == [b"1"]


def test_a_later_commit_counts_more_than_a_pending_one(path: Path) -> None:
    with opened(path) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.commit_offset("g", 7)
        groups_of(log).commit_offsets("g", {IN: CommittedOffset(3, -1, "", -1)})
        assert groups_of(log).pending_offsets("g") == set()
        producer.end(commit=True)
        assert committed(log)[2] == 3
        groups_of(log).commit_offsets("g", {IN: CommittedOffset(4, -1, "", -1)})
        producer.commit_offset("g", 8)
        assert committed(log)[2] == 4
        killed = crash(path, path.parent / "killed")
        producer.end(commit=True)
        assert committed(log)[2] == 8
    with opened(path) as (log, _):
        assert committed(log)[2] == 8
    with opened(killed) as (log, coordinator):
        assert committed(log)[2] == 4
        assert groups_of(log).pending_offsets("g") == {IN}
        producer.log, producer.coordinator, producer.producer = log, coordinator, again(producer)
        producer.end(commit=True)
        assert committed(log)[2] == 8


def again(producer: Producer) -> ProducerIdAndEpoch:
    """The producer before its last end."""
    return ProducerIdAndEpoch(producer.producer.producer_id, producer.producer.producer_epoch - 1)


def test_deleting_a_group_drops_what_is_pending(path: Path) -> None:
    with opened(path) as (log, coordinator):
        groups = groups_of(log)
        producer = Producer(log, coordinator)
        producer.commit_offset("g", 7)
        groups.expire_offsets(0)
        assert groups.list_groups() == ["g"], "a transaction may commit it"
        groups.delete_group("g")
        producer.end(commit=True)
        assert (groups.list_groups(), committed(log)[2]) == ([], None)
    with opened(path) as (log, _):
        assert (groups_of(log).list_groups(), committed(log)[2]) == ([], None)


def test_offsets_are_checked_as_in_any_commit(path: Path) -> None:
    with opened(path) as (log, coordinator):
        producer = Producer(log, coordinator)
        offsets = {IN: CommittedOffset(1, -1, "", -1)}
        with pytest.raises(UnknownMember):
            coordinator.commit_offsets("loader-1", producer.producer, "g", offsets, member_id="m")
        old = coordinator.init_producer_id("old", timeout_ms=TIMEOUT_MS)
        with pytest.raises(InvalidTxnState, match="not part of a transaction"):
            coordinator.commit_offsets("old", old, "g", offsets, client_version=1)
        coordinator.add_offsets("old", old, "g", client_version=1)
        coordinator.commit_offsets("old", old, "g", offsets, client_version=1)
        assert coordinator.end("old", old, commit=True, client_version=1) == old
        assert committed(log)[2] == 1


def test_a_failed_flush_of_a_begin_or_an_end_is_an_error_and_the_next_use_reads_what_is_stored(
    path: Path,
) -> None:
    fs = FaultyFileSystem(path)
    with opened(path, fs=fs) as (log, coordinator):
        producer = Producer(log, coordinator)
        producer.write(A, b"1")
        fs.fail("sync", path=TRANSACTION_STATE_TOPIC)
        with pytest.raises(FlushFailed):
            producer.end(commit=True, flush=True)
        with pytest.raises(StorageError):
            Producer(log, coordinator)
        log.reopen(TRANSACTION_STATE_TOPIC, 0)
        outcome = coordinator.describe("loader-1").state
        assert outcome in (TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING)
        assert committed(log)[0] == ([b"1"] if outcome is TransactionState.COMPLETE_COMMIT else [])
        producer = Producer(log, coordinator)
        fs.fail("sync", path=TRANSACTION_STATE_TOPIC)
        with pytest.raises(FlushFailed):
            coordinator.init_producer_id("other", timeout_ms=TIMEOUT_MS)
        log.reopen(TRANSACTION_STATE_TOPIC, 0)
        producer.write(B, b"2")
        producer.end(commit=True)
        assert committed(log)[1] == [b"2"]
        assert not has_open_transactions(log)


@pytest.mark.parametrize("flush", [False, True])
def test_transactions_of_many_threads(path: Path, flush: bool) -> None:
    """Each thread has an id of its own; all write to both partitions, and every third transaction aborts."""
    with opened(path) as (log, coordinator):

        def work(number: int) -> list[bytes]:
            producer, kept = Producer(log, coordinator, f"loader-{number}"), []
            for each in range(9):
                value = b"%d %d" % (number, each)
                producer.write(A, value)
                producer.write(B, value)
                producer.commit_offset(f"g{number}", each)
                producer.end(commit=each % 3 != 2, flush=flush)
                if each % 3 != 2:
                    kept.append(value)
            return kept

        with ThreadPoolExecutor(6) as pool:
            kept = list(pool.map(work, range(6)))
        for found in committed(log)[:2]:
            assert sorted(found) == sorted(value for values in kept for value in values)
            for number, values in enumerate(kept):
                assert [value for value in found if value.startswith(b"%d " % number)] == values
        for number in range(6):
            assert groups_of(log).committed_offsets(f"g{number}")[IN].offset == 7
        assert not has_open_transactions(log)


@pytest.mark.parametrize(("name", "timeout_ms"), [("", 1), ("x", 0), ("x", 900_001), ("x" * 40_000, 1)])
def test_invalid_begins(path: Path, name: str, timeout_ms: int) -> None:
    with opened(path) as (_, coordinator), pytest.raises(InvalidArgument):
        coordinator.init_producer_id(name, timeout_ms=timeout_ms)


def test_settings_bound_timeouts_and_the_life_of_ids(path: Path) -> None:
    clock = Clock()
    with opened(path, clock=clock, transaction_max_timeout_ms=10, transactional_id_expiration_ms=20) as (
        _,
        coordinator,
    ):
        with pytest.raises(InvalidArgument, match="timeout_ms must be at most 10, not 11"):
            coordinator.init_producer_id("x", timeout_ms=11)
        coordinator.init_producer_id("x", timeout_ms=10)
        clock.now_ms += 19
        coordinator.look()
        assert coordinator.transactional_ids() == ["x"]
        clock.now_ms += 1
        coordinator.look()
        assert coordinator.transactional_ids() == []


def test_a_log_goes_on_with_what_it_finds_before_any_use_of_transactions(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with opened(path, fs=fs) as (log, coordinator):
        prepared = Producer(log, coordinator)
        prepared.write(A, b"1")
        fs.fail("sync", path="t_0")
        with pytest.raises(StorageError):
            partition_of(log, "t", 0).flush()
        prepared.end(commit=True)
        late = Producer(log, coordinator, "late")  # its time is over long before the next open
        late.write(B, b"2")
        log.append("t", b"3", partition=1)
        killed = crash(path, path.parent / "killed")
    with embedlog.open(killed) as log:
        for partition, value in enumerate([b"1", b"3"]):
            found = log.read("t", partition, follow=True, isolation_level="read_committed")
            assert next(found).value == value


def test_a_closed_coordinator_says_so(path: Path) -> None:
    with opened(path) as (_, coordinator):
        coordinator.close()
        with pytest.raises(Closed):
            coordinator.transactional_ids()
        assert coordinator.look() is None


# -- killed, and cut off -----------------------------------------------------------------------------------


class Photographed(PowerCutFileSystem):
    """Keeps what a kill and what a power cut would leave before each call that changes the disk."""

    def __init__(self, root: Path, album: Path) -> None:
        super().__init__(root)
        self.root, self.album = root, album
        self.taking = False
        self.killed: list[Path] = []
        self.cut: list[Image] = []

    def take(self) -> None:
        self.killed.append(crash(self.root, self.album / str(len(self.killed))))
        self.cut.append(self.image())

    def _note(self, operation: str, path: str) -> None:
        if self.taking:
            self.take()
        super()._note(operation, path)


def transactions(fs: Photographed, log: Log, coordinator: TransactionCoordinator, flush: bool) -> int:
    """Two transactions. Returns before which photograph the first one had been committed."""
    producer = Producer(log, coordinator)
    producer.write(A, b"0")
    producer.end(commit=True, flush=flush)
    fs.taking = True
    producer.write(A, b"1", b"2")
    producer.write(B, b"3")
    producer.commit_offset("g", 7)
    producer.end(commit=True, flush=flush)
    done = len(fs.killed)
    producer.write(A, b"4")
    producer.commit_offset("g", 8)
    producer.end(commit=False, flush=flush)
    fs.take()
    fs.taking = False
    return done


NOTHING, ALL = ([b"0"], [], None), ([b"0", b"1", b"2"], [b"3"], 7)


def check(path: Path, must_be_committed: bool) -> bool:
    """Whether the transaction is committed after a restart, for good."""
    clock = Clock()
    with opened(path, clock=clock) as (log, coordinator):
        coordinator.load()
        clock.now_ms += TIMEOUT_MS
        coordinator.look()
        found = committed(log)
        assert found in (NOTHING, ALL)
        assert found == ALL or not must_be_committed
        assert not has_open_transactions(log), "it hangs"
        producer = Producer(log, coordinator)
        producer.write(A, b"5")
        producer.end(commit=True)
        assert committed(log)[0] == [*found[0], b"5"]
    with opened(path) as (log, _):
        assert committed(log) == ([*found[0], b"5"], *found[1:])
    shutil.rmtree(path)
    return found == ALL


@pytest.mark.slow
@pytest.mark.parametrize("flush", [False, True])
def test_a_kill_at_any_call_leaves_all_or_nothing(tmp_path: Path, flush: bool) -> None:
    path = tmp_path / "log"
    fs = Photographed(path, tmp_path / "album")
    with opened(path, fs=fs) as (log, coordinator):
        groups_of(log).offsets_partition("g")  # creates the topic
        done = transactions(fs, log, coordinator, flush)
    found = [check(each, number >= done) for number, each in enumerate(fs.killed)]
    assert found == sorted(found), "what is committed stays committed"
    assert not found[0]
    assert found[-1]
    assert len(found) > 10


@pytest.mark.slow
def test_a_power_cut_at_any_call_leaves_all_or_nothing_of_a_flushed_transaction(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fs = Photographed(path, tmp_path / "album")
    with opened(path, fs=fs) as (log, coordinator):
        groups_of(log).offsets_partition("g")
        done = transactions(fs, log, coordinator, flush=True)
    for number, image in enumerate(fs.cut):
        image.write(tmp_path / "cut")
        check(tmp_path / "cut", number >= done)


def test_markers_that_a_power_cut_took_are_written_again(tmp_path: Path) -> None:
    """The completion is durable, a marker is not."""
    path = tmp_path / "log"
    for flushed in (A, B, TopicPartition(OFFSETS_TOPIC, 0), TopicPartition(OFFSETS_TOPIC, 1)):
        shutil.rmtree(path, ignore_errors=True)
        fs = PowerCutFileSystem(path)
        with opened(path, fs=fs) as (log, coordinator):
            producer = Producer(log, coordinator)
            producer.write(A, b"0")
            producer.end(commit=True, flush=True)
            producer.write(A, b"1", b"2")
            producer.write(B, b"3")
            producer.commit_offset("g", 7)
            producer.end(commit=True, flush=True)
            partition_of(log, TRANSACTION_STATE_TOPIC).flush()
            partition_of(log, *flushed).flush()
            image = fs.image()
        image.write(tmp_path / "cut")
        assert check(tmp_path / "cut", must_be_committed=True)
