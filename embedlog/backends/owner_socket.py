"""The socket of a log's owner: how other processes reach the one that has the directory open for writing.

    <directory>/embedlog.sock    a Unix socket with the directory's permissions

A thread sleeps until a process connects. Only then does it import and start what serves the socket
(owned_log.py), so a log without company costs a sleeping thread.

Programs that clean up may remove the socket. Its owner looks for it now and then, and makes it again.

Invariants: only the holder of the writer's lock listens; the socket is removed before the lock is released.
If a connection is refused, the owner has ended or is about to listen. A child that is forked while the server
starts inherits nothing of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..files import unix_sockets
from ..files.names import SOCKET_FILE
from ..runtime.locks import Lock
from ..runtime.uninterruptible import uninterruptible

if TYPE_CHECKING:
    from .owned_log import LogServer

logger = logging.getLogger(__name__)


_LOOK_MS: Final = 2_000


class OwnerSocket:
    """Listens for other processes. Thread-safe.

    Args:
        directory: the log's.
        before: called when the thread begins, which then waits for the first connection.
        serve: called at the first connection, with the listening socket and its path.
    """

    def __init__(
        self, directory: str, before: Callable[[], object], serve: Callable[[socket.socket, str], LogServer]
    ) -> None:
        self._before = before
        self._serve = serve
        self._directory = directory
        self._path = os.path.join(directory, SOCKET_FILE)
        self._lock = Lock()
        self.failure: OSError | None = None
        """Why other processes cannot connect, once `start` has returned; None if they can."""
        self._home: tuple[int, int] | None = None  # the identity of _directory
        self._identity: tuple[int, int] | None = None  # of the socket at _path
        # Guarded by _lock.
        self._listening: socket.socket | None = None
        self._server: LogServer | None = None
        self._stopping = False
        self._wakers: tuple[socket.socket, ...] = ()  # to wake the thread, and to be woken; none without it
        self._thread = threading.Thread(target=self._run, name="embedlog-owner", daemon=True)

    def start(self) -> None:
        """Listen, if the file system has sockets."""
        try:
            self._wakers = socket.socketpair()
            self._home = unix_sockets.identity(self._directory)
            self._listening = unix_sockets.listen(self._path)
            self._identity = unix_sockets.identity(self._path)
        except OSError as error:
            self.failure = error
            logger.info("%s: other processes cannot reach this log: %s", self._path, error)
            return
        uninterruptible(self._thread.start)

    def restore(self) -> int | None:
        """Make the socket again if it was removed. Returns in how many ms to look again; None: not at all."""
        if self._listening is None or self._stopping:
            return None
        if os.path.lexists(self._path):
            return _LOOK_MS
        from ..runtime.forking import no_fork

        with no_fork, self._lock, contextlib.suppress(OSError):
            # Another log may have taken the directory's name.
            if not self._stopping and unix_sockets.identity(self._directory) == self._home:
                before, self._listening = self._listening, unix_sockets.listen(self._path)
                self._identity = unix_sockets.identity(self._path)
                logger.warning("%s was removed, and was made again", self._path)
                if self._server is not None:
                    self._server.listen_on(self._listening)
                else:
                    before.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        return _LOOK_MS

    def stop(self) -> None:
        """Answer the requests that have begun, and listen no more."""
        with self._lock:
            self._stopping = True
            for waker in self._wakers[:1]:
                waker.close()
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join()
        if self._listening is not None:
            with contextlib.suppress(OSError):
                # Another log may have taken the directory's name, and another owner that of the socket.
                if unix_sockets.identity(self._path) == self._identity:
                    os.unlink(self._path)
        if self._server is not None:
            self._server.close()
        elif self._listening is not None:
            self._listening.close()
        for woken in self._wakers[1:]:
            woken.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets."""
        for copy in (self._listening, *self._wakers):
            if copy is not None:
                copy.close()
        if self._server is not None:
            self._server.abandon()

    def _run(self) -> None:
        """Sleep until a process connects, then serve."""
        self._before()
        while not self._connected():
            pass
        if self._stopping:
            return
        from ..runtime.forking import no_fork  # imported for the first connection, as all that serves it

        assert self._listening is not None
        try:
            with no_fork, self._lock:
                if not self._stopping:
                    self._server = self._serve(self._listening, self._path)
        except Exception:
            logger.exception("%s: other processes are not served", self._path)
            self._listening.close()

    def _connected(self) -> bool:
        """Sleep until a process connects, or until the end. False if the socket was made again."""
        listening = self._listening
        assert listening is not None
        waiting = select.poll()
        waiting.register(listening, select.POLLIN)
        waiting.register(self._wakers[1], select.POLLIN)
        waiting.poll()
        if listening is self._listening:
            return True
        listening.close()
        return self._stopping
