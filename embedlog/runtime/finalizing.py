"""Cleans up after objects that are garbage-collected without `close`.

The garbage collector may run anywhere, even under a lock that the clean-up needs. So a finalizer only puts
the clean-up into a `SimpleQueue`, which is reentrant, and a thread of its own runs it. So does what a signal
handler cannot do, since it has interrupted the same.
"""

from __future__ import annotations

import _thread
import logging
import os
import queue
import weakref
from collections.abc import Callable

from ..errors import ConcurrentUse

_logger = logging.getLogger(__name__)

_queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_has_thread = False


def when_collected(owner: object, clean_up: Callable[[], None]) -> weakref.finalize[..., object]:
    """Run clean_up soon after the owner is garbage-collected. It must not refer to the owner.

    Not at the exit of the program. `detach` the result to call it off.
    """
    finalizer = weakref.finalize(owner, run_soon, clean_up)
    finalizer.atexit = False
    return finalizer


def run_soon(work: Callable[[], None]) -> None:
    """Run it in the thread. Callable under any lock."""
    global _has_thread
    if not _has_thread:
        try:
            _thread.start_new_thread(_run, (_queue,))  # threading.Thread would take locks
        except RuntimeError:
            return  # the program ends
        _has_thread = True
    _queue.put(work)


def now_or_soon(work: Callable[[], None]) -> None:
    """Do what must be done, here. If a signal handler or finalizer has interrupted just that, the thread does
    it afterwards."""
    try:
        work()
    except ConcurrentUse:
        run_soon(work)


def _run(works: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work = works.get()
        try:
            work()
        except Exception:
            _logger.exception("cleaning up after a garbage-collected object failed")
        # Release it now, not when the next one arrives.
        del work


def _forget_parent() -> None:
    """In a forked child: drop the parent's work."""
    global _queue, _has_thread
    _queue, _has_thread = queue.SimpleQueue(), False


os.register_at_fork(after_in_child=_forget_parent)
