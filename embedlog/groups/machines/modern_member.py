"""The members of a modern group: what they say in heartbeats, what they are told, what changes.

The errors here are those that only clients of a broker get.

Source: Kafka's ConsumerGroupHeartbeat, ShareGroupHeartbeat and ModernGroupMember (KIP-848, KIP-932).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ...errors import GroupError, InvalidArgument
from ...wire.modern_group_state import (
    Assignment,
    ClassicMember,
    GroupEpoch,
    MemberAssignment,
    MemberSubscription,
    ResolvedPattern,
)

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
    """A subscription's pattern cannot be used (groups/machines/patterns.py)."""


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

    Members of share groups say their rack and their topics only.
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
    def says_topics(self) -> bool:
        """Whether it says what it subscribes to."""
        return self.topics is not None or self.pattern is not None


class HeartbeatResult(NamedTuple):
    """The member's epoch, and what it may read from now on; None if that has not changed."""

    member_epoch: int
    assigned: Assignment | None


class ModernMember(NamedTuple):
    """One member of a modern group."""

    member_id: str
    subscription: MemberSubscription = MemberSubscription()
    current: MemberAssignment = MemberAssignment()

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


class MemberChange(NamedTuple):
    """A member came, changed or went. None: it is not in the group."""

    member_id: str
    before: ModernMember | None
    after: ModernMember | None


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


class StoredModernGroup(NamedTuple):
    """What was stored of a group."""

    epoch: GroupEpoch
    target_epoch: int
    members: Mapping[str, ModernMember]
    targets: Mapping[str, Assignment]
    patterns: Mapping[str, ResolvedPattern]


def check_identity(beat: MemberHeartbeat, lowest_epoch: int) -> None:
    """Raises InvalidArgument for ids and an epoch that no client sends."""
    if not beat.member_id:
        raise InvalidArgument("a member has an id of at least one character")
    if beat.group_instance_id == "":
        raise InvalidArgument("a group_instance_id has at least one character")
    if beat.member_epoch < lowest_epoch:
        raise InvalidArgument(f"a member epoch of {beat.member_epoch} has no meaning")


def hash_of(topics: Iterable[tuple[str, GroupTopic | None]]) -> int:
    """A hash of the topics as they are: signed, of 64 bits, the same in each process."""
    digest = hashlib.blake2b(repr(tuple(topics)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
