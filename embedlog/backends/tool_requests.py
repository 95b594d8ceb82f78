"""Changes a log for tools, such as a Spark job, whichever process owns it.

    no process owns the log    open it, which recovers it and completes interrupted work; execute the request;
                               close it. A process that opens it meanwhile waits (store/writer_lock.py)
    a process owns it          ask that process through the socket in the directory (owner_socket.py). It may
                               be another process, a broker, or another handle in this process
    the owner dies, or         the connection breaks: start again from the top. Opening the log completes what
    closes the log             the owner had begun, and nothing is done twice
    the owner does not         after ANSWERED_WITHIN_S give up, with DirectoryLocked: it may be stopped, or
    answer                     run a version of embedlog without a socket. It got no request

    the owner stops            (SIGSTOP, a debugger) after it got the request: when it has answered no other
    answering                  connection either for half a minute, RequestTimedOut; it may go on later

An owner that has a request is waited for as long as it lives. If the sender is killed before it has sent the
request, nothing is done; once sent, it is executed. A caller that does not know the outcome repeats the
request: the same atomic append, or the same offsets, change nothing the second time.

A process that opens the log for a moment does not know the settings that the application gave to
`embedlog.open`: topics have their own settings, and the defaults.

Every function takes the log's directory, may be called from any thread and process, and raises DirectoryError
if there is no log or it cannot be opened. Errors of the owner are raised as such.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ..errors import BrokerUnavailable, DirectoryLocked, RequestTimedOut
from ..files.filesystem import FileSystem
from ..files.names import SOCKET_FILE
from ..model import CommittedOffset, TopicPartition
from ..store.catalog import Catalog
from ..store.store import Store
from ..validation import as_path
from .local import WriterBackend
from .log_requests import LogCalls, LogRequests, encode

_T = TypeVar("_T")

ANSWERED_WITHIN_S: Final = 30.0
"""An owner answers a new connection within milliseconds, and the first one within a second."""

_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.05


def append_staged(
    path: str | os.PathLike[str],
    transaction_id: str,
    batch_id: int,
    staged: Mapping[TopicPartition, str | Sequence[str]],
    *,
    once: bool = False,
    answered_within_s: float = ANSWERED_WITHIN_S,
) -> bool:
    """Append staged files to their partitions, all or none, whichever process has the log; durable on return.

    As atomic_append.append_atomically. Raises DirectoryLocked if the owner does not answer; nothing was
    appended then. RequestTimedOut: it stopped answering once it had the request, which it may execute later.
    """
    return _done(
        path, lambda log: log.append_staged(transaction_id, batch_id, staged, once=once), answered_within_s
    )


def commit_offsets(
    path: str | os.PathLike[str],
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    answered_within_s: float = ANSWERED_WITHIN_S,
) -> None:
    """Commit offsets of a group without members, whichever process has the log.

    Raises InvalidGroup, InvalidCommit, GroupError (it has members), StorageError, DirectoryLocked.
    """
    _done(path, lambda log: log.commit_offsets(group, offsets), answered_within_s)


def abort_transaction(
    path: str | os.PathLike[str], transactional_id: str, *, answered_within_s: float = ANSWERED_WITHIN_S
) -> None:
    """Abort the open transaction of an id, whichever process has the log.

    Raises TransactionNotFound, ConcurrentTransactions, StorageError, DirectoryLocked.
    """
    _done(path, lambda log: log.abort_transaction(transactional_id), answered_within_s)


def discard(
    path: str | os.PathLike[str], chosen: str, *, answered_within_s: float = ANSWERED_WITHIN_S
) -> int:
    """Remove the staged files of a set (staging.set_of), whichever process has the log; returns how many.

    For a job that has ended. Files of an atomic append in progress stay. Raises StorageError,
    DirectoryLocked.
    """
    return _done(path, lambda log: log.discard(chosen), answered_within_s)


def _done(path: str | os.PathLike[str], call: Callable[[LogCalls], _T], answered_within_s: float) -> _T:
    catalog = Catalog(FileSystem(), as_path(path))
    catalog.load(None)
    owner = _Owner(catalog.file(SOCKET_FILE), answered_within_s)
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return _alone(catalog.path, call)
        except DirectoryLocked as error:
            lock_error = error
        try:
            return call(LogCalls(owner.ask))
        except BrokerUnavailable as error:  # it has ended, or does not listen yet
            if owner.has_request and isinstance(error, RequestTimedOut):
                raise
            if time.monotonic() > owner.deadline:
                raise _not_answered(lock_error, answered_within_s, error) from None
        time.sleep(pause)
        pause = min(pause * 2, _LAST_PAUSE_S)


def _alone(path: str, call: Callable[[LogCalls], _T]) -> _T:
    """Open the log, execute the request, close. Raises DirectoryLocked."""
    with contextlib.closing(WriterBackend(Store(path, background=False, passing=True))) as backend:
        return call(LogCalls(LogRequests(backend, shared=False).execute))


class _Owner:
    """Requests to the owner, each on a connection of its own.

    deadline: as of time.monotonic; when to give up an owner that does not answer.
    has_request: whether the last one asked got the request.
    """

    def __init__(self, path: str, answered_within_s: float) -> None:
        self._path = os.path.abspath(path)
        self._answered_within_s = answered_within_s
        self.has_request = False
        self.deadline = time.monotonic() + answered_within_s

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """A request's result. Raises the owner's error; BrokerUnavailable if no owner answers."""
        # A log that no process owns needs none of these.
        from ..wire.owner_apis import LogRequest
        from ..wire_client.connection import Connection
        from ..wire_client.settings import ClientSettings
        from .remote.maintenance import exchange, outcome

        request = LogRequest(name=name, arguments=encode(arguments))
        self.has_request = False
        connection = Connection((self._path, 0), ClientSettings(), self.deadline)
        with contextlib.closing(connection):
            self.has_request = True
            try:
                response = exchange(connection, request)
            finally:
                self.deadline = time.monotonic() + self._answered_within_s
        return outcome(response)


def _not_answered(lock_error: DirectoryLocked, waited_s: float, reason: BrokerUnavailable) -> DirectoryLocked:
    return DirectoryLocked(
        f"{lock_error} It was asked to do this for another process, and did not answer for {waited_s:,.0f} s "
        f"({reason}): it may run a version of embedlog that does not listen. Close it, or update it",
        path=lock_error.path,
        pid=lock_error.pid,
        program=lock_error.program,
        since_ms=lock_error.since_ms,
        broker=lock_error.broker,
    )
