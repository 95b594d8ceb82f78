"""Scans runs of batches without decoding records, in plain Python: for recovery, verify, indexes, reads.

    scan_run        checks CRCs, offsets and epochs; collects index entries
    intact_run      checks CRCs only
    compare_run     compares the entries of an index with the batches
    check_run       checks the records inside
    times_run       the same, and the earliest and the latest timestamp of the records
    whole_batches   how far complete batches reach
    find_offset     the batch that contains an offset
    bytes_near      the same by an index
    ready_batch     checks one batch completely, as producers send most of them
    whole_records   counts the complete records in a piece of a batch

`compiled_scanning` does the same, compiled, without the GIL. rules.py defines a run.

Source: Kafka 2.7 implementation, sections 5.3.1 (record batch) and 5.4 (recovery, indexes).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from operator import lt
from struct import Struct
from typing import TYPE_CHECKING

from ..errors import CorruptRecord
from .plain_decoding import columns_of, timestamps
from .record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MIN_BATCH_LENGTH,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_matches,
    heads_sum,
    read_header,
)
from .rules import ANY_OFFSET, Compared, IndexEntries, IndexState, Rules, Scanned, headers_of_run
from .varint import MAX_INT64, MAX_VARINT_BYTES, MIN_INT64, decode_varint

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

_ENTRY_END = 1 << 32  # an index entry cannot hold more
_BASE_LENGTH_DELTA = Struct(">qi11xi")


def scan_run(
    buffer: ReadBuffer,
    pos: int,
    end: int,
    rules: Rules,
    index_state: IndexState,
    check_crc: bool = True,
    file_pos: int = 0,
    sum_heads: bool = False,
) -> Scanned:
    """Check a run of batches of any kind, and collect index entries.

    The buffer's first byte is byte `file_pos` of the file. A batch after a gap is part of the run only if
    another one follows: if its base offset is too high, only the next batch reveals that.
    """
    headers = list(headers_of_run(buffer, pos, min(end, len(buffer)), rules, check_crc=check_crc))
    before = headers[-2].next_offset if len(headers) > 1 else rules.next_offset
    if headers and headers[-1].base_offset > before:
        headers.pop()
    interval, base, next_entry_pos, largest, largest_offset, indexed, indexed_offset = index_state
    entries = IndexEntries(array("I"), array("I"), array("q"), array("I"))
    for header in headers:
        offset = header.last_offset - base
        if header.max_timestamp_ms > largest:
            largest, largest_offset = header.max_timestamp_ms, offset
        at = file_pos + header.pos
        if at > next_entry_pos and 0 <= offset < _ENTRY_END and at < _ENTRY_END:
            entries.positions.append(at)
            entries.offsets.append(offset)
            if largest >= 0 and largest > indexed and largest_offset > indexed_offset:
                entries.timestamps.append(largest)
                entries.timestamp_offsets.append(largest_offset)
                indexed, indexed_offset = largest, largest_offset
            next_entry_pos = at + interval
    sequenced = array("I", [header.pos - pos for header in headers if header.is_sequenced])
    if headers:
        last = headers[-1]
        pos = last.pos + last.size
        rules = rules._replace(next_offset=last.next_offset, epoch=last.leader_epoch, inside=False)
    return Scanned(
        pos,
        rules,
        len(headers),
        sum(header.record_count for header in headers),
        entries,
        IndexState(interval, base, next_entry_pos, largest, largest_offset, indexed, indexed_offset),
        sequenced,
        heads_sum(headers) if sum_heads else 0,
    )


def compare_run(
    buffer: ReadBuffer,
    pos: int,
    end: int,
    base_offset: int,
    entries: IndexEntries,
    compared: Compared,
    file_pos: int = 0,
) -> tuple[int, Compared]:
    """Compare the entries of an index with the batches of a scanned run.

    Returns the pos of the first batch that an entry disagrees with, or the end of the batches, and the state
    of the comparison there.
    """
    entry, time, largest, whole = compared
    for header in _complete(buffer, pos, end):
        at, next_entry, next_time = file_pos + header.pos, entry, time
        while next_entry < len(entries.positions) and entries.positions[next_entry] <= at:
            offset = entries.offsets[next_entry] + base_offset
            if entries.positions[next_entry] < at or header.base_offset > offset:
                return header.pos, Compared(entry, time, largest, whole)
            next_entry += 1
        now = max(largest, header.max_timestamp_ms)
        while next_time < len(entries.timestamps):
            offset = entries.timestamp_offsets[next_time] + base_offset
            if offset >= header.next_offset:
                break
            up_to = largest if offset < header.base_offset else now
            timestamp = entries.timestamps[next_time]
            if timestamp < up_to or (whole and timestamp > up_to):
                return header.pos, Compared(entry, time, largest, whole)
            next_time += 1
        entry, time, largest = next_entry, next_time, now
        pos = header.pos + header.size
    return pos, Compared(entry, time, largest, whole)


def intact_run(buffer: ReadBuffer, pos: int, end: int) -> int:
    """Check the CRCs of a scanned run.

    Returns the pos of the first batch with a wrong CRC, or the end of the batches.
    """
    for header in _complete(buffer, pos, end):
        if not crc_matches(buffer, header):
            break
        pos = header.pos + header.size
    return pos


def _complete(buffer: ReadBuffer, pos: int, end: int) -> Iterator[BatchHeader]:
    """The headers of complete batches, by their lengths alone."""
    end = min(end, len(buffer))
    while end - pos >= HEADER_SIZE:
        header = BatchHeader(pos, *HEADER.unpack_from(buffer, pos))
        if not HEADER_SIZE <= header.size <= end - pos:
            return
        yield header
        pos += header.size


def check_run(buffer: ReadBuffer, pos: int, end: int) -> int:
    """Check the records of a scanned run of uncompressed batches: they must be valid, and none later than the
    max timestamp of its batch.

    Returns the pos of the first batch that is compressed or fails, or the end of the batches.
    """
    for header, times in _readable(buffer, pos, end):
        if max(times, default=header.max_timestamp_ms) > header.max_timestamp_ms:
            break
        pos = header.pos + header.size
    return pos


def times_run(buffer: ReadBuffer, pos: int, end: int, check_crc: bool = True) -> tuple[int, int, int]:
    """The earliest and the latest timestamp of the records of a run of uncompressed batches, whatever their
    headers say.

    Returns the pos of the first batch that is compressed, a control batch or invalid (with a wrong CRC, if
    those are checked), or the end of the batches, and the two; without a record the earliest is the larger.
    """
    earliest, latest = MAX_INT64, MIN_INT64
    for header, times in _readable(buffer, pos, end):
        if header.is_control or (check_crc and not crc_matches(buffer, header)):
            break
        earliest, latest = min([earliest, *times]), max([latest, *times])
        pos = header.pos + header.size
    return pos, earliest, latest


def _readable(buffer: ReadBuffer, pos: int, end: int) -> Iterator[tuple[BatchHeader, list[int]]]:
    """The headers of complete, uncompressed batches with valid records, and the timestamps of these."""
    end = min(end, len(buffer))
    while end - pos >= HEADER_SIZE:
        try:
            header = read_header(buffer, pos)
            if header.size > end - pos or header.compression:
                return
            times = _times(buffer, header)
        except CorruptRecord:
            return
        yield header, times
        pos += header.size


def _times(buffer: ReadBuffer, header: BatchHeader) -> list[int]:
    """The timestamps of the records of an uncompressed batch. Raises CorruptRecord if any is invalid."""
    body = bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size])
    times: list[int] = []
    for _, time_deltas, *_ in columns_of(body, header.record_count, header.last_offset_delta):
        times += timestamps(header.base_timestamp_ms, time_deltas)
    return [header.max_timestamp_ms] * len(times) if header.timestamp_type else times


def ready_batch(buffer: ReadBuffer) -> tuple[int, int, bool] | None:
    """Fast check of one batch that was sent: complete and valid, CRC, records and largest timestamp included,
    uncompressed, not part of a transaction, with a record for every offset from 0 on, the producer's own
    timestamps, and a sequence number if it has a producer id.

    Returns its number of records, its largest timestamp, and whether it has a producer id; None if any of
    this fails.
    """
    try:
        header = read_header(buffer)
        size, count = header.size, header.record_count
        if (
            size != len(buffer)
            or header.base_offset
            or header.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
            or (header.producer_id >= 0 and header.base_sequence < 0)
            or not count
            or count != header.last_offset_delta + 1
            or not crc_matches(buffer, header)
            or max(_times(buffer, header)) != header.max_timestamp_ms
        ):
            return None
    except CorruptRecord:
        return None
    return count, header.max_timestamp_ms, header.producer_id >= 0


def whole_records(body: ReadBuffer, pos: int, end: int, most: int) -> tuple[int, int]:
    """The number of complete records in `body[pos:end]`, at most `most`, and the pos after the last one.

    Does not check their fields. Raises CorruptRecord, without a location, for an impossible length.
    """
    end = min(end, len(body))
    count = 0
    while count < most:
        try:
            size, start = decode_varint(body, pos, end)
        except CorruptRecord:
            if end - pos < MAX_VARINT_BYTES:
                break  # the rest of the length is missing
            raise
        if size < 0:
            raise CorruptRecord("a record's length is negative")
        if size > end - start:
            break
        pos = start + size
        count += 1
    return count, pos


def whole_batches(buffer: ReadBuffer, pos: int, end: int, upper_offset: int) -> tuple[int, int]:
    """The end of the complete batches that begin before `upper_offset`: pos, and next offset (0 if none).

    Checks only their lengths and offsets.
    """
    end = min(end, len(buffer))
    next_offset = 0
    while end - pos >= HEADER_SIZE:
        base, length, delta = _BASE_LENGTH_DELTA.unpack_from(buffer, pos)
        if not MIN_BATCH_LENGTH <= length <= end - pos - LENGTH_OVERHEAD:
            break
        if base < 0 or delta < 0 or base >= upper_offset or base > ANY_OFFSET - delta - 1:
            break
        next_offset = base + delta + 1
        pos += length + LENGTH_OVERHEAD
    return pos, next_offset


def find_offset(buffer: ReadBuffer, pos: int, end: int, rules: Rules, offset: int) -> tuple[int, int, bool]:
    """Find the first batch of a run whose last offset is at least `offset`. Checks no CRCs.

    Batches may reach to `end`, even if the buffer has only their headers. Returns the pos of the batch, the
    offset after the batch before it, and True; or the end of the run, and False.
    """
    next_offset = rules.next_offset
    for header in headers_of_run(buffer, pos, end, rules, check_crc=False):
        if header.last_offset >= offset:
            return header.pos, next_offset, True
        pos, next_offset = header.pos + header.size, header.next_offset
    return pos, next_offset, False


def bytes_near(
    offsets: array[int], positions: array[int], offset: int, end: int, large: int
) -> tuple[int, int, int]:
    """The bytes around the batch with an offset, by an index: (pos, stop, last offset of the batch at pos).

    They begin with that batch if its entry is more than `large` bytes past the one before, else with the one
    of the entry before. The last offset is -1 for the segment's first batch, which has no entry.

    Args:
        offsets, positions: the entries of the index.
        offset: as the entries have it, relative to the segment's base offset.
        end: the size of the segment.
    """
    i = bisect_left(offsets, offset)
    count = min(len(offsets), len(positions))
    stop = min(positions[i + 1], end) if i + 1 < count else end
    if not i:
        return 0, stop, -1
    before = positions[i - 1]
    if i < count and positions[i] - before > large:
        return positions[i], stop, offsets[i]
    return before, stop, offsets[i - 1]


def increasing(column: array[int]) -> bool:
    """Whether the column is strictly increasing. (Type "I" or "q", as in IndexEntries.)"""
    return all(map(lt, column, column[1:]))
