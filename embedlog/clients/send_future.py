"""The future of a send: a `concurrent.futures.Future` that costs a fraction of one.

A Future brings a lock and a condition of its own, which takes longer than encoding and appending a record.
Records that travel in one batch arrive together, so theirs share one settlement, and the whole batch is
settled at once:

    batch --settlement--+-- future of record 0
                        +-- future of record 1 ...

For the caller it is a Future in everything: `result`, `add_done_callback`, `concurrent.futures.wait`,
`as_completed`, `asyncio.wrap_future`. It is running from its birth, so `cancel` does nothing and says so: a
record that was sent cannot be called back.

Invariants: all the futures of a settlement are settled together, exactly once, before their waiters are
woken; callbacks run after that, outside the lock; what a callback raises is logged and goes no further.
Ctrl-C in `result` or `exception` harms nobody else (runtime/wakeups.py).

Source of the idea: Kafka's FutureRecordMetadata, which shares its batch's ProduceRequestResult.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any

from ..model import RecordMetadata
from ..runtime.wakeups import OneShotEvent

_log = logging.getLogger(__name__)


class BatchResult:
    """What the futures of one batch share: the lock that a Future has, and the moment when they are done."""

    __slots__ = ("lock", "made", "watched")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.made = OneShotEvent()
        self.watched = False  # one of them has waiters, or callbacks of its own


class _Rare:
    """A list that few futures need: made when somebody asks for it."""

    def __set_name__(self, owner: type[SendFuture], name: str) -> None:
        self._name = name

    def __get__(self, future: SendFuture, owner: type[SendFuture]) -> list[Any]:
        future._settlement.watched = True
        made: list[Any] = future.__dict__.setdefault(self._name, [])
        return made


class SendFuture(Future[RecordMetadata]):
    """Settled by `settle` only, together with the others of its settlement."""

    _state = RUNNING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    _waiters = _Rare()
    _done_callbacks = _Rare()

    def __init__(self, settlement: BatchResult) -> None:
        # Not the inherited one: making a condition is what shall be avoided. Of that, only the lock is used.
        self._condition = settlement.lock  # type: ignore[assignment]
        self._settlement = settlement

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record landed. Raises what went wrong; TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is None:
            assert self._result is not None
            return self._result
        try:
            raise error
        finally:
            del error, self  # its traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, None where nothing did. Raises TimeoutError after `timeout` seconds."""
        if self._state != FINISHED and not self._settlement.made.wait(timeout):
            raise TimeoutError
        return self._exception


def settle(
    settlement: BatchResult,
    futures: Sequence[SendFuture],
    outcome: Sequence[RecordMetadata] | BaseException,
    callback: Callable[[RecordMetadata | None, BaseException | None], object] | None = None,
) -> None:
    """Give all the futures of a settlement their results (one each) or their one error, then call back.

    `callback(metadata, error)` is called once a future, behind that future's own callbacks.
    """
    with settlement.lock:
        if isinstance(outcome, BaseException):
            for future in futures:
                future._exception = outcome
                future._state = FINISHED
        else:
            for future, metadata in zip(futures, outcome, strict=True):
                future._result = metadata
                future._state = FINISHED
        if settlement.watched:
            for future in futures:
                for waiter in future._waiters:
                    if future._exception is None:
                        waiter.add_result(future)
                    else:
                        waiter.add_exception(future)
    settlement.made.set()
    watched = settlement.watched
    if watched or callback is not None:
        for future in futures:
            if watched:
                for done_callback in future._done_callbacks:
                    _call(done_callback, future)
            if callback is not None:
                _call(callback, future._result, future._exception)


def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except BaseException:
        # Not even SystemExit may end the thread on which other records depend.
        _log.exception("a producer's callback %r failed", callback)
