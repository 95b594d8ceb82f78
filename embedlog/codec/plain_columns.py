"""Records as columns, in Arrow's memory layout, in plain Python; `compiled_columns` is the same, compiled.

    offset, timestamp_ms    i64 each
    timestamp_type          i32 each
    key, value              validity bits | ends i32, one more than rows | bytes, one after the other
    headers                 ends i32 | names as keys are | values as keys are

Numbers are in this machine's byte order. Validity bits begin at the lowest bit, and are absent if nothing is
null. pyarrow takes these buffers as they are; this module does not need it.

Invariants: all wanted columns have the same number of rows; all records of a batch are added, or none.

Source: Arrow's columnar format; Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from ..model import Record
from .columns import MAX_COLUMN_BYTES, BytesColumn, HeadersColumn, TakenColumns, check_wanted, too_long
from .plain_decoding import decode_records, decode_run

if TYPE_CHECKING:
    from .record_batch import ReadBuffer
    from .rules import Rules


class Columns:
    """Collects records into columns. For one thread."""

    def __init__(self, column_names: Collection[str]) -> None:
        """wanted: names from `columns.COLUMNS`. Raises InvalidArgument for others."""
        self._wanted = check_wanted(column_names)
        self._records: list[Record] = []

    @property
    def rows(self) -> int:
        """The number of records collected."""
        return len(self._records)

    def run(
        self, buffer: ReadBuffer, pos: int, end: int, rules: Rules, stop_offset: int, transactional: bool
    ) -> tuple[int, int]:
        """Add the records of a run, as `plain_decoding.decode_run`."""
        return decode_run(buffer, pos, end, rules, stop_offset, "", -1, transactional, self._records)

    def add(
        self,
        body: bytes,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp_ms: int,
        append_time_ms: int | None,
        start_offset: int,
        end_offset: int,
    ) -> None:
        """Add one batch's records from start_offset to end_offset - 1.

        Otherwise as `plain_decoding.decode_records`.
        """
        records = decode_records(
            body,
            count,
            "",
            -1,
            base_offset,
            last_offset_delta,
            base_timestamp_ms,
            append_time_ms,
            start_offset,
        )
        self._records += [record for record in records if record.offset < end_offset]

    def take(self) -> TakenColumns:
        """Return the columns, and start over with none.

        Raises InvalidArgument if a column has more bytes than Arrow's layout can address: nothing is taken.
        """
        records = self._records
        columns: TakenColumns = {}
        if "offset" in self._wanted:
            columns["offset"] = bytearray(array("q", [record.offset for record in records]))
        if "timestamp_ms" in self._wanted:
            columns["timestamp_ms"] = bytearray(array("q", [record.timestamp_ms for record in records]))
        if "timestamp_type" in self._wanted:
            columns["timestamp_type"] = bytearray(array("i", [record.timestamp_type for record in records]))
        if "key" in self._wanted:
            columns["key"] = _bytes_column(record.key for record in records)
        if "value" in self._wanted:
            columns["value"] = _bytes_column(record.value for record in records)
        if "headers" in self._wanted:
            headers = [header for record in records for header in record.headers]
            columns["headers"] = HeadersColumn(
                _ends(len(record.headers) for record in records),
                _bytes_column(name.encode() for name, _ in headers),
                _bytes_column(value for _, value in headers),
            )
        self._records = []
        return columns


def _ends(sizes: Iterable[int]) -> bytearray:
    return bytearray(array("i", accumulate(sizes, initial=0)))


def _bytes_column(fields: Iterable[bytes | None]) -> BytesColumn:
    column = list(fields)
    if sum(len(field or b"") for field in column) > MAX_COLUMN_BYTES:
        raise too_long()
    valid = None
    if None in column:
        valid = bytearray((len(column) + 7) // 8)
        for row, field in enumerate(column):
            if field is not None:
                valid[row >> 3] |= 1 << (row & 7)
    ends = _ends(len(field or b"") for field in column)
    return BytesColumn(valid, ends, bytearray().join(field or b"" for field in column))
