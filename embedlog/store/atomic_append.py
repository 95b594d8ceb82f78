"""Atomic append: files of batches go to several partitions, all or nothing, and only once.

For writers that prepare their batches elsewhere, such as the tasks of a Spark job, and append them together.
The batches lie in files under `staging/` (staging.py); one intent file, replaced atomically, decides:

    publish-intent                   {"version": 1, "transaction_id", "batch_id", "once",
                                      "appends": [{"topic", "partition", "file", "base_offset"}, ...]}
    published-transactions.json      {"version": 1, "transactions": {transaction_id: last batch_id},
                                      "once": [transaction_id, ...]}

    1  Validate every file; is there room for them?
    2  Keep other appenders out of the partitions and flush these. A partition's log end is the base offset of
       its first file; each further file starts where the one before it ends.
    3  Write the intent (fsync, rename, fsync the directory): from here on, the append will happen.
    4  Append each file, and flush.
    5  Remember the transaction, remove the intent, remove the files.

After a crash, the next open resumes at step 4. Because no other append comes between 2 and 5, a partition's
log end tells how far the append got: a file that starts at the end is appended whole, and of a file that
starts before it, the missing batches. A batch id not larger than the last one of its transaction id was
appended before: nothing happens, so a writer may safely ask again.

Invariants: one atomic append at a time; while an intent exists, no other one starts, and the staged files
that it names stay. A transaction that consists of one append (`once`) is remembered until REMEMBERED others
have been, so that the list does not grow forever.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ..codec import BatchHeader, correct_max_timestamps, set_append_time
from ..config import MAX_INT64
from ..errors import (
    CorruptCheckpoint,
    DiskFull,
    EmbedlogError,
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
from ..runtime.locks import ReentrantLock
from ..validation import as_topic_partition, check_flag, check_int, check_text, is_several
from . import staging
from .catalog import Catalog
from .partition_opener import INTERRUPTED
from .quota import Quota

logger = logging.getLogger(__name__)

REMEMBERED: Final = 1000
"""How many transactions that consist of one append are remembered."""

_SPARE_BYTES: Final = 16 << 20  # what an atomic append leaves free on the disk, for indexes and checkpoints

_Append: TypeAlias = Callable[[bytearray], Appended]


class AppendableStore(Protocol):
    """The store, as atomic appends use it."""

    fs: FileSystem
    catalog: Catalog
    topics_lock: ReentrantLock
    quota: Quota

    @property
    def path(self) -> str: ...

    @property
    def clock_ms(self) -> Callable[[], int]: ...

    def partition(self, topic: str, number: int) -> Partition: ...


class _Planned(NamedTuple):
    """One file, and its partition, which takes no other append meanwhile."""

    partition: Partition
    append: _Append
    file: str
    base_offset: int


class _Transactions(NamedTuple):
    last: dict[str, int]  # transaction id -> its last batch id
    once: list[str]  # transactions that consist of one append, the latest last

    def has(self, transaction_id: str, batch_id: int) -> bool:
        return batch_id <= self.last.get(transaction_id, -1) or transaction_id in self.once


def append_atomically(
    store: AppendableStore,
    transaction_id: str,
    batch_id: int,
    staged: Mapping[TopicPartition, str | Sequence[str]],
    *,
    once: bool = False,
) -> bool:
    """Append the staged files to their partitions, all or nothing; durable on return.

    Args:
        transaction_id: names the sequence of appends that batch_id counts (a streaming query, say).
        batch_id: grows with each append; one not larger than the last was appended before.
        staged: for each partition the name of a file in the staging directory, or of several in the order of
            their appends; complete and durable.
        once: this transaction id has no other append; it is forgotten after a while.

    Returns False if it was appended before; then only the files are removed.

    Raises InvalidArgument, InvalidType, TopicNotFound, PartitionNotFound, CorruptRecord (a staged file does
    not consist of valid batches), RecordTooLarge, InvalidTimestamp, DiskFull, LogFull, StorageError, OSError:
    nothing was appended. After an error past the intent, the partitions refuse appends and no other atomic
    append starts; the next open completes this one.
    """
    check_text("transaction_id", transaction_id)
    check_int("batch_id", batch_id, low=0, high=MAX_INT64)
    check_flag("once", once)
    files_by_partition = _checked_files(staged)
    files = [file for names in files_by_partition.values() for file in names]
    with store.topics_lock, contextlib.ExitStack() as stack:  # topics stay; other atomic appends wait
        if _transactions(store).has(transaction_id, batch_id):
            _remove(store, files)
            return False
        if store.fs.exists(store.catalog.file(INTENT_FILE)):
            raise StorageError(f"{store.path}: {INTERRUPTED}", path=store.catalog.file(INTENT_FILE))
        offsets = _validated(store, files_by_partition)
        planned = _planned(store, stack, files_by_partition, offsets)
        partitions = dict.fromkeys(plan.partition for plan in planned)
        try:
            _write_intent(store, transaction_id, batch_id, once, planned)
            for plan in planned:
                _append_missing(store, plan)
            for partition in partitions:
                partition.flush()
            _finish(store, transaction_id, batch_id, once, files)
        except BaseException:
            if store.fs.exists(store.catalog.file(INTENT_FILE)):
                # No append may follow half of this one: the log end would no longer tell how far it got.
                for partition in partitions:
                    partition.log.fail(INTERRUPTED)
            raise
    return True


def roll_forward(store: AppendableStore) -> None:
    """Complete an atomic append that a crash interrupted, if there is one.

    Raises CorruptCheckpoint if the intent is invalid or names a missing file; nothing was changed then.
    """
    intent = _intent(store)
    if intent is None:
        return
    path = store.catalog.file(INTENT_FILE)
    files = [file for *_, file, _ in intent.appends]
    if not _transactions(store).has(intent.transaction_id, intent.batch_id):
        for file in files:
            if not store.fs.exists(_staged_path(store, file)):
                raise CorruptCheckpoint(
                    f"it names {shown(file)}, which is missing in {STAGING_DIRECTORY}/: put it back, or "
                    "remove the intent, which drops those of its records that are not in the log yet",
                    path=path,
                )
        for topic, number, file, base_offset in intent.appends:
            try:
                partition = store.partition(topic, number)
            except TopicNotFound:
                logger.warning("%s: topic %s was deleted since; dropping its records", path, topic)
                continue
            with partition.appender.exclusively() as append:
                _append_missing(store, _Planned(partition, append, file, base_offset))
            partition.flush()
    _finish(store, intent.transaction_id, intent.batch_id, intent.once, files)


def discard(store: AppendableStore, set_name: str) -> int:
    """Remove the staged files of a set (staging.set_of), as its job has ended. Returns how many.

    Files that an interrupted append needs stay. Raises CorruptCheckpoint, InvalidArgument, StorageError.
    """
    staging.check_name(set_name)
    with store.topics_lock:
        directory = store.catalog.file(STAGING_DIRECTORY)
        return staging.discard(store.fs, directory, set_name, _needed(store))


def tidy(store: AppendableStore) -> int:
    """Remove the staged files of jobs that were killed long ago (staging.ABANDONED_MS). Returns how many.

    Raises CorruptCheckpoint, StorageError, OSError.
    """
    with store.topics_lock:
        directory = store.catalog.file(STAGING_DIRECTORY)
        return staging.tidy(store.fs, directory, store.clock_ms(), _needed(store))


def tidy_staging(store: AppendableStore) -> None:
    """As `tidy`; what fails is left to the next time."""
    with contextlib.suppress(EmbedlogError, OSError):
        tidy(store)


# -- before the intent -------------------------------------------------------------------------------------


def _checked_files(staged: object) -> dict[TopicPartition, tuple[str, ...]]:
    """Partition -> its files in order. Raises InvalidType, InvalidArgument."""
    if not isinstance(staged, Mapping):
        raise InvalidType(f"staged must map each TopicPartition to names of files; it is {shown(staged)}")
    files_by_partition = {}
    for name, files in staged.items():
        names = tuple(files) if is_several(files) else (files,)
        files_by_partition[as_topic_partition(name)] = tuple(staging.check_name(file) for file in names)
    all_files = [file for names in files_by_partition.values() for file in names]
    if len(set(all_files)) < len(all_files):
        raise InvalidArgument("a staged file is named twice")
    return files_by_partition


def _validated(
    store: AppendableStore, files_by_partition: Mapping[TopicPartition, Iterable[str]]
) -> dict[str, int]:
    """How many offsets each file takes. Raises unless all are valid and there is room for them."""
    offsets, total = {}, 0
    for name, files in sorted(files_by_partition.items()):
        partition = store.partition(*name)
        for file in files:
            path = _staged_path(store, file)
            content = staging.validate(store.fs, path, partition.settings, partition.appender.check_times)
            offsets[file] = content.offsets
            total += content.size
    if offsets:
        store.fs.sync_dir(store.catalog.file(STAGING_DIRECTORY))
    free = store.fs.free_bytes(store.path)
    if free < total + min(total, _SPARE_BYTES):
        raise DiskFull(
            f"{store.path}: no room to append {total:,} bytes ({free:,} bytes are free on the disk); "
            "nothing was appended",
            path=store.path,
        )
    store.quota.make_room(total)
    return offsets


def _planned(
    store: AppendableStore,
    stack: contextlib.ExitStack,
    files_by_partition: Mapping[TopicPartition, Iterable[str]],
    offsets: Mapping[str, int],
) -> list[_Planned]:
    """Keep other appenders out of the partitions, flush these, and assign base offsets to the files."""
    planned = []
    for name, files in sorted(files_by_partition.items()):
        partition = store.partition(*name)
        append = stack.enter_context(partition.appender.exclusively())
        partition.flush()
        base_offset = partition.offsets().log_end_offset
        for file in files:
            planned.append(_Planned(partition, append, file, base_offset))
            base_offset += offsets[file]
    return planned


# -- from the intent on ------------------------------------------------------------------------------------


class _Intent(NamedTuple):
    transaction_id: str
    batch_id: int
    once: bool
    appends: list[tuple[str, int, str, int]]


def _intent(store: AppendableStore) -> _Intent | None:
    """Read the intent; None if there is none. Raises CorruptCheckpoint."""
    try:
        intent_json = store.catalog.read_json(INTENT_FILE)
    except FileNotFoundError:
        return None
    try:
        if intent_json["version"] != 1:
            raise ValueError(f"unknown version {intent_json['version']!r}")
        appends = [
            (str(a["topic"]), int(a["partition"]), staging.check_name(a["file"]), int(a["base_offset"]))
            for a in intent_json["appends"]
        ]
        transaction_id, batch_id = str(intent_json["transaction_id"]), int(intent_json["batch_id"])
        return _Intent(transaction_id, batch_id, intent_json.get("once", False) is True, appends)
    except (KeyError, TypeError, ValueError, OverflowError, InvalidArgument) as error:
        path = store.catalog.file(INTENT_FILE)
        raise CorruptCheckpoint(f"not a publish intent ({error})", path=path) from error


def _write_intent(
    store: AppendableStore, transaction_id: str, batch_id: int, once: bool, planned: Iterable[_Planned]
) -> None:
    intent = {
        "version": 1,
        "transaction_id": transaction_id,
        "batch_id": batch_id,
        "once": once,
        "appends": [
            {**plan.partition.name._asdict(), "file": plan.file, "base_offset": plan.base_offset}
            for plan in planned
        ],
    }
    store.fs.write_file(store.catalog.file(INTENT_FILE), json.dumps(intent, indent=1).encode())


def _needed(store: AppendableStore) -> set[str]:
    intent = _intent(store)
    return set() if intent is None else {file for *_, file, _ in intent.appends}


def _append_missing(store: AppendableStore, plan: _Planned) -> None:
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
            correct_max_timestamps(batches)
            if settings.append_time:
                now = store.clock_ms()
                for header in missing:
                    set_append_time(batches, now, header.pos - start)
            plan.append(batches)


def _finish(
    store: AppendableStore, transaction_id: str, batch_id: int, once: bool, files: Iterable[str]
) -> None:
    last, remembered = _transactions(store)
    if once:
        remembered = [earlier_id for earlier_id in remembered if earlier_id != transaction_id]
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


def _transactions(store: AppendableStore) -> _Transactions:
    try:
        transactions_json = store.catalog.read_json(TRANSACTIONS_FILE)
    except FileNotFoundError:
        return _Transactions({}, [])
    last, once = transactions_json.get("transactions"), transactions_json.get("once", [])
    if (
        not isinstance(last, dict)
        or not isinstance(once, list)
        or not all(type(number) is int for number in last.values())
        or not all(isinstance(earlier_id, str) for earlier_id in once)
    ):
        raise CorruptCheckpoint(
            "not a list of transactions with their batch ids; restore it from a backup, or move it away if "
            "no job appends to this log any more",
            path=store.catalog.file(TRANSACTIONS_FILE),
        )
    return _Transactions(last, once)


def _staged_path(store: AppendableStore, file: str) -> str:
    return os.path.join(store.catalog.file(STAGING_DIRECTORY), staging.check_name(file))


def _remove(store: AppendableStore, files: Iterable[str]) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            store.fs.unlink(_staged_path(store, file))
