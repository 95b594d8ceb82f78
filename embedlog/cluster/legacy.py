"""Between the message sets of old clients and the record batches of the log."""

from __future__ import annotations

from ..codec import codec_number, encode_batch
from ..codec.message_set import iter_messages, message_records
from ..config import TopicSettings
from ..errors import CorruptRecord
from .problems import Refusal
from .protocol import ErrorCode


def as_batches(message_set: bytes, settings: TopicSettings, now_ms: int) -> bytearray:
    """One batch for each outer message of a set, compressed as it was unless the topic says otherwise.

    Raises Refusal.
    """
    batches = bytearray()
    pos = 0
    try:
        for message in iter_messages(message_set):
            records = message_records(message)
            if settings.compacts and any(record.key is None for record in records):
                raise Refusal(ErrorCode.INVALID_RECORD, "a compacted topic takes records with keys only")
            codec = message.compression
            if settings.compression_type != "producer":
                wanted = settings.compression_type
                codec = 0 if wanted == "uncompressed" else codec_number(wanted)
            times = [now_ms if settings.append_time else record.timestamp_ms for record in records]
            batches += encode_batch(
                [(r.key, r.value, (), time) for r, time in zip(records, times, strict=True)],
                compression=codec,
                timestamp_type=1 if settings.append_time else 0,
            )
            pos = message.pos + message.size
    except CorruptRecord as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if pos != len(message_set) or not batches:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, "the message set is empty, or its last message is cut off")
    if len(batches) > settings.max_message_bytes:
        raise Refusal(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{len(batches):,} bytes: this topic takes {settings.max_message_bytes:,} (max.message.bytes)",
        )
    return batches
