"""`embedlog.aio` under attack: cancelled tasks, full buffers, failing disks, callbacks, the end of the loop.

Each test runs on asyncio's own event loop and, where it is installed, on uvloop. That tasks get what threads
get is tested in tests/remote/test_remote_contract.py.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import inspect
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from faults import BlockingSync, FaultyFileSystem
from rounds import first_is_quick

import embedlog
import embedlog.aio
from embedlog import (
    BufferExhausted,
    Closed,
    CorruptRecord,
    FlushFailed,
    InvalidType,
    Record,
    RecordTooLarge,
    StorageError,
    TopicNotFound,
    TopicPartition,
)
from embedlog.clients.partitioner import partition_for_key
from embedlog.cluster import Broker
from embedlog.codec import LOOPS_IMPLEMENTATION
from embedlog.errors import ConcurrentUse

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """`asyncio.run` on one of the loops."""
    if request.param == "asyncio":
        return asyncio.run
    uvloop = pytest.importorskip("uvloop")

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)

    return run


@pytest.fixture(params=["compiled", "plain"] if LOOPS_IMPLEMENTATION == "compiled" else ["plain"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`async for` by either implementation."""
    module = importlib.import_module(f"embedlog.fast_append.{request.param}_iteration")
    monkeypatch.setattr("embedlog.aio.consumer.Iteration", module.Iteration)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def all_values(log: embedlog.aio.Log, topic: str = "t") -> list[bytes | None]:
    return [value async for value in log.read_values(topic)]


async def cancel_some(tasks: list[asyncio.Task[Any]], dice: random.Random) -> None:
    """Cancel them at random moments, until all have ended."""
    while pending := [task for task in tasks if not task.done()]:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(dice.choice((0, 0, 0.001)))
        dice.choice(pending).cancel()
    await asyncio.wait(tasks)


# -- cancellation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("over", ["directory", "wire"])
def test_a_cancelled_append_is_made_whole_or_not_at_all(
    run: Run, seed: int, over: str, tmp_path: Path
) -> None:
    async def main(path: str) -> None:
        dice = random.Random(seed)
        async with embedlog.aio.open(path) as log:
            await log.create_topic("t", partitions=2)
            async with log.producer() as producer:
                acknowledged: list[bytes] = []

                async def write(name: int, kind: str) -> None:
                    for number in range(30):
                        value = b"%d %d" % (name, number)
                        if kind == "send":
                            await (await producer.send("t", value, key=b"%d" % name))
                        else:
                            await log.append("t", value, key=b"%d" % name, flush=kind == "flush")
                        acknowledged.append(value)

                kinds = ("send", "append", "flush" if over == "directory" else "append")
                writers = [asyncio.create_task(write(name, kinds[name % 3])) for name in range(30)]
                await cancel_some(writers, dice)
            found = await all_values(log)
        assert max(Counter(found).values()) == 1
        assert set(acknowledged) <= set(found)
        for name in range(30):  # in order, without a gap, at most one beyond what was acknowledged
            mine = [int(value.split()[1]) for value in found if value and value.split()[0] == b"%d" % name]
            assert mine == list(range(len(mine)))
            assert len(mine) - sum(value.split()[0] == b"%d" % name for value in acknowledged) in (0, 1)

    if over == "directory":
        run(main(str(tmp_path)))
    else:
        with Broker() as broker:
            run(main(f"kafka://{broker.bootstrap_servers}"))


def test_an_append_cancelled_before_it_began_is_not_made(run: Run, tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t")

            def append(value: bytes, **options: Any) -> asyncio.Task[embedlog.RecordMetadata]:
                return asyncio.create_task(log.append("t", value, flush=True, **options))

            fs.blocking = True
            appends = [append(b"0")]
            await until(lambda: fs.syncs == 1)
            appends += [append(b"%d" % number) for number in range(1, 5)]  # they wait for the first one
            await asyncio.sleep(0)
            appends[1].cancel()
            appends[3].cancel()
            fs.blocking = False
            fs.go.release()
            await asyncio.wait(appends)
            alone = append(b"alone")
            await asyncio.sleep(0)
            alone.cancel()
            await asyncio.wait([alone])

            threads_may_end = threading.Event()
            calls = [log.threads.start(threads_may_end.wait) for _ in range(100)]  # more than threads
            expecting = append(b"expecting", expected_offset=3)
            await asyncio.sleep(0)
            expecting.cancel()
            threads_may_end.set()
            await asyncio.wait([expecting, *calls])
            assert await all_values(log) == [b"0", b"2", b"4"]

    run(main())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", first_is_quick(["async for", "poll", "one iterator", "anext"], 2))
@pytest.mark.parametrize("over", ["directory", "reader", "wire"])
def test_a_cancelled_consumer_loses_no_record_and_doubles_none(
    run: Run, seed: int, how: str, over: str, tmp_path: Path
) -> None:
    count = 300

    async def consume(path: str, mode: str, append: Callable[[int], Any]) -> None:
        dice = random.Random(seed)
        found: list[bytes | None] = []
        async with embedlog.aio.open(path, mode=mode) as log:
            consumer = log.consumer("t", fetch_max_bytes=500, metadata_refresh_ms=5)
            iterator = aiter(consumer)

            async def take() -> None:
                if how == "poll":
                    while True:
                        found.extend(record.value for record in await consumer.poll(math.inf, 7))
                elif how == "anext":
                    while True:
                        found.append((await anext(consumer)).value)
                else:
                    async for record in iterator if how == "one iterator" else consumer:
                        found.append(record.value)

            appended = 0
            while len(found) < count:
                if appended < count:
                    await asyncio.to_thread(append, appended)
                    appended += 1
                task = asyncio.create_task(take())
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(dice.choice((0, 0, 0.001)))
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            assert await consumer.poll() == []
        assert sorted(found) == sorted(b"%d" % number for number in range(count))  # type: ignore[type-var]

    with embedlog.open(tmp_path) as writer:
        if over == "wire":
            with Broker() as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as there:
                there.create_topic("t", partitions=3)
                run(consume(there.path, "rw", lambda n: there.append("t", b"%d" % n)))
            return
        if over == "reader":
            writer.create_topic("t", partitions=3)
            run(consume(str(tmp_path), "r", lambda n: writer.append("t", b"%d" % n)))
            return
    with embedlog.open(tmp_path / "own") as own:
        own.create_topic("t", partitions=3)

    async def alone() -> None:
        async with embedlog.aio.open(tmp_path / "own") as log:
            await log.append("t", b"")
            await log.delete_topic("t")
            await log.create_topic("t", partitions=3)
        # a consumer and its writer share the process: the consumer runs in the loop
        sync: list[embedlog.Log] = []

        def append(number: int) -> None:
            sync[0].append("t", b"%d" % number)

        opened = embedlog.aio.open(tmp_path / "own")
        async with opened as log:
            sync.append(log.opened())
            dice = random.Random(seed)
            await _consume_here(log, how, dice, append, count)

    run(alone())


async def _consume_here(
    log: embedlog.aio.Log, how: str, dice: random.Random, append: Callable[[int], None], count: int
) -> None:
    found: list[bytes | None] = []
    consumer = log.consumer("t", group="g", auto_commit_interval_ms=3, metadata_refresh_ms=5)
    iterator = aiter(consumer)

    async def take() -> None:
        if how == "poll":
            while True:
                found.extend(record.value for record in await consumer.poll(math.inf, 7))
        elif how == "anext":
            while True:
                found.append((await anext(consumer)).value)
        else:
            async for record in iterator if how == "one iterator" else consumer:
                found.append(record.value)

    appended = 0
    while len(found) < count:
        for _ in range(dice.randrange(4)):
            if appended < count:
                append(appended)
                appended += 1
        tasks = [asyncio.create_task(take())]
        for _ in range(dice.randrange(6)):
            await asyncio.sleep(dice.choice((0, 0, 0.001)))
        tasks[0].cancel()
        await asyncio.wait(tasks)
        commit = asyncio.create_task(consumer.commit())
        await asyncio.sleep(dice.choice((0, 0.001)))
        commit.cancel()
        await asyncio.wait([commit])
    assert sorted(found) == sorted(b"%d" % number for number in range(count))  # type: ignore[type-var]
    await consumer.commit()
    committed = [await consumer.committed(TopicPartition("t", number)) for number in range(3)]
    ends = await log.offsets("t")
    assert [each.offset if each else 0 for each in committed] == [ends[n].log_end_offset for n in range(3)]
    await consumer.close()


def test_a_cancelled_open_leaves_the_directory_free(run: Run, tmp_path: Path) -> None:
    async def cancelled(turns: int) -> None:
        async def opened() -> embedlog.aio.Log:
            return await embedlog.aio.open(tmp_path)

        task = asyncio.create_task(opened())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await (await task).close()
        except asyncio.CancelledError:
            pass

    for turns in (1, 2, 5, 50, 500, 2000):
        run(cancelled(turns))  # which ends the loop at once
        for thread in threading.enumerate():
            if thread.name == "embedlog-close":
                thread.join()
        embedlog.open(tmp_path).close()


def test_a_close_runs_to_its_end_even_if_the_loop_ends(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        log = await embedlog.aio.open(tmp_path)
        await log.create_topic("t", exist_ok=True)
        producer = log.producer(linger_ms=60_000)
        await producer.send("t", b"buffered")
        consumer = log.consumer("t", group="g")
        await consumer.poll()
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()  # and the loop ends

    for number in range(3):
        run(main())
        with embedlog.open(tmp_path) as log:
            assert len(list(log.read("t"))) == number + 1


# -- appends -----------------------------------------------------------------------------------------------


def test_durable_appends_of_512_tasks_share_fsyncs(run: Run, tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t")
            fs.forget()
            await asyncio.gather(*[repeat(log) for _ in range(512)])
            assert fs.count("sync", ".kafka") <= 10 * 3
            assert len(await all_values(log)) == 5120

    async def repeat(log: embedlog.aio.Log) -> None:
        for number in range(10):
            metadata = await log.append("t", b"%d" % number, flush=True)
            assert metadata.durable

    run(main())


def test_a_bad_record_fails_only_its_own_task(run: Run, tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t", partitions=2, max_message_bytes=1000)
            fs.forget()
            values: list[Any] = [b"%d" % number for number in range(64)]
            values[5] = values[40] = b"x" * 2000
            values[7] = "not bytes"
            appends = [log.append("t", value, partition=1, flush=True) for value in values]
            appends += [
                log.append("t", b"", partition=True, flush=True),
                log.append("t", b"", partition=2, flush=True),
                log.append("nowhere", b"", flush=True),
                log.append(["t"], b"", flush=True),  # type: ignore[arg-type]
            ]
            found = await asyncio.gather(*appends, return_exceptions=True)
            kinds = [type(each) for each in found]
            assert kinds[5] is kinds[40] is RecordTooLarge
            assert kinds[7] is InvalidType
            assert kinds[64:] == [InvalidType, embedlog.PartitionNotFound, TopicNotFound, InvalidType]
            good = [number for number in range(64) if number not in (5, 7, 40)]
            assert all(kinds[number] is embedlog.RecordMetadata for number in good)
            for number in good:
                metadata = found[number]
                assert isinstance(metadata, embedlog.RecordMetadata)
                record = await log.read_at("t", 1, metadata.offset)
                assert record is not None and record.value == values[number]
            assert fs.count("sync", ".kafka") < 30

    run(main())


def test_a_failed_flush_reaches_every_waiter(run: Run, tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t")
            fs.fail("sync", errno.EIO, path=".kafka")
            appends = [log.append("t", b"%d" % number, flush=True) for number in range(100)]
            found = await asyncio.gather(*appends, return_exceptions=True)
            assert {type(each) for each in found} == {FlushFailed}
            with pytest.raises(embedlog.PartitionFailed):
                await log.append("t", b"")
            await log.reopen("t", 0)
            assert (await log.append("t", b"again", flush=True)).durable

    run(main())


@pytest.mark.parametrize("failing", [2, 3])
def test_each_task_gets_the_error_of_its_own_partition(run: Run, failing: int, tmp_path: Path) -> None:
    """Two of three partitions fail, or all of them, for different reasons."""
    fs = FaultyFileSystem(tmp_path)
    keys = {partition_for_key(b"%d" % number, 3): b"%d" % number for number in range(30)}
    numbers = (errno.EIO, errno.ENOSPC, errno.EROFS)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t", partitions=3)
            for partition in range(failing):
                fs.fail("sync", numbers[partition], path=f"t_{partition}/")
            appends = [
                log.append("t", b"%d" % number, key=keys[number % 3], flush=True) for number in range(30)
            ]
            found = await asyncio.gather(*appends, return_exceptions=True)
            for number, each in enumerate(found):
                if number % 3 < failing:
                    assert isinstance(each, StorageError) and str(each).startswith(f"t {number % 3}:")
                    assert os.strerror(numbers[number % 3]) in str(each)
                else:
                    assert isinstance(each, embedlog.RecordMetadata)
                    assert (each.partition, each.offset, each.durable) == (number % 3, number // 3, True)

    run(main())


def test_gathered_appends_without_a_key_share_a_partition_at_a_time(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t", partitions=3)
            seen = set()
            while len(seen) < 3:
                appends = [log.append("t", b"%d" % number, flush=True) for number in range(10)]
                found = await asyncio.gather(*appends)
                assert len({each.partition for each in found}) == 1
                assert [each.offset - found[0].offset for each in found] == list(range(10))
                seen.add(found[0].partition)

    run(main())


def test_one_tasks_appends_keep_their_order(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t", segment_bytes=2000)

            async def write(name: int) -> None:
                dice = random.Random(name)
                for number in range(50):
                    flush = dice.random() < 0.5
                    await log.append("t", b"%d %d" % (name, number), flush=flush)

            await asyncio.gather(*map(write, range(20)))
            for name in range(20):
                mine = [v for v in await all_values(log) if v and v.split()[0] == b"%d" % name]
                assert mine == [b"%d %d" % (name, number) for number in range(50)]

    run(main())


def test_a_log_closes_while_tasks_append_without_pause(run: Run, tmp_path: Path) -> None:
    async def main(number: int) -> None:
        log = await embedlog.aio.open(tmp_path)
        await log.create_topic("t", exist_ok=True)
        before = len(await all_values(log))
        done = 0

        async def write(flush: bool) -> None:
            nonlocal done
            while True:
                await log.append("t", b"x", flush=flush)
                done += 1
                if not flush:
                    await asyncio.sleep(0)

        writers = [asyncio.create_task(write(bool(n % 2))) for n in range(20)]
        for _ in range(number * 7):
            await asyncio.sleep(0)
        await log.close()
        await asyncio.wait(writers)
        assert {type(writer.exception()) for writer in writers} == {Closed}
        with embedlog.open(tmp_path) as again:
            assert len(list(again.read_values("t"))) - before == done

    for number in range(10):
        run(main(number))


def test_a_log_that_closes_waits_for_appends_that_have_just_been_accepted(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        log = await embedlog.aio.open(tmp_path)
        await log.create_topic("t", exist_ok=True)
        # The tasks run in turn: the appends come after the call of `close`, and before it refuses any.
        closing = asyncio.create_task(log.close())
        appending = [asyncio.create_task(log.append("t", b"x", flush=True)) for _ in range(100)]
        await closing
        assert [(await task).offset % 100 for task in appending] == list(range(100))

    for _ in range(10):
        run(main())


# -- producers ---------------------------------------------------------------------------------------------


def test_a_full_buffer_makes_sends_wait_and_not_the_loop(run: Run, tmp_path: Path) -> None:
    """The fsync is blocked, so no room comes free until the test says so."""
    fs = BlockingSync(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t")
            producer = log.producer(
                flush=True, linger_ms=0, buffer_bytes=5_000, batch_bytes=1_000, max_block_ms=math.inf
            )
            impatient = log.producer(flush=True, linger_ms=0, buffer_bytes=1_000, max_block_ms=20)
            fs.blocking = True
            sent: list[int] = []

            async def send(number: int) -> Any:
                future = await producer.send("t", b"%d" % number * 100)
                sent.append(number)
                return await future

            senders = [asyncio.create_task(send(number)) for number in range(100)]
            for _ in range(1000):  # heartbeats: the loop turns while all the others wait
                await asyncio.sleep(0)
            assert 0 < len(sent) < 100
            with pytest.raises(BufferExhausted):
                for _ in range(3):
                    await impatient.send("t", b"x" * 500)
            with pytest.raises(RecordTooLarge):
                await impatient.send("t", b"x" * 5000)
            senders[99].cancel()
            await asyncio.wait([senders[99]])
            fs.blocking = False
            fs.go.release(1000)
            await asyncio.gather(*senders[:99])
            values = [value for value in await all_values(log) if value and value[:1] != b"x"]
            assert sorted(values) == sorted(b"%d" % number * 100 for number in range(99))

    run(main())


def test_a_producer_that_closes_fails_the_sends_that_wait(run: Run, tmp_path: Path) -> None:
    fs = BlockingSync(tmp_path)

    async def main() -> None:
        async with embedlog.aio.open(tmp_path, fs=fs) as log:
            await log.create_topic("t")
            producer = log.producer(flush=True, linger_ms=0, buffer_bytes=1_000)
            fs.blocking = True
            tasks = [asyncio.create_task(producer.send("t", b"x" * 400)) for _ in range(10)]
            for _ in range(100):
                await asyncio.sleep(0)
            closing = asyncio.create_task(producer.close())
            await until(lambda: sum(task.done() for task in tasks) == 10)
            fs.blocking = False
            fs.go.release(1000)
            await closing
            closed = sum(isinstance(task.exception(), Closed) for task in tasks)
            assert closed == 10 - len(await all_values(log)) > 0

    run(main())


def test_the_future_of_a_send_is_for_any_number_of_tasks(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        with embedlog.open(tmp_path) as log, log.producer(linger_ms=60_000) as producer:
            log.create_topic("t")
            future: Any = producer.send("t", b"x")

            async def result() -> embedlog.RecordMetadata:
                found: embedlog.RecordMetadata = await future
                return found

            one, two, three = [asyncio.create_task(result()) for _ in range(3)]
            await asyncio.sleep(0)
            one.cancel()
            await asyncio.wait([one])
            assert one.cancelled() and not two.done()
            await asyncio.to_thread(producer.flush)
            assert await two == await three == await result() == future.result()

    run(main())


def test_a_producers_callback_runs_in_the_loop(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        called: list[tuple[int, Any]] = []
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            producer = log.producer(
                callback=lambda metadata, error: called.append((threading.get_ident(), metadata.offset))
            )
            for _ in range(3):
                await producer.send("t", b"x")
            await producer.flush()
            await until(lambda: len(called) == 3)
        assert called == [(threading.get_ident(), number) for number in range(3)]

    run(main())


# -- consumers ---------------------------------------------------------------------------------------------


def test_callbacks_may_await_their_consumer_and_the_log(run: Run, tmp_path: Path) -> None:
    """Sixteen consumers are in their callbacks at once: more than there are threads."""

    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t", partitions=2)
            await log.create_topic("audit")
            await log.append_many("t", [b"%d" % number for number in range(10)], partition=1)
            inside = 0

            def consumer(group: str) -> embedlog.aio.Consumer:
                async def assigned(partitions: tuple[TopicPartition, ...]) -> None:
                    nonlocal inside
                    inside += 1
                    await until(lambda: inside == 16)
                    await log.describe_topic("t")
                    await log.append("audit", b"+%d" % len(partitions), flush=True)

                async def revoked(partitions: tuple[TopicPartition, ...]) -> None:
                    await consumer.commit()
                    await log.append("audit", b"-%d" % len(partitions), flush=True)

                consumer = log.consumer(
                    "t", group, auto_commit=False, on_assigned=assigned, on_revoked=revoked
                )
                return consumer

            async def take(group: str) -> None:
                each = consumer(group)
                count = 0
                while count < 10:
                    count += len(await each.poll(10, max_records=3))
                await each.close()

            await asyncio.gather(*[take(f"g{number}") for number in range(16)])
            assert Counter(await all_values(log, "audit")) == {b"+2": 16, b"-2": 16}
            for number in range(16):
                [tp] = [tp for tp in await log.group(f"g{number}").offsets() if tp.partition == 1]
                assert (await log.group(f"g{number}").offsets())[tp].offset == 10

    run(main())


def test_an_error_in_a_callback_is_the_polls(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append("t", b"x")
            failures = [ZeroDivisionError()]

            async def assigned(partitions: tuple[TopicPartition, ...]) -> None:
                await asyncio.sleep(0)
                if failures:
                    raise failures.pop()

            consumer = log.consumer("t", "g", on_assigned=assigned)
            records: list[Record] = []
            raised = 0
            while not records:
                try:
                    records = await consumer.poll(100)
                except ZeroDivisionError:
                    raised += 1
            assert raised == 1 and [record.value for record in records] == [b"x"]

    run(main())


@pytest.mark.parametrize("how", ["poll", "async for"])
def test_close_ends_a_wait_in_another_task(run: Run, how: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            consumer = log.consumer("t", "g")
            await consumer.poll()

            async def wait() -> list[Record]:
                if how == "poll":
                    return await consumer.poll(math.inf)
                return [record async for record in consumer]

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            with pytest.raises(ConcurrentUse):
                await consumer.poll()
            with pytest.raises(ConcurrentUse):
                await consumer.commit()
            await consumer.close()
            assert await waiting == []
            await consumer.close()
            with pytest.raises(Closed):
                await consumer.poll()
            unused = log.consumer("t")
            await asyncio.gather(unused.poll(), unused.close(), return_exceptions=True)
            with pytest.raises(Closed):
                await unused.poll()

    run(main())


@pytest.mark.parametrize("over", ["directory", "reader", "wire"])
def test_two_hundred_idle_consumers_need_no_thread_each(run: Run, over: str, tmp_path: Path) -> None:
    async def main(
        path: str, mode: str, append: Callable[[embedlog.aio.Log], Coroutine[Any, Any, Any]]
    ) -> None:
        before = set(threading.enumerate())  # those of earlier tests may not have ended
        async with embedlog.aio.open(path, mode=mode) as log:
            consumers = [log.consumer("t") for _ in range(200)]
            tasks = [asyncio.create_task(consumer.poll(math.inf)) for consumer in consumers]
            await until(lambda: all(each.subscription for each in consumers))
            await asyncio.sleep(0.05)
            names = [thread.name for thread in threading.enumerate() if thread not in before]
            assert sum(name.startswith("embedlog-aio") for name in names) <= 8
            assert sum(name.startswith("embedlog-waiter") for name in names) <= 1
            assert len(names) < 50
            await append(log)
            for task in tasks:
                assert [record.value for record in await task] == [b"x"]

    async def own(log: embedlog.aio.Log) -> None:
        await log.append("t", b"x")

    with embedlog.open(tmp_path) as writer:
        writer.create_topic("t")
        if over == "reader":

            async def outside(_: embedlog.aio.Log) -> None:
                await asyncio.to_thread(writer.append, "t", b"x")

            run(main(str(tmp_path), "r", outside))
    if over == "directory":
        run(main(str(tmp_path), "rw", own))
    if over == "wire":
        with Broker() as broker:
            broker.log.create_topic("t")
            run(main(f"kafka://{broker.bootstrap_servers}", "rw", own))


def test_a_rebalance_between_two_turns_does_not_stop_the_loop(run: Run, tmp_path: Path) -> None:
    """A turn in the loop that advanced would wait there for a callback that needs the loop."""

    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t", partitions=2)
            owned: set[TopicPartition] = set()
            consumer = log.consumer(
                "t",
                "g",
                on_assigned=owned.update,
                on_revoked=owned.difference_update,
                metadata_refresh_ms=1,
            )
            done = False

            async def busy() -> None:
                while not done:
                    await log.append("t", b"x")
                    await asyncio.sleep(0)

            async def take(each: embedlog.aio.Consumer) -> None:
                while not done:
                    await each.poll(1)

            tasks = [asyncio.create_task(busy()), asyncio.create_task(take(consumer))]
            for _ in range(10):
                await until(lambda: len(owned) == 2)  # so that the other one has to wait for its callback
                other = log.consumer("t", "g")
                while not await other.poll(5):
                    pass
                assert len(owned) == 1
                await other.close()
            done = True
            await asyncio.gather(*tasks)

    run(main())


# -- iterating ---------------------------------------------------------------------------------------------


def test_a_loop_may_commit_seek_and_stop_between_two_records(run: Run, twin: None, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"%d" % number for number in range(1000)])
            tp = TopicPartition("t", 0)
            found: list[int] = []
            async with log.consumer("t", "g", auto_commit=False, stop_at_end=True) as consumer:
                async for record in consumer:
                    found.append(record.offset)
                    if record.offset == 10:
                        await consumer.commit()
                        assert await consumer.position(tp) == 11
                    elif len(found) == 21:
                        await consumer.seek(tp, 500)
                    elif record.offset == 600:
                        await consumer.seek(tp, 0)
                    elif record.offset == 30:
                        break
                assert found == [*range(21), *range(500, 601), *range(31)]
                committed = await consumer.committed(tp)
                assert committed is not None and committed.offset == 11
                rest = [record.offset async for record in consumer]
                assert rest == list(range(31, 1000))
                assert [record async for record in consumer] == []
                await log.append("t", b"more")
                assert [record.offset async for record in consumer] == [1000]
            assert [record async for record in consumer] == []

    run(main())


def test_a_step_that_times_out_loses_no_record(run: Run, twin: None, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            records = aiter(log.consumer("t"))
            found: list[bytes | None] = []
            appended = 0
            while len(found) < 50:
                if appended < 50:
                    await log.append("t", b"%d" % appended)
                    appended += 1
                try:
                    while True:
                        found.append((await asyncio.wait_for(anext(records), 0.001)).value)
                except TimeoutError:
                    pass
            assert found == [b"%d" % number for number in range(50)]

    run(main())


def test_the_steps_of_an_iteration_are_apart(run: Run, twin: None, tmp_path: Path) -> None:
    """Two at once, one that is never awaited, one that is abandoned."""

    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"%d" % number for number in range(5)])
            consumer = log.consumer("t")
            records = aiter(consumer)
            assert (await anext(records)).offset == 0
            one, other = anext(records), anext(records)
            assert ((await other).offset, (await one).offset) == (1, 2)
            with pytest.raises(RuntimeError):
                await one
            anext(records).close()  # type: ignore[attr-defined]
            assert [(await anext(records)).offset for _ in range(2)] == [3, 4]

            waiting = [asyncio.ensure_future(step) for step in (anext(records), anext(records))]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [type(each.exception()) for each in done] == [ConcurrentUse]
            await log.append("t", b"5")
            [left] = [each for each in waiting if each not in done]
            assert (await left).offset == 5

            async def step() -> Record:
                return await anext(records)

            abandoned = step()
            abandoned.send(None)
            with pytest.raises(ConcurrentUse):
                await consumer.poll()
            abandoned.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.01)
            await log.append("t", b"6")
            assert (await anext(records)).offset == 6
            await consumer.close()
            assert await anext(records, None) is None

    run(main())


def test_steps_that_are_asked_by_hand_keep_their_results(run: Run, twin: None, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"%d" % number for number in range(6)])
            records = aiter(log.consumer("t"))
            assert (await anext(records)).offset == 0
            stops = []
            for _ in range(2):
                with pytest.raises(StopIteration) as caught:
                    next(anext(records).__await__())
                stops.append(caught.value)
                await anext(records)
            assert [stop.value.offset for stop in stops] == [1, 3]
            assert (await anext(records)).offset == 5

    run(main())


def test_an_iteration_goes_on_after_a_value_that_does_not_decode(
    run: Run, twin: None, tmp_path: Path
) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"0", b"{", b"2", b"[", b"4"])
            numbers = log.topic("t", serializer="json")
            found: list[int] = []
            wrong = 0
            async with numbers.consumer(stop_at_end=True) as consumer:
                records = aiter(consumer)
                while True:
                    try:
                        found += [record.value async for record in records]
                        break
                    except embedlog.DeserializationError:
                        wrong += 1
            assert (sorted(found), wrong) == ([4], 2)  # a list that fails is dropped
            async with numbers.consumer(stop_at_end=True) as consumer:
                records = aiter(consumer)
                for expected in (0, None, 2, None, 4):
                    try:
                        assert (await anext(records)).value == expected
                    except embedlog.DeserializationError:
                        assert expected is None

    run(main())


# -- reading -----------------------------------------------------------------------------------------------


def test_reading(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(tmp_path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"%d" % number for number in range(2500)])
            records = [record async for record in log.read("t", start=10, partition=0)]
            assert [record.offset for record in records] == list(range(10, 2500))
            assert await all_values(log) == [b"%d" % number for number in range(2500)]
            batches = [batch async for batch in log.read_arrow("t", columns=["offset"])]
            assert sum(batch.num_rows for batch in batches) == 2500
            following = log.read("t", start="latest", follow=True)
            task = asyncio.ensure_future(anext(following))
            while not task.done():
                await log.append("t", b"new")
                await asyncio.sleep(0.001)
            assert (await task).value == b"new"
            with pytest.raises(TopicNotFound):
                await anext(log.read("nowhere"))

    run(main())


@pytest.mark.parametrize("how", ["read", "poll", "async for"])
def test_the_records_before_damage_come_first(run: Run, how: str, tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("t")
        for number in range(100):
            log.append("t", b"value %d" % number)
        log.flush()
    [segment] = tmp_path.glob("t_0/*.kafka")
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"value 60", b"VALUE 60"))

    async def main() -> None:
        found: list[bytes | None] = []
        async with embedlog.aio.open(tmp_path) as log:
            with pytest.raises(CorruptRecord):
                if how == "read":
                    async for record in log.read("t"):
                        found.append(record.value)
                consumer = log.consumer("t")
                if how == "async for":
                    async for record in consumer:
                        found.append(record.value)
                while True:
                    found += [record.value for record in await consumer.poll(max_records=7)]
        assert found == [b"value %d" % number for number in range(60)]

    run(main())


# -- the end -----------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
import embedlog.aio

async def main():
    log = await embedlog.aio.open(sys.argv[1])
    await log.create_topic("t", exist_ok=True)
    producer = log.producer(linger_ms=60_000)
    consumer = log.consumer("t", "g")
    await consumer.poll()
    waiting = [asyncio.ensure_future(log.append("t", b"durable", flush=True)) for _ in range(5)]
    await asyncio.gather(*waiting)
    await producer.send("t", b"buffered")
    global kept
    kept = log, producer, consumer, asyncio.ensure_future(consumer.poll(float("inf")))
    await asyncio.sleep(0.01)

if sys.argv[2] == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
loop.run_until_complete(main())
if sys.argv[3] == "closed":
    kept[3].cancel()
    loop.run_until_complete(asyncio.wait([kept[3]]))
    loop.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("end", ["closed", "left"])
def test_a_program_ends_that_closes_nothing(loop: str, end: str, tmp_path: Path) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), loop, end]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with embedlog.open(tmp_path) as log:
        assert log.recovery.clean
        assert sorted(log.read_values("t")) == [b"buffered"] + [b"durable"] * 5  # type: ignore[type-var]


# -- the same methods --------------------------------------------------------------------------------------


def test_open_shows_the_arguments_of_open_for_threads() -> None:
    mine, theirs = (inspect.signature(each).parameters for each in (embedlog.aio.open, embedlog.open))
    assert list(mine) == [name for name in theirs if name != "fs"]  # which is for tests
    assert all(mine[name].default == theirs[name].default for name in mine)


@pytest.mark.parametrize("name", ["Log", "Producer", "Consumer", "ConsumerGroup"])
def test_tasks_have_the_methods_of_threads(name: str) -> None:
    here, there = getattr(embedlog.aio, name), getattr(embedlog, name)
    missing = {each for each in dir(there) if each[0] != "_" and not hasattr(here, each)}
    # those with threads of their own: of workers, of DuckDB
    assert missing <= {"backend", "run_workers", "sql", "to_pandas", "to_polars"}
    for each in dir(here):
        if each[0] != "_" and inspect.isfunction(getattr(here, each)) and hasattr(there, each):
            mine, theirs = (inspect.signature(getattr(kind, each)).parameters for kind in (here, there))
            assert list(mine) == list(theirs), each


OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log:
    log.create_topic("t")
    log.append("t", b"first")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_client_reads_on_while_its_owner_is_stopped(run: Run, path: Path, program: Any) -> None:
    """Nothing that a reader does asks the owner in the event loop."""
    owner = program(OWNER, path)
    assert owner.line() == "ready"

    async def main() -> None:
        async with embedlog.aio.open(path, shared=True) as log:
            following = log.read("t", follow=True)
            consumer = log.consumer("t")
            assert (await anext(following)).value == b"first"
            waiting = asyncio.ensure_future(anext(following))
            os.kill(owner.pid, signal.SIGSTOP)
            try:
                assert log.recovery.clean
                assert [record.value for record in await consumer.poll(60_000)] == [b"first"]
                assert await consumer.poll(50) == []
            finally:
                os.kill(owner.pid, signal.SIGCONT)
            await log.append("t", b"second")
            assert (await waiting).value == b"second"

    run(main())


FORKED = """
import asyncio, contextlib, os, sys, traceback, embedlog, embedlog.aio
from embedlog.errors import ForkedHandle

async def using(log, producer, consumer):
    for use in (
        lambda: log.append("t", b"x"),
        lambda: log.append("t", b"x", flush=True),
        lambda: log.append_many("t", [b"x"]),
        log.topics,
        lambda: anext(log.read("t")),
        lambda: anext(log.read("t", follow=True)),
        lambda: producer.send("t", b"x"),
        consumer.poll,
        lambda: anext(consumer),
        log.queue("jobs").take,
    ):
        try:
            await asyncio.wait_for(use(), 30)
            raise AssertionError("an inherited handle works on")
        except ForkedHandle as error:
            assert "open" in str(error), error
    for make in log.producer, log.consumer:
        try:
            make()
            raise AssertionError("an inherited handle makes clients")
        except ForkedHandle:
            pass
    await log.close()
    async with embedlog.aio.open(sys.argv[1], shared=True) as own:
        assert (await own.append("t", b"child")).offset == 1

async def opened():
    log = await embedlog.aio.open(sys.argv[1], shared=True)
    await log.create_topic("t")
    producer, consumer = log.producer(), log.consumer("t")
    await (await producer.send("t", b"parent"))
    assert [each.value for each in await consumer.poll(30_000)] == [b"parent"]
    return log, producer, consumer

async def goes_on(log):
    assert (await log.append("t", b"parent")).offset == 2
    await log.close()

with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
    if sys.argv[2] == "client":
        stack.enter_context(embedlog.open(sys.argv[1], shared=True))
    log, producer, consumer = runner.run(opened())
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(using(log, producer, consumer))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    runner.run(goes_on(log))
print("done")
"""


@pytest.mark.parametrize("which", ["owner", "client"])
def test_a_forked_child_is_told_to_open_the_log_again(path: Path, program: Any, which: str) -> None:
    """Its event loop is its parent's."""
    assert program(FORKED, path, which).end() == "done\n"
