"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the membership of consumer groups.

Clients and embedded consumers meet in the same groups: the state machine behind `node.groups` is one. Here is
what Kafka's versions of these requests say differently, and the bounds that a broker sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from ...errors import EmbedlogError, MemberIdRequired
from ...groups.coordinator import REMOTE
from ...model import JoinResult
from ...validation import check_group
from ...wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ...wire.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from ...wire.apis.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ...wire.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from ...wire.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from ...wire.error_codes import ErrorCode
from ..broker_context import BrokerContext, Handler, RequestContext
from ..coordination import BrokerAddress
from ..group_work import GroupWork
from ..problems import ApiError, group_code_of

_GROUP: Final = 0  # key types of FindCoordinator
_TRANSACTION: Final = 1
_NOBODY: Final = BrokerAddress(-1, "", -1)
_FIRST_WITH_SEVERAL_KEYS: Final = 4
_FIRST_WITH_MEMBER_ID_REQUIRED: Final = 4
_FIRST_WITH_NULL_PROTOCOL: Final = 7
_FIRST_WITH_SKIP_ASSIGNMENT: Final = 9
_FIRST_WITH_SEVERAL_LEAVING: Final = 3
_NAME_CHARS: Final = 255  # of a client id that goes into a member id; of an instance id


class GroupHandlers:
    """Implements the APIs of group members."""

    def __init__(self, node: BrokerContext, work: GroupWork) -> None:
        self._node = node
        self._work = work

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {
            "FindCoordinator": self.find_coordinator,
            "JoinGroup": self.join_group,
            "SyncGroup": self.sync_group,
            "Heartbeat": self.heartbeat,
            "LeaveGroup": self.leave_group,
        }

    # -- FindCoordinator -------------------------------------------------------------------------------

    def find_coordinator(
        self, call: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if call.version >= _FIRST_WITH_SEVERAL_KEYS:
            found = [self._coordinator(key, request.key_type) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._coordinator(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, key: str, key_type: int) -> Coordinator:
        code, message, at = ErrorCode.NONE, None, _NOBODY
        if key_type not in (_GROUP, _TRANSACTION):
            code, message = ErrorCode.INVALID_REQUEST, f"no coordinators of type {key_type} here"
        elif not key:
            code, message = ErrorCode.INVALID_GROUP_ID, "a group has a name of at least one character"
        else:
            # Also for a transactional id: on an error librdkafka would look for its coordinator until its
            # timeout and not say why. InitProducerId says that there are no transactions yet.
            found = self._node.coordination.coordinator_of(key)
            if found is None:
                code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody coordinates the group just now"
            else:
                at = found
        return Coordinator(
            key=key,
            node_id=at.node_id,
            host=at.host,
            port=at.port,
            error_code=code,
            error_message=message,
        )

    # -- JoinGroup -------------------------------------------------------------------------------------

    def join_group(
        self, call: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Future[JoinGroupResponse]:
        node = self._node

        def failed(error: EmbedlogError) -> JoinGroupResponse:
            return _not_joined(call, request, error)

        def begin() -> Future[JoinResult]:
            session_ms = request.session_timeout_ms
            return node.groups.join_group(
                request.group_id,
                request.member_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms
                if request.rebalance_timeout_ms > 0
                else session_ms,
                protocol_type=request.protocol_type,
                protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
                client_id=call.client_id[:_NAME_CHARS],
                client_host=f"{REMOTE}{call.connection.host}",
                group_instance_id=request.group_instance_id,
                require_known_member=call.version >= _FIRST_WITH_MEMBER_ID_REQUIRED,
                max_members=node.settings.group_max_size,
                max_groups=node.settings.max_groups,
            )

        try:
            self._check_join(request)
        except EmbedlogError as error:
            return failed(error)
        return self._work.wait(request.group_id, begin, lambda joined: _joined(call, joined), failed)

    def _check_join(self, request: JoinGroupRequest) -> None:
        check_group(request.group_id)  # before all else, as in Kafka
        low = self._node.settings.group_min_session_timeout_ms
        high = self._node.store.settings.group_max_session_timeout_ms
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
        self, call: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Future[SyncGroupResponse]:
        def begin() -> Future[bytes]:
            check_group(request.group_id)
            return self._node.groups.sync_group(
                request.group_id,
                request.member_id,
                request.generation_id,
                {given.member_id: given.assignment for given in request.assignments},
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

        return self._work.wait(
            request.group_id,
            begin,
            synced,
            lambda error: SyncGroupResponse(
                error_code=group_code_of(error, member=True), protocol_type=None, protocol_name=None
            ),
        )

    def heartbeat(
        self, call: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | Future[HeartbeatResponse]:
        def renew() -> HeartbeatResponse:
            check_group(request.group_id)
            self._node.groups.heartbeat(
                request.group_id,
                request.member_id,
                request.generation_id,
                group_instance_id=request.group_instance_id,
            )
            return HeartbeatResponse()

        return self._work.do(
            call,
            renew,
            lambda error: HeartbeatResponse(error_code=group_code_of(error, member=True)),
            group=request.group_id,
        )

    # -- LeaveGroup ------------------------------------------------------------------------------------

    def leave_group(
        self, call: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Future[LeaveGroupResponse]:
        if call.version >= _FIRST_WITH_SEVERAL_LEAVING:
            leaving: Sequence[MemberIdentity] = request.members
        else:
            leaving = [MemberIdentity(member_id=request.member_id, group_instance_id=None)]

        def leave() -> LeaveGroupResponse:
            check_group(request.group_id)
            left = [self._leave(request.group_id, member) for member in leaving]
            if call.version >= _FIRST_WITH_SEVERAL_LEAVING:
                return LeaveGroupResponse(members=left)
            return LeaveGroupResponse(error_code=left[0].error_code)

        return self._work.do(
            call,
            leave,
            lambda error: LeaveGroupResponse(error_code=group_code_of(error, member=True)),
            group=request.group_id,
        )

    def _leave(self, group: str, member: MemberIdentity) -> MemberResponse:
        code = ErrorCode.NONE
        try:
            self._node.groups.leave_group(group, member.member_id, group_instance_id=member.group_instance_id)
        except EmbedlogError as error:
            code = group_code_of(error, member=True)
        return MemberResponse(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
        )


def _joined(call: RequestContext, joined: JoinResult) -> JoinGroupResponse:
    # Who does not know how to skip its assignment is told that another member leads: the group goes on.
    skips = joined.skip_assignment
    hidden = skips and call.version < _FIRST_WITH_SKIP_ASSIGNMENT
    return JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader="" if hidden else joined.leader_id,
        skip_assignment=skips,
        member_id=joined.member_id,
        members=[]
        if hidden
        else [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def _not_joined(call: RequestContext, request: JoinGroupRequest, error: EmbedlogError) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=group_code_of(error, member=True),
        protocol_type=None,
        protocol_name=None if call.version >= _FIRST_WITH_NULL_PROTOCOL else "",
        member_id=error.member_id if isinstance(error, MemberIdRequired) else request.member_id,
    )
