"""Fields of JSON objects as columns of texts, without a compiler: `compiled_json` takes most rows, this none.

Both leave rows to a JSON library, and which ones they leave makes no difference to the answer. To take a row
here would cost more than the library does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from .columns import BytesColumn, JsonField


def json_fields(
    values: BytesColumn, rows: int, fields: Sequence[JsonField]
) -> tuple[list[BytesColumn], bytearray | None]:
    """Take fields of JSON objects out of a column of values.

    Args:
        values: any buffers will do.
        fields: their names are in UTF-8.

    Returns a column of texts for each field: of strings what is between the quotes, of other values what is
    written, null for what is missing or null. And validity bits of the rows that are left, whose fields are
    null here; None if no row is left. A row is left if a field has a value that its form does not take. A
    value that is null or no UTF-8 is not left.
    """
    ends = array("i")
    ends.frombytes(memoryview(values.ends)[: 4 * (rows + 1)])
    rows_left = bytearray((rows + 7) // 8)
    data = memoryview(values.data)
    valid = None if values.valid is None else memoryview(values.valid)
    for row in range(rows):
        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
            continue
        try:
            str(data[ends[row] : ends[row + 1]], "utf-8")
        except UnicodeDecodeError:
            continue
        rows_left[row >> 3] |= 1 << (row & 7)
    nulls = BytesColumn(bytearray((rows + 7) // 8), bytearray(4 * (rows + 1)), bytearray())
    return [nulls for _ in fields], rows_left if any(rows_left) else None
