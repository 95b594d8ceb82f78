"""A streaming query's progress: the offsets in Spark's checkpoint, and the limits of a trigger.

    {"version": 1, "topics": {
        "clicks": {"topic_id": "kQ1v...", "partitions": {
            "0": {"offset": 4711, "leader_epoch": 3},
            "1": {"offset": 120, "leader_epoch": -1, "begin": 100}}}}}

`offset` is the next one to read, `leader_epoch` that of the last record before it (-1 where unknown): it
tells after a crash whether the query still stands in the log's history. `topic_id` tells a topic from another
one that bears its name later. `begin` stands at the end of a batch where it does not begin at the offset of
the batch before: in a partition that is new to the query, or whose records were lost. So both ends of every
batch are in the checkpoint, and a batch that is run again has the same records.

Admission control is that of Spark's Kafka source: maxOffsetsPerTrigger is spread over the partitions in
proportion to what waits in each, and each that has something gets at least one offset; minOffsetsPerTrigger
lets a trigger pass until so much waits, or maxTriggerDelay is over.

Invariants: no I/O, no clock, no pyspark; the dict of equal progress is the same text (keys are sorted), by
which Spark sees that there is nothing new.
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
    """Where a query stands in a partition. `begin`: where its last batch began, None for where the one before
    it ended."""

    offset: int
    leader_epoch: int = NO_EPOCH
    begin: int | None = None


@dataclass(frozen=True)
class Progress:
    """Where a query stands in all its partitions, and the ids of their topics ("" where unknown)."""

    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The progress as JSON values for Spark's checkpoint."""
        topics: dict[str, dict[str, Any]] = {}
        for tp, position in sorted(self.positions.items()):
            topic = topics.setdefault(
                tp.topic, {"topic_id": self.topic_ids.get(tp.topic, ""), "partitions": {}}
            )
            found = {"offset": position.offset, "leader_epoch": position.leader_epoch}
            if position.begin is not None:
                found["begin"] = position.begin
            topic["partitions"][str(tp.partition)] = found
        return {"version": VERSION, "topics": topics}

    @classmethod
    def of(cls, given: Any) -> Progress:
        """Parse an offset of a checkpoint. Raises InvalidArgument if embedlog did not write it."""
        try:
            version = given["version"]
            if version != VERSION:
                raise InvalidArgument(
                    f"the query's checkpoint has offsets of version {shown(version)}, this embedlog knows "
                    f"version {VERSION}: run the query with the embedlog that began it, or a newer one"
                )
            positions, topic_ids = {}, {}
            for topic, about in given["topics"].items():
                topic_ids[topic] = str(about["topic_id"])
                for number, found in about["partitions"].items():
                    tp = TopicPartition(topic, int(number))
                    positions[tp] = Position(_offset(found["offset"]), _epoch(found["leader_epoch"]))
                    if "begin" in found:
                        positions[tp] = positions[tp]._replace(begin=_offset(found["begin"]))
        except InvalidArgument:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the query's checkpoint has offsets that are not embedlog's: {shown(given)}; a checkpoint "
                "belongs to one query over one source: give this query a new checkpointLocation"
            ) from error
        return cls(positions, topic_ids)

    def stands_at(self, before: Progress) -> bool:
        """Is there nothing that was not in the progress before?"""
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
        """Where the batch that ends here began, `before` being the end of the one before it."""
        found = {}
        for tp, position in self.positions.items():
            if position.begin is not None:
                found[tp] = position.begin
            elif tp in before.positions:
                found[tp] = before.positions[tp].offset
        return found


def limited(
    most: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where a batch of about `most` offsets ends, which begins at `begins` and may go up to `ends`.

    Each partition gets its share of what waits in all, rounded down, but at least one offset if anything
    waits in it: small partitions do not starve, so that a batch may be larger than `most` by their number.
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
    """Lets triggers pass until enough waits. For one query.

    min_offsets: what is enough. max_delay_ms: for how long a trigger waits for it at most; the first one of
    a run does not wait.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms: int | None = None

    def waits(self, offsets: int, now_ms: int) -> bool:
        """Shall a trigger pass that finds so many offsets? Where not, the delay starts over."""
        if not offsets:
            return False
        over = self._last_ms is None or not 0 <= now_ms - self._last_ms < self._max_delay_ms
        if offsets < self._min_offsets and not over:
            return True
        self._last_ms = now_ms
        return False


def _offset(given: object) -> int:
    if type(given) is not int or not 0 <= given <= MAX_INT64:
        raise ValueError(f"{given!r} is no offset")
    return given


def _epoch(given: object) -> int:
    if type(given) is not int or not -1 <= given < 1 << 31:
        raise ValueError(f"{given!r} is no leader epoch")
    return given
