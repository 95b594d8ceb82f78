"""Record batches to records: walk a buffer batch by batch, then open the batches that are wanted.

Two steps, since most readers want only some batches' records: `scan` walks the headers and checks the CRCs,
`decode` (or `decode_values`, or `filter_batch` for compaction) opens one batch that `scan` has let pass.
Where nothing is unusual `loops.decode_run` does both, a whole run at a time.

    buffer   | batch | batch | batch | ba          scan: 3 headers, end = pos of the 4th, no error
    buffer   | batch | batch | ??????? | batch |   scan: 2 headers, end = pos of the damage, error
                                                   find_batch: the batch after it

A batch whose sender is not trusted is opened piece by piece (batch_pieces.py).

Invariants: nothing is allocated by a length that was not checked against the bytes there are, and no
compressed batch opens to more than max_bytes. A record's offset lies within its batch's. Errors carry the
pos in the buffer and the offsets; the caller, who knows the file, adds its path.

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
    """What `scan` found: the batches' headers, the pos after the last of them, and what is wrong there.

    Without an error the bytes from `end` on, if any, are the start of a batch whose rest is missing.
    """

    headers: list[BatchHeader]
    end: int
    error: CorruptRecord | None


def scan(buffer: ReadBuffer, pos: int = 0, end: int | None = None, *, check_crc: bool = True) -> Scan:
    """Walk the whole batches between `pos` and `end`; stop at the first that is incomplete or damaged.

    Incomplete is what has fewer bytes than a header, or a header that could be one and a length past the
    end. Damaged is a header that cannot be one, or (with `check_crc`) a wrong CRC.
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
    """The header of the whole batch at `pos`; None where it is incomplete (see `scan`).

    Raises CorruptRecord, located by pos, where it is damaged.
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

    A batch of log append time gives each record its max timestamp. The CRC is not looked at: `scan` did.
    Raises CorruptRecord (DecompressionError, DecompressedTooLarge) located by pos and offsets.
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
    """The values of one batch's records; faster than `decode`, and otherwise the same."""
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
    """The bytes of one batch's records, decompressed to at most `max_bytes`, for who decodes them otherwise.

    Raises CorruptRecord as `decode` does; one that is raised inside is located, too.
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
    """The batch with only the records to keep, each byte for byte as it was, compressed as it was.

    `keep` says it for a record (whose topic is "" and partition -1), or is a list of one bool for each
    record. Base offset, last offset delta, sequence, producer, epochs and timestamps stay, so that offsets
    and producer state can be rebuilt; only length, count and CRC change. Where nothing is kept an empty
    batch comes back (record count 0, uncompressed, as Kafka's cleaner writes it): whether to write it is
    the caller's decision. Raises CorruptRecord as `decode` does.
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
    kept = [body[start:stop] for (start, stop), wanted in zip(spans, keep, strict=True) if wanted]
    return _with_body(header, header.compression if kept else NONE, b"".join(kept), len(kept))


def recompressed(
    buffer: ReadBuffer, header: BatchHeader, codec: int, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytearray:
    """The batch with the same records under another codec. Raises CorruptRecord as `decode` does."""
    with opened_body(buffer, header, max_bytes) as body:
        return _with_body(header, codec, body, header.record_count)


def _with_body(header: BatchHeader, codec: int, body: bytes, record_count: int) -> bytearray:
    """A batch with this header and these records, compressed by a codec."""
    tail = TAIL.pack(header.attributes & ~CODEC_MASK | codec, *header[7:13], record_count)
    covered = tail + compress(codec, body)
    length = len(covered) + HEAD.size - LENGTH_OVERHEAD
    batch = bytearray(HEAD.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc32c(covered)))
    batch += covered
    return batch


def find_batch(buffer: ReadBuffer, pos: int, end: int, min_offset: int) -> BatchHeader | None:
    """The first valid batch (CRC and all) that starts in pos..end, at an offset of `min_offset` or above.

    It tells damage in the middle from a torn tail: valid batches after an invalid one are reported. The
    cost is bounded: each byte that could be a magic is looked at once, and CRCs are computed over at most
    four times the bytes searched; where that does not suffice the answer is None.
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
