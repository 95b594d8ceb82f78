"""Does the same work for many partitions, several at a time.

A disk serves several concurrent fsyncs in about the time of one, so flushing, creating or recovering a
thousand partitions in parallel is several times faster than one by one.

A few items are processed one by one, in the calling thread.

Tasks with several steps that wait for the disk go in rounds (`run_in_rounds`):

    calling thread      task 1 | task 2 | .. | task n             task 1 | ..
    all threads                                       steps 1..n            steps 1..n

What is short, mostly Python and calls that do not wait, stays in one thread: eight would only pass the
interpreter's lock around. And each kind of call is made for all tasks before the next kind, which suits file
systems: the first fsync of a round commits the journal for the others, and files are created before any are
replaced (ext4 looks at each inode that was freed a moment ago before it takes another one for a new file).
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from .locks import Lock

_THREADS: Final = 8
_FEW: Final = 16  # not worth a thread
_AT_ONCE: Final = 64
_MOST_BYTES: Final = 64 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Step(NamedTuple):
    """What a task waits for: `work`, done in any thread. It takes `size` bytes until the task ends."""

    work: Callable[[], object]
    size: int = 0


Task: TypeAlias = Generator[Step, None, _Result]
_Numbered: TypeAlias = deque[tuple[int, Task[_Result]]]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, unless it is paused already.

    While many long-lived objects are made, each collection traverses them all for nothing: pausing it halves
    the CPU time of opening 10,000 partitions.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """[work(item) for item in items], in up to eight threads, including this one.

    Items start in order. After one raises, no more start; once the running ones have ended, the error of the
    first item that failed is raised.
    """
    if len(items) < _FEW:
        return [work(item) for item in items]
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}
    waiting = iter(range(len(items)))
    turn = Lock()

    def run() -> None:
        while not errors:
            with turn:
                number = next(waiting, None)
            if number is None:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:
                errors[number] = error

    threads = [
        threading.Thread(target=run, name="embedlog-parallel", daemon=True) for _ in range(_THREADS - 1)
    ]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass  # no new threads at interpreter shutdown: fewer take longer
    run()
    for thread in started:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # Ctrl-C
                errors.setdefault(-1, error)
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


def run_in_rounds(tasks: Sequence[Task[_Result]], at_once: int = _AT_ONCE) -> list[_Result]:
    """The results of tasks. In each round all are resumed, in this thread, and then their steps are done.

    Tasks start in order. While those under way take 64 MiB, no more than eight are. After one raises, all are
    closed, and its error is raised: of several steps that fail, that of the first task.

    Args:
        at_once: how many tasks may wait for steps at a time, each with a descriptor.
    """
    results: dict[int, _Result] = {}
    waiting = deque(enumerate(tasks))
    try:
        while waiting:
            under_way, taken = _resume(waiting, results, at_once, 0)
            while waiting and taken < _MOST_BYTES:
                begun, taken = _resume(waiting, results, at_once, taken)
                under_way += begun
            while under_way:
                this_round, under_way = under_way, deque()
                while this_round:
                    under_way += _resume(this_round, results, at_once, 0)[0]
    finally:
        for task in tasks:
            task.close()
    return [results[number] for number in range(len(tasks))]


def _resume(
    some: _Numbered[_Result], results: dict[int, _Result], at_once: int, taken: int
) -> tuple[_Numbered[_Result], int]:
    """Resume tasks from the left until enough of them wait for steps, and do these.

    Returns those that go on, and how many bytes are taken then.
    """
    resumed: _Numbered[_Result] = deque()
    steps: list[Step] = []
    while some and len(steps) < at_once and (taken < _MOST_BYTES or len(steps) < _THREADS):
        number, task = some.popleft()
        try:
            step = next(task)
        except StopIteration as end:
            results[number] = end.value
        else:
            resumed.append((number, task))
            steps.append(step)
            taken += step.size
    run_parallel(_do, steps)
    return resumed, taken


def _do(step: Step) -> None:
    step.work()
