"""What a producer sent for a partition, checked before it is appended, so that no reader meets it broken.

A batch is looked at whole: its header, its CRC, and every record in it, decompressed within bounds. It is
appended as it came, compressed as it came, unless the topic wants another compression or the time of the
append, or the batch is later than its header says; its base offset and epoch are the log's own, and no CRC
covers them.

What is refused, and with which of Kafka's codes:

    larger than max_message_bytes                                    MESSAGE_TOO_LARGE
    cut short, impossible header, wrong CRC                          CORRUPT_MESSAGE
    not exactly one batch, no records, records that cannot be read,
    a control batch, a keyless record for a compacted topic          INVALID_RECORD
    of a transaction                                                 INVALID_TXN_STATE
    zstd in a request before version 7                               UNSUPPORTED_COMPRESSION_TYPE
"""

from __future__ import annotations

from typing import Final

from ..codec import (
    HEADER_SIZE,
    NONE,
    ZSTD,
    BatchHeader,
    codec_number,
    decode,
    encode_batch,
    loops,
    opened_batch,
    read_header,
    set_append_time,
    set_max_timestamp,
)
from ..config import TopicSettings
from ..errors import CorruptRecord
from ..model import Record
from .problems import Refusal
from .protocol import ErrorCode

FIRST_WITH_BATCHES: Final = 3
"""The first version of Produce that carries record batches (and nothing else)."""

_FIRST_WITH_ZSTD: Final = 7
_INLINE_BYTES: Final = 16 << 10  # compressed: checking more than this takes longer than asking a thread
_KEEPS: Final = "producer"
_KEEP_UNCOMPRESSED: Final = frozenset({_KEEPS, "uncompressed"})


def ready(records: memoryview, settings: TopicSettings) -> tuple[int, int, bool] | None:
    """What `loops.ready_batch` tells of a batch that is like most: nothing of what is told here is wrong with
    it, and it is appended as it came. None: it is to be looked at closer."""
    if (
        len(records) > settings.max_message_bytes
        or settings.append_time
        or settings.compacts
        or settings.compression_type not in _KEEP_UNCOMPRESSED
    ):
        return None
    return loops.ready_batch(records)


def header_of(records: memoryview, version: int, settings: TopicSettings) -> BatchHeader:
    """The header of the one batch that these bytes are, its CRC checked. Raises Refusal."""
    size = len(records)
    if size > settings.max_message_bytes:
        raise Refusal(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size:,} bytes: this topic takes {settings.max_message_bytes:,} (max.message.bytes)",
        )
    if size < HEADER_SIZE:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are no record batch")
    try:
        header = read_header(records)
    except CorruptRecord as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if header.size > size:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size:,} bytes, cut off at {size:,}")
    if header.size < size:
        raise Refusal(ErrorCode.INVALID_RECORD, "a produce request has one record batch for a partition")
    if loops.intact_run(records, 0, size) != size:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the bytes")
    if header.is_control:
        raise Refusal(ErrorCode.INVALID_RECORD, "control batches are the broker's own")
    if header.is_transactional:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
    if not header.record_count or header.record_count != header.last_offset_delta + 1:
        raise Refusal(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    if header.compression == ZSTD and version < _FIRST_WITH_ZSTD:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
    return header


def takes_long(header: BatchHeader, settings: TopicSettings) -> bool:
    """Is `checked` a thing for another thread (it decompresses, or makes the batch anew)?"""
    return (header.compression != NONE and header.size > _INLINE_BYTES) or _other_codec(
        header, settings
    ) is not None


def checked(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int
) -> bytearray | memoryview:
    """The batch as it is to be appended: most often these very bytes. Raises Refusal."""
    codec = _other_codec(header, settings)
    if codec is None and not settings.compacts:
        records = _checked_records(records, header)
    else:
        found = _records(records, header)
        if settings.compacts and any(record.key is None for record in found):
            raise Refusal(ErrorCode.INVALID_RECORD, "a compacted topic takes records with keys only")
        if codec is not None:
            records = memoryview(
                encode_batch(
                    [(r.key, r.value, r.headers, r.timestamp_ms) for r in found],
                    compression=codec,
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                )
            )
        else:
            records = _with_max_timestamp(records, header, found)
    if settings.append_time:
        stamped = bytearray(records)
        set_append_time(stamped, now_ms)
        return stamped
    return records


def _checked_records(records: memoryview, header: BatchHeader) -> memoryview:
    """The batch, its records looked at without making objects of them. Raises Refusal."""
    try:
        opened = opened_batch(records, header) if header.compression else records
    except CorruptRecord as error:
        raise Refusal(ErrorCode.INVALID_RECORD, str(error)) from None
    if loops.check_run(opened, 0, len(opened)) == len(opened):
        return records
    return _with_max_timestamp(records, header, _records(records, header))


def _with_max_timestamp(records: memoryview, header: BatchHeader, found: list[Record]) -> memoryview:
    """The batch, with the time of its latest record where its header says an earlier one: there are clients
    that leave the field empty (Sarama), and look-ups by time believe it."""
    latest = max(record.timestamp_ms for record in found)
    if latest <= header.max_timestamp_ms:
        return records
    mended = bytearray(records)
    set_max_timestamp(mended, latest)
    return memoryview(mended)


def _other_codec(header: BatchHeader, settings: TopicSettings) -> int | None:
    """The codec that the batch has to be made anew with; None where it may stay as it is."""
    wanted = settings.compression_type
    if wanted == _KEEPS:
        return None
    number = NONE if wanted == "uncompressed" else codec_number(wanted)
    return None if number == header.compression else number


def _records(records: memoryview, header: BatchHeader) -> list[Record]:
    try:
        return decode(records, header, "", -1)
    except CorruptRecord as error:
        raise Refusal(ErrorCode.INVALID_RECORD, str(error)) from None
