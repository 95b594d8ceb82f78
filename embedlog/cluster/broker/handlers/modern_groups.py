"""ConsumerGroupHeartbeat, ConsumerGroupDescribe, ShareGroupHeartbeat, ShareGroupDescribe (KIP-848, KIP-932).

A member says what it subscribes to, and in a consumer group what it reads; the answer says what it may read,
as topic ids. The coordinator decides (groups/machines/modern_group.py). These handlers know the requests'
versions, the broker's limits and the groups' settings.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from ....errors import EmbedlogError, GroupNotFound, InconsistentProtocol
from ....groups.coordinator import REMOTE
from ....groups.machines.assignors import SIMPLE
from ....groups.machines.events import GroupState, GroupType
from ....groups.machines.modern_member import JOIN, HeartbeatResult, MemberHeartbeat, ModernMember
from ....groups.modern_groups import ModernGroupDescription
from ....security.operations import ON_A_GROUP
from ....validation import check_group
from ....wire.apis import (
    consumer_group_describe,
    consumer_group_heartbeat,
    share_group_describe,
    share_group_heartbeat,
)
from ....wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from ....wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ....wire.apis.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from ....wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ....wire.error_codes import ErrorCode
from ....wire.messages import Response
from ....wire.modern_group_state import Assignment, by_topic
from ..api_errors import ApiError, group_error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_NAME_CHARS: Final = 255
_CLASSIC, _CONSUMER = 0, 1  # types of members
_NOT_ASKED_FOR: Final = -(1 << 31)  # authorized operations

_Heartbeat = TypeVar("_Heartbeat", bound=ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest)
_HeartbeatResponse = TypeVar("_HeartbeatResponse", bound=Response)
_DescribeRequest: TypeAlias = ConsumerGroupDescribeRequest | ShareGroupDescribeRequest
_DescribeResponse = TypeVar("_DescribeResponse", bound=Response)


class _Limits(NamedTuple):
    """What holds for the members of a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_members: int


class _ModernGroupHandlers(ABC, Generic[_Heartbeat, _HeartbeatResponse, _DescribeResponse]):
    """Handles the APIs of the groups of one protocol.

    other_type: what the coordinator raises if the group is of another type. heartbeat_api, describe_api: the
    modules of the messages' parts. Both protocols' have the same names and fields, but those of the
    protocol's own.
    """

    group_type: ClassVar[GroupType]
    other_type: ClassVar[type[EmbedlogError]]
    heartbeat_api: ClassVar[ModuleType]
    heartbeat_response: Callable[..., _HeartbeatResponse]
    describe_api: ClassVar[ModuleType]
    describe_response: Callable[..., _DescribeResponse]

    def __init__(self, broker: BrokerContext, requests: GroupRequests) -> None:
        self._broker = broker
        self._requests = requests

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        protocol = self.group_type.value.capitalize()
        return {f"{protocol}GroupHeartbeat": self.heartbeat, f"{protocol}GroupDescribe": self.describe}

    def heartbeat(
        self, context: RequestContext, request: _Heartbeat
    ) -> _HeartbeatResponse | Future[_HeartbeatResponse]:
        def heartbeat() -> _HeartbeatResponse:
            beat = self._beat(context, request)
            _check(request.group_id, beat)
            limits = self._limits(request.group_id)
            result = self._broker.groups.member_heartbeat(
                self.group_type,
                request.group_id,
                beat,
                session_timeout_ms=limits.session_timeout_ms,
                max_members=limits.max_members,
                max_groups=self._broker.settings.max_groups,
            )
            return self._answer(beat.member_id, result, limits.heartbeat_interval_ms)

        return self._requests.run(context, heartbeat, self._failed, group=request.group_id)

    def describe(
        self, context: RequestContext, request: _DescribeRequest
    ) -> _DescribeResponse | Future[_DescribeResponse]:
        operations = ON_A_GROUP if request.include_authorized_operations else _NOT_ASKED_FOR
        return self._requests.run_each(
            context,
            dict.fromkeys(request.group_ids),
            lambda name: self._describe(name, operations),
            self._undescribed,
            lambda groups: self.describe_response(groups=groups),
        )

    # -- what each protocol says for itself ------------------------------------------------------------

    def _beat(self, context: RequestContext, request: _Heartbeat) -> MemberHeartbeat:
        """What a member says."""
        return MemberHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=request.subscribed_topic_names,
            client_id=context.client_id[:_NAME_CHARS],
            client_host=f"{REMOTE}{context.connection.host}",
        )

    @abstractmethod
    def _limits(self, group: str) -> _Limits:
        """The limits by the group's own settings and the broker's."""

    def _own_fields(self, member: ModernMember, target: Assignment) -> dict[str, Any]:
        """The fields of a described member that only this protocol has."""
        return {}

    def _find(self, name: str) -> ModernGroupDescription:
        """Raises GroupNotFound."""
        return self._broker.groups.describe_modern_group(self.group_type, name)

    # -- messages --------------------------------------------------------------------------------------

    def _answer(self, member_id: str, result: HeartbeatResult, interval_ms: int) -> _HeartbeatResponse:
        assignment = None
        if result.assigned is not None:
            assignment = self.heartbeat_api.Assignment(
                topic_partitions=[
                    self.heartbeat_api.TopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic(result.assigned).items()
                ]
            )
        return self.heartbeat_response(
            error_message=None,
            member_id=member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=interval_ms,
            assignment=assignment,
        )

    def _failed(self, error: EmbedlogError) -> _HeartbeatResponse:
        code = group_error_code_for(error, member=True)
        if isinstance(error, self.other_type):  # and may not become one of this type
            code = ErrorCode.GROUP_ID_NOT_FOUND
        return self.heartbeat_response(error_code=code, error_message=message_for(error), member_id=None)

    def _describe(self, name: str, operations: int) -> object:
        self._requests.check_coordinates(name)
        group = self._find(name)
        return self.describe_api.DescribedGroup(
            error_message=None,
            group_id=name,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor,
            members=[self._member(member, group.targets[member.member_id]) for member in group.members],
            authorized_operations=operations,
        )

    def _undescribed(self, name: str, error: EmbedlogError) -> object:
        return self.describe_api.DescribedGroup(
            error_code=group_error_code_for(error),
            error_message=message_for(error),
            group_id=name,
            group_state="",
        )

    def _member(self, member: ModernMember, target: Assignment) -> object:
        subscription = member.subscription
        return self.describe_api.Member(
            member_id=member.member_id,
            rack_id=subscription.rack_id,
            member_epoch=member.current.epoch,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=list(subscription.topics),
            assignment=self._assignment(member.current.assigned),
            **self._own_fields(member, target),
        )

    def _assignment(self, partitions: Assignment) -> object:
        return self.describe_api.Assignment(
            topic_partitions=[
                self.describe_api.TopicPartitions(
                    topic_id=topic_id, topic_name=self._broker.topic_name(topic_id) or "", partitions=numbers
                )
                for topic_id, numbers in by_topic(partitions).items()
            ]
        )


class ConsumerGroupHandlers(
    _ModernGroupHandlers[
        ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, ConsumerGroupDescribeResponse
    ]
):
    """Handles the APIs of groups of KIP-848."""

    group_type = GroupType.CONSUMER
    heartbeat_api: ClassVar[ModuleType] = consumer_group_heartbeat
    heartbeat_response = ConsumerGroupHeartbeatResponse
    describe_api: ClassVar[ModuleType] = consumer_group_describe
    describe_response = ConsumerGroupDescribeResponse
    other_type = InconsistentProtocol

    def _beat(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> MemberHeartbeat:
        beat = super()._beat(context, request)
        if not beat.member_id and not context.version and beat.member_epoch == JOIN:
            beat = beat._replace(member_id=str(uuid.uuid4()))  # in version 0 the broker makes it
        owned = request.topic_partitions
        return beat._replace(
            group_instance_id=request.instance_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=None
            if owned is None
            else frozenset((topic.topic_id, number) for topic in owned for number in topic.partitions),
        )

    def _limits(self, group: str) -> _Limits:
        settings = self._broker.group_configs.of(group)
        return _Limits(
            settings.consumer_session_timeout_ms,
            settings.consumer_heartbeat_interval_ms,
            self._broker.settings.group_consumer_max_size,
        )

    def _own_fields(self, member: ModernMember, target: Assignment) -> dict[str, Any]:
        return {
            "instance_id": member.subscription.group_instance_id,
            "subscribed_topic_regex": member.subscription.pattern,
            "target_assignment": self._assignment(target),
            "member_type": _CLASSIC if member.is_classic else _CONSUMER,
        }


class ShareGroupHandlers(
    _ModernGroupHandlers[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, ShareGroupDescribeResponse]
):
    """Handles the APIs of share groups' members."""

    group_type = GroupType.SHARE
    heartbeat_api: ClassVar[ModuleType] = share_group_heartbeat
    heartbeat_response = ShareGroupHeartbeatResponse
    describe_api: ClassVar[ModuleType] = share_group_describe
    describe_response = ShareGroupDescribeResponse
    other_type = GroupNotFound

    def _limits(self, group: str) -> _Limits:
        settings = self._broker.group_configs.of(group)
        return _Limits(
            settings.share_session_timeout_ms,
            settings.share_heartbeat_interval_ms,
            self._broker.settings.group_share_max_size,
        )

    def _find(self, name: str) -> ModernGroupDescription:
        try:
            return super()._find(name)
        except GroupNotFound:
            if name not in self._broker.queue_groups():
                raise
            # A group of the library's queues, which have no members in Kafka's sense.
            return ModernGroupDescription(name, GroupState.EMPTY, 0, 0, SIMPLE, [], {})


def _check(group: str, beat: MemberHeartbeat) -> None:
    """What only a broker checks. Raises ApiError, InvalidGroup."""
    check_group(group)
    for name in (beat.member_id, beat.group_instance_id or "", beat.rack_id or ""):
        if len(name) > _NAME_CHARS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"ids of members and racks have {_NAME_CHARS} characters at most"
            )
