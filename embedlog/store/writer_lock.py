"""The writer's lock of a log directory, and what its holder says of itself.

embedlog.json    locked (flock) by the one writer; never replaced, so that two cannot hold its lock
writer.json      {"pid", "program", "since_ms", "broker"}, for people
                 "passing": true if the holder releases the lock in a moment (backends/tool_requests.py)
                 "max_bytes" if the log is bounded
                 "segment_manifests": true if it keeps them up to date (storage/segment_manifest.py)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ..config import UNLIMITED
from ..errors import CorruptCheckpoint, DirectoryLocked, ReadOnly, StorageError
from ..files.filesystem import FileSystem
from ..files.names import FORMAT_FILE, WRITER_FILE

UNWRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_MANIFESTS: Final = "segment_manifests"
_PASSING_S: Final = 30.0  # how long to wait for a writer that is about to release the lock
_RETRY_S: Final = 0.01


class WriterLock:
    """Takes the lock, and writes or reads its holder's file. Its one user takes turns.

    Args:
        read_json: reads a file at the root of the directory.
    """

    def __init__(self, fs: FileSystem, path: str, read_json: Callable[[str], dict[str, Any]]) -> None:
        self._fs = fs
        self._path = path
        self._read_json = read_json
        self._file = os.path.join(path, WRITER_FILE)
        self._holder: dict[str, Any] = {}  # what `note` wrote; changed by the holder's threads in turns

    def acquire(self) -> int:
        """Become the one writer. Returns the lock's descriptor; waits for a holder that is passing.

        Raises DirectoryLocked, ReadOnly.
        """
        looked, deadline = False, time.monotonic() + _PASSING_S
        while True:
            try:
                fd = self._fs.try_lock(os.path.join(self._path, FORMAT_FILE))
            except OSError as error:
                raise read_only(self._path, error) from error
            if fd is not None:
                return fd
            # A holder that has just got the lock may not have written its file: look twice.
            if looked and (not self._is_passing() or time.monotonic() > deadline):
                raise self._locked()
            looked = True
            time.sleep(_RETRY_S)

    def note(self, now_ms: int, *, passing: bool = False, max_bytes: int = UNLIMITED) -> None:
        """Say who holds the lock, whether it is released in a moment, and the log's max_bytes.

        Raises ReadOnly, OSError.
        """
        program = os.path.basename(sys.argv[0] or sys.executable) if sys.argv else "python"
        self._holder = {"pid": os.getpid(), "program": program, "since_ms": now_ms, "broker": None}
        if passing:
            self._holder["passing"] = True
        if max_bytes != UNLIMITED:
            self._holder["max_bytes"] = max_bytes
        if self.manifests_trusted():
            self._holder[_MANIFESTS] = True
        try:
            self._write()
        except OSError as error:
            if error.errno in UNWRITABLE:
                raise read_only(self._path, error) from error
            raise

    def note_broker(self, address: str | None) -> None:
        """Say at which host:port the holder serves the directory; None once it no longer does."""
        self._holder["broker"] = address
        with contextlib.suppress(OSError):  # the broker works without it
            self._write()

    def manifests_trusted(self) -> bool:
        """Whether the last writer kept the segment manifests up to date. Older versions do not."""
        try:
            return self._read_json(WRITER_FILE).get(_MANIFESTS) is True
        except FileNotFoundError:
            return True  # a copy of a directory
        except (OSError, StorageError, CorruptCheckpoint):
            return False

    @property
    def keeps_manifests(self) -> bool:
        """For the holder: whether the segment manifests are up to date."""
        return _MANIFESTS in self._holder

    def keep_manifests(self) -> None:
        """From now on the segment manifests can be trusted. Raises OSError."""
        if not self.keeps_manifests:
            self._holder[_MANIFESTS] = True
            self._write()

    def _write(self) -> None:
        # Not durable: after a crash of the machine it is of no use.
        self._fs.write_file(self._file, to_json(self._holder), durable=False)

    def _is_passing(self) -> bool:
        with contextlib.suppress(OSError, StorageError, CorruptCheckpoint):
            return self._read_json(WRITER_FILE).get("passing") is True
        return False

    def _locked(self) -> DirectoryLocked:
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, CorruptCheckpoint):
            holder = self._read_json(WRITER_FILE)
        pid, program, since_ms = holder.get("pid"), holder.get("program"), holder.get("since_ms")
        broker = holder.get("broker")
        owner = f"process {pid} ({program})" if pid != os.getpid() else "this process, by another handle"
        return DirectoryLocked(
            f"{self._path} is open for writing in {owner if pid else 'another process'}. "
            'Open it with mode="r" to read. '
            + (
                f'It is a broker: append through embedlog.open("kafka://{broker}")'
                if broker
                else "To append from several processes, open it with shared=True in each of them, "
                f"or run a broker: embedlog serve {self._path}"
            ),
            path=self._path,
            pid=pid,
            program=program,
            since_ms=since_ms,
            broker=broker,
        )


def read_only(path: str, error: OSError) -> ReadOnly:
    """The error for a directory that this process may not write."""
    return ReadOnly(f'{path} cannot be written ({error.strerror}); mode="r" reads it')


def to_json(value: object) -> bytes:
    """A file at the root of a log directory."""
    return (json.dumps(value, indent=1) + "\n").encode()
