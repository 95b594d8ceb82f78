"""How tasks wait for records without a thread for each.

    a log that calls back (the writer of a directory)    the listener of a partition wakes the task's loop
    any other (a reader process, brokers)                one thread waits for the partitions of all idle tasks

A `LoopInterrupt` is an interrupt (backends/port/) whose waiter is a task. Any thread may set it; it costs
nothing while its task is not asleep.

A task that goes to sleep sets the thread's own interrupt: the wait begins again with the task's partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Final

from ..backends.arrivals import PolledArrivals
from ..backends.port import Backend, Interrupt
from ..errors import EmbedlogError
from ..model import TopicPartition
from ..runtime.locks import Lock

_WAIT_MS: Final = 30_000
_PAUSE_S: Final = 0.1  # after a wait that failed: the task's next fetch raises the error


class LoopInterrupt(Interrupt):
    """An interrupt whose waiter is a task of `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._asleep: asyncio.Future[None] | None = None
        self._signalled = False
        signal_thread = self.signal  # for the moments in which a thread waits (`Consumer.close`)

        def signal() -> None:
            signal_thread()
            self._signalled = True
            if self._asleep is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._wake)

        self.signal = signal

    async def sleep(self, timeout_s: float) -> None:
        """Sleep until a signal, or for timeout_s. A signal since the last sleep ends it at once."""
        self._asleep = asleep = self._loop.create_future()
        timer = None
        try:
            if not self._signalled:  # looked at after `_asleep` is set
                if timeout_s < threading.TIMEOUT_MAX:
                    timer = self._loop.call_later(max(timeout_s, 0.0), self._wake)
                await asleep
        finally:
            self._asleep = None
            self._signalled = False
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


class Waiter:
    """Waits for the records of all idle tasks of a log, in one thread, which starts with the first."""

    def __init__(self, backend: Backend, *, read_committed: bool) -> None:
        self._backend = backend
        self._read_committed = read_committed
        self._lock = Lock()
        # Guarded by _lock.
        self._idle: dict[LoopInterrupt, tuple[PolledArrivals, dict[TopicPartition, int]]] = {}
        self._thread: threading.Thread | None = None
        self._changed = Interrupt()
        self._closed = False

    async def wait(self, arrivals: PolledArrivals, interrupt: LoopInterrupt, timeout_s: float) -> None:
        """Sleep until an expected partition may have records, a signal, or for timeout_s."""
        with self._lock:
            self._idle[interrupt] = arrivals, dict(arrivals.expected)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="embedlog-waiter", daemon=True)
                self._thread.start()
        self._changed.set()
        try:
            await interrupt.sleep(timeout_s)
        finally:
            with self._lock:
                self._idle.pop(interrupt, None)

    def close(self) -> None:
        """End the thread. Does not wait for it."""
        self._closed = True
        self._changed.set()

    def _run(self) -> None:
        while not self._closed:
            self._changed.clear()
            with self._lock:
                idle = dict(self._idle)
            if not idle:
                self._changed.wait(_WAIT_MS)
                continue
            positions: dict[TopicPartition, int] = {}
            for _, expected in idle.values():
                for tp, offset in expected.items():
                    positions[tp] = min(offset, positions.get(tp, offset))
            try:
                if self._backend.wait(
                    positions, _WAIT_MS, read_committed=self._read_committed, interrupt=self._changed
                ):
                    ready = {
                        interrupt: (arrivals, expected)
                        for interrupt, (arrivals, expected) in idle.items()
                        if arrivals.ask(expected)
                    }
                    self._wake(ready or idle)
            except EmbedlogError:
                # A deleted topic, say: the tasks find out which of them it concerns.
                self._wake(idle)
                time.sleep(_PAUSE_S)

    def _wake(self, idle: dict[LoopInterrupt, tuple[PolledArrivals, dict[TopicPartition, int]]]) -> None:
        """Wake these, which are idle no more: they say so again when they go back to sleep."""
        with self._lock:
            for interrupt in idle:
                self._idle.pop(interrupt, None)
        for interrupt, (arrivals, _) in idle.items():
            arrivals.waited()
            interrupt.signal()


class Waiters:
    """The waiters of a log, one for each isolation level."""

    def __init__(self, backend: Backend) -> None:
        self._waiters = {level: Waiter(backend, read_committed=level) for level in (False, True)}

    async def wait(
        self, arrivals: PolledArrivals, interrupt: LoopInterrupt, timeout_s: float, read_committed: bool
    ) -> None:
        """See `Waiter.wait`."""
        await self._waiters[read_committed].wait(arrivals, interrupt, timeout_s)

    def close(self) -> None:
        """End their threads. Does not wait."""
        for waiter in self._waiters.values():
            waiter.close()
