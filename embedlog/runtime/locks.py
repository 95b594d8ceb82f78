"""Locks for which no thread waits while it holds them itself.

Python runs a signal handler in the main thread, between any two bytecodes, and a finalizer in whatever thread
collects garbage. If they call embedlog, the call that they interrupted may hold what theirs needs, and it
goes on only after they have returned:

    main thread   append --append lock--> fsync, a signal: handler --> log.flush() --append lock--> for ever

    Lock            the thread that holds it gets ConcurrentUse at once
    ReentrantLock   the same, but a function may call others that enter it, too
    holds_up_others for a sleeper that has interrupted a call: does another thread wait for what that holds?

The stack tells a handler: between its calls and the call that it interrupted there are frames of the program.
A function of embedlog that calls functions of the program is marked by `calls_out`: it is not interrupted.

Invariants: Ctrl-C leaves no lock acquired (what enters a lock gives it back, what leaves it is C); a thread
that waits for another one says for what (`wait_for`).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ..errors import ConcurrentUse

# The one of C, which knows its thread; that of greenlets where gevent has replaced it.
_RLock: Final[Any] = type(threading.RLock())

_EMBEDLOG: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = os.path.join(_LIBRARY, "site-packages")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Held(Protocol):
    """What a thread may hold, so that others wait for it."""

    def _is_owned(self) -> bool:
        """Whether this thread holds it."""


class Thread:
    """The thread that makes this: others wait for something that it does."""

    __slots__ = ("ident",)

    def __init__(self) -> None:
        self.ident = threading.get_ident()

    def _is_owned(self) -> bool:
        return self.ident == threading.get_ident()


_waiting_for: Final[dict[int, Held]] = {}  # by thread
os.register_at_fork(after_in_child=_waiting_for.clear)  # the other threads are the parent's
_calling_out: Final[set[CodeType]] = set()


class Lock(_RLock):  # type: ignore[misc]  # no type has both
    """A lock for `with`. The thread that holds it gets ConcurrentUse if it comes again."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _is_owned(self) -> bool: ...
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...

    def __enter__(self) -> bool:
        if self._is_owned():
            raise would_deadlock()
        try:
            return self.acquire(False) or self.wait()
        except BaseException:  # Ctrl-C, after it was acquired
            if self._is_owned():
                self.release()
            raise

    def if_free(self, work: Callable[[], bool]) -> bool:
        """Call `work` with it, and return the result. False if a thread holds it."""
        if self._is_owned():
            return False
        try:
            if not self.acquire(False):
                return False
            result = work()
        except BaseException:  # as above
            if self._is_owned():
                self.release()
            raise
        self.release()
        return result

    def wait(self) -> bool:
        """Acquire it, whichever other thread holds it."""
        # With a timeout: polars has system calls restarted, so that a wait without one ignores Ctrl-C.
        return wait_for(self, lambda: self.acquire(timeout=threading.TIMEOUT_MAX))


class ConditionLock(Lock):
    """The lock of a `threading.Condition`, and so of a future.

    What leaves a Condition is Python, so that Ctrl-C may leave its lock acquired: the thread that holds it
    may enter it again. A handler that interrupts it there does no harm.
    """

    __slots__ = ()

    def __enter__(self) -> bool:
        return self.acquire(False) or self.wait()


class ReentrantLock(Lock):
    """A lock for `with` which a function may hold while it calls others that enter it, too.

    A signal handler or finalizer that has interrupted such a function gets ConcurrentUse.
    """

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        super().__init__()
        self._holder = 0  # the id of the frame that entered it first

    def __enter__(self) -> bool:
        if not self._is_owned():
            try:
                _ = self.acquire(False) or self.wait()
                self._holder = id(sys._getframe(1))
                return True
            except BaseException:  # as above
                if self._is_owned():
                    self.release()
                raise
        if interrupts(self._holder):
            raise would_deadlock()
        before = self._recursion_count()
        try:
            return self.acquire(False)
        except BaseException:  # Ctrl-C, after it was acquired
            if self._recursion_count() > before:
                self.release()
            raise

    if not hasattr(_RLock, "_recursion_count"):  # before Python 3.11.5

        def _recursion_count(self) -> int:
            return int(repr(self).partition("count=")[2].split()[0])


def calls_out(function: F) -> F:
    """Decorator: it calls functions of the program, which may call embedlog again."""
    _calling_out.add(function.__code__)
    return function


def interrupts(holder: int = 0) -> bool:
    """Whether the caller is a signal handler's or finalizer's, which has interrupted a call of embedlog.

    holder: the id of the frame to look down to; by default all of the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    programs = False  # frames of the program lie above
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if name.startswith(_EMBEDLOG):
            if programs and code not in _calling_out:
                return True
            programs = False
            if id(frame) == holder:
                return False
        elif name == weakref.__file__ or name.startswith(_INSTALLED) or not _is_in_library(name):
            programs = True
        frame = frame.f_back
    return False


def _is_in_library(file_name: str) -> bool:
    """Whether it is code of Python's library."""
    if file_name.startswith("<frozen "):
        return file_name[8:-1].partition(".")[0] in sys.stdlib_module_names
    return file_name.startswith(_LIBRARY)


def would_deadlock(outcome: str = "") -> ConcurrentUse:
    """The error of a call that waits for the one that it has interrupted."""
    return ConcurrentUse(
        "a signal handler or a finalizer has interrupted a call of embedlog, and needs what that call holds"
        f"{outcome}. It may call `close`; for anything else set a flag there, and act on it in the program"
    )


def wait_for(held: Held, wait: Callable[[], T]) -> T:
    """Call `wait`, which returns when another thread has released something."""
    thread = threading.get_ident()
    before = _waiting_for.get(thread)  # of the call that a handler has interrupted
    _waiting_for[thread] = held
    try:
        result = wait()
    finally:
        if before is None:
            _waiting_for.pop(thread, None)
        else:
            _waiting_for[thread] = before
    return result


def holds_up_others() -> bool:
    """Whether another thread waits for something that this one holds."""
    me = threading.get_ident()
    owned = [held._is_owned() for thread, held in list(_waiting_for.items()) if thread != me]
    return True in owned
