"""The names of the columns of records, and their buffers (layout: `plain_columns`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from ..errors import InvalidArgument

COLUMNS: Final = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers")
MAX_COLUMN_BYTES: Final = (1 << 31) - 1


class BytesColumn(NamedTuple):
    """`valid` is None if nothing is null."""

    valid: bytearray | None
    ends: bytearray
    data: bytearray


class HeadersColumn(NamedTuple):
    """Row i has the headers ends[i] to ends[i + 1] of `names` and `values`."""

    ends: bytearray
    names: BytesColumn
    values: BytesColumn


TakenColumns: TypeAlias = dict[str, bytearray | BytesColumn | HeadersColumn]


def check_wanted(wanted: Collection[str]) -> frozenset[str]:
    """The wanted columns. Raises InvalidArgument for an unknown name."""
    for name in wanted:
        if name not in COLUMNS:
            raise InvalidArgument(f"no column {name!r}: there are {', '.join(COLUMNS)}")
    return frozenset(wanted)


def too_long() -> InvalidArgument:
    """The error if a column outgrows its layout."""
    return InvalidArgument(
        f"a column of more than {MAX_COLUMN_BYTES:,} bytes: read less at a time (max_bytes)"
    )
