"""Decodes records, in plain Python; `compiled_decoding` does the same, compiled.

Records of one shape are decoded together (plain_uniform.py). Others are decoded one by one (their layout:
`plain_encoding`), with varints of one and two bytes decoded inline; `varint` handles longer ones and errors.

Invariants: every length is checked against the remaining bytes before use; offset deltas ascend within
0..last_offset_delta; each record ends where its length says, the last one where the bytes end.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..errors import CorruptRecord
from ..model import Header, Headers, Record
from .plain_encoding import wrapped
from .plain_uniform import UniformRecords, uniform_records_at
from .record_batch import HEADER_SIZE, BatchHeader, crc_matches, read_header
from .rules import ANY_OFFSET, Rules, headers_of_run
from .varint import MAX_INT64, MAX_VARINT_BYTES, MAX_VARLONG_BYTES, MIN_INT64, decode_unsigned

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

IMPLEMENTATION = "plain"

_ONE_BY_ONE: Final = 32  # records to decode one by one before the next check for uniform ones


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
    new = tuple.__new__
    records: list[Record] = []
    append = records.append
    timestamp_type = 0 if append_time_ms is None else 1
    base = base_timestamp_ms
    end = len(body)
    pos = 0
    last = -1
    index = -1
    try:
        done = 0
        while done < count:
            uniform = uniform_records_at(body, pos, last + 1, min(count - done, last_offset_delta - last))
            if uniform is not None:
                skipped = min(max(start_offset - base_offset - last - 1, 0), uniform.number)
                records += _from_uniform(
                    body, uniform, skipped, topic, partition, base_offset + last + 1, base, append_time_ms
                )
                done += uniform.number
                last += uniform.number
                pos = uniform.end
                continue
            start, done = done, min(done + _ONE_BY_ONE, count)
            for index in range(start, done):  # noqa: B007 (used in the error)
                # record length
                number = body[pos]
                if number < 128:
                    pos += 1
                else:
                    byte = body[pos + 1]
                    if byte < 128:
                        number += (byte << 7) - 128
                        pos += 2
                    else:
                        number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
                stop = pos + (number >> 1)
                if number & 1 or stop > end:
                    _fail("its length is negative" if number & 1 else "it runs past the end")
                # attributes, timestamp delta
                number = body[pos + 1]
                pos += 2
                if not number:
                    timestamp_ms = base
                else:
                    if number > 127:
                        byte = body[pos]
                        if byte < 128:
                            number += (byte << 7) - 128
                            pos += 1
                        else:
                            number, pos = decode_unsigned(body, pos - 1, end, MAX_VARLONG_BYTES, 64)
                    timestamp_ms = base + ((number >> 1) ^ -(number & 1))
                    if not -0x8000000000000000 <= timestamp_ms <= 0x7FFFFFFFFFFFFFFF:
                        timestamp_ms = wrapped(timestamp_ms)
                # offset delta
                number = body[pos]
                if number < 128:
                    pos += 1
                else:
                    byte = body[pos + 1]
                    if byte < 128:
                        number += (byte << 7) - 128
                        pos += 2
                    else:
                        number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
                delta = number >> 1
                if number & 1 or not last < delta <= last_offset_delta:
                    _fail_delta(number, last, last_offset_delta)
                last = delta
                # key
                number = body[pos]
                pos += 1
                if number == 1:
                    key = None
                else:
                    if number > 127:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                    if number & 1:
                        _fail("its key's length is negative")
                    start = pos
                    pos += number >> 1
                    key = body[start:pos]
                # value
                number = body[pos]
                if number == 1:
                    value = None
                    pos += 1
                else:
                    if number < 128:
                        start = pos + 1
                    else:
                        byte = body[pos + 1]
                        if byte < 128:
                            number += (byte << 7) - 128
                            start = pos + 2
                        else:
                            number, start = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
                    if number & 1:
                        _fail("its value's length is negative")
                    pos = start + (number >> 1)
                    value = body[start:pos]
                # headers
                if body[pos]:
                    headers, pos = _decode_headers(body, pos, stop)
                else:
                    headers = ()
                    pos += 1
                if pos != stop:
                    _fail("its fields do not fill its length")
                offset = base_offset + last
                if offset >= start_offset:
                    if append_time_ms is not None:
                        timestamp_ms = append_time_ms
                    fields = (topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers)
                    append(new(Record, fields))
    except (IndexError, CorruptRecord) as error:
        raise _in_record(index, count, error) from None
    if pos != end:
        raise CorruptRecord(f"{end - pos:,} bytes after the last of {count:,} records")
    return records


def decode_values(
    body: bytes, count: int, last_offset_delta: int, first_delta: int = 0, stop_delta: int = ANY_OFFSET
) -> list[bytes | None]:
    """The values of the records with offset deltas from `first_delta` to `stop_delta` - 1.

    Otherwise as `decode_records`.
    """
    values: list[bytes | None] = []
    append = values.append
    end = len(body)
    pos = 0
    last = -1
    index = -1
    try:
        done = 0
        while done < count:
            uniform = uniform_records_at(body, pos, last + 1, min(count - done, last_offset_delta - last))
            if uniform is not None:
                stop = min(stop_delta - last - 1, uniform.number)
                values += uniform.values(body, max(first_delta - last - 1, 0), stop)
                done += uniform.number
                last += uniform.number
                pos = uniform.end
                continue
            start, done = done, min(done + _ONE_BY_ONE, count)
            for index in range(start, done):  # noqa: B007 (used in the error)
                # record length
                number = body[pos]
                pos += 1
                if number > 127:
                    byte = body[pos]
                    if byte < 128:
                        number = number & 127 | byte << 7
                        pos += 1
                    else:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                stop = pos + (number >> 1)
                if number & 1 or stop > end:
                    _fail("its length is negative" if number & 1 else "it runs past the end")
                # attributes, timestamp delta
                if body[pos + 1] > 127:
                    _, pos = decode_unsigned(body, pos + 1, end, MAX_VARLONG_BYTES, 64)
                else:
                    pos += 2
                # offset delta
                number = body[pos]
                pos += 1
                if number > 127:
                    byte = body[pos]
                    if byte < 128:
                        number = number & 127 | byte << 7
                        pos += 1
                    else:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                if number & 1 or not last < number >> 1 <= last_offset_delta:
                    _fail_delta(number, last, last_offset_delta)
                last = number >> 1
                # key
                number = body[pos]
                pos += 1
                if number != 1:
                    if number > 127:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                    if number & 1:
                        _fail("its key's length is negative")
                    pos += number >> 1
                # value
                number = body[pos]
                pos += 1
                if number == 1:
                    value = None
                else:
                    if number > 127:
                        byte = body[pos]
                        if byte < 128:
                            number = number & 127 | byte << 7
                            pos += 1
                        else:
                            number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                    if number & 1:
                        _fail("its value's length is negative")
                    number >>= 1
                    value = body[pos : pos + number]
                    pos += number
                # headers
                if body[pos]:
                    _, pos = _decode_headers(body, pos, stop)
                else:
                    pos += 1
                if pos != stop:
                    _fail("its fields do not fill its length")
                if first_delta <= last < stop_delta:
                    append(value)
    except (IndexError, CorruptRecord) as error:
        raise _in_record(index, count, error) from None
    if pos != end:
        raise CorruptRecord(f"{end - pos:,} bytes after the last of {count:,} records")
    return values


def _from_uniform(
    body: bytes,
    uniform: UniformRecords,
    skipped: int,
    topic: str,
    partition: int,
    offset: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
) -> Iterable[Record]:
    """Uniform records without the first `skipped`; `offset` is that of the first one."""
    times: Iterable[int] = repeat(append_time_ms or 0)
    if append_time_ms is None:
        deltas = uniform.times(body)[skipped:]
        times = [base_timestamp_ms + ((delta >> 1) ^ -(delta & 1)) for delta in deltas]
        if times and not MIN_INT64 <= min(times) <= max(times) <= MAX_INT64:
            times = map(wrapped, times)
    columns: tuple[Iterable[Any], ...] = (
        repeat(topic),
        repeat(partition),
        range(offset + skipped, offset + uniform.number),
        times,
        repeat(0 if append_time_ms is None else 1),
        repeat(None) if uniform.key_size < 0 else uniform.keys(body)[skipped:],
        uniform.values(body, skipped, uniform.number),
        repeat(()),
    )
    return map(tuple.__new__, repeat(Record), zip(*columns, strict=False))


def record_spans(body: bytes, count: int) -> list[tuple[int, int]]:
    """(start, stop) of each record in `body`. Does not check their fields."""
    spans = []
    pos = 0
    end = len(body)
    index = -1
    try:
        for index in range(count):  # noqa: B007 (used in the error)
            start = pos
            number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
            stop = pos + (number >> 1)
            if number & 1 or stop > end:
                _fail("its length is negative" if number & 1 else "it runs past the end")
            spans.append((start, stop))
            pos = stop
    except CorruptRecord as error:
        raise _in_record(index, count, error) from None
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
    first = rules.next_offset
    next_offset = first
    for header in _run_to(buffer, pos, end, rules, stop_offset, transactional):
        try:
            found = decode_records(
                bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size]),
                header.record_count,
                topic,
                partition,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.timestamp_type else None,
                first,
            )
        except CorruptRecord:
            break
        if header.last_offset >= stop_offset:
            found = [record for record in found if record.offset < stop_offset]
        records += found
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
    for header in _run_to(buffer, pos, end, rules, stop_offset, transactional):
        body = bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size])
        first, stop = rules.next_offset - header.base_offset, stop_offset - header.base_offset
        try:
            values += decode_values(body, header.record_count, header.last_offset_delta, first, stop)
        except CorruptRecord:
            break
        pos, next_offset = header.pos + header.size, header.next_offset
    return pos, next_offset


def _run_to(
    buffer: ReadBuffer, pos: int, end: int, rules: Rules, stop_offset: int, transactional: bool
) -> Iterator[BatchHeader]:
    """The batches of a run that need neither decompression nor a decision about their transaction."""
    rules = rules._replace(limit_offset=min(rules.limit_offset, stop_offset))
    for header in headers_of_run(buffer, pos, min(end, len(buffer)), rules, check_crc=True):
        if header.compression or header.is_control or (header.is_transactional and not transactional):
            return
        yield header


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
    if header.base_offset > offset or header.last_offset >= end_offset or header.leader_epoch != epoch:
        return None
    if header.compression or header.is_control or header.is_transactional or not crc_matches(data, header):
        return None
    try:
        found = decode_records(
            data[header.pos + HEADER_SIZE : pos],
            header.record_count,
            topic,
            partition,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp_ms,
            header.max_timestamp_ms if header.timestamp_type else None,
            offset,
        )
    except CorruptRecord:
        return None
    return found[0] if found and found[0].offset == offset else None


# -- headers and errors --------------------------------------------------------------------------------


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
