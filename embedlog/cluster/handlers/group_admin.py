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
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_work import GroupWork
from ..problems import group_code_of

_FIRST_THAT_MISSES_GROUPS: Final = 6  # DescribeGroups; before, a group that is not there is a Dead one


class GroupAdminHandlers:
    """Implements the APIs that administer groups."""

    def __init__(self, node: BrokerContext, work: GroupWork) -> None:
        self._node = node
        self._work = work

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {
            "ListGroups": self.list_groups,
            "DescribeGroups": self.describe_groups,
            "DeleteGroups": self.delete_groups,
        }

    def list_groups(
        self, call: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse | Future[ListGroupsResponse]:
        states = {state.casefold() for state in request.states_filter}
        types = {each.casefold() for each in request.types_filter}

        def listed() -> ListGroupsResponse:
            response = ListGroupsResponse()
            for name in self._node.groups.list_groups():
                with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                    group = self._node.groups.describe_group(name)
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

        return self._work.do(call, listed, lambda error: ListGroupsResponse(error_code=group_code_of(error)))

    def describe_groups(
        self, call: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Future[DescribeGroupsResponse]:
        def failed(error: EmbedlogError) -> DescribeGroupsResponse:
            return DescribeGroupsResponse(groups=[_unknown(call, group, error) for group in request.groups])

        def described() -> DescribeGroupsResponse:
            once = dict.fromkeys(request.groups)  # a group may have many members
            return DescribeGroupsResponse(groups=[self._described(call, group) for group in once])

        def with_operations() -> DescribeGroupsResponse:
            response = described()
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = ON_A_GROUP
            return response

        asked = request.include_authorized_operations
        return self._work.do(call, with_operations if asked else described, failed)

    def _described(self, call: RequestContext, name: str) -> DescribedGroup:
        try:
            self._work.check_coordinates(name)
            return _shown(self._node.groups.describe_group(name))
        except EmbedlogError as error:
            return _unknown(call, name, error)

    def delete_groups(
        self, call: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse | Future[DeleteGroupsResponse]:
        def failed(error: EmbedlogError) -> DeleteGroupsResponse:
            code = group_code_of(error)
            return DeleteGroupsResponse(
                results=[
                    DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names
                ]
            )

        def deleted() -> DeleteGroupsResponse:
            return DeleteGroupsResponse(results=[self._deleted(name) for name in request.groups_names])

        return self._work.do(call, deleted, failed)

    def _deleted(self, name: str) -> DeletableGroupResult:
        code = ErrorCode.NONE
        try:
            self._work.check_coordinates(name)
            self._node.groups.delete_group(name)
        except EmbedlogError as error:
            code = group_code_of(error)
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


def _unknown(call: RequestContext, name: str, error: EmbedlogError) -> DescribedGroup:
    if isinstance(error, GroupNotFound) and call.version < _FIRST_THAT_MISSES_GROUPS:
        return DescribedGroup(error_message=None, group_id=name, group_state=State.DEAD.value)
    return DescribedGroup(
        error_code=group_code_of(error),
        error_message=str(error),
        group_id=name,
        group_state=State.DEAD.value if isinstance(error, GroupNotFound) else "",
    )
