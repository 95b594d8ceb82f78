"""Results in the formats that DuckDB writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb

FORMATS: Final = {
    "csv": "FORMAT csv, HEADER",
    "json": "FORMAT json, ARRAY true",
    "jsonl": "FORMAT json",
    "parquet": "FORMAT parquet",
}
_RESULT: Final = '"embedlog: result"'


def copy(
    connection: duckdb.DuckDBPyConnection, relation: duckdb.DuckDBPyRelation, format: str, path: str
) -> None:
    """Write all rows of a relation to a file, or to a pipe by its path. Raises what DuckDB raises."""
    from .fields import literal

    connection.register(_RESULT.strip('"'), relation)
    connection.execute(f"COPY (SELECT * FROM {_RESULT}) TO {literal(path)} ({FORMATS[format]})")
