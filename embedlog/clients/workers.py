"""Workers: functions that are called with jobs, in threads of this process or in an event loop.

    @embedlog.worker("jobs", concurrency=8)     declares, and leaves the function as it is
    def mail(job): ...

    log.run_workers(mail)                       runs it

    a function              `concurrency` threads, which take jobs of one queue
    a coroutine function    one thread takes jobs, at most `concurrency` at a time, for tasks of an event loop
                            that all coroutine functions share
    a thread besides        waits for the end: stops the queues, joins the threads, closes the queues

No signal handlers here: that is the program's business (cli/work.py has some).

Invariants: a handler's Exception ends with its job (job.py); an error of the log is logged, and the worker
goes on after a pause; anything else that a handler raises ends all workers, and `wait` raises it.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from ..errors import Closed, EmbedlogError, InvalidArgument, InvalidType, shown
from ..runtime.closing import Closing, closes
from ..runtime.locks import calls_out
from ..runtime.wakeups import OneShotEvent
from ..validation import check_flag, check_group, check_int, check_topic, is_coroutine_function, renamed
from .job import AsyncJob
from .options import QueueOptions, queue_options
from .queue import Queue, QueueLog
from .topic import ValueOptions, serde_of

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[..., object])

_DECLARATION: Final = "__embedlog_worker__"
_MOST: Final = 10_000  # jobs at a time
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 10.0
_SETTLING_THREADS: Final = 4

_logger = logging.getLogger(__name__)


class WorkerOptions(QueueOptions, ValueOptions[Any, Any], total=False):
    """Keyword options of `worker`: those of a queue, and those of a topic's values."""


class Worker(NamedTuple):
    """What `worker` declares of a function."""

    function: Callable[[Any], object]
    topic: str
    value_type: Any
    group: str
    concurrency: int
    options: QueueOptions
    values: dict[str, Any]


def worker(
    topic: str,
    value_type: Any = None,
    *,
    group: str = "default",
    concurrency: int = 1,
    **options: Unpack[WorkerOptions],
) -> Callable[[F], F]:
    """Declare that a function, or a coroutine function, is to be called with the jobs of a topic.

    The function itself does not change. `Log.run_workers` or `embedlog work module:function DIR` runs it.
    Returning accepts the job. An Exception is logged, and the job is delivered again after a back-off, or is
    a dead letter: see `embedlog.Queue.run`.

    Args:
        topic: see `embedlog.Queue`.
        value_type: see `embedlog.Topic`.
        group: see `embedlog.Queue`.
        options: those of the queue (see `embedlog.Queue`) and of the values (see `embedlog.Topic`).
        concurrency: how many jobs it handles at a time in one process: the number of threads, or of tasks.

    Raises InvalidArgument, InvalidType, InvalidGroup, UnknownSetting.
    """
    check_topic(topic)
    check_group(group)
    check_int("concurrency", concurrency, low=1, high=_MOST)
    names = (*QueueOptions.__annotations__, *ValueOptions.__annotations__)
    resolved = renamed(options, names, {})
    of_queue = {name: value for name, value in resolved.items() if name in QueueOptions.__annotations__}
    of_values = {name: value for name, value in resolved.items() if name not in of_queue}

    def declare(function: F) -> F:
        declared = Worker(function, topic, value_type, group, concurrency, queue_options(of_queue), of_values)
        try:
            if not callable(function):
                raise TypeError
            setattr(function, _DECLARATION, declared)
        except (AttributeError, TypeError):
            raise InvalidType(
                f"a worker is a function of a job, written with def, not {shown(function)}"
            ) from None
        return function

    return declare


def declared(function: object) -> Worker:
    """What was declared of a function. Raises InvalidArgument."""
    declaration = getattr(function, _DECLARATION, None)
    if not isinstance(declaration, Worker):
        name = getattr(function, "__qualname__", None) or shown(function)
        raise InvalidArgument(f'{name} is not declared as a worker: put @embedlog.worker("topic") above it')
    return declaration


class RunOptions(TypedDict, total=False):
    """Keyword options of `Log.run_workers`."""

    concurrency: int | None
    background: bool


def run_workers(
    log: QueueLog, functions: Sequence[object], clients: WeakSet[Closing], arguments: RunOptions
) -> Workers:
    """See `Log.run_workers`. clients: what the log closes."""
    options = renamed(arguments, RunOptions.__annotations__, {})
    background = options.pop("background", False)
    check_flag("background", background)
    workers = Workers(log, functions, **options)
    clients.add(workers)  # before the first job: a close of the log then waits for it
    workers._start()
    if not background:
        with workers:
            workers.wait()
    return workers


class Workers(Closing):
    """Workers that run in this process; from `Log.run_workers`.

    Args:
        log: the log.
        functions: what to run, each declared by `embedlog.worker`.
        concurrency: how many jobs each function handles at a time; by default as declared.

    The end of a `with` block stops the workers and waits for the jobs in hand; after an exception it gives
    them back. The log's `close` and the end of the program wait for the jobs in hand.

    Raises InvalidArgument if a function is not declared, or if two share a topic and a group. Raises the
    errors of `Queue`.
    """

    def __init__(self, log: QueueLog, functions: Sequence[object], *, concurrency: int | None = None) -> None:
        if concurrency is not None:
            check_int("concurrency", concurrency, low=1, high=_MOST)
        workers = [declared(function) for function in functions]
        _check_distinct(workers)
        self._pid = os.getpid()
        self._stopping = OneShotEvent()
        self._ended = OneShotEvent()
        self._error: BaseException | None = None
        self._queues: list[Queue[Any, Any]] = []
        self._threads: list[threading.Thread] = []
        self._loop: _Loop | None = None
        try:
            for worker in workers:
                self._prepare(log, worker, concurrency or worker.concurrency)
        except BaseException:
            self._close_queues()
            if self._loop is not None:
                self._loop.end()
            raise

    def _start(self) -> None:
        """Begin to take jobs. Once."""
        keeper = threading.Thread(target=self._keep, name="embedlog-workers", daemon=True)
        try:
            for thread in (*self._threads, keeper):
                thread.start()
        except BaseException:  # no more threads: a close of the log would wait for those that never end
            self.release()
            raise

    def __repr__(self) -> str:
        topics = ", ".join(repr(queue.topic) for queue in self._queues)
        return f"<embedlog.Workers of {topics}: {'ended' if self._ended.is_set else 'running'}>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.release()
        else:
            self.close()

    def stop(self) -> None:
        """Take no more jobs. Does not wait. Any thread and any signal handler may call it."""
        self._stopping.set()

    def wait(self) -> None:
        """Wait until the workers have been stopped and have finished the jobs in hand.

        If a handler raised something other than an Exception, e.g. SystemExit, `wait` raises it. Raises
        InvalidArgument in a handler, where it would wait for itself.
        """
        if self._is_handling():
            raise InvalidArgument("wait() in a handler would wait for itself: call stop()")
        self._ended.wait()
        if self._error is not None:
            raise self._error

    @closes
    def release(self) -> None:
        """Stop, and give back the jobs in hand, uncounted. Does not wait for handlers.

        A running function continues until it returns or the process ends. Coroutines are cancelled.
        """
        self.stop()
        self._close_queues()
        if self._loop is not None:
            self._loop.end()
        self._ended.set()

    @closes
    def close(self) -> None:
        """Stop, and wait for the jobs in hand; in a handler, stop only. Safe to call again."""
        if os.getpid() == self._pid:
            self.stop()
            if not self._is_handling():
                self._ended.wait()

    def _is_handling(self) -> bool:
        """Whether this is a thread in which handlers run."""
        thread = threading.current_thread()
        return thread in self._threads or (self._loop is not None and thread is self._loop.thread)

    def _prepare(self, log: QueueLog, declared: Worker, concurrency: int) -> None:
        serde = serde_of(declared.value_type, declared.values)
        queue: Queue[Any, Any] = Queue(log, declared.topic, declared.group, serde, **declared.options)
        self._queues.append(queue)
        function = declared.function
        name = f"embedlog-worker-{declared.topic}"
        if is_coroutine_function(function):
            if self._loop is None:
                self._loop = _Loop()
            feeding = _Feeding(self._loop, queue, function, concurrency, self._stopping, self._fail)
            targets = [functools.partial(self._feed, queue, feeding)]
        else:
            run = functools.partial(_run, queue, function, self._stopping)
            targets = [functools.partial(self._work, queue, run)] * concurrency
        for target in targets:
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))

    def _feed(self, queue: Queue[Any, Any], feeding: _Feeding) -> None:
        self._work(queue, feeding.run)
        feeding.wait_for_tasks()

    def _work(self, queue: Queue[Any, Any], run: Callable[[], None]) -> None:
        """Run in a thread until the queue stops, through errors of the log."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set:
            try:
                run()
                return
            except Closed:
                self.stop()  # the log may have been closed before it knew of the workers
                return
            except EmbedlogError:
                _logger.exception("%s: its worker goes on in %.1f s", queue.topic, pause_s)
            except BaseException as error:
                self._fail(error)
                return
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    def _fail(self, error: BaseException) -> None:
        """A handler has raised what ends a program."""
        self._error = error
        self.stop()

    def _keep(self) -> None:
        self._stopping.wait()
        for queue in self._queues:
            queue.stop()
        for thread in self._threads:
            thread.join()
        self._close_queues()
        if self._loop is not None:
            self._loop.end()
        self._ended.set()

    def _close_queues(self) -> None:
        for queue in self._queues:
            queue.close()


def _check_distinct(workers: Sequence[Worker]) -> None:
    if not workers:
        raise InvalidArgument("give the functions to run: each declared by @embedlog.worker")
    queues = set()
    for worker in workers:
        if (worker.topic, worker.group) in queues:
            raise InvalidArgument(
                f"two workers of topic {worker.topic!r} are of group {worker.group!r}, and each job would "
                "go to one of them: give each its group"
            )
        queues.add((worker.topic, worker.group))


def _run(queue: Queue[Any, Any], function: Callable[[Any], object], stopping: OneShotEvent) -> None:
    for job in queue:
        job._attempt(function)
        if stopping.is_set:
            return


class _Feeding:
    """Gives the jobs of a queue to tasks of an event loop. Run by one thread."""

    def __init__(
        self,
        loop: _Loop,
        queue: Queue[Any, Any],
        function: Callable[[Any], Any],
        concurrency: int,
        stopping: OneShotEvent,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._function = function
        self._concurrency = concurrency
        self._free = threading.Semaphore(concurrency)
        self._stopping = stopping
        self._fail = fail

    def run(self) -> None:
        while True:
            self._free.acquire()
            job_and_record = None
            try:
                if not self._stopping.is_set:
                    job_and_record = self._queue.intake.taken()
            finally:
                if job_and_record is None:
                    self._free.release()
            if job_and_record is None:
                return
            job = AsyncJob(
                self._queue.intake.source, *job_and_record, self._queue.intake.backoff, self._loop.run_to_end
            )
            self._loop.start(self._handle(job))

    def wait_for_tasks(self) -> None:
        """Wait until all have ended."""
        for _ in range(self._concurrency):
            self._free.acquire()

    async def _handle(self, job: AsyncJob[Any, Any]) -> None:
        import asyncio

        try:
            await job._attempt(self._function)
        except asyncio.CancelledError:
            pass  # the job was given back
        except EmbedlogError:
            _logger.exception("%r could not be settled", job)
        except BaseException as error:
            self._fail(error)
        finally:
            self._free.release()


class _Loop:
    """An event loop in a thread of its own, and threads for what would block it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_SETTLING_THREADS, "embedlog-settling")
        self._runs = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self._run, name="embedlog-loop", daemon=True)
        self.thread.start()
        self._runs.wait()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._start, work)
        except RuntimeError:  # it has ended: the job was given back
            work.close()

    def run_to_end(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """Run a call in a thread, to its end; awaited in the loop."""
        import asyncio

        return asyncio.shield(self._loop.run_in_executor(self._pool, call))

    def end(self) -> None:
        """Cancel what runs, and end. Does not wait."""
        try:
            self._loop.call_soon_threadsafe(self._end.set)
        except RuntimeError:
            pass  # it has ended

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # a loop refers to its tasks weakly
        task.add_done_callback(self._tasks.discard)

    @calls_out
    def _run(self) -> None:
        import asyncio

        async def until_end() -> None:
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            self._runs.set()
            await self._end.wait()

        asyncio.run(until_end())  # which cancels the tasks that are left
        self._pool.shutdown(wait=False)
