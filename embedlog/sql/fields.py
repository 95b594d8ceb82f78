"""The columns that a topic's JSON values have: inferred from a sample, or given.

A field becomes a column of its name. A name that is taken, by a fixed column or but for its case, gets a
number, as in DuckDB: `offset_1`. A field that a value lacks, or that has another type, is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from ..backends.port import Backend
from ..clients.reader import partition_readers
from ..errors import InvalidArgument

FIXED: Final = ("key", "value", "headers", "offset", "partition", "timestamp")
_SAMPLED_PARTITIONS: Final = 8
_SAMPLED_RECORDS: Final = 200  # from a partition's begin, and from its end
_SAMPLED_BYTES: Final = 1 << 16
_MOST_FIELDS: Final = 500
# what DuckDB infers from whole numbers, without negative ones and with both, and from nothing but null
_TYPES: Final = {"UBIGINT": "BIGINT", "HUGEINT": "BIGINT", "NULL": "VARCHAR"}


class Field(NamedTuple):
    """A field of JSON objects: its name in them, its column's name, its type in SQL."""

    name: str
    column: str
    type: str

    @property
    def source(self) -> str | None:
        """The dataset's column with its texts; None for a type that only DuckDB takes out of JSON."""
        nested = self.type.endswith("]") or ("(" in self.type and not self.type.startswith("DECIMAL"))
        return None if nested or self.type == "JSON" else f"/{self.column}"

    @property
    def expression(self) -> str:
        """SQL for it, from the columns of the dataset, which is `scanned` there."""
        path = literal("/" + self.name.replace("~", "~0").replace("/", "~1"))
        if self.source is None:
            found = f"TRY(json_extract(scanned.text, {path}))"
        else:
            texts = f"scanned.{identifier(self.source)}"
            found = f'coalesce({texts}, TRY(json_extract_string(scanned."left", {path})))'
        return found if self.type in ("JSON", "VARCHAR") else f"TRY_CAST({found} AS {self.type})"


def inferred(backend: Backend, topic: str, isolation_level: str) -> list[Field]:
    """The fields that the first and the last records of a topic have."""
    values = [text for value in _sample(backend, topic, isolation_level) if (text := _text(value))]
    with duckdb.connect() as connection:
        connection.register("sample", pa.table({"text": pa.array(values, pa.string())}))
        found = connection.execute(
            "SELECT json_group_structure(TRY_CAST(text AS JSON)) FROM sample "
            "WHERE TRY(json_type(text)) = 'OBJECT'"
        ).fetchone()
    structure = json.loads(found[0]) if found and found[0] else {}
    if not isinstance(structure, dict):
        return []
    types = {
        name: _TYPES.get(kind, kind) if isinstance(kind, str) else "JSON"
        for name, kind in list(structure.items())[:_MOST_FIELDS]
        if "\0" not in name
    }
    return _named(types)


def given(schema: str | Mapping[str, str]) -> list[Field]:
    """The fields of a schema: `a INT, b VARCHAR`, or a dict. Raises InvalidArgument."""
    columns = schema
    if not isinstance(columns, str):
        columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns.items())
    try:
        with duckdb.connect(config=_NOTHING_OUTSIDE) as connection:
            connection.execute(f"CREATE TABLE fields ({columns})")
            described = connection.execute("DESCRIBE fields").fetchall()
    except duckdb.Error as error:
        raise InvalidArgument(f"the schema must be like 'a INT, b VARCHAR': {error}") from None
    return _named({row[0]: row[1] for row in described})


_NOTHING_OUTSIDE: Final[dict[str, Any]] = {"enable_external_access": "false"}


def identifier(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _named(types: Mapping[str, str]) -> list[Field]:
    taken = set(FIXED)
    fields = []
    for name, kind in types.items():
        column, number = name or "_", 0
        while column.casefold() in taken:
            number += 1
            column = f"{name}_{number}"
        taken.add(column.casefold())
        fields.append(Field(name, column, kind))
    return fields


def _sample(backend: Backend, topic: str, isolation_level: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    for partition in range(min(backend.describe_topic(topic).partitions, _SAMPLED_PARTITIONS)):
        edges = backend.offsets(topic, partition)[partition]
        near_end = max(edges.log_start_offset, edges.log_end_offset - _SAMPLED_RECORDS)
        for start in {edges.log_start_offset, near_end}:
            for reader in partition_readers(
                backend, topic, partition, start, None, _SAMPLED_BYTES, isolation_level
            ):
                values += reader.read_values()[:_SAMPLED_RECORDS]
    return values


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
