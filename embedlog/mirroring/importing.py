"""`embedlog import`: copies the log files of Kafka, of any age, into an open log. The source stays as it is.

    0.7                my_topic-0/<20 digits>.kafka    offsets were byte positions: new ones are given
    0.8 to 0.10        my_topic-0/<20 digits>.log      message sets v0 and v1: offsets are kept
    0.11 on            the same                        record batches: kept, but for a wrong max timestamp
    design documents   my_topic_0/00000000000.kafka    any of the three

A source is a file, a partition's directory, or a directory of those (import_source.py). The format is
detected from the bytes (codec.sniff); it may change within a file if the broker was upgraded.

Theory of operation: a source always reads as the same batches with the same offsets. The target's existing
records must equal a prefix of them, or the import is refused; it continues after that prefix. So a killed
import can be repeated without duplicates or losses, and repeating a finished one does nothing.

Invariants: a target that diverges from the source gets no records; a torn end of the last file is reported;
other damage stops the import, or with on_damage="skip" is reported and skipped.
Source: the design documents of Kafka 0.7, 0.10 and 2.7, sections on the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

from ..backends.local import WriterBackend
from ..codec import NONE, RecordTuple, codec_number, decode, encode_batch, filter_batch, read_header, scan
from ..errors import CorruptRecord, InvalidArgument
from ..files.names import check_not_internal, check_topic_name
from ..log import Log
from ..model import CREATE_TIME, LOG_APPEND_TIME, Record, TopicPartition
from ..partition import Partition
from ..store.store import Store
from ..validation import as_path, check_choice, check_flag
from .import_source import find_files
from .imported_groups import GroupsImport, GroupsSource, import_groups
from .legacy_files import FORMATS, VERSION_07, Batch, Messages, Problem, read_source

_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 512 << 10
_APPEND_BYTES: Final = 1 << 20
_FETCH_BYTES: Final = 1 << 20
_FILLED_GAP: Final = 64
_MAX_SPAN: Final = (1 << 31) - 1

Progress = Callable[[int, int], None]


class PartitionImport(NamedTuple):
    """What came from one partition of a source.

    records: appended by this import. records_present: already there. records_left_out: at offsets before the
    target's log start, which it has deleted or never had. first_offset: the source's first. log_end_offset:
    the target's end now. problems: damage that was skipped, and torn ends.
    """

    topic: str
    partition: int
    source: str
    files: int
    bytes: int
    records: int
    records_present: int
    records_left_out: int
    first_offset: int
    log_end_offset: int
    offsets_kept: bool
    problems: tuple[Problem, ...]


class ImportReport(NamedTuple):
    """The result of an import. `skipped`: directories left out, and why. `groups`: None with groups=False, or
    if the source has no `__consumer_offsets`."""

    partitions: tuple[PartitionImport, ...]
    skipped: tuple[str, ...]
    seconds: float
    groups: GroupsImport | None = None

    @property
    def records(self) -> int:
        """Records appended by this import."""
        return sum(partition.records for partition in self.partitions)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of all partitions and of the groups."""
        of_groups = () if self.groups is None else self.groups.problems
        return tuple(problem for partition in self.partitions for problem in partition.problems) + of_groups


def import_files(
    source: str | os.PathLike[str],
    log: Log,
    *,
    topic: str | None = None,
    format: str | None = None,
    compression: str | int | None = None,
    on_damage: str = "stop",
    groups: bool = True,
    progress: Progress | None = None,
) -> ImportReport:
    """Copy log files of Kafka (0.7 to today) into an open log.

    Args:
        source: a segment file, a partition's directory (`my_topic-0`, `my_topic_0`), or a directory of such.
        log: opened with mode="rw". Topics and partitions that it lacks are made.
        topic: the target's name, if it differs from the source's; for a directory of several topics, the one
            to import.
        format: "0.7", "message-set" or "batch"; by default detected from the bytes.
        compression: for messages of the older formats; by default the topic's compression_type, or the
            source's codec if that is "producer". Record batches stay as they are, but
            for a largest timestamp that is not that of their records.
        on_damage: "stop" raises at damage that has valid entries after it (what precedes it is imported),
            "skip" reports it and continues after it.
        groups: also import the offsets that groups have committed for the imported partitions, from the
            `__consumer_offsets` in the same directory (imported_groups.py).
        progress: called with (bytes done, bytes in all) of the source.

    Offsets are kept, except for those of 0.7, which were byte positions: such partitions must be empty and
    start at 0. A partition keeps its own records below the source's first offset; one that holds other
    records than the source at the same offsets is refused. An import that was killed continues when it is run
    again.

    Returns a report; everything imported is durable. Raises InvalidArgument, CorruptRecord
    (on_damage="stop"), DirectoryError or NotALog (nothing to import), ReadOnly, and what appending raises.
    """
    started = time.perf_counter()
    store, backend = log._writer(), log.backend
    assert isinstance(backend, WriterBackend)
    if format is not None:
        check_choice("format", format, FORMATS)
    check_choice("on_damage", on_damage, ("stop", "skip"))
    check_flag("groups", groups)
    codec = None if compression is None else codec_number(compression)
    source_files = find_files(as_path(source, "source"), store.path, topic, groups)
    groups_source = GroupsSource()
    for files in source_files.groups:
        groups_source.read(files, skips_damage=on_damage == "skip")
    _make_room(store, source_files.files)
    imported = _import_partitions(store, source_files.files, format, codec, on_damage == "skip", progress)
    taken = None
    if source_files.groups:
        kept = {
            TopicPartition(partition.topic, partition.partition)
            for partition in imported
            if partition.offsets_kept
        }
        taken = import_groups(groups_source, backend.coordinator, kept, source_files.renamed)
        log.flush()
    return ImportReport(tuple(imported), tuple(source_files.skipped), time.perf_counter() - started, taken)


def _import_partitions(
    store: Store,
    source_files: dict[TopicPartition, list[str]],
    format: str | None,
    codec: int | None,
    skips_damage: bool,
    progress: Progress | None,
) -> list[PartitionImport]:
    """Copy the files of each partition, one partition after another."""
    total = sum(os.path.getsize(path) for files in source_files.values() for path in files)
    done = 0
    imported = []
    for name, files in source_files.items():
        copying = _Copying(store, store.partition(*name), codec, skips_damage, done, total, progress)
        imported.append(copying.run(files, format))
        done += imported[-1].bytes
    return imported


def _make_room(store: Store, names: dict[TopicPartition, list[str]]) -> None:
    """Create missing topics and partitions."""
    for topic in {name.topic: None for name in names}:
        check_not_internal(check_topic_name(topic), "import it under another name")
        count = max(name.partition for name in names if name.topic == topic) + 1
        if topic not in store.topics():
            store.create_topic(topic, count, {})
        elif store.describe_topic(topic).partitions < count:
            store.create_partitions(topic, count)


# -- copying -----------------------------------------------------------------------------------------------


class _Copying:
    """One partition's import."""

    def __init__(
        self,
        store: Store,
        partition: Partition,
        codec: int | None,
        skips_damage: bool,
        done: int,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._partition = partition
        self._codec = codec
        self._skips_damage = skips_damage
        self._done = done
        self._total = total
        self._progress = progress
        setting = partition.settings.compression_type
        if codec is None and setting != "producer":
            self._codec = codec_number(setting)
        self._end = partition.offsets().log_end_offset
        self._present = _Present(partition) if partition.size else None
        self._next_offset: int | None = None  # the offset that the source's next record has, or a later one
        self._first = -1
        self._offsets_kept = True
        self._records = self._records_present = self._records_left_out = 0
        self._problems: list[Problem] = []
        self._group: list[Record] = []
        self._group_bytes = 0
        self._group_kind = (NONE, CREATE_TIME, 0)
        self._batches = bytearray()
        self._batches_next = -1
        self._marked_gaps = False
        self._made_gaps = False

    def run(self, files: list[str], format: str | None) -> PartitionImport:
        for number, path in enumerate(files):
            self._copy(path, format, is_last=number == len(files) - 1)
        self._finish()
        if self._marked_gaps and not self._made_gaps:
            self._store.mark_gaps(self._partition.name.topic, False)
        return PartitionImport(
            *self._partition.name,
            os.path.dirname(files[0]) if len(files) > 1 else files[0],
            len(files),
            sum(os.path.getsize(path) for path in files),
            self._records,
            self._records_present,
            self._records_left_out,
            self._first,
            self._partition.offsets().log_end_offset,
            self._offsets_kept,
            tuple(self._problems),
        )

    def _copy(self, path: str, format: str | None, *, is_last: bool) -> None:
        reported_pos = 0
        for item in read_source(path, format):
            if isinstance(item, Problem):
                self._damaged(item, harmless=(item.zeros and item.ends_file) or (is_last and item.ends_file))
            elif isinstance(item, Batch):
                self._batch(path, item)
            else:
                self._messages(path, item)
            if self._progress is not None and item.pos - reported_pos >= _APPEND_BYTES:
                reported_pos = item.pos
                self._progress(min(self._done + reported_pos, self._total), self._total)
        self._done += os.path.getsize(path)
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _damaged(self, problem: Problem, *, harmless: bool) -> None:
        self._problems.append(problem)
        if harmless or self._skips_damage:
            return
        self._finish()
        raise CorruptRecord(
            f"{problem.reason}; {self._records + self._records_present:,} records before it are imported "
            '(on_damage="skip" continues after the damage)',
            path=problem.path,
            pos=problem.pos,
        )

    def _is_regression(self, path: str, pos: int, size: int, offset: int) -> bool:
        """Whether an offset goes back, which is damage; reports it."""
        if self._next_offset is None or offset >= self._next_offset:
            return False
        reason = f"offset {offset:,} where {self._next_offset:,} should come"
        self._damaged(Problem(path, pos, size, reason, False, False), harmless=False)
        return True

    def _batch(self, path: str, batch: Batch) -> None:
        header = batch.header
        if self._is_regression(path, batch.pos, header.size, header.base_offset):
            return
        self._append_group()
        if header.base_offset < self._end:
            records = [record for record in decode(batch.data, header, "", -1) if record.offset < self._end]
            self._compare(records, header.base_offset, min(header.next_offset, self._end))
            if header.last_offset >= self._end:
                raise self._differs(self._end)
        else:
            self._advance(header.base_offset, header.next_offset)
            self._add(bytearray(batch.data), header.base_offset, header.next_offset)
            self._records += 0 if header.is_control else header.record_count

    def _messages(self, path: str, messages: Messages) -> None:
        records = messages.records
        if messages.format == VERSION_07:
            self._offsets_kept = False
            first = self._next_offset or 0
            records = [record._replace(offset=first + i) for i, record in enumerate(records)]
        elif not records or self._is_regression(path, messages.pos, 0, records[0].offset):
            return
        elif any(later.offset <= before.offset for before, later in pairwise(records)):
            reason = "the offsets in a compressed message go back"
            self._damaged(Problem(path, messages.pos, 0, reason, False, False), harmless=False)
            return
        present = [record for record in records if record.offset < self._end]
        if present:
            self._compare(present, present[0].offset, present[-1].offset + 1)
        codec = messages.compression if self._codec is None else self._codec
        for record in records[len(present) :]:
            self._collect(record, codec)

    # -- comparing ---------------------------------------------------------------------------------------

    def _compare(self, records: list[Record], first: int, end: int) -> None:
        """Check that source records equal the target's at the same offsets. Raises InvalidArgument."""
        covered = first if self._next_offset is None else self._next_offset
        self._advance(first, end)
        start = self._partition.offsets().log_start_offset
        target_records = self._present.records(max(covered, start), end) if self._present is not None else {}
        source_records = {record.offset: record[3:] for record in records if record.offset >= start}
        differing = [
            offset for offset, record in target_records.items() if source_records.get(offset) != record[3:]
        ]
        if not self._partition.settings.compacts:
            differing += [offset for offset in source_records if offset not in target_records]
        if differing:
            raise self._differs(min(differing))
        self._records_present += len(source_records)
        self._records_left_out += len(records) - len(source_records)

    def _differs(self, offset: int) -> InvalidArgument:
        name = self._partition.name
        return InvalidArgument(
            f"{name} holds other records than the source (offset {offset:,} is the first): import into "
            "another topic, or into one without records"
        )

    def _advance(self, first: int, end: int) -> None:
        """Record that the source was read up to `end`."""
        if self._next_offset is None:
            self._first = first
        self._next_offset = end

    # -- appending ---------------------------------------------------------------------------------------

    def _collect(self, record: Record, codec: int) -> None:
        """Collect records of the older formats into batches."""
        append_time = record.timestamp_ms if record.timestamp_type == LOG_APPEND_TIME else 0
        kind = (codec, record.timestamp_type, append_time)
        group = self._group
        if group and (
            kind != self._group_kind
            or len(group) >= _BATCH_RECORDS
            or self._group_bytes >= _BATCH_BYTES
            or record.offset - group[-1].offset > _FILLED_GAP
            or record.offset - group[0].offset > 4 * _BATCH_RECORDS
        ):
            self._append_group()
            group = self._group
        self._advance(record.offset, record.offset + 1)
        group.append(record)
        self._group_kind = kind
        self._group_bytes += len(record.key or b"") + len(record.value or b"")

    def _append_group(self) -> None:
        group = self._group
        if group:
            self._group, self._group_bytes = [], 0
            codec, timestamp_type, _ = self._group_kind
            self._records += len(group)
            self._add(_encoded(group, codec, timestamp_type), group[0].offset, group[-1].offset + 1)

    def _add(self, batch: bytearray, first: int, end: int) -> None:
        """Buffer an encoded batch; batches are appended several at a time."""
        if self._batches and (first != self._batches_next or len(self._batches) >= _APPEND_BYTES):
            self._append_batches()
        if end - first > _MAX_SPAN:
            raise CorruptRecord(f"a batch that spans {end - first:,} offsets", offset=first)
        self._batches += batch
        self._batches_next = end

    def _finish(self) -> None:
        """Append the buffered batches and flush."""
        self._append_group()
        self._append_batches()
        self._partition.flush()

    def _append_batches(self) -> None:
        if not self._batches:
            return
        batches, self._batches = self._batches, bytearray()
        first = read_header(batches).base_offset
        end = self._partition.offsets().log_end_offset
        if first > end:
            self._made_gaps = self._made_gaps or bool(self._partition.size)
            if not self._partition.may_have_gaps:
                self._store.mark_gaps(self._partition.name.topic)
                self._marked_gaps = True
        self._partition.append_as_is(batches)


def _encoded(records: list[Record], codec: int, timestamp_type: int) -> bytearray:
    """Encode records as one batch, with gaps for missing offsets."""
    first, last = records[0].offset, records[-1].offset
    rows = [(record.key, record.value, record.headers, record.timestamp_ms) for record in records]
    if last - first + 1 == len(records):
        return encode_batch(rows, compression=codec, base_offset=first, timestamp_type=timestamp_type)
    # The encoder cannot write gaps: fill them, then filter the fillers out.
    filled: list[RecordTuple] = [(None, None, (), records[0].timestamp_ms)] * (last - first + 1)
    keep = [False] * len(filled)
    for record, row in zip(records, rows, strict=True):
        filled[record.offset - first] = row
        keep[record.offset - first] = True
    whole = encode_batch(filled, compression=codec, base_offset=first, timestamp_type=timestamp_type)
    return filter_batch(whole, read_header(whole), keep)


class _Present:
    """Reads the target's existing records once, in offset order."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._at = -1
        self._end = partition.offsets().log_end_offset
        self._held: dict[int, Record] = {}

    def records(self, first: int, end: int) -> dict[int, Record]:
        """The records in [first, end). Both bounds must not decrease between calls."""
        self._at = max(self._at, first, self._partition.offsets().log_start_offset)
        while self._at < min(end, self._end):
            fetched = self._partition.fetch(self._at, _FETCH_BYTES)
            headers = scan(fetched.data).headers
            if not headers:
                break
            for header in headers:
                for record in decode(fetched.data, header, "", -1):
                    self._held[record.offset] = record
            self._at = headers[-1].next_offset
        records = {offset: record for offset, record in self._held.items() if first <= offset < end}
        self._held = {offset: record for offset, record in self._held.items() if offset >= end}
        return records
