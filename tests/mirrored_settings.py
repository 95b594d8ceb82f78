"""A value of each topic setting that is no log's default, and what a copy of the topic has of it."""

from __future__ import annotations

from typing import Any, Final

from embedlog.config import MAX_INT64

DAY_MS: Final = 86_400_000

CASES: Final[dict[str, Any]] = {
    "cleanup_policy": "compact",
    "compression_type": "uncompressed",
    "delete_policy": "modification_time",
    "delete_retention_ms": 5_000,
    "file_delete_delay_ms": 70_000,
    "flush_messages": 7,
    "flush_ms": 2_000,
    "index_interval_bytes": 8_192,
    "max_compaction_lag_ms": 9 * DAY_MS,
    "max_message_bytes": 2_000_000,
    "message_timestamp_after_max_ms": 2 * DAY_MS,
    "message_timestamp_before_max_ms": 5 * DAY_MS,
    "message_timestamp_type": "LogAppendTime",
    "min_cleanable_dirty_ratio": 0.25,
    "min_compaction_lag_ms": 3_000,
    "preallocate": True,
    "retention_bytes": 1 << 40,
    "retention_ms": 30 * DAY_MS,
    "segment_bytes": 1 << 21,
    "segment_ms": 3 * DAY_MS,
}

AT_BROKERS: Final[dict[str, Any]] = {
    "message_timestamp_before_max_ms": MAX_INT64,
    "message_timestamp_type": "CreateTime",
}
"""Brokers take copies as new records."""
