"""A partition's records as Arrow record batches, for whatever computes in columns (pyarrow, Spark, DuckDB).

    fetch --decode_chunk--> Columns (Arrow's layout, codec/plain_columns.py) --no copy--> pyarrow.RecordBatch

The columns bear the names of a Record's fields, and only those asked for are decoded:

    topic string · partition int32 · offset int64 · timestamp_ms timestamp[ms, UTC] · timestamp_type int32
    key binary · value binary · headers list<struct<name: string not null, value: binary>>

Needs pyarrow (`pip install embedlog[arrow]`), which is imported when it is used.

Invariants: as `log_reader`; a batch of rows is never empty, and holds a chunk (max_bytes) of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from .arguments import is_several
from .backend import Backend, Interrupt
from .codec import BatchHeader, loops, opened_body
from .codec.columns import BytesColumn, HeadersColumn
from .codec.rules import Rules
from .decoding import Chunk
from .errors import EmbedlogError, InvalidArgument, InvalidType, shown
from .log_reader import DEFAULT_FETCH_BYTES, PartitionReader, Where, partition_readers
from .model import Record

if TYPE_CHECKING:
    import pyarrow

NAMES: Final = Record._fields
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
    """The records as Arrow record batches; arguments and errors as `log_reader.read_records`.

    Args:
        columns: which of a Record's fields, in this order; all by default.
    """
    if columns is not None and not is_several(columns):
        raise InvalidType(f"columns must be a list of {', '.join(NAMES)}, not {shown(columns)}")
    wanted = NAMES if columns is None else tuple(columns)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown or not wanted:
        raise InvalidArgument(f"no column {', '.join(map(shown, unknown))}: there are {', '.join(NAMES)}")
    _pyarrow()
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    return _batches(readers, wanted, interrupt)


def _batches(
    readers: list[PartitionReader], wanted: Sequence[str], interrupt: Interrupt | None
) -> Iterator[pyarrow.RecordBatch]:
    for reader in readers:
        sink = _Columns(wanted)
        while reader.read_into(sink):
            if sink.columns.rows:
                yield _record_batch(reader, wanted, sink.columns)
            if interrupt is not None and interrupt.is_set():
                return


def _record_batch(
    reader: PartitionReader, wanted: Sequence[str], columns: loops.Columns
) -> pyarrow.RecordBatch:
    pa = _pyarrow()
    rows = columns.rows
    taken = columns.take()
    arrays = []
    for name in wanted:
        if name == "topic":
            arrays.append(pa.repeat(pa.scalar(reader.tp.topic), rows))
        elif name == "partition":
            arrays.append(pa.repeat(pa.scalar(reader.tp.partition, pa.int32()), rows))
        else:
            arrays.append(_array(pa, name, taken[name], rows))
    return pa.RecordBatch.from_arrays(arrays, names=list(wanted))


def _array(pa: Any, name: str, column: Any, rows: int) -> Any:
    if isinstance(column, BytesColumn):
        return _binary(pa, pa.binary(), column, rows)
    if isinstance(column, HeadersColumn):
        count = len(column.names.ends) // 4 - 1
        pairs = pa.StructArray.from_arrays(
            [_binary(pa, pa.string(), column.names, count), _binary(pa, pa.binary(), column.values, count)],
            fields=[pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())],
        )
        kind = pa.list_(pairs.type)
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(column.ends)], children=[pairs])
    kinds = {"offset": pa.int64(), "timestamp_ms": pa.timestamp("ms", tz="UTC"), "timestamp_type": pa.int32()}
    return pa.Array.from_buffers(kinds[name], rows, [None, pa.py_buffer(column)])


def _binary(pa: Any, kind: Any, column: BytesColumn, rows: int) -> Any:
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(column.ends), pa.py_buffer(column.data)])


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise EmbedlogError("reading into Arrow needs pyarrow: pip install 'embedlog[arrow]'") from error
    return pyarrow
