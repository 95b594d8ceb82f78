"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the membership of consumer groups.

Clients and embedded consumers join the same groups: `BrokerContext.groups` is the coordinator of both. These
handlers know the differences between Kafka's versions of these requests, and a broker's limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from ....errors import EmbedlogError, MemberIdRequired, UnknownMember
from ....files.names import TRANSACTION_STATE_TOPIC
from ....groups.coordinator import REMOTE
from ....groups.offsets import OFFSETS_TOPIC
from ....model import JoinResult
from ....validation import check_group
from ....wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ....wire.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from ....wire.apis.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ....wire.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from ....wire.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from ....wire.error_codes import ErrorCode
from ...coordination import BrokerAddress
from ..api_errors import ApiError, group_error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests
from ..local_members import LocalMembers

_R = TypeVar("_R")

_GROUP: Final = 0  # key types of FindCoordinator
_TRANSACTION: Final = 1
_NO_BROKER: Final = BrokerAddress(-1, "", -1)
_FIRST_WITH_SEVERAL_KEYS: Final = 4
_FIRST_WITH_MEMBER_ID_REQUIRED: Final = 4
_FIRST_WITH_NULL_PROTOCOL: Final = 7
_FIRST_WITH_SKIP_ASSIGNMENT: Final = 9
_FIRST_WITH_SEVERAL_LEAVING: Final = 3
_NAME_CHARS: Final = 255  # of a client id that goes into a member id; of an instance id


class GroupHandlers:
    """Handles the APIs of group members.

    members: on the owner's socket, what ends memberships with their processes; None on the network.
    """

    def __init__(
        self, broker: BrokerContext, requests: GroupRequests, members: LocalMembers | None = None
    ) -> None:
        self._broker = broker
        self._requests = requests
        self._members = members

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "FindCoordinator": self.find_coordinator,
            "JoinGroup": self.join_group,
            "SyncGroup": self.sync_group,
            "Heartbeat": self.heartbeat,
            "LeaveGroup": self.leave_group,
        }

    # -- FindCoordinator -------------------------------------------------------------------------------

    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if context.version >= _FIRST_WITH_SEVERAL_KEYS:
            coordinators = [
                self._coordinator(context, key, request.key_type) for key in request.coordinator_keys
            ]
            return FindCoordinatorResponse(coordinators=coordinators)
        coordinator = self._coordinator(context, request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _coordinator(self, context: RequestContext, key: str, key_type: int) -> Coordinator:
        code, message, address = ErrorCode.NONE, None, _NO_BROKER
        if key_type not in (_GROUP, _TRANSACTION):
            code, message = ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}"
        elif not key and key_type == _GROUP:
            code, message = ErrorCode.INVALID_GROUP_ID, "a group has a name of at least one character"
        else:
            topic = TRANSACTION_STATE_TOPIC if key_type == _TRANSACTION else OFFSETS_TOPIC
            coordinator = self._broker.coordination.coordinator_of(key, topic)
            coordinator = None if coordinator is None else coordinator.at(context.connection.listener.name)
            if coordinator is None:
                code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no coordinator now"
            else:
                address = coordinator
        return Coordinator(
            key=key,
            node_id=address.node_id,
            host=address.host,
            port=address.port,
            error_code=code,
            error_message=message,
        )

    # -- JoinGroup -------------------------------------------------------------------------------------

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Future[JoinGroupResponse]:
        broker = self._broker

        def failed(error: EmbedlogError) -> JoinGroupResponse:
            if isinstance(error, MemberIdRequired):
                self._note(context, request.group_id, error.member_id)
            return _encode_join_error(context, request, error)

        def join() -> Future[JoinResult]:
            session_ms = request.session_timeout_ms
            return broker.groups.join_group(
                request.group_id,
                request.member_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms
                if request.rebalance_timeout_ms > 0
                else session_ms,
                protocol_type=request.protocol_type,
                protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
                client_id=context.client_id[:_NAME_CHARS],
                client_host=f"{REMOTE}{context.connection.host}",
                group_instance_id=request.group_instance_id,
                require_known_member=context.version >= _FIRST_WITH_MEMBER_ID_REQUIRED,
                max_members=broker.settings.group_max_size,
                max_groups=broker.settings.max_groups,
            )

        try:
            self._check_join(request)
        except EmbedlogError as error:
            return failed(error)
        self._note(context, request.group_id, request.member_id, request.group_instance_id)
        response = self._requests.run_async(
            context, request.group_id, join, lambda joined: _encode_joined(context, joined), failed
        )
        return self._waiting(context, response)

    def _check_join(self, request: JoinGroupRequest) -> None:
        check_group(request.group_id)  # first, as in Kafka
        low = self._broker.settings.group_min_session_timeout_ms
        high = self._broker.store.settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise ApiError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms must be {low:,} to {high:,} (group.min.session.timeout.ms and max)",
            )
        instance = request.group_instance_id
        if instance is not None and not 0 < len(instance) <= _NAME_CHARS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"group.instance.id has 1 to {_NAME_CHARS} characters")

    # -- SyncGroup, Heartbeat --------------------------------------------------------------------------

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Future[SyncGroupResponse]:
        self._note(context, request.group_id, request.member_id, request.group_instance_id)

        def sync() -> Future[bytes]:
            check_group(request.group_id)
            return self._broker.groups.sync_group(
                request.group_id,
                request.member_id,
                request.generation_id,
                {assignment.member_id: assignment.assignment for assignment in request.assignments},
                group_instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
            )

        def synced(assignment: bytes) -> SyncGroupResponse:
            return SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=assignment,
            )

        response = self._requests.run_async(
            context,
            request.group_id,
            sync,
            synced,
            lambda error: SyncGroupResponse(
                # As in Kafka: the rebalance that it belongs to is lost.
                error_code=ErrorCode.REBALANCE_IN_PROGRESS
                if _is_loading(error)
                else group_error_code_for(error, member=True),
                protocol_type=None,
                protocol_name=None,
            ),
        )
        return self._waiting(context, response)

    def _waiting(self, context: RequestContext, response: _R | Future[_R]) -> _R | Future[_R]:
        if self._members is not None and isinstance(response, Future):
            self._members.waits(context.connection, response)
        return response

    def heartbeat(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | Future[HeartbeatResponse]:
        self._note(context, request.group_id, request.member_id, request.group_instance_id)

        def renew() -> HeartbeatResponse:
            check_group(request.group_id)
            self._broker.groups.heartbeat(
                request.group_id,
                request.member_id,
                request.generation_id,
                group_instance_id=request.group_instance_id,
            )
            return HeartbeatResponse()

        def failed(error: EmbedlogError) -> HeartbeatResponse:
            if _is_loading(error):
                return HeartbeatResponse()  # as in Kafka: aiokafka's consumer ends at errors it does not know
            if isinstance(error, UnknownMember):
                self._forget(context, request.group_id, request.member_id)
            return HeartbeatResponse(error_code=group_error_code_for(error, member=True))

        return self._requests.run(context, renew, failed, group=request.group_id)

    def _note(self, context: RequestContext, group: str, member_id: str, instance: str | None = None) -> None:
        if self._members is not None:
            self._members.note(context.connection, group, member_id, instance)

    def _forget(self, context: RequestContext, group: str, member_id: str) -> None:
        if self._members is not None:
            self._members.forget(context.connection, group, member_id)

    # -- LeaveGroup ------------------------------------------------------------------------------------

    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Future[LeaveGroupResponse]:
        if context.version >= _FIRST_WITH_SEVERAL_LEAVING:
            leaving: Sequence[MemberIdentity] = request.members
        else:
            leaving = [MemberIdentity(member_id=request.member_id, group_instance_id=None)]

        def leave() -> LeaveGroupResponse:
            check_group(request.group_id)
            responses = [self._leave(request.group_id, member) for member in leaving]
            for member in leaving:
                self._forget(context, request.group_id, member.member_id)
            if context.version >= _FIRST_WITH_SEVERAL_LEAVING:
                return LeaveGroupResponse(members=responses)
            return LeaveGroupResponse(error_code=responses[0].error_code)

        return self._requests.run(
            context,
            leave,
            lambda error: LeaveGroupResponse(error_code=group_error_code_for(error, member=True)),
            group=request.group_id,
        )

    def _leave(self, group: str, member: MemberIdentity) -> MemberResponse:
        code = ErrorCode.NONE
        try:
            self._broker.groups.leave_group(
                group, member.member_id, group_instance_id=member.group_instance_id
            )
        except EmbedlogError as error:
            code = group_error_code_for(error, member=True)
        return MemberResponse(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
        )


def _is_loading(error: EmbedlogError) -> bool:
    """Whether the groups are still being loaded."""
    return isinstance(error, ApiError) and error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _encode_joined(context: RequestContext, joined: JoinResult) -> JoinGroupResponse:
    # For a client too old to skip its assignment, the response names another leader, and the group continues.
    skips = joined.skip_assignment
    is_hidden = skips and context.version < _FIRST_WITH_SKIP_ASSIGNMENT
    return JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader="" if is_hidden else joined.leader_id,
        skip_assignment=skips,
        member_id=joined.member_id,
        members=[]
        if is_hidden
        else [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def _encode_join_error(
    context: RequestContext, request: JoinGroupRequest, error: EmbedlogError
) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=group_error_code_for(error, member=True),
        protocol_type=None,
        protocol_name=None if context.version >= _FIRST_WITH_NULL_PROTOCOL else "",
        member_id=error.member_id if isinstance(error, MemberIdRequired) else request.member_id,
    )
