"""`log.transaction`: commits and aborts, fencing, time-outs, failures, offsets of consumers."""

from __future__ import annotations

import asyncio
import errno
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Clock, FaultyFileSystem, open_log, store_of
from programs import crash
from prometheus_client import CollectorRegistry

import embedlog
import embedlog.aio
from embedlog import (
    Closed,
    CommitFailed,
    CommittedOffset,
    ConcurrentTransactions,
    Consumer,
    DiskFull,
    FileOffsetStore,
    InvalidArgument,
    InvalidTxnState,
    InvalidType,
    Log,
    ProducerFenced,
    ReadOnly,
    Record,
    StorageError,
    TopicNotFound,
    TopicPartition,
    TransactionAborted,
    TransactionNotFound,
    UnstableOffsetCommit,
)
from embedlog.backends.local import WriterBackend
from embedlog.files.names import TRANSACTION_STATE_TOPIC
from embedlog.groups.transaction_coordinator import TransactionCoordinator
from embedlog.metrics import LogCollector
from embedlog.wire.transaction_state import TransactionState

IN = TopicPartition("in", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with opened(tmp_path / "log") as log:
        yield log


def opened(path: Path, **options: object) -> Log:
    log = open_log(path, offsets_topic_num_partitions=2, **options)  # type: ignore[arg-type]
    log.create_topic("out", partitions=4, exist_ok=True)
    log.create_topic("in", exist_ok=True)
    return log


def coordinator_of(log: Log) -> TransactionCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.transactions


def committed(log: Log, topic: str = "out") -> list[bytes | None]:
    return [record.value for record in log.read(topic, isolation_level="read_committed")]


def has_open(log: Log) -> bool:
    return any(partition.open_transactions() for partition in store_of(log).partitions())


def consumer_of(log: Log, group: str = "g") -> Consumer:
    return log.consumer("in", group=group, auto_commit=False)


# -- commit and abort --------------------------------------------------------------------------------------


def test_a_block_commits_what_it_appends_to_several_topics(log: Log) -> None:
    log.create_topic("audit")
    with log.transaction("loader-1") as tx:
        metadata = tx.append("out", b"1", key=b"k", headers={"h": b"v"}, timestamp_ms=7)
        many = tx.append_many("out", [(b"%d" % n, b"m%d" % n) for n in range(50)], compression="gzip")
        tx.append("audit", b"3")
        assert (committed(log), committed(log, "audit")) == ([], [])
        assert repr(tx) == "<embedlog.Transaction 'loader-1': open>"
    assert len(committed(log)) == 51
    assert committed(log, "audit") == [b"3"]
    assert log.read_at("out", metadata.partition, metadata.offset) == Record(
        "out", metadata.partition, metadata.offset, 7, 0, b"k", b"1", (("h", b"v"),)
    )
    assert [log.read_at("out", each.partition, each.offset).value for each in many] == [  # type: ignore[union-attr]
        b"m%d" % n for n in range(50)
    ]
    assert repr(tx) == "<embedlog.Transaction 'loader-1': committed>"
    assert not has_open(log)


class Refused(Exception):
    pass


@pytest.mark.parametrize("error", [Refused, KeyboardInterrupt, GeneratorExit])
def test_an_exception_aborts_and_goes_on(log: Log, error: type[BaseException]) -> None:
    with pytest.raises(error), log.transaction("loader-1") as tx:
        tx.append("out", b"1")
        raise error
    assert repr(tx) == "<embedlog.Transaction 'loader-1': aborted>"
    assert committed(log) == []
    assert len(list(log.read("out", isolation_level="read_uncommitted"))) == 1
    assert not has_open(log)
    with log.transaction("loader-1") as tx:
        tx.append("out", b"2")
    assert committed(log) == [b"2"]


@pytest.mark.parametrize("partition", [None, 2])
def test_a_list_is_divided_as_any_iterable(log: Log, partition: int | None) -> None:
    """The compiled loops divide lists, Python the others."""
    given: list[object] = [(b"key %d" % n, b"pair %d" % n) for n in range(40)]
    given += [Record("x", 0, 0, 5_000 + n, 0, b"k%d" % n, b"", (("h", b"1"),)) for n in range(40)]
    found = []
    for records in (given, iter(given)):
        with log.transaction("loader") as tx:
            appended = tx.append_many("out", records, partition=partition)  # type: ignore[arg-type]
        read = [log.read_at("out", each.partition, each.offset) for each in appended]
        assert [each.timestamp_ms for each in appended] == [each.timestamp_ms for each in read if each]
        found.append([(each.partition, each.key, each.value, each.headers) for each in read if each])
        assert [each.timestamp_ms for each in read if each and each.headers] == list(range(5_000, 5_040))
    assert found[0] == found[1]
    assert [value for _, _, value, _ in found[0]] == [b"pair %d" % n for n in range(40)] + [b""] * 40


def test_records_without_keys_go_to_another_partition_by_the_call(log: Log) -> None:
    used = set()
    for _ in range(50):
        with log.transaction("loader") as tx:
            [partition] = {each.partition for each in tx.append_many("out", [b"1", b"2"])}
            [other] = {each.partition for each in tx.append_many("out", [b"3", b"4"])}
        assert partition != other
        used |= {partition, other}
    assert used == {0, 1, 2, 3}


def test_a_list_with_a_record_that_is_too_large_appends_nothing(log: Log) -> None:
    log.alter_topic("out", max_message_bytes=1_000)
    with log.transaction("loader") as tx:
        with pytest.raises(embedlog.RecordTooLarge, match="record 2: "):
            tx.append_many("out", [(b"a", b"1"), (b"b", b"2"), (b"c", bytes(2_000))])
        tx.append_many("out", [(b"d", b"4")])
    assert committed(log) == [b"4"]


def test_transactions_of_an_id_go_on_with_its_producer(log: Log) -> None:
    for number in range(5):
        with log.transaction("loader-1") as tx:
            tx.append("out", b"%d" % number, partition=0)
            tx.append("out", b"%d" % number, partition=0)
    described = coordinator_of(log).describe("loader-1")
    assert (described.producer_id, described.producer_epoch) == (0, 5)
    assert committed(log) == [b"%d" % (number // 2) for number in range(10)]


def test_an_empty_block_stores_nothing_but_its_producer(log: Log) -> None:
    for _ in range(3):
        with log.transaction("loader-1"):
            pass
    with pytest.raises(Refused), log.transaction("loader-1"):
        raise Refused
    assert coordinator_of(log).describe("loader-1").state is TransactionState.EMPTY
    assert log.offsets(TRANSACTION_STATE_TOPIC)[0].log_end_offset == 1


def test_records_without_a_key_go_to_one_partition(log: Log) -> None:
    with log.transaction("loader-1") as tx:
        assert len({tx.append("out", b"x").partition for _ in range(20)}) == 1


def test_a_topic_created_within_the_block_is_part_of_it(log: Log) -> None:
    with log.transaction("loader-1") as tx:
        with pytest.raises(TopicNotFound):
            tx.append("new", b"0")
        log.create_topic("new")
        tx.append("new", b"1")
        log.create_partitions("out", 5)
        tx.append("out", b"2", partition=4)
        assert committed(log, "new") == []
    assert (committed(log, "new"), committed(log)) == ([b"1"], [b"2"])


def test_topics_with_their_own_settings(log: Log) -> None:
    log.create_topic("stamped", message_timestamp_type="LogAppendTime", compression_type="zstd")
    with log.transaction("loader-1") as tx:
        tx.append("stamped", b"1", timestamp_ms=5)
        tx.append_many("stamped", [b"2", b"3"])
    records = list(log.read("stamped", isolation_level="read_committed"))
    assert [record.value for record in records] == [b"1", b"2", b"3"]
    assert {record.timestamp_type for record in records} == {1}


def test_transactions_survive_a_crash_as_a_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        with log.transaction("loader-1", flush=True) as tx:
            tx.append("out", b"1", partition=0)
            tx.append("out", b"2", partition=1)
        tx = log.transaction("loader-1").__enter__()
        tx.append("out", b"3", partition=0)
        tx.append("out", b"4", partition=1)
        killed = crash(tmp_path / "log", tmp_path / "killed")
        tx.__exit__(None, None, None)
        assert sorted(filter(None, committed(log))) == [b"1", b"2", b"3", b"4"]
    with opened(killed) as log:
        assert sorted(filter(None, committed(log))) == [b"1", b"2"]
        with log.transaction("loader-1") as tx:  # aborts what was open
            assert not has_open(log)
            tx.append("out", b"5", partition=0)
        assert sorted(filter(None, committed(log))) == [b"1", b"2", b"5"]


def test_many_batches_in_one_call(log: Log) -> None:
    records = [b"%d" % n + b"x" * 1_000 for n in range(3_000)]
    with log.transaction("loader-1") as tx:
        tx.append("out", b"first", partition=1)
        appended = tx.append_many("out", records, partition=1)
        tx.append_many("out", records, partition=1)
        log.append("out", b"between", partition=1)
    assert committed(log) == [b"first", *records, *records, b"between"]
    assert [each.offset for each in appended] == list(range(1, 3_001))
    with log.producer(transactional_id="loader-2", linger_ms=10_000) as producer:
        producer.begin_transaction()
        futures = [producer.send("out", record, partition=2) for record in records]
        producer.commit_transaction()
        assert [future.result().offset for future in futures] == list(range(3_000))


# -- one at a time -----------------------------------------------------------------------------------------


def test_an_id_has_one_transaction_at_a_time(log: Log) -> None:
    with log.transaction("loader-1") as tx, log.transaction("loader-2") as other:
        with pytest.raises(ConcurrentTransactions, match="'loader-1' is open already"):
            log.transaction("loader-1").__enter__()
        other.append("out", b"2")
        tx.append("out", b"1")
    assert sorted(filter(None, committed(log))) == [b"1", b"2"]


def test_a_transaction_is_for_one_use(log: Log) -> None:
    tx = log.transaction("loader-1")
    with pytest.raises(InvalidTxnState, match="begins with its block"):
        tx.append("out", b"0")
    with tx:
        tx.append("out", b"1")
        with pytest.raises(InvalidTxnState, match="for one use"):
            tx.__enter__()
    with consumer_of(log) as consumer:
        for use in (
            lambda: tx.append("out", b"2"),
            lambda: tx.append_many("out", [b"2"]),
            lambda: tx.commit_offsets(consumer),
        ):
            with pytest.raises(InvalidTxnState, match="has ended"):
                use()
    with pytest.raises(InvalidTxnState, match="for one use"):
        tx.__enter__()
    assert committed(log) == [b"1"]


def test_threads_may_append_to_one_transaction(log: Log) -> None:
    with log.transaction("loader-1") as tx:

        def work(number: int) -> None:
            for each in range(25):
                tx.append("out", b"%d" % each, partition=number % 2)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(committed(log)) == 100


# -- fencing and time-outs ---------------------------------------------------------------------------------


def second_producer(log: Log, name: str = "loader-1") -> None:
    coordinator_of(log).init_producer_id(name, timeout_ms=1_000)


def test_a_new_producer_fences_for_ever(log: Log) -> None:
    with pytest.raises(ProducerFenced, match="'loader-1'"), log.transaction("loader-1") as tx:
        tx.append("out", b"1", partition=0)
        second_producer(log)
    assert committed(log) == []
    with pytest.raises(ProducerFenced, match="give each an id of its own"):
        log.transaction("loader-1").__enter__()
    with pytest.raises(ProducerFenced), log.transaction("loader-2") as tx:
        second_producer(log, "loader-2")
        tx.append("out", b"1", partition=0)
    with log.transaction("loader-3") as tx:
        tx.append("out", b"3")
    assert committed(log) == [b"3"]


def test_a_transaction_that_was_open_for_too_long_is_aborted_and_the_next_one_begins(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "log", clock=clock) as log:
        for late in ("append", "append elsewhere", "commit"):
            with (
                pytest.raises(TransactionAborted, match=r"open for longer than 1,000 ms \(timeout_ms\)"),
                log.transaction("loader-1", timeout_ms=1_000) as tx,
            ):
                tx.append("out", b"lost", partition=0)
                clock.now_ms += 1_000
                coordinator_of(log).look()
                if late != "commit":
                    tx.append("out", b"late", partition=int(late == "append elsewhere"))
            with log.transaction("loader-1", timeout_ms=1_000) as tx:
                tx.append("out", late.encode())
        assert len(committed(log)) == 3
        assert not has_open(log)


def test_an_aborted_transaction_commits_nothing_if_its_error_is_ignored(log: Log) -> None:
    with pytest.raises(TransactionAborted), log.transaction("loader-1") as tx:
        tx.append("out", b"1")
        coordinator_of(log).abort("loader-1")
        with pytest.raises(TransactionAborted):
            tx.append("out", b"2")
        with pytest.raises(InvalidTxnState):
            tx.append("out", b"3")
    assert committed(log) == []


def test_an_operators_abort_within_a_block_that_raises(log: Log) -> None:
    with pytest.raises(Refused), log.transaction("loader-1") as tx:
        tx.append("out", b"1")
        coordinator_of(log).abort("loader-1")
        raise Refused
    with log.transaction("loader-1") as tx:
        tx.append("out", b"2")
    assert committed(log) == [b"2"]


def test_a_timeout_may_change_between_transactions(log: Log) -> None:
    for timeout_ms in (1_000, 1_000, 2_000, 2_000):
        with log.transaction("loader-1", timeout_ms=timeout_ms) as tx:
            tx.append("out", b"x")
        assert coordinator_of(log).describe("loader-1").timeout_ms == timeout_ms
    assert len(committed(log)) == 4


# -- failures ----------------------------------------------------------------------------------------------


def test_a_full_disk_at_the_commit_aborts(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log:
        with pytest.raises(DiskFull), log.transaction("loader-1") as tx:
            tx.append("out", b"1")
            fs.fail("write", errno.ENOSPC, path=TRANSACTION_STATE_TOPIC)
        assert repr(tx) == "<embedlog.Transaction 'loader-1': aborted>"
        assert not has_open(log)
        with log.transaction("loader-1") as tx:
            tx.append("out", b"2")
        assert committed(log) == [b"2"]


def test_a_failed_flush_at_the_commit_is_resolved_by_an_abort(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log:
        with pytest.raises(StorageError) as raised, log.transaction("loader-1", flush=True) as tx:
            tx.append("out", b"1", partition=0)
            tx.append("out", b"2", partition=1)
            fs.fail("sync", path="out_0")
        assert "the transaction of 'loader-1' was aborted" in raised.value.__notes__
        with pytest.raises(ConcurrentTransactions), log.transaction("loader-1") as tx:
            tx.append("out", b"3", partition=2)  # the marker of the last one cannot be written
        log.reopen("out", 0)
        coordinator_of(log).look()
        with log.transaction("loader-1") as tx:
            tx.append("out", b"3", partition=2)
        assert committed(log) == [b"3"]


def test_an_end_of_unknown_outcome_is_told_later(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log:
        with pytest.raises(StorageError) as raised, log.transaction("loader-1", flush=True) as tx:
            tx.append("out", b"1", partition=0)
            fs.fail("sync", path=TRANSACTION_STATE_TOPIC)
        assert "is told by the next one of this id" in raised.value.__notes__[0]
        with pytest.raises(StorageError):
            log.transaction("loader-1").__enter__()
        log.reopen(TRANSACTION_STATE_TOPIC, 0)
        with log.transaction("loader-1") as tx:
            tx.append("out", b"2", partition=0)
        assert committed(log) in ([b"2"], [b"1", b"2"])
        assert not has_open(log)


def test_after_an_append_of_unknown_outcome_nothing_is_committed(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log:
        with (
            pytest.raises(InvalidTxnState, match="can only be aborted, since a part of it failed"),
            log.transaction("loader-1") as tx,
        ):
            tx.append("out", b"1", partition=0)
            fs.fail("write", errno.EIO, path="out_0")
            with pytest.raises(StorageError):
                tx.append("out", b"2", partition=0)
        assert committed(log) == []


def test_after_a_full_disk_the_block_may_go_on(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log:
        with log.transaction("loader-1") as tx:
            tx.append("out", b"1", partition=0)
            fs.fail("write", errno.ENOSPC, path="out_0")
            with pytest.raises(DiskFull):
                tx.append("out", b"2", partition=0)
            tx.append("out", b"3", partition=0)
        assert committed(log) == [b"1", b"3"]


def test_ctrl_c_during_a_commit_says_what_became_of_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the end is stored."""
    end = TransactionCoordinator.end

    def early(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(TransactionCoordinator, "end", end)
        raise KeyboardInterrupt

    def late(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(TransactionCoordinator, "end", end)
        end(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    for struck, what in ((early, "aborted"), (late, "committed")):
        with pytest.raises(KeyboardInterrupt) as raised, log.transaction("loader-1") as tx:
            tx.append("out", what.encode())
            monkeypatch.setattr(TransactionCoordinator, "end", struck)
        assert raised.value.__notes__ == [f"the transaction of 'loader-1' was {what}"]
    with log.transaction("loader-1") as tx:
        tx.append("out", b"next")
    assert sorted(filter(None, committed(log))) == [b"committed", b"next"]


def test_closing_the_log_aborts_what_is_open(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    tx = log.transaction("loader-1").__enter__()
    tx.append("out", b"1", partition=0)
    log.append("out", b"2", partition=0)
    with opened(tmp_path / "other") as other:
        left = other.producer(transactional_id="p")
        left.begin_transaction()
    log.close()
    for goes_on in (
        lambda: tx.append("out", b"3"),
        lambda: tx.append_many("out", [b"3"]),
        lambda: tx.__exit__(None, None, None),
        left.commit_transaction,
        left.abort_transaction,
        left.begin_transaction,
    ):
        with pytest.raises(Closed):
            goes_on()
    with opened(tmp_path / "log") as log:
        assert committed(log) == [b"2"]


# -- where there are none ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), InvalidArgument),
        ((5,), InvalidType),
        (("x", 0), InvalidArgument),
        (("x", 2**31), InvalidArgument),
        (("x", 1, 1), InvalidType),
    ],
)
def test_invalid_arguments(log: Log, arguments: tuple[object, ...], error: type[Exception]) -> None:
    options = dict(zip(("timeout_ms", "flush"), arguments[1:], strict=False))
    with pytest.raises(error):
        log.transaction(arguments[0], **options)  # type: ignore[arg-type]


def test_a_timeout_above_the_logs_limit(log: Log) -> None:
    with pytest.raises(InvalidArgument, match="at most 900,000"):
        log.transaction("x", timeout_ms=900_001).__enter__()


def test_a_reader_gets_a_clear_error(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log"),
        embedlog.open(tmp_path / "log", mode="r") as reader,
        pytest.raises(ReadOnly),
    ):
        reader.transaction("x")


# -- offsets of consumers ----------------------------------------------------------------------------------


def test_offsets_count_with_the_records(log: Log) -> None:
    log.append_many("in", [b"1", b"2", b"3"])
    with consumer_of(log) as consumer:
        with log.transaction("copier") as tx:
            for record in consumer.poll(max_records=2):
                tx.append("out", record.value)
            tx.commit_offsets(consumer)
            assert log.group("g").offsets() == {}
            with pytest.raises(UnstableOffsetCommit, match="may change the offset of in 0"):
                log.backend.coordinator.committed_offsets("g", [IN], require_stable=True)  # type: ignore[union-attr]
        assert consumer.committed(IN) == consumer.committed(IN)
        assert consumer.committed(IN).offset == 2  # type: ignore[union-attr]
        with pytest.raises(Refused), log.transaction("copier") as tx:
            for record in consumer.poll():
                tx.append("out", record.value)
            tx.commit_offsets(consumer)
            raise Refused
        assert consumer.committed(IN).offset == 2  # type: ignore[union-attr]
        assert consumer.poll() == [], "the third was read"
        consumer.seek_to_committed()
        with log.transaction("copier") as tx:
            for record in consumer.poll():
                tx.append("out", record.value)
            tx.commit_offsets(consumer)
        assert consumer.committed(IN).offset == 3  # type: ignore[union-attr]
    assert sorted(filter(None, committed(log))) == [b"1", b"2", b"3"]


def test_a_consumer_that_has_not_joined_has_nothing_to_commit(log: Log) -> None:
    """As after a poll that returned before the group's coordinator was there."""
    with consumer_of(log) as consumer, log.transaction("copier") as tx:
        tx.append("out", b"1")
        tx.commit_offsets(consumer)
    assert committed(log) == [b"1"]
    assert log.group("g").offsets() == {}


def test_chosen_offsets_and_consumers_that_assign_themselves(log: Log) -> None:
    log.append_many("in", [b"1", b"2", b"3"])
    with log.consumer((), group="g", auto_commit=False) as consumer:
        consumer.assign([IN])
        consumer.poll()
        with log.transaction("copier") as tx:
            tx.commit_offsets(consumer, {IN: CommittedOffset(1, -1, "note")})
        assert consumer.committed(IN)[:3] == (1, -1, "note")  # type: ignore[index]
        with log.transaction("copier") as tx:
            tx.commit_offsets(consumer)
        assert consumer.committed(IN).offset == 3  # type: ignore[union-attr]


def test_consumers_whose_offsets_no_transaction_can_commit(log: Log, tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    for options, match in (
        ({}, "needs a consumer in a group"),
        ({"group": "g"}, "auto_commit=False"),
        ({"group": "g", "offset_store": store, "auto_commit": False}, "offset_store"),
    ):
        with (
            log.consumer("in", **options) as consumer,  # type: ignore[arg-type]
            pytest.raises(InvalidArgument, match=match),
            log.transaction("copier") as tx,
        ):
            tx.append("out", b"1")
            tx.commit_offsets(consumer)
    assert committed(log) == []


def test_a_member_that_the_group_has_replaced_commits_nothing(tmp_path: Path) -> None:
    clock = Clock()
    with (
        opened(tmp_path / "log", clock=clock) as log,
        log.consumer("in", group="g", auto_commit=False, max_poll_interval_ms=6_000) as zombie,
        pytest.raises(InvalidTxnState, match="has reassigned the partitions"),
        log.transaction("copier-1") as tx,
    ):
        log.append_many("in", [b"1", b"2"])
        for record in zombie.poll():
            tx.append("out", record.value)
        clock.now_ms += 10_000
        assert isinstance(log.backend, WriterBackend)
        log.backend.coordinator._tick()
        with pytest.raises(CommitFailed, match="abort the transaction"):
            tx.commit_offsets(zombie)
    with opened(tmp_path / "log") as log:
        assert committed(log) == []
        assert log.group("g").offsets() == {}


@pytest.mark.parametrize("ask", ["committed", "position", "lag"])
def test_a_consumer_waits_for_a_transaction_that_is_ending(log: Log, ask: str) -> None:
    """As brokers of Kafka end it: after its commit has returned."""
    log.append_many("in", [b"1", b"2", b"3"])
    with consumer_of(log) as first:
        first.poll(max_records=2)
        with pytest.raises(InvalidTxnState), log.transaction("copier-1") as tx:
            tx.commit_offsets(first)
            first.close()
            with consumer_of(log) as second:
                if ask != "committed":
                    assert second.poll() == []  # it joins
                ending = threading.Timer(0.1, tx._manager.commit)
                ending.start()
                if ask == "committed":
                    assert second.committed(IN).offset == 2  # type: ignore[union-attr]
                elif ask == "position":
                    assert second.position(IN) == 2
                else:
                    assert second.lag() == {IN: 1}
                ending.join()


def test_a_new_owner_of_a_partition_waits_for_the_offsets_of_an_open_transaction(log: Log) -> None:
    log.append_many("in", [b"1", b"2", b"3"])
    with pytest.raises(InvalidTxnState), log.transaction("copier-1") as tx:
        with consumer_of(log) as first:
            first.poll(max_records=2)
            tx.commit_offsets(first)
        with consumer_of(log) as second:
            assert second.poll() == second.poll() == []
            with pytest.raises(UnstableOffsetCommit):
                second.position(IN)
            tx._manager.commit()
            assert [record.value for record in second.poll(math.inf)] == [b"3"]


def test_going_back_to_committed_offsets(log: Log) -> None:
    log.append_many("in", [b"1", b"2", b"3"])
    with consumer_of(log) as consumer:
        assert len(consumer.poll(max_records=2)) == 2
        consumer.seek_to_committed(IN)
        assert len(consumer.poll(max_records=2)) == 2
        consumer.commit()
        assert len(consumer.poll()) == 1
        consumer.seek_to_committed()
        assert consumer.position(IN) == 2
        assert [record.value for record in consumer.poll()] == [b"3"]
        consumer.poll()
        consumer.pause()
        consumer.seek_to_committed()
        assert consumer.poll() == []
        consumer.resume()
        assert [record.value for record in consumer.poll()] == [b"3"]
        consumer.seek(IN, 0)
        assert len(consumer.poll()) == 3


# -- tasks -------------------------------------------------------------------------------------------------


def test_tasks_have_transactions_and_a_cancelled_one_aborts(tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path / "log", offsets_topic_num_partitions=2) as log:
            await log.create_topic("out", 4)
            await log.create_topic("in")
            await log.append_many("in", [b"1", b"2", b"3"])
            async with log.consumer("in", "g", auto_commit=False) as consumer:
                async with log.transaction("copier") as tx:
                    records = await consumer.poll(math.inf, max_records=2)
                    await tx.append_many("out", [record.value for record in records])
                    await tx.commit_offsets(consumer)
                assert repr(tx) == "<embedlog.aio.Transaction 'copier': committed>"
                inside = asyncio.Event()

                async def copy() -> None:
                    async with log.transaction("copier") as tx:
                        await tx.append("out", b"lost")
                        inside.set()
                        await asyncio.sleep(3600)

                task = asyncio.create_task(copy())
                await inside.wait()
                with pytest.raises(ConcurrentTransactions):
                    await log.transaction("copier").__aenter__()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await consumer.seek_to_committed()
                async with log.transaction("copier") as tx:
                    for record in await consumer.poll(math.inf):
                        await tx.append("out", record.value)
                    await tx.commit_offsets(consumer)
            values = [r.value async for r in log.read("out", isolation_level="read_committed")]
            assert sorted(filter(None, values)) == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_a_task_that_is_cancelled_as_its_transaction_begins_leaves_none_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path / "log") as log:
            await log.create_topic("out")
            for _ in range(20):
                task = asyncio.create_task(log.transaction("copier").__aenter__())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with log.transaction("copier") as tx:
                await tx.append("out", b"1")

    asyncio.run(main())


# -- producers ---------------------------------------------------------------------------------------------


def test_a_producer_in_the_way_of_kafkas_clients(log: Log) -> None:
    log.append_many("in", [b"1", b"2", b"3"])
    with (
        consumer_of(log) as consumer,
        log.producer(**{"transactional.id": "copier", "linger_ms": 1_000}) as producer,
    ):
        assert repr(producer) == "<embedlog.TransactionalProducer <transactional id 'copier': ready>>"
        with pytest.raises(InvalidTxnState, match="no open transaction"):
            producer.send("out", b"0")
        producer.begin_transaction()
        with pytest.raises(ConcurrentTransactions):
            producer.begin_transaction()
        futures = [producer.send("out", record.value) for record in consumer.poll(max_records=2)]
        producer.send_offsets_to_transaction(None, consumer)
        producer.commit_transaction()
        assert [future.result().offset for future in futures] == [0, 1]
        assert consumer.committed(IN).offset == 2  # type: ignore[union-attr]
        producer.begin_transaction()
        dropped = producer.send("out", b"dropped")
        producer.send_offsets_to_transaction({IN: 3}, consumer)
        producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            dropped.result()
        assert consumer.committed(IN).offset == 2  # type: ignore[union-attr]
        for end in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(InvalidTxnState):
                end()
        producer.begin_transaction()
        producer.send("out", b"3", partition=1)
        producer.flush()
    assert sorted(filter(None, committed(log))) == [b"1", b"2"]
    assert not has_open(log), "closing the producer aborts"


def test_a_send_that_failed_keeps_a_transaction_from_being_committed(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    with opened(tmp_path / "log", fs=fs) as log, log.producer(transactional_id="loader-1") as producer:
        producer.begin_transaction()
        producer.send("out", b"1", partition=0).result()
        fs.fail("write", errno.ENOSPC, path="out_0")
        failed = producer.send("out", b"2", partition=0)
        with pytest.raises(InvalidTxnState, match="can only be aborted"):
            producer.commit_transaction()
        with pytest.raises(DiskFull):
            failed.result()
        with pytest.raises(InvalidTxnState, match="can only be aborted"):
            producer.send("out", b"3", partition=0)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("out", b"4", partition=0)
        producer.commit_transaction()
        assert committed(log) == [b"4"]


def test_sends_after_an_abort_begin_with_new_batches(log: Log) -> None:
    with log.producer(transactional_id="loader-1", linger_ms=10_000) as producer:
        for number in range(20):
            producer.begin_transaction()
            for partition in range(4):
                producer.send("out", b"dropped", partition=partition)
            producer.abort_transaction()
            producer.begin_transaction()
            for partition in range(4):
                producer.send("out", b"%d" % number, partition=partition)
            producer.commit_transaction()
    assert sorted(int(value or b"") for value in committed(log)) == [n for n in range(20) for _ in range(4)]


def test_a_producer_fences_the_earlier_one_at_once(log: Log) -> None:
    with log.producer(transactional_id="loader-1") as first:
        first.begin_transaction()
        first.send("out", b"1").result()
        with log.producer(transactional_id="loader-1") as second:
            assert not has_open(log)
            with pytest.raises(ProducerFenced):
                first.commit_transaction()
            for act in (first.begin_transaction, first.abort_transaction, lambda: first.send("out", b"2")):
                with pytest.raises(ProducerFenced):
                    act()
            second.begin_transaction()
            second.send("out", b"3")
            second.commit_transaction()
    assert committed(log) == [b"3"]


def test_invalid_options_of_transactional_producers(log: Log) -> None:
    for options, error in (
        ({"transactional_id": ""}, InvalidArgument),
        ({"transactional_id": 5}, InvalidType),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, InvalidArgument),
        ({"transactional_id": "x", "transaction_timeout_ms": 900_001}, InvalidArgument),
        ({"transactional_id": "x", "linger_ms": "soon"}, InvalidType),
        ({"transaction_timeout_ms": 5}, InvalidArgument),
    ):
        with pytest.raises(error):
            log.producer(**options)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="not of one topic"):
        log.topic("out", str).producer(transactional_id="x")  # type: ignore[call-arg]
    with log.producer(transactional_id="x") as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidType):
            producer.send_offsets_to_transaction(None, log)  # type: ignore[arg-type]


# -- what is open ------------------------------------------------------------------------------------------


def test_a_consumer_that_is_held_back_says_by_which_transaction(log: Log) -> None:
    log.append("in", b"1")
    with consumer_of(log) as consumer, log.consumer("in", isolation_level="read_uncommitted") as other:
        with log.transaction("loader-1") as tx:
            tx.append("in", b"2")
            assert len(consumer.poll()) == 1
            assert (consumer.held_back(), len(other.poll())) == ({IN: ["loader-1"]}, 2)
            assert repr(consumer) == (
                "<embedlog.Consumer in, group g: 1 partition; in 0 waits for the end of 'loader-1'>"
            )
            with embedlog.open(log.path, mode="r") as reader, reader.consumer("in") as elsewhere:
                assert len(elsewhere.poll()) == 1
                assert elsewhere.held_back() == {IN: ["loader-1"]}
                assert reader.transactions() == log.transactions()
            assert other.held_back() == {}
        assert consumer.held_back() == {}
        assert len(consumer.poll()) == 1
        assert consumer.held_back() == {}
    (found,) = log.transactions()
    assert (found.transactional_id, found.state, found.partitions) == ("loader-1", "CompleteCommit", ())
    assert not found.is_open


def test_an_operator_sees_and_aborts_what_is_open(log: Log) -> None:
    assert log.transactions() == []
    with pytest.raises(TransactionAborted), log.transaction("loader-1") as tx:
        tx.append("out", b"1", partition=2)
        (found,) = log.transactions()
        assert (found.state, found.partitions) == ("Ongoing", (TopicPartition("out", 2),))
        log.abort_transaction("loader-1")
    assert committed(log) == []
    with pytest.raises(TransactionNotFound):
        log.abort_transaction("loader-2")


def test_metrics_of_transactions(log: Log) -> None:
    registry = CollectorRegistry()
    registry.register(LogCollector(log))
    assert registry.get_sample_value("embedlog_open_transactions") is None
    with log.transaction("loader-1") as tx:
        tx.append("out", b"1")
        assert registry.get_sample_value("embedlog_open_transactions") == 1
        assert registry.get_sample_value("embedlog_oldest_transaction_age_seconds") is not None
    with pytest.raises(Refused), log.transaction("loader-1") as tx:
        tx.append("out", b"2")
        raise Refused
    assert registry.get_sample_value("embedlog_open_transactions") == 0
    assert registry.get_sample_value("embedlog_committed_transactions_total") == 1
    assert registry.get_sample_value("embedlog_aborted_transactions_total") == 1
    assert registry.get_sample_value("embedlog_available") == 1
