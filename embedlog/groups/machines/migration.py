"""How a group of one type becomes one of the other while it has members (group.consumer.migration.policy).

    classic ------ a member of the consumer protocol joins (upgrade) ------> consumer, with classic members
       ^                                                                                |
       '-- the last member of the consumer protocol goes, classic ones stay (downgrade) '

Upgrade. Each member keeps its id, and what it reads: that is its assignment, and what it said with its last
join that it owned, if nobody else has it (a cooperative member may still be revoking that). The generation
becomes the epoch. Since the new member raises the epoch, the others join again (classic_requests.py). Waiting
syncs fail with RebalanceInProgress; waiting joins are answered by the new group.

Downgrade. The epoch becomes the generation, the target assignments become the assignments, and the group
rebalances. Until then a member may still name the epoch that it had reached.

Both are one batch in `__consumer_offsets`: a crash leaves the one type or the other. A group that was
downgraded is stored without a leader, which no other group with members is: a coordinator that loads it
rebalances it. (Kafka names a leader; after a crash the partitions of the member that had left have no reader
until something else rebalances the group.)

Source: Kafka's ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup and
GroupMetadataManager (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ...errors import CorruptRecord, InconsistentProtocol
from ...model import TopicPartition
from ...wire.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    assignment_version,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from ...wire.consumer_protocol import Assignment as ProtocolAssignment
from ...wire.modern_group_state import (
    Assignment,
    ClassicMember,
    ClassicProtocol,
    GroupEpoch,
    MemberAssignment,
    MemberSubscription,
    TopicIdPartition,
)
from .classic import ClassicGroup
from .consumer_group import ConsumerGroup
from .member import Member, Offer
from .modern_member import (
    Change,
    EpochChange,
    FindTopic,
    MemberChange,
    ModernMember,
    StoredModernGroup,
    hash_of,
)

_STICKY: Final = ("sticky", "cooperative-sticky")
"""Protocols whose data for the members only says what they had. (librdkafka sends it; Kafka refuses it.)"""


class MigrationPolicy(Enum):
    """In which directions groups with members may change their type. Kafka's names."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """From classic to the consumer protocol."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """From the consumer protocol to classic."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class Migration(NamedTuple):
    """The policy, and how many members a group of each type may have; None for any number."""

    policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    max_classic: int | None = None
    max_consumer: int | None = None

    def check_upgrade(self, group: ClassicGroup) -> None:
        """Raises InconsistentProtocol if the group stays classic as long as it has members."""
        if not self.policy.upgrades:
            raise InconsistentProtocol(
                f"group {group.name!r} has members of the classic protocol: all of them have to leave before "
                "one of the consumer protocol joins"
            )
        if group.protocol_type != PROTOCOL_TYPE:
            raise InconsistentProtocol(f"the members of group {group.name!r} are not consumers")
        if self.max_consumer is not None and len(group.members) > self.max_consumer:
            raise InconsistentProtocol(
                f"group {group.name!r} has more than the {self.max_consumer:,} members of a group of the "
                "consumer protocol"
            )

    def downgrades(self, group: ConsumerGroup, changes: Iterable[Change]) -> bool:
        """Whether the group becomes a classic one, since by these changes its last other member has gone."""
        last_has_gone = any(
            isinstance(change, MemberChange) and change.after is None and not _classic(change.before)
            for change in changes
        )
        return last_has_gone and self.may_be_classic(group) and len(group) > 0

    def may_be_classic(self, group: ConsumerGroup, but: ModernMember | None = None) -> bool:
        """Whether all members, perhaps but one, are of the classic protocol, and the group may be, too."""
        return (
            self.policy.downgrades
            and all(member.is_classic or member == but for member in group)
            and (self.max_classic is None or len(group) <= self.max_classic)
        )


def upgraded(group: ClassicGroup, find_topic: FindTopic) -> StoredModernGroup:
    """The group as one of KIP-848.

    Raises InconsistentProtocol if what a member said or was assigned cannot be read, or if an assignor of the
    members' own says more to them than their partitions.
    """
    subscriptions: dict[str, Subscription] = {}
    assigned: dict[str, Assignment] = {}
    for member in group.members:
        try:
            subscriptions[member.member_id] = decode_subscription(_metadata(member, group.protocol))
            assignment = decode_assignment(member.assignment)
        except CorruptRecord as error:
            raise InconsistentProtocol(
                f"group {group.name!r} cannot change to the consumer protocol: of member "
                f"{member.member_id!r}: {error}"
            ) from None
        if assignment.user_data and group.protocol not in _STICKY:
            raise InconsistentProtocol(
                f"group {group.name!r} cannot change to the consumer protocol: its assignor "
                f"{group.protocol!r} has data of its own for the members"
            )
        assigned[member.member_id] = _ids(assignment.partitions, find_topic)
    readable = _readable(subscriptions, assigned, find_topic)
    generation = group.generation
    members = {
        member.member_id: ModernMember(
            member.member_id,
            _subscription(member.offer, subscriptions[member.member_id]),
            MemberAssignment(generation, generation, assigned=readable[member.member_id]),
        )
        for member in group.members
    }
    names = {name for subscription in subscriptions.values() for name in subscription.topics}
    targets = {member_id: partitions & readable[member_id] for member_id, partitions in assigned.items()}
    # A static member that only takes another's place does not raise the epoch. If the classic group was about
    # to assign again, another hash does: so the new one computes what everyone is to have.
    missing = sum(topic.partitions for name in names if (topic := find_topic(name)) is not None)
    missing -= sum(map(len, targets.values()))
    topics_hash = hash_of((name, find_topic(name)) for name in sorted(names))
    epoch = GroupEpoch(generation, ~topics_hash if missing else topics_hash)
    return StoredModernGroup(epoch, generation, members, targets, {})


def downgraded(group: ConsumerGroup, find_topic: FindTopic, now_ms: int) -> list[Member]:
    """The group's members as those of a classic one."""
    names = {topic.topic_id: name for name, topic in group.topics(find_topic).items()}
    members = []
    for modern_member in group:
        subscription, classic = modern_member.subscription, modern_member.subscription.classic
        assert classic is not None
        target = tuple(
            TopicPartition(names[topic_id], number)
            for topic_id, number in sorted(group.target(modern_member.member_id))
            if topic_id in names
        )
        offer = Offer(
            session_timeout_ms=classic.session_timeout_ms,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in classic.protocols),
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            group_instance_id=subscription.group_instance_id,
        )
        version = assignment_version(classic.protocols[0].metadata)
        member = Member(
            modern_member.member_id,
            offer,
            is_new=False,
            assignment=encode_assignment(ProtocolAssignment(target), version=version),
            generation=modern_member.current.epoch,
        )
        member.renew(now_ms)
        members.append(member)
    return members


def epoch_before(group: ConsumerGroup, changes: Iterable[Change]) -> int:
    """The group epoch before these changes: that which the members know."""
    return next(
        (change.before.epoch for change in changes if isinstance(change, EpochChange)), group.epoch.epoch
    )


def _classic(member: ModernMember | None) -> bool:
    return member is not None and member.is_classic


def _metadata(member: Member, protocol: str | None) -> bytes:
    """What it subscribes to. In its first join phase a group has not elected a protocol."""
    return member.metadata(protocol) if protocol is not None else member.offer.protocols[0][1]


def _subscription(offer: Offer, subscription: Subscription) -> MemberSubscription:
    return MemberSubscription(
        group_instance_id=offer.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=offer.client_id,
        client_host=offer.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=offer.rebalance_timeout_ms,
        classic=ClassicMember(
            offer.session_timeout_ms, tuple(ClassicProtocol(*protocol) for protocol in offer.protocols)
        ),
    )


def _ids(partitions: Sequence[TopicPartition], find_topic: FindTopic) -> Assignment:
    topics = {name: find_topic(name) for name in {partition.topic for partition in partitions}}
    return frozenset(
        (topic.topic_id, partition.partition)
        for partition in partitions
        if (topic := topics[partition.topic]) is not None and 0 <= partition.partition < topic.partitions
    )


def _readable(
    subscriptions: dict[str, Subscription], assigned: dict[str, Assignment], find_topic: FindTopic
) -> dict[str, Assignment]:
    """What each member may still read: its assignment, and what else it owned. No partition has two.

    Of two that own a partition the one of the later generation has it, as for Kafka's sticky assignors.
    """
    holders: dict[TopicIdPartition, str] = {}
    for member_id, partitions in assigned.items():
        holders.update(dict.fromkeys(partitions, member_id))
    for member_id in sorted(subscriptions, key=lambda claimant: -subscriptions[claimant].generation):
        for partition in _ids(subscriptions[member_id].owned_partitions, find_topic):
            holders.setdefault(partition, member_id)
    readable: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscriptions}
    for partition, member_id in holders.items():
        readable[member_id].add(partition)
    return {member_id: frozenset(partitions) for member_id, partitions in readable.items()}
