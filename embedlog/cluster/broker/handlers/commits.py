"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups.

A commit is appended to `__consumer_offsets` before it is answered. From version 10 on topics are identified
by id; offsets are stored under topic names and deleted with the topic. A client that asks for stable offsets
gets UNSTABLE_OFFSET_COMMIT where an open transaction may change one. A negative offset is stored as sent
(kafkajs commits -1 and -2 to reset a group); clients treat it as none.

Version 0 of OffsetCommit and OffsetFetch stores offsets in the cluster's ZooKeeper, at any broker. A broker
without ZooKeeper stores them in `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeVar

from ....errors import (
    EmbedlogError,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    TopicNotFound,
    UnknownMember,
)
from ....model import NO_EPOCH, CommittedOffset, TopicPartition
from ....wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ....wire.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ....wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ....wire.error_codes import ErrorCode
from ....wire.schema import NO_UUID, id_text
from ...coordination import ConsumerOffsets
from ..api_errors import CodeFor, error_code_for, group_error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_requests import GroupRequests

_FIRST_WITH_TOPIC_IDS: Final = 10
_FIRST_WITH_SEVERAL_GROUPS: Final = 8
_FIRST_WITH_GROUP_ERROR_CODE: Final = 2
_FIRST_WITH_GROUP_NOT_FOUND: Final = 9  # OffsetCommit: GROUP_ID_NOT_FOUND
_NOTHING: Final = CommittedOffset(-1)
_Encoded = TypeVar("_Encoded")


class PartitionOffset(NamedTuple):
    """A partition's committed offset, or an error."""

    partition: int
    committed: CommittedOffset
    code: ErrorCode = ErrorCode.NONE


class TopicOffsets(NamedTuple):
    """The committed offsets of a topic's partitions."""

    name: str
    topic_id: bytes
    partitions: list[PartitionOffset]


class RequestedTopic(NamedTuple):
    """A topic of a request; name is None if no topic has the id."""

    name: str | None
    topic_id: bytes
    partitions: list[int]


class CommitHandlers:
    """Handles the APIs of committed offsets."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests, code_for: CodeFor) -> None:
        """code_for: the code of a commit that fails."""
        self._broker = broker
        self._requests = requests
        self._code_for = code_for

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "OffsetCommit": self.offset_commit,
            "OffsetFetch": self.offset_fetch,
            "OffsetDelete": self.offset_delete,
        }

    # -- OffsetCommit ----------------------------------------------------------------------------------

    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Future[OffsetCommitResponse]:
        offsets: dict[TopicPartition, CommittedOffset] = {}
        checked: list[list[ErrorCode]] = []
        for topic in request.topics:
            name = self._topic_name(context, topic.name, topic.topic_id)
            checked.append([self._check(name, partition) for partition in topic.partitions])
            for partition, code in zip(topic.partitions, checked[-1], strict=True):
                if name is not None and code is ErrorCode.NONE:
                    offsets[TopicPartition(name, partition.partition_index)] = CommittedOffset(
                        partition.committed_offset,
                        max(partition.committed_leader_epoch, NO_EPOCH),
                        partition.committed_metadata or "",
                        topic_id=id_text(topic.topic_id),
                    )

        def answer(code: int) -> OffsetCommitResponse:
            return _commit_response(request, checked, code)

        def commit_in_zookeeper(store: ConsumerOffsets) -> OffsetCommitResponse:
            store.commit(request.group_id, {name: committed.offset for name, committed in offsets.items()})
            return answer(ErrorCode.NONE)

        def commit() -> OffsetCommitResponse:
            self._broker.groups.commit_offsets(
                request.group_id,
                offsets,
                member_id=request.member_id,
                generation=request.generation_id_or_member_epoch,
                group_instance_id=request.group_instance_id,
                max_groups=self._broker.settings.max_groups,
                negative=True,
            )
            return answer(ErrorCode.NONE)

        if not offsets:
            return answer(ErrorCode.NONE)
        consumer_offsets = self._zookeeper_store(context)
        return self._requests.run(
            context,
            commit if consumer_offsets is None else lambda: commit_in_zookeeper(consumer_offsets),
            lambda error: answer(self._commit_code(context, request, error)),
            group=request.group_id if consumer_offsets is None else None,
            timeout_ms=self._broker.settings.offsets_commit_timeout_ms,
        )

    def _zookeeper_store(self, context: RequestContext) -> ConsumerOffsets | None:
        """The store of a request of version 0, if it is ZooKeeper; None for `__consumer_offsets`."""
        return None if context.version else self._broker.coordination.consumer_offsets

    def _check(self, topic: str | None, partition: OffsetCommitRequestPartition) -> ErrorCode:
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        try:
            self._broker.store.partition(topic, partition.partition_index)
        except EmbedlogError as error:
            return error_code_for(error)
        if (
            len((partition.committed_metadata or "").encode())
            > self._broker.settings.offset_metadata_max_bytes
        ):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _commit_code(
        self, context: RequestContext, request: OffsetCommitRequest, error: EmbedlogError
    ) -> int:
        """The code for a failed commit. For a member of a missing group it depends on the version."""
        lost = isinstance(error, (UnknownMember, IllegalGeneration))
        if lost and request.generation_id_or_member_epoch >= 0:
            try:
                self._broker.groups.describe_group(request.group_id)
            except GroupNotFound:
                if context.version >= _FIRST_WITH_GROUP_NOT_FOUND:
                    return ErrorCode.GROUP_ID_NOT_FOUND
                return ErrorCode.ILLEGAL_GENERATION
            except EmbedlogError:
                pass
        return self._code_for(error)

    # -- OffsetFetch -----------------------------------------------------------------------------------

    def offset_fetch(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Future[OffsetFetchResponse]:
        requested: list[tuple[str, list[RequestedTopic] | None]]
        if context.version >= _FIRST_WITH_SEVERAL_GROUPS:
            requested = [
                (
                    group.group_id,
                    None
                    if group.topics is None
                    else [
                        RequestedTopic(
                            self._topic_name(context, topic.name, topic.topic_id),
                            topic.topic_id,
                            topic.partition_indexes,
                        )
                        for topic in group.topics
                    ],
                )
                for group in _distinct(request.groups)
            ]
        else:
            topics = request.topics
            requested_topics = (
                None
                if topics is None
                else [RequestedTopic(topic.name, NO_UUID, topic.partition_indexes) for topic in topics]
            )
            requested = [(request.group_id, requested_topics)]
        members = {
            group.group_id: (group.member_id, group.member_epoch)
            for group in request.groups
            if group.member_id is not None and group.member_epoch >= 0
        }
        return self._requests.run(
            context,
            lambda: self._fetch_all(context, requested, members, request.require_stable),
            lambda error: _fetch_response(
                context, [(group, _empty(topics, ErrorCode.NONE), error) for group, topics in requested]
            ),
        )

    def _fetch_all(
        self,
        context: RequestContext,
        requested: Iterable[tuple[str, list[RequestedTopic] | None]],
        members: Mapping[str, tuple[str, int]],
        require_stable: bool,
    ) -> OffsetFetchResponse:
        results: list[tuple[str, list[TopicOffsets], EmbedlogError | None]] = []
        for group, topics in requested:
            try:
                if self._zookeeper_store(context) is None:
                    self._requests.check_coordinates(group)
                if group in members:
                    self._broker.groups.check_member_epoch(group, *members[group])
                pending = self._broker.groups.pending_offsets(group) if require_stable else frozenset()
                fetched = self._fetch_group(context, group, topics)
                results.append((group, _only_stable(fetched, pending), None))
            except EmbedlogError as error:
                results.append((group, _empty(topics, ErrorCode.NONE), error))
        return _fetch_response(context, results)

    def _fetch_group(
        self, context: RequestContext, group: str, topics: list[RequestedTopic] | None
    ) -> list[TopicOffsets]:
        if topics is None:
            return self._all(context, self._broker.groups.stored_offsets(group))
        names = [
            TopicPartition(topic.name, number)
            for topic in topics
            if topic.name
            for number in topic.partitions
        ]
        consumer_offsets = self._zookeeper_store(context)
        if consumer_offsets is None:
            committed = self._broker.groups.stored_offsets(group, names)
        else:
            existing = [
                name for name in dict.fromkeys(names) if self._broker.missing_code(name) is ErrorCode.NONE
            ]
            committed = {
                name: CommittedOffset(offset)
                for name, offset in consumer_offsets.fetch(group, existing).items()
            }
        missing = ErrorCode.NONE if context.version else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return [
            TopicOffsets(
                topic.name or "",
                topic.topic_id,
                [_find(topic.name, number, committed, missing) for number in topic.partitions],
            )
            for topic in topics
        ]

    def _all(
        self, context: RequestContext, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> list[TopicOffsets]:
        by_topic: dict[str, list[PartitionOffset]] = {}
        for name in sorted(committed):
            by_topic.setdefault(name.topic, []).append(PartitionOffset(name.partition, committed[name]))
        topics = []
        for topic, partitions in by_topic.items():
            topic_id = NO_UUID
            if context.version >= _FIRST_WITH_TOPIC_IDS:
                try:
                    topic_id = self._broker.topic_id(topic)
                except TopicNotFound:
                    continue  # no id to report it by
            topics.append(TopicOffsets(topic, topic_id, partitions))
        return topics

    # -- OffsetDelete ----------------------------------------------------------------------------------

    def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | Future[OffsetDeleteResponse]:
        def delete() -> OffsetDeleteResponse:
            response = OffsetDeleteResponse()
            committed = self._broker.groups.stored_offsets(request.group_id)
            self._broker.groups.describe_group(request.group_id)
            for topic in request.topics:
                names = [
                    TopicPartition(topic.name, partition.partition_index) for partition in topic.partitions
                ]
                code = self._delete(request.group_id, [name for name in names if name in committed])
                response.topics.append(
                    OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetDeleteResponsePartition(
                                partition_index=name.partition,
                                error_code=code if name in committed else self._broker.missing_code(name),
                            )
                            for name in names
                        ],
                    )
                )
            return response

        return self._requests.run(
            context,
            delete,
            lambda error: OffsetDeleteResponse(error_code=group_error_code_for(error)),
            group=request.group_id,
        )

    def _delete(self, group: str, names: list[TopicPartition]) -> ErrorCode:
        try:
            self._broker.groups.delete_offsets(group, names)
        except GroupNotEmpty:
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        except EmbedlogError as error:
            return group_error_code_for(error)
        return ErrorCode.NONE

    def _topic_name(self, context: RequestContext, name: str, topic_id: bytes) -> str | None:
        return self._broker.topic_name(topic_id) if context.version >= _FIRST_WITH_TOPIC_IDS else name


def _commit_response(
    request: OffsetCommitRequest, checked: list[list[ErrorCode]], code: int
) -> OffsetCommitResponse:
    """`code` is for all partitions without an error of their own."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=own_code or code
                    )
                    for partition, own_code in zip(topic.partitions, codes, strict=True)
                ],
            )
            for topic, codes in zip(request.topics, checked, strict=True)
        ]
    )


def _find(
    topic: str | None, number: int, committed: Mapping[TopicPartition, CommittedOffset], missing: ErrorCode
) -> PartitionOffset:
    if topic is None:
        return PartitionOffset(number, _NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
    offset = committed.get(TopicPartition(topic, number))
    return PartitionOffset(number, _NOTHING, missing) if offset is None else PartitionOffset(number, offset)


def _only_stable(topics: list[TopicOffsets], pending: Collection[TopicPartition]) -> list[TopicOffsets]:
    """Put an error in the place of each offset that an open transaction may change."""
    if not pending:
        return topics
    return [
        topic._replace(
            partitions=[
                PartitionOffset(partition.partition, _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if TopicPartition(topic.name, partition.partition) in pending
                else partition
                for partition in topic.partitions
            ]
        )
        for topic in topics
    ]


def _distinct(groups: Sequence[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """Drop duplicates of a group whose offsets are all requested: the response might be large."""
    of_all = {group.group_id: group for group in groups if group.topics is None}
    return [*of_all.values(), *(group for group in groups if group.topics is not None)]


def _empty(topics: list[RequestedTopic] | None, code: ErrorCode) -> list[TopicOffsets]:
    return [
        TopicOffsets(
            topic.name or "",
            topic.topic_id,
            [PartitionOffset(number, _NOTHING, code) for number in topic.partitions],
        )
        for topic in topics or ()
    ]


def _encode_partitions(
    encode: Callable[..., _Encoded], topic: TopicOffsets, code: ErrorCode = ErrorCode.NONE
) -> list[_Encoded]:
    """`code` is for all partitions, if it is an error."""
    return [
        encode(
            partition_index=partition.partition,
            committed_offset=partition.committed.offset,
            committed_leader_epoch=partition.committed.leader_epoch,
            metadata=partition.committed.metadata,
            error_code=code or partition.code,
        )
        for partition in topic.partitions
    ]


def _fetch_response(
    context: RequestContext, results: list[tuple[str, list[TopicOffsets], EmbedlogError | None]]
) -> OffsetFetchResponse:
    if context.version >= _FIRST_WITH_SEVERAL_GROUPS:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=group,
                    error_code=ErrorCode.NONE if error is None else group_error_code_for(error),
                    topics=[
                        OffsetFetchResponseTopics(
                            name=topic.name,
                            topic_id=topic.topic_id,
                            partitions=_encode_partitions(OffsetFetchResponsePartitions, topic),
                        )
                        for topic in ([] if error is not None else topics)
                    ],
                )
                for group, topics, error in results
            ]
        )
    ((_, topics, error),) = results
    code = ErrorCode.NONE if error is None else group_error_code_for(error)
    partition_code = code if context.version < _FIRST_WITH_GROUP_ERROR_CODE else ErrorCode.NONE
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=_encode_partitions(OffsetFetchResponsePartition, topic, partition_code),
            )
            for topic in topics
        ],
    )
