"""Incremental fetch sessions: a client says once which partitions it reads, and from then on what changes.

    session id 0, epoch -1    no session: everything is in the request, everything in the answer
    session id 0, epoch 0     a new session; the answer names it
    session id n, epoch 0     the same, and the old session n is over
    session id n, epoch e     the changes since e-1; the answer has only partitions with news
    session id n, epoch -1    session n is over; else as without one

The cache has a number of slots. When it is full the session that was used longest ago makes room; its client
is told FETCH_SESSION_ID_NOT_FOUND and begins anew. A broker without slots is one without sessions.

Source: KIP-227.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ..wire.apis.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ..wire.error_codes import ErrorCode
from ..wire.schema import NO_UUID
from .api_errors import ApiError

_FIRST_WITH_SESSIONS: Final = 7
_FIRST_WITH_TOPIC_IDS: Final = 13
_FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1

TopicNamed: TypeAlias = Callable[[bytes], "str | None"]


class RequestedPartition(NamedTuple):
    """A partition that a client reads, and from where. topic is None where no topic has that id."""

    topic: str | None
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int


_Key: TypeAlias = "tuple[str | bytes, int]"


@dataclass(slots=True)
class Session:
    """What a client reads, in the order in which it is served, and what it was told last."""

    number: int
    epoch: int = 1
    wanted: dict[_Key, RequestedPartition] = field(default_factory=dict)
    told: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    full: bool = True  # the next answer has all partitions


class FetchSessions:
    """The sessions of a broker. Safe between threads."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, version: int, topic_name: TopicNamed
    ) -> tuple[Session | None, list[RequestedPartition]]:
        """The session of a request, if it has one, and what is to be fetched. Raises Refusal."""
        given = _wanted(request, version, topic_name)
        if version < _FIRST_WITH_SESSIONS:
            return None, list(given.values())
        with self._lock:
            if request.session_epoch <= 0:
                self._sessions.pop(request.session_id, None)
                if request.session_epoch == _FINAL_EPOCH or not self._slots or not given:
                    return None, list(given.values())
                return self._new(given), list(given.values())
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
                    session.wanted.pop((name, number), None)
                    session.told.pop((name, number), None)
            session.wanted.update(given)
            # Topics may have come or gone since the session began.
            names: dict[bytes, str | None] = {NO_UUID: None}
            for key, wanted in session.wanted.items():
                topic_id = wanted.topic_id
                if topic_id not in names:
                    names[topic_id] = topic_name(topic_id)
                if topic_id != NO_UUID and names[topic_id] != wanted.topic:
                    session.wanted[key] = wanted._replace(topic=names[topic_id])
            return session, list(session.wanted.values())

    def end(self, session: Session | None, response: FetchResponse) -> FetchResponse:
        """The answer as this session's client is to get it."""
        if session is None:
            return response
        response.session_id = session.number
        with self._lock:
            responses = []
            for topic in response.responses:
                name: str | bytes = topic.topic if topic.topic_id == NO_UUID else topic.topic_id
                news = [data for data in topic.partitions if self._is_news(session, name, data)]
                if news:
                    responses.append(
                        FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=news)
                    )
            response.responses = responses
        return response

    def _is_news(self, session: Session, topic: str | bytes, data: PartitionData) -> bool:
        """Also moves a partition with records behind the others: all get their turn."""
        key = (topic, data.partition_index)
        edges = data.high_watermark, data.log_start_offset
        has_records = bool(data.records is not None and len(data.records))
        known = session.told.get(key)
        session.told[key] = edges
        if has_records and key in session.wanted:
            session.wanted[key] = session.wanted.pop(key)
        if data.error_code or data.diverging_epoch is not None:
            session.told.pop(key)  # it is to be told again
            return True
        return session.full or has_records or known != edges

    def _new(self, wanted: dict[_Key, RequestedPartition]) -> Session:
        while len(self._sessions) >= self._slots:
            self._sessions.popitem(last=False)
        number = 0
        while not number or number in self._sessions:
            number = random.randint(1, _LAST_EPOCH)
        session = self._sessions[number] = Session(number, wanted=dict(wanted))
        return session


def _wanted(request: FetchRequest, version: int, topic_name: TopicNamed) -> dict[_Key, RequestedPartition]:
    wanted: dict[_Key, RequestedPartition] = {}
    for topic in request.topics:
        by_id = version >= _FIRST_WITH_TOPIC_IDS
        name = topic_name(topic.topic_id) if by_id else topic.topic
        for part in topic.partitions:
            wanted[topic.topic_id if by_id else topic.topic, part.partition] = RequestedPartition(
                name,
                topic.topic_id,
                part.partition,
                part.current_leader_epoch,
                part.fetch_offset,
                part.last_fetched_epoch,
                part.partition_max_bytes,
            )
    return wanted
