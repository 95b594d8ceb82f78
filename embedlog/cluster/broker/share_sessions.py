"""Share sessions (KIP-932): which partitions a share consumer fetches, and that it is the one that it was.

    epoch 0     a new session, in the place of the member's old one; the request names its partitions
    epoch n     the next request: partitions that are added, and those that are forgotten
    epoch -1    the last one

A session belongs to the connection that began it. Its end, by its last request, by a new session or by the
end of the connection, releases what the member has acquired in it; the caller does that.

Thread-safe. Invariant: a session's epoch is the one that its next request must have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from ...config import MAX_INT32
from ...runtime.locks import Lock
from ...wire.error_codes import ErrorCode
from ..network.connection import Connection
from .api_errors import ApiError

FIRST: Final = 0
LAST: Final = -1

TopicIdPartition: TypeAlias = tuple[bytes, int]
_Key: TypeAlias = tuple[str, str]


class ShareSession:
    """A member's session. `partitions` are what it fetches, as a dict without values: in order."""

    def __init__(self, group: str, member_id: str, connection: Connection) -> None:
        self.group = group
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[TopicIdPartition, None] = {}
        self.topics: set[str] = set()  # of which the member may have acquired records
        self.is_over = False


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self, most: int) -> None:
        self._most = most
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
            if len(self._sessions) >= self._most:
                raise ApiError(
                    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                    f"there are {self._most:,} share sessions (group.share.max.share.sessions)",
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
