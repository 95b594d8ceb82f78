"""Decodes records of one shape column by column: no line of Python per record.

    | length | 0 | time | delta | key length | key | value length | value | 0 |      all fields as long as
    | length | 0 | time | delta | key length | key | value length | value | 0 |      those of the first one
      '--- one byte of each record, `size` bytes apart, is a slice of the body

Many logs look like that: readings, rows of fixed width, the records of one producer. If the first records
differ in shape, they are decoded one by one (plain_decoding.py).

Invariant: the result is that of decoding record by record.
"""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

AT_LEAST: Final = 8  # for fewer, the check costs more than it saves
_ONE_BYTE: Final = 64  # the first offset delta whose varint takes two bytes
_TWO_BYTES: Final = 8192  # ... three bytes
_DELTAS: Final = bytes(range(0, 2 * _ONE_BYTE, 2))
_LOW: Final = bytes(2 * delta & 127 | 128 for delta in range(_ONE_BYTE)) * (_TWO_BYTES // _ONE_BYTE)
_HIGH: Final = b"".join(bytes((high,)) * _ONE_BYTE for high in range(_TWO_BYTES // _ONE_BYTE))


class UniformRecords(NamedTuple):
    """`number` records of `size` bytes each, from byte `pos` on, and the positions of their fields.

    Offset deltas are consecutive. A `key_size` of -1 is null. The timestamp delta takes one byte.
    """

    pos: int
    number: int
    size: int
    time_at: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int

    @property
    def end(self) -> int:
        """The byte after them."""
        return self.pos + self.number * self.size

    def times(self, body: bytes) -> bytes:
        """The timestamp deltas, a zigzag byte each."""
        return body[self.pos + self.time_at : self.end : self.size]

    def keys(self, body: bytes) -> list[bytes]:
        """The keys, if they are not null."""
        return self._column(body, self.key_at, self.key_size, 0, self.number)

    def values(self, body: bytes, start: int, stop: int) -> list[bytes]:
        """The values of records `start` to `stop` - 1."""
        return self._column(body, self.value_at, self.value_size, start, stop)

    def _column(self, body: bytes, at: int, length: int, start: int, stop: int) -> list[bytes]:
        if stop <= start:
            return []
        field = Struct(f"{at}x{length}s{self.size - at - length}x")
        view = memoryview(body)[self.pos + start * self.size : self.pos + stop * self.size]
        return list(chain.from_iterable(field.iter_unpack(view)))


def uniform_records_at(body: bytes, pos: int, delta: int, most: int) -> UniformRecords | None:
    """At most `most` records of one shape at `pos`, the first with offset delta `delta`; None if there are
    too few."""
    try:
        return _uniform_records_at(body, pos, delta, most) if most >= AT_LEAST else None
    except IndexError:  # the body ends too soon
        return None


def _uniform_records_at(body: bytes, pos: int, delta: int, most: int) -> UniformRecords | None:
    at, number = _short_varint(body, pos)
    start, size = at, at - pos + (number >> 1)
    count = min(most, (len(body) - pos) // size)
    following = pos + (AT_LEAST - 1) * size
    if number & 1 or count < AT_LEAST or body[following : following + at - pos] != body[pos:at]:
        return None
    time_at = at + 1
    delta_at = at + 2
    key_length_at = delta_at + (1 if delta < _ONE_BYTE else 2)
    at, number = _short_varint(body, key_length_at)
    key_at, key_size = at, -1 if number == 1 else number >> 1
    value_length_at = key_at + max(key_size, 0)
    value_at, folded = _short_varint(body, value_length_at)
    value_size = folded >> 1
    last = pos + size - 1
    if (number & 1 and number != 1) or folded & 1 or value_at + value_size != last or body[last]:
        return None
    for same in (*range(pos, start), *range(key_length_at, key_at), *range(value_length_at, value_at), last):
        column = body[same : pos + count * size : size]
        byte = body[same : same + 1]
        if column.count(byte) != count:
            count -= len(column.lstrip(byte))
            if count < AT_LEAST:
                return None
    end = pos + count * size
    if not body[time_at:end:size].isascii():
        return None
    if delta < _ONE_BYTE:
        found, wanted = body[delta_at:end:size], _DELTAS[delta : delta + count]
    else:
        found = body[delta_at:end:size] + body[delta_at + 1 : end : size]
        wanted = _LOW[delta : delta + count] + _HIGH[delta : delta + count]
    if found != wanted:
        return None
    return UniformRecords(pos, count, size, time_at - pos, key_at - pos, key_size, value_at - pos, value_size)


def _short_varint(body: bytes, pos: int) -> tuple[int, int]:
    """(pos after a varint of at most two bytes, its zigzag number); for a longer one an odd number."""
    number = body[pos]
    if number < 128:
        return pos + 1, number
    byte = body[pos + 1]
    return pos + 2, (number + (byte << 7) - 128 if byte < 128 else 3)
