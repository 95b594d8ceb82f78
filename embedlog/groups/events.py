"""What the consumer-group state machine says: its states, the effects of an operation, its descriptions.

An operation on a group returns effects, in the order in which the caller is to carry them out. The request
in an effect is the object that the caller gave with the join or sync that it answers.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from ..errors import EmbedlogError
from ..model import GroupMetadata, JoinResult


class State(Enum):
    """Where a group stands; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinCompleted(NamedTuple):
    """The join succeeded; the member's next step is a sync."""

    request: object
    result: JoinResult


class JoinFailed(NamedTuple):
    """The join failed."""

    request: object
    error: EmbedlogError


class SyncCompleted(NamedTuple):
    """The member's assignment for its generation, as the leader wrote it; b"" if the leader forgot it."""

    request: object
    assignment: bytes


class SyncFailed(NamedTuple):
    """The sync failed."""

    request: object
    error: EmbedlogError


class RebalanceStarted(NamedTuple):
    """These members must join again. They learn it by their next heartbeat; this is to wake them early."""

    group: str
    member_ids: tuple[str, ...]


class MetadataChanged(NamedTuple):
    """What a restart must find. To be stored before the effects behind it are carried out.

    Its state_timestamp_ms is -1, for the caller's wall clock to fill in. If storing fails, the caller fails
    the requests behind it with that error and calls `rebalance`.
    """

    group: str
    metadata: GroupMetadata


Effect: TypeAlias = (
    JoinCompleted | JoinFailed | SyncCompleted | SyncFailed | RebalanceStarted | MetadataChanged
)


class MemberDescription(NamedTuple):
    """A member as people see it; metadata is for the chosen protocol, assignment b"" unless Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """A group as people see it; protocol and leader_id are None while there is none chosen."""

    group: str
    state: State
    protocol_type: str
    protocol: str | None
    generation: int
    leader_id: str | None
    members: tuple[MemberDescription, ...]
