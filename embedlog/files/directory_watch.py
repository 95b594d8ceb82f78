"""Sleeps until another process changes a directory.

Linux has inotify, macOS and the BSDs have kqueue. Other systems, and network file
systems whose changes the kernel does not see, are polled every FALLBACK_MS. A watch may report spurious
changes, and may be up to FALLBACK_MS late, so the caller checks for itself after each wakeup.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Protocol, Self

FALLBACK_MS: Final = 500


class _Changes(Protocol):
    """A descriptor that becomes readable when something under the watched directories changes."""

    def fileno(self) -> int: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


if sys.platform == "linux":
    # IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE_SELF, IN_MOVE_SELF
    _EVENTS: Final = 0x2 | 0x80 | 0x100 | 0x400 | 0x800

    class _Inotify:
        """inotify(7), by the C library that this process has loaded."""

        def __init__(self, directories: Iterable[str]) -> None:
            import ctypes  # here: a small program waits for nothing

            def checked(result: int) -> int:
                if result < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                return result

            libc = ctypes.CDLL(None, use_errno=True)  # find_library would run ldconfig
            self._fd = checked(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
            try:
                for directory in directories:
                    with contextlib.suppress(FileNotFoundError):
                        checked(libc.inotify_add_watch(self._fd, os.fsencode(directory), _EVENTS))
            except OSError:
                self.close()
                raise

        def fileno(self) -> int:
            return self._fd

        def drain(self) -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 1 << 16)

        def close(self) -> None:
            os.close(self._fd)

    def _changes(directories: Iterable[str]) -> _Changes | None:
        try:
            return _Inotify(directories)
        except OSError:  # too many watches on this machine
            return None

elif hasattr(select, "kqueue"):

    class _Kqueue:
        """kqueue reports the growth of a file only to a watch on that file: the newest files are watched."""

        def __init__(self, directories: Iterable[str]) -> None:
            self._queue = select.kqueue()
            self._fds = []
            for directory in directories:
                names = sorted(os.listdir(directory))[-4:]
                for path in (directory, *(os.path.join(directory, name) for name in names)):
                    fd = os.open(path, os.O_RDONLY)
                    self._fds.append(fd)
                    event = select.kevent(
                        fd,
                        filter=select.KQ_FILTER_VNODE,
                        flags=select.KQ_EV_ADD | select.KQ_EV_CLEAR,
                        fflags=select.KQ_NOTE_WRITE | select.KQ_NOTE_EXTEND,
                    )
                    self._queue.control([event], 0)

        def fileno(self) -> int:
            return self._queue.fileno()

        def drain(self) -> None:
            self._queue.control(None, 64, 0)

        def close(self) -> None:
            self._queue.close()
            for fd in self._fds:
                os.close(fd)

    def _changes(directories: Iterable[str]) -> _Changes | None:
        try:
            return _Kqueue(directories)
        except OSError:
            return None

else:

    def _changes(directories: Iterable[str]) -> _Changes | None:
        return None


class Watch:
    """Waits for changes in directories, or for `wake`. For one thread; `wake` is thread-safe."""

    def __init__(self, directories: Iterable[str]) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        directories = list(directories)
        self._changes = _changes(directories) if directories else None
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)
        if self._changes is not None:
            self._poll.register(self._changes.fileno(), select.POLLIN)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writing, b".")

    def wait(self, timeout_ms: float) -> bool:
        """Sleep until a change, `wake` or the timeout (at most FALLBACK_MS). False after a timeout."""
        events = self._poll.poll(min(max(timeout_ms, 0), FALLBACK_MS))
        for fd, _ in events:
            if fd == self._reading:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reading, 4096)
            elif self._changes is not None:
                self._changes.drain()
        return bool(events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._changes is not None:
            self._changes.close()
        os.close(self._reading)
        os.close(self._writing)
