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

The requests of members are here; what moves the group through its phases is in classic_rebalance.py.

Invariants: the generation goes up by exactly one per completed join phase and never down; every request is
answered exactly once; a member has at most one join and one sync outstanding, and the newer fails the older;
a session cannot expire while the member waits for an answer (but the first join of a member expires after
five minutes); commits are accepted from members of the current generation only.

Not thread-safe: the caller holds its lock around every call.

Source: Kafka's GroupCoordinator (2.7 design, section on the coordinator; KIP-62, 134, 345, 394, 814).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ...errors import (
    EmbedlogError,
    FencedInstance,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidArgument,
    MemberIdRequired,
    UnknownMember,
)
from ...model import GroupMetadata
from ...wire.consumer_protocol import PROTOCOL_TYPE
from .classic_rebalance import ClassicRebalance
from .events import (
    Effect,
    GroupDescription,
    GroupState,
    GroupType,
    JoinFailed,
    MetadataChanged,
    RejoinNeeded,
    SyncFailed,
)
from .member import Member, Offer


class ClassicGroup(ClassicRebalance):
    """One consumer group of the classic protocol."""

    type: ClassVar = GroupType.CLASSIC

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

    def close(self, error: EmbedlogError) -> list[Effect]:
        """Make the group Dead: outstanding requests fail with `error`, later ones with GroupNotFound."""
        for member in self._members:
            self._effects += member.fail_join(error) + member.fail_sync(error)
        return self._die()

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
        return self._die()

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

    def _die(self) -> list[Effect]:
        self._members.clear()
        self._unsynced.clear()
        self.state, self.protocol, self.leader_id = GroupState.DEAD, None, None
        return self._drain()

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
