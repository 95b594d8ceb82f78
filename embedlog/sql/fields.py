"""The columns that a topic's JSON values have: inferred from a sample, or given.

A field becomes a column of its name. A name that is taken, by a fixed column or but for its case, gets a
number, as in DuckDB: `offset_1`.

A value fits a column's type if the type holds it unchanged; a string fits as what it spells does:

| type | values that fit |
|---|---|
| VARCHAR | every value: strings, and other values as they are written |
| JSON | every value |
| whole numbers | those in range without a fraction (5, 5.0, "5"), written without an exponent |
| DECIMAL(p, s) | numbers with at most s digits after the point, but for zeros, without an exponent |
| DOUBLE, FLOAT | numbers in range, as the nearest that there is; NaN, Infinity, -Infinity |
| BOOLEAN | true, false, "true", "false" |
| DATE | texts of a date alone |
| times, timestamps | texts in DuckDB's forms, with no more digits of a second than the type has |
| others | texts that DuckDB casts |
| lists, structs, maps | JSON of that form, whose parts fit theirs |

A field that a value lacks, that is null, or that does not fit is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import duckdb

from ..backends.port import Backend
from ..codec.columns import ANY, BOOLEANS, NUMBERS, REALS, TEXTS, JsonField
from ..errors import InvalidArgument
from .sample import types_of_sample

FIXED: Final = ("key", "value", "headers", "offset", "partition", "timestamp")
_WHOLE: Final = "-?(0|[1-9][0-9]*)"
_NUMBER: Final = rf"{_WHOLE}(\.[0-9]+)?([eE][+-]?[0-9]+)?"
# The digits that always fit.
_DIGITS: Final = {
    "TINYINT": 2, "SMALLINT": 4, "INTEGER": 9, "BIGINT": 18, "HUGEINT": 38,
    "UTINYINT": 2, "USMALLINT": 4, "UINTEGER": 9, "UBIGINT": 19, "UHUGEINT": 38,
}  # fmt: skip
_REALS: Final = ("DOUBLE", "FLOAT")
_FLOAT_DIGITS: Final = 38
# After the point of a second, where they are not 6.
_SECOND_DIGITS: Final = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP_NS": 9, "TIME_NS": 9}


class Field(NamedTuple):
    """A field of JSON objects: its name in them, its column's name, its type in SQL."""

    name: str
    column: str
    type: str

    @property
    def source(self) -> str:
        """The dataset's column with its texts, or with its JSON if `is_json`."""
        return f"/{self.column}"

    @property
    def path(self) -> str:
        """A JSON pointer."""
        return "/" + self.name.replace("~", "~0").replace("/", "~1")

    @property
    def is_json(self) -> bool:
        return self.type == "JSON" or _is_nested(self.type)

    @property
    def taken(self) -> JsonField:
        """What the loops may take of it: values that surely fit, and texts, for which `is_sure` tells."""
        name, base = self.name.encode(), self.type.partition("(")[0]
        if self.is_json:
            return JsonField(name, ANY)
        if base in _DIGITS:
            return JsonField(name, NUMBERS, _DIGITS[base], 0, not base.startswith("U"))
        if base == "DECIMAL":
            precision, scale = _digits(self.type)
            return JsonField(name, NUMBERS, precision - scale, scale)
        if base == "FLOAT":
            return JsonField(name, NUMBERS, _FLOAT_DIGITS, _FLOAT_DIGITS)
        forms = {"DOUBLE": REALS, "BOOLEAN": BOOLEANS}
        return JsonField(name, forms.get(base, TEXTS))

    @property
    def is_any(self) -> bool:
        """Whether every value fits."""
        return self.type in ("VARCHAR", "JSON")

    @property
    def is_sure(self) -> bool:
        """Whether what the loops take fits."""
        return self.is_any or self.taken.form not in (TEXTS, ANY)

    def fits(self, text: str) -> str:
        """SQL for whether a text of `source` fits, whose SQL is given."""
        if self.is_json:
            json = f"{text}::JSON"
            return f"TRY_CAST({json} AS {self.type}) IS NOT NULL AND {_fits_json(json, self.type)}"
        return _fits(text, self.type)

    @property
    def expression(self) -> str:
        """SQL for the column, from the dataset, which is `scanned` there."""
        text = f"scanned.{identifier(self.source)}"
        if self.type == "VARCHAR":
            return text
        if self.type == "JSON":
            return f"json({text})"
        return f"TRY_CAST({f'{text}::JSON' if self.is_json else text} AS {self.type})"


def inferred(backend: Backend, topic: str, isolation_level: str) -> list[Field]:
    """The fields that a sample of a topic's records has."""
    return _named(types_of_sample(backend, topic, isolation_level))


def declared(schema: str | Mapping[str, str]) -> list[Field]:
    """The fields of a schema: `a INT, b VARCHAR`, or a dict. Raises InvalidArgument."""
    columns = schema
    if not isinstance(columns, str):
        columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns.items())
    try:
        with duckdb.connect(config=_NOTHING_OUTSIDE) as connection:
            connection.execute(f"CREATE TABLE fields ({columns})")
            column_rows = connection.execute("DESCRIBE fields").fetchall()
    except duckdb.Error as error:
        raise InvalidArgument(f"the schema must be like 'a INT, b VARCHAR': {error}") from None
    return _named({row[0]: row[1] for row in column_rows})


_NOTHING_OUTSIDE: Final[dict[str, Any]] = {"enable_external_access": "false"}


def identifier(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _named(types: Mapping[str, str]) -> list[Field]:
    taken_names = set(FIXED)
    fields = []
    for name, kind in types.items():
        column, number = name or "_", 0
        while column.casefold() in taken_names:
            number += 1
            column = f"{name}_{number}"
        taken_names.add(column.casefold())
        fields.append(Field(name, column, kind))
    return fields


def _digits(decimal: str) -> tuple[int, int]:
    """The precision and the scale of DECIMAL(p,s)."""
    precision, _, scale = decimal.removeprefix("DECIMAL(").rstrip(")").partition(",")
    return int(precision), int(scale)


def _is_nested(type: str) -> bool:
    return type.endswith("]") or type.startswith(("STRUCT(", "MAP(", "UNION("))


def _fits(text: str, kind: str) -> str:
    """SQL for whether a text fits a type that is not nested."""
    base = kind.partition("(")[0]
    cast = f"TRY_CAST({text} AS {kind})"
    if kind == "VARCHAR":
        return "true"
    if base == "BOOLEAN":
        return f"{text} IN ('true', 'false')"
    if base in _REALS:
        return (
            f"({text} IN ('NaN', 'Infinity', '-Infinity') OR"
            f" (regexp_full_match({text}, '{_NUMBER}') AND isfinite({cast})))"
        )
    if base in _DIGITS:
        form = rf"{_WHOLE}(\.0+)?"
    elif base == "DECIMAL":
        _, scale = _digits(kind)
        form = rf"{_WHOLE}(\.[0-9]{{0,{scale}}}0*)?"
    elif base == "DATE":
        form = "[0-9]+-[0-9]+-[0-9]+"
    elif base.startswith("TIME"):
        form = rf"[^.]*(\.[0-9]{{0,{_SECOND_DIGITS.get(base.partition(' ')[0], 6)}}}0*([^0-9].*)?)?"
    else:
        return f"{cast} IS NOT NULL"
    return f"(regexp_full_match({text}, '{form}') AND {cast} IS NOT NULL)"


def _fits_json(json: str, type: str, depth: int = 0) -> str:
    """SQL for whether the parts of a JSON value fit those of a nested type. What is null or missing does."""
    if not _is_nested(type):
        if type == "JSON":
            return "true"
        text = f"json_extract_string({json}, '$')"
        return f"coalesce(json_type({json}) = 'NULL' OR {_fits(text, type)}, true)"
    kind: Any = duckdb.sqltype(type)
    part = f"part{depth}"
    if kind.id == "union":
        return "true"
    if kind.id == "struct":
        parts = [
            _fits_json(f"json_extract({json}, {literal(Field(name, '', '').path)})", str(child), depth)
            for name, child in kind.children
        ]
        return f"({' AND '.join([_is_form(json, 'OBJECT'), *parts])})"
    (_, child), form, paths = kind.children[0], "ARRAY", "'$[*]'"
    if kind.id == "map":
        (_, child), form, paths = kind.children[1], "OBJECT", "'$.*'"
    fits = _fits_json(part, str(child), depth + 1)
    fit = f"list_bool_and(list_transform(json_extract({json}, {paths}), lambda {part}: {fits}))"
    return f"({_is_form(json, form)} AND coalesce({fit}, true))"


def _is_form(json: str, form: str) -> str:
    return f"coalesce(json_type({json}) IN ('{form}', 'NULL'), true)"
