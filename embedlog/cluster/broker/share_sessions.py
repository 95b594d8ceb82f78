"""Share sessions (KIP-932): which partitions a share consumer fetches, and what it has acquired.

    epoch 0     a new session, in the place of the member's old one; the request names its partitions
    epoch n     the next request: partitions that are added, and those that are forgotten
    epoch -1    the last one

A session belongs to the connection that began it. Its end, by its last request, by a new session or by the
end of the connection, releases what the member has acquired in it; the caller does that. Acknowledgements and
releases block: they are stored before they return.

Thread-safe. Invariant: a session's epoch is the one that its next request must have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from ...config import MAX_INT32
from ...errors import EmbedlogError, GroupNotFound
from ...groups.share_clients import AcknowledgedRange
from ...groups.share_coordinator import ShareGroupCoordinator
from ...groups.share_group import ShareSettings
from ...runtime.locks import Lock
from ...security.acls import Operation
from ...wire.apis.share_acknowledge import ShareAcknowledgeRequest
from ...wire.apis.share_fetch import ShareFetchRequest
from ...wire.error_codes import ErrorCode
from ..network.connection import Connection
from .api_errors import ApiError, message_for
from .broker_context import BrokerContext

FIRST: Final = 0
LAST: Final = -1

TopicIdPartition: TypeAlias = tuple[bytes, int]
Acknowledged: TypeAlias = dict[TopicIdPartition, EmbedlogError | None]
"""The partitions of which a request acknowledges records, each with its error."""
_Key: TypeAlias = tuple[str, str]


class ShareSession:
    """A member's session. `partitions` are what it fetches, as a dict without values: in order."""

    def __init__(self, group: str, member_id: str, connection: Connection) -> None:
        self.group = group
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[TopicIdPartition, None] = {}
        self.topics: set[str] = set()  # of which the member may have acquired records; guarded by lock
        self.is_over = False  # what sets it releases it afterwards
        # Held while records are acquired in it or released: a session that is over acquires none, and is
        # released once, not when the member's next one has acquired records.
        self.lock = Lock()


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._lock = Lock()
        self._sessions: dict[_Key, ShareSession] = {}
        self._by_connection: dict[Connection, set[_Key]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group: str, member_id: str, connection: Connection) -> ShareSession | None:
        """A new session replaces the member's old one, which is `end`ed before. None if the connection is
        closed.

        Raises ApiError: there are as many as there may be.
        """
        session = ShareSession(group, member_id, connection)
        with self._lock:
            if len(self._sessions) >= self._max_sessions:
                raise ApiError(
                    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                    f"there are {self._max_sessions:,} share sessions (group.share.max.share.sessions)",
                )
            if connection.closed:
                return None
            self._sessions[group, member_id] = session
            self._by_connection.setdefault(connection, set()).add((group, member_id))
        return session

    def find(self, group: str, member_id: str, epoch: int) -> ShareSession:
        """The session of a request with an epoch other than 0, which is the next one's turn then.

        Raises ApiError: there is none, or it is in another epoch.
        """
        with self._lock:
            session = self._sessions.get((group, member_id))
            if session is None:
                raise ApiError(
                    ErrorCode.SHARE_SESSION_NOT_FOUND,
                    f"member {member_id!r} of group {group!r} has no share session: begin one",
                )
            if epoch != LAST:
                if epoch != session.epoch:
                    raise ApiError(
                        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                        f"the share session is in epoch {session.epoch}, not {epoch}: begin one",
                    )
                session.epoch = 1 if epoch == MAX_INT32 else epoch + 1
            return session

    def end(self, group: str, member_id: str) -> ShareSession | None:
        """The member's session, which is no more; None if it has none."""
        with self._lock:
            return self._remove((group, member_id))

    def of_connection(self, connection: Connection) -> list[ShareSession]:
        """The sessions that a connection which has closed had; they are no more."""
        with self._lock:
            keys: Iterable[_Key] = self._by_connection.pop(connection, ())
            sessions = [self._remove(key) for key in list(keys)]
        return [session for session in sessions if session is not None]

    def _remove(self, key: _Key) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_over = True
            keys = self._by_connection.get(session.connection, set())
            keys.discard(key)
            if not keys:
                self._by_connection.pop(session.connection, None)
        return session


class ShareAcquisitions:
    """Acknowledges and releases what members have acquired."""

    def __init__(self, broker: BrokerContext, shares: Callable[[], ShareGroupCoordinator]) -> None:
        self._broker = broker
        self._shares = shares

    def acknowledge(
        self,
        session: ShareSession,
        acknowledgements: Mapping[TopicIdPartition, Sequence[AcknowledgedRange]],
        settings: ShareSettings,
        *,
        may_renew: bool,
    ) -> Acknowledged:
        """Apply a request's acknowledgements."""
        results: Acknowledged = {}
        for key, ranges in acknowledgements.items():
            try:
                self._shares().clients.acknowledge(
                    session.group,
                    self.topic_name(session.connection, key[0]),
                    key[1],
                    session.member_id,
                    ranges,
                    settings,
                    may_renew=may_renew,
                )
            except GroupNotFound as error:  # of that topic nothing has been acquired
                results[key] = ApiError(ErrorCode.INVALID_RECORD_STATE, message_for(error))
            except EmbedlogError as error:
                results[key] = error
            else:
                results[key] = None
        return results

    def release(self, session: ShareSession) -> None:
        """Release what its member has acquired. If that cannot be stored, the locks expire."""
        with session.lock:
            for topic in session.topics:
                with contextlib.suppress(EmbedlogError):
                    self._shares().clients.release(session.group, topic, session.member_id)
            session.topics.clear()

    def lock_ms(self, session: ShareSession, settings: ShareSettings) -> int:
        """How long its member has for a record."""
        for topic in session.topics:
            lock_ms = self._shares().clients.lock_ms(session.group, topic)
            if lock_ms is not None:
                return lock_ms
        return settings.options.lock_ms

    def topic_name(self, connection: Connection, topic_id: bytes) -> str:
        """The name of a topic that the connection may read. Raises ApiError."""
        topic = self._broker.topic_name(topic_id)
        access = self._broker.access_of(connection, "ShareFetch")
        if access is not None:
            code = access.topic_code(Operation.READ, topic, by_id=True)
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise ApiError(code, "this client may not read the topic")
            topic = None if code else topic
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return topic


def acknowledgements(
    request: ShareFetchRequest | ShareAcknowledgeRequest,
) -> dict[TopicIdPartition, list[AcknowledgedRange]]:
    """The ranges that a request acknowledges; it may name a partition repeatedly."""
    ranges: dict[TopicIdPartition, list[AcknowledgedRange]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                ranges.setdefault((topic.topic_id, partition.partition_index), []).extend(
                    AcknowledgedRange(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                    for batch in partition.acknowledgement_batches
                )
    return ranges
