"""Results: in the formats that DuckDB writes, and which of their columns are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import duckdb

FORMATS: Final = {
    "csv": "FORMAT csv, HEADER",
    "json": "FORMAT json, ARRAY true",
    "jsonl": "FORMAT json",
    "parquet": "FORMAT parquet",
}
_RESULT: Final = '"embedlog: result"'
_NUMBERS: Final = ("int", "integer", "double", "float", "decimal")


def is_number(kind: Any) -> bool:
    """Whether a type of DuckDB's, as a relation has it, is one of numbers."""
    return bool(kind.id.endswith(_NUMBERS))


def copy(
    connection: duckdb.DuckDBPyConnection, relation: duckdb.DuckDBPyRelation, format: str, path: str
) -> None:
    """Write all rows of a relation to a file, or to a pipe by its path. Raises what DuckDB raises."""
    from .fields import literal

    connection.register(_RESULT.strip('"'), relation)
    connection.execute(f"COPY (SELECT * FROM {_RESULT}) TO {literal(path)} ({FORMATS[format]})")
