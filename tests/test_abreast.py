"""Doing the same for many partitions at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program

import embedlog
from embedlog.runtime.parallel import Step, Task, run_in_rounds, run_parallel


def test_eight_run_at_a_time_and_results_keep_their_order() -> None:
    meeting = threading.Barrier(8)
    under_way: set[int] = set()
    most: list[int] = []

    def work(number: int) -> int:
        under_way.add(number)
        most.append(len(under_way))
        if number < 8:
            meeting.wait()  # which opens when eight are here
        under_way.remove(number)
        return number * number

    assert run_parallel(work, range(100)) == [number * number for number in range(100)]
    assert max(most) == 8
    del most[:]
    assert run_parallel(work, range(50, 60)) == [number * number for number in range(50, 60)]
    assert max(most) == 1, "not worth a thread"


def test_the_first_error_is_raised_after_all_have_ended() -> None:
    meeting, failing = threading.Barrier(8), threading.Event()
    ended: list[int] = []

    def work(number: int) -> None:
        if number < 8:
            meeting.wait()
        if number in (2, 6):
            failing.set()
            raise ValueError(f"of {number}")
        failing.wait()
        ended.append(number)

    before = threading.active_count()
    with pytest.raises(ValueError, match="of 2"):
        run_parallel(work, range(1000))
    assert {0, 1, 3, 4, 5, 7} <= set(ended)
    assert threading.active_count() == before


def test_tasks_go_in_rounds() -> None:
    """All are resumed in this thread, then their steps are done, then the next round begins."""
    done: list[tuple[int, str]] = []

    def task(number: int) -> Task[int]:
        done.append((number, threading.current_thread().name))
        if number % 3:
            yield Step(lambda: done.append((100 + number, "")))
            done.append((200 + number, threading.current_thread().name))
        if number % 3 == 2:
            yield Step(lambda: done.append((300 + number, "")))
        return number

    assert run_in_rounds([task(number) for number in range(90)], 50) == list(range(90))
    kinds = [number // 100 for number, _ in done]
    # Round 1 in batches of 50 steps, then round 2, then round 3.
    assert kinds[:125] == [0] * 75 + [1] * 50
    assert kinds[125:150] == [0] * 15 + [1] * 10
    assert sorted(kinds[150:]) == [2] * 60 + [3] * 30
    here = {name for number, name in done if number // 100 in (0, 2)}
    assert here == {threading.current_thread().name}


@pytest.mark.parametrize("failing", ["task", "step"])
def test_after_an_error_all_tasks_are_closed(failing: str) -> None:
    begun: list[int] = []
    ended: list[int] = []

    def task(number: int) -> Task[None]:
        begun.append(number)
        try:
            if number >= 30 and failing == "task":
                raise ValueError(f"of {number}")
            yield Step(lambda: step(number))
        finally:
            ended.append(number)

    def step(number: int) -> None:
        if number in (30, 35):
            raise ValueError(f"of {number}")

    with pytest.raises(ValueError, match="of 30"):
        run_in_rounds([task(number) for number in range(50)], 40)
    assert begun == list(range(31 if failing == "task" else 40))
    assert sorted(ended) == begun


def test_unflushed_partitions_at_exit(program: Callable[..., Program], path: Path) -> None:
    """When there are no threads to be had any more."""
    program(
        """
import sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("t", partitions=40, flush_ms=1_000_000)
for number in range(40):
    log.append("t", b"%d" % number, partition=number)
""",
        path,
    ).end()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert [record.value for record in log.read("t")] == [b"%d" % number for number in range(40)]


def test_a_topic_with_a_failing_partition_is_not_created(path: Path) -> None:
    with embedlog.open(path) as log:
        (path / "t_30").write_bytes(b"a file where a directory should be")
        with pytest.raises(embedlog.EmbedlogError):
            log.create_topic("t", partitions=40)
        assert log.topics() == []
        (path / "t_30").unlink()
        log.create_topic("t", partitions=40)
        assert [log.append("t", b"x", partition=number).offset for number in range(40)] == [0] * 40
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert len(log.offsets("t")) == 40
