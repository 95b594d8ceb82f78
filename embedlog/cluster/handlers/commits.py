"""OffsetCommit, OffsetFetch, OffsetDelete: what groups have read.

A commit is appended to `__consumer_offsets` before it is answered. From version 10 on topics are named by
their ids; what a group has committed is kept under their names, and forgotten with them. A negative offset is
kept as sent (kafkajs commits -1 and -2 to reset a group); clients treat it as none.

Version 0 of OffsetCommit and OffsetFetch keeps offsets in the cluster's ZooKeeper, at any broker. A broker
without ZooKeeper keeps them in `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from ...errors import (
    EmbedlogError,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    TopicNotFound,
    UnknownMember,
)
from ...model import NO_EPOCH, CommittedOffset, TopicPartition
from ...wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ...wire.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ...wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ...wire.error_codes import ErrorCode
from ...wire.schema import NO_UUID
from ..api_errors import error_code_for, group_error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..coordination import ConsumerOffsets
from ..group_requests import GroupRequests

_FIRST_WITH_TOPIC_IDS: Final = 10
_FIRST_WITH_SEVERAL_GROUPS: Final = 8
_FIRST_WITH_A_CODE_FOR_THE_GROUP: Final = 2
_FIRST_THAT_MISSES_GROUPS: Final = 9  # OffsetCommit: GROUP_ID_NOT_FOUND
_NOTHING: Final = CommittedOffset(-1)


class Found(NamedTuple):
    """What there is for one partition."""

    partition: int
    committed: CommittedOffset
    code: ErrorCode = ErrorCode.NONE


class FoundTopic(NamedTuple):
    """What there is for the partitions of one topic."""

    name: str
    topic_id: bytes
    partitions: list[Found]


class Asked(NamedTuple):
    """A topic as it is asked for; name is None where no topic has that id."""

    name: str | None
    topic_id: bytes
    partitions: list[int]


class CommitHandlers:
    """Implements the APIs of committed offsets."""

    def __init__(self, broker: BrokerContext, work: GroupRequests) -> None:
        self._broker = broker
        self._requests = work

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
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
            name = self._name(context, topic.name, topic.topic_id)
            checked.append([self._check(name, given) for given in topic.partitions])
            for given, code in zip(topic.partitions, checked[-1], strict=True):
                if name is not None and code is ErrorCode.NONE:
                    offsets[TopicPartition(name, given.partition_index)] = CommittedOffset(
                        given.committed_offset,
                        max(given.committed_leader_epoch, NO_EPOCH),
                        given.committed_metadata or "",
                    )

        def answer(code: ErrorCode) -> OffsetCommitResponse:
            return _commit_response(request, checked, code)

        def commit_in_zookeeper(kept: ConsumerOffsets) -> OffsetCommitResponse:
            kept.commit(request.group_id, {name: each.offset for name, each in offsets.items()})
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
        kept = self._in_zookeeper(context)
        return self._requests.do(
            context,
            commit if kept is None else lambda: commit_in_zookeeper(kept),
            lambda error: answer(self._commit_code(context, request, error)),
            group=request.group_id if kept is None else None,
            timeout_ms=self._broker.settings.offsets_commit_timeout_ms,
        )

    def _in_zookeeper(self, context: RequestContext) -> ConsumerOffsets | None:
        """The ZooKeeper offsets, if the request is about these; None for `__consumer_offsets`."""
        return None if context.version else self._broker.coordination.consumer_offsets

    def _check(self, topic: str | None, given: OffsetCommitRequestPartition) -> ErrorCode:
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        try:
            self._broker.partition(topic, given.partition_index)
        except EmbedlogError as error:
            return error_code_for(error)
        if len((given.committed_metadata or "").encode()) > self._broker.settings.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _commit_code(
        self, context: RequestContext, request: OffsetCommitRequest, error: EmbedlogError
    ) -> ErrorCode:
        """A member of a group that is not there (any more) is told so in a way that its version knows."""
        lost = isinstance(error, (UnknownMember, IllegalGeneration))
        if lost and request.generation_id_or_member_epoch >= 0:
            try:
                self._broker.groups.describe_group(request.group_id)
            except GroupNotFound:
                if context.version >= _FIRST_THAT_MISSES_GROUPS:
                    return ErrorCode.GROUP_ID_NOT_FOUND
                return ErrorCode.ILLEGAL_GENERATION
            except EmbedlogError:
                pass
        return group_error_code_for(error, member=True)

    # -- OffsetFetch -----------------------------------------------------------------------------------

    def offset_fetch(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Future[OffsetFetchResponse]:
        asked: list[tuple[str, list[Asked] | None]]
        if context.version >= _FIRST_WITH_SEVERAL_GROUPS:
            asked = [
                (
                    group.group_id,
                    None
                    if group.topics is None
                    else [
                        Asked(self._name(context, t.name, t.topic_id), t.topic_id, t.partition_indexes)
                        for t in group.topics
                    ],
                )
                for group in _once(request.groups)
            ]
        else:
            topics = request.topics
            of = None if topics is None else [Asked(t.name, NO_UUID, t.partition_indexes) for t in topics]
            asked = [(request.group_id, of)]
        return self._requests.do(
            context,
            lambda: self._fetched(context, asked),
            lambda error: _fetch_response(
                context, [(group, _none(topics, ErrorCode.NONE), error) for group, topics in asked]
            ),
        )

    def _fetched(
        self, context: RequestContext, asked: Iterable[tuple[str, list[Asked] | None]]
    ) -> OffsetFetchResponse:
        found: list[tuple[str, list[FoundTopic], EmbedlogError | None]] = []
        for group, topics in asked:
            try:
                if self._in_zookeeper(context) is None:
                    self._requests.check_coordinates(group)
                found.append((group, self._found(context, group, topics), None))
            except EmbedlogError as error:
                found.append((group, _none(topics, ErrorCode.NONE), error))
        return _fetch_response(context, found)

    def _found(self, context: RequestContext, group: str, topics: list[Asked] | None) -> list[FoundTopic]:
        if topics is None:
            return self._all(context, self._broker.groups.stored_offsets(group))
        names = [TopicPartition(t.name, number) for t in topics if t.name for number in t.partitions]
        kept = self._in_zookeeper(context)
        if kept is None:
            committed = self._broker.groups.stored_offsets(group, names)
        else:
            there = [name for name in dict.fromkeys(names) if self._missing(name) is ErrorCode.NONE]
            committed = {name: CommittedOffset(each) for name, each in kept.fetch(group, there).items()}
        missing = ErrorCode.NONE if context.version else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return [
            FoundTopic(
                topic.name or "",
                topic.topic_id,
                [_found(topic.name, number, committed, missing) for number in topic.partitions],
            )
            for topic in topics
        ]

    def _all(
        self, context: RequestContext, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> list[FoundTopic]:
        by_topic: dict[str, list[Found]] = {}
        for name in sorted(committed):
            by_topic.setdefault(name.topic, []).append(Found(name.partition, committed[name]))
        found = []
        for topic, partitions in by_topic.items():
            topic_id = NO_UUID
            if context.version >= _FIRST_WITH_TOPIC_IDS:
                try:
                    topic_id = self._broker.topic_id(topic)
                except TopicNotFound:
                    continue  # it has no id to be told by
            found.append(FoundTopic(topic, topic_id, partitions))
        return found

    # -- OffsetDelete ----------------------------------------------------------------------------------

    def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | Future[OffsetDeleteResponse]:
        def delete() -> OffsetDeleteResponse:
            response = OffsetDeleteResponse()
            committed = self._broker.groups.stored_offsets(request.group_id)
            self._broker.groups.describe_group(request.group_id)
            for topic in request.topics:
                names = [TopicPartition(topic.name, each.partition_index) for each in topic.partitions]
                code = self._delete(request.group_id, [name for name in names if name in committed])
                response.topics.append(
                    OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetDeleteResponsePartition(
                                partition_index=name.partition,
                                error_code=code if name in committed else self._missing(name),
                            )
                            for name in names
                        ],
                    )
                )
            return response

        return self._requests.do(
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

    def _missing(self, name: TopicPartition) -> ErrorCode:
        """Nothing is committed for it: that is what was asked for, if there is such a partition."""
        try:
            self._broker.partition(*name)
        except EmbedlogError as error:
            return error_code_for(error)
        return ErrorCode.NONE

    def _name(self, context: RequestContext, name: str, topic_id: bytes) -> str | None:
        return self._broker.topic_name(topic_id) if context.version >= _FIRST_WITH_TOPIC_IDS else name


def _commit_response(
    request: OffsetCommitRequest, checked: list[list[ErrorCode]], code: ErrorCode
) -> OffsetCommitResponse:
    """`code` for all partitions with which nothing else is wrong."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=given.partition_index, error_code=own or code
                    )
                    for given, own in zip(topic.partitions, codes, strict=True)
                ],
            )
            for topic, codes in zip(request.topics, checked, strict=True)
        ]
    )


def _found(
    topic: str | None, number: int, committed: Mapping[TopicPartition, CommittedOffset], missing: ErrorCode
) -> Found:
    if topic is None:
        return Found(number, _NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
    offset = committed.get(TopicPartition(topic, number))
    return Found(number, _NOTHING, missing) if offset is None else Found(number, offset)


def _once(groups: Sequence[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """Without the second mention of a group of which everything is asked for: that may be a lot."""
    of_all = {group.group_id: group for group in groups if group.topics is None}
    return [*of_all.values(), *(group for group in groups if group.topics is not None)]


def _none(topics: list[Asked] | None, code: ErrorCode) -> list[FoundTopic]:
    return [
        FoundTopic(topic.name or "", topic.topic_id, [Found(n, _NOTHING, code) for n in topic.partitions])
        for topic in topics or ()
    ]


def _fetch_response(
    context: RequestContext, found: list[tuple[str, list[FoundTopic], EmbedlogError | None]]
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
                            partitions=[
                                OffsetFetchResponsePartitions(
                                    partition_index=one.partition,
                                    committed_offset=one.committed.offset,
                                    committed_leader_epoch=one.committed.leader_epoch,
                                    metadata=one.committed.metadata,
                                    error_code=one.code,
                                )
                                for one in topic.partitions
                            ],
                        )
                        for topic in ([] if error is not None else topics)
                    ],
                )
                for group, topics, error in found
            ]
        )
    ((_, topics, error),) = found
    code = ErrorCode.NONE if error is None else group_error_code_for(error)
    of_each = code if context.version < _FIRST_WITH_A_CODE_FOR_THE_GROUP else ErrorCode.NONE
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=one.partition,
                        committed_offset=one.committed.offset,
                        committed_leader_epoch=one.committed.leader_epoch,
                        metadata=one.committed.metadata,
                        error_code=of_each or one.code,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
