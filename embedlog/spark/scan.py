"""A task's read: turns a span of a partition into Arrow batches for Spark.

    ArrowReader --chunk by chunk--> columns of the log --as_spark_has_it--> columns of the schema

Only the columns of the schema are decoded; those that Spark has in another form than the log (microseconds,
the names of headers' parts) are converted by the batch.

What the driver planned and is gone when a task comes to it (retention, a writer that lost its tail) is an
error, or is passed over with failOnDataLoss=false. So is damage, with skipDamaged: reading goes on at the
next valid batch.

Invariant: no record from span.end on is given out, whatever is appended meanwhile, and none twice.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ..clients.arrow import ArrowReader
from ..clients.reader import PartitionReader
from ..errors import CorruptRecord, LogTruncated, OffsetOutOfRange, RecordsLost
from ..log import Log
from .offsets import Span
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20
_FIELDS: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}
_MS_IN_US: Final = 1000
_LATEST_MS: Final = ((1 << 63) - 1) // _MS_IN_US


def scan(
    log: Log, span: Span, columns: list[str], schema: pyarrow.Schema, options: ReadOptions
) -> Iterator[pyarrow.RecordBatch]:
    """The records of a span, in batches of `schema`, whose fields are the `columns`.

    Raises RecordsLost, CorruptRecord, TopicNotFound, StorageError.
    """
    import pyarrow as pa

    fields = [_FIELDS.get(name, name) for name in columns]
    position = span.start
    damage: tuple[object, ...] = ()
    while position < span.end:
        reader = ArrowReader(
            PartitionReader(
                log.backend,
                span.tp,
                position,
                end=span.end,
                max_bytes=CHUNK_BYTES,
                read_committed=options.read_committed,
            ),
            fields,
        )
        try:
            while (batch := reader.read()) is not None:
                arrays = map(_as_spark_has_it, batch.columns, schema)
                yield pa.RecordBatch.from_arrays(list(arrays), schema=schema)
            position = _end_of(log, span, reader.position, options)
        except CorruptRecord as error:
            before, damage = damage, (reader.position, error.path, error.pos)
            if not options.skip_damaged or damage == before:
                raise
            position = _skip_damage(log, span, reader.position, error, options)
        except (OffsetOutOfRange, LogTruncated) as error:
            position = _skip_loss(log, span, reader.position, error, options)


def _end_of(log: Log, span: Span, position: int, options: ReadOptions) -> int:
    """Skip to the end of the span; report a loss if the log ends before it."""
    end = log.backend.offsets(*span.tp)[span.partition].log_end_offset
    if end < span.end:
        _lost(span, max(position, end), span.end, "the log ends before", options)
    return span.end


def _skip_loss(
    log: Log, span: Span, position: int, error: OffsetOutOfRange | LogTruncated, options: ReadOptions
) -> int:
    """The offset to continue from after an offset out of range."""
    start = log.backend.offsets(*span.tp)[span.partition].log_start_offset
    resume = min(start, span.end) if isinstance(error, OffsetOutOfRange) and start > position else span.end
    _lost(span, position, resume, str(error), options)
    return resume


def _lost(span: Span, first: int, resume: int, why: str, options: ReadOptions) -> None:
    what = f"{span.tp}: offsets {first:,} to {resume - 1:,} are gone: {why}"
    if options.fail_on_data_loss:
        raise RecordsLost(f"{what}; failOnDataLoss=false reads on without them")
    logger.warning("%s (failOnDataLoss=false)", what)


def _skip_damage(log: Log, span: Span, position: int, error: CorruptRecord, options: ReadOptions) -> int:
    """The offset to continue from after damage; writes a report of the skipped range."""
    assert error.path is not None and error.pos is not None
    resume = log.backend.splits.next_valid_offset(*span.tp, position, str(error.path), error.pos)
    found = {
        "topic": span.topic,
        "partition": span.partition,
        "first_offset": position,
        "last_offset": min(resume, span.end) - 1,
        "segment": str(error.path),
        "pos": error.pos,
        "reason": error.reason,
    }
    lost = max(0, min(resume, span.end) - position)
    if lost:
        logger.warning("%s offsets passed over, which are damaged (skipDamaged): %s", f"{lost:,}", error)
        if options.damage_report_path is not None:
            _report(options.damage_report_path, found)
    return resume


def _report(directory: str, found: dict[str, Any]) -> None:
    """Write one file for each skipped range. The name is deterministic: a retried task overwrites it."""
    os.makedirs(directory, exist_ok=True)
    name = f"{found['topic']}-{found['partition']}-{found['first_offset']}.json"
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    os.replace(temporary, os.path.join(directory, name))


def _as_spark_has_it(array: Any, field: Any) -> Any:
    import pyarrow as pa

    kind = field.type
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind):
        return _microseconds(array, kind)
    pairs = pa.StructArray.from_arrays(array.values.flatten(), fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[pairs])


def _microseconds(array: Any, kind: Any) -> Any:
    """Milliseconds as microseconds, clamped to 64 bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        near = pc.max_element_wise(pc.min_element_wise(array.cast(pa.int64()), _LATEST_MS), -_LATEST_MS)
        return pc.multiply(near, _MS_IN_US).cast(kind)
