"""Where a consumer begins in partitions without a committed offset.

    the partition was there before the group    auto_offset_reset: earliest, latest, by_duration:PT1H, error
    it appeared since                           its first record, since all of its records are new

A partition appeared since if the group has offsets in other partitions of its topic; a topic that a pattern
matches, if the group has offsets in other topics that it matches. That holds only if a group that begins has
offsets in all partitions at once. So unless the policy is "earliest", the leader of the group's rebalance
commits where each partition begins, its own and those of the other members, which wait for it: if each member
decided for itself, the first to commit would make the partitions of the others look new.

Also new is what a running consumer has seen appear.

Invariants: an offset that is committed is never replaced here; a consumer waits for its leader, which may be
another program's, LEADER_S at most.

Source: Kafka's auto.offset.reset; KIP-1106 (by_duration).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from ..backends.port import Backend
from ..errors import (
    BrokerUnavailable,
    InvalidArgument,
    OffsetOutOfRange,
    TopicNotFound,
    UnstableOffsetCommit,
    shown,
)
from ..model import CommittedOffset, PartitionOffsets, TopicPartition
from .offset_commits import Commits
from .waits import Waits

LEADER_S: Final = 2.0
RETRY_S: Final = 0.05

_NAMED: Final = ("earliest", "latest", "error")
_BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(  # ISO 8601, as Java's Duration reads it, without signs
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS: Final = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def duration_ms(reset: str) -> int | None:
    """The duration of by_duration:...; None if it is not one."""
    if not reset.lower().startswith(_BY_DURATION):
        return None
    match = _DURATION.fullmatch(reset[len(_BY_DURATION) :])
    parts = {} if match is None else {name: text for name, text in match.groupdict().items() if text}
    if not parts:
        return None
    return round(sum(float(text) * _SECONDS[name] for name, text in parts.items()) * 1000)


def check_reset(reset: object) -> None:
    """Raises InvalidArgument unless it is a value of auto_offset_reset."""
    if not isinstance(reset, str) or (reset not in _NAMED and duration_ms(reset) is None):
        raise InvalidArgument(
            f"auto_offset_reset must be one of {', '.join(_NAMED)}, or by_duration: and an ISO 8601 duration "
            f"such as by_duration:PT1H30M, not {shown(reset)}"
        )


class FirstOffsets:
    """The policy of one consumer. For one thread at a time.

    Args:
        reset: auto_offset_reset, checked.
        is_pattern: whether the consumer subscribes to a pattern.
    """

    def __init__(self, backend: Backend, commits: Commits, reset: str, *, is_pattern: bool) -> None:
        self.reset = reset
        self._backend = backend
        self._commits = commits
        self._duration_ms = duration_ms(reset)
        self._is_pattern = is_pattern
        self._alone = not commits.stores
        self._appeared: set[TopicPartition] = set()
        self._late: set[TopicPartition] = set()  # not asked yet, and not new either
        self._to_begin: Collection[TopicPartition] = ()
        self._decides = True
        self._waits_until = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the group's partitions still have to be begun."""
        return bool(self._to_begin)

    @property
    def to_begin(self) -> set[TopicPartition]:
        """The group's partitions that still have to be begun."""
        return set(self._to_begin)

    def assigned(self, partitions: Collection[TopicPartition] | None) -> None:
        """The consumer has other partitions now.

        partitions: those that it decides for, of its whole group if it leads that; None if another does.
        """
        self._decides = partitions is not None
        self._to_begin = () if partitions is None or self.reset in ("earliest", "error") else partitions
        self._waits_until = time.monotonic() + LEADER_S

    def by_hand(self) -> None:
        """The consumer's partitions are chosen by its program: they say nothing about those of its group."""
        self._alone, self._to_begin = True, ()

    @property
    def waits(self) -> bool:
        """Whether the group's leader still has time to decide."""
        return not (self._alone or self._decides) and time.monotonic() < self._waits_until

    def appeared(self, partitions: Collection[TopicPartition]) -> None:
        """Remember partitions that were created while the consumer was running."""
        self._appeared.update(partitions)

    def policy_offset(self, tp: TopicPartition) -> int:
        """Where auto_offset_reset begins; "error" begins nowhere. Raises TopicNotFound."""
        edges = self._edges(tp)
        if self.reset == "earliest":
            return edges.log_start_offset
        if self._duration_ms is not None:
            time_ms = max(time.time_ns() // 1_000_000 - self._duration_ms, 0)
            first_since = self._backend.offset_for_time(*tp, time_ms)
            if first_since is not None:
                return first_since.offset
        return edges.log_end_offset

    def begin_group(self, waits: Waits) -> None:
        """Commit where the partitions begin that the consumer decides for. Raises UnstableOffsetCommit."""
        partitions = [tp for tp in self._to_begin if waits.is_due(tp)]
        if partitions:
            self._begin(partitions, waits)
            self._to_begin = [tp for tp in self._to_begin if tp in waits]

    def of(self, missing: Collection[TopicPartition], waits: Waits) -> Mapping[TopicPartition, int]:
        """Where to begin in partitions without a committed offset, but for those that wait for a broker.

        Raises OffsetOutOfRange if the policy is "error"; UnstableOffsetCommit while the group's leader has
        not decided yet, or an open transaction may.
        """
        if self.reset == "error":
            for tp in missing:
                raise OffsetOutOfRange(
                    f"{tp}: no committed offset, and auto_offset_reset is 'error': seek first"
                )
        if self.reset == "earliest":
            return self._firsts(missing, waits, lambda tp: True)
        if self._alone:
            return self._firsts(missing, waits, self._appeared.__contains__)
        if self.waits:
            raise UnstableOffsetCommit(
                f"{', '.join(map(str, missing))}: the group's leader has not committed where to begin yet"
            )
        begun = self._begin(missing, waits)
        return {tp: begun[tp] for tp in missing if tp in begun}

    def wait(self) -> None:
        """A moment, before `of` is asked again."""
        time.sleep(RETRY_S)

    # -- inside ------------------------------------------------------------------------------------------

    def _begin(self, partitions: Collection[TopicPartition], waits: Waits) -> dict[TopicPartition, int]:
        """Commit where those of them begin that have no offset yet. Returns where that is."""
        counts: dict[str, int] = {}
        for topic in {tp.topic for tp in partitions}:
            try:
                counts[topic] = self._backend.describe_topic(topic).partitions
            except TopicNotFound:
                continue
        all_partitions = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
        committed = self._commits.stored(all_partitions)
        missing = [tp for tp in partitions if tp not in committed and tp.topic in counts]
        if not missing:
            return {}
        # What an open transaction commits must not be replaced.
        committed = {**committed, **self._commits.load(missing)}
        committed_topics = {tp.topic for tp in committed}

        def appeared(tp: TopicPartition) -> bool:
            of_group = tp.topic in committed_topics or (self._is_pattern and bool(committed_topics))
            return tp in self._appeared or (of_group and tp not in self._late)

        to_begin = [tp for tp in missing if tp not in committed]
        begun = self._firsts(to_begin, waits, appeared)
        self._late.update(tp for tp in to_begin if tp not in begun and not appeared(tp))
        self._commits.begin({tp: CommittedOffset(offset) for tp, offset in begun.items()})
        return begun

    def _firsts(
        self,
        partitions: Iterable[TopicPartition],
        waits: Waits,
        appeared: Callable[[TopicPartition], bool],
    ) -> dict[TopicPartition, int]:
        """Where to begin in each, but for those that wait for a broker."""
        firsts = {}
        for tp in partitions:
            try:
                firsts[tp] = self._edges(tp).log_start_offset if appeared(tp) else self.policy_offset(tp)
            except BrokerUnavailable as error:
                waits.put_off(tp, error)
            else:
                waits.over(tp)
        return firsts

    def _edges(self, tp: TopicPartition) -> PartitionOffsets:
        return self._backend.offsets(*tp)[tp.partition]
