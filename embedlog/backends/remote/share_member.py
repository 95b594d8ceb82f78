"""A queue's member of a share group: its membership, its sessions, and the jobs that it holds for later.

It joins with the first acquire, so that a queue that only sends is no member: brokers give each member
partitions, whether it asks for records or not. Its thread sends the heartbeats, and keeps jobs whose release
is delayed locked until they are due.

What an acquire got that nobody waits for any more is spare: the next acquire has it. The thread keeps it
locked for that long.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Final

from ...errors import BrokerUnavailable, Closed, EmbedlogError, ForkedHandle
from ...model import AcknowledgeType, Delivery, TopicPartition
from ...runtime.locks import Lock
from ...runtime.wakeups import Wakeup
from ...wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ...wire.error_codes import ErrorCode
from ...wire.schema import as_uuid
from ...wire_client.settings import Address
from .brokers import Brokers, Retry
from .coordinators import Coordinators
from .metadata import Metadata
from .share_sessions import HeldDelivery, ShareSession

_JOIN: Final = 0  # member epochs
_LEAVE: Final = -1
_IDLE_WAIT_MS: Final = 500
_BUSY_WAIT_MS: Final = 50  # while jobs are in hand, whose acknowledgements wait for the fetch
_UNASSIGNED_S: Final = 0.1  # between heartbeats
_LEAVE_MS: Final = 2_000
_RENEWALS: Final = 3  # within lock_ms
_NEVER: Final = float("inf")
_FORGOTTEN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})

_logger = logging.getLogger(__name__)


class QueueMember:
    """One member. Thread-safe."""

    def __init__(
        self,
        brokers: Brokers,
        metadata: Metadata,
        coordinators: Coordinators,
        topic: str,
        group: str,
        lock_ms: int,
    ) -> None:
        self.topic = topic
        self.group = group
        self._brokers = brokers
        self._metadata = metadata
        self._coordinators = coordinators
        self._renew_s = lock_ms / 1000 / _RENEWALS
        # As Kafka's ids look: 22 characters, and no "-" in front.
        self._member_id = "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        self._beating = Lock()  # held during a heartbeat
        self._lock = Lock()
        # Guarded by _beating.
        self._epoch = _JOIN
        self._interval_s = 1.0
        self._assigned: dict[bytes, list[int]] = {}
        # Guarded by _lock.
        self._sessions: dict[Address, ShareSession] = {}
        self._kept: dict[int, tuple[HeldDelivery, float]] = {}  # spare, and delayed until a time
        self._renew_at = _NEVER
        self._rounds = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wakeup = Wakeup()

    # -- acquiring ---------------------------------------------------------------------------------------

    def acquire(self, max_records: int, wait_ms: int, ask: str) -> list[Delivery]:
        """Lock records; none after wait_ms, or before. Raises as `Brokers.retried`."""
        spare = self._take_spare(max_records, ask)
        if spare:
            return spare
        if self._thread is None:
            self._join()
        return self._brokers.retried(lambda deadline: self._round(max_records, wait_ms, ask, deadline))

    def _take_spare(self, max_records: int, ask: str) -> list[Delivery]:
        with self._lock:
            spare = [held for held, due in self._kept.values() if due == _NEVER][:max_records]
            for held in spare:
                del self._kept[held.delivery.delivery_id]
                held.ask = ask
        return [held.delivery for held in spare if held.delivery.delivery_id in held.session.held]

    def _join(self) -> None:
        self._beat()
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="embedlog-share-member", daemon=True)
                self._thread.start()

    def _round(self, max_records: int, wait_ms: int, ask: str, deadline: float) -> list[Delivery]:
        """One fetch from each leader, until one has records. Raises Retry, BrokerUnavailable."""
        topic_id = self._metadata.topic_id(self.topic, deadline)
        assigned = self._assigned.get(as_uuid(topic_id), [])
        if not assigned:
            self._brokers.pause(_UNASSIGNED_S)
            raise Retry(BrokerUnavailable(f"{self.topic}: group {self.group!r} has got no partitions yet"))
        by_leader: dict[Address, list[int]] = {}
        failures: list[Retry | BrokerUnavailable] = []
        for number in assigned:
            try:
                leader = self._metadata.leader(TopicPartition(self.topic, number), deadline)
            except Retry as error:  # it has none: the others go on
                failures.append(error)
            else:
                by_leader.setdefault(leader, []).append(number)
        if not by_leader:
            raise failures[0]
        leaders = list(by_leader)
        self._rounds += 1
        first = self._rounds % max(len(leaders), 1)
        longest_ms = _BUSY_WAIT_MS if self.all_held() else _IDLE_WAIT_MS
        each_ms = min(wait_ms, longest_ms) // max(len(leaders), 1)
        failures = []
        for address in leaders[first:] + leaders[:first]:
            try:
                session = self._session(address)
                deliveries = session.fetch(topic_id, by_leader[address], max_records, each_ms, ask, deadline)
            except (Retry, BrokerUnavailable) as error:
                self._brokers.check_open()
                self._metadata.forget(self.topic)
                failures.append(error)
                continue
            if deliveries:
                return deliveries
        if failures and len(failures) == len(leaders):
            raise failures[0]
        return []

    def _session(self, address: Address) -> ShareSession:
        with self._lock:
            if self._closed:
                raise Closed("the queue is closed")
            session = self._sessions.get(address)
            if session is None:
                session = self._sessions[address] = ShareSession(
                    self._brokers, self._metadata, address, self.topic, self.group, self._member_id
                )
            return session

    # -- holding -----------------------------------------------------------------------------------------

    def held(self, delivery_id: int) -> HeldDelivery | None:
        """A delivery that is locked by this member."""
        for session in list(self._sessions.values()):
            held = session.held.get(delivery_id)
            if held is not None:
                return held
        return None

    def all_held(self) -> list[HeldDelivery]:
        """All that this member has locked, but for what is delayed."""
        return [
            held
            for session in list(self._sessions.values())
            for held in list(session.held.values())
            if held.delivery.delivery_id not in self._kept
        ]

    def spare(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries, locked, for the next acquire."""
        for delivery in deliveries:
            held = self.held(delivery.delivery_id)
            if held is not None:
                self._keep(held, _NEVER)

    def release_later(self, held: HeldDelivery, delay_ms: int) -> None:
        """Keep a delivery locked, and release it after a delay."""
        self._keep(held, time.monotonic() + delay_ms / 1000)

    def _keep(self, held: HeldDelivery, due: float) -> None:
        with self._lock:
            self._kept[held.delivery.delivery_id] = held, due
            self._renew_at = min(self._renew_at, time.monotonic())
        self._wakeup.signal()

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and give back what is held, uncounted; what is delayed counts."""
        with self._lock:
            self._closed = True
            delayed = [held for held, due in self._kept.values() if due != _NEVER]
            self._kept = {}
            sessions = list(self._sessions.values())
        self._wakeup.signal()
        self._settle(delayed, AcknowledgeType.RELEASE)
        for session in sessions:
            try:
                session.close()
            except EmbedlogError as error:
                _logger.warning("%s: jobs wait until their locks run out: %s", self.topic, error)
        if self._thread is not None:
            try:
                self._beat(leaving=True)
            except EmbedlogError as error:
                _logger.info(
                    "%s: the member stays in group %r for a while: %s", self.topic, self.group, error
                )

    # -- the thread --------------------------------------------------------------------------------------

    def _beat(self, *, leaving: bool = False) -> None:
        """One heartbeat. Raises the coordinator's error."""

        def checked(response: ShareGroupHeartbeatResponse) -> ShareGroupHeartbeatResponse:
            if response.error_code not in _FORGOTTEN:
                subject = f"share group {self.group!r}"
                self._coordinators.check(self.group, response.error_code, subject, self.topic)
            return response

        with self._beating:
            if self._closed and not leaving:
                return
            while True:
                epoch = _LEAVE if leaving else self._epoch
                request = ShareGroupHeartbeatRequest(
                    group_id=self.group,
                    member_id=self._member_id,
                    member_epoch=epoch,
                    rack_id=None,
                    subscribed_topic_names=[self.topic] if epoch == _JOIN else None,
                )
                response = self._coordinators.ask(
                    self.group,
                    request,
                    ShareGroupHeartbeatResponse,
                    checked,
                    timeout_ms=_LEAVE_MS if leaving else None,
                )
                if leaving:
                    return
                if response.error_code in _FORGOTTEN and epoch != _JOIN:
                    self._epoch, self._assigned = _JOIN, {}
                    continue
                break
            if response.error_code:
                subject = f"joining share group {self.group!r}"
                self._coordinators.check(self.group, response.error_code, subject, self.topic)
            self._epoch = response.member_epoch
            self._interval_s = max(response.heartbeat_interval_ms / 1000, _UNASSIGNED_S)
            if response.assignment is not None:
                self._assigned = {
                    topic.topic_id: list(topic.partitions) for topic in response.assignment.topic_partitions
                }

    def _run(self) -> None:
        beat_at = time.monotonic()
        while not self._closed:
            now = time.monotonic()
            try:
                if now >= beat_at:
                    self._beat()
                    beat_at = now + (self._interval_s if self._assigned else _UNASSIGNED_S)
                tend_at = self._tend(now)
            except (Closed, ForkedHandle):
                return
            except EmbedlogError as error:
                _logger.warning("%s: member of group %r: %s", self.topic, self.group, error)
                beat_at = tend_at = now + self._interval_s
            except Exception:
                _logger.exception("%s: member of group %r", self.topic, self.group)
                beat_at = tend_at = now + self._interval_s
            self._wakeup.sleep(max(min(beat_at, tend_at) - time.monotonic(), 0))

    def _tend(self, now: float) -> float:
        """Release what is due, and renew the rest. Returns when to look again."""
        with self._lock:
            kept = list(self._kept.values())
            due = [held for held, at in kept if at <= now]
            for held in due:
                del self._kept[held.delivery.delivery_id]
            renewed = [held for held, at in kept if at > now] if self._renew_at <= now else []
            if renewed or not self._kept:
                self._renew_at = now + self._renew_s if self._kept else _NEVER
            next_at = min((at for held, at in kept if at > now), default=_NEVER)
            next_at = min(next_at, self._renew_at)
        self._settle(due, AcknowledgeType.RELEASE)
        self._settle(renewed, AcknowledgeType.RENEW)
        return next_at

    def _settle(self, kept: Sequence[HeldDelivery], kind: AcknowledgeType) -> None:
        by_session: dict[ShareSession, list[tuple[HeldDelivery, int]]] = {}
        for held in kept:
            by_session.setdefault(held.session, []).append((held, kind))
        for session, entries in by_session.items():
            try:
                session.acknowledge(entries)
            except BrokerUnavailable as error:  # then its locks are lost, and the jobs come back
                _logger.info("%s: jobs were given back with their session: %s", self.topic, error)
