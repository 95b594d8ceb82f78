"""A warehouse table's directory: one load at a time, and the atomic commit of its files.

    <table>/event_date=2013-01-01/part-00000007-00000.parquet   Hive's layout: any reader of Parquet reads it
            _bad/part-00000007-00000.parquet                    records that did not fit the schema
            _embedlog/manifest.json                             which of these files belong to it
            (manifest.py) _embedlog/lock                                      one load at a time: flock, and
            its holder _loading/00000007-6f3a.../...                       a load's files while they are
            written

    1  lock; remove what a killed load left: everything in _loading, and load files that the manifest lacks
    2  the load writes its files to a directory of its own in _loading
    3  commit: fsync each file, rename it to its place, fsync the directories
    4  write the manifest (fsync, rename, fsync its directory): this adds the files to the table
    5  remove the files that the manifest no longer lists (those that the load replaced)

Parquet readers skip names with a leading underscore. A reader that ignores the manifest always sees whole
files; but between 3 and 4 it sees files that are not in the table yet, and between 4 and 5 replaced ones.
After a kill in between, it does so until the next load.

A load's directory has a unique name: tasks of a killed load may still write for a moment, since a JVM
outlives its driver, and must not mix with the next load.

Invariants: a manifest lists only files that are durable in their places; only unlisted files with the name of
a load's file are ever removed; a directory with other files never becomes a table.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..errors import InvalidArgument, StorageError, TableError, TableLocked, shown
from ..files.filesystem import TEMPORARY, FileSystem
from ..validation import as_path
from .manifest import BAD_DIRECTORY, Manifest, from_bytes, is_date_directory, is_file_name, to_bytes

logger = logging.getLogger(__name__)

_OWN: Final = "_embedlog"
_LOADING: Final = "_loading"
_MANIFEST: Final = "manifest.json"
_LOCK: Final = "lock"
_LARGEST: Final = 1 << 30


class Table:
    """A table's directory. Opens files only when used. Not thread-safe."""

    def __init__(self, path: str | os.PathLike[str], fs: FileSystem | None = None) -> None:
        self.path = as_path(path, "to")
        if "://" in os.fspath(path):
            raise InvalidArgument(f"to={shown(path)}: a table is a directory of a mounted file system")
        self._fs = fs or FileSystem()

    def file(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def read(self) -> Manifest | None:
        """The current manifest; None if there is no table yet. Needs no lock.

        Raises TableError (something else is there), CorruptCheckpoint, UnsupportedFormat, StorageError.
        """
        path = self.file(_OWN, _MANIFEST)
        try:
            data = self._fs.read_file(path, _LARGEST)
        except FileNotFoundError:
            self._check_vacant()
            return None
        except NotADirectoryError:
            raise TableError(f"{self.path} is a file: a table is a directory") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error
        return from_bytes(data, path)

    def _check_vacant(self) -> None:
        try:
            names = self._fs.names(self.path)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise TableError(f"{self.path} is a file: a table is a directory") from None
        if _OWN in names and any(map(is_date_directory, names)):
            raise TableError(
                f"{self.file(_OWN, _MANIFEST)} is missing, and there are files of a table: restore it from a "
                "backup, or load into another table; nothing was changed"
            )
        if not names.keys() <= {_OWN}:
            raise TableError(
                f"{self.path} is not empty and not a table: name a new directory; nothing was changed"
            )

    # -- loading -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table's load lock; creates the directory if missing.

        Raises TableLocked, OSError.
        """
        os.makedirs(self.path, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._fs.make_dir(self.file(_OWN))
        path = self.file(_OWN, _LOCK)
        self._fs.close(self._fs.open_write(path, create=True))
        fd = self._fs.try_lock(path)
        if fd is None:
            raise self._held()
        try:
            who = {"pid": os.getpid(), "program": os.path.basename(sys.argv[0] or sys.executable)}
            data = json.dumps({**who, "since_ms": time.time_ns() // 1_000_000}).encode()
            self._fs.truncate(fd, 0)  # never replaced: another file could be locked by another load
            self._fs.pwrite_all(fd, data, 0)
            yield
        finally:
            self._fs.close(fd)

    def _held(self) -> TableLocked:
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            holder = dict(json.loads(self._fs.read_file(self.file(_OWN, _LOCK))))
        pid = holder.get("pid")
        who = f"process {pid} ({holder.get('program')})" if pid != os.getpid() else "this process"
        return TableLocked(
            f"{self.path} is being loaded by {who if pid else 'another process'}: one load at a time",
            pid=pid,
        )

    def create(self, manifest: Manifest) -> None:
        """Create an empty table durably. Call it within `locked`. Raises OSError."""
        self._write(manifest)
        self._fs.sync_dir(self.path)
        self._fs.sync_dir(os.path.dirname(self.path))

    def loading_directory(self, load: int) -> str:
        """The directory for a load's new files; it does not exist yet."""
        with contextlib.suppress(FileExistsError):
            self._fs.make_dir(self.file(_LOADING))
        return self.file(_LOADING, f"{load:08d}-{uuid.uuid4().hex}")

    def commit(self, manifest: Manifest, written: Mapping[str, str]) -> None:
        """Commit a manifest atomically. Call it within `locked`. Durable on return.

        Args:
            written: path in the table -> path where the load wrote it, for each new file of the manifest.

        Raises OSError: the table is then in its state before or after the commit.
        """
        fs = self._fs
        directories = set()
        for source in written.values():
            fd = fs.open_read(source)
            try:
                fs.sync(fd)
            finally:
                fs.close(fd)
        for path, source in written.items():
            directory = self.file(os.path.dirname(path))
            if directory not in directories and not fs.exists(directory):
                fs.make_dir(directory)
                directories.add(self.path)
            directories.add(directory)
            fs.rename(source, self.file(path))
        for directory in sorted(directories):
            fs.sync_dir(directory)
        self._write(manifest)
        try:
            self.tidy(manifest)
        except OSError as error:  # the next load retries
            logger.warning("%s: what the table does not list any more is still there: %s", self.path, error)

    def tidy(self, manifest: Manifest) -> None:
        """Remove files that the manifest does not list. Call it within `locked`. Raises OSError."""
        listed = manifest.paths()
        for directory in self._fs.names(self.path):
            if directory == BAD_DIRECTORY or is_date_directory(directory):
                self._tidy_directory(directory, listed)
        shutil.rmtree(self.file(_LOADING), ignore_errors=True)  # orphaned tasks may still write there
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(self.file(_OWN, _MANIFEST + TEMPORARY))

    def _tidy_directory(self, directory: str, listed: set[str]) -> None:
        names = self._fs.names(self.file(directory))
        for name in list(names):
            if is_file_name(name) and f"{directory}/{name}" not in listed:
                self._fs.unlink(self.file(directory, name))
                del names[name]
        if not names:
            self._fs.remove_dir(self.file(directory))

    def _write(self, manifest: Manifest) -> None:
        self._fs.write_file(self.file(_OWN, _MANIFEST), to_bytes(manifest))
