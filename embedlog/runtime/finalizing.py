"""Cleans up after objects that are garbage-collected without `close`.

The garbage collector may run anywhere, even under a lock that the clean-up needs. So a finalizer only puts
the clean-up into a `SimpleQueue`, which is reentrant, and a thread of its own runs it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable

_logger = logging.getLogger(__name__)

_queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def when_collected(owner: object, clean_up: Callable[[], None]) -> weakref.finalize[..., object]:
    """Run clean_up soon after the owner is garbage-collected. It must not refer to the owner.

    Not at the exit of the program. `detach` the result to call it off.
    """
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="embedlog-finalizing", daemon=True)
            _thread.start()
    finalizer = weakref.finalize(owner, run_soon, clean_up)
    finalizer.atexit = False
    return finalizer


def run_soon(work: Callable[[], None]) -> None:
    """Run it in the thread. Callable under any lock."""
    _queue.put(work)


def _run() -> None:
    while True:
        work = _queue.get()
        try:
            work()
        except Exception:
            _logger.exception("cleaning up after a garbage-collected object failed")
        # Release it now, not when the next one arrives.
        del work


def _forget_parent() -> None:
    """In a forked child: drop the parent's work, and a lock that may be held forever."""
    global _queue, _lock, _thread
    _queue, _lock, _thread = queue.SimpleQueue(), threading.Lock(), None


os.register_at_fork(after_in_child=_forget_parent)
