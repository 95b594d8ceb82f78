"""The classic consumer-group protocol as a state machine: no I/O, no threads, no clock (time is now_ms).

    Empty ---first join---> PreparingRebalance ---all joined, or timeout---> CompletingRebalance
      ^                       ^   |       ^                                     |        |
      '----no members left----|---'       '---join, leave, session expiry-------'        |
                              |                                                          v
                              '-------join with changes, leave, session expiry-------- Stable
    (any) ---deleted, coordinator closed---> Dead                   (the leader's sync leads to Stable)

Every operation returns its effects, in order, for the caller to carry out. Effects are the only answer to
joins and syncs, perhaps those of a later operation: the caller gives each a `request`, any object but None,
and finds it again in JoinCompleted, JoinFailed, SyncCompleted or SyncFailed. Heartbeat, leave and
check_commit answer at once, by returning or raising. `tick` does what time alone brings about;
next_deadline_ms says when it is due.

In a join phase every member joins again. The phase ends when all have joined (a new member that was given an
id and has not come back with it counts), or after the longest rebalance timeout: members that have not joined
by then are removed, static ones too. (Kafka keeps those until their sessions expire, and assigns partitions
to absent members.) Then the generation goes up by one, the members vote for a protocol, and the leader, which
alone gets all subscriptions, sends the assignment with its sync; the syncs of the others wait for it.

Invariants: the generation goes up by exactly one per completed join phase and never down; every request is
answered exactly once; a member has at most one join and one sync outstanding, and the newer fails the older;
a session cannot expire while the member waits for an answer (but the first join of a member expires after
five minutes); commits are accepted from members of the current generation only.

Not thread-safe: the caller holds its lock around every call.

Source: Kafka's GroupCoordinator (2.7 design, section on the coordinator; KIP-62, 134, 345, 394, 814).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from ...errors import (
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
from ...model import GroupMetadata, JoinResult
from ...wire.consumer_protocol import PROTOCOL_TYPE
from .events import (
    Effect,
    GroupDescription,
    GroupState,
    GroupType,
    JoinCompleted,
    JoinFailed,
    MetadataChanged,
    RebalanceStarted,
    RejoinNeeded,
    SyncCompleted,
    SyncFailed,
)
from .join_phase import JoinPhase
from .member import Member, Members, Offer, new_member_id


class ClassicGroup:
    """One consumer group of the classic protocol.

    make_member_id: makes an id from the client id (of a static member: from its group_instance_id).
    same_metadata: whether a restarted static member's new subscription is equivalent to its old one; if so
    it resumes its place without a rebalance. initial_rebalance_delay_ms: how long the first join of an empty
    group waits for other members; each that joins extends it, up to the rebalance timeout.
    """

    type: ClassVar = GroupType.CLASSIC

    def __init__(
        self,
        name: str,
        *,
        initial_rebalance_delay_ms: int = 0,
        make_member_id: Callable[[str], str] = new_member_id,
        same_metadata: Callable[[bytes, bytes], bool] = operator.eq,
    ) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self._make_member_id = make_member_id
        self._same_metadata = same_metadata
        self._join_phase = JoinPhase(initial_rebalance_delay_ms)
        self._members = Members(name)
        self._unsynced: set[str] = set()  # members of this generation that have not sent their sync
        self._sync_deadline_ms = 0
        self._effects: list[Effect] = []

    # -- operations
    def join(
        self,
        member_id: str,
        offer: Offer,
        *,
        request: object,
        now_ms: int,
        require_known_member: bool = False,
        max_members: int | None = None,
    ) -> list[Effect]:
        """A member joins (member_id "") or joins again; the answer is JoinCompleted or JoinFailed.

        require_known_member: a new dynamic member only gets its id, by MemberIdRequired (KIP-394).
        max_members: the most members, pending ids included. Fails with UnknownMember, FencedInstance,
        InconsistentProtocol, RebalanceInProgress (a newer join of the same member), GroupFull,
        InvalidArgument, GroupNotFound (the group is Dead).
        """
        try:
            self._check_alive()
            self._members.check_offer(offer, self.protocol_type)
            if member_id:
                self._join_again(member_id, offer, request, now_ms)
            elif (static_id := self._members.static_id(offer.group_instance_id)) is not None:
                self._replace_static(static_id, offer, request, now_ms)
            else:
                self._members.check_room(max_members)
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
        """A member asks for its assignment; the leader brings those of all members (member id -> bytes).

        protocol_type, protocol: what the member expects the group to use, None for nothing (KIP-559).
        Answered by SyncCompleted or SyncFailed (UnknownMember, FencedInstance, IllegalGeneration,
        InconsistentProtocol, RebalanceInProgress, GroupNotFound). Ignores assignments of a non-leader.
        """
        try:
            member = self._member(member_id, generation, group_instance_id)
            if protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol):
                raise InconsistentProtocol(f"the group uses {self.protocol_type!r} {self.protocol!r}")
            if self.state is GroupState.PREPARING_REBALANCE:
                raise self._rebalancing()
        except EmbedlogError as error:
            self._effects.append(SyncFailed(request, error))
            return self._drain()
        self._effects += member.fail_sync(self._superseded("sync"))
        member.sync_request = request
        self._unsynced.discard(member_id)
        if self.state is GroupState.STABLE:
            self._answer_sync(member, now_ms)
        elif member_id == self.leader_id:
            self.state = GroupState.STABLE
            for synced in self._members:
                synced.assignment = bytes(assignments.get(synced.member_id, b""))
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            for synced in self._members:
                self._answer_sync(synced, now_ms)
        return self._drain()

    def heartbeat(
        self, member_id: str, generation: int, *, now_ms: int, group_instance_id: str | None = None
    ) -> None:
        """The member is alive: restart its session.

        Raises RebalanceInProgress (join again), UnknownMember, FencedInstance, IllegalGeneration,
        GroupNotFound.
        """
        member = self._member(member_id, generation, group_instance_id)
        member.renew(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._rebalancing()

    def leave(self, member_id: str, *, now_ms: int, group_instance_id: str | None = None) -> list[Effect]:
        """The member leaves; its outstanding requests fail with UnknownMember.

        With member_id "" it is the current static member of that group_instance_id.
        Raises UnknownMember, FencedInstance, GroupNotFound.
        """
        self._check_alive()
        if self._members.pending.pop(member_id, None) is None:
            member_id = member_id or self._members.static_id(group_instance_id) or ""
            self._remove(self._members.current(member_id, group_instance_id))
            self._prepare_unless_joining(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def withdraw(self, request: object, now_ms: int) -> list[Effect]:
        """The member of an outstanding join leaves. Without effect if the join has been answered."""
        for member in self._members:
            if member.join_request is request:
                instance = member.offer.group_instance_id
                return self.leave(member.member_id, now_ms=now_ms, group_instance_id=instance)
        return []

    def check_commit(
        self, member_id: str, generation: int, *, now_ms: int, group_instance_id: str | None = None
    ) -> None:
        """Returns if the commit is allowed. Counts as a heartbeat.

        Members of the current generation may commit, also in PreparingRebalance, when they finish their
        work. Between join and sync they have nothing to commit: RebalanceInProgress. A commit without member
        id and with generation < 0 comes from outside (an assigned consumer, an administrator) and needs an
        Empty group: else UnknownMember. Also raises FencedInstance, IllegalGeneration, GroupNotFound.
        """
        if generation < 0 and not member_id and group_instance_id is None:
            self._check_alive()
            if self.state is not GroupState.EMPTY:
                raise UnknownMember(f"group {self.name!r} has members: only they can commit")
            return
        member = self._member(member_id, generation, group_instance_id)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise self._rebalancing()
        member.renew(now_ms)

    def check_commit_in_transaction(
        self, member_id: str, generation: int, *, now_ms: int, group_instance_id: str | None = None
    ) -> None:
        """As `check_commit`, for offsets of a transaction, which may be those from before a rebalance: its
        producer has no answer to RebalanceInProgress. Without member id and generation nothing is checked."""
        if member_id or generation >= 0:
            self._member(member_id, generation, group_instance_id).renew(now_ms)

    @property
    def is_unused(self) -> bool:
        """Whether it has neither members nor pending ids."""
        return self.state is GroupState.EMPTY and not self._members.pending

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Make all members join again, say because an assignment could not be stored."""
        self._prepare_unless_joining(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def tick(self, now_ms: int) -> list[Effect]:
        """Expire what is due: sessions, ids never used, joins and syncs that did not come in time."""
        for member_id in [member_id for member_id, due in self._members.pending.items() if due <= now_ms]:
            del self._members.pending[member_id]
        expired = [m for m in self._members if m.can_expire() and m.deadline_ms <= now_ms]
        if self._unsynced and self._sync_deadline_ms <= now_ms:
            expired.extend(m for m in self._members if m.member_id in self._unsynced and m not in expired)
        for member in expired:
            self._remove(member)
        if expired:
            self._prepare_unless_joining(now_ms)
        self._complete_join_if_ready(now_ms)
        return self._drain()

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due next, by the clock of now_ms; None if time alone changes nothing."""
        return min(self._deadlines(), default=None)

    def close(self, error: EmbedlogError) -> list[Effect]:
        """Make the group Dead: outstanding requests fail with `error`, later ones with GroupNotFound."""
        for member in self._members:
            self._effects += member.fail_join(error) + member.fail_sync(error)
        self._members.clear()
        self._unsynced.clear()
        self.state, self.protocol, self.leader_id = GroupState.DEAD, None, None
        return self._drain()

    def restore(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Resume from a MetadataChanged: with members the group is Stable, and their sessions restart.

        A coordinator whose members died with it restores `metadata._replace(members=())`: no wait for
        members, and no generation is used twice. Raises InvalidArgument for members without a protocol, or
        if the group is in use.
        """
        if self.generation or self.state is not GroupState.EMPTY:
            raise InvalidArgument(f"group {self.name!r} is in use: it cannot be restored")
        if metadata.members and metadata.protocol is None:
            raise InvalidArgument(f"group {self.name!r} was stored with members and without a protocol")
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type
        for stored in metadata.members:
            self._members.add(Member.restored(stored, metadata, now_ms))
        if self._members:
            self.state = GroupState.STABLE
            self.protocol = metadata.protocol
            self.leader_id = metadata.leader_id
            if self.leader_id is None:  # converted (migration.py), and not rebalanced since
                self.leader_id = metadata.members[0].member_id
                self._prepare(now_ms)
                self._drain()

    # -- from and to groups of KIP-848 (migration.py)
    @property
    def members(self) -> Sequence[Member]:
        """The members, in the order in which they joined."""
        return tuple(self._members)

    def has_instance(self, group_instance_id: str | None) -> bool:
        """Whether a static member has that group_instance_id."""
        return self._members.static_id(group_instance_id) is not None

    def take_over(self, members: Iterable[Member], generation: int) -> GroupMetadata:
        """Begin, in a new group, with the members of a group of KIP-848; `rebalance` comes next.

        Returns what to store: without a leader, so that a restart rebalances the group, too.
        """
        self.generation, self.protocol_type = generation, PROTOCOL_TYPE
        for member in members:
            self._members.add(member)
        if self._members:
            self.state = GroupState.STABLE
            self.protocol = self._members.elected_protocol(None)
        stored = self.metadata()
        self.leader_id = next((member.member_id for member in self._members), None)
        return stored

    def hand_over(self) -> list[Effect]:
        """The group is Dead, since it is one of KIP-848 now, which answers the outstanding joins."""
        for member in self._members:
            self._effects += member.fail_sync(self._rebalancing())
        self._members.clear()
        self._unsynced.clear()
        self.state, self.protocol, self.leader_id = GroupState.DEAD, None, None
        return self._drain()

    def metadata(self) -> GroupMetadata:
        """The group's value in `__consumer_offsets`; state_timestamp_ms is -1, for the caller to set."""
        return GroupMetadata(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader_id=self.leader_id,
            state_timestamp_ms=-1,
            members=tuple(member.stored(self.protocol) for member in self._members),
        )

    def describe(self) -> GroupDescription:
        """The group as an administrator sees it."""
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            group=self.name,
            type=self.type,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            generation=self.generation,
            leader_id=self.leader_id,
            members=tuple(member.described(self.protocol, stable=stable) for member in self._members),
        )

    # -- joining
    def _join_first(self, offer: Offer, request: object, require_known: bool, now_ms: int) -> None:
        instance = offer.group_instance_id
        member_id = self._make_member_id(offer.client_id if instance is None else instance)
        if require_known and instance is None:
            self._members.pending[member_id] = now_ms + offer.session_timeout_ms
            raise MemberIdRequired(f"join again as {member_id!r}", member_id=member_id)
        self._add(member_id, offer, request, now_ms)

    def _join_again(self, member_id: str, offer: Offer, request: object, now_ms: int) -> None:
        if member_id in self._members.pending and offer.group_instance_id is None:
            del self._members.pending[member_id]
            self._add(member_id, offer, request, now_ms)
            return
        member = self._members.current(member_id, offer.group_instance_id)
        unchanged = member.offer.protocols == offer.protocols
        # The leader of a stable group rejoins to assign again (a topic grew).
        was_answered = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and member_id != self.leader_id
        )
        self._set_join(member, offer, request, now_ms)
        if unchanged and was_answered:  # it missed the answer: repeat it
            self._answer_join(member, now_ms)
        else:
            self._prepare_unless_joining(now_ms)

    def _replace_static(self, old_id: str, offer: Offer, request: object, now_ms: int) -> None:
        """A static member restarted without its id: a new id replaces the old one."""
        member = self._members.current(old_id, offer.group_instance_id)
        self._members.remove(member)
        fenced = FencedInstance(f"another consumer took over group_instance_id {offer.group_instance_id!r}")
        self._effects += member.fail_join(fenced) + member.fail_sync(fenced)
        self._effects.append(RejoinNeeded(self.name, (old_id,)))  # if it lives, its next heartbeat tells it
        member.member_id = self._make_member_id(offer.group_instance_id or "")
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member.member_id)
        if self.leader_id == old_id:
            self.leader_id = member.member_id
        before = member.metadata(self.protocol)
        self._members.add(member)
        self._set_join(member, offer, request, now_ms)
        if (
            self.state is GroupState.STABLE
            and self._members.elected_protocol(self.leader_id) == self.protocol
            and self._same_metadata(before, member.metadata(self.protocol))
        ):
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            self._answer_join(member, now_ms, skip_assignment=member.member_id == self.leader_id)
        else:
            self._prepare_unless_joining(now_ms)

    def _add(self, member_id: str, offer: Offer, request: object, now_ms: int) -> None:
        if not self._members:
            self.protocol_type = offer.protocol_type
        member = Member(member_id, offer, join_request=request)
        member.renew(now_ms)
        self._members.add(member)
        if self.leader_id is None:
            self.leader_id = member_id
        if self.state is GroupState.PREPARING_REBALANCE:
            self._join_phase.member_joined()
        elif self.state is GroupState.EMPTY:
            self._prepare(now_ms)
        else:
            self._prepare_unless_joining(now_ms)

    def _prepare_unless_joining(self, now_ms: int) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> None:
        """Begin a join phase."""
        for member in self._members:
            if member.sync_request is not None:
                member.renew(now_ms)
                self._effects += member.fail_sync(self._rebalancing())
        self._unsynced.clear()
        timeout_ms = self._members.rebalance_timeout_ms()
        self._join_phase.begin(now_ms, timeout_ms, initial=self.state is GroupState.EMPTY)
        self.state = GroupState.PREPARING_REBALANCE
        absent = tuple(member.member_id for member in self._members if member.join_request is None)
        if absent:
            self._effects.append(RebalanceStarted(self.name, absent))

    def _complete_join_if_ready(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            all_joined = not (self._members.pending or any(m.join_request is None for m in self._members))
            if self._join_phase.is_over(now_ms, all_joined=all_joined):
                self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        for member in [m for m in self._members if m.join_request is None]:
            self._remove(member)
        self.generation += 1
        if not self._members:
            self.state, self.protocol, self.leader_id = GroupState.EMPTY, None, None
            self._effects.append(MetadataChanged(self.name, self.metadata()))
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol = self._members.elected_protocol(self.leader_id)
        self._unsynced = {member.member_id for member in self._members}
        self._sync_deadline_ms = now_ms + self._members.rebalance_timeout_ms()
        for member in self._members:
            member.assignment = b""
            self._answer_join(member, now_ms)

    # -- members
    def _remove(self, member: Member) -> None:
        gone = UnknownMember(f"{member.member_id!r} is no longer in group {self.name!r}: join again")
        self._effects += member.fail_join(gone) + member.fail_sync(gone)
        self._members.remove(member)
        self._unsynced.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next((m.member_id for m in self._members), None)

    def _set_join(self, member: Member, offer: Offer, request: object, now_ms: int) -> None:
        self._effects += member.fail_join(self._superseded("join"))
        # The group_instance_id identifies the member: only its first join can set it.
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
            members=tuple(m.joined(self.protocol) for m in self._members) if leads else (),
            skip_assignment=skip_assignment,
        )
        self._effects.append(JoinCompleted(member.join_request, result))
        member.join_request = None
        member.is_new = False
        member.generation = None
        member.renew(now_ms)

    def _answer_sync(self, member: Member, now_ms: int) -> None:
        if member.sync_request is not None:
            self._effects.append(SyncCompleted(member.sync_request, member.assignment))
            member.sync_request = None
            member.renew(now_ms)

    # -- checks and small things
    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupNotFound(f"group {self.name!r} is gone")

    def _member(self, member_id: str, generation: int, group_instance_id: str | None) -> Member:
        """A member of this generation. Raises what the caller must be told if it is none."""
        if self.state is GroupState.DEAD:
            self._check_alive()
        member = self._members.current(member_id, group_instance_id)
        if member.is_new or generation not in (self.generation, member.generation):
            raise IllegalGeneration(
                f"group {self.name!r} is in generation {self.generation}, not {generation}: join again"
            )
        return member

    def _rebalancing(self) -> RebalanceInProgress:
        return RebalanceInProgress(f"group {self.name!r} is rebalancing: join again")

    def _superseded(self, what: str) -> RebalanceInProgress:
        return RebalanceInProgress(f"a newer {what} of the same member took this one's place")

    def _deadlines(self) -> Iterator[int]:
        yield from self._members.pending.values()
        for member in self._members:
            if member.can_expire():
                yield member.deadline_ms
        if self.state is GroupState.PREPARING_REBALANCE:
            yield self._join_phase.deadline_ms
        if self._unsynced:
            yield self._sync_deadline_ms

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
