"""One member's side of Kafka's classic group protocol: join, sync, heartbeat, leave.

              join                    future done                future done
    UNJOINED ------> JOINING ------------------------> SYNCING ---------------> STABLE
        ^               | error         (leader: assigns) | error                  |
        '---------------+---------------------------------'                        |
        '-------- Revoked (the client gives its partitions up, then goes on) ------'

A client calls `advance` whenever it has the processor. It never waits: joining and syncing wait for the
other members, so they are futures, kept from one call to the next, that set the client's `Interrupt` when
they are done. What the client must act on comes back as `Assigned` or `Revoked`, one at a time; after a
`Revoked` the next call joins again. Rebalancing is eager: all partitions are given up before joining.

Membership ends by `leave`, or when the client is forgotten without being closed. A garbage collector may
run anywhere, also where somebody holds the coordinator's lock, so nothing is called from there: a
`SimpleQueue`, which is made for that, hands the leaving to a thread of its own.

Invariants: partitions are owned only in STABLE, and in the generation that gave them; a member id that
was given is left, even when it is learned after nobody wants it any more.
"""

from __future__ import annotations

import enum
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeAlias

from ..backends.port import Coordinator, Interrupt
from ..errors import (
    CommitFailed,
    EmbedlogError,
    GroupNotFound,
    IllegalGeneration,
    InvalidArgument,
    InvalidType,
    RebalanceInProgress,
    TopicNotFound,
    UnknownMember,
    shown,
)
from ..model import CommittedOffset, JoinResult, TopicPartition
from ..validation import as_topic_partitions
from ..wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from .assignors import Assignor

HEARTBEAT_INTERVAL_MS: Final = 3_000
_LOST: Final = (UnknownMember, IllegalGeneration, GroupNotFound)

_logger = logging.getLogger(__name__)


class Assigned(NamedTuple):
    """The member owns these partitions from now on, and no others."""

    partitions: tuple[TopicPartition, ...]


class Revoked(NamedTuple):
    """The member gives up what it owns. `lost`: others may own it already, so nothing can be committed."""

    lost: bool


Change: TypeAlias = Assigned | Revoked


class _State(enum.Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Seat:
    """What is needed to leave: shared with the finalizer, so it must not refer to the client.

    A static member keeps its seat when it goes, as in Kafka: it may come back as itself (KIP-345).
    """

    def __init__(self, coordinator: Coordinator, group: str, *, static: bool) -> None:
        self.coordinator = coordinator
        self.group = group
        self.static = static
        self.member_id = ""
        self.joining: Future[JoinResult] | None = None

    def leave(self) -> None:
        """Leave now, or as soon as a pending join tells who we are. Errors mean that we are out already."""
        joining, self.joining = self.joining, None
        if joining is not None and not self.member_id:
            # The callback may run under the coordinator's lock: it only hands over.
            joining.add_done_callback(lambda _: _departures.put(self._late_leave(joining)))
            return
        self._leave(self.member_id)

    def abandon(self) -> None:
        """Leave from a finalizer: some time soon, in another thread."""
        _departures.put(self.leave)

    def _late_leave(self, joined: Future[JoinResult]) -> Callable[[], None]:
        def leave() -> None:
            if not joined.cancelled() and joined.exception() is None:
                self._leave(joined.result().member_id)

        return leave

    def _leave(self, member_id: str) -> None:
        if member_id and not self.static:
            try:
                self.coordinator.leave_group(self.group, member_id)
            except EmbedlogError:
                pass


class Membership:
    """A client's membership of one group. For one thread at a time.

    Args:
        coordinator, group: where and what to join.
        assignors: the strategies this member supports, best first; the leader uses one that all share.
        session_timeout_ms: without a heartbeat for so long, the member is dead.
        rebalance_timeout_ms: how long a rebalance waits for a member to come back.
        partitions_of: the number of partitions of a topic; TopicNotFound where there is none.
        interrupt: set when `advance` has something to do.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        group: str,
        *,
        assignors: Sequence[Assignor],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        client_id: str,
        group_instance_id: str | None,
        partitions_of: Callable[[str], int],
        interrupt: Interrupt,
    ) -> None:
        _start_usher()
        self.seat = Seat(coordinator, group, static=group_instance_id is not None)
        self.generation = -1
        self._coordinator = coordinator
        self._group = group
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._client_id = client_id
        self._instance_id = group_instance_id
        self._partitions_of = partitions_of
        self._interrupt = interrupt
        self._state = _State.UNJOINED
        self._joining: Future[JoinResult] | None = None
        self._syncing: Future[bytes] | None = None
        self._owned: tuple[TopicPartition, ...] = ()
        self._rejoin = False
        self._heartbeat_due = 0.0
        self._heartbeat_s = min(HEARTBEAT_INTERVAL_MS, session_timeout_ms / 3) / 1000

    @property
    def member_id(self) -> str:
        return self.seat.member_id

    @property
    def is_stable(self) -> bool:
        """Whether the member owns what it was given last."""
        return self._state is _State.STABLE

    @property
    def heartbeat_due(self) -> float:
        """When `advance` must be called again at the latest (time.monotonic)."""
        return self._heartbeat_due

    def request_rejoin(self) -> None:
        """What is subscribed to has changed: rebalance at the next `advance`."""
        self._rejoin = True

    def advance(self, topics: Iterable[str]) -> Change | None:
        """Go on as far as it goes without waiting; None where nothing changed for the client.

        Raises InconsistentProtocol, FencedInstance, InvalidGroup and what the coordinator raises otherwise.
        """
        while True:
            before = self._state
            if before is _State.STABLE:
                return self._keep_alive()
            if before is _State.UNJOINED:
                self._join(tuple(sorted(topics)))
            elif before is _State.JOINING:
                self._finish_join()
            else:
                assigned = self._finish_sync()
                if assigned is not None:
                    return assigned
            if self._state is before:
                return None

    def leave(self) -> None:
        """Leave the group, unless the member is static. Errors mean that it is out already."""
        self.seat.leave()
        self._forget_membership()

    # -- the states ------------------------------------------------------------------------------

    def _keep_alive(self) -> Revoked | None:
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        try:
            self._coordinator.heartbeat(self._group, self.member_id, self.generation)
        except RebalanceInProgress:
            self._rejoin = True
        except _LOST:
            self._forget_membership()
            return Revoked(lost=True)
        if self._rejoin:
            self._state = _State.UNJOINED
            return Revoked(lost=False)
        return None

    def _join(self, topics: tuple[str, ...]) -> None:
        self._rejoin = False
        subscription = encode_subscription(
            Subscription(topics, owned_partitions=self._owned, generation=self.generation)
        )
        joining = self._coordinator.join_group(
            self._group,
            self.member_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            protocols=[(name, subscription) for name in self._assignors],
            client_id=self._client_id,
            group_instance_id=self._instance_id,
            on_rebalance=self._interrupt.set,
        )
        self._joining = self.seat.joining = joining
        joining.add_done_callback(_setting(self._interrupt))
        self._state = _State.JOINING
        self._heartbeat_due = time.monotonic() + self._heartbeat_s

    def _finish_join(self) -> None:
        joining = self._joining
        assert joining is not None
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        if not joining.done():
            return
        self._joining = self.seat.joining = None
        self._state = _State.UNJOINED
        try:
            joined = joining.result()
        except _LOST:
            self._forget_membership()
            return
        except RebalanceInProgress:
            return
        self.seat.member_id = joined.member_id
        self.generation = joined.generation
        try:
            assignments = self._assignments(joined) if joined.leader_id == joined.member_id else {}
        except BaseException:
            # The others wait for this leader: they shall have another one.
            self.leave()
            raise
        try:
            self._syncing = self._coordinator.sync_group(
                self._group, self.member_id, self.generation, assignments
            )
        except RebalanceInProgress:
            return
        except _LOST:
            self._forget_membership()
            return
        self._syncing.add_done_callback(_setting(self._interrupt))
        self._state = _State.SYNCING

    def _assignments(self, joined: JoinResult) -> dict[str, bytes]:
        """The leader's task: member id -> assignment."""
        subscriptions = {each.member_id: decode_subscription(each.metadata) for each in joined.members}
        partitions: dict[str, int] = {}
        for topic in {topic for subscription in subscriptions.values() for topic in subscription.topics}:
            try:
                partitions[topic] = self._partitions_of(topic)
            except TopicNotFound:
                continue
        assigned = self._assignors[joined.protocol].assign(partitions, subscriptions)
        shares = _checked_shares(joined.protocol, assigned, subscriptions)
        return {member: encode_assignment(Assignment(tuple(share))) for member, share in shares.items()}

    def _finish_sync(self) -> Assigned | None:
        syncing = self._syncing
        assert syncing is not None
        if not syncing.done():
            self._knock()
            return None
        self._syncing = None
        self._state = _State.UNJOINED
        try:
            assignment = decode_assignment(syncing.result())
        except _LOST:
            self._forget_membership()
            return None
        except RebalanceInProgress:
            return None
        self._state = _State.STABLE
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        self._owned = tuple(sorted(assignment.partitions))
        return Assigned(self._owned)

    def _knock(self) -> None:
        """Show life while the leader takes its time; what the answer says, the sync will say too."""
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        try:
            self._coordinator.heartbeat(self._group, self.member_id, self.generation)
        except (RebalanceInProgress, *_LOST):
            pass

    def _forget_membership(self) -> None:
        self.seat.member_id = ""
        self.seat.joining = None
        self.generation = -1
        self._owned = ()
        self._joining = self._syncing = None
        self._state = _State.UNJOINED


class MemberOffsets:
    """A group's offsets at its coordinator, as an `OffsetStore`; committed in the member's generation.

    Without a membership the commits are those of a consumer that assigns its partitions itself.
    """

    def __init__(self, coordinator: Coordinator, membership: Membership | None) -> None:
        self._coordinator = coordinator
        self._membership = membership

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._coordinator.committed_offsets(group, partitions)

    def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Raises CommitFailed where the partitions are, or soon will be, somebody else's."""
        member_id, generation = "", -1
        if self._membership is not None:
            member_id, generation = self._membership.member_id, self._membership.generation
            if not member_id:
                raise CommitFailed(f"{_names(offsets)}: this consumer is no longer in the group {group!r}")
        try:
            self._coordinator.commit_offsets(group, offsets, member_id=member_id, generation=generation)
        except (*_LOST, RebalanceInProgress) as error:
            raise CommitFailed(
                f"{_names(offsets)}: the group {group!r} gave the partitions to others since ({error}); "
                "poll more often, or raise max_poll_interval_ms"
            ) from error


def _checked_shares(
    assignor: str, assigned: object, members: Mapping[str, object]
) -> dict[str, list[TopicPartition]]:
    """What an assignor returned, which may be the user's own. Raises InvalidType, InvalidArgument."""
    if not isinstance(assigned, Mapping) or not assigned.keys() <= members.keys():
        raise InvalidType(
            f"the assignor {assignor!r} must return a dict of member id -> partitions, not {shown(assigned)}"
        )
    shares = {}
    owners: dict[TopicPartition, str] = {}
    for member, given in assigned.items():
        try:
            shares[member] = as_topic_partitions(given)
        except (InvalidType, InvalidArgument) as error:
            raise type(error)(f"the assignor {assignor!r} gave {member} what is none: {error}") from None
        for tp in shares[member]:
            if owners.setdefault(tp, member) != member:
                raise InvalidArgument(f"the assignor {assignor!r} gave {tp} to {owners[tp]} and to {member}")
    return shares


def _names(offsets: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, offsets))


# -- futures, threads ------------------------------------------------------------------------------


def _setting(interrupt: Interrupt) -> Callable[[object], None]:
    """A future's callback that wakes the client; it refers to nothing else of it."""
    return lambda _: interrupt.set()


_departures: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_usher_lock = threading.Lock()
_usher: threading.Thread | None = None


def _start_usher() -> None:
    """One thread for the process sees out whoever was forgotten."""
    global _usher
    with _usher_lock:
        if _usher is None or not _usher.is_alive():
            _usher = threading.Thread(target=_see_out, name="embedlog-group-departures", daemon=True)
            _usher.start()


def _see_out() -> None:
    while True:
        depart = _departures.get()
        try:
            depart()
        except Exception:
            _logger.exception("a consumer that was forgotten could not leave its group")
        # What it refers to shall not live until the next one comes.
        del depart


def _forget_parent() -> None:
    """A forked child must not act for its parent's members, nor wait on a lock that nobody holds here."""
    global _departures, _usher_lock, _usher
    _departures, _usher_lock, _usher = queue.SimpleQueue(), threading.Lock(), None


os.register_at_fork(after_in_child=_forget_parent)
