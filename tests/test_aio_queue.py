"""`embedlog.aio`'s queue under attack: cancelled tasks, many queues, the end of the log.

Each test runs on asyncio's own event loop and, where it is installed, on uvloop. That tasks get what threads
get is tested in test_queue.py.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.aio
from embedlog.errors import Closed, InvalidArgument

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


@pytest.fixture(params=["owner", "client"])
def opened(request: pytest.FixtureRequest, path: Path) -> Any:
    """A path that is opened as its owner, or as a client of one."""
    if request.param == "owner":
        yield path
    else:
        with embedlog.open(path, shared=True):
            yield path


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_tasks_lose_no_job(run: Run, seed: int, opened: Path) -> None:
    async def main() -> None:
        dice = random.Random(seed)
        async with embedlog.aio.open(opened, shared=True) as log, log.queue("jobs") as queue:
            await log.append_many("jobs", [b"%d" % i for i in range(300)])
            done: set[bytes] = set()
            deliveries: set[int] = set()

            async def work() -> None:
                async for job in queue:
                    async with job:
                        deliveries.add(job.deliveries)
                        await asyncio.sleep(0)
                        done.add(job.value)

            tasks = [asyncio.create_task(work()) for _ in range(10)]
            while len(done) < 300:
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(dice.choice((0, 0, 0.001)))
                number = dice.randrange(10)
                tasks[number].cancel()
                await asyncio.wait([tasks[number]])
                tasks[number] = asyncio.create_task(work())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            while (
                job := await queue.take(default=None)
            ) is not None:  # done, and cancelled before it was accepted
                deliveries.add(job.deliveries)
                await job.accept()
            assert done == {b"%d" % i for i in range(300)}
            assert deliveries == {1}

    run(main())


def test_a_cancelled_wait_leaves_the_job_to_another(run: Run, opened: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(opened, shared=True) as log, log.queue("jobs") as queue:
            for number in range(20):
                first, second = (asyncio.create_task(queue.take(math.inf)) for _ in range(2))
                for _ in range(number):
                    await asyncio.sleep(0)
                first.cancel()
                await queue.send(b"%d" % number)
                job = await second
                assert (job.value, job.deliveries) == (b"%d" % number, 1)
                await job.accept()

    run(main())


def test_a_cancelled_run_gives_its_job_back(run: Run, opened: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(opened, shared=True) as log, log.queue("jobs") as queue:
            await queue.send(b"work")
            began = asyncio.Event()

            async def handle(job: embedlog.aio.Job[bytes, bytes]) -> None:
                began.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(queue.run(handle))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with await queue.take(math.inf) as job:
                assert job.deliveries == 1

    run(main())


def test_many_queues_of_a_log_here_need_no_thread_each(run: Run, path: Path) -> None:
    """Of a log that another process owns, they do: backends/remote/share_groups.py."""

    async def main() -> None:
        before = set(threading.enumerate())  # those of earlier tests may not have ended
        async with embedlog.aio.open(path, shared=True) as log:
            queues = [log.queue("jobs", group=f"g{number}") for number in range(50)]
            waiting = [asyncio.create_task(queue.take(math.inf)) for queue in queues]
            await queues[0].send(b"1")
            await asyncio.gather(*waiting)
            waiting = [asyncio.create_task(queue.take(math.inf)) for queue in queues]
            await asyncio.sleep(0)
            names = [thread.name for thread in threading.enumerate() if thread not in before]
            assert sum(name.startswith("embedlog-aio") for name in names) <= 8
            assert len(names) < 30
            await queues[0].send(b"2")
            for job in await asyncio.gather(*waiting):
                assert job.value == b"2"

    run(main())


def test_the_end_of_the_log_ends_what_waits(run: Run, opened: Path) -> None:
    async def main() -> None:
        log = await embedlog.aio.open(opened, shared=True)
        queue = log.queue("jobs")

        async def work() -> list[Any]:
            return [job async for job in queue]

        waiting = [asyncio.create_task(work()) for _ in range(3)]
        await queue.send(b"x", delay_ms=3_600_000)
        await log.close()
        assert await asyncio.gather(*waiting) == [[], [], []]
        with pytest.raises(Closed):
            await queue.take()

    run(main())


def test_a_queue_that_cannot_start_says_so_at_each_use(run: Run, path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(path) as log:
            queue = log.queue("jobs", lock_ms=0)
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="lock_ms"):
                    await queue.take()
            with pytest.raises(InvalidArgument):
                async with queue:
                    pass
            await queue.close()

    run(main())
