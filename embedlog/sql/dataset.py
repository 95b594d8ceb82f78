"""A topic as a pyarrow dataset, which DuckDB scans.

DuckDB calls `scanner(columns=..., filter=...)`, once for each scan, and takes record batches from it as it
needs them. The filter decides which offsets are read (bounds.py), then which rows of each batch remain:
DuckDB does not look at them again.

A scan may also be asked for fields of JSON values, as texts that fit their types (json_columns.py).

Invariants: offsets from the log end on, as it was when the dataset was made, are not read; a scan holds a
bounded number of batches.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from ..backends.port import Backend
from ..clients.arrow import ArrowReader
from ..clients.open_transactions import warn_of_open_transactions
from ..clients.partition_reader import PartitionReader
from ..clients.reader import partition_readers
from ..errors import EmbedlogError, ValuesReadAsNull
from .bounds import Bounds
from .fields import Field
from .json_columns import JsonColumns
from .scanned import Scanned

_PAIR: Final = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),  # first: DuckDB asks for the first column to count rows
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_PAIR)),
    ]
)
_SOURCES: Final = {"timestamp": "timestamp_ms"}
_STORED: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
_MIN_ROWS: Final = 16_384  # a filter costs about 0.1 ms for each batch


Tell: TypeAlias = Callable[[str], None]


class Listener(ds.Dataset):  # type: ignore[misc]
    """A dataset without rows, which keeps the latest filter that it was asked with."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.filter: Any = None

    @property
    def schema(self) -> Any:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        self.filter = filter
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, []))


class Interrupted(EmbedlogError):
    """A scan was told to stop."""


class TopicDataset(ds.Dataset):  # type: ignore[misc]
    """The records of a topic up to its end as it is now. Scans may run in any threads."""

    def __init__(
        self,
        backend: Backend,
        topic: str,
        isolation_level: str = "read_committed",
        stop: threading.Event | None = None,
        fields: Sequence[Field] = (),
        within: Bounds | None = None,
        scanned: Scanned | None = None,
        tell: Tell | None = None,
    ) -> None:
        """
        Args:
            stop: once it is set, scans raise Interrupted.
            fields: of JSON values; their columns here are called as their sources.
            within: what may be left unread besides what a scan's filter leaves out.
            scanned: hears how far scans are.
            tell: hears at the end of a scan how many values did not fit; by default a ValuesReadAsNull warns.
        """
        # without Dataset's own, which refuses subclasses: there is no dataset of C++ underneath
        self._backend = backend
        self._topic = topic
        self._isolation_level = isolation_level
        self._stop = stop or threading.Event()
        self._scanned = scanned or Scanned()
        self._fields = {field.source: field for field in fields}
        self._tell = tell or _warn
        self._within = within
        self._schema = pa.schema([*SCHEMA, *(pa.field(name, pa.string()) for name in self._fields)])
        self._look()
        self.rows_read = 0
        """Rows that scans have decoded, before their filters."""

    @property
    def schema(self) -> Any:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """A scan of these columns, all by default, in the rows for which the filter is true."""
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        batches = self._batches(names, schema, filter)
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, batches))

    def _batches(self, names: Sequence[str], schema: Any, expression: Any) -> Iterator[Any]:
        condition = "" if expression is None else str(expression)
        decoded = [name for name in self._schema.names if name in names or name in condition]
        fields = [field for name, field in self._fields.items() if name in decoded]
        sources = list(dict.fromkeys(_SOURCES.get(n, n if n in _STORED else "value") for n in decoded))
        kinds = [SCHEMA.field("timestamp" if name == "timestamp_ms" else name) for name in sources]
        read = pa.schema([kind.with_name(name) for kind, name in zip(kinds, sources, strict=True)])
        readers = self._readers(expression)
        self._scanned.add(total=sum(reader.end - reader.position for reader in readers))
        json = JsonColumns(fields)
        try:
            for reader in readers:
                arrow = ArrowReader(reader, sources, read, min_rows=_MIN_ROWS)
                position = arrow.position
                while (batch := arrow.read()) is not None:
                    if self._stop.is_set():
                        raise Interrupted("the query was stopped")
                    self.rows_read += batch.num_rows
                    self._scanned.add(arrow.position - position)
                    position = arrow.position
                    arrays = {
                        name: batch.column(_SOURCES.get(name, name)) for name in decoded if name in _STORED
                    }
                    if fields:
                        arrays |= json.read(batch.column("value"))
                    table = pa.table({name: arrays[name] for name in decoded})
                    if expression is not None:
                        table = table.filter(expression)
                    yield from table.select(names).cast(schema).to_batches()
                if reader.held_back:
                    warn_of_open_transactions(self._backend, reader.tp, reader.position)
        finally:  # also of a scan that is not read to its end
            if unfit := json.close():
                self._tell(f"{self._topic}: {unfit}")

    def _look(self) -> None:
        """Scans end where the topic ends now."""
        self._topic_id = self._backend.describe_topic(self._topic).topic_id
        edges = self._backend.offsets(self._topic)
        self._ends = {partition: offsets.log_end_offset for partition, offsets in edges.items()}

    def _readers(self, expression: Any) -> list[PartitionReader]:
        if self._backend.describe_topic(self._topic).topic_id != self._topic_id:
            self._look()  # the topic was made again: its ends are no ends of this one
        filters = [] if self._within is None else [self._within]
        filters += [] if expression is None else [Bounds(self._schema, expression)]
        count, readers = len(self._ends), []
        for number in sorted(
            set(range(count)).intersection(*(bounds.partitions(count) for bounds in filters))
        ):
            start = self._backend.offsets(self._topic, number)[number].log_start_offset
            end = self._ends[number]
            for bounds in filters:
                start, end = bounds.offsets(number, start, end)
                start = max(start, self._first_at(number, bounds.not_before_ms(number), end))
            if start < end:
                readers += partition_readers(
                    self._backend, self._topic, number, start, end, isolation_level=self._isolation_level
                )
        return readers

    def _first_at(self, partition: int, time_ms: int | None, end: int) -> int:
        if time_ms is None:
            return 0
        first = self._backend.offset_for_time(self._topic, partition, time_ms)
        return end if first is None else first.offset


def _warn(unfit: str) -> None:
    warnings.warn(
        f"{unfit}; give a schema with types that fit, or take them out of value",
        ValuesReadAsNull,
        stacklevel=2,
    )
