"""The pool of threads that serves a log: its order, its bounds, its end."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from embedlog.runtime.worker_pool import WorkerPool


def test_calls_run_at_once_up_to_the_bound() -> None:
    pool = WorkerPool(3, "three")
    together = threading.Barrier(3)
    for _ in range(50):  # each waits for two others
        assert len({each.result(60) for each in [pool.submit(together.wait) for _ in range(3)]}) == 3
    running, most = set(), []

    def note() -> None:
        running.add(threading.current_thread())
        most.append(len(running))
        running.discard(threading.current_thread())

    for each in [pool.submit(note) for _ in range(500)]:
        each.result(60)
    assert max(most) <= 3
    pool.shutdown()


def test_one_thread_keeps_the_order_and_goes_on_after_errors() -> None:
    pool = WorkerPool(1, "one")
    done: list[int] = []

    def work(number: int, *, fails: bool) -> int:
        done.append(number)
        if fails:
            raise ZeroDivisionError(number)
        return number

    futures = [pool.submit(work, number, fails=number % 3 == 0) for number in range(100)]
    for number, future in enumerate(futures):
        if number % 3 == 0:
            assert isinstance(future.exception(60), ZeroDivisionError)
        else:
            assert future.result(60) == number
    assert done == list(range(100))
    pool.shutdown()


@pytest.mark.parametrize("cancels", [False, True])
def test_shutdown_waits_for_what_has_begun(cancels: bool) -> None:
    pool = WorkerPool(1, "ends")
    begun, go = threading.Event(), threading.Event()
    done: list[Any] = []

    def first() -> None:
        begun.set()
        assert go.wait(60)
        done.append("first")

    futures = [pool.submit(first), pool.submit(done.append, "second")]
    assert begun.wait(60)
    pool.shutdown(wait=False, cancel_futures=cancels)
    with pytest.raises(RuntimeError):
        pool.submit(print)
    go.set()
    pool.shutdown()
    assert done == (["first"] if cancels else ["first", "second"])
    if cancels:
        with pytest.raises(CancelledError):
            futures[1].result(60)
