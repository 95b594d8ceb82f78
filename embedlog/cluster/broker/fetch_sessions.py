"""Incremental fetch sessions: a client sends the partitions that it reads once, and only changes afterwards.

    session id 0, epoch -1    no session: request and response list all partitions
    session id 0, epoch 0     creates a session; the response has its id
    session id n, epoch 0     the same, and closes session n
    session id n, epoch e     the changes since e-1; the response has only partitions that changed
    session id n, epoch -1    closes session n; otherwise as without a session

The cache has a fixed number of slots. When it is full, the least recently used session is evicted; its client
gets FETCH_SESSION_ID_NOT_FOUND and creates a new one. Without slots there are no sessions.

Source: KIP-227.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ...runtime.locks import Lock
from ...security.acls import CLUSTER_NAME, Operation, ResourceType
from ...wire.apis.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ...wire.error_codes import ErrorCode
from ...wire.schema import NO_UUID
from .access.access import AccessControl
from .api_errors import ApiError
from .broker_context import RequestContext

_FIRST_WITH_SESSIONS: Final = 7
_FIRST_WITH_TOPIC_IDS: Final = 13
_FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1

TopicNamed: TypeAlias = Callable[[bytes], "str | None"]


class RequestedPartition(NamedTuple):
    """A partition of a fetch request. topic is None if no topic has the id, or none that the client may know
    of."""

    topic: str | None
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    may_read: bool = True


_Key: TypeAlias = "tuple[str | bytes, int]"


@dataclass(slots=True)
class Session:
    """A client's partitions in the order in which they are served, and the edges that it was sent last."""

    number: int
    epoch: int = 1
    requested: dict[_Key, RequestedPartition] = field(default_factory=dict)
    sent: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    full: bool = True  # the next response has all partitions


class FetchSessions:
    """A broker's sessions. Thread-safe."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._lock = Lock()
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, version: int, topic_name: TopicNamed
    ) -> tuple[Session | None, list[RequestedPartition]]:
        """The session of a request, if any, and the partitions to read. Raises ApiError."""
        partitions = _requested_partitions(request, version, topic_name)
        if version < _FIRST_WITH_SESSIONS:
            return None, list(partitions.values())
        with self._lock:
            if request.session_epoch <= 0:
                self._sessions.pop(request.session_id, None)
                if request.session_epoch == _FINAL_EPOCH or not self._slots or not partitions:
                    return None, list(partitions.values())
                return self._new(partitions), list(partitions.values())
            session = self._sessions.get(request.session_id)
            if session is None:
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session")
            if session.epoch != request.session_epoch:
                raise ApiError(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    f"fetch session epoch {request.session_epoch}, expected {session.epoch}",
                )
            self._sessions.move_to_end(session.number)
            session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
            session.full = False
            for topic in request.forgotten_topics_data:
                name = topic.topic if version < _FIRST_WITH_TOPIC_IDS else topic.topic_id
                for number in topic.partitions:
                    session.requested.pop((name, number), None)
                    session.sent.pop((name, number), None)
            session.requested.update(partitions)
            # Topics may have been created or deleted since the session began.
            names: dict[bytes, str | None] = {NO_UUID: None}
            for key, requested in session.requested.items():
                topic_id = requested.topic_id
                if topic_id not in names:
                    names[topic_id] = topic_name(topic_id)
                if topic_id != NO_UUID and names[topic_id] != requested.topic:
                    session.requested[key] = requested._replace(topic=names[topic_id])
            return session, list(session.requested.values())

    def end(self, session: Session, response: FetchResponse) -> FetchResponse:
        """The response, reduced to the partitions that changed since the session's last one."""
        response.session_id = session.number
        with self._lock:
            responses = []
            for topic in response.responses:
                name: str | bytes = topic.topic if topic.topic_id == NO_UUID else topic.topic_id
                changed = [data for data in topic.partitions if self._has_changed(session, name, data)]
                if changed:
                    responses.append(
                        FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=changed)
                    )
            response.responses = responses
        return response

    def empty(self, session: Session | None) -> FetchResponse:
        """A response without partitions, to a client that has to wait (KIP-219). It creates no session."""
        if session is None:
            return FetchResponse()
        if session.full:
            with self._lock:
                self._sessions.pop(session.number, None)
            return FetchResponse()
        return FetchResponse(session_id=session.number)

    def _has_changed(self, session: Session, topic: str | bytes, data: PartitionData) -> bool:
        """Whether the partition is sent. One with records moves to the end, so that all get their turn."""
        key = (topic, data.partition_index)
        edges = data.high_watermark, data.log_start_offset
        has_records = bool(data.records is not None and len(data.records))
        edges_sent = session.sent.get(key)
        session.sent[key] = edges
        if has_records and key in session.requested:
            session.requested[key] = session.requested.pop(key)
        if data.error_code or data.diverging_epoch is not None:
            session.sent.pop(key)  # send it again next time
            return True
        return session.full or has_records or edges_sent != edges

    def _new(self, requested: dict[_Key, RequestedPartition]) -> Session:
        while len(self._sessions) >= self._slots:
            self._sessions.popitem(last=False)
        number = 0
        while not number or number in self._sessions:
            number = random.randint(1, _LAST_EPOCH)
        session = self._sessions[number] = Session(number, requested=dict(requested))
        return session


def authorized(
    access: AccessControl, context: RequestContext, request: FetchRequest, requested: list[RequestedPartition]
) -> list[RequestedPartition]:
    """All partitions of a session or request, with what the client may read of them.

    Most connections fetch one partition again and again: as long as no ACL changes, they get the answer of
    last time, since asking is a twentieth of a small fetch.
    """
    connection = context.connection
    question = None
    if len(requested) == 1 and request.replica_id < 0 and request.replica_state is None:
        question = requested[0].topic, context.principal, access.authorizer.changes
        if connection.may_read == question:
            return requested
    requested = _authorized(access, context, request, requested)
    if question is not None and requested[0].may_read:
        connection.may_read = question
    return requested


def _authorized(
    control: AccessControl,
    context: RequestContext,
    request: FetchRequest,
    requested: list[RequestedPartition],
) -> list[RequestedPartition]:
    replica = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    access = control.of(context.principal, context.connection.host, "Fetch")
    codes: dict[str | None, ErrorCode] = {}
    if replica >= 0 and not access.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        codes = dict.fromkeys(
            (partition.topic for partition in requested), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    partitions = []
    for partition in requested:
        code = codes.get(partition.topic)
        if code is None:
            by_id = context.version >= _FIRST_WITH_TOPIC_IDS
            code = codes[partition.topic] = access.topic_code(Operation.READ, partition.topic, by_id=by_id)
        if code is ErrorCode.UNKNOWN_TOPIC_ID:
            partition = partition._replace(topic=None, may_read=False)
        elif code is not ErrorCode.NONE:
            partition = partition._replace(may_read=False)
        partitions.append(partition)
    return partitions


def _requested_partitions(
    request: FetchRequest, version: int, topic_name: TopicNamed
) -> dict[_Key, RequestedPartition]:
    requested: dict[_Key, RequestedPartition] = {}
    for topic in request.topics:
        by_id = version >= _FIRST_WITH_TOPIC_IDS
        name = topic_name(topic.topic_id) if by_id else topic.topic
        for partition in topic.partitions:
            requested[topic.topic_id if by_id else topic.topic, partition.partition] = RequestedPartition(
                name,
                topic.topic_id,
                partition.partition,
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.partition_max_bytes,
            )
    return requested
