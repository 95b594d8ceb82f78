"""Reads log files of any Kafka version, entry by entry, for `embedlog import`.

    Batch      a record batch (magic 2), unchanged
    Messages   the records of a message (magic 0 and 1; 0.7), or of the compressed set in it
    Problem    bytes that are neither: a torn tail, or damage before further entries

The format is detected at the start of the file, and again if the magic changes: upgraded brokers continued in
the same file. After damage, the reader searches for the next entry: first at the end that the damaged entry's
length gives, then at every byte that looks like the start of an entry.

Invariants: files are opened for reading only; every byte of a file belongs to an entry or a problem; a search
costs at most a few times the bytes searched.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from ..codec import HEADER_SIZE, NONE, BatchHeader, crc32, find_batch, scan
from ..codec.message_07 import iter_messages_07
from ..codec.message_set import iter_messages, message_records
from ..codec.sniff import BATCH_V2, KAFKA_07, MESSAGE_SET_V0, MESSAGE_SET_V1, identify
from ..errors import CorruptRecord, UnknownMagic
from ..model import Record

BATCH: Final = "batch"
MESSAGE_SET: Final = "message-set"
VERSION_07: Final = "0.7"
FORMATS: Final = (VERSION_07, MESSAGE_SET, BATCH)

_BY_SNIFF: Final = {
    BATCH_V2: BATCH,
    MESSAGE_SET_V0: MESSAGE_SET,
    MESSAGE_SET_V1: MESSAGE_SET,
    KAFKA_07: VERSION_07,
}
_CHUNK: Final = 4 << 20
_WINDOW: Final = 16 << 20
_CRC_BUDGET: Final = 4
# Where an entry could begin: an offset or a length that is not huge, then magic and attributes.
_MESSAGE: Final = re.compile(rb"(?=\0.{7}[\0-\x03].{7}([\0\1])[\0-\x0f])", re.DOTALL)
_MESSAGE_07: Final = re.compile(rb"(?=[\0-\x03].{3}([\0\1]))", re.DOTALL)
_SIZE: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")


class Batch(NamedTuple):
    """A valid record batch; the header's pos is 0."""

    pos: int
    header: BatchHeader
    data: bytes


class Messages(NamedTuple):
    """The records of one message of an older format, and its codec. Records of 0.7 have no offsets (-1)."""

    pos: int
    format: str
    records: list[Record]
    compression: int


class Problem(NamedTuple):
    """Bytes that hold no entry. `ends_file`: nothing follows, as after a crash; `zeros`: only zeros."""

    path: str
    pos: int
    size: int
    reason: str
    ends_file: bool
    zeros: bool

    def __str__(self) -> str:
        return f"{self.path} at byte {self.pos:,}, {self.size:,} bytes: {self.reason}"


Item: TypeAlias = Batch | Messages | Problem


class _Parsed(NamedTuple):
    """The entries at the start of a chunk, their end, and the error there."""

    items: list[Batch | Messages]
    end: int
    error: CorruptRecord | None


def read_source(path: str, format: str | None = None) -> Iterator[Item]:
    """Read a whole file in order. `format` is one of FORMATS; None detects it.

    Raises OSError.
    """
    with open(path, "rb", buffering=0) as file:
        yield from _Reader(file.fileno(), path, os.fstat(file.fileno()).st_size, format).read()


class _Reader:
    """Reads one file."""

    def __init__(self, fd: int, path: str, size: int, format: str | None) -> None:
        self._fd = fd
        self._path = path
        self._size = size
        self._forced = format
        self._format = format

    def read(self) -> Iterator[Item]:
        pos, want = 0, _CHUNK
        while pos < self._size:
            data = self._pread(min(want, self._size - pos), pos)
            if not data:
                break  # the file was truncated meanwhile
            if self._format is None:
                self._format = _BY_SNIFF.get(identify(data))
            if self._format is None:
                parsed = _Parsed([], 0, CorruptRecord("unknown format"))
            else:
                parsed = _PARSERS[self._format](data, pos)
            yield from parsed.items
            pos += parsed.end
            want = _CHUNK
            if parsed.error is not None:
                if isinstance(parsed.error, UnknownMagic) and self._changes(data[parsed.end :]):
                    continue
                problem = self._problem(pos, parsed.error.reason)
                yield problem
                pos += problem.size
            elif parsed.end < len(data):
                if pos + len(data) - parsed.end >= self._size:
                    problem = self._problem(pos, "the last entry is incomplete")
                    yield problem
                    pos += problem.size
                elif not parsed.end:
                    want = 2 * len(data)

    def _changes(self, data: bytes) -> bool:
        """Whether another format starts here, in which reading then continues."""
        format = _BY_SNIFF.get(identify(data))
        if self._forced is not None or format is None or format == self._format:
            return False
        if VERSION_07 in (format, self._format):
            return False  # no broker ever wrote both to one file
        self._format = format
        return True

    # -- after damage ------------------------------------------------------------------------------------

    def _problem(self, pos: int, reason: str) -> Problem:
        end = self._size if self._only_zeros(pos, self._size) else self._next_entry(pos)
        zeros = self._only_zeros(pos, end)
        if zeros:
            reason = "zeros"
        return Problem(self._path, pos, end - pos, reason, end == self._size, zeros)

    def _only_zeros(self, pos: int, end: int) -> bool:
        while pos < end:
            data = self._pread(min(_CHUNK, end - pos), pos)
            if not data or data.count(0) != len(data):
                return False
            pos += len(data)
        return True

    def _next_entry(self, pos: int) -> int:
        next_pos = self._entry_after(pos)
        if next_pos is not None:
            return next_pos
        start = pos + 1
        while start < self._size:
            data = self._pread(min(_WINDOW, self._size - start), start)
            starts = [at for at in (self._find(kind, data) for kind in self._kinds()) if at is not None]
            if starts:
                return start + min(starts)
            if not data or start + len(data) >= self._size:
                break
            start += max(len(data) // 2, 1)
        return self._size

    def _kinds(self) -> tuple[str, ...]:
        if self._forced is not None:
            return (self._forced,)
        if self._format == VERSION_07:
            return (VERSION_07,)
        # A damaged start does not tell the format. Headers of 0.7 hold too little to be told from noise.
        return (MESSAGE_SET, BATCH)

    def _entry_after(self, pos: int) -> int | None:
        """The next entry at the end that the damaged entry's length gives, if there is one."""
        head = self._pread(min(HEADER_SIZE, self._size - pos), pos)
        at = _LENGTH_AT[self._format or BATCH]
        if len(head) < at + _SIZE.size:
            return None
        (length,) = _SIZE.unpack_from(head, at)
        next_pos = pos + at + _SIZE.size + length
        if length <= 0 or not pos < next_pos < self._size:
            return None
        start = self._pread(min(_CHUNK, self._size - next_pos), next_pos)
        for kind in self._kinds():
            if _PARSERS[kind](start, 0).items:
                return int(next_pos)
        return None

    def _find(self, kind: str, data: bytes) -> int | None:
        if kind == BATCH:
            header = find_batch(data, 0, len(data), 0)
            return None if header is None else header.pos
        return _find_message(data) if kind == MESSAGE_SET else _find_message_07(data)

    def _pread(self, size: int, pos: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, pos)
            if not part:
                break
            parts.append(part)
            pos += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


_LENGTH_AT: Final = {BATCH: 8, MESSAGE_SET: 8, VERSION_07: 0}


def _parse_batches(data: bytes, pos: int) -> _Parsed:
    scanned = scan(data)
    items: list[Batch | Messages] = [
        Batch(pos + header.pos, header._replace(pos=0), data[header.pos : header.pos + header.size])
        for header in scanned.headers
    ]
    return _Parsed(items, scanned.end, scanned.error)


def _parse_message_set(data: bytes, pos: int) -> _Parsed:
    items: list[Batch | Messages] = []
    end = 0
    try:
        for message in iter_messages(data):
            records = message_records(message)
            items.append(Messages(pos + message.pos, MESSAGE_SET, records, message.compression))
            end = message.pos + message.size
    except CorruptRecord as error:
        return _Parsed(items, end, error)
    return _Parsed(items, end, None)


def _parse_07(data: bytes, pos: int) -> _Parsed:
    items: list[Batch | Messages] = []
    records: list[Record] = []
    end = 0
    try:
        for message in iter_messages_07(data):
            if message.offset >= end:  # of another compressed message than the one before
                records = []
                codec = _codec_07(data, message.offset)
                items.append(Messages(pos + message.offset, VERSION_07, records, codec))
            records.append(Record(value=message.payload))
            end = message.next_offset
    except CorruptRecord as error:
        return _Parsed(items, end, error)
    return _Parsed(items, end, None)


def _codec_07(data: bytes, pos: int) -> int:
    return data[pos + 5] & 0x03 if data[pos + 4] else NONE


_PARSERS: Final = {BATCH: _parse_batches, MESSAGE_SET: _parse_message_set, VERSION_07: _parse_07}


def _find_message(data: bytes) -> int | None:
    """The pos of the first valid message of magic 0 or 1."""
    budget = _CRC_BUDGET * len(data)
    for match in _MESSAGE.finditer(data):
        at = match.start()
        (size,) = _SIZE.unpack_from(data, at + 8)
        if size < 14 + 8 * match[1][0] or at + 12 + size > len(data):
            continue
        budget -= size
        if budget < 0:
            return None
        if crc32(data[at + 16 : at + 12 + size]) == _CRC.unpack_from(data, at + 12)[0]:
            return at
    return None


def _find_message_07(data: bytes) -> int | None:
    """The pos of the first valid message of 0.7 with a payload."""
    budget = _CRC_BUDGET * len(data)
    for match in _MESSAGE_07.finditer(data):
        at = match.start()
        magic = match[1][0]
        (length,) = _SIZE.unpack_from(data, at)
        payload = at + 9 + magic
        if length <= 5 + magic or at + 4 + length > len(data):
            continue
        budget -= length
        if budget < 0:
            return None
        if crc32(data[payload : at + 4 + length]) == _CRC.unpack_from(data, payload - 4)[0]:
            return at
    return None
