"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: the consumer group protocol of KIP-848.

A member says what it subscribes to and what it reads; the answer says what it may read, as topic ids. The
coordinator assigns (groups/consumer_group.py). These handlers know the requests' versions and the broker's
limits.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, InconsistentProtocol
from ....groups.consumer_groups import AssignedTopic, ConsumerMemberDescription
from ....groups.consumer_member import JOIN, HeartbeatResult, MemberHeartbeat
from ....groups.coordinator import REMOTE
from ....security.operations import ON_A_GROUP
from ....validation import check_group
from ....wire.apis import consumer_group_describe as describing
from ....wire.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from ....wire.apis.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ....wire.consumer_group_state import by_topic
from ....wire.error_codes import ErrorCode
from ..api_errors import ApiError, group_error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_FIRST_WITH_OWN_MEMBER_ID: Final = 1  # in version 0 the broker makes the member id
_NAME_CHARS: Final = 255
_CLASSIC, _CONSUMER = 0, 1  # types of members


class ConsumerGroupHandlers:
    """Handles the APIs of groups of KIP-848."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests) -> None:
        self._broker = broker
        self._requests = requests

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "ConsumerGroupHeartbeat": self.heartbeat,
            "ConsumerGroupDescribe": self.describe,
        }

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Future[ConsumerGroupHeartbeatResponse]:
        def heartbeat() -> ConsumerGroupHeartbeatResponse:
            _check(request)
            settings, own = self._broker.settings, self._broker.group_configs.of(request.group_id)
            beat = _beat(context, request)
            result = self._broker.groups.consumer_heartbeat(
                request.group_id,
                beat,
                session_timeout_ms=own.consumer_session_timeout_ms,
                max_members=settings.group_consumer_max_size,
                max_groups=settings.max_groups,
            )
            return _answer(beat.member_id, result, own.consumer_heartbeat_interval_ms)

        return self._requests.run(context, heartbeat, _failed, group=request.group_id)

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse | Future[ConsumerGroupDescribeResponse]:
        names = list(dict.fromkeys(request.group_ids))

        def failed(error: EmbedlogError) -> ConsumerGroupDescribeResponse:
            return ConsumerGroupDescribeResponse(groups=[_undescribed(name, error) for name in names])

        def describe() -> ConsumerGroupDescribeResponse:
            response = ConsumerGroupDescribeResponse(groups=[self._describe(name) for name in names])
            for group in response.groups:
                if request.include_authorized_operations and not group.error_code:
                    group.authorized_operations = ON_A_GROUP
            return response

        return self._requests.run(context, describe, failed)

    def _describe(self, name: str) -> DescribedGroup:
        try:
            self._requests.check_coordinates(name)
            group = self._broker.groups.describe_consumer_group(name)
        except EmbedlogError as error:
            return _undescribed(name, error)
        return DescribedGroup(
            error_message=None,
            group_id=name,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor,
            members=[_described(each) for each in group.members],
        )


def _check(request: ConsumerGroupHeartbeatRequest) -> None:
    """What only a broker checks. Raises ApiError, InvalidGroup."""
    check_group(request.group_id)
    for name in (request.member_id, request.instance_id or "", request.rack_id or ""):
        if len(name) > _NAME_CHARS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"ids of members and racks have {_NAME_CHARS} characters at most"
            )


def _beat(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> MemberHeartbeat:
    member_id = request.member_id
    if not member_id and not context.version and request.member_epoch == JOIN:
        member_id = str(uuid.uuid4())
    owned = request.topic_partitions
    return MemberHeartbeat(
        member_id=member_id,
        member_epoch=request.member_epoch,
        group_instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=request.subscribed_topic_names,
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset((topic.topic_id, number) for topic in owned for number in topic.partitions),
        client_id=context.client_id[:_NAME_CHARS],
        client_host=f"{REMOTE}{context.connection.host}",
    )


def _answer(member_id: str, result: HeartbeatResult, interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    assigned = result.assigned
    return ConsumerGroupHeartbeatResponse(
        error_message=None,
        member_id=member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=None
        if assigned is None
        else Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic(assigned).items()
            ]
        ),
    )


def _failed(error: EmbedlogError) -> ConsumerGroupHeartbeatResponse:
    # Kafka's code for a group that is not of this protocol and may not become one.
    is_classic = isinstance(error, InconsistentProtocol)
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_classic else group_error_code_for(error, member=True)
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message_for(error), member_id=None)


def _undescribed(name: str, error: EmbedlogError) -> DescribedGroup:
    return DescribedGroup(
        error_code=group_error_code_for(error),
        error_message=message_for(error),
        group_id=name,
        group_state="",
    )


def _described(each: ConsumerMemberDescription) -> Member:
    member, said = each.member, each.member.subscription
    return Member(
        member_id=member.member_id,
        instance_id=said.group_instance_id,
        rack_id=said.rack_id,
        member_epoch=member.current.epoch,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=list(said.topics),
        subscribed_topic_regex=said.pattern,
        assignment=_assignment(each.assigned),
        target_assignment=_assignment(each.target),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(topics: Sequence[AssignedTopic]) -> describing.Assignment:
    return describing.Assignment(
        topic_partitions=[
            describing.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for topic_id, name, numbers in topics
        ]
    )
