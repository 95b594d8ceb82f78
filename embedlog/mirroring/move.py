"""Moves a log from a directory to brokers: the copy, the cut-over, the proof.

    check      what the target would refuse or lose: nothing is changed before it finds nothing
    copy       a mirror copies while the application goes on, and carries the groups' offsets
    fence      once the directory has no writer, a durable mark keeps all writers out (store/fence.py)
    copy       the mirror copies what was appended since
    compare    each partition's records in both logs, counted and digested

Each step is found again by what it left: the mirror's position, the mark. So a move that was stopped or
killed is continued by running it again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from ..clients.partition_reader import PartitionReader
from ..codec import BatchHeader, decode
from ..codec.fetch_decoder import Chunk
from ..codec.rules import Rules
from ..errors import DirectoryError, InvalidArgument, InvalidSetting, LogMoved
from ..log import Log
from ..model import Record, TopicDescription, TopicPartition
from ..open import open as open_log
from ..runtime.closing import Closing, closes
from ..store.fence import fence, moved
from ..validation import as_path
from ..wording import counted
from .group_sync import MIRRORS
from .mirror import Mirror
from .source import CLIENT_SETTINGS, Source
from .status import MirrorStatus
from .target import target_of
from .topic_maker import TopicMaker

_ALL: Final = re.compile(".*")
_NO_VALUE: Final = b"\xff\xff\xff\xff"
_DIGEST_BYTES: Final = 16

Progress = Callable[[str, int, int], object]
"""Called with a topic, how many of its offsets are done, and how many there are."""


class Obstacle(NamedTuple):
    """What the check has found. `partition` is None if it is about the whole topic, `topic` is "" if it is
    about the log. One that `blocks` is to be settled before the move."""

    topic: str
    partition: int | None
    problem: str
    blocks: bool


class ComparedTopic(NamedTuple):
    """A topic in both logs. `records` are the source's; the target has `more`: newer ones, older ones, which
    the source has deleted, or repeated ones. `differing` are the partitions of which the target does not hold
    the source's records, each once and in order."""

    topic: str
    partitions: int
    records: int
    more: int
    differing: tuple[int, ...]


class Move(Closing):
    """Moves a log to brokers. A context manager.

    Args:
        source: the directory. It may have a writer until `fence`.
        target: "kafka://host:port,...".
        group, replication_factor: as of Mirror.
        target_settings: client settings (ClientSettings, client_config) of the target.

    Raises InvalidArgument, and the errors of `embedlog.open`; LogMoved if the log has moved elsewhere.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        group: str = MIRRORS,
        replication_factor: int | None = None,
        target_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = as_path(source, "source")
        if "://" in str(source) or not isinstance(target, str) or "://" not in target:
            raise InvalidArgument(
                "a move goes from a directory to brokers (kafka://host:port); `embedlog mirror` copies in "
                "other directions"
            )
        self.target = target
        self._mark = moved(self.source)
        if self._mark is not None and self._mark.to != target:
            raise LogMoved(
                f"{self.source} has moved to {self._mark.to} already",
                path=self.source,
                to=self._mark.to,
                since_ms=self._mark.since_ms,
            )
        self._group = group
        self._replication_factor = replication_factor
        self._source = Source(self.source)
        try:
            self._target = open_log(target, **{**CLIENT_SETTINGS, **(target_settings or {})})
        except BaseException:
            self._source.close()
            raise
        self._settings = target_settings

    @property
    def is_fenced(self) -> bool:
        """Whether the source is fenced off already."""
        return self._mark is not None

    # -- checking --------------------------------------------------------------------------------------

    def check(self, progress: Progress | None = None) -> list[Obstacle]:
        """Find what the target would refuse or lose. Changes nothing; reads each batch once, and the records
        of topics that are compacted in the target."""
        topics = self._topics()
        obstacles = list(_colliding([topic.name for topic in topics]))
        maker = TopicMaker(self._target.backend, self._replication_factor)
        positions_of = target_of(self._target, self._group).positions
        for topic in topics:

            def positions(topic: TopicDescription = topic) -> object:
                return positions_of(self._source, topic)

            try:
                planned = maker.check(self._source, topic, positions)
            except (InvalidSetting, InvalidArgument) as error:
                obstacles.append(Obstacle(topic.name, None, str(error), True))
                continue
            for setting, why in planned.omitted.items():
                obstacles.append(Obstacle(topic.name, None, f"made without {setting}: {why}", False))
            if planned.existing is not None:
                obstacles += self._in_the_way(topic, planned.existing, positions)
            for partition in range(topic.partitions):
                obstacles += self._unfit(topic, partition, planned.effective, progress)
        if not os.access(self.source, os.W_OK):
            obstacles.append(
                Obstacle("", None, "the directory cannot be written, so not be fenced off", True)
            )
        return obstacles + list(self._left_behind())

    def _topics(self) -> list[TopicDescription]:
        return self._source.topics(_ALL, None)

    def _in_the_way(
        self, topic: TopicDescription, existing: TopicDescription, positions: Callable[[], object]
    ) -> Iterator[Obstacle]:
        if existing.partitions > topic.partitions:
            yield Obstacle(
                topic.name,
                None,
                f"has {existing.partitions} partitions there and {topic.partitions} here: records of a key "
                "would continue in another partition",
                True,
            )
        edges = self._target.backend.offsets(topic.name)
        there = sum(edge.log_end_offset - edge.log_start_offset for edge in edges.values())
        if there and not positions():
            yield Obstacle(
                topic.name,
                None,
                f"holds {counted(there, 'record')} there, and no position of a copy from here: they are of "
                "others, or of a copy that was killed at its beginning. `embedlog topics delete` settles it",
                True,
            )

    def _unfit(
        self, topic: TopicDescription, partition: int, effective: Mapping[str, str], progress: Progress | None
    ) -> Iterator[Obstacle]:
        """What a partition has that the topic's settings in the target refuse."""
        inspection = _Inspection(effective, time.time_ns() // 1_000_000)
        edges = self._source.backend.offsets(topic.name)[partition]
        reader = PartitionReader(
            self._source.backend,
            TopicPartition(topic.name, partition),
            edges.log_start_offset,
            end=edges.log_end_offset,
            topic_id=topic.topic_id,
            read_committed=True,
        )
        while reader.position < edges.log_end_offset and reader.read_into(inspection):
            if progress is not None:
                progress(topic.name, reader.position, edges.log_end_offset)
        for count, problem in (
            (inspection.keyless, "without a key, in a topic that is compacted there"),
            (
                inspection.large,
                f"in batches larger than its max.message.bytes there, {inspection.max_bytes:,}",
            ),
            (inspection.late, "with times that its message.timestamp.*.max.ms refuse there"),
        ):
            if count:
                yield Obstacle(topic.name, partition, f"{counted(count, 'record')} {problem}", True)
        if reader.held_back:
            yield Obstacle(
                topic.name,
                partition,
                f"a transaction is open at offset {reader.position:,}: end it first, or `embedlog "
                f"transactions {self.source}`",
                True,
            )

    def _left_behind(self) -> Iterator[Obstacle]:
        """What a move does not carry."""
        for group, topic in self._source.backend.share_reader().list_share_groups():
            yield Obstacle(
                topic, None, f"jobs that queue group {group!r} has finished would come again there", False
            )

    # -- moving ----------------------------------------------------------------------------------------

    def copy(self, on_status: Callable[[MirrorStatus], object] | None = None) -> MirrorStatus:
        """Copy all that the source holds now. The application may go on."""
        with Mirror(
            self.source,
            self.target,
            group=self._group,
            groups=True,
            replication_factor=self._replication_factor,
            target_settings=self._settings,
        ) as mirror:
            return mirror.run(until_caught_up=True, on_status=on_status)

    def fence(self) -> None:
        """Keep all writers out of the source, durably. `copy` what is left afterwards.

        Raises DirectoryLocked while a process has it open for writing.
        """
        if self._mark is None:
            fence(self.source, self.target)
            self._mark = moved(self.source)

    def compare(self, progress: Progress | None = None) -> list[ComparedTopic]:
        """Compare each partition's committed records in both logs: keys, values, headers, times, order. Of
        compacted topics the last record of each key.

        Raises DirectoryError if the source was made writable meanwhile, and the errors of `Log.read`.
        """
        compared = [self._compared(topic, progress) for topic in self._topics()]
        if self.is_fenced and moved(self.source) != self._mark:
            raise DirectoryError(
                f"{self.source} was made writable again while it moved: run the move again", path=self.source
            )
        return compared

    def _compared(self, topic: TopicDescription, progress: Progress | None) -> ComparedTopic:
        compacts = any(
            log.backend.topic_settings(topic.name).compacts for log in (self._source.log, self._target)
        )
        records = more = 0
        differing = []
        for partition in range(topic.partitions):
            name = TopicPartition(topic.name, partition)
            ours = _Digest(self._source.log, name, compacts, progress)
            theirs = _Digest(self._target, name, compacts)
            beyond = theirs.count - ours.count
            records += ours.count
            more += max(beyond, 0)
            same = ours.digest == theirs.digest
            if not same and beyond > 0 and not compacts:
                # Newer ones, or older ones, which the source has deleted.
                starts = [0]
                if beyond <= self._source.backend.offsets(topic.name)[partition].log_start_offset:
                    starts.append(beyond)
                same = any(
                    _Digest(self._target, name, compacts, first=first, most=ours.count).digest == ours.digest
                    for first in starts
                )
            if not same:
                differing.append(partition)
        return ComparedTopic(topic.name, topic.partitions, records, more, tuple(differing))

    @closes
    def close(self) -> None:
        """Close both logs. Idempotent."""
        try:
            self._source.close()
        finally:
            self._target.close()


class _Inspection:
    """A sink (codec/fetch_decoder.py) that counts what a topic with these settings would refuse."""

    def __init__(self, effective: Mapping[str, str], now_ms: int) -> None:
        self.keyless = self.large = self.late = 0
        self.max_bytes = int(effective.get("max.message.bytes", 1 << 31))
        self._compacts = "compact" in effective.get("cleanup.policy", "")
        self._latest = now_ms + int(effective.get("message.timestamp.after.max.ms", 1 << 63))
        self._earliest = now_ms - int(effective.get("message.timestamp.before.max.ms", 1 << 63))

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return pos, rules.next_offset  # batch by batch

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        count = header.record_count
        if header.size > self.max_bytes:
            self.large += count
        if count and not self._earliest <= header.max_timestamp_ms <= self._latest:
            self.late += count
        if self._compacts:
            records = decode(data, header, "", -1, start_offset=start, max_bytes=max_bytes)
            self.keyless += sum(record.key is None for record in records)
        return 0


class _Digest:
    """How many committed records a partition has, and a digest of them."""

    def __init__(
        self,
        log: Log,
        name: TopicPartition,
        compacts: bool,
        progress: Progress | None = None,
        *,
        first: int = 0,
        most: int | None = None,
    ) -> None:
        """first: so many records are passed over. most: how many count then."""
        whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        last_of: dict[bytes | None, bytes] = {}
        self.count = 0
        end = log.backend.offsets(name.topic)[name.partition].log_end_offset
        for record in islice(log.read(*name), first, None if most is None else first + most):
            self.count += 1
            if compacts and record.value is None:
                last_of.pop(record.key, None)  # either log may have removed the tombstone, too
            elif compacts:
                digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
                _add(digest, record)
                last_of[record.key] = digest.digest()
            else:
                _add(whole, record)
            if progress is not None and not self.count % 10_000:
                progress(name.topic, record.offset, end)
        for key in sorted(last_of, key=lambda key: key or b""):
            whole.update(last_of[key])
        self.digest = whole.digest()


def _add(digest: Any, record: Record) -> None:
    digest.update(record.timestamp_ms.to_bytes(8, "big", signed=True))
    headers = [part for name, value in record.headers for part in (name.encode(), value)]
    for part in (record.key, record.value, *headers):
        digest.update(_NO_VALUE if part is None else len(part).to_bytes(4, "big"))
        digest.update(part or b"")


def _colliding(names: list[str]) -> Iterator[Obstacle]:
    """Topics whose names Kafka takes for one: it does not tell . from _ in the names of its metrics."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.replace(".", "_"), name)
        if other != name:
            yield Obstacle(
                name, None, f"differs from {other} only in . and _: Kafka refuses one of them", True
            )
