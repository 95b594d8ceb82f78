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


class JsonField(NamedTuple):
    """A field of JSON objects, and which of its values are taken as they are written.

    form: TEXTS takes strings, numbers, true and false. NUMBERS takes numbers without an exponent and with at
    most so many digits before the point (`whole`) and after it (`fraction`), if `negative` also with a minus.
    REALS takes numbers that a double holds, BOOLEANS true and false, ANY every value, strings with their
    quotes.
    """

    name: bytes
    form: int
    whole: int = 0
    fraction: int = 0
    negative: bool = True


TEXTS: Final = 0
NUMBERS: Final = 1
REALS: Final = 2
BOOLEANS: Final = 3
ANY: Final = 4


class HeadersColumn(NamedTuple):
    """Row i has the headers ends[i] to ends[i + 1] of `names` and `values`."""

    ends: bytearray
    names: BytesColumn
    values: BytesColumn


TakenColumns: TypeAlias = dict[str, bytearray | BytesColumn | HeadersColumn]


def check_wanted(names: Collection[str]) -> frozenset[str]:
    """The wanted columns. Raises InvalidArgument for an unknown name."""
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgument(f"no column {name!r}: there are {', '.join(COLUMNS)}")
    return frozenset(names)


def too_long() -> InvalidArgument:
    """The error if a column outgrows its layout."""
    return InvalidArgument(
        f"a column of more than {MAX_COLUMN_BYTES:,} bytes: read less at a time (max_bytes)"
    )
