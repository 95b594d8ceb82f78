"""Spans of partitions, cut into the pieces that tasks read.

By bytes, through the offset indexes: into pieces of PIECE_BYTES at most, or as many as minPartitions wants.
By offsets where no bytes are known (brokers), where an index is too coarse to make that many, and for
maxRecordsPerPartition.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ..log import Log
from .offsets import Span

PIECE_BYTES: Final = 64 << 20
_ONE_PIECE: Final = 1 << 62


def split(
    log: Log,
    spans: Sequence[Span],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    not_before_ms: int | None = None,
) -> list[Span]:
    """The spans in pieces, in order, without segments in which all records are older than not_before_ms.

    Raises TopicNotFound, StorageError, CorruptRecord.
    """
    piece_bytes = PIECE_BYTES
    if min_partitions is not None:
        whole = _divided(log, spans, _ONE_PIECE, not_before_ms)
        piece_bytes = max(1, sum(max(size, 0) for _, size in whole) // min_partitions)
    pieces = [span for span, _ in _divided(log, spans, piece_bytes, not_before_ms)]
    counts = [1 if max_records is None else -(-(piece.end - piece.start) // max_records) for piece in pieces]
    _raise_to(min_partitions or 0, pieces, counts)
    return [part for piece, count in zip(pieces, counts, strict=True) for part in _evenly(piece, count)]


def _divided(
    log: Log, spans: Sequence[Span], piece_bytes: int, not_before_ms: int | None
) -> list[tuple[Span, int]]:
    """The pieces, each with its size in bytes, -1 if unknown."""
    return [
        (span._replace(start=piece.start, end=piece.end), piece.size)
        for span in spans
        for piece in log.backend.splits.split(*span, piece_bytes, not_before_ms)
    ]


def _raise_to(wanted: int, pieces: list[Span], counts: list[int]) -> None:
    """Cut in more parts what has the largest ones, until there are as many as wanted (or no more can be)."""
    largest = [(-(piece.end - piece.start) / counts[i], i) for i, piece in enumerate(pieces)]
    heapq.heapify(largest)
    missing = wanted - sum(counts)
    while missing > 0 and largest:
        _, i = heapq.heappop(largest)
        offsets = pieces[i].end - pieces[i].start
        if counts[i] < offsets:
            counts[i] += 1
            missing -= 1
            heapq.heappush(largest, (-offsets / counts[i], i))


def _evenly(span: Span, count: int) -> list[Span]:
    """A span in so many parts of equally many offsets."""
    offsets = span.end - span.start
    edges = [span.start + offsets * number // count for number in range(count + 1)]
    return [span._replace(start=start, end=end) for start, end in pairwise(edges)]
