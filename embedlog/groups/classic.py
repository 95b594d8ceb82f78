"""The consumer-group coordinator as a state machine: no I/O, no threads, no clock; time comes in as now_ms.

    Empty ---first join---> PreparingRebalance ---all joined, or time up---> CompletingRebalance
      ^                       ^   |       ^                                     |        |
      '----nobody is left-----|---'       '---join, leave, session expiry-------'        |
                              |                                                          v
                              '-------join with changes, leave, session expiry-------- Stable
    (any) ---deleted, coordinator closed---> Dead                   (the leader's sync leads to Stable)

Every operation returns the effects it had, in order, for the caller to carry out. Joins and syncs are
answered by effects only, perhaps of a later operation: the caller gives each a `request`, any object but
None, and finds it again in JoinCompleted, JoinFailed, SyncCompleted or SyncFailed. Heartbeat, leave and
check_commit answer at once, by returning or raising. `tick` does what time alone brings about, and
next_deadline_ms says when it is due.

In a join phase every member asks to join; it ends when all have (a newcomer that was told its id and has
not come back with it is waited for, too) or when the longest rebalance timeout is over: who has not joined
by then is out, static members too (Kafka keeps those until their session expires, and hands partitions to
somebody who is not there). Then the generation goes up by one, the members vote for a protocol, and the
leader, who is told all subscriptions, sends the assignment with its sync; the others' syncs wait for it.

Invariants: the generation goes up by exactly one per completed join phase and never down; every request is
answered exactly once; a member has at most one join and one sync outstanding, the newer failing the older;
a session cannot expire while the member waits for an answer (a newcomer's join itself expires after five
minutes); commits are accepted from members of the current generation only.

Not for sharing between threads: the caller holds its lock around every call.

Source: Kafka's GroupCoordinator (2.7 design, section on the coordinator; KIP-62, 134, 345, 394, 814).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import (
    EmbedlogError,
    FencedInstance,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidArgument,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from ..model import GroupMetadata, JoinResult
from .events import (
    Effect,
    GroupDescription,
    JoinCompleted,
    JoinFailed,
    MetadataChanged,
    RebalanceStarted,
    State,
    SyncCompleted,
    SyncFailed,
)
from .member import Member, Offer, check_offer, check_room, elected_protocol, new_member_id


class Group:
    """One consumer group.

    make_member_id: makes an id out of the client id (a static member's group_instance_id).
    same_metadata: whether a restarted static member's new subscription asks for the same as its old one;
    then it takes its place again without a rebalance. initial_rebalance_delay_ms: how long the first join
    of an empty group waits for others, again for each that comes, up to the rebalance timeout.
    """

    def __init__(
        self,
        name: str,
        *,
        initial_rebalance_delay_ms: int = 0,
        make_member_id: Callable[[str], str] = new_member_id,
        same_metadata: Callable[[bytes, bytes], bool] = operator.eq,
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self._make_member_id = make_member_id
        self._same_metadata = same_metadata
        self._initial_delay_ms = initial_rebalance_delay_ms
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # group_instance_id -> member id
        self._pending: dict[str, int] = {}  # ids handed out with MemberIdRequired -> deadline
        self._unsynced: set[str] = set()  # members of this generation that have not sent their sync
        self._join_deadline_ms = 0
        self._sync_deadline_ms = 0
        self._initial_left_ms: int | None = None  # not None: in the initial delay; how much longer at most
        self._newcomers = False  # somebody joined since the initial delay began anew
        self._effects: list[Effect] = []

    # -- operations
    def join(
        self,
        member_id: str,
        *,
        request: object,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        client_id: str,
        client_host: str,
        now_ms: int,
        group_instance_id: str | None = None,
        require_known_member: bool = False,
        max_members: int | None = None,
    ) -> list[Effect]:
        """A member joins (member_id "") or joins again; the answer is JoinCompleted or JoinFailed.

        protocols: (name, subscription bytes) in order of preference. require_known_member: a newcomer
        without a group_instance_id is only given its id, by MemberIdRequired (KIP-394). max_members: with
        so many, counting those who were given an id, there is no room for another.
        Fails with UnknownMember, FencedInstance, InconsistentProtocol, RebalanceInProgress (a newer join
        of the same member took its place), GroupFull, InvalidArgument, GroupNotFound (the group is Dead).
        """
        offer = Offer(
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple((name, bytes(metadata)) for name, metadata in protocols),
            client_id=client_id,
            client_host=client_host,
            group_instance_id=group_instance_id,
        )
        try:
            self._check_alive()
            check_offer(offer, self._members.values(), self.protocol_type)
            if member_id:
                self._join_again(member_id, offer, request, now_ms)
            elif group_instance_id is not None and group_instance_id in self._static:
                self._replace_static(self._static[group_instance_id], offer, request, now_ms)
            else:
                check_room(self.name, len(self._members) + len(self._pending), max_members)
                self._join_first(offer, request, require_known_member, now_ms)
        except EmbedlogError as error:
            self._effects.append(JoinFailed(request, error))
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        *,
        request: object,
        now_ms: int,
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> list[Effect]:
        """A member asks for its assignment; the leader brings everybody's (member id -> bytes).

        protocol_type, protocol: what the member thinks the group uses, None for nothing (KIP-559).
        Answered by SyncCompleted or SyncFailed (UnknownMember, FencedInstance, IllegalGeneration,
        InconsistentProtocol, RebalanceInProgress, GroupNotFound). What a follower assigns is ignored.
        """
        try:
            self._check_alive()
            member = self._current(member_id, group_instance_id)
            self._check_generation(member, generation)
            if protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol):
                raise InconsistentProtocol(f"the group uses {self.protocol_type!r} {self.protocol!r}")
            if self.state is State.PREPARING_REBALANCE:
                raise self._rebalancing()
        except EmbedlogError as error:
            self._effects.append(SyncFailed(request, error))
            return self._drain()
        self._fail_sync(member, self._superseded("sync"))
        member.sync_request = request
        self._unsynced.discard(member_id)
        if self.state is State.STABLE:
            self._answer_sync(member, now_ms)
        elif member_id == self.leader_id:
            self.state = State.STABLE
            for other in self._members.values():
                other.assignment = bytes(assignments.get(other.member_id, b""))
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            for other in self._members.values():
                self._answer_sync(other, now_ms)
        return self._drain()

    def heartbeat(
        self, member_id: str, generation: int, *, now_ms: int, group_instance_id: str | None = None
    ) -> None:
        """The member is alive: its session begins anew.

        Raises RebalanceInProgress (join again), UnknownMember, FencedInstance, IllegalGeneration,
        GroupNotFound.
        """
        self._check_alive()
        member = self._current(member_id, group_instance_id)
        self._check_generation(member, generation)
        member.renew(now_ms)
        if self.state is State.PREPARING_REBALANCE:
            raise self._rebalancing()

    def leave(self, member_id: str, *, now_ms: int, group_instance_id: str | None = None) -> list[Effect]:
        """The member leaves; what it has outstanding fails with UnknownMember.

        With member_id "" the static member of that group_instance_id is removed, whoever it is now.
        Raises UnknownMember, FencedInstance, GroupNotFound.
        """
        self._check_alive()
        if member_id in self._pending:
            del self._pending[member_id]
        else:
            if not member_id and group_instance_id is not None:
                member_id = self._static.get(group_instance_id, "")
            self._remove(self._current(member_id, group_instance_id))
            self._prepare_if_settled(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def check_commit(
        self, member_id: str, generation: int, *, now_ms: int, group_instance_id: str | None = None
    ) -> None:
        """Whether a commit is allowed: returns, or raises what the committer must be told.

        Members of the current generation may commit, also while a rebalance is being prepared: that is
        when they finish what they were given. Between join and sync nobody has anything to commit:
        RebalanceInProgress. Without a member id, and generation < 0, commits come from outside (an
        assigned consumer, an administrator) and need an Empty group: else UnknownMember. Also raises
        FencedInstance, IllegalGeneration, GroupNotFound. Counts as a heartbeat.
        """
        self._check_alive()
        if generation < 0 and not member_id and group_instance_id is None:
            if self.state is not State.EMPTY:
                raise UnknownMember(f"group {self.name!r} has members: only they can commit")
            return
        member = self._current(member_id, group_instance_id)
        self._check_generation(member, generation)
        if self.state is State.COMPLETING_REBALANCE:
            raise self._rebalancing()
        member.renew(now_ms)

    @property
    def is_unused(self) -> bool:
        """Nobody is in it or about to join."""
        return self.state is State.EMPTY and not self._pending

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Makes all members join again, whatever the group was at (an assignment could not be stored)."""
        self._prepare_if_settled(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def tick(self, now_ms: int) -> list[Effect]:
        """Does what is due: sessions, ids never used, joins and syncs that did not come in time."""
        self._pending = {member: due for member, due in self._pending.items() if due > now_ms}
        out = [m for m in self._members.values() if m.can_expire() and m.deadline_ms <= now_ms]
        if self._unsynced and self._sync_deadline_ms <= now_ms:
            out.extend(m for m in self._members.values() if m.member_id in self._unsynced and m not in out)
        for member in out:
            self._remove(member)
        if out:
            self._prepare_if_settled(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def next_deadline_ms(self) -> int | None:
        """When tick is due next, on the clock of now_ms; None if only a member can change anything."""
        return min(self._deadlines(), default=None)

    def close(self, error: EmbedlogError) -> list[Effect]:
        """The group is Dead: what is outstanding fails with `error`, what comes later with GroupNotFound."""
        for member in self._members.values():
            self._fail_join(member, error)
            self._fail_sync(member, error)
        self._members.clear()
        self._static.clear()
        self._pending.clear()
        self._unsynced.clear()
        self.state, self.protocol, self.leader_id = State.DEAD, None, None
        return self._drain()

    def restore(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Goes on where MetadataChanged left off: with members the group is Stable, their sessions new.

        A coordinator whose members died with it restores `metadata._replace(members=())`: nobody is
        waited for, and generations are not used twice. Raises InvalidArgument for members without a
        protocol, or if the group has been used already.
        """
        if self.generation or self.state is not State.EMPTY:
            raise InvalidArgument(f"group {self.name!r} is in use: it cannot be restored")
        if metadata.members and metadata.protocol is None:
            raise InvalidArgument(f"group {self.name!r} was stored with members and without a protocol")
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type
        for stored in metadata.members:
            offer = Offer(
                session_timeout_ms=stored.session_timeout_ms,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                protocol_type=metadata.protocol_type,
                protocols=((metadata.protocol or "", stored.subscription),),
                client_id=stored.client_id,
                client_host=stored.client_host,
                group_instance_id=stored.group_instance_id,
            )
            member = Member(stored.member_id, offer, is_new=False, assignment=stored.assignment)
            member.renew(now_ms)
            self._enter(member)
        if self._members:
            self.state = State.STABLE
            self.protocol = metadata.protocol
            self.leader_id = metadata.leader_id

    def metadata(self) -> GroupMetadata:
        """What `__consumer_offsets` keeps of the group; state_timestamp_ms is left at -1."""
        return GroupMetadata(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader_id=self.leader_id,
            state_timestamp_ms=-1,
            members=tuple(member.stored(self.protocol) for member in self._members.values()),
        )

    def describe(self) -> GroupDescription:
        """The group as it stands, for people."""
        stable = self.state is State.STABLE
        return GroupDescription(
            group=self.name,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            generation=self.generation,
            leader_id=self.leader_id,
            members=tuple(m.described(self.protocol, stable=stable) for m in self._members.values()),
        )

    # -- joining
    def _join_first(self, offer: Offer, request: object, require_known: bool, now_ms: int) -> None:
        instance = offer.group_instance_id
        member_id = self._make_member_id(offer.client_id if instance is None else instance)
        if require_known and instance is None:
            self._pending[member_id] = now_ms + offer.session_timeout_ms
            raise MemberIdRequired(f"join again as {member_id!r}", member_id=member_id)
        self._add(member_id, offer, request, now_ms)

    def _join_again(self, member_id: str, offer: Offer, request: object, now_ms: int) -> None:
        if member_id in self._pending and offer.group_instance_id is None:
            del self._pending[member_id]
            self._add(member_id, offer, request, now_ms)
            return
        member = self._current(member_id, offer.group_instance_id)
        unchanged = member.offer.protocols == offer.protocols
        # A leader of a stable group joins to have partitions assigned anew (a topic grew).
        settled = self.state is State.COMPLETING_REBALANCE or (
            self.state is State.STABLE and member_id != self.leader_id
        )
        self._set_join(member, offer, request, now_ms)
        if unchanged and settled:  # it did not get our answer: the same once more
            self._answer_join(member, now_ms)
        else:
            self._prepare_if_settled(now_ms)

    def _replace_static(self, old_id: str, offer: Offer, request: object, now_ms: int) -> None:
        """A static member came back without its id: the new id takes the old one's place."""
        member = self._members.pop(old_id)
        fenced = FencedInstance(f"another consumer took over group_instance_id {offer.group_instance_id!r}")
        self._fail_join(member, fenced)
        self._fail_sync(member, fenced)
        member.member_id = self._make_member_id(offer.group_instance_id or "")
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member.member_id)
        if self.leader_id == old_id:
            self.leader_id = member.member_id
        before = member.metadata(self.protocol)
        self._enter(member)
        self._set_join(member, offer, request, now_ms)
        if (
            self.state is State.STABLE
            and self._elected_protocol() == self.protocol
            and self._same_metadata(before, member.metadata(self.protocol))
        ):
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            self._answer_join(member, now_ms, skip_assignment=member.member_id == self.leader_id)
        else:
            self._prepare_if_settled(now_ms)

    def _add(self, member_id: str, offer: Offer, request: object, now_ms: int) -> None:
        if not self._members:
            self.protocol_type = offer.protocol_type
        member = Member(member_id, offer, join_request=request)
        member.renew(now_ms)
        self._enter(member)
        if self.leader_id is None:
            self.leader_id = member_id
        if self.state is State.PREPARING_REBALANCE:
            self._newcomers = True
        elif self.state is State.EMPTY:
            self._prepare(now_ms)
        else:
            self._prepare_if_settled(now_ms)

    def _prepare_if_settled(self, now_ms: int) -> None:
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> None:
        """A join phase begins."""
        for member in self._members.values():
            if member.sync_request is not None:
                member.renew(now_ms)
                self._fail_sync(member, self._rebalancing())
        self._unsynced.clear()
        timeout_ms = self._rebalance_timeout_ms()
        if self.state is State.EMPTY:
            self._initial_left_ms = max(timeout_ms - self._initial_delay_ms, 0)
            self._join_deadline_ms = now_ms + self._initial_delay_ms
        else:
            self._initial_left_ms = None
            self._join_deadline_ms = now_ms + timeout_ms
        self._newcomers = False
        self.state = State.PREPARING_REBALANCE
        absent = tuple(m.member_id for m in self._members.values() if m.join_request is None)
        if absent:
            self._effects.append(RebalanceStarted(self.name, absent))

    def _complete_join_if_ready(self, now_ms: int) -> None:
        if self.state is not State.PREPARING_REBALANCE:
            return
        due = self._join_deadline_ms <= now_ms
        if self._initial_left_ms is not None:
            if due and self._newcomers and self._initial_left_ms:
                longer_ms = min(self._initial_delay_ms, self._initial_left_ms)
                self._initial_left_ms -= longer_ms
                self._join_deadline_ms = now_ms + longer_ms
                self._newcomers = False
            elif due:
                self._complete_join(now_ms)
        elif due or not (self._pending or any(m.join_request is None for m in self._members.values())):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        for member in [m for m in self._members.values() if m.join_request is None]:
            self._remove(member)
        self._initial_left_ms = None
        self.generation += 1
        if not self._members:
            self.state, self.protocol, self.leader_id = State.EMPTY, None, None
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            return
        self.state = State.COMPLETING_REBALANCE
        self.protocol = self._elected_protocol()
        self._unsynced = set(self._members)
        self._sync_deadline_ms = now_ms + self._rebalance_timeout_ms()
        for member in self._members.values():
            member.assignment = b""
            self._answer_join(member, now_ms)

    def _elected_protocol(self) -> str:
        members = self._members.values()
        return elected_protocol(members, self._members.get(self.leader_id or "") or next(iter(members)))

    # -- members
    def _enter(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.offer.group_instance_id is not None:
            self._static[member.offer.group_instance_id] = member.member_id

    def _remove(self, member: Member) -> None:
        gone = UnknownMember(f"{member.member_id!r} is no longer in group {self.name!r}: join again")
        self._fail_join(member, gone)
        self._fail_sync(member, gone)
        del self._members[member.member_id]
        self._unsynced.discard(member.member_id)
        instance = member.offer.group_instance_id
        if instance is not None:
            del self._static[instance]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def _current(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member, if the id (and the instance's claim to it) still holds."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is not None and holder != member_id:
                raise FencedInstance(f"another consumer took over group_instance_id {group_instance_id!r}")
            if holder is None:
                raise UnknownMember(f"group {self.name!r} has no group_instance_id {group_instance_id!r}")
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.name!r} has no member {member_id!r}: join again")
        return member

    def _set_join(self, member: Member, offer: Offer, request: object, now_ms: int) -> None:
        self._fail_join(member, self._superseded("join"))
        # The instance id is the member's identity: it comes with the first join only.
        member.offer = offer._replace(group_instance_id=member.offer.group_instance_id)
        member.join_request = request
        member.renew(now_ms)

    def _answer_join(self, member: Member, now_ms: int, *, skip_assignment: bool = False) -> None:
        leads = member.member_id == self.leader_id
        result = JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol or "",
            leader_id=self.leader_id or "",
            members=tuple(m.joined(self.protocol) for m in self._members.values()) if leads else (),
            skip_assignment=skip_assignment,
        )
        self._effects.append(JoinCompleted(member.join_request, result))
        member.join_request = None
        member.is_new = False
        member.renew(now_ms)

    def _answer_sync(self, member: Member, now_ms: int) -> None:
        if member.sync_request is not None:
            self._effects.append(SyncCompleted(member.sync_request, member.assignment))
            member.sync_request = None
            member.renew(now_ms)

    def _fail_join(self, member: Member, error: EmbedlogError) -> None:
        if member.join_request is not None:
            self._effects.append(JoinFailed(member.join_request, error))
            member.join_request = None

    def _fail_sync(self, member: Member, error: EmbedlogError) -> None:
        if member.sync_request is not None:
            self._effects.append(SyncFailed(member.sync_request, error))
            member.sync_request = None

    # -- checks and small things
    def _check_alive(self) -> None:
        if self.state is State.DEAD:
            raise GroupNotFound(f"group {self.name!r} is gone")

    def _check_generation(self, member: Member, generation: int) -> None:
        if member.is_new or generation != self.generation:
            raise IllegalGeneration(
                f"group {self.name!r} is in generation {self.generation}, not {generation}: join again"
            )

    def _rebalancing(self) -> RebalanceInProgress:
        return RebalanceInProgress(f"group {self.name!r} is rebalancing: join again")

    def _superseded(self, what: str) -> RebalanceInProgress:
        return RebalanceInProgress(f"a newer {what} of the same member took this one's place")

    def _rebalance_timeout_ms(self) -> int:
        return max((m.offer.rebalance_timeout_ms for m in self._members.values()), default=0)

    def _deadlines(self) -> Iterator[int]:
        yield from self._pending.values()
        for member in self._members.values():
            if member.can_expire():
                yield member.deadline_ms
        if self.state is State.PREPARING_REBALANCE:
            yield self._join_deadline_ms
        if self._unsynced:
            yield self._sync_deadline_ms

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
