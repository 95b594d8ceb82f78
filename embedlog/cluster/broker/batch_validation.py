"""Validates a producer's batch before it is appended, so that no reader meets a broken one.

The whole batch is checked: its header, its CRC, and every record, decompressed piece by piece to at most
max_decompressed_message_bytes. It is appended unchanged unless the topic sets another compression or
LogAppendTime, or the header's maximum timestamp is not that of its records. The log assigns base offset and
leader epoch, which no CRC covers.

Batches that Kafka 4.3 rejects are rejected, with Kafka's error codes: docs/reference/compatibility.md lists
the rules, and tests/produce_cases.py has a request for each.
"""

from __future__ import annotations

import struct
from typing import Final

from ...codec import (
    HEADER_SIZE,
    ZSTD,
    BatchHeader,
    codec_number,
    decode_pieces,
    latest_timestamp,
    loops,
    read_header,
    recompressed,
    set_append_time,
    set_create_time,
    set_max_timestamp,
)
from ...codec.record_batch import (
    LENGTH_OVERHEAD,
    LENGTH_POS,
    MAGIC,
    MAGIC_POS,
    is_deliberate,
)
from ...config import MAX_INT64, TopicSettings
from ...errors import CorruptRecord, DecompressedTooLarge
from ...model import NO_TIMESTAMP
from ...wire.error_codes import ErrorCode
from .api_errors import ApiError, InvalidRecords

FIRST_WITH_BATCHES: Final = 3
"""The first version of Produce that carries record batches (and nothing else)."""

_FIRST_WITH_ZSTD: Final = 7
_QUICK_BYTES: Final = 16 << 10  # compressed: checking more takes longer than handing it to a thread
_QUICK_DECOMPRESSED_BYTES: Final = 256 << 10  # what 16 KiB usually decompress to at most
_MAX_RECORD_ERRORS: Final = 10_000  # in one response: a compressed batch may hold millions of invalid records
_KEEP: Final = "producer"
_LENGTH: Final = struct.Struct(">i")
_SHORTEST: Final = 14  # the length of an empty message of magic 0


def read_batch_header(
    records: memoryview, version: int, settings: TopicSettings, *, transactional: bool = False
) -> BatchHeader:
    """Check that these bytes are exactly one batch with a valid CRC; returns its header. Raises ApiError.

    transactional: may it be part of a transaction?
    """
    size = len(records)
    if size > settings.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size:,} bytes: this topic takes {settings.max_message_bytes:,} (max.message.bytes)",
        )
    length = _LENGTH.unpack_from(records, LENGTH_POS)[0] if size > MAGIC_POS else size
    if size > MAGIC_POS and (records[MAGIC_POS] > MAGIC or length < _SHORTEST):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "neither a record batch nor a message")
    if size < HEADER_SIZE or length > size - LENGTH_OVERHEAD:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{size:,} bytes without a complete record batch")
    try:
        header = read_header(records)
    except CorruptRecord as error:
        code = ErrorCode.INVALID_RECORD if is_deliberate(records) else ErrorCode.CORRUPT_MESSAGE
        raise ApiError(code, str(error)) from None
    if header.size < size:
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request has one record batch for a partition")
    if header.base_offset:
        raise ApiError(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}: a producer's is 0")
    if loops.intact_run(records, 0, size) != size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the bytes")
    if header.is_transactional and not transactional:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a batch of a transaction without transactional id",
        )
    if header.is_control:
        raise ApiError(ErrorCode.INVALID_RECORD, "only the broker writes control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id} without a sequence")
    if header.is_transactional and header.producer_id < 0:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a batch of a transaction without producer id")
    if not header.record_count or header.record_count != header.last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    if header.compression == ZSTD and version < _FIRST_WITH_ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
    return header


def validate_quickly(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int, max_bytes: int
) -> bytearray | memoryview | None:
    """Validate as `validate`; None for a batch so large that another thread has to validate it."""
    if header.compression:
        is_large = header.size > _QUICK_BYTES
    else:
        is_large = settings.compacts and header.size > _QUICK_DECOMPRESSED_BYTES
    if is_large or _target_codec(header, settings) is not None:
        return None
    try:
        return validate(records, header, settings, now_ms, min(max_bytes, _QUICK_DECOMPRESSED_BYTES))
    except ApiError as error:
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


def validate(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int, max_bytes: int
) -> bytearray | memoryview:
    """The batch to append: usually these very bytes. It may decompress to max_bytes. Raises ApiError."""
    codec = _target_codec(header, settings)
    if header.timestamp_type:
        records = _with_create_time(records, header, settings)
        header = read_header(records)
    try:
        latest = None if settings.compacts else latest_timestamp(records, header, max_bytes)
        if latest is None:
            latest = _check_records(records, header, settings, max_bytes)
        if codec is not None:
            records = memoryview(recompressed(records, header, codec, max_bytes=max_bytes))
    except DecompressedTooLarge:
        raise decompresses_to_more(max_bytes) from None
    except CorruptRecord as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    if latest != header.max_timestamp_ms:
        # Some clients leave the field empty (Sarama), or write 0 if no record has a time (librdkafka).
        # Retention and lookups by time rely on it.
        corrected = bytearray(records)
        set_max_timestamp(corrected, latest)
        records = memoryview(corrected)
    if settings.append_time:
        stamped = bytearray(records)
        set_append_time(stamped, now_ms)
        return stamped
    return records


def decompresses_to_more(max_bytes: int) -> ApiError:
    """The error for a batch or message set that decompresses to more than max_bytes."""
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"it decompresses to more than {max_bytes:,} bytes (max.decompressed.message.bytes): "
        "send fewer records at once",
    )


def _with_create_time(records: memoryview, header: BatchHeader, settings: TopicSettings) -> memoryview:
    """The batch without the mark of append time, which is the broker's to set. Raises InvalidRecords."""
    if settings.append_time or header.max_timestamp_ms == NO_TIMESTAMP:
        reason = "a producer must not set the timestamp type to LogAppendTime"
        named = range(min(header.record_count, _MAX_RECORD_ERRORS))
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, reason, named, reason)
    unmarked = bytearray(records)
    set_create_time(unmarked)
    return memoryview(unmarked)


def _check_records(records: memoryview, header: BatchHeader, settings: TopicSettings, max_bytes: int) -> int:
    """The largest timestamp of the batch's records, once each is checked. Raises InvalidRecords,
    CorruptRecord."""
    latest = -MAX_INT64 - 1
    invalid: list[int] = []
    keyless = index = 0
    for piece in decode_pieces(records, header, "", -1, max_bytes=max_bytes):
        latest = max(latest, *(record.timestamp_ms for record in piece))
        if settings.compacts:
            without_key = [index + i for i, record in enumerate(piece) if record.key is None]
            invalid += without_key[: _MAX_RECORD_ERRORS - len(invalid)]
            keyless += len(without_key)
            index += len(piece)
    if keyless:
        reason = "a compacted topic takes records with keys only"
        raise InvalidRecords(
            ErrorCode.INVALID_RECORD,
            f"{keyless:,} of the batch's {header.record_count:,} records: no key; {reason}",
            invalid,
            reason,
        )
    return latest


def _target_codec(header: BatchHeader, settings: TopicSettings) -> int | None:
    """The codec to recompress the batch with; None to keep it as it is."""
    compression_type = settings.compression_type
    if compression_type == _KEEP:
        return None
    number = codec_number(compression_type)
    return None if number == header.compression else number
