"""What members of the classic protocol ask of a group of KIP-848.

    join       a heartbeat that says all: what the member subscribes to, and what it still reads (nothing, if
               its rebalances are eager). The answer comes at once, with the member's epoch as generation.
               There is no leader: the group has computed the assignment
    sync       returns what the member may read now
    heartbeat  RebalanceInProgress says that the member has to join again: to get to the group's epoch, to
               say that it has revoked, or since others have released what it is to have
    leave      as from any group (ConsumerGroup.remove)

A member that was told to join again has its rebalance timeout for it, and so long again for the sync.

Not thread-safe: the coordinator's lock guards the group.

Source: Kafka's GroupMetadataManager (classicGroupJoinToConsumerGroup and its neighbours).
"""

from __future__ import annotations

from ...errors import (
    CorruptRecord,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidArgument,
    RebalanceInProgress,
    UnknownMember,
)
from ...model import JoinResult, TopicPartition
from ...wire.consumer_protocol import (
    PROTOCOL_TYPE,
    Assignment,
    assignment_version,
    decode_subscription,
    encode_assignment,
)
from ...wire.modern_group_state import ClassicMember, ClassicProtocol, MemberState
from .consumer_group import ConsumerGroup
from .member import Offer
from .member_timers import Timer
from .modern_member import JOIN, FindTopic, MemberHeartbeat, ModernMember


def join_heartbeat(
    group: ConsumerGroup, member_id: str, offer: Offer, find_topic: FindTopic
) -> MemberHeartbeat:
    """A join as a heartbeat.

    Raises InconsistentProtocol if no member of the group can offer that: another protocol type, no protocol
    in common with the others of the classic protocol, or what is no subscription. InvalidArgument.
    """
    if offer.session_timeout_ms < 1 or offer.rebalance_timeout_ms < 1:
        raise InvalidArgument("session_timeout_ms and rebalance_timeout_ms must be at least 1")
    names = {name for name, _ in offer.protocols}
    if offer.protocol_type != PROTOCOL_TYPE or not names:
        raise InconsistentProtocol(f"group {group.name!r} is for the protocol type {PROTOCOL_TYPE!r}")
    for member in group:
        if member.subscription.classic is not None:
            names.intersection_update(protocol.name for protocol in member.subscription.classic.protocols)
    if not names:
        raise InconsistentProtocol("no protocol in common with the other members of the classic protocol")
    try:
        subscription = decode_subscription(offer.protocols[0][1])
    except CorruptRecord as error:
        raise InconsistentProtocol(f"the member's subscription cannot be read: {error}") from None
    topics = {name: find_topic(name) for name in {owned.topic for owned in subscription.owned_partitions}}
    return MemberHeartbeat(
        member_id,
        JOIN,
        group_instance_id=offer.group_instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=offer.rebalance_timeout_ms,
        topics=subscription.topics,
        owned=frozenset(
            (topic.topic_id, owned.partition)
            for owned in subscription.owned_partitions
            if (topic := topics[owned.topic]) is not None
        ),
        client_id=offer.client_id,
        client_host=offer.client_host,
        pattern="",
        classic=ClassicMember(
            offer.session_timeout_ms, tuple(ClassicProtocol(*protocol) for protocol in offer.protocols)
        ),
    )


def joined(group: ConsumerGroup, member_id: str) -> JoinResult:
    """The answer to a join: nobody leads."""
    member = group.member(member_id)
    return JoinResult(
        member_id=member_id,
        generation=member.current.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol=_protocol(member).name,
        leader_id="",
        members=(),
    )


def heartbeat(
    group: ConsumerGroup, member_id: str, generation: int, group_instance_id: str | None, now_ms: int
) -> None:
    """The member is alive.

    Raises RebalanceInProgress, UnknownMember, FencedInstance, IllegalGeneration, GroupNotFound.
    """
    member = _member(group, member_id, generation, group_instance_id)
    _restart_session(group, member, now_ms)
    if must_join(group, member):
        raise _told_to_join(group, member, now_ms)


def sync(
    group: ConsumerGroup,
    member_id: str,
    generation: int,
    *,
    group_instance_id: str | None,
    protocol_type: str | None,
    protocol: str | None,
    find_topic: FindTopic,
    now_ms: int,
) -> bytes:
    """The member's assignment. Raises as `heartbeat`, and InconsistentProtocol."""
    member = _member(group, member_id, generation, group_instance_id)
    chosen = _protocol(member)
    if protocol_type not in (None, PROTOCOL_TYPE) or protocol not in (None, chosen.name):
        raise InconsistentProtocol(f"the group uses {PROTOCOL_TYPE!r} {chosen.name!r}")
    # One that has to revoke first finds that out here.
    is_behind = member.current.epoch < group.epoch.epoch
    if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        raise _told_to_join(group, member, now_ms)
    group.timers.stop(Timer.SYNC, member_id)
    _restart_session(group, member, now_ms)
    names = {topic.topic_id: name for name, topic in group.topics(find_topic).items()}
    assigned = tuple(
        TopicPartition(names[topic_id], number)
        for topic_id, number in sorted(member.current.assigned)
        if topic_id in names
    )
    return encode_assignment(Assignment(assigned), version=assignment_version(chosen.metadata))


def must_join(group: ConsumerGroup, member: ModernMember) -> bool:
    """Whether a member of the classic protocol has to join again."""
    current = member.current
    if current.epoch < group.epoch.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)


def _member(
    group: ConsumerGroup, member_id: str, generation: int, group_instance_id: str | None
) -> ModernMember:
    member = group.member(member_id, group_instance_id)
    if not member.is_classic:
        raise UnknownMember(f"group {group.name!r} has no member {member_id!r} of the classic protocol")
    if member.current.epoch != generation:
        raise IllegalGeneration(
            f"member {member_id!r} of group {group.name!r} is in generation {member.current.epoch}, not "
            f"{generation}: join again"
        )
    return member


def _protocol(member: ModernMember) -> ClassicProtocol:
    """The protocol that the member is told: its first."""
    assert member.subscription.classic is not None
    return member.subscription.classic.protocols[0]


def _restart_session(group: ConsumerGroup, member: ModernMember, now_ms: int) -> None:
    group.timers.start(Timer.SESSION, member.member_id, now_ms + member.session_ms(0))


def _told_to_join(group: ConsumerGroup, member: ModernMember, now_ms: int) -> RebalanceInProgress:
    due = now_ms + member.subscription.rebalance_timeout_ms
    group.timers.start_if_absent(Timer.JOIN, member.member_id, due)
    return RebalanceInProgress(f"group {group.name!r} is rebalancing: join again")
