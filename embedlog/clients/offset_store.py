"""Offsets outside the log: in a file, or with the application's results.

A process that opens a log with mode="r" cannot commit into it, and exactly-once processing needs offset and
result in one transaction. Both give the consumer an `OffsetStore`. `FileOffsetStore` is for the first case:

    {"version": 1,
     "groups": {"billing": {"clicks": {"0": {"offset": 120044, "leader_epoch": 3,
                                             "metadata": "", "commit_timestamp_ms": 1718000000000,
                                             "topic_id": "l7S--x86QoGx5Onftu4grw"}}}}}

Files of earlier versions have no topic_id, which such versions ignore.

Invariants: a save is atomic, and durable before it returns (temporary file, fsync, rename, fsync of the
directory); a lock on `<path>.lock` serializes saves of threads and processes; a file that cannot be parsed is
an error, never an empty store, since that would process everything twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import portalocker

from ..errors import CorruptCheckpoint, InvalidType, StorageError, shown
from ..files.filesystem import FileSystem
from ..model import NO_TIMESTAMP, CommittedOffset, TopicPartition
from ..validation import (
    as_path,
    as_topic_partition,
    as_topic_partitions,
    check_committed,
    check_group,
    check_topic_id,
)

_VERSION: Final = 1
_FIELDS: Final = {"offset": int, "leader_epoch": int, "metadata": str, "commit_timestamp_ms": int}

_Offsets = dict[TopicPartition, CommittedOffset]


class OffsetStore(Protocol):
    """Stores a consumer's offsets outside the log.

    The consumer calls both methods from the thread that uses it. Their errors propagate from the consumer's
    `poll` or `commit`. Keep `offset`, `leader_epoch` and `topic_id`: a consumer takes an offset without its
    topic_id for one of the topic that has the name now, even if that was deleted and created again.
    """

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The group's offsets of these partitions. Partitions without an offset are left out."""

    def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store these offsets. Those of other partitions stay unchanged."""


class FileOffsetStore:
    """Offsets of any number of groups in one JSON file, safe between threads and processes.

    Args:
        path: the file. The first save creates it, in an existing directory. The lock file `<path>.lock`
            beside it is never removed: otherwise two processes could hold the lock at once.

    Durability: `save` returns after the fsync. Source: the consumer of Kafka's design documents that "stores
    its offset in the same place as its output".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(as_path(path))
        self._fs = FileSystem()

    def __repr__(self) -> str:
        return f"<embedlog.FileOffsetStore {str(self._path)!r}>"

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The group's offsets of these partitions. Partitions without an offset are left out.

        Raises CorruptCheckpoint if the file cannot be parsed, StorageError if it cannot be read,
        InvalidGroup, InvalidType.
        """
        check_group(group)
        topic_partitions = as_topic_partitions(partitions)
        stored = self._read().get(group, {})
        return {tp: stored[tp] for tp in topic_partitions if tp in stored}

    def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store these offsets durably. Those of other partitions and groups stay unchanged.

        Blocks while another thread or process saves. Raises CorruptCheckpoint, StorageError, InvalidGroup,
        InvalidType, InvalidArgument, InvalidCommit, and leaves the file unchanged.
        """
        check_group(group)
        if not isinstance(offsets, Mapping):
            raise InvalidType(
                f"offsets must be a dict of TopicPartition -> CommittedOffset, not {shown(offsets)}"
            )
        commits = {as_topic_partition(name): committed for name, committed in offsets.items()}
        for name, committed in commits.items():
            check_committed(name, committed)
        now_ms = time.time_ns() // 1_000_000
        with self._locked():
            groups = self._read()
            stored = groups.setdefault(group, {})
            for tp, committed in commits.items():
                if committed.commit_timestamp_ms == NO_TIMESTAMP:
                    committed = committed._replace(commit_timestamp_ms=now_ms)
                stored[tp] = committed
            try:
                self._fs.write_file(str(self._path), _encoded(groups))
            except OSError as error:
                raise StorageError(f"cannot write {self._path}: {error}", path=self._path) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(open(f"{self._path}.lock", "ab"))
            except OSError as error:
                raise StorageError(f"cannot open {self._path}.lock: {error}", path=self._path) from error
            portalocker.lock(lock, portalocker.LockFlags.EXCLUSIVE)
            yield

    def _read(self) -> dict[str, _Offsets]:
        try:
            encoded = self._fs.read_file(str(self._path))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error}", path=self._path) from error
        try:
            return _decoded(encoded)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptCheckpoint(
                f"not an offset file of embedlog ({error}); move it away to start without offsets",
                path=self._path,
            ) from error


def _encoded(groups: Mapping[str, _Offsets]) -> bytes:
    tree: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for group, offsets in sorted(groups.items()):
        topics = tree.setdefault(group, {})
        for tp, committed in sorted(offsets.items()):
            topics.setdefault(tp.topic, {})[str(tp.partition)] = committed._asdict()
    return json.dumps({"version": _VERSION, "groups": tree}, indent=1).encode()


def _decoded(encoded: bytes) -> dict[str, _Offsets]:
    """The groups in the file. Raises ValueError, KeyError, TypeError or AttributeError if it is invalid."""
    root = json.loads(encoded)
    if root["version"] != _VERSION:
        raise ValueError(f"version {root['version']!r}, this program understands {_VERSION}")
    return {
        group: {
            TopicPartition(topic, int(number)): _committed(fields)
            for topic, numbers in topics.items()
            for number, fields in numbers.items()
        }
        for group, topics in root["groups"].items()
    }


def _committed(fields: Mapping[str, Any]) -> CommittedOffset:
    for name, field_type in _FIELDS.items():
        if type(fields[name]) is not field_type:
            raise ValueError(f"{name} is {fields[name]!r}")
    if fields["offset"] < 0:
        raise ValueError(f"offset is {fields['offset']}")
    topic_id = fields.get("topic_id", "")
    if topic_id != "":
        check_topic_id(topic_id)
    return CommittedOffset(**{name: fields[name] for name in _FIELDS}, topic_id=topic_id)
