"""Which partitions and offsets a filter leaves to be read.

Arrow's expressions cannot be taken apart in Python. But Arrow leaves out the fragments of a dataset whose
guarantee ("partition is 3, and 100 <= offset < 200") contradicts a filter. So we ask it about fragments
that do not exist: a range is divided, and the first and the last part that remain are divided again, down to
a single offset.

Invariant: what is left out contains no record for which the filter is true. More may remain than is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

_PARTS: Final = 64
_EPOCH: Final = 0

Span: TypeAlias = tuple[int, int]
_Kept: TypeAlias = Callable[[Sequence[Span]], list[Span]]


class Bounds:
    """A filter on a topic's records, asked about ranges of its columns."""

    def __init__(self, schema: Any, expression: Any) -> None:
        """expression: a pyarrow.dataset.Expression over the fields of `schema`."""
        from pyarrow import fs

        self._schema = schema
        self._expression = expression
        self._text = str(expression)
        self._files = fs.LocalFileSystem()

    def partitions(self, count: int) -> list[int]:
        """Those of partitions 0..count-1 that may have a match."""
        if "partition" not in self._text:
            return list(range(count))
        return [number for number, _ in self._kept("partition", [(n, n + 1) for n in range(count)])]

    def offsets(self, partition: int, start: int, end: int) -> Span:
        """The part of the offsets start..end-1 of a partition that may have matches."""
        if "offset" not in self._text:
            return start, end
        return _narrowed(lambda spans: self._kept("offset", spans, partition), start, end)

    def not_before_ms(self, partition: int) -> int | None:
        """No earlier timestamp matches, in milliseconds since the epoch; None: any may."""
        if "timestamp" not in self._text:
            return None
        latest_us = (1 << 63) - 1
        first, _ = _narrowed(
            lambda spans: self._kept("timestamp", spans, partition), _EPOCH, latest_us, last=False
        )
        if first == _EPOCH or self._kept("timestamp", [(-latest_us, _EPOCH)], partition):
            return None
        return first // 1000

    def _kept(self, name: str, spans: Sequence[Span], partition: int | None = None) -> list[Span]:
        import pyarrow.dataset as ds

        kind = self._schema.field(name).type
        column = ds.field(name)
        guarantees = [(column >= _scalar(low, kind)) & (column < _scalar(high, kind)) for low, high in spans]
        if name == "partition":
            guarantees = [column == _scalar(low, kind) for low, _ in spans]
        if partition is not None:
            in_partition = ds.field("partition") == _scalar(partition, self._schema.field("partition").type)
            guarantees = [guarantee & in_partition for guarantee in guarantees]
        dataset = ds.FileSystemDataset.from_paths(
            [str(number) for number in range(len(spans))],
            schema=self._schema,
            format=ds.IpcFileFormat(),
            filesystem=self._files,
            partitions=guarantees,
        )
        return [spans[int(fragment.path)] for fragment in dataset.get_fragments(filter=self._expression)]


def _scalar(number: int, kind: Any) -> Any:
    import pyarrow as pa

    return pa.scalar(number, kind)


def _narrowed(kept: _Kept, low: int, high: int, *, last: bool = True) -> Span:
    """The range without what is left out before its first and, with `last`, after its last part."""
    start, end = low, high
    if low >= high or not kept([(low, high)]):
        return high, high
    span = (low, high)
    while span[1] - span[0] > 1:
        parts = kept(_parts(*span))
        if not parts:
            start = span[1]
            break
        span = parts[0]
        start = span[0]
    span = (start, high)
    while last and span[1] - span[0] > 1:
        parts = kept(_parts(*span))
        if not parts:
            end = span[0]
            break
        span = parts[-1]
        end = span[1]
    return start, max(start, end)


def _parts(low: int, high: int) -> list[Span]:
    count = min(_PARTS, high - low)
    edges = [low + (high - low) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(edges))
