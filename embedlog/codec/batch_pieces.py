"""Decodes one batch in pieces, so that its contents are never in memory all at once.

    compressed body -> 256 KiB, decompressed -> at most 4,096 complete records -> Record objects, or a check

A batch of 100 KB may contain 100 MB, or millions of records, each a hundred bytes as an object. A broker
opens its clients' batches here, and may stop after any piece.

Invariants: a piece has at most PIECE_RECORDS records and PIECE_BYTES, or a single larger record, and ends
with a complete record. Pieces yielded before an error are valid.

Source: Kafka 2.7 implementation, section 5.3 (record batch, record).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..errors import CorruptRecord
from ..model import Record
from . import loops
from .batch_decode import DEFAULT_MAX_BYTES, located, scan
from .compression import NONE, decompressed
from .record_batch import (
    CODEC_MASK,
    HEAD,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TAIL,
    BatchHeader,
    set_max_timestamp,
)
from .varint import decode_varint, decode_varlong

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

PIECE_BYTES: Final = 256 << 10
PIECE_RECORDS: Final = 4_096


def body_pieces(buffer: ReadBuffer, header: BatchHeader, max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """(bytes, number of records) of each piece of one batch, decompressed to at most `max_bytes` in all.

    Does not check the records' fields. Raises CorruptRecord (DecompressionError, DecompressedTooLarge)
    without a location.
    """
    body = bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size])
    records_left = header.record_count
    if header.compression and (body or records_left):
        parts = decompressed(header.compression, body, max_bytes, PIECE_BYTES)
    else:
        parts = iter((body,))
    rest = bytearray()
    for part in parts:
        rest += part
        pos = 0
        while records_left:
            count, stop = loops.whole_records(rest, pos, pos + PIECE_BYTES, min(records_left, PIECE_RECORDS))
            if not count:  # a larger record, or an incomplete one
                count, stop = loops.whole_records(rest, pos, len(rest), 1)
            if not count:
                break
            yield bytes(rest[pos:stop]), count
            records_left -= count
            pos = stop
        del rest[:pos]
        if rest and not records_left:
            raise CorruptRecord(f"bytes follow the last of {header.record_count:,} records")
    if records_left:
        raise CorruptRecord(f"{records_left:,} of {header.record_count:,} records are missing")


def decode_pieces(
    buffer: ReadBuffer,
    header: BatchHeader,
    topic: str,
    partition: int,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    start_offset: int = 0,
) -> Iterator[list[Record]]:
    """The records of `batch_decode.decode`, in pieces; a piece before `start_offset` is an empty list.

    Raises CorruptRecord as `decode` does.
    """
    last_offset = -1
    try:
        for body, count in body_pieces(buffer, header, max_bytes):
            records = loops.decode_records(
                body,
                count,
                topic,
                partition,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.timestamp_type else None,
                start_offset,
            )
            if records:
                if records[0].offset <= last_offset:
                    raise CorruptRecord("the offset deltas do not rise")
                last_offset = records[-1].offset
            yield records
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__


def latest_timestamp(buffer: ReadBuffer, header: BatchHeader, max_bytes: int) -> int | None:
    """The largest timestamp of the batch's records, whatever its header says. Makes no objects.

    None if they are invalid, or if an offset has no record. Raises CorruptRecord if the batch cannot be
    opened.
    """
    done = 0
    latest = None
    attributes = header.attributes & ~CODEC_MASK | NONE
    try:
        for body, count in body_pieces(buffer, header, max_bytes):
            if _first_delta(body) != done:
                return None
            done += count
            # An uncompressed batch of these records alone, since the loop takes whole batches.
            length = HEADER_SIZE - LENGTH_OVERHEAD + len(body)
            piece = HEAD.pack(header.base_offset, length, header.leader_epoch, MAGIC, 0)
            piece += TAIL.pack(attributes, done - 1, *header[8:13], count) + body
            end, _, of_piece = loops.times_run(piece, 0, len(piece), False)
            if end < len(piece):
                return None
            latest = of_piece if latest is None else max(latest, of_piece)
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__
    return latest


def correct_max_timestamps(batches: bytearray) -> None:
    """Set the max timestamp of each batch to the largest of its records', in place, as Kafka does on append.

    For whole batches that another program wrote: some write 0 or -1 there, and retention and lookups by time
    rely on it. A batch without records, or that cannot be opened, stays as it is.
    """
    for header in scan(batches, check_crc=False).headers:
        if not header.record_count or header.timestamp_type:
            continue
        try:
            latest = latest_timestamp(batches, header, DEFAULT_MAX_BYTES)
            if latest is None:  # compaction has left gaps
                pieces = decode_pieces(batches, header, "", -1)
                latest = max(record.timestamp_ms for piece in pieces for record in piece)
        except CorruptRecord:
            continue
        if latest != header.max_timestamp_ms:
            set_max_timestamp(batches, latest, header.pos)


def _first_delta(body: bytes) -> int:
    """The first record's offset delta. Raises CorruptRecord."""
    _, pos = decode_varint(body)
    _, pos = decode_varlong(body, pos + 1)
    delta, _ = decode_varint(body, pos)
    return delta
