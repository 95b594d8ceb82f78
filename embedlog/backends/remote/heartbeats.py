"""The group members of this process, and the thread that sends their heartbeats.

This thread sends each member's heartbeats to its coordinator every heartbeat_interval_ms, as long as the
member's client polls (`Membership.advance` calls `visit`) within max_poll_interval_ms; otherwise the member
leaves its group. An error of the coordinator is kept for the client's next poll, and the client is woken.

Source: KIP-62 (heartbeats in the background).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...errors import BrokerUnavailable, EmbedlogError, IllegalGeneration, RebalanceInProgress, UnknownMember
from ...runtime.locks import Lock
from ...runtime.wakeups import Wakeup

_NEVER: Final = float("inf")

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class LocalMember:
    """One member of one group. `limit_s`: the time within which its client must poll."""

    group: str
    member_id: str
    instance_id: str | None
    limit_s: float
    wake: Callable[[], object]
    generation: int = -1
    protocol: str = ""
    seen: float = field(default_factory=time.monotonic)
    due: float = 0.0
    error: EmbedlogError | None = None


class Heartbeats:
    """Keeps members alive. Thread-safe.

    Args:
        beat: sends one heartbeat; raises the coordinator's error.
        leave: removes a member whose client has stopped polling from its group.
        interval_s: between two heartbeats.
    """

    def __init__(
        self, beat: Callable[[LocalMember], None], leave: Callable[[LocalMember], None], interval_s: float
    ) -> None:
        self._beat = beat
        self._leave = leave
        self._interval_s = interval_s
        self._lock = Lock()
        self._members: dict[tuple[str, str], LocalMember] = {}
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, member: LocalMember) -> None:
        """Send heartbeats for the member from now on."""
        member.seen = time.monotonic()
        member.due = member.seen + self._interval_s
        with self._lock:
            self._members[member.group, member.member_id] = member
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="embedlog-heartbeats", daemon=True)
                self._thread.start()
        self._wakeup.signal()

    def remove(self, group: str, member_id: str) -> LocalMember | None:
        """Stop its heartbeats. Returns the member."""
        with self._lock:
            return self._members.pop((group, member_id), None)

    def _drop(self, member: LocalMember) -> None:
        """Stop its heartbeats, unless it has joined again while the last one was under way."""
        with self._lock:
            if self._members.get((member.group, member.member_id)) is member:
                del self._members[member.group, member.member_id]

    def get(self, group: str, member_id: str) -> LocalMember | None:
        """The member with this id, if any."""
        return self._members.get((group, member_id))

    def visit(self, group: str, member_id: str) -> None:
        """Record a poll of its client. Raises the coordinator's last error; UnknownMember."""
        member = self.get(group, member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is not a member of group {group!r}")
        member.seen = time.monotonic()
        if member.error is not None:
            raise member.error.with_traceback(None)

    def close(self) -> list[LocalMember]:
        """Stop all heartbeats. Returns the members."""
        self._closed = True
        self._wakeup.signal()
        with self._lock:
            members, self._members = self._members, {}
        return list(members.values())

    def abandon(self) -> None:
        """In a forked child: forget the parent's members."""
        self._closed = True
        self._lock = Lock()
        self._members = {}

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                members = [member for member in self._members.values() if member.due < _NEVER]
            now = time.monotonic()
            for member in members:
                if member.due <= now and not self._closed:
                    self._keep(member)
            next_due = min((member.due for member in members), default=_NEVER)
            left_s = next_due - time.monotonic()
            self._wakeup.sleep(None if left_s == _NEVER else max(left_s, 0))

    def _keep(self, member: LocalMember) -> None:
        member.due = time.monotonic() + self._interval_s
        try:
            if time.monotonic() - member.seen > member.limit_s:
                self._leave(member)
                raise UnknownMember(f"the consumer did not poll for {member.limit_s:g} s")
            self._beat(member)
        except RebalanceInProgress as error:
            # It stays alive while its client finishes its records.
            first = member.error is None
            member.error = error
            if first:
                member.wake()
        except BrokerUnavailable as error:
            logger.info("group %r: no heartbeat: %s", member.group, error)
        except EmbedlogError as error:
            member.due = _NEVER
            member.error = error
            if isinstance(error, UnknownMember | IllegalGeneration):
                self._drop(member)
            member.wake()
        except Exception:
            logger.exception("group %r: a heartbeat failed", member.group)
