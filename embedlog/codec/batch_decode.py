"""Decodes record batches in two steps: scan a buffer for batches, then decode the records of one.

`scan` walks the headers and checks the CRCs. `decode` (or `decode_values`, or `filter_batch` for compaction)
opens one batch that `scan` accepted. For a run of ordinary batches `loops.decode_run` does both in one call.

    buffer   | batch | batch | batch | ba          scan: 3 headers, end = pos of the 4th, no error
    buffer   | batch | batch | ??????? | batch |   scan: 2 headers, end = pos of the damage, error
                                                   find_batch: the batch after it

A batch from an untrusted sender is opened in pieces (batch_pieces.py).

Invariants: every length is checked against the available bytes before anything is allocated by it; a
compressed batch opens to at most max_bytes; a record's offset lies within its batch's. Errors have the pos in
the buffer and the offsets; the caller adds the path.

Source: Kafka 2.7 implementation, sections 5.3 and 5.4; compaction's filter: Kafka's LogCleaner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptRecord, InvalidArgument
from ..model import Record
from . import loops
from .checksum import crc32c
from .compression import NONE, compress, decompress
from .record_batch import (
    ATTRIBUTES_POS,
    BASE_OFFSET_POS,
    CODEC_MASK,
    CRC_POS,
    HEAD,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_POS,
    TAIL,
    BatchHeader,
    crc_matches,
    read_header,
)

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

DEFAULT_MAX_BYTES = 128 << 20
_CRC_BUDGET = 4


class Scan(NamedTuple):
    """The result of `scan`: the batches' headers, the pos after the last one, and the error there, if any.

    Without an error, bytes from `end` on are the beginning of an incomplete batch.
    """

    headers: list[BatchHeader]
    end: int
    error: CorruptRecord | None


def scan(buffer: ReadBuffer, pos: int = 0, end: int | None = None, *, check_crc: bool = True) -> Scan:
    """Walk the batches between `pos` and `end`, up to the first incomplete or damaged one.

    Incomplete: fewer bytes than a header, or a valid header whose length reaches past the end. Damaged: an
    invalid header, or (with `check_crc`) a wrong CRC.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    headers: list[BatchHeader] = []
    while True:
        try:
            header = read_batch(buffer, pos, end, check_crc=check_crc)
        except CorruptRecord as error:
            return Scan(headers, pos, error)
        if header is None:
            return Scan(headers, pos, None)
        headers.append(header)
        pos += header.size


def read_batch(buffer: ReadBuffer, pos: int, end: int, *, check_crc: bool = True) -> BatchHeader | None:
    """The header of the batch at `pos`; None if the batch is incomplete (see `scan`).

    Raises CorruptRecord, with the pos, if it is damaged.
    """
    if end - pos < HEADER_SIZE:
        return None
    header = read_header(buffer, pos)
    if header.size > end - pos:
        return None
    if check_crc and not crc_matches(buffer, header):
        raise located(header, CorruptRecord("the CRC does not match the bytes"))
    return header


def decode(
    buffer: ReadBuffer,
    header: BatchHeader,
    topic: str,
    partition: int,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    start_offset: int = 0,
) -> list[Record]:
    """The records of one batch from `start_offset` on, decompressed to at most `max_bytes`.

    In a batch of log append time every record has the batch's max timestamp. Does not check the CRC: `scan`
    did. Raises CorruptRecord (DecompressionError, DecompressedTooLarge) with pos and offsets.
    """
    try:
        return loops.decode_records(
            _body(buffer, header, max_bytes),
            header.record_count,
            topic,
            partition,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp_ms,
            header.max_timestamp_ms if header.timestamp_type else None,
            start_offset,
        )
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__


def decode_values(
    buffer: ReadBuffer, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES, start_offset: int = 0
) -> list[bytes | None]:
    """The values of one batch's records; otherwise as `decode`."""
    try:
        return loops.decode_values(
            _body(buffer, header, max_bytes),
            header.record_count,
            header.last_offset_delta,
            start_offset - header.base_offset,
        )
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__


@contextmanager
def opened_body(
    buffer: ReadBuffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[bytes]:
    """The bytes of one batch's records, decompressed to at most `max_bytes`, for another decoder.

    Raises CorruptRecord as `decode` does. A CorruptRecord from the block gets its pos and offsets, too.
    """
    try:
        yield _body(buffer, header, max_bytes)
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__


def filter_batch(
    buffer: ReadBuffer,
    header: BatchHeader,
    keep: Callable[[Record], bool] | Sequence[bool],
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> bytearray:
    """The batch without some of its records; the others stay byte for byte, under the same codec.

    Base offset, last offset delta, sequence, producer, epochs and timestamps stay, so that offsets and
    producer state can be rebuilt; length, count and CRC change. If no record is kept, returns an empty batch
    (record count 0, uncompressed, as Kafka's cleaner writes it).

    Args:
        keep: a predicate of a record (with topic "" and partition -1), or a bool for each record.

    Raises CorruptRecord as `decode` does.
    """
    if callable(keep):
        keep = [keep(record) for record in decode(buffer, header, "", -1, max_bytes=max_bytes)]
    elif len(keep) != header.record_count:
        raise InvalidArgument(f"{len(keep)} decisions for {header.record_count} records")
    try:
        body = _body(buffer, header, max_bytes)
        spans = loops.record_spans(body, header.record_count)
    except CorruptRecord as error:
        raise located(header, error) from error.__cause__
    pieces = [body[start:stop] for (start, stop), keeps in zip(spans, keep, strict=True) if keeps]
    return _with_body(header, header.compression if pieces else NONE, b"".join(pieces), len(pieces))


def recompressed(
    buffer: ReadBuffer, header: BatchHeader, codec: int, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytearray:
    """The batch with the same records under another codec. Raises CorruptRecord as `decode` does."""
    with opened_body(buffer, header, max_bytes) as body:
        return _with_body(header, codec, body, header.record_count)


def _with_body(header: BatchHeader, codec: int, body: bytes, record_count: int) -> bytearray:
    """A batch with this header and these records, compressed by a codec."""
    tail = TAIL.pack(header.attributes & ~CODEC_MASK | codec, *header[7:13], record_count)
    checksummed = tail + compress(codec, body)
    length = len(checksummed) + HEAD.size - LENGTH_OVERHEAD
    batch = bytearray(HEAD.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc32c(checksummed)))
    batch += checksummed
    return batch


def find_batch(buffer: ReadBuffer, pos: int, end: int, min_offset: int) -> BatchHeader | None:
    """The first valid batch, CRC included, that starts in pos..end with a base offset >= `min_offset`.

    This distinguishes damage in the middle from a torn tail. The cost is bounded: each possible magic byte is
    examined once, and CRCs are computed over at most four times the bytes searched; past that, returns None.
    """
    end = min(end, len(buffer))
    budget = _CRC_BUDGET * (end - pos)
    window = bytes(buffer[pos:end])
    at = window.find(MAGIC, MAGIC_POS)
    while at >= 0:
        start = at - MAGIC_POS
        if len(window) - start < HEADER_SIZE:
            return None
        # The first byte of the offset and the unused half of the attributes are 0 in every real batch.
        if not window[start + BASE_OFFSET_POS] and not window[start + ATTRIBUTES_POS]:
            header = _plausible(window, start)
            if header is not None and header.base_offset >= min_offset and header.size <= len(window) - start:
                budget -= header.size - CRC_POS
                if budget < 0:
                    return None
                if crc_matches(window, header):
                    return header._replace(pos=pos + start)
        at = window.find(MAGIC, at + 1)
    return None


def _plausible(window: bytes, pos: int) -> BatchHeader | None:
    try:
        return read_header(window, pos)
    except CorruptRecord:
        return None


def _body(buffer: ReadBuffer, header: BatchHeader, max_bytes: int) -> bytes:
    """The records' bytes, decompressed."""
    start = header.pos + HEADER_SIZE
    stop = header.pos + header.size
    if stop > len(buffer):
        raise CorruptRecord(f"the batch's last {stop - len(buffer):,} bytes are missing")
    body = bytes(buffer[start:stop])
    codec = header.compression
    if not codec or not (body or header.record_count):
        return body
    return decompress(codec, body, max_bytes)


def located(header: BatchHeader, error: CorruptRecord) -> CorruptRecord:
    error.at(pos=header.pos, offset=header.base_offset, last_offset=header.last_offset)
    return error
