"""The columns of JSON fields, as texts that fit their types.

    values --codec/plain_json.py--> texts, and the rows that are left
    rows that are left --DuckDB--> their fields' texts
    texts --DuckDB, where it is not sure that they fit--> texts that fit, and counts of those that do not

A number stays as it is written. DuckDB's JSON functions write it anew: 1.10 is 1.1 then, and what a double
does not hold is lost. So Python takes what they may have changed out of the value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..codec import loops
from ..codec.columns import NUMBERS, TEXTS, BytesColumn
from ..errors import shown
from .fields import Field, literal

_SETTINGS: Final[dict[str, Any]] = {"threads": 1, "enable_external_access": "false"}
_REWRITTEN: Final = "^-?[0-9]+([.][0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)$"


class JsonColumns:
    """Takes fields out of values, batch by batch, and counts values that do not fit. For one thread."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._taken = [field.taken for field in fields]
        self._unfit: dict[Field, tuple[int, str]] = {}
        self._database: duckdb.DuckDBPyConnection | None = None

    def read(self, values: Any) -> dict[str, Any]:
        """A column of strings for each field, by its `source`, from a column of bytes."""
        rows, (valid, ends, data) = len(values), values.buffers()
        columns, unread = loops.json_fields(BytesColumn(valid, ends, data), rows, self._taken)
        texts = [_strings(rows, column) for column in columns]
        if unread is not None:
            mask = pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(unread)])
            rest = self._left(values.filter(mask).cast(pa.string()))
            rest = [self._fitting(field, text) for field, text in zip(self._fields, rest, strict=True)]
            texts = [pc.replace_with_mask(text, mask, part) for text, part in zip(texts, rest, strict=True)]
        return {
            field.source: text if field.is_sure else self._fitting(field, text)
            for field, text in zip(self._fields, texts, strict=True)
        }

    def close(self) -> str:
        """What did not fit, as a sentence; "" if nothing. The columns are not used again."""
        if self._database is not None:
            self._database.close()
        return "; ".join(
            f"{count:,} {'value' if count == 1 else 'values'} of {field.column} "
            f"{'does' if count == 1 else 'do'} not fit {field.type} and "
            f"{'is' if count == 1 else 'are'} NULL (the first: {first})"
            for field, (count, first) in self._unfit.items()
        )

    def _columns_of(self, table: Any, query: str) -> list[Any]:
        """The columns of a query over `read`."""
        if self._database is None:
            self._database = duckdb.connect(config=_SETTINGS)
        self._database.register("read", table)
        arrow_table = self._database.sql(query).to_arrow_table()
        return [
            pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
            for column in arrow_table.columns
        ]

    def _left(self, values: Any) -> list[Any]:
        """The texts of the fields, from values that are texts."""
        expressions = ", ".join(f"TRY({_extracted(field)}) AS f{n}" for n, field in enumerate(self._fields))
        texts = self._columns_of(pa.table({"value": values}), f"SELECT {expressions} FROM read")
        for n, (field, taken) in enumerate(zip(self._fields, self._taken, strict=True)):
            if taken.form in (TEXTS, NUMBERS):
                texts[n] = _as_written(field.name, values, texts[n])
        return texts

    def _fitting(self, field: Field, texts: Any) -> Any:
        """The texts that fit; null for the others, which are counted."""
        if field.is_any:
            return texts
        (fits,) = self._columns_of(
            pa.table({"text": texts}), f"SELECT text IS NULL OR {field.fits('text')} AS fits FROM read"
        )
        if unfit := len(fits) - fits.true_count:
            count, first = self._unfit.get(field, (0, ""))
            first = first or shown(texts[pc.index(fits, False).as_py()].as_py())
            self._unfit[field] = count + unfit, first
            texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
        return texts


def _extracted(field: Field) -> str:
    """SQL for a field's text, from `value`."""
    text = f"json_extract_string(value, {literal(field.path)})"
    if field.is_json:
        text = f"nullif(json_extract(value, {literal(field.path)})::VARCHAR, 'null')"
    if field.name.isdecimal():  # of a list it would be an index
        return f"CASE json_type(value) WHEN 'OBJECT' THEN {text} END"
    return text


def _strings(rows: int, column: BytesColumn) -> Any:
    bits = None if column.valid is None else pa.py_buffer(column.valid)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(column.ends), pa.py_buffer(column.data), bits)


def _as_written(name: str, values: Any, texts: Any) -> Any:
    """The texts of a field, numbers with a fraction or an exponent as they are written in the values."""
    rewritten = pc.fill_null(pc.match_substring_regex(texts, _REWRITTEN), False)
    if not rewritten.true_count:
        return texts
    written = [_written(value, name) for value in values.filter(rewritten).to_pylist()]
    return pc.replace_with_mask(texts, rewritten, pa.array(written, pa.string()))


def _written(value: str, name: str) -> str:
    fields = json.loads(value, parse_float=str, object_pairs_hook=_first)
    return str(fields[name])


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of several fields of a name the first, as DuckDB has it."""
    return dict(reversed(pairs))
