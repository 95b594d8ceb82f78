"""A streaming query's progress: the offsets in Spark's checkpoint, and the limits of a trigger.

    {"version": 1, "topics": {
        "clicks": {"topic_id": "kQ1v...", "partitions": {
            "0": {"offset": 4711, "leader_epoch": 3},
            "1": {"offset": 120, "leader_epoch": -1, "begin": 100}}}}}

`offset` is the next offset to read; `leader_epoch` that of the last record before it (-1 if unknown), which
shows after a crash whether the position is still part of the log's history. `topic_id` tells a recreated
topic from the old one. `begin` is the start of the batch in this partition, if that is not the end of the
batch before: the partition is new to the query, or records were lost. So both ends of every batch are in the
checkpoint, and a batch that runs again has the same records.

Admission control is that of Spark's Kafka source: maxOffsetsPerTrigger is shared among the partitions in
proportion to their backlog, at least one offset for each that has any; with minOffsetsPerTrigger, triggers
are skipped until that many offsets wait or maxTriggerDelay has passed.

Invariants: no I/O, no clock, no pyspark; equal progress has equal JSON (keys are sorted), so that Spark sees
that there is nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..config import MAX_INT64
from ..errors import InvalidArgument, shown
from ..model import NO_EPOCH, TopicPartition

VERSION: Final = 1


class Position(NamedTuple):
    """A query's position in a partition. begin: the start of its last batch; None if that is the end of the
    one before.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    begin: int | None = None


@dataclass(frozen=True)
class Progress:
    """A query's positions in all its partitions, and the ids of their topics ("" if unknown)."""

    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The progress as JSON values for Spark's checkpoint."""
        topics: dict[str, dict[str, Any]] = {}
        for tp, position in sorted(self.positions.items()):
            topic = topics.setdefault(
                tp.topic, {"topic_id": self.topic_ids.get(tp.topic, ""), "partitions": {}}
            )
            place = {"offset": position.offset, "leader_epoch": position.leader_epoch}
            if position.begin is not None:
                place["begin"] = position.begin
            topic["partitions"][str(tp.partition)] = place
        return {"version": VERSION, "topics": topics}

    @classmethod
    def of(cls, offset: Any) -> Progress:
        """Parse an offset of a checkpoint. Raises InvalidArgument if embedlog did not write it."""
        try:
            version = offset["version"]
            if version != VERSION:
                raise InvalidArgument(
                    f"the query's checkpoint has offsets of version {shown(version)}, this embedlog knows "
                    f"version {VERSION}: run the query with the embedlog that began it, or a newer one"
                )
            positions, topic_ids = {}, {}
            for topic, about in offset["topics"].items():
                topic_ids[topic] = str(about["topic_id"])
                for number, place in about["partitions"].items():
                    tp = TopicPartition(topic, int(number))
                    positions[tp] = Position(_offset(place["offset"]), _epoch(place["leader_epoch"]))
                    if "begin" in place:
                        positions[tp] = positions[tp]._replace(begin=_offset(place["begin"]))
        except InvalidArgument:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the query's checkpoint has offsets that are not embedlog's: {shown(offset)}; a checkpoint "
                "belongs to one query over one source: give this query a new checkpointLocation"
            ) from error
        return cls(positions, topic_ids)

    def stands_at(self, before: Progress) -> bool:
        """Whether nothing is new since the progress before."""
        return self.topic_ids == before.topic_ids and self.positions == {
            tp: position._replace(begin=None) for tp, position in before.positions.items()
        }

    def without(self, topic: str) -> Progress:
        """A copy without a topic."""
        return Progress(
            {tp: position for tp, position in self.positions.items() if tp.topic != topic},
            {name: topic_id for name, topic_id in self.topic_ids.items() if name != topic},
        )

    def begins(self, before: Progress) -> dict[TopicPartition, int]:
        """The start of the batch that ends here; `before` is the end of the previous batch."""
        begins = {}
        for tp, position in self.positions.items():
            if position.begin is not None:
                begins[tp] = position.begin
            elif tp in before.positions:
                begins[tp] = before.positions[tp].offset
        return begins


def limited(
    most: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end of a batch of about `most` offsets that starts at `begins` and may reach `ends`.

    Each partition gets its share in proportion to its backlog, rounded down, but at least one offset if it
    has any, so that small partitions do not starve. So a batch may exceed `most` by their number.
    """
    waiting = {tp: end - begins[tp] for tp, end in ends.items() if end > begins[tp]}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    return {
        tp: begins[tp] + max(most * waiting[tp] // total, 1) if tp in waiting else end
        for tp, end in ends.items()
    }


class Patience:
    """Skips triggers until enough offsets wait. For one query.

    min_offsets: how many are enough. max_delay_ms: the longest time to skip triggers; the first trigger of a
    run is never skipped.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms: int | None = None

    def waits(self, offsets: int, now_ms: int) -> bool:
        """Whether to skip a trigger that finds this many offsets. If not, the delay starts over."""
        if not offsets:
            return False
        over = self._last_ms is None or not 0 <= now_ms - self._last_ms < self._max_delay_ms
        if offsets < self._min_offsets and not over:
            return True
        self._last_ms = now_ms
        return False


def _offset(offset: object) -> int:
    if type(offset) is not int or not 0 <= offset <= MAX_INT64:
        raise ValueError(f"{offset!r} is no offset")
    return offset


def _epoch(epoch: object) -> int:
    if type(epoch) is not int or not -1 <= epoch < 1 << 31:
        raise ValueError(f"{epoch!r} is no leader epoch")
    return epoch
