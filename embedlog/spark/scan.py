"""A task's read: a span of a partition as Arrow record batches (clients/arrow.py).

Records that were planned and are gone when the task reads (retention, a writer that lost its tail) raise
RecordsLost; with failOnDataLoss=false they are skipped. With skipDamaged, reading continues at the next valid
batch after damage.

Invariant: returns each record before span.end at most once, and none from span.end on.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ..clients.arrow import ArrowReader
from ..clients.partition_reader import PartitionReader
from ..codec.time_range import EVER
from ..errors import CorruptRecord, LogTruncated, OffsetOutOfRange, RecordsLost
from ..log import Log
from .offsets import Span
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20
_LARGE: Final = frozenset({"key", "value", "headers"})
_NARROW_ROWS: Final = 1 << 17


def scan(
    log: Log, span: Span, columns: list[str], schema: pyarrow.Schema, options: ReadOptions
) -> Iterator[pyarrow.RecordBatch]:
    """The records of a span, in batches of `schema`, which has a field for each of the `columns`.

    Raises RecordsLost, CorruptRecord, TopicNotFound, StorageError.
    """
    # Rows without bytes are so small that a chunk of the log is a poor record batch.
    min_rows = 1 if _LARGE.intersection(columns) else _NARROW_ROWS
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
                times=span.times or EVER,
            ),
            columns,
            schema,
            min_rows=min_rows,
        )
        try:
            while (batch := reader.read()) is not None:
                yield batch
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
    if position >= span.end:
        return span.end
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
    damage = {
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
            _report(options.damage_report_path, damage)
    return resume


def _report(directory: str, damage: dict[str, Any]) -> None:
    """Write one file for each skipped range. The name is deterministic: a retried task overwrites it."""
    os.makedirs(directory, exist_ok=True)
    name = f"{damage['topic']}-{damage['partition']}-{damage['first_offset']}.json"
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(damage) + "\n")
    os.replace(temporary, os.path.join(directory, name))
