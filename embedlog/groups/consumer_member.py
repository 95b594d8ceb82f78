"""The members of a consumer group of KIP-848: what they say in heartbeats, what they are told, what changes.

The errors here are those that only clients of a broker get.

Source: Kafka's ConsumerGroupHeartbeat and ConsumerGroupMember (KIP-848).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ..errors import GroupError, InvalidArgument, shown
from ..wire.consumer_group_state import (
    Assignment,
    ClassicMember,
    GroupEpoch,
    MemberAssignment,
    MemberSubscription,
    ResolvedPattern,
)
from .assignors import ASSIGNORS

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_STATIC: Final = -2
"""What a heartbeat may say in place of the member's epoch."""


class FencedMemberEpoch(GroupError):
    """The group knows the member in another epoch: it stops reading its partitions, and joins again."""


class StaleMemberEpoch(GroupError):
    """A commit or a fetch of offsets names another epoch than the member is in."""


class UnreleasedInstance(GroupError):
    """Another member with this group_instance_id has not left."""


class UnsupportedAssignor(GroupError, ValueError):
    """There is no assignor of that name."""


class InvalidRegularExpression(GroupError, ValueError):
    """A subscription's pattern cannot be used (groups/patterns.py)."""


class GroupTopic(NamedTuple):
    """A topic as assignors see it."""

    topic_id: bytes
    partitions: int


FindTopic: TypeAlias = Callable[[str], GroupTopic | None]
"""The topic of that name, if there is one."""

MatchTopics: TypeAlias = Callable[[str], "tuple[str, ...] | None"]
"""The names of the topics that match a pattern, sorted; None if that cannot be told now."""


class MemberHeartbeat(NamedTuple):
    """A heartbeat of a member; None (or -1) for what has not changed since the last.

    member_epoch: JOIN, LEAVE, LEAVE_STATIC, or the epoch of the last answer. topics: the names that it
    subscribes to. pattern: subscribes to the topics that match, too; "" for none. owned: the partitions that
    it reads. classic: the "heartbeat" is the join of a member of the classic protocol (classic_requests.py).
    """

    member_id: str
    member_epoch: int
    group_instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: Sequence[str] | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    pattern: str | None = None
    classic: ClassicMember | None = None

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as after an error: then the answer does, too."""
        return self.member_epoch == JOIN or (
            self.rebalance_timeout_ms != -1 and self.says_topics and self.owned is not None
        )

    @property
    def says_topics(self) -> bool:
        """Whether it says what it subscribes to."""
        return self.topics is not None or self.pattern is not None


class HeartbeatResult(NamedTuple):
    """The member's epoch, and what it may read from now on; None if that has not changed."""

    member_epoch: int
    assigned: Assignment | None


class ConsumerMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    subscription: MemberSubscription
    current: MemberAssignment

    @property
    def subscribed(self) -> tuple[tuple[str, ...], str | None]:
        """The names and the pattern of the topics that it subscribes to."""
        return self.subscription.topics, self.subscription.pattern

    @property
    def is_classic(self) -> bool:
        """Whether it is a member of the classic protocol."""
        return self.subscription.classic is not None

    def session_ms(self, default_ms: int) -> int:
        """How long it may be silent; default_ms for members of the consumer protocol."""
        classic = self.subscription.classic
        return default_ms if classic is None else classic.session_timeout_ms

    @property
    def patterns(self) -> tuple[str, ...]:
        """Its pattern, if it has one."""
        pattern = self.subscription.pattern
        return () if pattern is None else (pattern,)

    def check_epoch(self, beat: MemberHeartbeat) -> None:
        """Raises FencedMemberEpoch. The previous epoch is fine if the member has not got the last answer."""
        current = self.current
        if beat.member_epoch == current.epoch:
            return
        lost_answer = beat.owned is not None and beat.owned <= current.assigned
        if beat.member_epoch != current.previous_epoch or not lost_answer:
            raise FencedMemberEpoch(
                f"member {self.member_id!r} is in epoch {current.epoch}, not {beat.member_epoch}: it stops "
                "reading its partitions, and joins again"
            )


class MemberChange(NamedTuple):
    """A member came, changed or went. None: it is not in the group."""

    member_id: str
    before: ConsumerMember | None
    after: ConsumerMember | None


class TargetChange(NamedTuple):
    """The target assignment of a member changed. None: it has none."""

    member_id: str
    before: Assignment | None
    after: Assignment | None


class EpochChange(NamedTuple):
    """The group epoch changed."""

    before: GroupEpoch
    after: GroupEpoch


class TargetEpochChange(NamedTuple):
    """The target assignment was computed."""

    before: int
    after: int


class PatternChange(NamedTuple):
    """A pattern matches other topics. None: no member subscribes by it."""

    pattern: str
    before: ResolvedPattern | None
    after: ResolvedPattern | None


Change: TypeAlias = MemberChange | TargetChange | EpochChange | TargetEpochChange | PatternChange


class StoredConsumerGroup(NamedTuple):
    """What was stored of a group."""

    epoch: GroupEpoch
    target_epoch: int
    members: Mapping[str, ConsumerMember]
    targets: Mapping[str, Assignment]
    patterns: Mapping[str, ResolvedPattern]


def check_heartbeat(beat: MemberHeartbeat) -> None:
    """Raises InvalidArgument for a heartbeat that no client sends, UnsupportedAssignor."""
    if not beat.member_id:
        raise InvalidArgument("a member has an id of at least one character")
    if beat.group_instance_id == "":
        raise InvalidArgument("a group_instance_id has at least one character")
    if beat.member_epoch < LEAVE_STATIC:
        raise InvalidArgument(f"a member epoch of {beat.member_epoch} has no meaning")
    if beat.member_epoch == LEAVE_STATIC and beat.group_instance_id is None:
        raise InvalidArgument(f"only a static member leaves with epoch {LEAVE_STATIC}")
    if beat.member_epoch == JOIN and beat.classic is None:
        if beat.rebalance_timeout_ms < 0:
            raise InvalidArgument("a member says its rebalance timeout when it joins")
        if beat.owned is None or beat.owned:
            raise InvalidArgument("a member that joins says that it has no partitions")
        if not beat.says_topics:
            raise InvalidArgument("a member says its topics when it joins")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(
            f"there is no assignor {shown(beat.assignor)}: {', '.join(ASSIGNORS)} are supported"
        )


def hash_of(topics: Iterable[tuple[str, GroupTopic | None]]) -> int:
    """A hash of the topics as they are: signed, of 64 bits, the same in each process."""
    digest = hashlib.blake2b(repr(tuple(topics)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
