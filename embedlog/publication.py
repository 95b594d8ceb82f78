"""Appending to several partitions at once: all of it becomes part of the log, or none.

For writers that prepare their batches elsewhere (each task of a Spark job, say) and publish them together.
The batches lie in files under `staging/`; one intent file, atomically written, decides:

    staging/<name>                   record batches, one behind the other, durable
    publish-intent                   {"version": 1, "transaction_id", "batch_id",
                                      "appends": [{"topic", "partition", "file", "base_offset"}, ...]}
    published-transactions.json      {"version": 1, "transactions": {transaction_id: last batch_id}}

    1  keep other appenders out of the partitions, flush them; their ends are the base offsets
    2  write the intent (fsync, rename, fsync the directory): from here on it will happen
    3  append each file, flush
    4  remember the transaction, remove the intent, remove the files

Whoever opens the log after a crash carries on from step 3: a partition whose end is at its base offset
gets the whole file, one that is past it what is missing. Because nobody appends between 1 and 4, the end
tells exactly how far it got. A batch id that is not larger than the last one of its transaction id is
published already: nothing happens, so a writer may safely ask again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from .arguments import as_topic_partition, check_int, check_text
from .catalog import Catalog
from .codec import BatchHeader, scan
from .config import MAX_INT64
from .errors import CorruptCheckpoint, CorruptRecord, InvalidArgument, InvalidType, TopicNotFound, shown
from .filenames import INTENT_FILE, STAGING_DIRECTORY, TRANSACTIONS_FILE
from .fs import FileSystem
from .model import Appended, TopicPartition
from .partition import Partition

logger = logging.getLogger(__name__)

_STAGED_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}\Z")
_CHUNK: Final = 8 << 20


class Published(Protocol):
    """The store, as far as publishing knows it."""

    fs: FileSystem
    catalog: Catalog

    @property
    def path(self) -> str: ...

    def partition(self, topic: str, number: int) -> Partition: ...


class _Planned(NamedTuple):
    partition: Partition
    file: str
    base_offset: int


def staging_directory(store: Published) -> str:
    """Where batches to be published are staged; made at the first call."""
    path = store.catalog.file(STAGING_DIRECTORY)
    with contextlib.suppress(FileExistsError):
        store.fs.make_dir(path)
        store.fs.sync_dir(store.path)
    return path


def publish(
    store: Published, transaction_id: str, batch_id: int, staged: Mapping[TopicPartition, str]
) -> bool:
    """Append the staged files to their partitions, all or none; durable on return.

    Args:
        transaction_id: names the sequence of publications that batch_id counts (a streaming query, say).
        batch_id: grows with each publication; one that is not larger than the last was published already.
        staged: for each partition the name of a file in the staging directory, whole and durable.

    Returns False where it had been published before; then nothing was done, and the files are removed.

    Raises InvalidArgument, InvalidType, CorruptRecord (a staged file is not whole batches), StorageError,
    OSError. After an error past the intent the partitions refuse appends, and the next open goes on.
    """
    check_text("transaction_id", transaction_id)
    check_int("batch_id", batch_id, low=0, high=MAX_INT64)
    if not isinstance(staged, Mapping):
        raise InvalidType(f"staged must map each TopicPartition to a file's name, not be {shown(staged)}")
    staged = {as_topic_partition(name): file for name, file in staged.items()}
    if batch_id <= last_published(store, transaction_id):
        _remove(store, staged.values())
        return False
    with contextlib.ExitStack() as stack:
        appenders: dict[TopicPartition, Callable[[bytearray], Appended]] = {}
        planned = []
        for name, file in sorted(staged.items()):
            _check_staged(store, file)
            partition = store.partition(*name)
            appenders[name] = stack.enter_context(partition.exclusively())
            partition.flush()
            planned.append(_Planned(partition, file, partition.offsets().log_end_offset))
        intent = {
            "version": 1,
            "transaction_id": transaction_id,
            "batch_id": batch_id,
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
                plan.partition.flush()
            _finish(store, transaction_id, batch_id, staged.values())
        except Exception:
            # The intent may stand. Nobody may append behind half a publication: the end could then no
            # longer tell how far it got.
            for plan in planned:
                plan.partition.fail("a publication was interrupted; close the log and open it again")
            raise
    return True


def roll_forward(store: Published) -> None:
    """Carry on with a publication that a crash interrupted, if there is one.

    Raises CorruptCheckpoint where the intent cannot be understood; nothing was changed then.
    """
    try:
        intent = store.catalog.read_json(INTENT_FILE)
    except FileNotFoundError:
        return
    path = store.catalog.file(INTENT_FILE)
    try:
        if intent["version"] != 1:
            raise ValueError(f"unknown version {intent['version']!r}")
        transaction_id, batch_id = str(intent["transaction_id"]), int(intent["batch_id"])
        appends = [
            (str(a["topic"]), int(a["partition"]), str(a["file"]), int(a["base_offset"]))
            for a in intent["appends"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptCheckpoint(f"not a publish intent ({error})", path=path) from error
    done = batch_id <= last_published(store, transaction_id)
    for topic, number, file, base_offset in appends:
        if done:
            break
        try:
            partition = store.partition(topic, number)
        except TopicNotFound:
            logger.warning("%s: topic %s was deleted since; its part is dropped", path, topic)
            continue
        with partition.exclusively() as append:
            _append_missing(store, _Planned(partition, file, base_offset), append)
        partition.flush()
    _finish(store, transaction_id, batch_id, [file for _, _, file, _ in appends])


def last_published(store: Published, transaction_id: str) -> int:
    """The largest batch id published under a transaction id; -1 where there is none."""
    return _transactions(store).get(transaction_id, -1)


def _append_missing(store: Published, plan: _Planned, append: Callable[[bytearray], Appended]) -> None:
    """Append the batches of a staged file that are not in the partition yet."""
    end = plan.partition.offsets().log_end_offset
    offset = plan.base_offset
    for chunk, headers in _staged_batches(store, _staged_path(store, plan.file)):
        missing = None
        for header in headers:
            if offset >= end and missing is None:
                missing = header.pos
            offset += header.last_offset_delta + 1
        if missing is not None:
            append(bytearray(chunk[missing : headers[-1].pos + headers[-1].size]))


def _staged_batches(store: Published, path: str) -> Iterator[tuple[bytes, list[BatchHeader]]]:
    """A staged file's batches, in chunks. Raises CorruptRecord where it is anything but whole batches."""
    try:
        fd = store.fs.open_read(path)
    except FileNotFoundError:
        return  # published, and removed; only the intent was left
    try:
        size, pos, want = store.fs.size(path), 0, _CHUNK
        while pos < size:
            chunk = store.fs.pread(fd, min(want, size - pos), pos)
            found = scan(chunk)
            if found.error is not None or (not found.headers and len(chunk) == size - pos):
                raise CorruptRecord("a staged file must be whole record batches", path=path, pos=pos)
            if found.headers:
                yield chunk, found.headers
            pos += found.end
            want = _CHUNK if found.headers else 2 * want
    finally:
        store.fs.close(fd)


def _finish(store: Published, transaction_id: str, batch_id: int, files: Iterable[str]) -> None:
    transactions = {**_transactions(store), transaction_id: batch_id}
    text = json.dumps({"version": 1, "transactions": transactions}, indent=1)
    store.fs.write_file(store.catalog.file(TRANSACTIONS_FILE), text.encode())
    store.fs.unlink(store.catalog.file(INTENT_FILE))
    store.fs.sync_dir(store.path)
    _remove(store, files)


def _transactions(store: Published) -> dict[str, int]:
    try:
        transactions = store.catalog.read_json(TRANSACTIONS_FILE).get("transactions")
    except FileNotFoundError:
        return {}
    if not isinstance(transactions, dict) or not all(type(number) is int for number in transactions.values()):
        raise CorruptCheckpoint(
            "not a list of transactions with their batch ids; restore it from a backup, or move it away if "
            "nobody publishes into this log any more",
            path=store.catalog.file(TRANSACTIONS_FILE),
        )
    return transactions


def _check_staged(store: Published, file: str) -> None:
    """A name in the staging directory, of a file whose bytes are whole, intact batches."""
    path = _staged_path(store, file)
    if not store.fs.exists(path):
        raise InvalidArgument(f"nothing is staged as {file!r}")
    for _ in _staged_batches(store, path):
        pass


def _staged_path(store: Published, file: str) -> str:
    if not isinstance(file, str) or not _STAGED_NAME.match(file) or file in (".", ".."):
        raise InvalidArgument(f"{shown(file)} cannot name a staged file: use a-z A-Z 0-9 . _ -")
    return os.path.join(store.catalog.file(STAGING_DIRECTORY), file)


def _remove(store: Published, files: Iterable[str]) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            store.fs.unlink(_staged_path(store, file))
