"""ShareGroupHeartbeat, ShareGroupDescribe: the members of share groups (KIP-932).

A member says what it subscribes to; the answer says what it may read, as topic ids. The coordinator decides
(groups/share_membership.py). These handlers know the requests' versions, the broker's limits and the group's
settings.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, GroupNotFound
from ....groups.consumer_member import HeartbeatResult
from ....groups.coordinator import REMOTE
from ....groups.events import GroupState
from ....groups.share_membership import SIMPLE, ShareHeartbeat, ShareMember
from ....security.operations import ON_A_GROUP
from ....validation import check_group
from ....wire.apis import share_group_describe as describing
from ....wire.apis.share_group_describe import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ....wire.apis.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from ....wire.consumer_group_state import by_topic
from ....wire.error_codes import ErrorCode
from ..api_errors import ApiError, group_error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_NAME_CHARS: Final = 255


class ShareGroupHandlers:
    """Handles the APIs of share groups' members."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests) -> None:
        self._broker = broker
        self._requests = requests

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "ShareGroupHeartbeat": self.heartbeat,
            "ShareGroupDescribe": self.describe,
        }

    def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | Future[ShareGroupHeartbeatResponse]:
        def heartbeat() -> ShareGroupHeartbeatResponse:
            _check(request)
            settings = self._broker.settings
            own = self._broker.group_configs.of(request.group_id)
            result = self._broker.groups.share_groups.heartbeat(
                request.group_id,
                ShareHeartbeat(
                    member_id=request.member_id,
                    member_epoch=request.member_epoch,
                    topics=request.subscribed_topic_names,
                    rack_id=request.rack_id,
                    client_id=context.client_id[:_NAME_CHARS],
                    client_host=f"{REMOTE}{context.connection.host}",
                ),
                session_timeout_ms=own.share_session_timeout_ms,
                max_members=settings.group_share_max_size,
                max_groups=settings.max_groups,
            )
            return _answer(request.member_id, result, own.share_heartbeat_interval_ms)

        return self._requests.run(context, heartbeat, _failed, group=request.group_id)

    def describe(
        self, context: RequestContext, request: ShareGroupDescribeRequest
    ) -> ShareGroupDescribeResponse | Future[ShareGroupDescribeResponse]:
        names = list(dict.fromkeys(request.group_ids))

        def failed(error: EmbedlogError) -> ShareGroupDescribeResponse:
            return ShareGroupDescribeResponse(groups=[_undescribed(name, error) for name in names])

        def describe() -> ShareGroupDescribeResponse:
            topics = {self._broker.topic_id(name): name for name in self._broker.store.topics()}
            response = ShareGroupDescribeResponse(groups=[self._describe(name, topics) for name in names])
            for group in response.groups:
                if request.include_authorized_operations and not group.error_code:
                    group.authorized_operations = ON_A_GROUP
            return response

        return self._requests.run(context, describe, failed)

    def _describe(self, name: str, topics: dict[bytes, str]) -> DescribedGroup:
        try:
            self._requests.check_coordinates(name)
            try:
                group = self._broker.groups.share_groups.describe(name)
            except GroupNotFound:
                if name not in self._broker.queue_groups():
                    raise
                # A group of the library's queues, which have no members in Kafka's sense.
                return DescribedGroup(
                    error_message=None,
                    group_id=name,
                    group_state=GroupState.EMPTY.value,
                    assignor_name=SIMPLE,
                )
        except EmbedlogError as error:
            return _undescribed(name, error)
        return DescribedGroup(
            error_message=None,
            group_id=name,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=SIMPLE,
            members=[_described(each, topics) for each in group.members],
        )


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """What only a broker checks. Raises ApiError, InvalidGroup."""
    check_group(request.group_id)
    for name in (request.member_id, request.rack_id or ""):
        if len(name) > _NAME_CHARS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"ids of members and racks have {_NAME_CHARS} characters at most"
            )


def _answer(member_id: str, result: HeartbeatResult, interval_ms: int) -> ShareGroupHeartbeatResponse:
    assigned = result.assigned
    return ShareGroupHeartbeatResponse(
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


def _failed(error: EmbedlogError) -> ShareGroupHeartbeatResponse:
    is_of_another_type = isinstance(error, GroupNotFound)
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_of_another_type else group_error_code_for(error, member=True)
    return ShareGroupHeartbeatResponse(error_code=code, error_message=message_for(error), member_id=None)


def _undescribed(name: str, error: EmbedlogError) -> DescribedGroup:
    return DescribedGroup(
        error_code=group_error_code_for(error),
        error_message=message_for(error),
        group_id=name,
        group_state="",
    )


def _described(member: ShareMember, topics: dict[bytes, str]) -> Member:
    said = member.subscription
    return Member(
        member_id=member.member_id,
        rack_id=said.rack_id,
        member_epoch=member.current.epoch,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=list(said.topics),
        assignment=describing.Assignment(
            topic_partitions=[
                describing.TopicPartitions(
                    topic_id=topic_id, topic_name=topics.get(topic_id, ""), partitions=numbers
                )
                for topic_id, numbers in by_topic(member.current.assigned).items()
            ]
        ),
    )
