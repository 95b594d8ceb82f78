"""The header of a record batch, magic 2: reads, checks and updates it in place.

     0  base offset           i64   of the first record; given by the log
     8  batch length          i32   bytes after this field: size - 12
    12  leader epoch          i32   given by the log
    16  magic                 i8    2
    17  crc                   u32   CRC-32C from 21 to the end
    21  attributes            i16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                    6 delete horizon
    23  last offset delta     i32   last offset - base offset, kept by compaction
    27  base timestamp        i64   the records' timestamps count from here
    35  max timestamp         i64
    43  producer id           i64   -1 for none
    51  producer epoch        i16
    53  base sequence         i32
    57  record count          i32
    61  records                     possibly compressed, all together

The CRC does not cover the fields that the log assigns (base offset, leader epoch), nor length and magic.
Those are checked by continuity: a batch starts where the one before it ends, at its next offset or later.

With bit 6 (the delete horizon, Kafka 3.1) compaction may drop the batch's tombstones from the base timestamp
on; the records' timestamps still count from it.

Invariants: `read_header` accepts only headers that an encoder can have written, so its numbers may be used
as sizes; it allocates nothing by them.

Source: Kafka 2.7 implementation, section 5.3.1 (record batch).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import CorruptRecord, InvalidArgument, UnknownMagic
from ..model import LOG_APPEND_TIME
from .checksum import crc32c
from .compression import ZSTD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from mmap import mmap

    ReadBuffer: TypeAlias = bytes | bytearray | memoryview | mmap

MAGIC = 2
HEADER_SIZE = 61
LENGTH_OVERHEAD = 12
MIN_BATCH_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
MIN_RECORD_SIZE = 7
LARGEST_BATCH = 256 << 20  # far above any max_message_bytes: a larger length is damage
MAX_OFFSET = (1 << 63) - 1

BASE_OFFSET_POS = 0
LENGTH_POS = 8
LEADER_EPOCH_POS = 12
MAGIC_POS = 16
CRC_POS = 17
ATTRIBUTES_POS = 21
LAST_OFFSET_DELTA_POS = 23
BASE_TIMESTAMP_POS = 27
MAX_TIMESTAMP_POS = 35
PRODUCER_ID_POS = 43
PRODUCER_EPOCH_POS = 51
BASE_SEQUENCE_POS = 53
RECORD_COUNT_POS = 57

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
ATTRIBUTES_MASK = 0x7F

HEADER = struct.Struct(">qiibIhiqqqhii")
HEAD = struct.Struct(">qiibI")
TAIL = struct.Struct(">hiqqqhii")
_GIVEN = struct.Struct(">qii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")

_new = tuple.__new__  # a NamedTuple, without the detour by way of its own function


class BatchHeader(NamedTuple):
    """A batch's header, and its position in the buffer (`pos`). Timestamps in milliseconds."""

    pos: int
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of its last record, which compaction may have removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The number of its codec."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 create time, 1 log append time."""
        return self.attributes >> 3 & 1

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether it ends a transaction; its record is never given to an application."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_sequenced(self) -> bool:
        """Whether producer state depends on it: it has a producer id, or is part of a transaction."""
        return self.producer_id >= 0 or bool(self.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT))

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp_ms is also the time from which tombstones in it may be dropped."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 without one. 0 follows 2**31-1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: ReadBuffer, pos: int = 0) -> BatchHeader:
    """The header of the batch at `pos`. The batch itself may reach past the buffer's end.

    Raises UnknownMagic for another format, CorruptRecord for an invalid header, both with `pos`.
    """
    if pos < 0 or len(buffer) - pos < HEADER_SIZE:
        raise CorruptRecord(
            f"{max(len(buffer) - pos, 0)} bytes remain, the header of a record batch takes {HEADER_SIZE}",
            pos=pos,
        )
    return _checked(_new(BatchHeader, (pos, *HEADER.unpack_from(buffer, pos))))


def _checked(header: BatchHeader) -> BatchHeader:
    """The header, if an encoder can have written it. Raises as `read_header`."""
    reason = _impossible(header)
    if reason is None:
        return header
    if header.magic != MAGIC and header.batch_length > 0:
        raise UnknownMagic(reason, pos=header.pos)
    raise CorruptRecord(reason, pos=header.pos)


def _impossible(header: BatchHeader) -> str | None:
    """Why no encoder can have written this header; None if one could."""
    _, base_offset, length, leader_epoch, magic, _, attributes, last_delta = header[:8]
    producer_id, epoch, sequence, count = header[10:]
    if magic != MAGIC or length < MIN_BATCH_LENGTH:
        if length == 0 and not any(header[1:]):
            return "zeros where a record batch should be"
        if length > 0 and magic != MAGIC:
            return f"magic {magic}, not {MAGIC}: not a record batch, or of another format"
        return f"a batch length of {length:,}, less than {MIN_BATCH_LENGTH}"
    if base_offset < 0 or last_delta < 0 or base_offset > MAX_OFFSET - last_delta - 1:
        return f"impossible offsets: base {base_offset}, last offset delta {last_delta}"
    if not 0 <= count <= last_delta + 1:
        return f"a record count of {count:,} for {last_delta + 1:,} offsets"
    codec = attributes & CODEC_MASK
    if codec > ZSTD:
        return f"compression number {codec} means nothing"
    if not codec and count * MIN_RECORD_SIZE > length - MIN_BATCH_LENGTH:
        return f"{count:,} records cannot fit in {length - MIN_BATCH_LENGTH:,} bytes"
    if leader_epoch < -1 or producer_id < -1 or epoch < -1 or sequence < -1:
        return (
            f"impossible numbers: leader epoch {leader_epoch}, producer id {producer_id}, "
            f"producer epoch {epoch}, base sequence {sequence}"
        )
    return None


def is_deliberate(batch: ReadBuffer) -> bool:
    """Whether the batch, whose header `read_header` refuses, is as its producer wrote it, and not damaged.

    That is, it is of an earlier format, has an offset, or has a known codec and a CRC that agrees.
    """
    header = _new(BatchHeader, (0, *HEADER.unpack_from(batch)))
    if header.magic != MAGIC or header.batch_length < MIN_BATCH_LENGTH:
        return 0 <= header.magic < MAGIC
    return bool(header.base_offset) or (header.compression <= ZSTD and crc_matches(batch, header))


def assign(batch: bytearray, base_offset: int, leader_epoch: int, pos: int = 0) -> None:
    """Set base offset and leader epoch of the batch at `pos`, in place. The CRC covers neither."""
    _OFFSET.pack_into(batch, pos + BASE_OFFSET_POS, base_offset)
    _EPOCH.pack_into(batch, pos + LEADER_EPOCH_POS, leader_epoch)


def make_producible(batch: bytearray, pos: int = 0) -> None:
    """Clear what only a log may set of the batch at `pos`, in place: brokers of Kafka refuse what a client
    produces with another base offset than 0 or with log append time. The CRC is left for `set_producer`."""
    assign(batch, 0, -1, pos)
    batch[pos + ATTRIBUTES_POS + 1] &= ~TIMESTAMP_TYPE_BIT


def set_append_time(batch: bytearray, timestamp_ms: int, pos: int = 0) -> None:
    """Change the batch at `pos` to log append time, in place: type bit, max timestamp and CRC.

    Readers then see `timestamp_ms` in every record; the producers' timestamps stay in the bytes. Raises
    CorruptRecord if there is no batch at `pos`.
    """
    header = read_header(batch, pos)
    _ATTRIBUTES.pack_into(batch, pos + ATTRIBUTES_POS, header.attributes | LOG_APPEND_TIME << 3)
    _OFFSET.pack_into(batch, pos + MAX_TIMESTAMP_POS, timestamp_ms)
    _CRC.pack_into(batch, pos + CRC_POS, crc32c(batch[pos + ATTRIBUTES_POS : pos + header.size]))


def set_create_time(batch: bytearray, pos: int = 0) -> None:
    """Change the batch at `pos` to create time, in place: type bit and CRC.

    Raises CorruptRecord if there is no batch at `pos`.
    """
    header = read_header(batch, pos)
    _ATTRIBUTES.pack_into(batch, pos + ATTRIBUTES_POS, header.attributes & ~TIMESTAMP_TYPE_BIT)
    _CRC.pack_into(batch, pos + CRC_POS, crc32c(batch[pos + ATTRIBUTES_POS : pos + header.size]))


def set_max_timestamp(batch: bytearray, timestamp_ms: int, pos: int = 0) -> None:
    """Set the max timestamp of the batch at `pos`, and its CRC, in place.

    Raises CorruptRecord if there is no batch at `pos`.
    """
    header = read_header(batch, pos)
    _OFFSET.pack_into(batch, pos + MAX_TIMESTAMP_POS, timestamp_ms)
    _CRC.pack_into(batch, pos + CRC_POS, crc32c(batch[pos + ATTRIBUTES_POS : pos + header.size]))


def set_producer(
    batch: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    pos: int = 0,
    size: int | None = None,
    *,
    transactional: bool = False,
) -> None:
    """Set producer and base sequence of the batch at `pos`, and its CRC, in place.

    size: the batch's, if the caller has read it. transactional: make it part of a transaction. Raises
    CorruptRecord if there is no batch at `pos`.
    """
    if size is None:
        size = read_header(batch, pos).size
    if transactional:
        batch[pos + ATTRIBUTES_POS + 1] |= TRANSACTIONAL_BIT
    _PRODUCER.pack_into(batch, pos + PRODUCER_ID_POS, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, pos + CRC_POS, crc32c(batch[pos + ATTRIBUTES_POS : pos + size]))


def crc_matches(buffer: ReadBuffer, header: BatchHeader) -> bool:
    """Whether the batch, which must be complete, has the CRC in its header."""
    return crc32c(buffer[header.pos + ATTRIBUTES_POS : header.pos + header.size]) == header.crc


def heads_sum(headers: Iterable[BatchHeader]) -> int:
    """The sum of the scattered CRC-32Cs of each batch's first 21 bytes, modulo 2^32.

    These bytes end with the batch's own CRC. So where that has been checked, the sum depends on every byte.
    """
    heads = (HEAD.pack(h.base_offset, h.batch_length, h.leader_epoch, h.magic, h.crc) for h in headers)
    return sum(_scattered(crc32c(head)) for head in heads) & 0xFFFFFFFF


def _scattered(crc: int) -> int:
    """Murmur3's last step. CRCs are linear: what changes many of them alike would hardly change their sum."""
    crc = (crc ^ crc >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    crc = (crc ^ crc >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return crc ^ crc >> 16


def assign_all(
    batches: bytearray, base: int, epoch: int
) -> tuple[list[tuple[int, int, int]], list[BatchHeader], int]:
    """Assign offsets and epochs, in place.

    Returns (size, last offset, max timestamp) of each batch, the headers of sequenced ones, and the next
    offset.

    Raises InvalidArgument: these are not whole batches. CorruptRecord: the header of a sequenced one is
    invalid.
    """
    placed = []
    sequenced = []
    pos, end = 0, len(batches)
    while pos < end:
        try:
            fields = HEADER.unpack_from(batches, pos)
        except struct.error:
            raise InvalidArgument("an append must be whole record batches") from None
        header = _new(BatchHeader, (pos, base, fields[1], epoch, *fields[3:]))
        size, delta = header.size, header.last_offset_delta
        if header.magic != MAGIC or size < HEADER_SIZE or delta < 0 or pos + size > end:
            raise InvalidArgument(f"not a record batch at byte {pos} of the append")
        _GIVEN.pack_into(batches, pos, base, header.batch_length, epoch)
        if header.is_sequenced:
            sequenced.append(_checked(header))
        base += delta + 1
        placed.append((size, base - 1, header.max_timestamp_ms))
        pos += size
    if not placed:
        raise InvalidArgument("an append must have at least one batch")
    return placed, sequenced, base


def split(batches: bytearray) -> Iterator[bytearray]:
    """Whole batches one by one, by their lengths; one alone as it is, others copied.

    Raises CorruptRecord for a length that no batch has.
    """
    pos = 0
    while pos < len(batches):
        (length,) = _LENGTH.unpack_from(batches, pos + LENGTH_POS)
        if not MIN_BATCH_LENGTH <= length <= len(batches) - pos - LENGTH_OVERHEAD:
            raise CorruptRecord(f"a batch length of {length:,}", pos=pos)
        end = pos + LENGTH_OVERHEAD + length
        yield batches if end - pos == len(batches) else batches[pos:end]
        pos = end
