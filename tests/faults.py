"""File systems that fail on demand, and one that knows what a power cut would leave.

    FaultyFileSystem   notes every call that changes something; fails, blocks or kills the process at one
    BlockingSync       stops at each fsync of a segment until a test lets it go on
    PowerCutFileSystem knows after each call what is on the medium at worst: contents as of the last fsync
                       of the file, names as of the last fsync of their directory

Not a mock: each call does the real thing, unless it is the one that is to fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from embedlog.backends.local import WriterBackend
from embedlog.config import LogSettings, TopicSettings, sorted_settings
from embedlog.files.filesystem import FileSystem
from embedlog.log import Log
from embedlog.open import log_over
from embedlog.partition import Partition
from embedlog.runtime.closing import open_handles
from embedlog.store.store import Store


class Call(NamedTuple):
    """A call that changes the disk; `path` is relative to the watched directory."""

    operation: str
    path: str


@dataclass
class Rule:
    """What happens at matching calls, `times` of them after the first `skip`."""

    operation: str
    action: Callable[[], None]
    path: str = ""
    skip: int = 0
    times: int = 1

    def applies(self, call: Call) -> bool:
        if self.times <= 0 or self.operation != call.operation or self.path not in call.path:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


FOREVER = 1 << 30


class FaultyFileSystem(FileSystem):
    """The real file system; notes its calls in `calls` and fails those that a rule matches."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(os.fspath(root))
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        self.rules: list[Rule] = []
        self.failed: list[Call] = []  # those to which a rule applied
        self.exit_before: int | None = None  # os._exit when so many calls have been made

    # -- what a test says --------------------------------------------------------------------------

    def fail(
        self, operation: str, number: int = errno.EIO, *, path: str = "", skip: int = 0, times: int = 1
    ) -> Rule:
        """Fail with an errno before anything is done, except that a write writes half."""

        def action() -> None:
            raise OSError(number, os.strerror(number))

        return self.at(operation, action, path=path, skip=skip, times=times)

    def at(
        self, operation: str, action: Callable[[], None], *, path: str = "", skip: int = 0, times: int = 1
    ) -> Rule:
        """Run a function before a call."""
        rule = Rule(operation, action, path, skip, times)
        self.rules.append(rule)
        return rule

    def count(self, operation: str, path: str = "") -> int:
        return sum(call.operation == operation and path in call.path for call in self.calls)

    def forget(self) -> None:
        """Clear the notes and the rules."""
        self.calls.clear()
        self.rules.clear()

    # -- the calls ---------------------------------------------------------------------------------

    def _note(self, operation: str, path: str) -> None:
        with self._lock:
            if self.exit_before is not None and len(self.calls) >= self.exit_before:
                os._exit(77)
            call = Call(operation, os.path.relpath(path, self._root))
            self.calls.append(call)
            rule = next((rule for rule in self.rules if rule.applies(call)), None)
        if rule is not None:
            self.failed.append(call)
            rule.action()

    def open_read(self, path: str) -> int:
        fd = super().open_read(path)
        self._paths[fd] = path
        return fd

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        if (create and not os.path.lexists(path)) or truncate:
            self._note("create", path)
        fd = super().open_write(path, create=create, truncate=truncate)
        self._paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self._reading(fd)
        return super().pread(fd, size, pos)

    def pread_into(self, fd: int, buffer: bytearray | memoryview, pos: int) -> int:
        self._reading(fd)
        return super().pread_into(fd, buffer, pos)

    def _reading(self, fd: int) -> None:
        path = self._paths.get(fd, "?")
        with self._lock:
            call = Call("pread", path)
            rule = next((rule for rule in self.rules if rule.applies(call)), None)
        if rule is not None:
            rule.action()

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        try:
            if len(data):  # nothing needs no room
                self._note("write", self._paths[fd])
        except OSError:
            super().pwrite_all(fd, memoryview(data)[: len(data) // 2], pos)
            raise
        super().pwrite_all(fd, data, pos)

    def sync(self, fd: int) -> None:
        self._note("sync", self._paths[fd])
        super().sync(fd)

    def sync_dir(self, path: str) -> None:
        self._note("sync_dir", path)
        super().sync_dir(path)

    def truncate(self, fd: int, size: int) -> None:
        self._note("truncate", self._paths[fd])
        super().truncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        self._note("allocate", self._paths[fd])
        super().allocate(fd, size)

    def rename(self, source: str, destination: str) -> None:
        self._note("rename", destination)
        super().rename(source, destination)

    def link(self, source: str, destination: str) -> None:
        self._note("link", destination)
        super().link(source, destination)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self._note("make_dir", path)
        super().make_dir(path)

    def remove_dir(self, path: str) -> None:
        self._note("remove_dir", path)
        super().remove_dir(path)


class BlockingSync(FaultyFileSystem):
    """Blocks fsync of segments until it is released; counts the calls."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.blocking = False
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.syncs = 0

    def sync(self, fd: int) -> None:
        if self.blocking and self._paths[fd].endswith(".kafka"):
            self.syncs += 1
            self.entered.release()
            self.go.acquire()
        super().sync(fd)


class UnsyncedFileSystem(FileSystem):
    """Skips fsync, for tests that open a thousand logs and cut no power."""

    def sync(self, fd: int) -> None: ...

    def sync_dir(self, path: str) -> None: ...


class Image(NamedTuple):
    """The contents of the medium: each file's relative path and bytes, and the directories."""

    files: dict[str, bytes]
    directories: frozenset[str]

    def write(self, destination: str | os.PathLike[str]) -> None:
        shutil.rmtree(destination, ignore_errors=True)
        os.makedirs(destination)
        for directory in sorted(self.directories):
            os.makedirs(os.path.join(destination, directory), exist_ok=True)
        for path, data in self.files.items():
            with open(os.path.join(destination, path), "wb") as file:
                file.write(data)


class PowerCutFileSystem(FaultyFileSystem):
    """Knows the worst outcome of a power cut: unsynced bytes and names are lost.

    A disk may keep more than that, in any mixture: `lost_data` alone keeps the names (as journalling file
    systems mostly do) and drops the bytes.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[str, dict[str, int]] = {}  # by directory

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        new = not os.path.lexists(path)
        fd = super().open_write(path, create=create, truncate=truncate)
        if new:
            self._contents.pop(os.fstat(fd).st_ino, None)  # the number may have been another file's
        return fd

    def sync(self, fd: int) -> None:
        super().sync(fd)
        with self._lock:
            size = os.fstat(fd).st_size
            self._contents[os.fstat(fd).st_ino] = os.pread(fd, size, 0)

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        with self._lock:
            relative = os.path.relpath(path, self._root)
            self._names[relative] = {entry.name: entry.inode() for entry in os.scandir(path)}

    def image(self) -> Image:
        """What would remain at worst: all that was fsynced and nothing else."""
        files: dict[str, bytes] = {}
        directories = set()
        pending = ["."]
        while pending:
            directory = pending.pop()
            for name, inode in self._names.get(directory, {}).items():
                path = os.path.normpath(os.path.join(directory, name))
                if os.path.isdir(os.path.join(self._root, path)) or path in self._names:
                    directories.add(path)
                    pending.append(path)
                else:
                    files[path] = self._contents.get(inode, b"")
        return Image(files, frozenset(directories))

    def lost_data(self) -> Image:
        """Current names, bytes as last fsynced."""
        files: dict[str, bytes] = {}
        directories = set()
        for directory, names, found in os.walk(self._root):
            relative = os.path.relpath(directory, self._root)
            directories.update(os.path.normpath(os.path.join(relative, name)) for name in names)
            for name in found:
                path = os.path.join(directory, name)
                content = self._contents.get(os.stat(path).st_ino, b"")
                files[os.path.normpath(os.path.join(relative, name))] = content
        return Image(files, frozenset(directories))


class Clock:
    """A clock that the test advances."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def open_log(
    path: str | os.PathLike[str],
    fs: FileSystem | None = None,
    *,
    clock: Clock | None = None,
    layout: str | None = None,
    **settings: Any,
) -> Log:
    """A log without background threads: `housekeeping.housekeep` runs flushes and maintenance.

    `settings` are those of the log and of its topics.
    """
    of_log, of_topics = sorted_settings(settings, LogSettings, TopicSettings)
    store = Store(
        os.path.realpath(os.fspath(path)),
        layout=layout,
        fs=fs,
        clock_ms=clock or Clock(),
        background=False,
        settings=LogSettings().with_changes(of_log),
        topic_settings=of_topics,
    )
    return log_over(store)


def store_of(log: Log) -> Store:
    return log._writer()


def partition_of(log: Log, topic: str = "t", number: int = 0) -> Partition:
    return store_of(log).partition(topic, number)


def crash(log: Log) -> None:
    """Release the directory as a killed process does: nothing is flushed or written.

    It ends the threads, too: a surviving one would close descriptors whose numbers are reused by then.
    """
    backend = log.backend
    assert isinstance(backend, WriterBackend)
    backend._socket.stop()
    store_of(log).background.stop()
    log._abandon()
    open_handles.discard(log)


def values(log: Log, topic: str = "t", partition: int = 0, **options: Any) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all readable records."""
    return [(record.offset, record.value) for record in log.read(topic, partition, **options)]


def in_child(work: Callable[[], Any]) -> int:
    """Run `work` in a forked child and return its exit status: 0 if it returned, 99 if it raised."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
