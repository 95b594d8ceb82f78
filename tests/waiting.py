"""Waiting for other threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do. The test's time limit bounds it."""
    while not condition():
        time.sleep(0.001)
