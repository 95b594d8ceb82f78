"""The owner's side of requests: executes what other processes ask of the process that holds the log's lock.

A thread of the owner sleeps until the kernel reports a change in requests/ (files/directory_watch.py);
without requests it costs a check every half second. For each request, the oldest first:

    1  try to lock its file: if that succeeds, its sender is dead or has given up; drop the request
    2  rename it to .taken: from here on it cannot be withdrawn
    3  execute it
    4  write the answer, remove the .taken file

A .taken file of an earlier owner is a request like any other: its sender, if it still waits, has no answer
yet. If step 3 was done already, repeating it changes nothing. Other files (answers not fetched, half-written
files) are removed after an hour.

Invariants: one request at a time; a request that fails is answered and affects no other; without the thread,
senders time out with an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import EmbedlogError, StorageError
from ..files.directory_watch import FALLBACK_MS, Watch
from ..files.names import REQUESTS_DIRECTORY
from ..runtime.uninterruptible import uninterruptible
from ..runtime.wakeups import OneShotEvent
from ..store.atomic_append import append_atomically, discard, tidy
from ..store.store import Store
from .requests import (
    ANSWER,
    REQUEST,
    TAKEN,
    Answer,
    CommitOffsets,
    Discard,
    Request,
    decode_request,
    encode_answer,
)

if TYPE_CHECKING:
    from ..groups.coordinator import GroupCoordinator

logger = logging.getLogger(__name__)

_LEFTOVER_MS: Final = 3_600_000
_LARGEST_REQUEST: Final = 16 << 20


def carry_out(store: Store, coordinator: Callable[[], GroupCoordinator], request: Request) -> int:
    """Execute a request. Durable on return, except offsets, which are as durable as any commit.

    Returns the result that requests.py defines for its kind. Raises EmbedlogError: nothing was done, or the
    next open completes it (see atomic_append.append_atomically).
    """
    try:
        if not isinstance(request, Discard):
            store.catalog.check_whole()
        if isinstance(request, CommitOffsets):
            coordinator().commit_offsets(request.group, request.offsets)
            return 1
        if isinstance(request, Discard):
            return discard(store, request.chosen)
        return append_atomically(
            store, request.transaction_id, request.batch_id, request.staged, once=request.once
        )
    except OSError as error:
        raise StorageError(f"{store.path}: {error}", path=store.path) from error
    finally:
        _tidy(store)


def _tidy(store: Store) -> None:
    with contextlib.suppress(EmbedlogError, OSError):  # the next request tidies
        tidy(store)


class Attendant:
    """The thread of an open log that executes requests. Thread-safe."""

    def __init__(self, store: Store, coordinator: Callable[[], GroupCoordinator]) -> None:
        self._store = store
        self._fs = store.fs
        self._coordinator = coordinator
        self._directory = store.catalog.file(REQUESTS_DIRECTORY)
        self._lock = threading.Lock()  # guards _watch: a closed watch must not be woken
        self._stopping = False
        self._ended = OneShotEvent()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""

        def begin() -> None:
            self._thread = threading.Thread(target=self._run, name="embedlog-attendant", daemon=True)
            self._thread.start()

        uninterruptible(begin)

    def stop(self) -> None:
        """Stop the thread after its current request; further requests stay in the directory."""
        with self._lock:
            self._stopping = True
            if self._watch is not None:
                self._watch.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._ended.wait()

    def abandon(self) -> None:
        """In a forked child: close the copies of descriptors; there is no thread."""
        self._stopping = True
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(OSError):
                watch.__exit__(None, None, None)

    def _run(self) -> None:
        try:
            _tidy(self._store)
            while not self._stopping:
                # Before the first request there is no directory: watch the log until it appears.
                there = self._fs.exists(self._directory)
                with Watch([self._directory if there else self._store.path]) as watch:
                    self._use(watch)
                    try:
                        while not self._stopping and self._fs.exists(self._directory) == there:
                            if there:
                                self.attend()
                            watch.wait(FALLBACK_MS)
                    finally:  # stop() must not wake a closed watch: its descriptors may be reused
                        self._use(None)
        except Exception:
            logger.exception("%s: requests of other processes are no longer executed", self._store.path)
        finally:
            self._ended.set()

    def _use(self, watch: Watch | None) -> None:
        with self._lock:
            self._watch = watch

    def attend(self) -> None:
        """Execute all requests in the directory."""
        try:
            entries = self._fs.list(self._directory)
        except OSError:  # try again at the next wake-up
            return
        for entry in sorted(entries, key=lambda entry: entry.mtime_ms):
            if self._stopping:
                return
            path = os.path.join(self._directory, entry.name)
            try:
                if entry.name.endswith((REQUEST, TAKEN)):
                    self._handle(path)
                elif entry.mtime_ms < self._store.clock_ms() - _LEFTOVER_MS:
                    self._fs.unlink(path)
            except FileNotFoundError:  # withdrawn, or fetched
                continue
            except Exception:
                logger.exception("%s", path)

    def _handle(self, path: str) -> None:
        """Handle one request, from its file to its answer. Raises OSError."""
        lock = self._fs.try_lock(path)
        if lock is not None:
            self._fs.unlink(path)
            self._fs.close(lock)
            logger.info("%s is dropped: its sender is gone", path)
            return
        taken = path if path.endswith(TAKEN) else path.removesuffix(REQUEST) + TAKEN
        if taken != path:
            self._fs.rename(path, taken)
        try:
            request = decode_request(self._fs.read_file(taken, _LARGEST_REQUEST))
            answer = Answer(carry_out(self._store, self._coordinator, request))
        except EmbedlogError as error:
            answer = Answer(error=error)
        except Exception as error:  # the sender must get an answer
            logger.exception("%s", path)
            answer = Answer(error=EmbedlogError(f"{type(error).__name__}: {error}"))
        # Not durable: after a crash of the machine the sender is gone, too.
        self._fs.write_file(taken.removesuffix(TAKEN) + ANSWER, encode_answer(answer), durable=False)
        self._fs.unlink(taken)
