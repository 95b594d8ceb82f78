"""Decodes records, in plain Python; `compiled_decoding` does the same, compiled.

`columns_of` reads one record after the other (their layout: `plain_encoding`). Many logs have records of one
shape: readings, rows of fixed width, the records of one producer. It reads those together, with no line of
Python per record; for the others, varints of one and two bytes are decoded inline:

    | length | 0 | time | delta | key length | key | value length | value | 0 |      all fields as long as
    | length | 0 | time | delta | key length | key | value length | value | 0 |      those of the first one
      '--- one byte of each record, `size` bytes apart, is a slice of the body

Invariants: every length is checked against the remaining bytes before use; offset deltas ascend within
0..last_offset_delta; each record ends where its length says, the last one where the bytes end. Columns give
what reading one by one gives.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias

from ..errors import CorruptRecord
from ..model import Header, Headers, Record
from .plain_encoding import varints, wrapped
from .record_batch import HEADER_SIZE, BatchHeader, read_header
from .rules import ANY_OFFSET, Rules, headers_of_run
from .varint import MAX_INT64, MAX_VARINT_BYTES, MAX_VARLONG_BYTES, MIN_INT64, decode_unsigned

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

IMPLEMENTATION = "plain"

Columns: TypeAlias = tuple[
    Sequence[int],
    Iterable[int],
    Iterable[bytes | None],
    Iterable[bytes | None],
    Iterable[Headers],
]
"""Of some records: offset deltas, timestamp deltas, keys, values, headers."""

_ColumnLists: TypeAlias = tuple[list[int], list[int], list[bytes | None], list[bytes | None], list[Headers]]

_AT_LEAST: Final = 8  # records of one shape: for fewer, the check costs more than it saves
_ONE_BY_ONE: Final = 32  # records to read one by one before the next look for some of one shape
_UNFOLDED: Final = [(folded >> 1) ^ -(folded & 1) for folded in range(128)]
_new = tuple.__new__  # a NamedTuple, without the detour by way of its own function


# -- the records of one batch --------------------------------------------------------------------------


def decode_records(
    body: bytes,
    count: int,
    topic: str,
    partition: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
    start_offset: int,
) -> list[Record]:
    """The records in `body` from `start_offset` on; `append_time_ms`, if given, is their timestamp.

    Raises CorruptRecord, without a location, if the bytes are not `count` records.
    """
    records: list[Record] = []
    timestamp_type = 0 if append_time_ms is None else 1
    for columns in columns_of(body, count, last_offset_delta):
        for delta, time_delta, key, value, headers in zip(*columns, strict=False):
            offset = base_offset + delta
            if offset < start_offset:
                continue
            timestamp_ms = base_timestamp_ms + time_delta
            if append_time_ms is not None:
                timestamp_ms = append_time_ms
            elif not MIN_INT64 <= timestamp_ms <= MAX_INT64:
                timestamp_ms = wrapped(timestamp_ms)
            fields = (topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers)
            records.append(_new(Record, fields))
    return records


def timestamps(base_timestamp_ms: int, deltas: Iterable[int]) -> list[int]:
    """The timestamps of records."""
    times = [base_timestamp_ms + delta for delta in deltas]
    if not MIN_INT64 <= min(times) <= max(times) <= MAX_INT64:
        times = list(map(wrapped, times))
    return times


def decode_values(
    body: bytes, count: int, last_offset_delta: int, first_delta: int = 0, stop_delta: int = ANY_OFFSET
) -> list[bytes | None]:
    """The values of the records with offset deltas from `first_delta` to `stop_delta` - 1.

    Otherwise as `decode_records`.
    """
    values: list[bytes | None] = []
    for deltas, _, _, column, _ in columns_of(body, count, last_offset_delta):
        if first_delta <= deltas[0] and deltas[-1] < stop_delta:
            values += column
        else:
            pairs = zip(deltas, column, strict=True)
            values += [value for delta, value in pairs if first_delta <= delta < stop_delta]
    return values


def columns_of(body: bytes, count: int, last_offset_delta: int) -> Iterator[Columns]:
    """The fields of the records in `body`, of some records at a time.

    Raises CorruptRecord, without a location, where the bytes turn out not to be `count` records.
    """
    pos = index = 0
    last = -1  # offset delta
    while index < count:
        most = min(count - index, last_offset_delta - last)
        shape = _shape_at(body, pos) if most >= _AT_LEAST else None
        alike = shape.alike(body, last + 1, most) if shape else 0
        if shape and alike:
            yield shape.columns(body, last + 1, alike)
            pos += alike * shape.size
            last += alike
            index += alike
            continue
        columns: _ColumnLists = [], [], [], [], []
        deltas, *_, headers = columns
        try:
            pos = _read_records(body, pos, min(_ONE_BY_ONE, count - index), last, last_offset_delta, columns)
        except (IndexError, CorruptRecord) as error:
            raise _in_record(index + len(headers), count, error) from None
        yield columns
        last = deltas[-1]
        index += len(deltas)
    if pos != len(body):
        raise CorruptRecord(f"{len(body) - pos:,} bytes after the last of {count:,} records")


def _read_records(
    body: bytes, pos: int, count: int, last: int, last_offset_delta: int, columns: _ColumnLists
) -> int:
    """Append the fields of `count` records from `pos` on; `last` is the offset delta before them.

    Returns the pos after them. A record is complete once it has its headers: the last column tells at which
    one this raised CorruptRecord, or IndexError where the body ends.
    """
    deltas, time_deltas, keys, values, headers = columns
    for _ in range(count):
        folded = body[pos]
        pos += 1
        if folded > 127:
            byte = body[pos]
            if byte > 127:
                folded, pos = _number(body, pos - 1)
            else:
                folded, pos = folded + (byte << 7) - 128, pos + 1
        stop = pos + (folded >> 1)
        if folded & 1 or stop > len(body):
            _fail("its length is negative" if folded & 1 else "it runs past the end")
        # The attributes before the timestamp delta have no meaning yet.
        folded = body[pos + 1]
        pos += 2
        if folded > 127:
            folded, pos = _number(body, pos - 1, MAX_VARLONG_BYTES, 64)
        time_deltas.append((folded >> 1) ^ -(folded & 1))
        folded = body[pos]
        pos += 1
        if folded > 127:
            byte = body[pos]
            if byte > 127:
                folded, pos = _number(body, pos - 1)
            else:
                folded, pos = folded + (byte << 7) - 128, pos + 1
        if folded & 1 or not last < folded >> 1 <= last_offset_delta:
            _fail_delta(folded, last, last_offset_delta)
        last = folded >> 1
        deltas.append(last)
        key, pos = _field(body, pos, "key")
        value, pos = _field(body, pos, "value")
        keys.append(key)
        values.append(value)
        pairs: Headers = ()
        if body[pos]:
            pairs, pos = _decode_headers(body, pos, stop)
        else:
            pos += 1
        if pos != stop:
            _fail("its fields do not fill its length")
        headers.append(pairs)
    return pos


class _Shape(NamedTuple):
    """Where the fields of a record without headers are, and its key and value."""

    start: int
    time_at: int
    delta_at: int
    key_length_at: int
    value_length_at: int
    header_count_at: int
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """The size of each record of this shape in bytes."""
        return self.header_count_at + 1 - self.start

    def alike(self, body: bytes, delta: int, most: int) -> int:
        """How many records from this one on, at most `most`, differ in time, key and value only, and have
        the offset deltas from `delta` on; 0 if too few."""
        start, size = self.start, self.size
        count = min(most, (len(body) - start) // size)
        # The bytes that must be the same in all: lengths, attributes, the header count.
        for at in (
            *range(start, self.time_at),
            *range(self.key_length_at, self.value_length_at - len(self.key or b"")),
            *range(self.value_length_at, self.header_count_at - len(self.value or b"")),
            self.header_count_at,
        ):
            if count < _AT_LEAST:
                return 0
            column = body[at : start + count * size : size]
            count -= len(column.lstrip(body[at : at + 1]))
        end = start + count * size
        deltas = b"".join(map(varints.__getitem__, range(delta, delta + count)))
        width = self.key_length_at - self.delta_at
        is_alike = body[self.time_at : end : size].isascii() and all(
            body[self.delta_at + i : end : size] == deltas[i::width] for i in range(width)
        )
        return count if is_alike and count >= _AT_LEAST else 0

    def columns(self, body: bytes, delta: int, count: int) -> Columns:
        """The fields of `count` records from this one on, the first with offset delta `delta`."""
        times = body[self.time_at : self.start + count * self.size : self.size]
        return (
            range(delta, delta + count),
            map(_UNFOLDED.__getitem__, times),
            self._column(body, count, self.key, self.value_length_at),
            self._column(body, count, self.value, self.header_count_at),
            repeat(()),
        )

    def _column(self, body: bytes, count: int, field: bytes | None, end: int) -> Iterable[bytes | None]:
        """The keys or the values of `count` records from this one on, whose own ends at `end`."""
        if field is None:
            return repeat(None, count)
        start, size = self.start, self.size
        before = end - len(field) - start
        form = f"{before}x{len(field)}s{size - before - len(field)}x"
        return chain.from_iterable(struct.iter_unpack(form, memoryview(body)[start : start + count * size]))


def _shape_at(body: bytes, pos: int) -> _Shape | None:
    """The shape of the record at `pos`; None if it is invalid, or has headers or a long timestamp delta."""
    try:
        length, time_at = _number(body, pos)
        stop = time_at + (length >> 1)
        time_at += 1
        delta_at = time_at + 1
        _, key_length_at = _number(body, delta_at)
        key, value_length_at = _field(body, key_length_at, "key")
        value, header_count_at = _field(body, value_length_at, "value")
        if length & 1 or body[time_at] > 127 or body[header_count_at] or header_count_at + 1 != stop:
            return None
    except (IndexError, CorruptRecord):
        return None
    return _Shape(pos, time_at, delta_at, key_length_at, value_length_at, header_count_at, key, value)


def record_spans(body: bytes, count: int) -> list[tuple[int, int]]:
    """(start, stop) of each record in `body`. Does not check their fields."""
    spans: list[tuple[int, int]] = []
    start = 0
    try:
        while len(spans) < count:
            folded, pos = decode_unsigned(body, start, len(body), MAX_VARINT_BYTES, 32)
            stop = pos + (folded >> 1)
            if folded & 1 or stop > len(body):
                _fail("its length is negative" if folded & 1 else "it runs past the end")
            spans.append((start, stop))
            start = stop
    except CorruptRecord as error:
        raise _in_record(len(spans), count, error) from None
    return spans


# -- runs of batches (rules.py says what a run is) -----------------------------------------------------


def decode_run(
    buffer: ReadBuffer,
    pos: int,
    end: int,
    rules: Rules,
    stop_offset: int,
    topic: str,
    partition: int,
    transactional: bool,
    records: list[Record],
) -> tuple[int, int]:
    """Append a run's records from `rules.next_offset` to `stop_offset` - 1, of uncompressed batches.

    Checks CRCs. With `transactional`, batches of transactions are part of the run. Returns the pos after the
    run and the next offset.
    """
    next_offset = rules.next_offset
    for header, body in _run_to(buffer, pos, end, rules, stop_offset, transactional):
        try:
            run = decode_records(
                body,
                header.record_count,
                topic,
                partition,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.timestamp_type else None,
                rules.next_offset,
            )
        except CorruptRecord:
            break
        records += run if header.last_offset < stop_offset else [r for r in run if r.offset < stop_offset]
        pos, next_offset = header.pos + header.size, header.next_offset
    return pos, next_offset


def values_run(
    buffer: ReadBuffer,
    pos: int,
    end: int,
    rules: Rules,
    stop_offset: int,
    transactional: bool,
    values: list[bytes | None],
) -> tuple[int, int]:
    """As `decode_run`, values only."""
    next_offset = rules.next_offset
    for header, body in _run_to(buffer, pos, end, rules, stop_offset, transactional):
        first, stop = rules.next_offset - header.base_offset, stop_offset - header.base_offset
        try:
            values += decode_values(body, header.record_count, header.last_offset_delta, first, stop)
        except CorruptRecord:
            break
        pos, next_offset = header.pos + header.size, header.next_offset
    return pos, next_offset


def _run_to(
    buffer: ReadBuffer, pos: int, end: int, rules: Rules, stop_offset: int, transactional: bool
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a run that need neither decompression nor a decision about their transaction, each with
    its records' bytes."""
    if stop_offset < rules.limit_offset:
        rules = rules._replace(limit_offset=stop_offset)
    for header in headers_of_run(buffer, pos, min(end, len(buffer)), rules, check_crc=True):
        if header.compression or header.is_control or (header.is_transactional and not transactional):
            return
        yield header, bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size])


def record_at(
    data: bytes,
    begins: int,
    ends: int,
    offset: int,
    epoch: int,
    end_offset: int,
    topic: str,
    partition: int,
) -> Record | None:
    """The record at an offset in a series of batches without gaps; None if any precondition fails.

    The batch with the record is checked, CRC included; it must be neither compressed nor of a transaction. Of
    those before it only the headers are checked.

    Args:
        begins: the first batch's base offset, -1 if unknown.
        ends: the first batch's last offset, -1 if unknown.
        epoch: the leader epoch that the record's batch must have.
        end_offset: the batch must end before it.
    """
    pos = 0
    while True:
        try:
            header = read_header(data, pos)
        except CorruptRecord:
            return None
        pos += header.size
        if pos > len(data) or (begins >= 0 and header.base_offset != begins):
            return None
        if ends >= 0 and header.last_offset != ends:
            return None
        if header.last_offset >= offset:
            break
        begins, ends = header.next_offset, -1
    records: list[Record] = []
    rules = Rules(offset, epoch, epoch, offset + 1, end_offset, inside=True)
    decode_run(data, header.pos, pos, rules, offset + 1, topic, partition, False, records)
    return records[0] if records else None


# -- fields and errors ---------------------------------------------------------------------------------


def _number(body: bytes, pos: int, max_bytes: int = MAX_VARINT_BYTES, bits: int = 32) -> tuple[int, int]:
    """(zigzag number of the varint at `pos`, pos after it). Raises IndexError where the body ends."""
    number = body[pos]
    if number < 128:
        return number, pos + 1
    byte = body[pos + 1]
    if byte < 128:
        return number + (byte << 7) - 128, pos + 2
    return decode_unsigned(body, pos, len(body), max_bytes, bits)


def _field(body: bytes, pos: int, field_name: str) -> tuple[bytes | None, int]:
    """The key or value whose length is at `pos`, and the pos after it."""
    number = body[pos]
    pos += 1
    if number > 127:
        byte = body[pos]
        if byte > 127:
            number, pos = _number(body, pos - 1)
        else:
            number, pos = number + (byte << 7) - 128, pos + 1
    if number == 1:
        return None, pos
    if number & 1:
        _fail(f"its {field_name}'s length is negative")
    stop = pos + (number >> 1)
    return body[pos:stop], stop


def _decode_headers(body: bytes, pos: int, stop: int) -> tuple[Headers, int]:
    """The headers, whose count is at `pos`. Names are UTF-8; invalid bytes become U+FFFD, as in Java."""
    count, pos = _decode_length(body, pos, stop)
    headers: list[Header] = []
    if not 0 <= count <= (stop - pos) // 2:
        _fail(f"{count:,} headers cannot fit in {stop - pos:,} bytes")
    for _ in range(count):
        length, pos = _decode_length(body, pos, stop)
        if not 0 <= length <= stop - pos:
            _fail(f"a header's name of {length:,} bytes, {stop - pos:,} remain")
        name = body[pos : pos + length].decode(errors="replace")
        length, pos = _decode_length(body, pos + length, stop)
        if not -1 <= length <= stop - pos:
            _fail(f"a header's value of {length:,} bytes, {stop - pos:,} remain")
        headers.append((name, None if length < 0 else body[pos : pos + length]))
        pos += max(length, 0)
    return tuple(headers), pos


def _decode_length(body: bytes, pos: int, stop: int) -> tuple[int, int]:
    folded, pos = decode_unsigned(body, pos, stop, MAX_VARINT_BYTES, 32)
    return (folded >> 1) ^ -(folded & 1), pos


def _fail(reason: str) -> NoReturn:
    raise CorruptRecord(reason)


def _fail_delta(folded: int, last: int, last_offset_delta: int) -> NoReturn:
    delta = (folded >> 1) ^ -(folded & 1)
    _fail(f"its offset delta {delta:,} is not between {last + 1:,} and {last_offset_delta:,}")


def _in_record(index: int, count: int, error: Exception) -> CorruptRecord:
    reason = error.reason if isinstance(error, CorruptRecord) else "it runs past the end"
    return CorruptRecord(f"record {index + 1:,} of {count:,}: {reason}")
