"""A job: a record that was handed out, and how it ends.

    accept     it is done
    release    again, now or later; counted as a failure, or not
    reject     never again: to the dead letters
    renew      its lock starts over; the queue does that by itself while the job is in hand

    with job:   the block ends         -> accept
                raises an Exception    -> release after a back-off, or reject after the last delivery
                raises anything else   -> release, uncounted (Ctrl-C, SystemExit, cancellation)

As after any block of a transaction in Python, what was raised propagates. `_attempt` is for loops that go on
after a job that failed: `Queue.run`, and workers.

`Job` is for threads, `AsyncJob` for tasks. A block that settles its job itself is left alone at its end.

Back-off: backoff_ms doubles with each delivery up to max_backoff_ms; the delay is between half of that and
all of it, so that jobs that failed together do not come back together.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias

from ..errors import ForkedHandle, InvalidType, LockLost
from ..model import AcknowledgeType, Headers, K, Record, V, of_one_or_two
from ..runtime.closing import OfOneProcess
from ..runtime.locks import calls_out
from ..units import duration
from ..validation import check_flag, check_int
from .job_source import LOST, HeldJob, JobSource

LONGEST_DELAY_MS = 100 * 365 * 86_400_000
"""A century: what is later is a mistake, such as a timestamp given for a delay."""

_ACCEPT: Final = AcknowledgeType.ACCEPT
_DOUBLINGS = 40  # more exceed any delay

_logger = logging.getLogger(__name__)


class Backoff:
    """How long a failed job waits for its next delivery. Times in milliseconds."""

    __slots__ = ("_first_ms", "_most_ms")

    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first_ms = first_ms
        self._most_ms = most_ms

    def delay_ms(self, deliveries: int) -> int:
        """The delay after so many deliveries, the failed one included."""
        full = min(self._first_ms << min(deliveries - 1, _DOUBLINGS), self._most_ms)
        return random.randint(full // 2, full)


class _TakenJob(OfOneProcess, Generic[V, K]):
    """What both kinds of jobs have: the record, and the decisions at the end of a block."""

    __slots__ = ("_backoff", "_held", "_source", "record")

    def __init__(self, source: JobSource, held_job: HeldJob, record: Record[V, K], backoff: Backoff) -> None:
        self._source = source
        self._held = held_job
        self._backoff = backoff
        self.record = record

    @property
    def deliveries(self) -> int:
        return self._held.delivery.delivery_count

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def partition(self) -> int:
        return self._held.delivery.partition

    @property
    def offset(self) -> int:
        return self._held.delivery.offset

    @property
    def key(self) -> K | None:
        return self.record.key

    @property
    def value(self) -> V | None:
        return self.record.value

    @property
    def headers(self) -> Headers:
        return self.record.headers

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp_ms

    def __repr__(self) -> str:
        state = self._held.ended or "in hand"
        return f"<embedlog job {self._source.name_of(self._held)}: delivery {self.deliveries}, {state}>"

    def _accepting(self) -> Callable[[], None]:
        return partial(self._source.settle, self._held, _ACCEPT)

    def _releasing(self, delay_ms: int, counted: bool, error: str = "") -> Callable[[], None]:
        check_int("delay_ms", delay_ms, low=0, high=LONGEST_DELAY_MS)
        check_flag("counted", counted)
        kind = AcknowledgeType.RELEASE
        return partial(self._source.settle, self._held, kind, delay_ms=delay_ms, counted=counted, error=error)

    def _rejecting(self, error: str) -> Callable[[], None]:
        if not isinstance(error, str):
            raise InvalidType(f"error must be a str, not {type(error).__name__}")
        return partial(self._source.settle, self._held, AcknowledgeType.REJECT, error=_storable(error))

    def _renewing(self) -> Callable[[], None]:
        return partial(self._source.settle, self._held, AcknowledgeType.RENEW)

    @property
    def _is_open(self) -> bool:
        """Whether the block has left it to its end to settle the job."""
        return self._held.ended in ("", LOST)

    def _failed(self, error: BaseException, logged: bool) -> Callable[[], None]:
        """How the job goes on after what ended its block. logged: log it, since nothing else tells of it."""
        source, held_job, count = self._source, self._held, self.deliveries
        if held_job.ended:
            if logged:
                _logger.error(
                    "%s: failed after it was %s", source.name_of(held_job), held_job.ended, exc_info=error
                )
            return _nothing
        if source.is_forked or not isinstance(error, Exception):
            return self._releasing(0, False)
        name, max_deliveries = source.name_of(held_job), source.options.max_deliveries
        if count >= max_deliveries:
            if logged:
                _logger.error("%s: failed at its last delivery, %d", name, count, exc_info=error)
            return self._rejecting(error_line(error))
        delay_ms = self._backoff.delay_ms(count)
        if logged:
            again = "%s: failed at delivery %d of %d; again in %s"
            _logger.warning(again, name, count, max_deliveries, duration(delay_ms / 1000), exc_info=error)
        return self._releasing(delay_ms, True, error_line(error))

    def _lost(self, error: LockLost) -> None:
        """Nothing is left to do here: the job may be another's by now."""
        name = self._source.name_of(self._held)
        _logger.warning("%s: the block has ended after its lock: it may be done again (%s)", name, error)

    def _unsettled(self, error: Exception) -> None:
        """Nothing that fails at the end of a block may take the place of what ended it."""
        if isinstance(error, LockLost):
            self._lost(error)
        elif not isinstance(error, ForkedHandle):
            name = self._source.name_of(self._held)
            _logger.warning("%s: waits until its lock runs out: %s", name, error)


@of_one_or_two
class Job(_TakenJob[V, K]):
    """A job of a queue, locked for this process until it is settled. Threads may pass it on.

    Attributes:
        record: the `embedlog.Record`. The job has its fields, too, e.g. `job.value`, except timestamp_type.
        deliveries: how often it has been delivered, this time included, without uncounted deliveries.

    The end of a `with job:` block accepts the job (soon, with `accept_linger_ms`). What the block raises
    propagates. After an Exception the job is released with the queue's back-off, or rejected after its last
    delivery; after KeyboardInterrupt, SystemExit and the like it is released uncounted. `Queue.run` is a loop
    that goes on. A lock that has run out meanwhile is only logged: to act on LockLost, call `accept` in the
    block.

    All methods raise LockLost if the delivery is over: the job was settled, or its lock ran out and another
    worker may have it. They raise ForkedHandle in a forked child. They raise StorageError and
    BrokerUnavailable, after which you can try again. On return the change survives a crash of this process
    and, with the queue's flush=True, of the machine.
    """

    __slots__ = ()

    def accept(self) -> None:
        """Finish the job: it is never delivered again."""
        self._source.settle(self._held, _ACCEPT)

    def release(self, delay_ms: int = 0, *, counted: bool = True) -> None:
        """Have the job delivered again, after a delay. After its last counted delivery, reject it instead.

        With counted=False this delivery does not count, e.g. if the program ends and the job did not fail.
        """
        self._releasing(delay_ms, counted)()

    def reject(self, error: str) -> None:
        """Make the job a dead letter, with the reason, of which 4,000 characters are kept."""
        self._rejecting(error)()

    def renew(self) -> None:
        """Lock the job for `lock_ms` from now on. The queue does this by itself: use it to check a lock."""
        self._renewing()()

    def __enter__(self) -> Self:
        self._source.check_process()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    @calls_out
    def _attempt(self, handler: Callable[[Self], object]) -> None:
        """Call a function with the job, as in its block, but log an Exception instead of raising it."""
        self._source.check_process()
        try:
            handler(self)
        except Exception as error:
            self._end(error, logged=True)
            if self._source.is_forked:
                raise
        except BaseException as error:
            self._end(error)
            raise
        else:
            self._end()

    def _end(self, error: BaseException | None = None, *, logged: bool = False) -> None:
        if error is not None:
            try:
                self._failed(error, logged)()
            except Exception as unsettled:
                self._unsettled(unsettled)
            return
        try:
            if self._is_open and not self._source.accept_soon(self._held):
                self.accept()
        except LockLost as lost:
            self._lost(lost)


Run: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a call in a thread, to its end even if the task that awaits it is cancelled."""


@of_one_or_two
class AsyncJob(_TakenJob[V, K]):
    """A job for a task: as `embedlog.Job`, with `async with job:` and coroutines. Cancellation releases it
    uncounted. A task that is cancelled while it settles a job has settled it."""

    __slots__ = ("_run",)

    def __init__(
        self, source: JobSource, held_job: HeldJob, record: Record[V, K], backoff: Backoff, run: Run
    ) -> None:
        super().__init__(source, held_job, record, backoff)
        self._run = run

    async def accept(self) -> None:
        """See `embedlog.Job.accept`."""
        await self._run(self._accepting())

    async def release(self, delay_ms: int = 0, *, counted: bool = True) -> None:
        """See `embedlog.Job.release`."""
        await self._run(self._releasing(delay_ms, counted))

    async def reject(self, error: str) -> None:
        """See `embedlog.Job.reject`."""
        await self._run(self._rejecting(error))

    async def renew(self) -> None:
        """See `embedlog.Job.renew`."""
        await self._run(self._renewing())

    async def __aenter__(self) -> Self:
        self._source.check_process()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end(error)

    @calls_out
    async def _attempt(self, handler: Callable[[Self], Awaitable[object]]) -> None:
        """See `Job._attempt`."""
        self._source.check_process()
        try:
            await handler(self)
        except Exception as error:
            await self._end(error, logged=True)
            if self._source.is_forked:
                raise
        except BaseException as error:
            await self._end(error)
            raise
        else:
            await self._end()

    async def _end(self, error: BaseException | None = None, *, logged: bool = False) -> None:
        if error is not None:
            try:
                await self._run(self._failed(error, logged))
            except Exception as unsettled:
                self._unsettled(unsettled)
            return
        try:
            if self._is_open and not self._source.accept_soon(self._held):
                await self._run(self._accepting())
        except LockLost as lost:
            self._lost(lost)


def error_line(error: BaseException) -> str:
    """An error in one line, for the header of a dead letter."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a handler's class of errors may have bugs, too
        text = ""
    name = type(error).__name__
    return _storable(f"{name}: {text}" if text else name)


def _storable(text: str) -> str:
    """Why a job is rejected is no reason not to reject it: cut, and without what is not UTF-8."""
    return text.encode(errors="replace").decode()[:_ERROR_CHARACTERS]


_ERROR_CHARACTERS = 4_000  # as many are kept of a dead letter


def _nothing() -> None:
    pass
