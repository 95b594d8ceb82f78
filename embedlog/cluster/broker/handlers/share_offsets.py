"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: where share groups are.

A share group has a start offset in each partition: it has finished all records before it. To change or delete
it needs a group without members (as in Kafka), of whose records none is locked: the library's queues use a
group without being its members. Altering the offsets of a group that there is not begins it.

Source: KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

from ....errors import EmbedlogError, GroupNotEmpty, GroupNotFound, TooManyGroups, TopicNotFound
from ....groups.machines.events import GroupState, GroupType
from ....groups.share_coordinator import ShareGroupCoordinator
from ....validation import check_group
from ....wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ....wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ....wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ....wire.error_codes import ErrorCode
from ....wire.schema import NO_UUID
from ..api_errors import ApiError, error_code_for, group_error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_R = TypeVar("_R")
_UNKNOWN: Final = -1


class ShareOffsetHandlers:
    """Handles the APIs of share groups' offsets."""

    def __init__(
        self, broker: BrokerContext, requests: GroupRequests, shares: Callable[[], ShareGroupCoordinator]
    ) -> None:
        self._broker = broker
        self._requests = requests
        self._shares = shares

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "DescribeShareGroupOffsets": self.describe,
            "AlterShareGroupOffsets": self.alter,
            "DeleteShareGroupOffsets": self.delete,
        }

    # -- describing ------------------------------------------------------------------------------------

    def describe(
        self, context: RequestContext, request: DescribeShareGroupOffsetsRequest
    ) -> DescribeShareGroupOffsetsResponse | Future[DescribeShareGroupOffsetsResponse]:
        groups = {group.group_id: group for group in request.groups}  # duplicates are described once
        return self._requests.run_each(
            context,
            groups,
            lambda name: self._describe(groups[name]),
            _undescribed,
            lambda entries: DescribeShareGroupOffsetsResponse(groups=entries),
        )

    def _describe(
        self, requested: DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group = requested.group_id
        check_group(group)
        self._state(group)
        if requested.topics is None:
            group_topics = self._shares().list_share_groups()
            names = {topic: None for name, topic in group_topics if name == group}
            topics = [self._describe_topic(group, topic, None) for topic in names]
        else:
            numbers: dict[str, dict[int, None]] = {}
            for requested_topic in requested.topics:
                numbers.setdefault(requested_topic.topic_name, {}).update(
                    dict.fromkeys(requested_topic.partitions)
                )
            topics = [
                self._describe_topic(group, topic, list(partitions)) for topic, partitions in numbers.items()
            ]
        return DescribeShareGroupOffsetsResponseGroup(group_id=group, topics=topics, error_message=None)

    def _describe_topic(
        self, group: str, topic: str, numbers: list[int] | None
    ) -> DescribeShareGroupOffsetsResponseTopic:
        described = DescribeShareGroupOffsetsResponseTopic(topic_name=topic, topic_id=NO_UUID)
        partition = DescribeShareGroupOffsetsResponsePartition
        try:
            described.topic_id = self._broker.topic_id(topic)
            try:
                offsets = self._shares().clients.offsets(group, topic)
            except GroupNotFound:  # it has not begun there
                offsets = {}
        except EmbedlogError as error:
            described.partitions = [
                partition(
                    partition_index=number,
                    start_offset=_UNKNOWN,
                    error_code=error_code_for(error),
                    error_message=message_for(error),
                )
                for number in numbers or ()
            ]
            return described
        for number in offsets if numbers is None else numbers:
            start_offset, leader_epoch, lag = _UNKNOWN, 0, _UNKNOWN
            if (share_offsets := offsets.get(number)) is not None:
                start_offset, leader_epoch, lag = share_offsets
            described.partitions.append(
                partition(
                    partition_index=number,
                    start_offset=start_offset,
                    leader_epoch=leader_epoch,
                    lag=lag,
                    error_message=None,
                )
            )
        return described

    # -- altering --------------------------------------------------------------------------------------

    def alter(
        self, context: RequestContext, request: AlterShareGroupOffsetsRequest
    ) -> AlterShareGroupOffsetsResponse | Future[AlterShareGroupOffsetsResponse]:
        def alter() -> AlterShareGroupOffsetsResponse:
            check_group(request.group_id)
            try:
                self._check_unused(request.group_id)
            except GroupNotFound:
                self._check_may_begin(request.group_id)
            if len({topic.topic_name for topic in request.topics}) < len(request.topics):
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names a topic more than once")
            return AlterShareGroupOffsetsResponse(
                error_message=None,
                responses=[self._alter(request.group_id, topic) for topic in request.topics],
            )

        failed = partial(_failed, AlterShareGroupOffsetsResponse)
        return self._requests.run(context, alter, failed, group=request.group_id)

    def _alter(
        self, group: str, topic: AlterShareGroupOffsetsRequestTopic
    ) -> AlterShareGroupOffsetsResponseTopic:
        """Alter the offsets of all partitions of a topic, or of none."""
        altered = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=NO_UUID)
        starts = {partition.partition_index: partition.start_offset for partition in topic.partitions}
        code, message = int(ErrorCode.NONE), None
        try:
            altered.topic_id = self._broker.topic_id(topic.topic_name)
            if len(starts) < len(topic.partitions) or any(start < 0 for start in starts.values()):
                raise ApiError(ErrorCode.INVALID_REQUEST, "each partition is named once, with an offset")
            settings = self._broker.group_configs.shares_of(group)
            self._shares().clients.alter_offsets(group, topic.topic_name, starts, settings)
        except EmbedlogError as error:
            code, message = error_code_for(error), message_for(error)
        altered.partitions = [
            AlterShareGroupOffsetsResponsePartition(
                partition_index=number, error_code=code, error_message=message
            )
            for number in starts
        ]
        return altered

    # -- deleting --------------------------------------------------------------------------------------

    def delete(
        self, context: RequestContext, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse | Future[DeleteShareGroupOffsetsResponse]:
        def delete() -> DeleteShareGroupOffsetsResponse:
            check_group(request.group_id)
            self._check_unused(request.group_id)
            names = dict.fromkeys(topic.topic_name for topic in request.topics)
            return DeleteShareGroupOffsetsResponse(
                error_message=None, responses=[self._delete(request.group_id, name) for name in names]
            )

        failed = partial(_failed, DeleteShareGroupOffsetsResponse)
        return self._requests.run(context, delete, failed, group=request.group_id)

    def _delete(self, group: str, topic: str) -> DeleteShareGroupOffsetsResponseTopic:
        deleted = DeleteShareGroupOffsetsResponseTopic(topic_name=topic, topic_id=NO_UUID, error_message=None)
        try:
            deleted.topic_id = self._broker.topic_id(topic)
            try:
                self._shares().clients.check_idle(group, topic)
                self._shares().delete_share_group(group, topic)
            except GroupNotFound:
                raise TopicNotFound(f"group {group!r} has no offsets of {topic!r} to delete") from None
        except EmbedlogError as error:
            deleted.error_code, deleted.error_message = error_code_for(error), message_for(error)
        return deleted

    # -- which groups ----------------------------------------------------------------------------------

    def _state(self, group: str) -> GroupState:
        """The state of a share group; Empty for one that only queues use. Raises ApiError, GroupNotFound."""
        self._requests.check_coordinates(group)
        try:
            return self._broker.groups.modern_group_state(GroupType.SHARE, group)
        except GroupNotFound:
            if group in self._broker.queue_groups():
                return GroupState.EMPTY
            raise

    def _check_may_begin(self, group: str) -> None:
        """Raises GroupNotFound if the group is of another type, TooManyGroups."""
        try:
            type = self._broker.groups.describe_group(group).type
        except GroupNotFound:
            max_groups = self._broker.settings.max_groups
            if len(self._broker.queue_groups()) >= max_groups:
                raise TooManyGroups(f"there are {max_groups:,} share groups: delete some") from None
        else:
            raise GroupNotFound(f"group {group!r} is a {type.value} group")

    def _check_unused(self, group: str) -> None:
        """Raises GroupNotEmpty, ApiError, GroupNotFound."""
        if self._state(group) is not GroupState.EMPTY:
            raise GroupNotEmpty(f"group {group!r} has members: they leave before its offsets are changed")


def _undescribed(group: str, error: EmbedlogError) -> DescribeShareGroupOffsetsResponseGroup:
    return _failed(partial(DescribeShareGroupOffsetsResponseGroup, group_id=group), error)


def _failed(response_type: Callable[..., _R], error: EmbedlogError) -> _R:
    return response_type(error_code=group_error_code_for(error), error_message=message_for(error))
