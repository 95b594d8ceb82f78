"""What append_many returns: the metadata of many records, made one by one when somebody looks.

Two million RecordMetadata would take longer to make than their records take to append, and nearly nobody
reads them. So what is kept is little: for each partition its one append (base offset, durable), and for
each record, in the order of the input, its partition and its rank among those of that partition:

    offset of record i = base offset of the append to partitions[i] + ranks[i]

(or, where an append came down in pieces, the base offset of the piece that has the rank, and the rank in it).
Where all went to one partition there is nothing to keep for a record. Timestamps are kept only if they
differ.

Invariant: immutable once made, so it may be shared between threads.

Source of the idea: `range`, which is as long as a list and as small as its ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import overload

from ..errors import counted
from ..model import Appended, AppendedInPieces, RecordMetadata

_new = tuple.__new__


class AppendedMany(Sequence[RecordMetadata]):
    """A lazy sequence of RecordMetadata, in the order of the records given to append_many.

    Indexing, slicing (gives a list), iterating and comparing with a list work as with a list of them.
    """

    __slots__ = ("_appended", "_places", "_timestamps", "_topic")

    def __init__(
        self,
        topic: str,
        appended: Mapping[int, Appended],
        timestamps: int | Sequence[int] | None,
        places: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """`appended` by partition. `timestamps`: one for all, or one each, or None: those of the appends.
        `places`: partitions and ranks, one each; not needed where there is but one partition."""
        self._topic = topic
        self._appended = appended
        if timestamps is not None and not isinstance(timestamps, int):
            timestamps = array("q", timestamps)
        self._timestamps = timestamps
        self._places = None if places is None else (array("i", places[0]), array("q", places[1]))

    @property
    def durable(self) -> bool:
        """Whether all of them were fsynced before append_many returned."""
        return all(each.durable for each in self._appended.values())

    @property
    def by_partition(self) -> dict[int, Appended]:
        """Partition -> its append: base offset, last offset, time, durable."""
        return dict(self._appended)

    def __len__(self) -> int:
        return sum(map(_count, self._appended.values()))

    def __iter__(self) -> Iterator[RecordMetadata]:
        return map(self._at, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...

    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...

    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        # A range knows the rules: negative numbers, steps, what lies outside.
        chosen = range(len(self))[index]
        return self._at(chosen) if isinstance(chosen, int) else list(map(self._at, chosen))

    def _at(self, i: int) -> RecordMetadata:
        if self._places is None:
            partition, rank = next(iter(self._appended)), i
        else:
            partition, rank = self._places[0][i], self._places[1][i]
        appended = self._appended[partition]
        base, _, time, durable = appended
        if isinstance(appended, AppendedInPieces):
            base, rank = _in_pieces(appended.pieces, rank)
        if self._timestamps is not None:
            time = self._timestamps if isinstance(self._timestamps, int) else self._timestamps[i]
        return _new(RecordMetadata, (self._topic, partition, base + rank, time, durable))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AppendedMany | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __repr__(self) -> str:
        where = ", ".join(f"{each}" for each in sorted(self._appended)) or "none"
        return f"<AppendedMany: {counted(len(self), 'record')}, topic {self._topic!r}, partitions {where}>"


def _count(appended: Appended) -> int:
    """How many records."""
    if isinstance(appended, AppendedInPieces):
        return sum(count for _, count in appended.pieces)
    return appended.last_offset - appended.base_offset + 1


def _in_pieces(pieces: Sequence[tuple[int, int]], rank: int) -> tuple[int, int]:
    """The base offset of the piece that has the record of a rank, and its rank in there."""
    for base, count in pieces:
        if rank < count:
            return base, rank
        rank -= count
    raise IndexError(rank)
