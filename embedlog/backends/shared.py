"""A log that several processes share: `embedlog.open("./data", shared=True)`.

    owner     holds the writer's lock, uses the store directly, listens on the directory's socket
    client    reads the files itself, as any reader process; everything else goes to the owner

              reads, waits, lookups  ->  FilesBackend                        the files
    client <                                                                   ^
              appends, groups, topics, maintenance  ->  RemoteBackend  ->  the owner's socket

Election: the process that gets the lock is the owner. The kernel releases the lock when a process ends,
however it ends. A client whose connection fails tries to take it. If it gets it, it recovers the log and
listens; its own requests go to the socket as before, which is now its own. Else it connects again.

A request under way when the owner ends is sent to the next one. An append is idempotent: its producer id and
sequence number are in the log, so the next owner recognizes a batch that was appended before.

Invariants: the lock decides alone, so there is one owner at a time; a client never reads past what the writer
states (storage/writer_state.py); whatever an append or a new topic has acknowledged, its client reads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from ..config import UNLIMITED, LogSettings, TopicSettings
from ..errors import (
    BrokerUnavailable,
    DirectoryError,
    DirectoryLocked,
    EmbedlogError,
    StorageError,
    UnsupportedByBackend,
)
from ..files.descriptors import default_open_files
from ..files.filesystem import FileSystem
from ..files.names import SOCKET_FILE
from ..model import Health
from ..recovery import Progress
from ..runtime.forking import no_fork
from ..runtime.locks import Lock
from ..runtime.preloading import preload
from ..store.read_only_store import ReadOnlyStore
from ..store.store import Store
from .local import WriterBackend
from .log_requests import LogCalls
from .owned_log import LoadServer
from .port import TopicConfigs
from .port.coordinators import ShareCoordinator
from .read_only import FilesBackend
from .remote import RemoteBackend
from .remote.groups import RemoteCoordinator
from .remote.topics import Topics
from .remote.transactions import RemoteTransactions

_OPEN_WITHIN_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.05
_CLIENT: Final = {
    "heartbeat_interval_ms": 500,
    "retry_backoff_ms": 5,
    "session_timeout_ms": 10_000,  # of a process that is stopped; one that ends leaves at once
}


class SharedDirectory:
    """A directory that this process shares with others: opens it as its owner or as a client."""

    def __init__(
        self,
        path: str,
        layout: str | None,
        log_settings: LogSettings,
        topic_settings: Mapping[str, Any],
        load_server: LoadServer,
        fs: FileSystem | None = None,
    ) -> None:
        self.path = path
        self._layout = layout
        self._log_settings = log_settings
        self._topic_settings = topic_settings
        self._load_server = load_server
        self._fs = fs

    def open(self, progress: Progress | None = None) -> WriterBackend | SharedBackend:
        """Own it if no process does, else reach its owner.

        Raises DirectoryLocked if the owner does not share it, and as `embedlog.open`.
        """
        deadline = time.monotonic() + _OPEN_WITHIN_S
        pause = _FIRST_PAUSE_S
        while True:
            try:
                with no_fork:  # a child that knows nothing of it would keep its copy of the lock
                    return self.own(progress)
            except DirectoryLocked as error:
                locked = error
            try:
                return self._reach()
            except UnsupportedByBackend:
                raise self._not_shared(locked) from None
            except (BrokerUnavailable, DirectoryError) as error:  # it has ended, or does not listen yet
                if time.monotonic() > deadline:
                    raise self._unanswered(locked, error) from None
            time.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_S)

    def own(self, progress: Progress | None = None) -> WriterBackend:
        """Open it as its owner. Raises DirectoryLocked at once if another process is."""
        settings = self._log_settings
        if settings.max_open_files == UNLIMITED:  # half is for the connections of clients
            settings = settings.with_changes({"max_open_files": default_open_files() // 2})
        store = Store(
            self.path,
            layout=self._layout,
            topic_settings=self._topic_settings,
            settings=settings,
            fs=self._fs,
            progress=progress,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(store.close)
            store.catalog.check_whole()
            backend = WriterBackend(store, self._load_server, shared=True)
            undo.callback(backend.close)
            if backend.unreachable is not None:
                raise StorageError(
                    f"{self.path} cannot be shared: {os.path.join(self.path, SOCKET_FILE)} cannot be made a "
                    f"Unix socket ({backend.unreachable.strerror}): remove what is there, or move the log to "
                    "a file system that has sockets",
                    path=self.path,
                )
            undo.pop_all()
        return backend

    def prepare_to_own(self) -> None:
        """Import what recovers the log, and what serves it to other processes."""
        from ..codec import sniff  # noqa: F401

        self._load_server()

    def _reach(self) -> SharedBackend:
        with contextlib.ExitStack() as undo:
            reading = ReadOnlyStore(
                self.path, layout=self._layout, topic_settings=self._topic_settings, fs=self._fs
            )
            undo.callback(reading.close)
            backend = SharedBackend(self, reading)
            undo.pop_all()
        return backend

    def _not_shared(self, locked: DirectoryLocked) -> DirectoryLocked:
        return self._held(locked, "which does not share it: open it with shared=True there, too")

    def _unanswered(self, locked: DirectoryLocked, error: EmbedlogError) -> DirectoryLocked:
        return self._held(
            locked,
            f"which does not answer ({error}): end that process if it hangs; then another one owns the log",
        )

    def _held(self, locked: DirectoryLocked, clause: str) -> DirectoryLocked:
        return DirectoryLocked(
            f"{self.path} is open for writing in process {locked.pid} ({locked.program}), {clause}",
            path=locked.path,
            pid=locked.pid,
            program=locked.program,
            since_ms=locked.since_ms,
            broker=locked.broker,
        )


class SharedBackend(FilesBackend):
    """A client's side of a shared log: the whole port."""

    mode = "rw"
    one_batch_per_append = True

    def __init__(self, directory: SharedDirectory, reading: ReadOnlyStore) -> None:
        """Raises BrokerUnavailable if no owner answers, UnsupportedByBackend if it does not share the log."""
        super().__init__(reading)
        self._directory = directory
        self._electing = Lock()
        # Both are guarded by _electing.
        self._owned: WriterBackend | None = None
        self._closed = False
        socket_path = os.path.join(directory.path, SOCKET_FILE)
        self._remote = RemoteBackend(directory.path, _CLIENT, [(socket_path, 0)], self._stand_for_owner)
        self.appenders = self._remote.appenders
        self.append = self._remote.append
        self.check_append = self._remote.check_append
        preload(directory.prepare_to_own)  # to be quick if it takes over

    @property
    def owned(self) -> WriterBackend | None:
        """The log itself, if this process has taken it over."""
        return self._owned

    @property
    def coordinator(self) -> RemoteCoordinator:
        return self._remote.coordinator

    def group_reader(self) -> RemoteCoordinator:
        return self._remote.coordinator

    @property
    def share_coordinator(self) -> ShareCoordinator:
        return self._remote.share_coordinator

    @property
    def transactions(self) -> RemoteTransactions:
        return self._remote.transactions

    @property
    def topic_admin(self) -> Topics:
        return self._remote.topic_admin

    @property
    def maintenance(self) -> LogCalls:
        return self._remote.maintenance

    def forget_metadata(self, topic: str) -> None:
        self._remote.forget_metadata(topic)  # what appends go by; the files are looked at each time

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._remote.topic_settings(topic)  # with the owner's defaults

    def topic_configs(self, topic: str) -> TopicConfigs:
        return self._remote.topic_configs(topic)

    def health(self) -> Health:
        return self._remote.health()

    def check_open(self) -> None:
        self._remote.check_open()

    def close(self) -> None:
        try:
            self._remote.close()
        finally:
            with self._electing:
                self._closed, owned = True, self._owned
            try:
                super().close()
            finally:
                if owned is not None:
                    owned.close()

    def abandon(self) -> None:
        self._electing = Lock()
        self._closed = True
        try:
            self._remote.abandon()
        finally:
            super().abandon()
            if self._owned is not None:
                self._owned.abandon()

    def _stand_for_owner(self) -> None:
        """The owner does not answer: become the owner if there is none. Raises as `SharedDirectory.own`."""
        self._electing.if_free(self._elect)  # else another thread does

    def _elect(self) -> bool:
        """Try to own the directory; returns whether it does now. The caller holds _electing."""
        if self._owned is None and not self._closed:
            with contextlib.suppress(DirectoryLocked), no_fork:  # as in SharedDirectory.open
                self._owned = self._directory.own()
        return self._owned is not None
