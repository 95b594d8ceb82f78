"""ListGroups, DescribeGroups, DeleteGroups: groups as administrators see them."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Final

from ...errors import EmbedlogError, GroupNotFound
from ...groups.events import GroupDescription, State
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

_FIRST_THAT_MISSES_GROUPS: Final = 6  # DescribeGroups; before, a group that is not there is a Dead one


class GroupAdminHandlers:
    """Implements the APIs that administer groups."""

    def __init__(self, broker: BrokerContext, work: GroupRequests) -> None:
        self._broker = broker
        self._requests = work

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
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

        def listed() -> ListGroupsResponse:
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

        return self._requests.do(
            context, listed, lambda error: ListGroupsResponse(error_code=group_error_code_for(error))
        )

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Future[DescribeGroupsResponse]:
        def failed(error: EmbedlogError) -> DescribeGroupsResponse:
            return DescribeGroupsResponse(
                groups=[_unknown(context, group, error) for group in request.groups]
            )

        def described() -> DescribeGroupsResponse:
            once = dict.fromkeys(request.groups)  # a group may have many members
            return DescribeGroupsResponse(groups=[self._described(context, group) for group in once])

        def with_operations() -> DescribeGroupsResponse:
            response = described()
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = ON_A_GROUP
            return response

        asked = request.include_authorized_operations
        return self._requests.do(context, with_operations if asked else described, failed)

    def _described(self, context: RequestContext, name: str) -> DescribedGroup:
        try:
            self._requests.check_coordinates(name)
            return _shown(self._broker.groups.describe_group(name))
        except EmbedlogError as error:
            return _unknown(context, name, error)

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

        def deleted() -> DeleteGroupsResponse:
            return DeleteGroupsResponse(results=[self._deleted(name) for name in request.groups_names])

        return self._requests.do(context, deleted, failed)

    def _deleted(self, name: str) -> DeletableGroupResult:
        code = ErrorCode.NONE
        try:
            self._requests.check_coordinates(name)
            self._broker.groups.delete_group(name)
        except EmbedlogError as error:
            code = group_error_code_for(error)
        return DeletableGroupResult(group_id=name, error_code=code)


def _shown(group: GroupDescription) -> DescribedGroup:
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


def _unknown(context: RequestContext, name: str, error: EmbedlogError) -> DescribedGroup:
    if isinstance(error, GroupNotFound) and context.version < _FIRST_THAT_MISSES_GROUPS:
        return DescribedGroup(error_message=None, group_id=name, group_state=State.DEAD.value)
    return DescribedGroup(
        error_code=group_error_code_for(error),
        error_message=str(error),
        group_id=name,
        group_state=State.DEAD.value if isinstance(error, GroupNotFound) else "",
    )
