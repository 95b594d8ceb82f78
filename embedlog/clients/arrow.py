"""A partition's records as Arrow record batches, for columnar computation (pyarrow, Spark, DuckDB).

    fetch --decode_chunk--> Columns (Arrow's layout, codec/plain_columns.py) --no copy--> pyarrow.RecordBatch

The columns have the names of Record's fields; only the requested ones are decoded:

    topic string · partition int32 · offset int64 · timestamp_ms timestamp[ms, UTC] · timestamp_type int32
    key binary · value binary · headers list<struct<name: string not null, value: binary>>

Needs pyarrow (`pip install embedlog[arrow]`), imported at the first use.

Invariants: those of reader.py; a batch of rows is never empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..backends.port import Backend, Interrupt
from ..codec.columns import BytesColumn, HeadersColumn
from ..codec.fetch_decoder import Columns
from ..codec.time_range import EVER
from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..model import Record, TopicPartition
from ..validation import is_several
from .open_transactions import warn_of_open_transactions
from .partition_reader import DEFAULT_FETCH_BYTES, PartitionReader
from .reader import Where, partition_readers

if TYPE_CHECKING:
    import pyarrow

NAMES: Final = Record._fields
_FIRST_FETCH_BYTES: Final = 1 << 18
_TIME: Final = "timestamp_ms"
_OF_PARTITION: Final = ("topic", "partition")
_US_PER_MS: Final = 1000
_LATEST_US_IN_MS: Final = ((1 << 63) - 1) // _US_PER_MS


def read_arrow(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_committed",
    interrupt: Interrupt | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """The records as Arrow record batches; arguments and errors as for `reader.read_records`.

    Args:
        columns: which fields of Record, in this order; all by default.
    """
    if columns is not None and not is_several(columns):
        raise InvalidType(f"columns must be a list of {', '.join(NAMES)}, not {shown(columns)}")
    column_names = NAMES if columns is None else tuple(columns)
    unknown = [name for name in column_names if name not in NAMES]
    if unknown or not column_names:
        raise InvalidArgument(f"no column {', '.join(map(shown, unknown))}: there are {', '.join(NAMES)}")
    _pyarrow()
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    for reader in readers:
        reader.fetch_bytes = min(max_bytes, _FIRST_FETCH_BYTES)
    return _batches(readers, column_names, interrupt)


def _batches(
    readers: list[PartitionReader], columns: Sequence[str], interrupt: Interrupt | None
) -> Iterator[pyarrow.RecordBatch]:
    for reader in readers:
        arrow = ArrowReader(reader, columns)
        while (batch := arrow.read()) is not None:
            yield batch
            if interrupt is not None and interrupt.is_set:
                return
        if reader.held_back:
            warn_of_open_transactions(reader.backend, reader.tp, reader.position)


class ArrowReader:
    """Reads one partition, a record batch at a time. For one thread."""

    def __init__(
        self,
        reader: PartitionReader,
        columns: Sequence[str],
        schema: pyarrow.Schema | None = None,
        *,
        min_rows: int = 1,
    ) -> None:
        """
        Args:
            columns: names of Record's fields.
            schema: of the record batches, a field for each column, by default as in the module's table.
                Timestamps may be microseconds, and the parts of headers may have other names.
            min_rows: of a record batch, except for the last one and the one before an error.
        """
        self._reader = reader
        self._times = reader.times
        stored = [name for name in columns if name not in _OF_PARTITION]
        if self._times is not EVER and _TIME not in stored:
            stored.append(_TIME)
        self._sink = Columns(stored, self._times)
        self._builder = _BatchBuilder(_pyarrow(), reader.tp, columns, schema)
        self._min_rows = min_rows

    @property
    def position(self) -> int:
        """The next offset."""
        return self._reader.position

    def read(self) -> pyarrow.RecordBatch | None:
        """The rows of the next chunks; None at the end. Raises what PartitionReader.read raises."""
        columns = self._sink.columns
        while True:
            try:
                while columns.rows < self._min_rows and self._reader.read_into(self._sink):
                    pass
            except EmbedlogError:
                if not columns.rows:
                    raise  # else once these rows are taken: the next call gets to the same error
            rows = columns.rows
            if not rows:
                return None
            taken = columns.take()
            batch = self._builder.record_batch(taken, rows)
            if self._times is not EVER:
                start_ms, end_ms = self._times
                stamps = memoryview(cast(bytearray, taken[_TIME])).cast("q")
                batch = batch.filter(_pyarrow().array([start_ms <= stamp < end_ms for stamp in stamps]))
            if batch.num_rows:
                return batch


class _BatchBuilder:
    """Builds record batches of one partition from columns. Constant columns are built once and sliced."""

    def __init__(self, pa: Any, tp: TopicPartition, names: Sequence[str], schema: Any) -> None:
        self._pa = pa
        self._constants: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition}
        self._schema = _schema(pa, names) if schema is None else schema
        self._fields = list(zip(names, self._schema.types, strict=True))
        self._milliseconds = pa.timestamp("ms", tz="UTC")
        self._repeated: dict[str, Any] = {}
        self._no_pairs: Any = None

    def record_batch(self, columns: Mapping[str, Any], rows: int) -> pyarrow.RecordBatch:
        arrays = [
            self._constant(name, arrow_type, rows)
            if name in self._constants
            else self._array(columns[name], arrow_type, rows)
            for name, arrow_type in self._fields
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, arrow_type: Any, rows: int) -> Any:
        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            scalar = self._pa.scalar(self._constants[name], arrow_type)
            array = self._repeated[name] = self._pa.repeat(scalar, rows + rows // 8)
        return array.slice(0, rows)

    def _array(self, column: Any, arrow_type: Any, rows: int) -> Any:
        pa = self._pa
        if isinstance(column, BytesColumn):
            return _binary(pa, arrow_type, column, rows)
        if isinstance(column, HeadersColumn):
            pairs = self._pairs(column, arrow_type.value_type)
            return pa.Array.from_buffers(
                arrow_type, rows, [None, pa.py_buffer(column.ends)], children=[pairs]
            )
        if not pa.types.is_timestamp(arrow_type):
            return pa.Array.from_buffers(arrow_type, rows, [None, pa.py_buffer(column)])
        times = pa.Array.from_buffers(self._milliseconds, rows, [None, pa.py_buffer(column)])
        return times if arrow_type == self._milliseconds else _microseconds(pa, times, arrow_type)

    def _pairs(self, column: HeadersColumn, arrow_type: Any) -> Any:
        pa, count = self._pa, len(column.names.ends) // 4 - 1
        if not count:
            if self._no_pairs is None:
                self._no_pairs = pa.array([], arrow_type)
            return self._no_pairs
        names_and_values = [
            _binary(pa, pa.string(), column.names, count),
            _binary(pa, pa.binary(), column.values, count),
        ]
        return pa.StructArray.from_arrays(names_and_values, fields=list(arrow_type))


def _schema(pa: Any, names: Sequence[str]) -> Any:
    pair = [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]
    arrow_types = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp_ms": pa.timestamp("ms", tz="UTC"),
        "timestamp_type": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct(pair)),
    }
    return pa.schema([(name, arrow_types[name]) for name in names])


def _microseconds(pa: Any, times: Any, arrow_type: Any) -> Any:
    """Milliseconds as microseconds, clamped to 64 bits."""
    import pyarrow.compute as pc

    try:
        return times.cast(arrow_type)
    except pa.ArrowInvalid:
        clamped = pc.max_element_wise(
            pc.min_element_wise(times.cast(pa.int64()), _LATEST_US_IN_MS), -_LATEST_US_IN_MS
        )
        return pc.multiply(clamped, _US_PER_MS).cast(arrow_type)


def _binary(pa: Any, arrow_type: Any, column: BytesColumn, rows: int) -> Any:
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    return pa.Array.from_buffers(
        arrow_type, rows, [valid, pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise EmbedlogError("reading into Arrow needs pyarrow: pip install 'embedlog[arrow]'") from error
    return pyarrow
