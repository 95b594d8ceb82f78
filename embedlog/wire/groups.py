"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: how members share a group.

What a member can do (`metadata`) and what it is given (`assignment`) are bytes to the broker: the clients'
own affair, named by `protocol_type`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, boolean, byte_string, int8, int16, int32, message, string

FIND_COORDINATOR: Final = Api("FindCoordinator", key=10, max_version=6, flexible_since=3)
JOIN_GROUP: Final = Api("JoinGroup", key=11, max_version=9, flexible_since=6)
HEARTBEAT: Final = Api("Heartbeat", key=12, max_version=4, flexible_since=4)
LEAVE_GROUP: Final = Api("LeaveGroup", key=13, max_version=5, flexible_since=4)
SYNC_GROUP: Final = Api("SyncGroup", key=14, max_version=5, flexible_since=4)


# -- FindCoordinator -----------------------------------------------------------------------------------


@message
class FindCoordinatorRequest(Request):
    """Who coordinates? `key_type` is 0 for groups, 1 for transactions; several keys from v4 on."""

    api: ClassVar[Api] = FIND_COORDINATOR
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


@message
class Coordinator:
    """Who coordinates one key."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


@message
class FindCoordinatorResponse(Response):
    """Who coordinates: one in the fields of the message itself, several (v4) in `coordinators`."""

    api: ClassVar[Api] = FIND_COORDINATOR
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


# -- JoinGroup -----------------------------------------------------------------------------------------


@message
class JoinGroupRequestProtocol:
    """An assignor that the member knows, and what it has to tell it."""

    name: str = string()
    metadata: bytes = byte_string()


@message
class JoinGroupRequest(Request):
    """Become a member, or stay one in the next generation."""

    api: ClassVar[Api] = JOIN_GROUP
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable=8)


@message
class JoinGroupResponseMember:
    """A member as its leader is told of it."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5)
    metadata: bytes = byte_string()


@message
class JoinGroupResponse(Response):
    """The generation, and to its leader the members."""

    api: ClassVar[Api] = JOIN_GROUP
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable=7)
    protocol_name: str | None = string(nullable=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


# -- SyncGroup -----------------------------------------------------------------------------------------


@message
class SyncGroupRequestAssignment:
    """What the leader gives to one member."""

    member_id: str = string()
    assignment: bytes = byte_string()


@message
class SyncGroupRequest(Request):
    """Ask for the assignment; the leader brings all of them."""

    api: ClassVar[Api] = SYNC_GROUP
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)
    protocol_type: str | None = string(since=5, nullable=5)
    protocol_name: str | None = string(since=5, nullable=5)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@message
class SyncGroupResponse(Response):
    """What the member is given."""

    api: ClassVar[Api] = SYNC_GROUP
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=5)
    protocol_name: str | None = string(since=5, nullable=5)
    assignment: bytes = byte_string()


# -- Heartbeat -----------------------------------------------------------------------------------------


@message
class HeartbeatRequest(Request):
    """Still there."""

    api: ClassVar[Api] = HEARTBEAT
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)


@message
class HeartbeatResponse(Response):
    """All is well, or a rebalance has begun."""

    api: ClassVar[Api] = HEARTBEAT
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


# -- LeaveGroup ----------------------------------------------------------------------------------------


@message
class MemberIdentity:
    """A member that leaves."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable=0)
    reason: str | None = string(since=5, nullable=5)


@message
class LeaveGroupRequest(Request):
    """Leave: one member, or several from v3 on."""

    api: ClassVar[Api] = LEAVE_GROUP
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


@message
class MemberResponse:
    """Whether a member has left."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable=0)
    error_code: int = int16()


@message
class LeaveGroupResponse(Response):
    """Who has left."""

    api: ClassVar[Api] = LEAVE_GROUP
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
