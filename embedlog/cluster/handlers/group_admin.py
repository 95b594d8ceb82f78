"""ListGroups, DescribeGroups, DeleteGroups: administration of groups."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Final

from ...errors import EmbedlogError, GroupNotFound
from ...groups.events import GroupDescription, GroupState
from ...wire.apis.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ...wire.apis.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ...wire.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ...wire.error_codes import ErrorCode
from ...wire.operations import ON_A_GROUP
from ..api_errors import group_error_code_for
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
        types = {each.casefold() for each in request.types_filter}

        def list_all() -> ListGroupsResponse:
            response = ListGroupsResponse()
            for name in self._broker.groups.list_groups():
                with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                    group = self._broker.groups.describe_group(name)
                    wanted = not types or group.type.value in types
                    if wanted and (not states or group.state.value.casefold() in states):
                        response.groups.append(
                            ListedGroup(
                                group_id=name,
                                protocol_type=group.protocol_type,
                                group_state=group.state.value,
                                group_type=group.type.value,
                            )
                        )
            return response

        return self._requests.run(
            context, list_all, lambda error: ListGroupsResponse(error_code=group_error_code_for(error))
        )

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

        asked = request.include_authorized_operations
        return self._requests.run(context, describe_with_operations if asked else describe, failed)

    def _describe(self, context: RequestContext, name: str) -> DescribedGroup:
        try:
            self._requests.check_coordinates(name)
            return _encode_group(self._broker.groups.describe_group(name))
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
            self._broker.groups.delete_group(name)
        except EmbedlogError as error:
            code = group_error_code_for(error)
        return DeletableGroupResult(group_id=name, error_code=code)


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
        error_message=str(error),
        group_id=name,
        group_state=GroupState.DEAD.value if isinstance(error, GroupNotFound) else "",
    )
