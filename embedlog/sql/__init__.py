"""SQL over a log's topics, by DuckDB.

    tables     a connection of DuckDB in which the topics that a query names are views
    fields     the columns that a topic's JSON values have, inferred or given, and which values fit them
    sample     the types of fields, from a sample
    json_columns  takes fields out of JSON values, and counts those that do not fit
    dataset    a topic as a pyarrow dataset: DuckDB asks it for columns, with a filter
    bounds     which partitions and offsets a filter leaves to be read
    scanned    how far a query is
    lazy       a topic as a LazyFrame of Polars
    copies     a result as CSV, JSON or Parquet; which columns are numbers
    sandbox    queries of strangers, each in a process of its own, which confined.py runs

Needs duckdb and pyarrow (`pip install 'embedlog[sql]'`), imported at the first query.
"""

from .copies import FORMATS, copy, is_number
from .scanned import Scanned
from .tables import ask, connect, empty, statement

__all__ = ["FORMATS", "Scanned", "ask", "connect", "copy", "empty", "is_number", "statement"]
