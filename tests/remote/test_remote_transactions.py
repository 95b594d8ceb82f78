"""`log.transaction` over the wire: to a broker, and to the owner of a shared directory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import Program

import embedlog
from embedlog import (
    InvalidTxnState,
    Log,
    ProducerFenced,
    TopicNotFound,
    TopicPartition,
    TransactionAborted,
    UnstableOffsetCommit,
    UnsupportedByBackend,
)
from embedlog.backends.shared import SharedBackend
from embedlog.cluster import Broker
from embedlog.codec import encode_batch


@pytest.fixture(params=["kafka", "shared"])
def logs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Log]]:
    """Opens logs of one directory that another handle owns."""
    path = tmp_path / "log"
    with ExitStack() as opened:
        if request.param == "kafka":
            broker = opened.enter_context(Broker(path))
            address = f"kafka://{broker.bootstrap_servers}"
            broker.log.create_topic("in")
            broker.log.create_topic("out", partitions=3)
            yield lambda: opened.enter_context(embedlog.open(address))
        else:
            owner = opened.enter_context(embedlog.open(path, shared=True))
            owner.create_topic("in")
            owner.create_topic("out", partitions=3)

            def client() -> Log:
                log = opened.enter_context(embedlog.open(path, shared=True))
                assert isinstance(log.backend, SharedBackend)
                return log

            yield client


def committed(log: Log) -> list[bytes | None]:
    return sorted(
        record.value or b"" for record in log.read("out", isolation_level="read_committed", follow=False)
    )


def test_commits_and_aborts(logs: Callable[[], Log]) -> None:
    log = logs()
    for number in range(6):
        try:
            with log.transaction("tx") as tx:
                tx.append("out", b"a%d" % number, partition=0)
                tx.append_many("out", [b"b%d" % number, b"c%d" % number])
                if number % 2:
                    raise KeyError(number)
        except KeyError:
            pass
    assert committed(log) == sorted(b"%c%d" % (letter, n) for letter in b"abc" for n in (0, 2, 4))


def test_reading_begins_between_an_aborted_transaction_and_its_marker(logs: Callable[[], Log]) -> None:
    """What the producer commits after that is there, whichever offset a reader begins from."""
    log = logs()
    with pytest.raises(KeyError), log.transaction("tx") as tx:
        tx.append_many("out", [b"a", b"b"], partition=0)
        raise KeyError
    with log.transaction("tx") as tx:
        tx.append("out", b"c", partition=0)
    for start in range(4):
        found = log.read("out", 0, start=start, end=4, isolation_level="read_committed")
        assert [record.value for record in found] == [b"c"]


def test_a_producer_as_kafkas_clients_have_it(logs: Callable[[], Log]) -> None:
    with logs().producer(transactional_id="tx") as producer:
        for number in range(4):
            producer.begin_transaction()
            for part in range(5):
                producer.send("out", b"%d.%d" % (number, part))
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert committed(logs()) == [b"%d.%d" % (number, part) for number in (0, 2) for part in range(5)]


def test_offsets_count_with_the_records(logs: Callable[[], Log]) -> None:
    log = logs()
    log.append_many("in", [b"%d" % number for number in range(10)])
    with log.consumer("in", group="g", auto_commit=False) as consumer:
        done = 0
        while done < 10:
            records = consumer.poll(60_000, max_records=3)
            with log.transaction("tx") as tx:
                for record in records:
                    tx.append("out", record.value)
                tx.commit_offsets(consumer)
            done += len(records)
    assert committed(log) == sorted(b"%d" % number for number in range(10))
    with log.consumer("in", group="g", auto_commit=False, stop_at_end=True) as consumer:
        assert not list(consumer)


def test_another_producer_fences(logs: Callable[[], Log]) -> None:
    first, second = logs(), logs()
    with pytest.raises(ProducerFenced), first.transaction("tx") as tx:
        tx.append("out", b"old")
        with second.transaction("tx") as other:
            other.append("out", b"new")
        tx.append("out", b"too late")
    assert committed(second) == [b"new"]


def test_what_takes_too_long_is_aborted(logs: Callable[[], Log]) -> None:
    log = logs()
    with pytest.raises(TransactionAborted), log.transaction("tx", timeout_ms=100) as tx:
        tx.append("out", b"late")
        while log.backend.transactions.describe("tx").partitions:
            pass
        tx.append("out", b"later")
    with log.transaction("tx") as tx:
        tx.append("out", b"in time")
    assert committed(log) == [b"in time"]


def test_administration(logs: Callable[[], Log]) -> None:
    log = logs()
    coordinator = log.backend.transactions
    with pytest.raises(ProducerFenced), log.transaction("tx") as tx:
        tx.append("out", b"v", partition=1)
        assert coordinator.transactional_ids() == ["tx"]
        assert set(log.backend.stored_transactions()) == {"tx"}
        found = coordinator.describe("tx")
        assert (found.state.name, found.partitions) == ("ONGOING", {TopicPartition("out", 1)})
        coordinator.abort("tx")
        tx.append("out", b"v")
    assert committed(log) == []
    with pytest.raises(embedlog.errors.TransactionNotFound):
        coordinator.describe("unknown")


def test_what_cannot_be(logs: Callable[[], Log]) -> None:
    log = logs()
    with pytest.raises(TopicNotFound), log.transaction("tx") as tx:
        tx.append("missing", b"v")
    with (
        pytest.raises(UnsupportedByBackend, match="flush_messages=1"),
        log.transaction("tx", flush=True) as tx,
    ):
        tx.append("out", b"v")
    batch = encode_batch([(None, b"v", (), 1)], producer_id=9, producer_epoch=0, transactional=True)
    with pytest.raises(UnsupportedByBackend, match="expected_offset"):
        log.backend.append("out", 0, batch, expected_offset=0)
    with pytest.raises(InvalidTxnState, match="no transactional id"):
        log.backend.append("out", 0, batch)
    assert committed(log) == []


def test_threads_with_ids_of_their_own(logs: Callable[[], Log]) -> None:
    log = logs()

    def work(name: str) -> None:
        for number in range(20):
            with log.transaction(name) as tx:
                tx.append("out", f"{name} {number}".encode())

    threads = [threading.Thread(target=work, args=(f"tx-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(committed(log)) == 60


OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log:
    log.create_topic("out", partitions=3)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_transaction_goes_on_with_the_next_owner(tmp_path: Path, program: Callable[..., Program]) -> None:
    owner = program(OWNER, tmp_path / "log")
    assert owner.line() == "ready"
    with embedlog.open(tmp_path / "log", shared=True) as log:
        assert isinstance(log.backend, SharedBackend)
        with log.transaction("tx") as tx:
            tx.append("out", b"before", partition=0)
            owner.kill()
            tx.append("out", b"after", partition=1)
        assert log.backend.owned is not None
        with log.transaction("tx") as tx:
            tx.append("out", b"next", partition=0)
        assert committed(log) == [b"after", b"before", b"next"]


def test_poll_does_not_wait_for_offsets_that_a_transaction_may_change(logs: Callable[[], Log]) -> None:
    """It returns in time, and goes on with the other partitions; of a broker's clients, too."""
    log, other = logs(), logs()
    log.append("in", b"1")
    with log.consumer("in", group="g", auto_commit=False) as first:
        assert [record.value for record in first.poll(60_000)] == [b"1"]
        with log.transaction("tx-1") as tx:
            tx.append("out", b"1", partition=0)
            tx.commit_offsets(first)
            with other.consumer(group="g", auto_commit=False) as second:
                second.assign([TopicPartition("in", 0), TopicPartition("out", 1)])
                log.append("out", b"elsewhere", partition=1)
                assert [record.value for record in second.poll(60_000)] == [b"elsewhere"]
                assert second.poll(100) == []
                assert second.held_back() == {TopicPartition("in", 0): ["tx-1"]}
                with pytest.raises(UnstableOffsetCommit, match="in 0"):
                    second.position(TopicPartition("in", 0))
    with other.consumer(group="g", auto_commit=False) as second:
        second.assign([TopicPartition("in", 0)])
        assert second.position(TopicPartition("in", 0)) == 1
        assert second.held_back() == {}
