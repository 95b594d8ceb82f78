"""A partition's records as Arrow record batches, for columnar computation (pyarrow, Spark, DuckDB).

    fetch --decode_chunk--> Columns (Arrow's layout, codec/plain_columns.py) --no copy--> pyarrow.RecordBatch

The columns have the names of Record's fields; only the requested ones are decoded:

    topic string · partition int32 · offset int64 · timestamp_ms timestamp[ms, UTC] · timestamp_type int32
    key binary · value binary · headers list<struct<name: string not null, value: binary>>

Needs pyarrow (`pip install embedlog[arrow]`), imported at the first use.

Invariants: those of reader.py; a batch of rows is never empty, and holds one chunk (max_bytes) of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends.port import Backend, Interrupt
from ..codec import BatchHeader, loops, opened_body
from ..codec.columns import BytesColumn, HeadersColumn
from ..codec.rules import Rules
from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..model import Record, TopicPartition
from ..validation import is_several
from .fetch_decoder import Chunk
from .prefetch import Prefetcher
from .reader import DEFAULT_FETCH_BYTES, PartitionReader, Where, partition_readers

if TYPE_CHECKING:
    import pyarrow

NAMES: Final = Record._fields
_FIRST_FETCH_BYTES: Final = 1 << 18
_OF_PARTITION: Final = ("topic", "partition")


class _Columns:
    """A sink for columns."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self.columns = loops.Columns([name for name in wanted if name not in _OF_PARTITION])

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return self.columns.run(data, pos, len(data), rules, end, transactional)

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        with opened_body(data, header, max_bytes) as body:
            self.columns.add(
                body,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.timestamp_type else None,
                start,
                end,
            )
        return len(body) if header.compression else 0


def read_arrow(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_uncommitted",
    interrupt: Interrupt | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """The records as Arrow record batches; arguments and errors as for `reader.read_records`.

    Args:
        columns: which fields of Record, in this order; all by default.
    """
    if columns is not None and not is_several(columns):
        raise InvalidType(f"columns must be a list of {', '.join(NAMES)}, not {shown(columns)}")
    wanted = NAMES if columns is None else tuple(columns)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown or not wanted:
        raise InvalidArgument(f"no column {', '.join(map(shown, unknown))}: there are {', '.join(NAMES)}")
    _pyarrow()
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    for reader in readers:
        reader.fetch_bytes = min(max_bytes, _FIRST_FETCH_BYTES)
    return _batches(readers, wanted, interrupt)


def _batches(
    readers: list[PartitionReader], wanted: Sequence[str], interrupt: Interrupt | None
) -> Iterator[pyarrow.RecordBatch]:
    for reader in readers:
        with Prefetcher(reader) as ahead:
            arrow = ArrowReader(reader, wanted, ahead)
            while (batch := arrow.read()) is not None:
                yield batch
                if interrupt is not None and interrupt.is_set():
                    return


class ArrowReader:
    """Reads one partition, a record batch at a time. For one thread."""

    def __init__(
        self, reader: PartitionReader, columns: Sequence[str], ahead: Prefetcher | None = None
    ) -> None:
        """columns: names of Record's fields. ahead: a prefetcher over the same reader."""
        self._reader = reader
        self._chunks = reader if ahead is None else ahead
        self._sink = _Columns(columns)
        self._builder = _BatchBuilder(_pyarrow(), reader.tp, columns)

    @property
    def position(self) -> int:
        """The next offset."""
        return self._reader.position

    def read(self) -> pyarrow.RecordBatch | None:
        """The rows of the next chunk; None at the end. Raises what PartitionReader.read raises."""
        while self._chunks.read_into(self._sink):
            if self._sink.columns.rows:
                return self._builder.record_batch(self._sink.columns)
        return None


class _BatchBuilder:
    """Builds record batches of one partition from columns. Constant columns are built once and sliced."""

    def __init__(self, pa: Any, tp: TopicPartition, wanted: Sequence[str]) -> None:
        self._pa = pa
        self._tp = tp
        self._wanted = wanted
        self._numbers = {
            "offset": pa.int64(),
            "timestamp_ms": pa.timestamp("ms", tz="UTC"),
            "timestamp_type": pa.int32(),
        }
        self._header = [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]
        kinds = self._numbers | {
            "topic": pa.string(),
            "partition": pa.int32(),
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": pa.list_(pa.struct(self._header)),
        }
        self._schema = pa.schema([(name, kinds[name]) for name in wanted])
        self._same: dict[str, Any] = {}
        self._no_pairs = pa.array([], pa.struct(self._header))

    def record_batch(self, columns: loops.Columns) -> pyarrow.RecordBatch:
        rows = columns.rows
        taken = columns.take()
        arrays = []
        for name in self._wanted:
            if name == "topic":
                arrays.append(self._repeated(name, self._tp.topic, rows))
            elif name == "partition":
                arrays.append(self._repeated(name, self._tp.partition, rows))
            else:
                arrays.append(self._array(name, taken[name], rows))
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _repeated(self, name: str, value: object, rows: int) -> Any:
        same = self._same.get(name)
        if same is None or len(same) < rows:
            kind = self._schema.field(name).type
            same = self._same[name] = self._pa.repeat(self._pa.scalar(value, kind), rows + rows // 8)
        return same.slice(0, rows)

    def _array(self, name: str, column: Any, rows: int) -> Any:
        pa = self._pa
        if isinstance(column, BytesColumn):
            return _binary(pa, pa.binary(), column, rows)
        if not isinstance(column, HeadersColumn):
            return pa.Array.from_buffers(self._numbers[name], rows, [None, pa.py_buffer(column)])
        pairs = self._pairs(column) if len(column.names.ends) > 4 else self._no_pairs
        kind = self._schema.field(name).type
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(column.ends)], children=[pairs])

    def _pairs(self, column: HeadersColumn) -> Any:
        pa, count = self._pa, len(column.names.ends) // 4 - 1
        both = [_binary(pa, pa.string(), column.names, count), _binary(pa, pa.binary(), column.values, count)]
        return pa.StructArray.from_arrays(both, fields=self._header)


def _binary(pa: Any, kind: Any, column: BytesColumn, rows: int) -> Any:
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(column.ends), pa.py_buffer(column.data)])


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise EmbedlogError("reading into Arrow needs pyarrow: pip install 'embedlog[arrow]'") from error
    return pyarrow
