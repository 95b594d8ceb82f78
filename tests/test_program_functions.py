"""Functions of the program that embedlog calls: what they may do with the log, and with what calls them.

To runtime/locks.py such a function looks like a signal handler: `calls_out` marks what calls one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.aio
from embedlog import Log, TopicPartition
from embedlog.clients.assignors import RangeAssignor
from embedlog.errors import Closed, InvalidArgument
from embedlog.runtime import closing
from embedlog.store.verify import verify_log


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    with embedlog.open(path) as log:
        for topic in ("t", "other"):
            log.create_topic(topic, partitions=3)
        yield log


@pytest.fixture
def use(log: Log) -> Any:
    """What a function of a program may do with its log. Other threads wait for what it holds meanwhile."""
    used = []
    numbers = itertools.count()

    def use_log(*arguments: object) -> None:
        log.append("other", b"from the function", flush=True)
        with log.producer() as producer:
            producer.send("other", b"sent").result()
        with log.consumer("other", group=f"g{next(numbers)}") as consumer:
            assert consumer.poll(60_000)
        with log.transaction(f"of thread {threading.get_ident()}") as transaction:
            transaction.append("other", b"in a transaction")
        log.create_topic(f"made{next(numbers)}")
        used.append(arguments)

    use_log.used = used  # type: ignore[attr-defined]
    return use_log


def values(log: Log, topic: str) -> list[bytes | None]:
    return sorted(record.value or b"" for record in log.read(topic))  # type: ignore[return-value]


def test_records_may_come_from_a_generator_that_appends(log: Log, use: Any) -> None:
    def records() -> Iterator[bytes]:
        for number in range(3):
            use()
            log.append("t", b"durable", flush=True, partition=0)
            yield b"%d" % number

    log.append_many("t", records(), partition=0)
    assert len(values(log, "t")) == 6


def test_records_of_a_transaction_may_come_from_one_that_appends_to_it(log: Log) -> None:
    with log.transaction("tx") as transaction:

        def records() -> Iterator[bytes]:
            for number in range(3):
                transaction.append("other", b"%d" % number)
                yield b"%d" % number

        transaction.append_many("t", records())
    assert values(log, "t") == values(log, "other") == [b"0", b"1", b"2"]


def test_a_partitioner(log: Log, use: Any) -> None:
    def first(topic: str, *_: object) -> int:
        if topic == "t":
            use()
            producer.send("other", b"by the same producer").result()
        return 0

    with log.producer(partitioner=first) as producer:
        producer.send("t", b"v").result()
    assert len(list(log.read("t", 0))) == len(use.used) == 1


def test_a_serializer(log: Log, use: Any) -> None:
    class Using:
        def dumps(self, value: int) -> bytes:
            use()
            return b"%d" % value

        def loads(self, data: bytes) -> int:
            use()
            return int(data)

    topic = log.topic("t", serializer=Using())
    topic.append(1)
    topic.append_many([2, 3])
    with topic.consumer("g") as consumer:
        assert next(iter(consumer)).value in (1, 2, 3)
    assert len(use.used) > 3


def test_an_assignor_and_rebalance_callbacks(log: Log, use: Any) -> None:
    class Using(RangeAssignor):
        name = "using"

        def assign(self, *arguments: Any, **named: Any) -> Any:
            use()
            return super().assign(*arguments, **named)

    def revoked(partitions: tuple[TopicPartition, ...]) -> None:
        use()
        consumer.commit()

    log.append_many("t", [b"v"] * 9)
    with log.consumer("t", group="g", assignors=[Using()], on_assigned=use, on_revoked=revoked) as consumer:
        assert consumer.poll(60_000)
    assert len(use.used) == 3


def test_handlers_of_jobs(log: Log, use: Any) -> None:
    done = threading.Event()

    @embedlog.worker("t")
    def work(job: Any) -> None:
        use()
        log.queue("other").send(b"next")

    @embedlog.worker("t", group="coroutines")
    async def work_too(job: Any) -> None:
        await asyncio.create_task(in_a_task())
        done.set()

    async def in_a_task() -> None:
        use()
        log.queue("other").send(b"next")

    log.queue("t").send(b"job")
    with log.run_workers(work, work_too, background=True):
        assert done.wait(60)
    assert len(use.used) == 2


def test_what_follows_a_send(log: Log, use: Any) -> None:
    with log.producer(callback=lambda *_: use()) as producer:
        future = producer.send("t", b"v")
        future.add_done_callback(use)
        producer.flush()
    assert len(use.used) == 2


# -- closing in one ------------------------------------------------------------------------------------------


@pytest.fixture
def taken_for_handlers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What closes in another thread."""
    closes: list[str] = []
    real = closing.out_of_the_way

    def out_of_the_way(work: Callable[[], None]) -> None:
        closes.append(repr(work))
        real(work)

    monkeypatch.setattr(closing, "out_of_the_way", out_of_the_way)
    return closes


@pytest.mark.parametrize("close", ["the producer", "the log"])
@pytest.mark.parametrize("call", ["callback", "done callback"])
def test_a_producers_callback_closes_in_its_thread(
    path: Path, taken_for_handlers: list[str], call: str, close: str
) -> None:
    called = []

    def callback(*_: object) -> None:
        called.append(threading.get_ident())
        (log if close == "the log" else producer).close()

    with embedlog.open(path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=60_000, callback=callback if call == "callback" else None) as producer:
            future = producer.send("t", b"v")
            if call != "callback":
                future.add_done_callback(callback)
            producer.flush()
        assert called and called[0] != threading.get_ident()
    assert taken_for_handlers == []
    assert verify_log(path).ok


@pytest.mark.parametrize("close", ["the consumer", "the log"])
@pytest.mark.parametrize("call", ["on_assigned", "on_revoked", "on_decode_error"])
def test_a_consumers_callback_closes_in_its_thread(
    path: Path, taken_for_handlers: list[str], call: str, close: str
) -> None:
    called = []

    def callback(*_: object) -> None:
        if not called:
            called.append(call)
            (log if close == "the log" else consumer).close()

    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"no number")
        if call == "on_decode_error":
            consumer = log.topic("t", int, on_decode_error=callback).consumer("g")
        else:
            consumer = log.consumer("t", group="g", **{call: callback})
        with contextlib.suppress(Closed):
            consumer.poll(60_000)
        consumer.close()
    assert called
    assert taken_for_handlers == []
    assert verify_log(path).ok


@pytest.mark.parametrize("close", ["the workers", "the queue", "the log"])
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_jobs_handler_closes_in_its_thread(
    path: Path, taken_for_handlers: list[str], kind: str, close: str
) -> None:
    closed = threading.Event()
    refused = []

    def work(job: Any) -> None:
        {"the workers": workers, "the queue": queue, "the log": log}[close].close()
        try:
            workers.wait()
        except InvalidArgument as error:
            refused.append(error)
        closed.set()

    async def work_too(job: Any) -> None:
        work(job)

    with embedlog.open(path) as log, log.queue("jobs", group="other") as queue:
        queue.send(b"j")
        ready = embedlog.worker("jobs")(work if kind == "function" else work_too)
        workers = log.run_workers(ready, background=True)
        closed.wait()
        workers.close()
    assert len(refused) == 1
    assert taken_for_handlers == []
    assert verify_log(path).ok


def test_a_callback_in_an_event_loop_closes_in_its_thread(path: Path, taken_for_handlers: list[str]) -> None:
    called = []

    def callback(*_: object) -> None:
        called.append(log.close())

    async def poll() -> None:
        async with embedlog.aio.open(path.parent / "other") as other:
            await other.create_topic("t")
            await other.append("t", b"v")
            async with other.consumer("t", group="g", on_assigned=callback) as consumer:
                await consumer.poll(60_000)

    with embedlog.open(path) as log:
        asyncio.run(poll())
    assert called
    assert taken_for_handlers == []


def test_a_mirrors_callback_closes(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"v")
    mirror = embedlog.Mirror(path, path.parent / "copy")
    mirror.run(on_status=lambda status: mirror.close())
    mirror.close()
