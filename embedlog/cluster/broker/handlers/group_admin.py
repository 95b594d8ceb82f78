"""ListGroups, DescribeGroups, DeleteGroups: administration of groups."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, GroupNotFound
from ....groups.machines.events import GroupDescription, GroupState, GroupType
from ....security.operations import ON_A_GROUP
from ....wire.apis.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ....wire.apis.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ....wire.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ....wire.error_codes import ErrorCode
from ..api_errors import group_error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_FIRST_WITH_GROUP_NOT_FOUND: Final = 6  # DescribeGroups; before, a missing group is in state Dead


class GroupAdminHandlers:
    """Handles the APIs that administer groups."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests) -> None:
        self._broker = broker
        self._requests = requests

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "ListGroups": self.list_groups,
            "DescribeGroups": self.describe_groups,
            "DeleteGroups": self.delete_groups,
        }

    def list_groups(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse | Future[ListGroupsResponse]:
        states = {state.casefold() for state in request.states_filter}
        types = {name.casefold() for name in request.types_filter}

        def list_all() -> ListGroupsResponse:
            response = ListGroupsResponse()
            for name, type, state, protocol_type in self._groups():
                if (not types or type.value in types) and (not states or state.value.casefold() in states):
                    response.groups.append(
                        ListedGroup(
                            group_id=name,
                            protocol_type=protocol_type,
                            group_state=state.value,
                            group_type=type.value,
                        )
                    )
            return response

        return self._requests.run(
            context, list_all, lambda error: ListGroupsResponse(error_code=group_error_code_for(error))
        )

    def _groups(self) -> Iterator[tuple[str, GroupType, GroupState, str]]:
        """All groups, with their types, states and protocol types; share groups last.

        A queue's group of the library may have the name of a group of another type: that one is listed.
        """
        groups = self._broker.groups
        names = set(groups.list_groups())
        share_groups = self._share_groups()
        for name in sorted(names) + sorted(share_groups - names):
            try:
                group = groups.describe_group(name)
            except GroupNotFound:  # a queue's group; or it was deleted meanwhile
                if name in share_groups:
                    yield name, GroupType.SHARE, GroupState.EMPTY, GroupType.SHARE.value
            else:
                yield name, group.type, group.state, group.protocol_type

    def _share_groups(self) -> set[str]:
        if self._broker.shares is None:
            return set()
        return self._broker.queue_groups().union(self._broker.groups.list_share_groups())

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Future[DescribeGroupsResponse]:
        def failed(error: EmbedlogError) -> DescribeGroupsResponse:
            return DescribeGroupsResponse(
                groups=[_encode_error(context, group, error) for group in request.groups]
            )

        def describe() -> DescribeGroupsResponse:
            distinct = dict.fromkeys(request.groups)  # a group may have many members
            return DescribeGroupsResponse(groups=[self._describe(context, group) for group in distinct])

        def describe_with_operations() -> DescribeGroupsResponse:
            response = describe()
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = ON_A_GROUP
            return response

        with_operations = request.include_authorized_operations
        return self._requests.run(context, describe_with_operations if with_operations else describe, failed)

    def _describe(self, context: RequestContext, name: str) -> DescribedGroup:
        try:
            self._requests.check_coordinates(name)
            group = self._broker.groups.describe_group(name)
            if group.type is GroupType.SHARE:
                raise GroupNotFound(f"group {name!r} is a share group: describe it as that")
            return _encode_group(group)
        except EmbedlogError as error:
            return _encode_error(context, name, error)

    def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse | Future[DeleteGroupsResponse]:
        def failed(error: EmbedlogError) -> DeleteGroupsResponse:
            code = group_error_code_for(error)
            return DeleteGroupsResponse(
                results=[
                    DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names
                ]
            )

        def delete() -> DeleteGroupsResponse:
            return DeleteGroupsResponse(results=[self._delete(name) for name in request.groups_names])

        return self._requests.run(context, delete, failed)

    def _delete(self, name: str) -> DeletableGroupResult:
        code = ErrorCode.NONE
        try:
            self._requests.check_coordinates(name)
            self._delete_group(name)
        except EmbedlogError as error:
            code = group_error_code_for(error)
        return DeletableGroupResult(group_id=name, error_code=code)

    def _delete_group(self, name: str) -> None:
        """Raises GroupNotFound, GroupNotEmpty, StorageError."""
        groups = self._broker.groups
        try:
            type = groups.describe_group(name).type
        except GroupNotFound:
            if name not in self._share_groups():
                raise
            type = GroupType.SHARE
        else:
            groups.delete_group(name)
        if type is GroupType.SHARE and self._broker.shares is not None:
            shares = self._broker.shares()
            for group, topic in shares.list_share_groups():
                if group == name:
                    shares.delete_share_group(group, topic)


def _encode_group(group: GroupDescription) -> DescribedGroup:
    return DescribedGroup(
        error_message=None,
        group_id=group.group,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


def _encode_error(context: RequestContext, name: str, error: EmbedlogError) -> DescribedGroup:
    if isinstance(error, GroupNotFound) and context.version < _FIRST_WITH_GROUP_NOT_FOUND:
        return DescribedGroup(error_message=None, group_id=name, group_state=GroupState.DEAD.value)
    return DescribedGroup(
        error_code=group_error_code_for(error),
        error_message=message_for(error),
        group_id=name,
        group_state=GroupState.DEAD.value if isinstance(error, GroupNotFound) else "",
    )
