"""What a producer sent for a partition, checked before it is appended, so that no reader meets it broken.

A batch is looked at whole: its header, its CRC, and every record in it, decompressed piece by piece and to at
most max_decompressed_message_bytes. It is appended as it came, compressed as it came, unless the topic wants
another compression or the time of the append, or the batch is later than its header says; its base offset and
epoch are the log's own, and no CRC covers them.

What is refused, and with which of Kafka's codes:

    larger than max_message_bytes, or than
    max_decompressed_message_bytes once decompressed                 MESSAGE_TOO_LARGE
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
    check_pieces,
    codec_number,
    decode_pieces,
    loops,
    read_header,
    recompressed,
    set_append_time,
    set_max_timestamp,
)
from ..config import TopicSettings
from ..errors import CorruptRecord, DecompressedTooLarge
from ..wire.error_codes import ErrorCode
from .problems import ApiError, RecordsRefused

FIRST_WITH_BATCHES: Final = 3
"""The first version of Produce that carries record batches (and nothing else)."""

_FIRST_WITH_ZSTD: Final = 7
_AT_ONCE_BYTES: Final = 16 << 10  # compressed: checking more than this takes longer than asking a thread
_AT_ONCE_DECOMPRESSED_BYTES: Final = 256 << 10  # what 16 KiB may honestly decompress to
_MOST_RECORD_ERRORS: Final = 10_000  # in one answer: a compressed batch may hold millions of invalid records
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
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size:,} bytes: this topic takes {settings.max_message_bytes:,} (max.message.bytes)",
        )
    if size < HEADER_SIZE:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are no record batch")
    try:
        header = read_header(records)
    except CorruptRecord as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if header.size > size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size:,} bytes, cut off at {size:,}")
    if header.size < size:
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request has one record batch for a partition")
    if loops.intact_run(records, 0, size) != size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the bytes")
    if header.is_control:
        raise ApiError(ErrorCode.INVALID_RECORD, "control batches are the broker's own")
    if header.is_transactional:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
    if not header.record_count or header.record_count != header.last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    if header.compression == ZSTD and version < _FIRST_WITH_ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
    return header


def checked_at_once(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int, max_bytes: int
) -> bytearray | memoryview | None:
    """What `checked` returns; None for a batch so large that another thread has to check it."""
    if header.compression:
        holds_much = header.size > _AT_ONCE_BYTES
    else:
        holds_much = settings.compacts and header.size > _AT_ONCE_DECOMPRESSED_BYTES
    if holds_much or _other_codec(header, settings) is not None:
        return None
    try:
        return checked(records, header, settings, now_ms, min(max_bytes, _AT_ONCE_DECOMPRESSED_BYTES))
    except ApiError as refusal:
        if refusal.code == ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


def checked(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int, max_bytes: int
) -> bytearray | memoryview:
    """The batch as it is to be appended: most often these very bytes. It may decompress to max_bytes.

    Raises Refusal.
    """
    latest = header.max_timestamp_ms
    codec = _other_codec(header, settings)
    try:
        if settings.compacts or not check_pieces(records, header, max_bytes):
            latest = _latest_timestamp(records, header, settings, max_bytes)
        if codec is not None:
            records = memoryview(recompressed(records, header, codec, max_bytes=max_bytes))
    except DecompressedTooLarge:
        raise decompresses_to_more(max_bytes) from None
    except CorruptRecord as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    if latest > header.max_timestamp_ms:
        # Some clients leave the field empty (Sarama), and look-ups by time rely on it.
        mended = bytearray(records)
        set_max_timestamp(mended, latest)
        records = memoryview(mended)
    if settings.append_time:
        stamped = bytearray(records)
        set_append_time(stamped, now_ms)
        return stamped
    return records


def decompresses_to_more(max_bytes: int) -> ApiError:
    """The refusal of a batch or message set that decompresses to more than max_bytes."""
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"it decompresses to more than {max_bytes:,} bytes (max.decompressed.message.bytes): "
        "send fewer records at once",
    )


def _latest_timestamp(
    records: memoryview, header: BatchHeader, settings: TopicSettings, max_bytes: int
) -> int:
    """The largest timestamp in the batch; every record is checked. Raises RecordsRefused, CorruptRecord."""
    latest = header.max_timestamp_ms
    guilty: list[int] = []
    keyless = place = 0
    for piece in decode_pieces(records, header, "", -1, max_bytes=max_bytes):
        latest = max(latest, *(record.timestamp_ms for record in piece))
        if settings.compacts:
            found = [place + i for i, record in enumerate(piece) if record.key is None]
            guilty += found[: _MOST_RECORD_ERRORS - len(guilty)]
            keyless += len(found)
            place += len(piece)
    if keyless:
        reason = "a compacted topic takes records with keys only"
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"{keyless:,} of the batch's {header.record_count:,} records: no key; {reason}",
            guilty,
            reason,
        )
    return latest


def _other_codec(header: BatchHeader, settings: TopicSettings) -> int | None:
    """The codec that the batch has to be made anew with; None where it may stay as it is."""
    wanted = settings.compression_type
    if wanted == _KEEPS:
        return None
    number = NONE if wanted == "uncompressed" else codec_number(wanted)
    return None if number == header.compression else number
