"""Decodes the records that a consumer hands out.

A record is decoded when it is handed out, not when it is fetched, so that the position is right whatever
happens in between: an error, Ctrl-C, a function that deals with a bad record and moves the position.

    decoded                 handed out
    passed over             not handed out; the position is after it
    DeserializationError    raised; the position is after it, which counts when the application comes back
    any other error         raised; the position is before it: it comes again

Without a serde, records are handed out as they were fetched, at no cost for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Generic, Self, cast

from ..errors import DeserializationError, EmbedlogError
from ..model import K, Record, V
from .position import OffsetAndEpoch, Position
from .positions import Positions

if TYPE_CHECKING:
    from .record_serde import RecordSerde  # whose libraries a consumer of bytes does not need


def decoded_chunk(position: Position, serde: RecordSerde[V, K] | None) -> Iterator[Record[V, K]]:
    """What an iteration may take of a partition's fetched records."""
    return cast("Iterator[Record[V, K]]", position.left) if serde is None else _DecodedChunk(position, serde)


def take(positions: Positions, limit: int, serde: RecordSerde[V, K] | None) -> list[Record[V, K]]:
    """Up to `limit` records for a poll, as `Positions.take`. The list ends before a record that does not
    decode; that one is dealt with when it is the first."""
    if serde is None:
        return cast("list[Record[V, K]]", positions.take(limit))
    return _take_decoded(positions, limit, serde, positions.ready)


def take_fetched(positions: Positions, limit: int, serde: RecordSerde[V, K] | None) -> list[Record[V, K]]:
    """As `take`, of the records that are fetched already."""
    if serde is None:
        return cast("list[Record[V, K]]", positions.take_fetched(limit))
    return _take_decoded(positions, limit, serde, lambda *, idle: positions.fetched())


class _DecodedChunk(Generic[V, K]):
    """Decodes a partition's fetched records as they are taken. Stays usable after an error.

    It ends early after a record that was passed over, since the position may have been moved meanwhile.
    """

    __slots__ = ("_position", "_serde")

    def __init__(self, position: Position, serde: RecordSerde[V, K]) -> None:
        self._position = position
        self._serde = serde

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record[V, K]:
        position = self._position
        records = position.left
        for record in records:
            try:
                decoded = self._serde.decode_or_pass_over(record)
            except DeserializationError:
                raise
            except BaseException:  # Ctrl-C, or an error of the function that was to deal with the record
                if position.left is records:
                    position.step_back()
                raise
            if decoded is not None:
                return decoded
            break
        raise StopIteration


def _take_decoded(
    positions: Positions,
    limit: int,
    serde: RecordSerde[V, K],
    ready: Callable[..., Position | None],
) -> list[Record[V, K]]:
    taken: list[Record[V, K]] = []
    begun: dict[Position, OffsetAndEpoch] = {}  # where the records in `taken` begin
    passed_over = 0
    try:
        while len(taken) + passed_over < limit:
            try:
                position = ready(idle=not taken)
            except EmbedlogError:
                # The partition keeps its position, so the error is raised again.
                if taken:
                    break
                raise
            if position is None:
                break
            begun.setdefault(position, position.at)
            positions.hold_next(position)
            try:
                is_decoded = _decode_into(taken, position, limit - passed_over, serde)
            finally:
                if not length_hint(position.left):
                    position.drop()
            if not is_decoded and taken:
                break
            if not is_decoded:
                begun.clear()
                passed_over += 1
    except BaseException:
        if taken:  # Ctrl-C: none of them are returned
            for position, begin in begun.items():
                positions.seek(position.tp, *begin)
        raise
    return taken


def _decode_into(taken: list[Record[V, K]], position: Position, limit: int, serde: RecordSerde[V, K]) -> bool:
    """Take records of a partition until there are `limit`. False at a record that does not decode: then the
    position is before it, or, if nothing was taken yet, after it, and it is dealt with."""
    records = position.left
    for record in records:
        try:
            decoded = serde.decode(record) if taken else serde.decode_or_pass_over(record)
        except DeserializationError:
            if not taken:
                raise
            position.step_back()
            return False
        except BaseException:  # as in _DecodedChunk
            if position.left is records:
                position.step_back()
            raise
        if decoded is None:
            return False
        taken.append(decoded)
        if len(taken) >= limit:
            break
    return True
