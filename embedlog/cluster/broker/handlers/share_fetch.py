"""ShareFetch, ShareAcknowledge: the records of share groups (KIP-932).

    ShareFetch --> session, and acknowledgements of earlier records (share_sessions.py)
               --> each partition of the session in turn: acquire, until there are max_records
               --> nothing? watch, until records come or max_wait_ms is over; no thread waits

Everything is done in other threads than the processors', as it is stored. A fetch that waits is a future and
a timer. Records that were acquired for a response that nobody gets any more are released, uncounted; so are
all of a member when its session ends: by its last request, by a new one, or with its connection.

Batches are read into memory, up to 1 MiB of a partition, and sent whole: the client takes the records that
the response calls acquired.

Source: Kafka's SharePartitionManager and ShareSessionContext (KIP-932, KIP-1206, KIP-1222).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Final, TypeAlias

from ....errors import EmbedlogError, GroupNotFound
from ....groups.machines.events import GroupType
from ....groups.share_clients import Acquired
from ....groups.share_coordinator import ShareGroupCoordinator
from ....groups.share_group import ShareSettings
from ....runtime.locks import Lock
from ....validation import check_group
from ....wire.apis import share_acknowledge as acknowledging
from ....wire.apis.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from ....wire.apis.share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ....wire.error_codes import ErrorCode
from ...network.connection import Connection
from ...network.event_loop import Cancellable
from ..api_errors import ApiError, error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..share_sessions import (
    FIRST,
    LAST,
    Acknowledged,
    ShareAcquisitions,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
    acknowledgements,
)

_FIRST_WITH_RENEWALS: Final = 2
_FIRST_WITH_MODES: Final = 2
_WHOLE_BATCHES, _NO_MORE_RECORDS = 0, 1  # share acquire modes
_UNKNOWN_PARTITIONS: Final = 1_000  # that a session may name
_NAME_CHARS: Final = 255

_Acquisitions: TypeAlias = dict[TopicIdPartition, Acquired | EmbedlogError]


class _Waiting:
    """A fetch that has no response yet."""

    def __init__(
        self,
        connection: Connection,
        session: ShareSession,
        request: ShareFetchRequest,
        settings: ShareSettings,
        acknowledged: Acknowledged,
        *,
        whole_batches: bool,
        is_first: bool,
    ) -> None:
        self.connection = connection
        self.session = session
        self.request = request
        self.settings = settings
        self.acknowledged = acknowledged
        self.whole_batches = whole_batches
        self.is_first = is_first
        self.lock = Lock()  # one attempt at a time
        self.is_done = False  # guarded by lock
        self.response: Future[ShareFetchResponse] = Future()
        self.watches: list[Callable[[], None]] = []  # each ends one; guarded by lock
        self.timer: Cancellable | None = None  # of the loop's thread


class ShareFetchHandlers:
    """Handles the APIs of share groups' records."""

    def __init__(self, broker: BrokerContext, shares: Callable[[], ShareGroupCoordinator]) -> None:
        self._broker = broker
        self._shares = shares
        self._acquisitions = ShareAcquisitions(broker, shares)
        self._sessions = ShareSessions(broker.settings.group_share_max_share_sessions)
        self._lock = Lock()
        self._waiting: set[_Waiting] = set()  # guarded by _lock
        self._stopped = False

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"ShareFetch": self.fetch, "ShareAcknowledge": self.acknowledge}

    def stop(self) -> None:
        """Answer the fetches that wait; none waits from now on."""
        with self._lock:
            self._stopped = True
            waiting = list(self._waiting)
        for fetch in waiting:
            self._attempt(fetch, is_last=True)

    def on_half_close(self, connection: Connection) -> None:
        """See `connection.Application`."""
        for fetch in self._of(connection):
            self._retry(fetch, is_last=True)

    def on_close(self, connection: Connection) -> None:
        """See `connection.Application`."""
        for fetch in self._of(connection):
            self._retry(fetch, is_last=True)
        sessions = self._sessions.of_connection(connection)
        if sessions:
            self._run(self._release_all, sessions)

    def _of(self, connection: Connection) -> list[_Waiting]:
        with self._lock:
            return [fetch for fetch in self._waiting if fetch.connection is connection]

    # -- fetching --------------------------------------------------------------------------------------

    def fetch(self, context: RequestContext, request: ShareFetchRequest) -> Future[ShareFetchResponse]:
        response: Future[ShareFetchResponse] = Future()
        self._broker.run_blocking(self._fetch, context, request, response)
        return response

    def _fetch(
        self, context: RequestContext, request: ShareFetchRequest, response: Future[ShareFetchResponse]
    ) -> None:
        try:
            waiting = self._begin(context, request)
        except EmbedlogError as error:
            _complete(
                response,
                ShareFetchResponse(error_code=error_code_for(error), error_message=message_for(error)),
            )
            return
        except BaseException as error:  # a defect: the connection logs it and closes
            with contextlib.suppress(InvalidStateError):
                response.set_exception(error)
            return
        waiting.response = response
        may_wait = request.max_wait_ms > 0 and request.max_records > 0 and waiting.session.partitions
        if request.share_session_epoch == LAST or not may_wait or context.connection.half_closed:
            self._attempt(waiting, is_last=True)
            return
        with self._lock:
            if not self._stopped:
                self._waiting.add(waiting)
        self._attempt(waiting, is_last=self._stopped)
        if not waiting.is_done:
            context.connection.loop.post(lambda: self._start_timer(waiting))

    def _start_timer(self, waiting: _Waiting) -> None:
        connection = waiting.connection
        if connection.half_closed:
            self._retry(waiting, is_last=True)
        elif not waiting.is_done:
            seconds = waiting.request.max_wait_ms / 1000
            waiting.timer = connection.loop.call_later(seconds, lambda: self._retry(waiting, is_last=True))

    def _begin(self, context: RequestContext, request: ShareFetchRequest) -> _Waiting:
        """Find the session and acknowledge earlier records. Raises ApiError, InvalidGroup."""
        group, member_id = _checked_names(request)
        epoch = request.share_session_epoch
        renews = context.version >= _FIRST_WITH_RENEWALS and request.is_renew_ack
        if renews and any((request.max_records, request.max_bytes, request.min_bytes, request.max_wait_ms)):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a fetch that renews locks fetches no records")
        if request.share_acquire_mode not in (_WHOLE_BATCHES, _NO_MORE_RECORDS):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown acquire mode {request.share_acquire_mode}")
        ranges = acknowledgements(request)
        if epoch == FIRST:
            if ranges:
                raise ApiError(ErrorCode.INVALID_REQUEST, "a new share session has nothing to acknowledge")
            self._check_exists(group)
            previous = self._sessions.end(group, member_id)
            if previous is not None:
                self._acquisitions.release(previous)
            session = self._sessions.begin(group, member_id, context.connection)
            if session is None:  # the client has gone
                session = ShareSession(group, member_id, context.connection)
        else:
            session = self._sessions.find(group, member_id, epoch)
        if epoch != LAST:
            self._choose(session, request)
        settings = self._broker.group_configs.shares_of(group)
        acknowledged = self._acquisitions.acknowledge(session, ranges, settings, may_renew=renews)
        if epoch == LAST:
            self._sessions.end(group, member_id)
            self._acquisitions.release(session)
        return _Waiting(
            context.connection,
            session,
            request,
            settings,
            acknowledged,
            whole_batches=context.version < _FIRST_WITH_MODES or request.share_acquire_mode == _WHOLE_BATCHES,
            is_first=epoch == FIRST,
        )

    def _choose(self, session: ShareSession, request: ShareFetchRequest) -> None:
        """The partitions of a session, from now on. Raises ApiError."""
        partitions = dict(session.partitions)
        partitions.update(
            {
                (topic.topic_id, partition.partition_index): None
                for topic in request.topics
                for partition in topic.partitions
            }
        )
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                partitions.pop((topic.topic_id, number), None)
        if len(partitions) > len(self._broker.store.partitions()) + _UNKNOWN_PARTITIONS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"there are no {len(partitions):,} partitions")
        session.partitions = partitions

    def _check_exists(self, group: str) -> None:
        """A fetch makes no group: members join before. Raises GroupNotFound."""
        try:
            self._broker.groups.modern_group_state(GroupType.SHARE, group)
        except GroupNotFound:
            if group not in self._broker.queue_groups():
                raise

    def _retry(self, waiting: _Waiting, *, is_last: bool = False) -> None:
        self._run(partial(self._attempt, waiting, is_last=is_last))

    def _run(self, work: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the executor is shut down
            self._broker.run_blocking(work, *args)

    def _attempt(self, waiting: _Waiting, *, is_last: bool = False) -> None:
        """Acquire records; answer if there are any, or if it `is_last`. Else wait for more."""
        with waiting.lock:
            if waiting.is_done:
                return
            for end in waiting.watches:
                end()
            waiting.watches = []
            try:
                with waiting.session.lock:
                    may_fetch = not waiting.session.is_over and not waiting.response.cancelled()
                    acquisitions = self._acquire_all(waiting) if may_fetch else {}
                has_news = any(
                    isinstance(acquired, EmbedlogError) or acquired.ranges
                    for acquired in acquisitions.values()
                )
                if may_fetch and not has_news and not is_last and not self._stopped:
                    self._watch(waiting)
                    return
            except BaseException as error:  # a defect: the connection logs it and closes
                waiting.is_done = True
                with contextlib.suppress(InvalidStateError):
                    waiting.response.set_exception(error)
                raise
            waiting.is_done = True
        with self._lock:
            self._waiting.discard(waiting)
        if waiting.timer is not None:
            waiting.connection.loop.post(waiting.timer.cancel)
        if not _complete(waiting.response, self._response(waiting, acquisitions)):
            self._acquisitions.release(waiting.session)  # the client has not got them

    def _acquire_all(self, waiting: _Waiting) -> _Acquisitions:
        """What each partition of the session has, another one first each time."""
        request, session, clients = waiting.request, waiting.session, self._shares().clients
        partitions = list(session.partitions)
        first = session.epoch % len(partitions) if partitions else 0
        records_left = request.max_records
        bytes_left = min(request.max_bytes, self._broker.settings.fetch_max_bytes)
        acquisitions: _Acquisitions = {}
        for key in partitions[first:] + partitions[:first]:
            try:
                topic = self._acquisitions.topic_name(waiting.connection, key[0])
                if records_left <= 0 or bytes_left <= 0:
                    acquisitions[key] = Acquired()
                    continue
                if clients.lock_ms(session.group, topic) is None:  # not begun: perhaps it was deleted
                    self._check_exists(session.group)
                acquisitions[key] = acquired = clients.acquire(
                    session.group,
                    topic,
                    key[1],
                    session.member_id,
                    max_records=records_left,
                    max_bytes=bytes_left,
                    settings=waiting.settings,
                    whole_batches=waiting.whole_batches,
                    batch_size=max(request.batch_size, 0),
                )
            except EmbedlogError as error:
                acquisitions[key] = error
            else:
                if acquired.ranges:
                    session.topics.add(topic)
                bytes_left -= len(acquired.data)
                records_left -= sum(last - first + 1 for first, last, _ in acquired.ranges)
        return acquisitions

    def _watch(self, waiting: _Waiting) -> None:
        """Try again when records come."""
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, number in list(waiting.session.partitions):
            by_topic.setdefault(topic_id, []).append(number)
        for topic_id, numbers in by_topic.items():
            try:
                end = self._shares().clients.watch(
                    waiting.session.group,
                    self._acquisitions.topic_name(waiting.connection, topic_id),
                    numbers,
                    lambda: self._retry(waiting),
                    waiting.settings.max_locks,
                )
            except EmbedlogError:  # it was deleted just now
                self._retry(waiting, is_last=True)
            else:
                waiting.watches.append(end)

    def _response(self, waiting: _Waiting, acquisitions: _Acquisitions) -> ShareFetchResponse:
        response = ShareFetchResponse(
            error_message=None,
            acquisition_lock_timeout_ms=self._acquisitions.lock_ms(waiting.session, waiting.settings),
        )
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for key in dict.fromkeys([*acquisitions, *waiting.acknowledged]):
            acquired = acquisitions.get(key)
            is_empty = isinstance(acquired, Acquired) and not acquired.ranges
            if is_empty and not waiting.is_first and key not in waiting.acknowledged:
                continue
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = ShareFetchableTopicResponse(topic_id=key[0])
                response.responses.append(topic)
            topic.partitions.append(_partition_data(key, acquired, waiting.acknowledged.get(key)))
        return response

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(
        self, context: RequestContext, request: ShareAcknowledgeRequest
    ) -> Future[ShareAcknowledgeResponse]:
        return self._broker.run_blocking(self._acknowledge, context, request)

    def _acknowledge(
        self, context: RequestContext, request: ShareAcknowledgeRequest
    ) -> ShareAcknowledgeResponse:
        try:
            group, member_id = _checked_names(request)
            epoch = request.share_session_epoch
            if epoch == FIRST:
                raise ApiError(
                    ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a new share session has nothing to acknowledge"
                )
            session = self._sessions.find(group, member_id, epoch)
            settings = self._broker.group_configs.shares_of(group)
            renews = context.version >= _FIRST_WITH_RENEWALS and request.is_renew_ack
            results = self._acquisitions.acknowledge(
                session, acknowledgements(request), settings, may_renew=renews
            )
            if epoch == LAST:
                self._sessions.end(group, member_id)
                self._acquisitions.release(session)
        except EmbedlogError as error:
            return ShareAcknowledgeResponse(
                error_code=error_code_for(error), error_message=message_for(error)
            )
        topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
        for (topic_id, number), failed in results.items():
            topic = topics.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id=topic_id))
            topic.partitions.append(
                acknowledging.PartitionData(
                    partition_index=number,
                    error_code=ErrorCode.NONE if failed is None else error_code_for(failed),
                    error_message=None if failed is None else message_for(failed),
                )
            )
        return ShareAcknowledgeResponse(
            error_message=None,
            acquisition_lock_timeout_ms=self._acquisitions.lock_ms(session, settings),
            responses=list(topics.values()),
        )

    def _release_all(self, sessions: Iterable[ShareSession]) -> None:
        for session in sessions:
            self._acquisitions.release(session)


def _checked_names(request: ShareFetchRequest | ShareAcknowledgeRequest) -> tuple[str, str]:
    """Raises ApiError, InvalidGroup."""
    group, member_id = request.group_id or "", request.member_id or ""
    check_group(group)
    if not 0 < len(member_id) <= _NAME_CHARS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a member id has 1 to {_NAME_CHARS} characters")
    if request.share_session_epoch < LAST:
        raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session's epoch is -1 or more")
    return group, member_id


def _partition_data(
    key: TopicIdPartition, acquired: Acquired | EmbedlogError | None, refused: EmbedlogError | None
) -> PartitionData:
    data = PartitionData(
        partition_index=key[1], error_message=None, acknowledge_error_message=None, records=b""
    )
    if isinstance(acquired, Acquired):
        data.records = acquired.data
        data.acquired_records = [
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in acquired.ranges
        ]
    elif acquired is not None:
        data.error_code, data.error_message = error_code_for(acquired), message_for(acquired)
    if refused is not None:
        data.acknowledge_error_code, data.acknowledge_error_message = (
            error_code_for(refused),
            message_for(refused),
        )
    return data


def _complete(response: Future[ShareFetchResponse], result: ShareFetchResponse) -> bool:
    """Answer. False if that is too late."""
    try:
        response.set_result(result)
    except InvalidStateError:
        return False
    return True
