"""Futures whose lock is one of locks.py."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from .locks import ConditionLock


def new_future() -> Future[Any]:
    """A future for which `close` in a signal handler does not wait in vain."""
    future: Future[Any] = Future()
    future._condition = threading.Condition(ConditionLock())
    return future
