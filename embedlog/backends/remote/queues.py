"""Queues over share groups of brokers (KIP-932): what `log.queue` uses over kafka://.

    prepare        checks the brokers, and gives the group its settings (share_settings.py)
    acquire        the queue joins the group with its first one; records come from share_sessions.py
    acknowledge    accepts, releases, rejects and renews; dead letters are appended first
    release        the member leaves the group; what it holds is given back. Apache Kafka counts these
                   deliveries, embedlog's broker does not

A queue is one member. A thread of the member sends its heartbeats. It also keeps jobs that are released with
a delay: brokers know no delays, so the member holds such a job, renews its lock, and releases it when it is
due. If the process is killed before, the job comes back when its lock has run out.

Dead letters are made here: of a rejected job, of one that is released at its last delivery, and of one that
is delivered once more than that, since the worker of its last delivery has ended. The letter is appended
before the record is rejected. If the process is killed in between, there may be a second one.

Invariants: no lock is held during a request, except that of a session; a record is rejected only if its dead
letter was appended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Final, NoReturn

from ...errors import EmbedlogError, LockLost, TopicNotFound, UnsupportedByBackend
from ...groups.dead_letters import dead_letter_headers
from ...model import (
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    Record,
    ShareGroupOptions,
    TopicPartition,
)
from ...runtime.futures import new_future
from ...runtime.locks import Lock
from .appending import RemoteAppender
from .brokers import Brokers
from .coordinators import Coordinators
from .metadata import Metadata
from .share_member import QueueMember
from .share_sessions import HeldDelivery, ShareSession
from .share_settings import GroupLimits, ShareSettings

_SHORTEST_WAIT_MS: Final = 20
_WORKER_ENDED: Final = "the worker of its last delivery ended without settling it"

_logger = logging.getLogger(__name__)


class BrokerQueues:
    """Implements `coordinators.ShareCoordinator` over share groups of brokers. Thread-safe.

    Args:
        appenders: the partitions of a topic; raises TopicNotFound.
        create_topic: makes a topic of dead letters.
    """

    keeps_delays = False

    def __init__(
        self,
        brokers: Brokers,
        metadata: Metadata,
        coordinators: Coordinators,
        appenders: Callable[[str], Sequence[RemoteAppender]],
        create_topic: Callable[[str], object],
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._coordinators = coordinators
        self._appenders = appenders
        self._create_topic = create_topic
        self._settings = ShareSettings(brokers, coordinators)
        self._lock = Lock()
        # Guarded by _lock.
        self._limits: dict[str, GroupLimits] = {}
        self._members: dict[tuple[str, str, str], QueueMember] = {}

    def prepare(self, group: str, options: ShareGroupOptions) -> None:
        limits = self._settings.prepare(group, options)
        with self._lock:
            self._limits[group] = limits

    def acquire(
        self,
        group: str,
        topic: str,
        member_id: str,
        *,
        max_records: int,
        max_wait_ms: int,
        options: ShareGroupOptions,
    ) -> Future[list[Delivery]]:
        member = self._member(group, topic, member_id)
        future: Future[list[Delivery]] = new_future()
        deadline = time.monotonic() + max_wait_ms / 1000

        def run() -> None:
            try:
                deliveries = self._acquired(member, member_id, max_records, deadline, future)
            except BaseException as error:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(error)
                return
            try:
                future.set_result(deliveries)
            except InvalidStateError:  # it was cancelled
                member.spare(deliveries)

        threading.Thread(target=run, name="embedlog-acquire", daemon=True).start()
        return future

    def _acquired(
        self,
        member: QueueMember,
        ask: str,
        max_records: int,
        deadline: float,
        future: Future[list[Delivery]],
    ) -> list[Delivery]:
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            acquired = member.acquire(max_records, max(left_ms, _SHORTEST_WAIT_MS), ask)
            try:
                deliveries = [delivery for delivery in acquired if not self._is_dead(member, delivery)]
            except EmbedlogError:
                member.spare(acquired)
                raise
            if deliveries or left_ms <= 0 or future.cancelled():
                return deliveries

    def _is_dead(self, member: QueueMember, delivery: Delivery) -> bool:
        """Whether a job was delivered as often as it may be: it becomes a dead letter."""
        limits = self._limits[member.group]
        if delivery.delivery_count <= limits.options.max_deliveries:
            return False
        reject = Acknowledgement(*delivery[:3], AcknowledgeType.REJECT, error=_WORKER_ENDED)
        place = TopicPartition(member.topic, delivery.partition)
        _logger.error("%s, offset %d: %s", place, delivery.offset, _WORKER_ENDED)
        [error] = self.acknowledge(member.group, member.topic, [reject])
        if error is not None and not isinstance(error, LockLost):
            raise error
        return True

    def acknowledge(
        self, group: str, topic: str, acknowledgements: Sequence[Acknowledgement], *, flush: bool = False
    ) -> list[EmbedlogError | None]:
        self._brokers.check_open()
        with self._lock:
            members = [member for key, member in self._members.items() if key[:2] == (group, topic)]
        results: list[EmbedlogError | None] = [None] * len(acknowledgements)
        by_session: dict[ShareSession, list[tuple[int, HeldDelivery, int]]] = {}
        for index, acknowledgement in enumerate(acknowledgements):
            holders = [member for member in members if member.held(acknowledgement.delivery_id) is not None]
            held = holders[0].held(acknowledgement.delivery_id) if holders else None
            if held is None:
                place = TopicPartition(topic, acknowledgement.partition)
                results[index] = LockLost(
                    f"{place}, offset {acknowledgement.offset:,}: this delivery is over: its lock was lost"
                )
                continue
            try:
                kind = self._decided(holders[0], held, acknowledgement)
            except EmbedlogError as error:
                results[index] = error
                continue
            if kind is not None:
                by_session.setdefault(held.session, []).append((index, held, kind))
        for session, entries in by_session.items():
            answers = session.acknowledge([(held, kind) for _, held, kind in entries])
            for (index, _, _), answer in zip(entries, answers, strict=True):
                results[index] = answer
        return results

    def _decided(
        self, member: QueueMember, held: HeldDelivery, acknowledgement: Acknowledgement
    ) -> AcknowledgeType | None:
        """What to tell the broker; None if it is told later. A dead letter is appended before."""
        kind, error, delivery = acknowledgement.type, acknowledgement.error, held.delivery
        options, broker_deliveries = self._limits[member.group]
        if kind == AcknowledgeType.RELEASE:
            # Every release counts at the broker, and the last one it knows ends the record.
            most = options.max_deliveries if acknowledgement.counted else broker_deliveries
            if delivery.delivery_count < most:
                if not acknowledgement.delay_ms:
                    return kind
                member.release_later(held, acknowledgement.delay_ms)
                return None
            error = error or "released at its last delivery"
        elif kind != AcknowledgeType.REJECT:
            return kind
        if options.dead_letter_topic is not None:
            self._append_dead_letter(options.dead_letter_topic, member, delivery, error)
        return AcknowledgeType.REJECT

    def _append_dead_letter(self, target: str, member: QueueMember, delivery: Delivery, error: str) -> None:
        record = delivery.record
        if record is None:  # it is damaged
            record = Record(member.topic, delivery.partition, delivery.offset)
        try:
            appenders = self._appenders(target)
        except TopicNotFound:
            self._create_topic(target)
            appenders = self._appenders(target)
        headers = dead_letter_headers(member.group, record, delivery.delivery_count, error)
        appenders[delivery.partition % len(appenders)].append_one(
            record.key, record.value, time.time_ns() // 1_000_000, headers=headers
        )

    def release_member(self, group: str, topic: str, member_id: str) -> None:
        handle, _, ask = member_id.partition("/")
        with self._lock:
            key = group, topic, handle
            member = self._members.get(key) if ask else self._members.pop(key, None)
        if member is None:
            return
        if ask:
            member.spare([held.delivery for held in member.all_held() if held.ask == member_id])
        else:
            member.close()

    def _member(self, group: str, topic: str, member_id: str) -> QueueMember:
        self._brokers.check_open()
        key = group, topic, member_id.partition("/")[0]
        with self._lock:
            limits, member = self._limits.get(group), self._members.get(key)
            if limits is None:
                _unsupported()
            if member is None:
                member = self._members[key] = QueueMember(
                    self._brokers, self._metadata, self._coordinators, topic, group, limits.options.lock_ms
                )
        return member

    # -- what brokers do not tell --------------------------------------------------------------------------

    def list_share_groups(self) -> NoReturn:
        _unsupported()

    def describe_share_group(self, group: str, topic: str) -> NoReturn:
        _unsupported()

    def delete_share_group(self, group: str, topic: str) -> NoReturn:
        _unsupported()


def _unsupported() -> NoReturn:
    raise UnsupportedByBackend(
        "brokers do not tell which jobs are locked or were delivered before: open the log's directory to "
        "look at its queues, or to send dead letters again"
    )
