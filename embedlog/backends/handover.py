"""How a process that does not have a log open for writing gets something done in it.

    nobody has it open     it is opened, which recovers it and completes what was interrupted; the thing is
                           done, it is closed again. Who opens it meanwhile waits for that (store/catalog.py)
    somebody has           a request is left (requests.py), which the owner's attendant carries out. It may
                           be another process, a broker, or another handle in this very process
    the owner dies, or     the sender, who looks for that twice a second, opens the log itself, and does it:
    closes the log         what the owner had begun was completed by the opening, and is not done twice
    nobody takes it        after TAKEN_WITHIN_S it is withdrawn, and DirectoryLocked says so: the owner may
                           run a version of embedlog from before there were requests

A sender keeps its request's file locked while it waits. So a request lives no longer than its sender: one
whose sender was killed before it was taken is dropped, as if it had never been made; one that was taken is
carried out. Whoever does not know which it was asks again: the same publication, the same offsets change
nothing the second time.

Settings that the application gave to `embedlog.open` are not known to a process that opens the log for a
moment: topics have their own, and the defaults.

Every function here may be called from any thread and process, takes the log's directory, and raises
DirectoryError and its children where there is no log, or it cannot be opened; what the owner refuses is
raised as the error that it would be there.
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
    CommitOffsets,
    Discard,
    Publish,
    Request,
    decode_answer,
    encode_request,
)

TAKEN_WITHIN_S: Final = 30.0
"""An owner that is at nothing else takes a request within milliseconds."""


def publish(
    path: str | os.PathLike[str],
    transaction_id: str,
    batch_id: int,
    staged: Mapping[TopicPartition, str | Sequence[str]],
    *,
    once: bool = False,
    taken_within_s: float = TAKEN_WITHIN_S,
) -> bool:
    """Append staged files to their partitions, all or none, whoever has the log; durable on return.

    The arguments, what is returned and what is raised: as publication.publish. DirectoryLocked where the
    owner takes no requests; nothing was published then.
    """
    named = {name: (files,) if isinstance(files, str) else tuple(files) for name, files in staged.items()}
    return bool(_done(path, Publish(transaction_id, batch_id, named, once), taken_within_s))


def commit_offsets(
    path: str | os.PathLike[str],
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    taken_within_s: float = TAKEN_WITHIN_S,
) -> None:
    """Commit offsets for a group that has no members, whoever has the log.

    Raises InvalidGroup, InvalidCommit, GroupError (it has members), StorageError, DirectoryLocked.
    """
    _done(path, CommitOffsets(group, dict(offsets)), taken_within_s)


def discard(path: str | os.PathLike[str], chosen: str, *, taken_within_s: float = TAKEN_WITHIN_S) -> int:
    """Remove the staged files of a set (staged.set_of), whoever has the log; how many went.

    For a job that has ended. What a publication still needs stays. Raises StorageError, DirectoryLocked.
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
    """Open the log, do it, close. Raises DirectoryLocked where somebody else has it."""
    store = Store(path, background=False, passing=True)
    with contextlib.ExitStack() as last:
        last.callback(store.close)
        coordinator = GroupCoordinator(store)
        last.callback(coordinator.close)
        return carry_out(store, coordinator, request)


class _Sent:
    """A request that has been left, until it is answered or withdrawn."""

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
            # Before anybody sees it: an unlocked request is one whose sender is gone.
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
        """Until it is answered, by whomever. Raises what the answer says; DirectoryLocked."""
        now = time.monotonic()
        deadline, look = now + taken_within_s, now + FALLBACK_MS / 1000
        with Watch([self._directory]) as watch:
            while (answer := self._answer()) is None:
                now = time.monotonic()
                if any(name.endswith(TAKEN) for name in self._fs.names(self._directory)):
                    deadline = now + taken_within_s  # the owner is at work
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
        """False: it has been taken in the meantime."""
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
