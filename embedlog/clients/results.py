"""The result of append_many: a lazy sequence of RecordMetadata.

Creating two million RecordMetadata takes longer than appending their records, and few programs read them. So
this stores, for each partition, its append (base offset, durable), and for each record, in input order, its
partition and its rank among the records of that partition:

    offset of record i = base offset of the append to partitions[i] + ranks[i]

(or, if other records came in between its batches, the base offset of the batch plus the rank within it). If
all records went to one partition, nothing is stored per record. Timestamps are stored only if they differ.

Invariant: immutable, so threads may share it.

Source of the idea: `range`, which is as long as a list and as small as its ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import TypeAlias, overload

from ..errors import counted
from ..model import Appended, AppendedInPieces, RecordMetadata

Places: TypeAlias = "tuple[array[int], array[int]]"
"""The partitions of records, and their ranks there."""

_new = tuple.__new__


class AppendedMany(Sequence[RecordMetadata]):
    """A lazy sequence of RecordMetadata, in the order of the records given to `append_many`.

    Index it, slice it (which gives a list), iterate over it, or compare it with a list, as if it were a list.
    """

    __slots__ = ("_appended", "_places", "_timestamps", "_topic")

    def __init__(
        self,
        topic: str,
        appended: Mapping[int, Appended],
        timestamps: int | array[int] | None,
        places: Places | None = None,
    ) -> None:
        """`appended` is by partition. `timestamps` are one for all records, one for each, or None for those
        of the appends. `places` are the records' partitions and ranks; None if there is one partition."""
        self._topic = topic
        self._appended = appended
        self._timestamps = timestamps
        self._places = places

    @property
    def durable(self) -> bool:
        """Whether all records were fsynced before `append_many` returned."""
        return all(appended.durable for appended in self._appended.values())

    @property
    def by_partition(self) -> dict[int, Appended]:
        """Partition -> its append: base offset, last offset, time, durable."""
        return dict(self._appended)

    def __len__(self) -> int:
        return sum(map(_count, self._appended.values()))

    def __iter__(self) -> Iterator[RecordMetadata]:
        timestamps = self._timestamps
        if (
            self._places is None
            and len(self._appended) == 1
            and (timestamps is None or isinstance(timestamps, int))
        ):
            [(partition, (base, last, time, durable))] = self._appended.items()
            if last - base + 1 == len(self):  # in one piece
                time = time if timestamps is None else timestamps
                topic = self._topic
                return (
                    _new(RecordMetadata, (topic, partition, offset, time, durable))
                    for offset in range(base, last + 1)
                )
        return map(self._at, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...

    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...

    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        # range implements negative indexes, steps and IndexError.
        indexes = range(len(self))[index]
        return self._at(indexes) if isinstance(indexes, int) else list(map(self._at, indexes))

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
        partitions = ", ".join(f"{partition}" for partition in sorted(self._appended)) or "none"
        return (
            f"<AppendedMany: {counted(len(self), 'record')}, topic {self._topic!r}, partitions {partitions}>"
        )


def _count(appended: Appended) -> int:
    """The number of records."""
    if isinstance(appended, AppendedInPieces):
        return sum(count for _, count in appended.pieces)
    return appended.last_offset - appended.base_offset + 1


def _in_pieces(pieces: Sequence[tuple[int, int]], rank: int) -> tuple[int, int]:
    """The base offset of the piece that contains a rank, and the rank within it."""
    for base, count in pieces:
        if rank < count:
            return base, rank
        rank -= count
    raise IndexError(rank)
