"""ListGroups, DescribeGroups, DeleteGroups: groups as an administrator sees them."""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .operations import UNKNOWN_OPERATIONS
from .schema import Api, array, boolean, byte_string, int16, int32, message, string

DESCRIBE_GROUPS: Final = Api("DescribeGroups", key=15, max_version=6, flexible_since=5)
LIST_GROUPS: Final = Api("ListGroups", key=16, max_version=5, flexible_since=3)
DELETE_GROUPS: Final = Api("DeleteGroups", key=42, max_version=2, flexible_since=2)


# -- ListGroups ----------------------------------------------------------------------------------------


@message
class ListGroupsRequest(Request):
    """Which groups are there? Empty filters let all pass."""

    api: ClassVar[Api] = LIST_GROUPS
    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


@message
class ListedGroup:
    """A group."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


@message
class ListGroupsResponse(Response):
    """The groups that this broker coordinates."""

    api: ClassVar[Api] = LIST_GROUPS
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


# -- DescribeGroups ------------------------------------------------------------------------------------


@message
class DescribeGroupsRequest(Request):
    """Who is in these groups?"""

    api: ClassVar[Api] = DESCRIBE_GROUPS
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


@message
class DescribedGroupMember:
    """A member, what it can do and what it was given."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable=4)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = byte_string()
    member_assignment: bytes = byte_string()


@message
class DescribedGroup:
    """A group and its members."""

    error_code: int = int16()
    error_message: str | None = string(since=6, nullable=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=UNKNOWN_OPERATIONS)


@message
class DescribeGroupsResponse(Response):
    """The groups and their members."""

    api: ClassVar[Api] = DESCRIBE_GROUPS
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


# -- DeleteGroups --------------------------------------------------------------------------------------


@message
class DeleteGroupsRequest(Request):
    """Forget groups that have no members."""

    api: ClassVar[Api] = DELETE_GROUPS
    groups_names: list[str] = array(string)


@message
class DeletableGroupResult:
    """Whether a group was forgotten."""

    group_id: str = string()
    error_code: int = int16()


@message
class DeleteGroupsResponse(Response):
    """Which groups were forgotten."""

    api: ClassVar[Api] = DELETE_GROUPS
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
