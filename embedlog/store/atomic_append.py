"""Appending to several partitions at once: all of it becomes part of the log, or none.

For writers that prepare their batches elsewhere (each task of a Spark job, say) and publish them together.
The batches lie in files under `staging/` (staging.py); one intent file, atomically written, decides:

    publish-intent                   {"version": 1, "transaction_id", "batch_id", "once",
                                      "appends": [{"topic", "partition", "file", "base_offset"}, ...]}
    published-transactions.json      {"version": 1, "transactions": {transaction_id: last batch_id},
                                      "once": [transaction_id, ...]}

    1  check every file; is there room for them?
    2  keep other appenders out of the partitions, flush them; their ends are the base offsets of their first
       files, and where a file's records end the next one of the partition begins
    3  write the intent (fsync, rename, fsync the directory): from here on it will happen
    4  append each file, flush
    5  remember the transaction, remove the intent, remove the files

Whoever opens the log after a crash carries on from step 4: a file that begins at the end of its partition is
appended whole, of one that begins before it what is missing. Because nobody appends between 2 and 5, the end
tells exactly how far it got. A batch id that is not larger than the last one of its transaction id is
published already: nothing happens, so a writer may safely ask again.

Invariants: one publication at a time; while an intent stands nothing else is published, and no staged file is
removed that it names. A transaction that is published once and never again (`once`) is remembered until
REMEMBERED others have been, so that the list of them does not grow for ever.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ..codec import BatchHeader, set_append_time
from ..config import MAX_INT64
from ..errors import (
    CorruptCheckpoint,
    DiskFull,
    InvalidArgument,
    InvalidType,
    StorageError,
    TopicNotFound,
    shown,
)
from ..files.filesystem import FileSystem
from ..files.names import INTENT_FILE, STAGING_DIRECTORY, TRANSACTIONS_FILE
from ..model import Appended, TopicPartition
from ..partition import Partition
from ..validation import as_topic_partition, check_flag, check_int, check_text, is_several
from . import staging
from .catalog import Catalog
from .quota import Quota

logger = logging.getLogger(__name__)

REMEMBERED: Final = 1000
"""How many transactions that were published once are remembered."""

_SPARE_BYTES: Final = 16 << 20  # what a publication leaves free on the disk, for all that is not records

_Append: TypeAlias = Callable[[bytearray], Appended]


class Published(Protocol):
    """The store, as far as publishing knows it."""

    fs: FileSystem
    catalog: Catalog
    topics_lock: threading.RLock
    quota: Quota

    @property
    def path(self) -> str: ...

    @property
    def clock_ms(self) -> Callable[[], int]: ...

    def partition(self, topic: str, number: int) -> Partition: ...


class _Planned(NamedTuple):
    partition: Partition
    file: str
    base_offset: int


class _Transactions(NamedTuple):
    last: dict[str, int]  # transaction id -> its last batch id
    once: list[str]  # those that were to be published once, the latest last

    def has(self, transaction_id: str, batch_id: int) -> bool:
        return batch_id <= self.last.get(transaction_id, -1) or transaction_id in self.once


def staging_directory(store: Published) -> str:
    """Where batches to be published are staged; made at the first call."""
    path = store.catalog.file(STAGING_DIRECTORY)
    with contextlib.suppress(FileExistsError):
        store.fs.make_dir(path)
        store.fs.sync_dir(store.path)
    return path


def publish(
    store: Published,
    transaction_id: str,
    batch_id: int,
    staged: Mapping[TopicPartition, str | Sequence[str]],
    *,
    once: bool = False,
) -> bool:
    """Append the staged files to their partitions, all or none; durable on return.

    Args:
        transaction_id: names the sequence of publications that batch_id counts (a streaming query, say).
        batch_id: grows with each publication; one that is not larger than the last was published already.
        staged: for each partition the name of a file in the staging directory, or of several in the order in
            which they are to be appended; whole and durable.
        once: there is no other publication with this transaction id; it is forgotten after a while.

    Returns False where it had been published before; then nothing was done, and the files are removed.

    Raises InvalidArgument, InvalidType, TopicNotFound, PartitionNotFound, CorruptRecord (a staged file is not
    whole batches), RecordTooLarge, DiskFull, LogFull, StorageError, OSError: nothing was published. After an
    error past the intent the partitions refuse appends, nothing else is published, and the next open goes on.
    """
    check_text("transaction_id", transaction_id)
    check_int("batch_id", batch_id, low=0, high=MAX_INT64)
    check_flag("once", once)
    named = _named(staged)
    files = [file for several in named.values() for file in several]
    with store.topics_lock, contextlib.ExitStack() as stack:  # topics stay; other publications wait
        if _transactions(store).has(transaction_id, batch_id):
            _remove(store, files)
            return False
        _check_no_intent(store)
        offsets = _examined(store, named)
        appenders: dict[TopicPartition, _Append] = {}
        planned: list[_Planned] = []
        for name, several in sorted(named.items()):
            partition = store.partition(*name)
            appenders[name] = stack.enter_context(partition.appender.exclusively())
            partition.flush()
            at = partition.offsets().log_end_offset
            for file in several:
                planned.append(_Planned(partition, file, at))
                at += offsets[file]
        intent = {
            "version": 1,
            "transaction_id": transaction_id,
            "batch_id": batch_id,
            "once": once,
            "appends": [
                {
                    "topic": plan.partition.name.topic,
                    "partition": plan.partition.name.partition,
                    "file": plan.file,
                    "base_offset": plan.base_offset,
                }
                for plan in planned
            ],
        }
        try:
            store.fs.write_file(store.catalog.file(INTENT_FILE), json.dumps(intent, indent=1).encode())
            for plan in planned:
                _append_missing(store, plan, appenders[plan.partition.name])
            for name in appenders:
                store.partition(*name).flush()
            _finish(store, transaction_id, batch_id, once, files)
        except BaseException:
            if store.fs.exists(store.catalog.file(INTENT_FILE)):
                # Nobody may append behind half a publication: the end could then no longer tell how far
                # it got.
                for name in appenders:
                    store.partition(*name).log.fail(
                        "a publication was interrupted; close the log and open it again"
                    )
            raise
    return True


def roll_forward(store: Published) -> None:
    """Carry on with a publication that a crash interrupted, if there is one.

    Raises CorruptCheckpoint where the intent cannot be understood, or names a file that is not there; nothing
    was changed then.
    """
    intent = _standing(store)
    if intent is None:
        return
    path = store.catalog.file(INTENT_FILE)
    files = [file for *_, file, _ in intent.appends]
    if not _transactions(store).has(intent.transaction_id, intent.batch_id):
        for file in files:
            if not store.fs.exists(_staged_path(store, file)):
                raise CorruptCheckpoint(
                    f"it publishes {shown(file)}, which is not in {STAGING_DIRECTORY}/ any more: put it "
                    "back, or remove the intent to give up what of its records is not in the log yet",
                    path=path,
                )
        for topic, number, file, base_offset in intent.appends:
            try:
                partition = store.partition(topic, number)
            except TopicNotFound:
                logger.warning("%s: topic %s was deleted since; its part is dropped", path, topic)
                continue
            with partition.appender.exclusively() as append:
                _append_missing(store, _Planned(partition, file, base_offset), append)
            partition.flush()
    _finish(store, intent.transaction_id, intent.batch_id, intent.once, files)


def last_published(store: Published, transaction_id: str) -> int:
    """The largest batch id published under a transaction id; -1 where there is none."""
    return _transactions(store).last.get(transaction_id, -1)


def discard(store: Published, chosen: str) -> int:
    """Remove what is staged in a set (staged.set_of), because its job has ended; how many files went.

    What an interrupted publication needs stays. Raises CorruptCheckpoint, InvalidArgument, StorageError.
    """
    staging.check_name(chosen)
    with store.topics_lock:
        directory = store.catalog.file(STAGING_DIRECTORY)
        return staging.discard(store.fs, directory, chosen, _needed(store))


def tidy(store: Published) -> int:
    """Remove the staged files of jobs that were killed long ago (staged.ABANDONED_MS); how many went.

    Raises CorruptCheckpoint, StorageError, OSError.
    """
    with store.topics_lock:
        directory = store.catalog.file(STAGING_DIRECTORY)
        return staging.tidy(store.fs, directory, store.clock_ms(), _needed(store))


# -- before the intent -------------------------------------------------------------------------------------


def _named(given: object) -> dict[TopicPartition, tuple[str, ...]]:
    """Partition -> its files in order. Raises InvalidType, InvalidArgument."""
    if not isinstance(given, Mapping):
        raise InvalidType(f"staged must map each TopicPartition to names of files, not be {shown(given)}")
    named = {}
    for name, files in given.items():
        several = tuple(files) if is_several(files) else (files,)
        named[as_topic_partition(name)] = tuple(staging.check_name(file) for file in several)
    every = [file for several in named.values() for file in several]
    if len(set(every)) < len(every):
        raise InvalidArgument("a staged file can be published once: one is named twice")
    return named


def _check_no_intent(store: Published) -> None:
    if store.fs.exists(store.catalog.file(INTENT_FILE)):
        raise StorageError(
            f"{store.path}: a publication was interrupted; close the log, and open it again to complete it",
            path=store.catalog.file(INTENT_FILE),
        )


def _examined(store: Published, named: Mapping[TopicPartition, Iterable[str]]) -> dict[str, int]:
    """How many offsets each file takes. All are sound, and there is room for them, or an error is raised."""
    offsets, total = {}, 0
    for name, several in sorted(named.items()):
        settings = store.partition(*name).settings
        for file in several:
            content = staging.examine(store.fs, _staged_path(store, file), settings)
            offsets[file] = content.offsets
            total += content.size
    if offsets:
        store.fs.sync_dir(store.catalog.file(STAGING_DIRECTORY))
    free = store.fs.free_bytes(store.path)
    if free < total + min(total, _SPARE_BYTES):
        raise DiskFull(
            f"{store.path}: to publish {total:,} bytes there is too little room ({free:,} bytes are free); "
            "nothing was published",
            path=store.path,
        )
    store.quota.make_room(total)
    return offsets


# -- behind it ---------------------------------------------------------------------------------------------


class _Intent(NamedTuple):
    transaction_id: str
    batch_id: int
    once: bool
    appends: list[tuple[str, int, str, int]]


def _standing(store: Published) -> _Intent | None:
    """The intent, where one stands. Raises CorruptCheckpoint."""
    try:
        found = store.catalog.read_json(INTENT_FILE)
    except FileNotFoundError:
        return None
    try:
        if found["version"] != 1:
            raise ValueError(f"unknown version {found['version']!r}")
        appends = [
            (str(a["topic"]), int(a["partition"]), staging.check_name(a["file"]), int(a["base_offset"]))
            for a in found["appends"]
        ]
        named = str(found["transaction_id"]), int(found["batch_id"])
        return _Intent(*named, found.get("once", False) is True, appends)
    except (KeyError, TypeError, ValueError, OverflowError, InvalidArgument) as error:
        path = store.catalog.file(INTENT_FILE)
        raise CorruptCheckpoint(f"not a publish intent ({error})", path=path) from error


def _needed(store: Published) -> set[str]:
    intent = _standing(store)
    return set() if intent is None else {file for *_, file, _ in intent.appends}


def _append_missing(store: Published, plan: _Planned, append: _Append) -> None:
    """Append the batches of a staged file that are not in the partition yet."""
    settings = plan.partition.settings
    end = plan.partition.offsets().log_end_offset
    offset = plan.base_offset
    size = min(staging.PIECE, settings.segment_bytes)
    for piece, headers in staging.pieces(store.fs, _staged_path(store, plan.file), size):
        missing: list[BatchHeader] = []
        for header in headers:
            if offset >= end:
                missing.append(header)
            offset += header.record_count
        if missing:
            start = missing[0].pos
            batches = bytearray(memoryview(piece)[start : missing[-1].pos + missing[-1].size])
            if settings.append_time:
                now = store.clock_ms()
                for header in missing:
                    set_append_time(batches, now, header.pos - start)
            append(batches)


def _finish(store: Published, transaction_id: str, batch_id: int, once: bool, files: Iterable[str]) -> None:
    last, remembered = _transactions(store)
    if once:
        remembered = [each for each in remembered if each != transaction_id]
        remembered = [*remembered, transaction_id][-REMEMBERED:]
    else:
        last = {**last, transaction_id: batch_id}
    body: dict[str, Any] = {"version": 1, "transactions": last}
    if remembered:
        body["once"] = remembered
    text = json.dumps(body, indent=1)
    store.fs.write_file(store.catalog.file(TRANSACTIONS_FILE), text.encode())
    store.fs.unlink(store.catalog.file(INTENT_FILE))
    store.fs.sync_dir(store.path)
    _remove(store, files)


def _transactions(store: Published) -> _Transactions:
    try:
        found = store.catalog.read_json(TRANSACTIONS_FILE)
    except FileNotFoundError:
        return _Transactions({}, [])
    last, once = found.get("transactions"), found.get("once", [])
    if (
        not isinstance(last, dict)
        or not isinstance(once, list)
        or not all(type(number) is int for number in last.values())
        or not all(isinstance(each, str) for each in once)
    ):
        raise CorruptCheckpoint(
            "not a list of transactions with their batch ids; restore it from a backup, or move it away if "
            "nobody publishes into this log any more",
            path=store.catalog.file(TRANSACTIONS_FILE),
        )
    return _Transactions(last, once)


def _staged_path(store: Published, file: str) -> str:
    return os.path.join(store.catalog.file(STAGING_DIRECTORY), staging.check_name(file))


def _remove(store: Published, files: Iterable[str]) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            store.fs.unlink(_staged_path(store, file))
