"""ListGroups, DescribeGroups, DeleteGroups: administration of groups."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
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
        def describe(name: str) -> DescribedGroup:
            self._requests.check_coordinates(name)
            group = self._broker.groups.describe_group(name)
            if group.type is GroupType.SHARE:
                raise GroupNotFound(f"group {name!r} is a share group: describe it as that")
            described = _encode_group(group)
            if request.include_authorized_operations:
                described.authorized_operations = ON_A_GROUP
            return described

        return self._requests.run_each(
            context,
            dict.fromkeys(request.groups),  # once each: a group may have many members
            describe,
            partial(_encode_error, context),
            lambda groups: DescribeGroupsResponse(groups=groups),
        )

    def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse | Future[DeleteGroupsResponse]:
        def delete(name: str) -> DeletableGroupResult:
            self._requests.check_coordinates(name)
            self._delete(name)
            return DeletableGroupResult(group_id=name)

        return self._requests.run_each(
            context,
            request.groups_names,
            delete,
            lambda name, error: DeletableGroupResult(group_id=name, error_code=group_error_code_for(error)),
            lambda results: DeleteGroupsResponse(results=results),
        )

    def _delete(self, name: str) -> None:
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
