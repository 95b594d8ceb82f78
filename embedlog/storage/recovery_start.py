"""Finds where recovery starts: at the batch with the recovery point, without reading what precedes it.

index entries      batch headers, one by one      validated by recovery (storage/tail_scan.py)
|-- skipped --|--------- walked ---------|--------------------------------->
              last entry before the       recovery point
              recovery point
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from ..codec.rules import Rules
from ..config import TopicSettings
from ..errors import CorruptIndex, CorruptRecord
from ..files.names import INDEX, TIME_INDEX
from ..index import UNBOUNDED, IndexBuilder, IndexFiles
from ..scan.batch_scan import RunScanner
from ..segment import Files, Segment
from .leader_epochs import intact


class RecoveryStart(NamedTuple):
    """Where to start: the index entries before it, its pos and offset, and damage found before it."""

    builder: IndexBuilder
    pos: int
    offset: int
    damage: str | None
    index_missing: bool  # or invalid


def index_files(files: Files, directory: str, base_offset: int) -> IndexFiles:
    """The index files of the segment with a base offset."""
    stem = os.path.join(directory, files.layout.stem(base_offset))
    return IndexFiles(files.fs, stem + INDEX, stem + TIME_INDEX)


def write_indexes(files: Files, segment: Segment, builder: IndexBuilder) -> None:
    """Replace a segment's index files by what a builder has. They are hints: errors do not matter."""
    builder.add_time_entry()
    with contextlib.suppress(OSError):
        index_files(files, os.path.dirname(segment.path), segment.base_offset).replace(
            builder.offsets, builder.times
        )
    files.indexes.forget(segment.path)


def find_recovery_start(
    files: Files,
    directory: str,
    segment: Segment,
    settings: TopicSettings,
    offset: int,
    *,
    may_end_before: bool,
) -> RecoveryStart:
    """Find the batch that begins at an offset. Records before it are durable; their values are not read.

    Args:
        may_end_before: compaction may have removed the segment's last records (never the active one's).
    """
    indexed = _indexed(index_files(files, directory, segment.base_offset), segment, settings, offset)
    damage = ""
    empty = IndexBuilder(segment.base_offset, settings.index_interval_bytes)
    for builder in (empty,) if indexed is None else (indexed, empty):
        pos = builder.offsets.positions[-1] if builder.offsets.positions else 0
        expected = -1 if pos else segment.base_offset
        rules = Rules(expected, end_offset=offset, may_have_gaps=True)
        runs = RunScanner(segment.pread_into, pos, segment.size, rules, builder.index_state, check_crc=False)
        for run in runs:
            builder.add_run(run.scanned)
            expected = run.end_state.rules.next_offset
        pos = runs.pos
        try:
            for header in segment.walk(pos, segment.size):
                if header.base_offset < expected:
                    raise CorruptRecord("offsets go back", path=segment.path, pos=header.pos)
                if header.base_offset < offset < header.next_offset and expected != offset:
                    # Either this version did not write the recovery point, or the header is damaged.
                    if not intact(segment, header):
                        raise CorruptRecord("CRC mismatch", path=segment.path, pos=header.pos)
                    return RecoveryStart(builder, pos, header.base_offset, None, indexed is None)
                if header.base_offset >= offset:
                    break
                builder.add(header.pos, header.last_offset, header.max_timestamp_ms)
                expected = header.next_offset
                pos = header.pos + header.size
        except CorruptRecord as error:
            if expected == offset:
                return RecoveryStart(builder, pos, offset, None, indexed is None)
            damage = str(error)
            continue  # the index may be wrong: walk the segment from its start
        if expected == offset or (may_end_before and 0 <= expected < offset):
            return RecoveryStart(builder, pos, offset, None, indexed is None)
        damage = (
            f"{segment.path} ends at offset {max(expected, segment.base_offset):,}: "
            f"records up to {offset - 1:,} had been made durable"
        )
    return RecoveryStart(builder, 0, offset, damage, indexed is None)


def _indexed(
    index: IndexFiles, segment: Segment, settings: TopicSettings, offset: int
) -> IndexBuilder | None:
    """The index entries before an offset that agree with the segment; None if there is no valid index."""
    try:
        offsets, times = index.load(UNBOUNDED, UNBOUNDED)
    except (FileNotFoundError, CorruptIndex):
        return None
    builder = IndexBuilder(segment.base_offset, settings.index_interval_bytes, offsets, times)
    builder.truncate(offset, segment.size)
    return builder
