"""Ctrl-C anywhere: acknowledged records stay, an interrupted operation happened whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import zstandard  # noqa: F401 - a Ctrl-C within its import, at the first append, leaves an unclosed file
from ctrl_c import strike
from faults import UnsyncedFileSystem, crash, open_log, partition_of
from rounds import first_is_quick

import embedlog
from embedlog import Job, Log, Producer, RecordMetadata
from embedlog.codec import loops
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.runtime.background_failures import BackgroundFailures
from embedlog.runtime.scheduler import Scheduler
from embedlog.runtime.uninterruptible import uninterruptible
from embedlog.store.verify import verify_log


class Told:
    """The records given to a log, and those it acknowledged."""

    def __init__(self) -> None:
        self.given: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}

    def value(self, size: int = 20) -> bytes:
        value = (b"%d " % len(self.given)).ljust(size, b".")
        self.given.add(value)
        return value

    def append(self, log: Log, size: int = 20, **options: Any) -> None:
        value = self.value(size)
        self.acknowledged[log.append("t", value, **options).offset] = value

    def append_many(self, log: Log, count: int, **options: str) -> None:
        values = [self.value() for _ in range(count)]
        for value, where in zip(values, log.append_many("t", values, **options), strict=True):
            self.acknowledged[where.offset] = value

    def check(self, log: Log) -> None:
        """The log holds what it acknowledged, and nothing that it was not given, nor anything twice."""
        found = {record.offset: record.value for record in log.read("t")}
        assert list(found) == list(range(len(found)))
        assert self.acknowledged.items() <= found.items()
        assert set(found.values()) <= self.given
        assert len(set(found.values())) == len(found)
        for offset, value in found.items():  # by the index
            assert next(log.read("t", 0, start=offset, max_bytes=64)).value == value


APPENDS: dict[str, Callable[[Told, Log], None]] = {
    "one": lambda told, log: told.append(log),
    "one with headers": lambda told, log: told.append(log, headers={"h": b"v"}),
    "many": lambda told, log: told.append_many(log, 7, compression="zstd"),
    "durable": lambda told, log: told.append(log, flush=True),
    "rolling": lambda told, log: told.append(log, 1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("then", ["goes on", "opens it again", "dies"])
@pytest.mark.parametrize("kind", APPENDS)
def test_an_interrupted_append_happened_whole_or_not_at_all(path: Path, kind: str, then: str) -> None:
    fs, told = UnsyncedFileSystem(), Told()
    settings = {"segment_bytes": 1024 if kind == "rolling" else 1 << 20, "index_interval_bytes": 1}
    log = open_log(path, fs, **settings)
    log.create_topic("t")
    told.append(log)
    for point in itertools.count():
        told.append(log, 30 * (point % 7))
        if not strike(point, lambda log=log: APPENDS[kind](told, log)):
            break
        if then != "goes on" and point % 4 == 0:
            log.close() if then == "opens it again" else crash(log)
            log = open_log(path, fs, **settings)
            assert not log.recovery.damage
        told.append(log)
    few = kind.startswith("one") and loops.IMPLEMENTATION == "compiled"
    assert point > (3 if few else 20), "compiled, the fast path has few such points"
    told.check(log)
    log.close()
    assert verify_log(path).ok
    with open_log(path, fs) as log:
        assert log.recovery.clean
        told.check(log)


def test_an_append_that_cannot_be_undone_is_looked_up_by_the_next_one(path: Path) -> None:
    """A second Ctrl-C, while the append that the first one stopped is undone."""

    class Interrupting(UnsyncedFileSystem):
        armed = False

        def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
            super().pwrite_all(fd, data, pos)
            if self.armed:
                raise KeyboardInterrupt

        def truncate(self, fd: int, size: int) -> None:
            if self.armed:
                raise KeyboardInterrupt
            super().truncate(fd, size)

    fs, told = Interrupting(), Told()
    log = open_log(path, fs)
    log.create_topic("t")
    told.append(log)
    fs.armed = True
    with pytest.raises(KeyboardInterrupt):
        told.append(log, 100)
    fs.armed = False
    assert not partition_of(log).roll(), "nothing is sealed that may be torn"
    told.append(log)
    told.check(log)
    log.close()
    assert verify_log(path).ok


# -- topics -------------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Log], object]] = {
    "create": lambda log: log.create_topic("new", partitions=2),
    "delete": lambda log: log.delete_topic("old"),
    "create partitions": lambda log: log.create_partitions("old", 3),
    "alter": lambda log: log.alter_topic("old", retention_ms=1),
}


@pytest.mark.parametrize("kind", first_is_quick(CHANGES))
def test_an_interrupted_topic_change_happened_whole_or_not_at_all(path: Path, kind: str) -> None:
    fs = UnsyncedFileSystem()
    log = open_log(path, fs)
    log.create_topic("kept")
    for point in itertools.count():
        log.create_topic("old", partitions=2, exist_ok=True)
        log.append("old", b"x", partition=1)
        log.backend.coordinator.commit_offsets("g", {TopicPartition("old", 1): CommittedOffset(1)})
        struck = strike(point, lambda: CHANGES[kind](log))
        log.create_topic("new", partitions=2, exist_ok=True)
        assert log.append("new", b"%d" % point, partition=1).offset == 0
        with contextlib.suppress(embedlog.TopicNotFound):
            log.delete_topic("old")
        log.create_topic("old", partitions=2)
        assert log.append("old", b"first", partition=1).offset == 0
        assert log.backend.coordinator.committed_offsets("g") == {}, (
            "what was committed belongs to a topic that is gone"
        )
        assert log.append("kept", b"%d" % point).offset == point
        with embedlog.open(path, mode="r") as reader:
            assert reader.topics() == log.topics()
            assert [record.value for record in reader.read("new")] == [b"%d" % point]
            assert [record.value for record in reader.read("kept")][-1] == b"%d" % point
        log.delete_topic("new")
        log.delete_topic("old")
        if not struck:
            break
    log.close()
    assert verify_log(path).ok
    with open_log(path, fs) as log:
        assert log.recovery.clean
        assert log.topics() == ["kept"]


# -- those who wait, and those who wake them ---------------------------------------------------------------


def comes_back(work: Callable[[], Any]) -> bool:
    """Does another thread get through this, or does it wait for ever?"""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_background_tasks_run_although_ctrl_c_interrupts_their_waker() -> None:
    ran = threading.Semaphore(0)
    housekeeping = Scheduler("test", BackgroundFailures())
    housekeeping.add("task", lambda: ran.release())
    housekeeping.start()
    assert ran.acquire(timeout=30)
    for point in itertools.count():
        struck = strike(point, lambda: housekeeping.wake("task"))
        assert comes_back(lambda: housekeeping.wake("task"))
        assert ran.acquire(timeout=30)
        if not struck:
            break
    assert comes_back(housekeeping.stop)


def test_uninterruptible_work_is_completed() -> None:
    done: list[int] = []
    for point in itertools.count():
        ended = threading.Event()

        def work(point: int = point, ended: threading.Event = ended) -> int:
            done.append(point)
            ended.set()
            return point

        struck = strike(point, lambda work=work: uninterruptible(work))
        assert uninterruptible(lambda: "next") == "next"
        if not struck:
            break
    assert done == sorted(set(done)), "once, or not at all, and in order"
    assert point in done
    with pytest.raises(ZeroDivisionError):
        uninterruptible(lambda: 1 / 0)


# -- the producer -----------------------------------------------------------------------------------------


class Sends:
    """A producer, and what it was given."""

    def __init__(self, log: Log, **options: Any) -> None:
        self.producer = log.producer(**options)
        self.sent: list[tuple[bytes, Future[RecordMetadata]]] = []
        self._given = 0

    def send(self, size: int = 50) -> Future[RecordMetadata]:
        value = (b"%d " % self._given).ljust(size, b".")
        self._given += 1
        future = self.producer.send("t", value)
        self.sent.append((value, future))
        return future

    def flushed(self) -> None:
        self.send()
        self.producer.flush()

    def waited_for(self) -> None:
        self.send()
        self.producer.flush()
        self.sent[-1][1].result()


SENDS: dict[str, tuple[Callable[[Sends], Any], dict[str, int]]] = {
    "send": (lambda sends: [sends.send(), sends.send()], {"linger_ms": 0}),
    "send into a full batch": (lambda sends: [sends.send() for _ in range(3)], {"batch_bytes": 150}),
    "send into a full buffer": (lambda sends: [sends.send() for _ in range(3)], {"buffer_bytes": 800}),
    "flush": (Sends.flushed, {"linger_ms": 60_000}),
    "result": (Sends.waited_for, {"linger_ms": 0}),
}


@pytest.mark.parametrize("kind", SENDS)
def test_a_producer_goes_on_after_ctrl_c(log: Log, kind: str) -> None:
    work, options = SENDS[kind]
    log.create_topic("t")
    sends = Sends(log, **options)
    for point in itertools.count():
        struck = strike(point, lambda: work(sends))
        assert comes_back(sends.flushed)
        assert all(future.done() for _, future in sends.sent)
        if not struck:
            break
    assert comes_back(sends.producer.close)
    found = [record.value for record in log.read("t")]
    assert len(set(found)) == len(found), "nothing is sent twice"
    assert [found[future.result().offset] for _, future in sends.sent] == [value for value, _ in sends.sent]


def test_a_second_close_completes_an_interrupted_one(path: Path) -> None:
    with open_log(path, UnsyncedFileSystem()) as log:
        log.create_topic("t")
        for point in itertools.count():
            sends = Sends(log, linger_ms=60_000)
            sends.send()
            struck = strike(point, sends.producer.close)
            assert comes_back(sends.producer.close)
            assert sends.sent[0][1].result(0).offset == point, "it waits for what is still being sent"
            if not struck:
                break


def test_a_send_that_waits_for_a_future_does_not_hold_up_the_sender(log: Log) -> None:
    """A second thread's records, while Ctrl-C strikes the one that waits for a result."""
    log.create_topic("t")
    with Producer(log.backend, linger_ms=60_000) as producer:
        for point in itertools.count():
            future = producer.send("t", b"%d" % point)

            def wait(future: Future[RecordMetadata] = future) -> None:
                with contextlib.suppress(TimeoutError):
                    future.result(0.001)

            struck = strike(point, wait)
            assert comes_back(producer.flush)
            assert future.result(0).offset == point
            if not struck:
                break


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True])
def test_an_interrupted_take_leaves_the_queue_and_its_jobs(path: Path, ahead: bool) -> None:
    """No thread waits for ever for what the interrupted one asked for; its jobs come at once, uncounted."""
    with embedlog.open(path) as log, log.queue("jobs", lock_ms=3_600_000) as queue:
        for number in itertools.count():
            sent = [b"%d %d" % (number, each) for each in range(4 if ahead else 1)]
            log.append_many("jobs", sent)
            if ahead:
                first = queue.take(timeout_ms=math.inf)
                assert first.value == sent.pop(0)
                first.accept()
            taken: list[Job[bytes, bytes]] = []
            struck = strike(number, lambda into=taken: into.extend([queue.take()]))
            for job in taken:
                job.release(counted=False)
            again = set()
            for _ in sent:
                job = queue.take(timeout_ms=math.inf)
                assert job.deliveries == 1
                again.add(job.value)
                job.accept()
            assert again == set(sent)
            if not struck:
                break
    assert number > (10 if ahead else 250)


def test_a_sleeper_is_interrupted_although_polars_restarts_system_calls() -> None:
    pytest.importorskip("polars")
    code = "import polars, embedlog.runtime.wakeups as w; print('ready', flush=True); w.Wakeup().sleep()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        for _ in range(50):
            if program.poll() is None:  # it may not sleep yet
                program.send_signal(signal.SIGINT)
                time.sleep(0.2)
        program.kill()
        assert program.returncode == -signal.SIGINT
