"""Batches and records, for tests that need bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embedlog.codec import encode_batch, plain_encoding


def encode_values(values: Iterable[bytes | None], timestamp_ms: int, **options: Any) -> bytearray:
    """A batch of values without keys, all of the same time. For options see `encode_batch`."""
    return encode_batch([(None, value, (), timestamp_ms) for value in values], **options)


def encode_records(rows: list[Any]) -> bytes:
    """The records of a batch, uncompressed, without its header."""
    builder = plain_encoding.BatchBuilder(1 << 31)
    builder.extend(rows)
    return bytes(builder.records())
