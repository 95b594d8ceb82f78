"""Keeps forks away from what a child must not inherit half done.

A forked child has only the thread that forked. What another thread was doing stays half done:
a module that it was importing stays locked, a descriptor that it had just opened is never closed.
Nor is one that it was closing: Python forgets a socket's descriptor first, and closes it without the GIL.

    with no_fork: ...       a fork of this process waits until the block ends
    forks                   differs in a forked child: cheaper to compare than the process id

Invariants: a block waits for nothing that a program may hold while it forks. Functions that are called before
a fork run in the reverse order of their registration: the locks that logging and thread pools take then are
taken after this one, so a block may log and may use a pool.
"""

from __future__ import annotations

import concurrent.futures.thread
import logging
import os
from typing import Final

from .locks import ReentrantLock

_REGISTERED_BEFORE: Final = (logging, concurrent.futures.thread)

no_fork: Final = ReentrantLock()
"""Held while a fork has to wait; reentrant, so that a block may fork itself."""

forks = 0
"""How many forks lie between this process and the one that has imported the module."""


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)
os.register_at_fork(after_in_child=_count_fork)
