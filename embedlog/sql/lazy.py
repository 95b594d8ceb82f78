"""A topic as a LazyFrame of Polars, which reads when it is collected.

    Polars --columns, predicate--> DuckDB over a TopicDataset --record batches--> Polars, which filters

Polars applies the predicate itself, to each batch, so that the answer is its own. The predicate also decides
which partitions and offsets are read: Polars hands a pyarrow dataset what Arrow understands of it, so we let
it scan one that has no rows.

Invariant: the log is open only while a frame is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..backends.port import Backend
from ..clients.reader import checked_isolation
from ..errors import EmbedlogError
from .tables import check_schemas

if TYPE_CHECKING:
    import polars

    from .bounds import Bounds

_BATCH_ROWS: Final = 1 << 16

Opened: TypeAlias = Callable[[], AbstractContextManager[Backend]]


def scan(
    opened: Opened, topic: str, schema: str | Mapping[str, str] | None, isolation_level: str
) -> polars.LazyFrame:
    """See `embedlog.scan_polars`. Whenever a frame is collected, `opened` opens the log."""
    try:
        from polars.io.plugins import register_io_source

        from . import fields
        from .tables import create_view, empty
    except ImportError as error:
        raise EmbedlogError("scan_polars needs polars: pip install 'embedlog[polars]'") from error
    checked_isolation(isolation_level)
    check_schemas(None if schema is None else {topic: schema})
    with opened() as backend:
        backend.describe_topic(topic)
        topic_fields = (
            fields.inferred(backend, topic, isolation_level) if schema is None else fields.declared(schema)
        )
        with empty() as connection:
            create_view(connection, backend, topic, topic_fields, isolation_level)
            relation = connection.sql(f"SELECT * FROM {fields.identifier(topic)} LIMIT 0")
            empty_frame = _frame(relation.to_arrow_table())

    def read(
        with_columns: Sequence[str] | None, predicate: Any, rows: int | None, batch_rows: int | None
    ) -> Iterator[polars.DataFrame]:
        # the rows are counted before the predicate
        within = None if predicate is None or rows is not None else _bounds(predicate, empty_frame)
        selected = "*" if with_columns is None else ", ".join(map(fields.identifier, with_columns))
        with opened() as backend, empty() as connection:
            create_view(connection, backend, topic, topic_fields, isolation_level, within=within)
            relation = connection.sql(f"SELECT {selected} FROM {fields.identifier(topic)}")
            for batch in relation.to_arrow_reader(min(batch_rows or _BATCH_ROWS, _BATCH_ROWS)):
                frame = _frame(batch)
                if rows is not None:
                    frame = frame.head(rows)
                    rows -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if rows == 0:
                    return

    return register_io_source(read, schema=empty_frame.schema)


def _bounds(predicate: Any, empty_frame: polars.DataFrame) -> Bounds | None:
    """By what Arrow understands of a predicate; None: of nothing. `nothing` has the columns, and no rows."""
    import polars

    from .bounds import Bounds
    from .dataset import Listener

    schema = empty_frame.to_arrow().schema
    heard = Listener(schema)
    polars.scan_pyarrow_dataset(heard).filter(predicate).collect()
    return None if heard.filter is None else Bounds(schema, heard.filter)


def _frame(data: Any) -> polars.DataFrame:
    """The times in UTC: DuckDB gives them the time zone of this machine."""
    import polars

    frame = polars.from_arrow(data)
    assert isinstance(frame, polars.DataFrame)
    if "timestamp" in frame.columns:
        return frame.with_columns(polars.col("timestamp").dt.convert_time_zone("UTC"))
    return frame
