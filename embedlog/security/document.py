"""A JSON file with secrets or rules, which several processes read and change.

    users.json       a broker reads it; `embedlog users` and the broker's administrators change it

A change takes a lock (`<file>.lock`), reads, and replaces the file: mode 0600, atomic, durable. A reader
notices the change when it next asks, at most check_s later; a damaged file is an error, never an empty
one, since an empty one might let everyone in.

Thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..errors import CorruptCheckpoint, StorageError
from ..files.filesystem import FileSystem
from ..runtime.locks import Lock
from .file_identity import file_identity

_MAX_BYTES: Final = 64 << 20
_LOCK: Final = ".lock"

Contents = Mapping[str, Any]


class Document:
    """One file. A file that does not exist reads as {}.

    Args:
        path: its path; its directory exists.
        version: of the format; the file says it, and another one is refused.
        check_s: how old what it returns may be; 0 looks at the file each time, which takes microseconds.
    """

    def __init__(
        self, path: str, version: int, fs: FileSystem | None = None, *, check_s: float = 0.5
    ) -> None:
        self.path = path
        self._version = version
        self._check_s = check_s
        self._fs = fs or FileSystem()
        self._lock = Lock()
        self._contents: Contents = {}
        self._identity: tuple[int, ...] = (-1,)
        self._checked = float("-inf")
        self._changes = 0

    @property
    def changes(self) -> int:
        """How many times other contents were found; what was derived from them holds while it stays the same.

        Raises as `read`.
        """
        if time.monotonic() - self._checked >= self._check_s:
            self._look()
        return self._changes

    def read(self) -> Contents:
        """What the file has, without its version. Not to be changed.

        Raises CorruptCheckpoint, StorageError.
        """
        if time.monotonic() - self._checked >= self._check_s:
            self._look()
        return self._contents

    def update(self, change: Callable[[dict[str, Any]], Contents]) -> None:
        """Replace the contents with what `change` makes of a copy; durable when this returns.

        If it raises, nothing has changed. Raises as `read`.
        """
        with self._exclusive():
            self._look()
            contents = change(json.loads(json.dumps(self._contents)))
            encoded = json.dumps({"version": self._version, **contents}, indent=1, sort_keys=True).encode()
            try:
                self._fs.write_file(self.path, encoded + b"\n", private=True)
            except OSError as error:
                raise StorageError(
                    f"{self.path} cannot be written: {error.strerror}", path=self.path
                ) from error
            self._look()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        import portalocker  # slow to import

        try:
            fd = os.open(self.path + _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"{error.filename} cannot be opened: {error.strerror}", path=self.path
            ) from error
        try:
            portalocker.lock(fd, portalocker.LockFlags.EXCLUSIVE)
            yield
        finally:
            os.close(fd)

    def _look(self) -> None:
        """Read the file if it is another one than the last time."""
        with self._lock:
            try:
                identity = _identity(self.path)
                if identity != self._identity:
                    self._contents = (
                        self._parse(self._fs.read_file(self.path, _MAX_BYTES)) if identity else {}
                    )
                    self._identity = identity
                    self._changes += 1
            except FileNotFoundError:  # replaced by nobody: removed in between
                self._contents, self._identity = {}, ()
                self._changes += 1
            except OSError as error:
                raise StorageError(f"{self.path} cannot be read: {error.strerror}", path=self.path) from error
            self._checked = time.monotonic()

    def _parse(self, encoded: bytes) -> Contents:
        try:
            contents = json.loads(encoded)
        except ValueError as error:
            raise CorruptCheckpoint(f"{self.path} is not JSON: {error}", path=self.path) from None
        if not isinstance(contents, dict) or contents.pop("version", None) != self._version:
            raise CorruptCheckpoint(f"{self.path} is not of version {self._version}", path=self.path)
        return contents


def _identity(path: str) -> tuple[int, ...]:
    """The file's identity; () if there is no file."""
    try:
        return file_identity(path)
    except FileNotFoundError:
        return ()
