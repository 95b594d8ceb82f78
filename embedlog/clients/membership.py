"""One member's side of Kafka's classic group protocol: join, sync, heartbeat, leave.

              join                    future done                future done
    UNJOINED ------> JOINING ------------------------> SYNCING ---------------> STABLE
        ^               | error         (leader: assigns) | error                  |
        '---------------+---------------------------------'                        |
        '-------- Revoked (the client gives its partitions up, then goes on) ------'

A client calls `advance` at every turn. It never blocks: join and sync depend on the other members, so they
are futures, kept from one call to the next, that set the client's `Interrupt` when done. `advance` returns
what the client must act on as `Assigned` or `Revoked`, one at a time; the call after a `Revoked` joins again.
Rebalancing is eager: a member gives up all partitions before it joins.

Membership ends by `leave`, or when the client is garbage-collected without `close`. The garbage collector may
run anywhere, even under the coordinator's lock, so another thread leaves the group (runtime/finalizing.py).

A static member whose place another consumer has taken is fenced for good: each `advance` raises
FencedInstance, since to join again would take the place back, and neither would ever stop.

Invariants: a member owns partitions only in STABLE, in the generation that assigned them; every member id
that a join returns is left in the end, even if the client closes before the join is answered.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, TypeAlias

from ..backends.port import Backend, Interrupt
from ..backends.port.coordinators import Coordinator
from ..config import MAX_INT32
from ..errors import (
    CommitFailed,
    EmbedlogError,
    FencedInstance,
    GroupError,
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
from ..runtime.finalizing import run_soon, when_collected
from ..runtime.locks import calls_out
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


class Assigned(NamedTuple):
    """The member owns exactly these partitions now.

    of_group: the partitions of all members, if this one has assigned them; else None.
    """

    partitions: tuple[TopicPartition, ...]
    of_group: tuple[TopicPartition, ...] | None


class Revoked(NamedTuple):
    """The member must give up its partitions. `lost`: others may own them already; commits would fail."""

    lost: bool


Change: TypeAlias = Assigned | Revoked


class Committer(NamedTuple):
    """The member that commits, as the coordinator knows it; by default none."""

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class _State(enum.Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Departure:
    """What it takes to leave a group. The finalizer holds it, so it must not refer to the client.

    A static member does not leave, as in Kafka: it may restart and keep its partitions (KIP-345).
    """

    def __init__(self, coordinator: Coordinator, group: str, *, static: bool) -> None:
        self.coordinator = coordinator
        self.group = group
        self.static = static
        self.member_id = ""
        self.joining: Future[JoinResult] | None = None

    def leave(self) -> None:
        """Leave now, and withdraw a pending join. Ignores errors: they mean it is out."""
        joining, self.joining = self.joining, None
        if self.static or (joining is not None and joining.cancel()):
            return
        if joining is not None and not self.member_id:  # it is being answered
            # The callback may run under the coordinator's lock.
            joining.add_done_callback(lambda _: run_soon(self._late_leave(joining)))
            return
        self._leave(self.member_id)

    def _late_leave(self, joined: Future[JoinResult]) -> Callable[[], None]:
        def leave() -> None:
            if not joined.cancelled() and joined.exception() is None:
                self._leave(joined.result().member_id)

        return leave

    def _leave(self, member_id: str) -> None:
        if member_id:
            try:
                self.coordinator.leave_group(self.group, member_id)
            except EmbedlogError:
                pass


class Membership:
    """A client's membership of one group. For one thread at a time.

    Args:
        assignors: the strategies that this member supports, best first.
        max_poll_interval_ms: the member is dead if the client stays away for this long; a rebalance waits as
            long for it to join again.
        interrupt: set when `advance` has something to do.

    Raises GroupError if the log has no coordinator.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        assignors: Sequence[Assignor],
        max_poll_interval_ms: int,
        client_id: str,
        group_instance_id: str | None,
        interrupt: Interrupt,
    ) -> None:
        coordinator = backend.coordinator
        if coordinator is None:
            raise GroupError(
                f"cannot join the group {group!r}: a reader process has no consumer groups; give "
                "offset_store=embedlog.FileOffsetStore(path), and this consumer reads all partitions"
            )
        self.departure = Departure(coordinator, group, static=group_instance_id is not None)
        self._finalizer = when_collected(self, self.departure.leave)
        self.generation = -1
        # Ever; one that the group has removed since has records whose offsets it cannot commit.
        self.has_joined = False
        self._backend = backend
        self.coordinator = coordinator
        self._group = group
        self._assignors = {assignor.name: assignor for assignor in assignors}
        heartbeat_ms = min(HEARTBEAT_INTERVAL_MS, max_poll_interval_ms // 3)
        # From the last `advance`, not from the last heartbeat that one sent.
        self._session_timeout_ms = min(max_poll_interval_ms + heartbeat_ms, MAX_INT32)
        self._rebalance_timeout_ms = max_poll_interval_ms
        self._client_id = client_id
        self.instance_id = group_instance_id
        self._interrupt = interrupt
        self._state = _State.UNJOINED
        self._joining: Future[JoinResult] | None = None
        self._syncing: Future[bytes] | None = None
        self._owned: tuple[TopicPartition, ...] = ()
        self._of_group: tuple[TopicPartition, ...] | None = None
        self._rejoin = False
        self._fenced: FencedInstance | None = None
        self._heartbeat_due = 0.0
        self._heartbeat_s = heartbeat_ms / 1000

    @property
    def member_id(self) -> str:
        return self.departure.member_id

    @property
    def is_stable(self) -> bool:
        """Whether the member owns its assignment."""
        return self._state is _State.STABLE

    @property
    def is_fenced(self) -> bool:
        """Whether another consumer has this one's group_instance_id, and its partitions."""
        return self._fenced is not None

    @property
    def heartbeat_due(self) -> float:
        """The latest time to call `advance` again (time.monotonic)."""
        return self._heartbeat_due

    def request_rejoin(self) -> None:
        """The subscription has changed: rebalance at the next `advance`."""
        self._rejoin = True

    def advance(self, topics: Iterable[str]) -> Change | None:
        """Proceed without blocking. None if nothing changed for the client.

        Raises InconsistentProtocol, FencedInstance, InvalidGroup and what the coordinator raises otherwise.
        """
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        try:
            while True:
                last_state = self._state
                if last_state is _State.STABLE:
                    return self._keep_alive()
                if last_state is _State.UNJOINED:
                    self._join(tuple(sorted(topics)))
                elif last_state is _State.JOINING:
                    self._finish_join()
                else:
                    assigned = self._finish_sync()
                    if assigned is not None:
                        return assigned
                if self._state is last_state:
                    return None
        except FencedInstance as error:
            self._fenced = error
            raise

    def leave(self) -> None:
        """Leave the group for good, unless the member is static."""
        self._finalizer.detach()
        self._leave()

    def _leave(self) -> None:
        self.departure.leave()
        self._forget_membership()

    # -- the states ------------------------------------------------------------------------------

    def _keep_alive(self) -> Revoked | None:
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        try:
            self._heartbeat()
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
        joining = self.coordinator.join_group(
            self._group,
            self.member_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            protocols=[(name, subscription) for name in self._assignors],
            client_id=self._client_id,
            group_instance_id=self.instance_id,
            on_rebalance=self._interrupt.set,
        )
        self._joining = self.departure.joining = joining
        joining.add_done_callback(_setting(self._interrupt))
        self._state = _State.JOINING
        self._heartbeat_due = time.monotonic() + self._heartbeat_s

    def _finish_join(self) -> None:
        joining = self._joining
        assert joining is not None
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        if not joining.done():
            return
        self._joining = self.departure.joining = None
        self._state = _State.UNJOINED
        try:
            joined = joining.result()
        except _LOST:
            self._forget_membership()
            return
        except RebalanceInProgress:
            return
        self.departure.member_id = joined.member_id
        self.generation = joined.generation
        self.has_joined = True
        self._of_group = None
        try:
            assignments = self._assignments(joined) if joined.leader_id == joined.member_id else {}
        except BaseException:
            # The others wait for this leader: let them elect another one.
            self._leave()
            raise
        try:
            self._syncing = self.coordinator.sync_group(
                self._group,
                self.member_id,
                self.generation,
                assignments,
                group_instance_id=self.instance_id,
            )
        except RebalanceInProgress:
            return
        except _LOST:
            self._forget_membership()
            return
        self._syncing.add_done_callback(_setting(self._interrupt))
        self._state = _State.SYNCING

    @calls_out
    def _assignments(self, joined: JoinResult) -> dict[str, bytes]:
        """The assignments of all members, by the leader: member id -> assignment."""
        subscriptions = {member.member_id: decode_subscription(member.metadata) for member in joined.members}
        partitions: dict[str, int] = {}
        for topic in {topic for subscription in subscriptions.values() for topic in subscription.topics}:
            try:
                partitions[topic] = self._backend.describe_topic(topic).partitions
            except TopicNotFound:
                continue
        assigned = self._assignors[joined.protocol].assign(partitions, subscriptions)
        shares = _checked_shares(joined.protocol, assigned, subscriptions)
        self._of_group = tuple(sorted(tp for share in shares.values() for tp in share))
        return {member: encode_assignment(Assignment(tuple(share))) for member, share in shares.items()}

    def _finish_sync(self) -> Assigned | None:
        syncing = self._syncing
        assert syncing is not None
        if not syncing.done():
            self._stay_alive()
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
        return Assigned(self._owned, self._of_group)

    def _stay_alive(self) -> None:
        """Heartbeat while the sync is pending. The sync reports the same errors."""
        self._heartbeat_due = time.monotonic() + self._heartbeat_s
        try:
            self._heartbeat()
        except (RebalanceInProgress, *_LOST):
            pass

    def _heartbeat(self) -> None:
        self.coordinator.heartbeat(
            self._group, self.member_id, self.generation, group_instance_id=self.instance_id
        )

    def _forget_membership(self) -> None:
        self.departure.member_id = ""
        self.departure.joining = None
        self.generation = -1
        self._owned = ()
        self._joining = self._syncing = None
        self._state = _State.UNJOINED


class MemberOffsets:
    """The group's offsets at its coordinator, as an `OffsetStore`; commits in the member's generation.

    Without a membership it commits as a consumer that assigns its own partitions.
    """

    def __init__(
        self, coordinator: Coordinator, membership: Membership | None, *, read_committed: bool
    ) -> None:
        """read_committed: offsets that an open transaction may change are not loaded."""
        self._coordinator = coordinator
        self._membership = membership
        self._read_committed = read_committed

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Raises UnstableOffsetCommit."""
        return self._coordinator.committed_offsets(group, partitions, require_stable=self._read_committed)

    def stored(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """As `load`, also of what an open transaction may change."""
        return self._coordinator.committed_offsets(group, partitions)

    def save(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Raises CommitFailed if the partitions are being, or have been, reassigned; FencedInstance."""
        member = self.member(group, offsets)
        try:
            self._coordinator.commit_offsets(group, offsets, **member._asdict())
        except (*_LOST, RebalanceInProgress) as error:
            raise CommitFailed(
                f"{_names(offsets)}: the group {group!r} has reassigned the partitions ({error}); "
                "poll more often, or raise max_poll_interval_ms"
            ) from error

    def member(self, group: str, offsets: Collection[TopicPartition]) -> Committer:
        """Who commits. Raises CommitFailed if the group has removed the member."""
        if self._membership is None:
            return Committer()
        member_id = self._membership.member_id
        if not offsets and not self._membership.has_joined:
            return Committer()  # a poll may return before the group's coordinator is there
        if not member_id:
            raise CommitFailed(f"{_names(offsets)}: this consumer is no longer in the group {group!r}")
        return Committer(member_id, self._membership.generation, self._membership.instance_id)


def _checked_shares(
    assignor: str, assigned: object, members: Mapping[str, object]
) -> dict[str, list[TopicPartition]]:
    """The result of an assignor, perhaps a user's own, checked. Raises InvalidType, InvalidArgument."""
    if not isinstance(assigned, Mapping) or not assigned.keys() <= members.keys():
        raise InvalidType(
            f"the assignor {assignor!r} must return a dict of member id -> partitions, not {shown(assigned)}"
        )
    shares = {}
    owners: dict[TopicPartition, str] = {}
    for member, share in assigned.items():
        try:
            shares[member] = as_topic_partitions(share)
        except (InvalidType, InvalidArgument) as error:
            raise type(error)(f"the assignor {assignor!r} gave {member} an invalid share: {error}") from None
        for tp in shares[member]:
            if owners.setdefault(tp, member) != member:
                raise InvalidArgument(f"the assignor {assignor!r} gave {tp} to {owners[tp]} and to {member}")
    return shares


def _names(offsets: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, offsets))


def _setting(interrupt: Interrupt) -> Callable[[object], None]:
    """A callback of a future that sets the interrupt; it holds no reference to the client."""
    return lambda _: interrupt.set()
