"""Cases of the matrix: `Queue`, `Job`, and workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import embedlog
from embedlog import LockLost, QueueEmpty

from .cases import Desk, case, raising, soon

WITHIN_MS = 30_000


@contextmanager
def queue(desk: Desk, *values: bytes, **options: Any) -> Iterator[Any]:
    """A queue with jobs; its group is the case's own."""
    with desk.log.queue(desk.name, group=desk.name, **options) as opened:
        for value in values:
            opened.send(value)
        yield opened


@contextmanager
def job(desk: Desk, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A queue, and the one job in it, which is taken."""
    with queue(desk, b"v", **options) as opened:
        yield opened, opened.take(WITHIN_MS)


def is_empty(opened: Any) -> bool:
    return opened.take(default=None) is None


# -- Log's -----------------------------------------------------------------------------------------------


@case("Log", "queue")
def _(desk: Desk) -> None:
    with queue(desk, b"a", b"b") as opened:
        for value in (b"a", b"b"):
            with opened.take(WITHIN_MS) as taken:
                assert taken.value == value
        assert is_empty(opened)


@case("Log", "queue(ordered_by_key=True)")
def _(desk: Desk) -> None:
    with queue(desk, ordered_by_key=True) as opened:
        for value in (b"first", b"second"):
            opened.send(value, key=b"k")
        first = opened.take(WITHIN_MS)
        assert is_empty(opened)
        first.accept()
        assert opened.take(WITHIN_MS).value == b"second"


@case("Log", "queue(flush=True)")
def _(desk: Desk) -> None:
    with queue(desk, flush=True) as opened:
        assert opened.send(b"v").durable
        opened.take(WITHIN_MS).accept()


@case("Log", "queue(lock_ms=...)")
def _(desk: Desk) -> None:
    """The lock of a job in hand is renewed."""
    with job(desk, lock_ms=1_000) as (_, taken):
        time.sleep(1.5)
        taken.accept()


@case("Log", "queue(dead_letter_topic=...)")
def _(desk: Desk) -> None:
    with job(desk, dead_letter_topic="{topic}.dead") as (_, taken):
        taken.reject("no such address")
        soon(lambda: f"{desk.name}.dead" in desk.log.topics(), True)
        soon(lambda: [record.value for record in desk.log.read(f"{desk.name}.dead")], [b"v"])


@case("Log", "run_workers")
def _(desk: Desk) -> None:
    handled = threading.Event()

    @embedlog.worker(desk.name)
    def handle(taken: Any) -> None:
        assert taken.value == b"v"
        handled.set()

    with desk.log.run_workers(handle, background=True):
        desk.log.append(desk.name, b"v")
        assert handled.wait(60)


@case("Topic", "queue")
def _(desk: Desk) -> None:
    with desk.log.topic(desk.name, dict).queue() as opened:
        opened.send({"a": 1})
        assert opened.take(WITHIN_MS).value == {"a": 1}


# -- Queue -----------------------------------------------------------------------------------------------


@case("Queue", "send")
def _(desk: Desk) -> None:
    with queue(desk) as opened:
        assert opened.send(b"v", key=b"k", headers={"h": b"1"}).offset == 0


@case("Queue", "send(delay_ms=...)")
def _(desk: Desk) -> None:
    with queue(desk) as opened:
        began = time.monotonic()
        opened.send(b"v", delay_ms=300)
        assert opened.take(WITHIN_MS).value == b"v"
        assert time.monotonic() - began >= 0.29  # the wall clock is read in milliseconds


@case("Queue", "send(at=...)")
def _(desk: Desk) -> None:
    with queue(desk) as opened:
        opened.send(b"later", at=datetime.now(UTC) + timedelta(hours=1))
        opened.send(b"now", at=datetime.now(UTC))
        assert opened.take(WITHIN_MS).value == b"now"
        assert is_empty(opened)


@case("Queue", "take")
def _(desk: Desk) -> None:
    with queue(desk) as opened:
        with raising(QueueEmpty):
            opened.take(10)
        assert opened.take(10, default=None) is None
        opened.send(b"v")
        assert opened.take(WITHIN_MS).value == b"v"


@case("Queue", "run")
def _(desk: Desk) -> None:
    with queue(desk, b"v") as opened:
        values = []

        def handle(taken: Any) -> None:
            values.append(taken.value)
            opened._inner.stop() if desk.for_tasks else opened.stop()

        opened.run(desk.handler(handle))
        assert values == [b"v"]


@case("Queue", "stop")
def _(desk: Desk) -> None:
    with job(desk) as (opened, taken):
        opened.stop()
        assert list(opened) == []
        taken.accept()


def counted(deliveries: int) -> str | None:
    """Of a job that was given back: the difference if that delivery counts."""
    assert deliveries in (1, 2)
    return None if deliveries == 1 else "the delivery counts, as each does in a share group"


@case("Queue", "close")
def _(desk: Desk) -> str | None:
    """What is in hand is delivered again, and does not count."""
    with job(desk) as (opened, taken):
        opened.close()
        with raising(LockLost):
            taken.accept()
    with queue(desk) as again:
        return counted(again.take(WITHIN_MS).deliveries)


@case("Queue", "closed")
def _(desk: Desk) -> None:
    with queue(desk, b"v") as opened:
        opened.take(WITHIN_MS).accept()
        assert not opened.closed
        opened.close()
        assert opened.closed


# -- Job -------------------------------------------------------------------------------------------------


@case("Job", "with job")
def _(desk: Desk) -> None:
    """The end of the block accepts it; an exception releases it."""
    with queue(desk, b"v", backoff_ms=1) as opened:
        with raising(ValueError), opened.take(WITHIN_MS):
            raise ValueError
        with opened.take(WITHIN_MS) as taken:
            assert taken.deliveries == 2
        assert is_empty(opened)


@case("Job", "accept")
def _(desk: Desk) -> None:
    with job(desk) as (opened, taken):
        taken.accept()
        assert is_empty(opened)
        with raising(LockLost):
            taken.accept()


@case("Job", "release")
def _(desk: Desk) -> None:
    with job(desk) as (opened, taken):
        taken.release()
        assert opened.take(WITHIN_MS).deliveries == 2


@case("Job", "release(delay_ms=...)")
def _(desk: Desk) -> None:
    with job(desk) as (opened, taken):
        began = time.monotonic()
        taken.release(300)
        assert opened.take(WITHIN_MS).deliveries == 2
        assert time.monotonic() - began >= 0.29  # the wall clock is read in milliseconds


@case("Job", "release(counted=False)")
def _(desk: Desk) -> str | None:
    with job(desk) as (opened, taken):
        taken.release(counted=False)
        return counted(opened.take(WITHIN_MS).deliveries)


@case("Job", "release, after the last delivery")
def _(desk: Desk) -> None:
    with job(desk, max_deliveries=2) as (opened, taken):
        taken.release()
        opened.take(WITHIN_MS).release()
        soon(lambda: f"dlq.{desk.name}" in desk.log.topics(), True)
        soon(lambda: [record.value for record in desk.log.read(f"dlq.{desk.name}")], [b"v"])
        assert is_empty(opened)


@case("Job", "reject")
def _(desk: Desk) -> None:
    with job(desk) as (opened, taken):
        taken.reject("no such address")
        soon(lambda: f"dlq.{desk.name}" in desk.log.topics(), True)
        soon(lambda: [record.value for record in desk.log.read(f"dlq.{desk.name}")], [b"v"])
        assert is_empty(opened)


@case("Job", "renew")
def _(desk: Desk) -> None:
    with job(desk) as (_, taken):
        taken.renew()
        taken.accept()
        with raising(LockLost):
            taken.renew()


@case("Job", "deliveries")
def _(desk: Desk) -> None:
    with job(desk) as (_, taken):
        assert taken.deliveries == 1


def _field(name: str, wanted: object) -> None:
    @case("Job", name)
    def _(desk: Desk) -> None:
        with queue(desk) as opened:
            opened.send(b"v", key=b"k", headers={"h": b"1"})
            taken = opened.take(WITHIN_MS)
            assert getattr(taken, name) == (desk.name if name == "topic" else wanted)


for _name, _wanted in (
    ("topic", None),
    ("partition", 0),
    ("offset", 0),
    ("key", b"k"),
    ("value", b"v"),
    ("headers", (("h", b"1"),)),
):
    _field(_name, _wanted)


@case("Job", "timestamp_ms")
def _(desk: Desk) -> None:
    with job(desk) as (_, taken):
        assert abs(taken.timestamp_ms - time.time() * 1_000) < 60_000


@case("Job", "record")
def _(desk: Desk) -> None:
    with job(desk) as (_, taken):
        assert (taken.record.value, taken.record.offset) == (b"v", 0)


# -- Workers ---------------------------------------------------------------------------------------------


@contextmanager
def worker(desk: Desk) -> Iterator[tuple[Any, threading.Event, threading.Event]]:
    """Workers with one job in hand, which ends when the second event is set."""
    taken, may_end = threading.Event(), threading.Event()

    @embedlog.worker(desk.name)
    def handle(_: Any) -> None:
        taken.set()
        assert may_end.wait(60)

    workers = desk.log.run_workers(handle, background=True)
    try:
        desk.log.append(desk.name, b"v")
        assert taken.wait(60)
        yield workers, taken, may_end
    finally:
        may_end.set()
        workers.close()


@case("Workers", "stop")
def _(desk: Desk) -> None:
    with worker(desk) as (workers, _, may_end):
        workers.stop()
        may_end.set()
        workers.wait()


@case("Workers", "wait")
def _(desk: Desk) -> None:
    """For the job in hand, which is accepted then."""
    with worker(desk) as (workers, _, may_end):
        workers.stop()
        threading.Timer(0.1, may_end.set).start()
        workers.wait()
        assert may_end.is_set()
    with desk.log.queue(desk.name) as opened:
        assert is_empty(opened)


@case("Workers", "close")
def _(desk: Desk) -> None:
    with worker(desk) as (workers, _, may_end):
        threading.Timer(0.1, may_end.set).start()
        workers.close()
        assert may_end.is_set()


@case("Workers", "release")
def _(desk: Desk) -> str | None:
    """The job in hand is delivered again, and does not count."""
    with worker(desk) as (workers, _, _):
        workers.release()
        with desk.log.queue(desk.name) as opened:
            return counted(opened.take(WITHIN_MS).deliveries)


@case("embedlog", "worker")
def _(desk: Desk) -> None:
    with worker(desk) as (_, taken, _):
        assert taken.is_set()
