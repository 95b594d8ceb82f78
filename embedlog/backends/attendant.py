"""Does for other processes what only a log's owner can do: carries out the requests that they leave.

A thread of the owner's sleeps until the kernel says that something has changed in requests/
(files/directory_watch.py), so that a log nobody asks anything of pays a look every half second. For each
request, the oldest first:

    1  can its file be locked? Then its sender is dead, or has given up: the request is dropped
    2  rename it to .taken: from here on it cannot be withdrawn
    3  carry it out
    4  write the answer, remove the .taken file

What the owner before left taken is treated like any other request: its sender, if it still waits, has not
been answered. Should step 3 have been done already, doing it again changes nothing. What is here beside
requests (answers that nobody fetched, half-written files) goes when it is an hour old.

Invariants: one request at a time; one that fails is answered, and harms no other; nobody's life depends on
the thread: without it senders wait in vain, and say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Final

from ..errors import EmbedlogError, StorageError
from ..files.directory_watch import FALLBACK_MS, Watch
from ..files.names import REQUESTS_DIRECTORY
from ..groups.coordinator import GroupCoordinator
from ..runtime.uninterruptible import uninterruptible
from ..runtime.wakeups import OneShotEvent
from ..store.atomic_append import discard, publish, tidy
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

logger = logging.getLogger(__name__)

_LEFTOVER_MS: Final = 3_600_000
_LARGEST_REQUEST: Final = 16 << 20


def carry_out(store: Store, coordinator: GroupCoordinator, request: Request) -> int:
    """Do what is asked. Durable on return, but for offsets: these are as durable as any commit.

    Returns what `requests` says of each kind. Raises EmbedlogError: nothing was done, or it is done by the
    next open (see publication.publish).
    """
    try:
        if not isinstance(request, Discard):
            store.catalog.check_whole()
        if isinstance(request, CommitOffsets):
            coordinator.commit_offsets(request.group, request.offsets)
            return 1
        if isinstance(request, Discard):
            return discard(store, request.chosen)
        return publish(store, request.transaction_id, request.batch_id, request.staged, once=request.once)
    except OSError as error:
        raise StorageError(f"{store.path}: {error}", path=store.path) from error
    finally:
        _tidy(store)


def _tidy(store: Store) -> None:
    with contextlib.suppress(EmbedlogError, OSError):  # there is no hurry
        tidy(store)


class Attendant:
    """The thread of one open log that attends to requests. All methods are safe between threads."""

    def __init__(self, store: Store, coordinator: GroupCoordinator) -> None:
        self._store = store
        self._fs = store.fs
        self._coordinator = coordinator
        self._directory = store.catalog.file(REQUESTS_DIRECTORY)
        self._lock = threading.Lock()  # held while the watch changes: one that is closed must not be woken
        self._stopping = False
        self._ended = OneShotEvent()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to attend."""

        def begin() -> None:
            self._thread = threading.Thread(target=self._run, name="embedlog-attendant", daemon=True)
            self._thread.start()

        uninterruptible(begin)

    def stop(self) -> None:
        """End the thread, when the request that it is at is over; what else was asked is left."""
        with self._lock:
            self._stopping = True
            if self._watch is not None:
                self._watch.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._ended.wait()

    def abandon(self) -> None:
        """In a forked child: the thread is not there, and its descriptors are copies."""
        self._stopping = True
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(OSError):
                watch.__exit__(None, None, None)

    def _run(self) -> None:
        try:
            _tidy(self._store)
            while not self._stopping:
                # Nobody may have asked anything yet: then the log is watched, until there is a directory.
                there = self._fs.exists(self._directory)
                with Watch([self._directory if there else self._store.path]) as watch:
                    self._use(watch)
                    try:
                        while not self._stopping and self._fs.exists(self._directory) == there:
                            if there:
                                self.attend()
                            watch.wait(FALLBACK_MS)
                    finally:  # nobody may wake or close what is closed: its numbers are others' by then
                        self._use(None)
        except Exception:
            logger.exception("%s: requests of other processes are not attended to any more", self._store.path)
        finally:
            self._ended.set()

    def _use(self, watch: Watch | None) -> None:
        with self._lock:
            self._watch = watch

    def attend(self) -> None:
        """Carry out what has been asked."""
        try:
            entries = self._fs.list(self._directory)
        except OSError:  # a look in vain: there is the next one
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
        """One request, from its file to its answer, or to its end. Raises OSError."""
        lock = self._fs.try_lock(path)
        if lock is not None:
            self._fs.unlink(path)
            self._fs.close(lock)
            logger.info("%s is dropped: whoever asked is gone", path)
            return
        taken = path if path.endswith(TAKEN) else path.removesuffix(REQUEST) + TAKEN
        if taken != path:
            self._fs.rename(path, taken)
        try:
            request = decode_request(self._fs.read_file(taken, _LARGEST_REQUEST))
            answer = Answer(carry_out(self._store, self._coordinator, request))
        except EmbedlogError as error:
            answer = Answer(error=error)
        except Exception as error:  # whoever asked must hear of it
            logger.exception("%s", path)
            answer = Answer(error=EmbedlogError(f"{type(error).__name__}: {error}"))
        # Nobody needs an answer after a crash of the machine: it would have to be asked for again.
        self._fs.write_file(taken.removesuffix(TAKEN) + ANSWER, encode_answer(answer), durable=False)
        self._fs.unlink(taken)
