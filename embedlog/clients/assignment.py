"""Which partitions a consumer reads: those that its group assigns to it, all of its topics, or chosen ones.

    subscription.py    the topics, and how many partitions they have
    membership.py      the group's decision, if there is a group
    positions.py       where the partitions are read: `assign` gives and takes them

Giving up is always in this order: commit what is done, call on_revoked or on_lost, drop the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ..backends.port import Backend
from ..errors import BrokerUnavailable
from ..model import TopicPartition
from ..runtime.locks import calls_out
from .first_offsets import FirstOffsets
from .membership import Assigned, MemberOffsets, Membership
from .offset_commits import Commits
from .partition_count import partition_count
from .positions import Positions
from .subscription import Topics, TopicWatch

_TOPICS: Final = "the look for new topics and partitions"
_GROUP: Final = "the membership in the group"

RebalanceCallback: TypeAlias = Callable[[tuple[TopicPartition, ...]], object]
"""Called with the partitions that a consumer was assigned (on_assigned), gives up (on_revoked) or has lost
(on_lost)."""


class Assignment:
    """Gives partitions to a consumer's positions, and takes them away. For one thread at a time.

    membership: None for all partitions of the topics. The other arguments are the consumer's.
    """

    def __init__(
        self,
        backend: Backend,
        topics: Topics,
        refresh_ms: int,
        *,
        membership: Membership | None,
        positions: Positions,
        first_offsets: FirstOffsets,
        commits: Commits,
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> None:
        self.watch = TopicWatch(backend, topics, refresh_ms)
        self._refresh_ms = refresh_ms
        self.membership = membership
        self.by_hand = False
        self.on_assigned = on_assigned
        self._backend = backend
        self._positions = positions
        self._first_offsets = first_offsets
        self._commits = commits
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked
        self.watch.refresh()
        self._known = self.watch.identities()
        if membership is None:
            self._assign_all()

    @property
    def due(self) -> float:
        """The latest time to call `advance` again (time.monotonic)."""
        return (
            self.watch.due if self.membership is None else min(self.watch.due, self.membership.heartbeat_due)
        )

    @property
    def is_stable(self) -> bool:
        """Whether the consumer has what the group assigns to it."""
        return self.membership is None or self.membership.is_stable

    def advance(self) -> None:
        """Look for new topics and partitions if that is due; stay in the group, and do what it says."""
        changed = self._refreshed()
        if changed:
            identities = self.watch.identities()
            self._first_offsets.appeared([tp for _, tp in identities - self._known])
            self._known = identities
            self._positions.renew(lambda topic: self.watch.topic_ids.get(topic, ""))
        membership = self.membership
        if membership is None:
            if changed and not self.by_hand:
                self._assign_all()
            return
        if changed:
            membership.request_rejoin()
        try:
            self._follow(membership)
        except BrokerUnavailable as error:
            self._positions.waits.put_off(_GROUP, error)
        if membership.is_stable:
            self._positions.waits.over(_GROUP)

    def _refreshed(self) -> bool:
        """Whether there are other topics or partitions than before."""
        if not self.watch.is_due:
            return False
        try:
            changed = self.watch.refresh()
        except BrokerUnavailable as error:
            self._positions.waits.put_off(_TOPICS, error, with_an_end=True)
            return False
        self._positions.waits.over(_TOPICS)
        return changed

    def _follow(self, membership: Membership) -> None:
        """Do what the group says."""
        while (change := membership.advance(self.watch.partitions)) is not None:
            if isinstance(change, Assigned):
                self._first_offsets.assigned(change.of_group)
                self._positions.assign(change.partitions)
                if self.on_assigned is not None:
                    _tell(self.on_assigned, change.partitions)
                return
            self.give_up(lost=change.lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these from now on; leaves the group. Raises TopicNotFound, PartitionNotFound."""
        for tp in partitions:
            partition_count(self._backend, tp.topic, tp.partition)
        if self.membership is not None:
            self.give_up(lost=False)
            self.membership.leave()
            self.membership = None
            assert self._backend.coordinator is not None
            self._commits.stand_alone(
                MemberOffsets(self._backend.coordinator, None, read_committed=self._positions.read_committed)
            )
        self.watch = TopicWatch(self._backend, {tp.topic for tp in partitions}, self._refresh_ms)
        self.watch.refresh()
        self._first_offsets.by_hand()
        self.by_hand = True
        self._positions.assign(partitions)

    def give_up(self, *, lost: bool, commit: bool = True) -> None:
        """Give up all partitions. They are lost if another consumer has taken this static member's place."""
        partitions = self._positions.partitions
        lost = lost or (self.membership is not None and self.membership.is_fenced)
        try:
            if commit and not lost:
                self._commits.auto(self._positions, last=True)
            callback = self._on_lost if lost else self._on_revoked
            if callback is not None and partitions and self.membership is not None:
                _tell(callback, partitions)
        finally:
            self._positions.assign(())

    def leave(self) -> None:
        """Leave the group."""
        if self.membership is not None:
            self.membership.leave()

    def _assign_all(self) -> None:
        partitions = self.watch.all_partitions()
        self._first_offsets.assigned(partitions)
        self._positions.assign(partitions)


@calls_out
def _tell(callback: RebalanceCallback, partitions: tuple[TopicPartition, ...]) -> None:
    callback(partitions)
