"""The size of a record in a batch, and its limit."""

from __future__ import annotations

from ..config import MIB
from ..errors import RecordTooLarge
from ..model import Headers
from . import HEADER_SIZE
from .varint import varint_size

RECORD_OVERHEAD = 36
"""The largest size of a record without key, value and headers: length 5, attributes 1, timestamp delta 10,
offset delta 5, key length 5, value length 5, header count 5."""

BATCH_BYTES = MIB
"""Appends split their records into batches of at most this many bytes."""


def headers_size(headers: Headers) -> int:
    """An upper bound of the size of headers in a record."""
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)


def check_size(topic: str, limit: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    """Raises RecordTooLarge if the record, alone and uncompressed, makes a batch of more than limit bytes."""
    body = 3 + _field_size(key) + _field_size(value) + varint_size(len(headers))
    for name, header_value in headers:
        body += _field_size(name.encode()) + _field_size(header_value)
    size = HEADER_SIZE + varint_size(body) + body
    if size > limit:
        raise RecordTooLarge(
            f"a record of {size:,} bytes (key {len(key or b''):,}, value {len(value or b''):,}, "
            f"{len(headers)} headers, the batch around it {HEADER_SIZE}): topic {topic!r} takes {limit:,} "
            "(max_message_bytes)"
        )


def _field_size(data: bytes | None) -> int:
    return 1 if data is None else varint_size(len(data)) + len(data)
