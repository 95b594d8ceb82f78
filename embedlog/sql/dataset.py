"""A topic as a pyarrow dataset, which DuckDB scans.

DuckDB calls `scanner(columns=..., filter=...)`, once for each scan, and takes record batches from it as it
needs them. The filter decides which offsets are read (bounds.py), then which rows of each batch remain:
DuckDB does not look at them again.

`text` is the value as a string, for JSON: null if it is not UTF-8.

Invariants: offsets from the log end on, as it was when the dataset was made, are not read; a scan holds a
bounded number of batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from ..backends.port import Backend
from ..clients.arrow import ArrowReader
from ..clients.reader import partition_readers
from ..errors import EmbedlogError
from .bounds import Bounds

_PAIR: Final = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),  # first: DuckDB asks for the first column to count rows
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_PAIR)),
        ("text", pa.string()),
    ]
)
_SOURCES: Final = {"timestamp": "timestamp_ms", "text": "value"}
_MIN_ROWS: Final = 16_384  # a filter costs about 0.1 ms for each batch


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
    ) -> None:
        """stop: once it is set, scans raise Interrupted."""
        # without Dataset's own, which refuses subclasses: there is no dataset of C++ underneath
        self._backend = backend
        self._topic = topic
        self._isolation_level = isolation_level
        self._stop = stop or threading.Event()
        self._ends = {partition: edges.log_end_offset for partition, edges in backend.offsets(topic).items()}
        self.rows_read = 0
        """Rows that scans have decoded, before their filters."""

    @property
    def schema(self) -> Any:
        return SCHEMA

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """A scan of these columns, all by default, in the rows for which the filter is true."""
        names = SCHEMA.names if columns is None else list(columns)
        schema = pa.schema([SCHEMA.field(name) for name in names])
        batches = self._batches(names, schema, filter)
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, batches))

    def _batches(self, names: Sequence[str], schema: Any, expression: Any) -> Iterator[Any]:
        asked = "" if expression is None else str(expression)
        decoded = [name for name in SCHEMA.names if name in names or name in asked]
        sources = list(dict.fromkeys(_SOURCES.get(name, name) for name in decoded))
        kinds = [SCHEMA.field("timestamp" if name == "timestamp_ms" else name) for name in sources]
        read = pa.schema([kind.with_name(name) for kind, name in zip(kinds, sources, strict=True)])
        for reader in self._readers(expression):
            arrow = ArrowReader(reader, sources, read, min_rows=_MIN_ROWS)
            while (batch := arrow.read()) is not None:
                if self._stop.is_set():
                    raise Interrupted("the query was stopped")
                self.rows_read += batch.num_rows
                arrays = [_array(batch, name) for name in decoded]
                table = pa.Table.from_arrays(arrays, names=decoded)
                if expression is not None:
                    table = table.filter(expression)
                yield from table.select(names).cast(schema).to_batches()

    def _readers(self, expression: Any) -> Iterator[Any]:
        bounds = None if expression is None else Bounds(SCHEMA, expression)
        numbers = sorted(self._ends) if bounds is None else bounds.partitions(len(self._ends))
        for number in numbers:
            start = self._backend.offsets(self._topic, number)[number].log_start_offset
            end = self._ends[number]
            if bounds is not None:
                start, end = bounds.offsets(number, start, end)
                start = max(start, self._first_at(number, bounds.not_before_ms(number), end))
            if start < end:
                yield from partition_readers(
                    self._backend, self._topic, number, start, end, isolation_level=self._isolation_level
                )

    def _first_at(self, partition: int, time_ms: int | None, end: int) -> int:
        if time_ms is None:
            return 0
        found = self._backend.offset_for_time(self._topic, partition, time_ms)
        return end if found is None else found.offset


def _array(batch: Any, name: str) -> Any:
    array = batch.column(_SOURCES.get(name, name))
    if name != "text":
        return array
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in array.to_pylist()], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
