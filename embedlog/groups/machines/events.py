"""The output of group state machines: states, effects, descriptions.

An operation on a group returns effects, in the order in which the caller must carry them out. The request in
an effect is the object that the caller gave with the join or sync that it answers.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from ...errors import EmbedlogError
from ...model import GroupMetadata, JoinResult


class GroupType(Enum):
    """Which protocol the members of a group speak: each type has its own state machine. Kafka's names."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class GroupState(Enum):
    """The state of a group. Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"  # classic groups only
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"  # consumer groups only
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinCompleted(NamedTuple):
    """The join succeeded; the member syncs next."""

    request: object
    result: JoinResult


class JoinFailed(NamedTuple):
    """The join failed."""

    request: object
    error: EmbedlogError


class SyncCompleted(NamedTuple):
    """The member's assignment in its generation, as the leader sent it; b"" if the leader sent none."""

    request: object
    assignment: bytes


class SyncFailed(NamedTuple):
    """The sync failed."""

    request: object
    error: EmbedlogError


class RebalanceStarted(NamedTuple):
    """These members must join again. Their next heartbeats tell them so; this wakes them earlier."""

    group: str
    member_ids: tuple[str, ...]


class RejoinNeeded(NamedTuple):
    """As RebalanceStarted, of a group in which the other members go on; or of a static member whose place
    another consumer has taken, which learns that it is fenced."""

    group: str
    member_ids: tuple[str, ...]


class MetadataChanged(NamedTuple):
    """Metadata that a restart must find: store it before carrying out the effects after it.

    Its state_timestamp_ms is -1, for the caller to set. If the store fails, the caller fails the requests of
    the later effects with that error and calls `rebalance`.
    """

    group: str
    metadata: GroupMetadata


Effect: TypeAlias = (
    JoinCompleted
    | JoinFailed
    | SyncCompleted
    | SyncFailed
    | RebalanceStarted
    | RejoinNeeded
    | MetadataChanged
)


class MemberDescription(NamedTuple):
    """A member as an administrator sees it; metadata for the chosen protocol, no assignment unless Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """A group as an administrator sees it. protocol and leader_id are None until they are chosen."""

    group: str
    type: GroupType
    state: GroupState
    protocol_type: str
    protocol: str | None
    generation: int
    leader_id: str | None
    members: tuple[MemberDescription, ...]
