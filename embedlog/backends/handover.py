"""Changes a log from a process that does not have it open for writing.

    the log is not open    open it, which recovers it and completes interrupted work; execute the request;
                           close it. A process that opens it meanwhile waits (store/catalog.py)
    the log is open        leave a request (requests.py), which the owner's attendant executes. The owner
                           may be another process, a broker, or another handle in this process
    the owner dies, or     the sender, which checks twice a second, opens the log itself and executes the
    closes the log         request: opening completes what the owner had begun, and nothing is done twice
    the owner does not     after TAKEN_WITHIN_S the request is withdrawn, with DirectoryLocked: the owner may
    take the request       run a version of embedlog without requests

A sender holds a lock on its request's file while it waits, so a request does not outlive its sender: if the
sender is killed before the owner takes the request, it is dropped; once taken, it is executed. A caller that
does not know the outcome repeats the request: the same atomic append, or the same offsets, change nothing the
second time.

A process that opens the log for a moment does not know the settings that the application gave to
`embedlog.open`: topics have their own settings, and the defaults.

Every function takes the log's directory, may be called from any thread and process, and raises DirectoryError
if there is no log or it cannot be opened. Errors of the owner are raised as such.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import DirectoryLocked, InvalidArgument, StorageError
from ..files.directory_watch import FALLBACK_MS, Watch
from ..files.filesystem import TEMPORARY, FileSystem
from ..files.names import REQUESTS_DIRECTORY
from ..groups.coordinator import GroupCoordinator
from ..model import CommittedOffset, TopicPartition
from ..store.catalog import Catalog
from ..store.store import Store
from ..validation import as_path
from .attendant import carry_out
from .requests import (
    ANSWER,
    REQUEST,
    TAKEN,
    Answer,
    AppendStaged,
    CommitOffsets,
    Discard,
    Request,
    decode_answer,
    encode_request,
)

TAKEN_WITHIN_S: Final = 30.0
"""An idle owner takes a request within milliseconds."""


def append_staged(
    path: str | os.PathLike[str],
    transaction_id: str,
    batch_id: int,
    staged: Mapping[TopicPartition, str | Sequence[str]],
    *,
    once: bool = False,
    taken_within_s: float = TAKEN_WITHIN_S,
) -> bool:
    """Append staged files to their partitions, all or none, whichever process has the log; durable on return.

    As atomic_append.append_atomically. Raises DirectoryLocked if the owner takes no requests; nothing was
    appended then.
    """
    named = {name: (files,) if isinstance(files, str) else tuple(files) for name, files in staged.items()}
    return bool(_done(path, AppendStaged(transaction_id, batch_id, named, once), taken_within_s))


def commit_offsets(
    path: str | os.PathLike[str],
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    taken_within_s: float = TAKEN_WITHIN_S,
) -> None:
    """Commit offsets of a group without members, whichever process has the log.

    Raises InvalidGroup, InvalidCommit, GroupError (it has members), StorageError, DirectoryLocked.
    """
    _done(path, CommitOffsets(group, dict(offsets)), taken_within_s)


def discard(path: str | os.PathLike[str], chosen: str, *, taken_within_s: float = TAKEN_WITHIN_S) -> int:
    """Remove the staged files of a set (staging.set_of), whichever process has the log; returns how many.

    For a job that has ended. Files of an atomic append in progress stay. Raises StorageError,
    DirectoryLocked.
    """
    return _done(path, Discard(chosen), taken_within_s)


def _done(path: str | os.PathLike[str], request: Request, taken_within_s: float) -> int:
    fs = FileSystem()
    catalog = Catalog(fs, as_path(path))
    catalog.load(None)
    try:
        return _alone(catalog.path, request)
    except DirectoryLocked:
        pass
    try:
        with _Sent(fs, catalog, request) as sent:
            return sent.wait(taken_within_s)
    except OSError as error:
        raise StorageError(f"{catalog.path}: a request cannot be left: {error}", path=catalog.path) from error


def _alone(path: str, request: Request) -> int:
    """Open the log, execute the request, close. Raises DirectoryLocked."""
    store = Store(path, background=False, passing=True)
    with contextlib.ExitStack() as last:
        last.callback(store.close)
        coordinator = GroupCoordinator(store)
        last.callback(coordinator.close)
        return carry_out(store, lambda: coordinator, request)


class _Sent:
    """A pending request, until it is answered or withdrawn."""

    def __init__(self, fs: FileSystem, catalog: Catalog, request: Request) -> None:
        self._fs = fs
        self._log = catalog.path
        self._request = request
        self._directory = catalog.file(REQUESTS_DIRECTORY)
        self._stem = os.path.join(self._directory, uuid.uuid4().hex)
        self._lock: int | None = None

    def __enter__(self) -> _Sent:
        with contextlib.suppress(FileExistsError):
            self._fs.make_dir(self._directory)
            self._fs.sync_dir(self._log)
        temporary = self._stem + REQUEST + TEMPORARY
        with self._fs.gone_on_error(temporary):
            fd = self._fs.open_write(temporary, create=True)
            try:
                self._fs.pwrite_all(fd, encode_request(self._request), 0)
                self._fs.sync(fd)
            finally:
                self._fs.close(fd)
            # Lock before the rename: an unlocked request has no sender.
            self._lock = self._fs.try_lock(temporary)
            self._fs.rename(temporary, self._stem + REQUEST)
        self._fs.sync_dir(self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        for suffix in (REQUEST, ANSWER):
            with contextlib.suppress(OSError):
                self._fs.unlink(self._stem + suffix)
        if self._lock is not None:
            self._fs.close(self._lock)

    def wait(self, taken_within_s: float) -> int:
        """Wait for the answer. Raises its error; DirectoryLocked."""
        now = time.monotonic()
        deadline, look = now + taken_within_s, now + FALLBACK_MS / 1000
        with Watch([self._directory]) as watch:
            while (answer := self._answer()) is None:
                now = time.monotonic()
                if any(name.endswith(TAKEN) for name in self._fs.names(self._directory)):
                    deadline = now + taken_within_s  # the owner is executing requests
                if now >= look:
                    look = now + FALLBACK_MS / 1000
                    try:
                        return _alone(self._log, self._request)
                    except DirectoryLocked as error:
                        if now > deadline and self._withdrawn():
                            raise self._not_taken(error, taken_within_s) from None
                watch.wait((look - now) * 1000)
        return answer.outcome()

    def _answer(self) -> Answer | None:
        try:
            return decode_answer(self._fs.read_file(self._stem + ANSWER))
        except FileNotFoundError:
            return None
        except InvalidArgument as error:
            return Answer(error=error)

    def _withdrawn(self) -> bool:
        """Withdraw the request. False if the owner has taken it."""
        try:
            self._fs.unlink(self._stem + REQUEST)
        except FileNotFoundError:
            return False
        return True

    def _not_taken(self, held: DirectoryLocked, waited_s: float) -> DirectoryLocked:
        return DirectoryLocked(
            f"{held} It was asked to do this for another process, and did not take the request for "
            f"{waited_s:,.0f} s: it may run a version of embedlog that takes none. Close it, or update it",
            path=held.path,
            pid=held.pid,
            program=held.program,
            since_ms=held.since_ms,
            broker=held.broker,
        )
