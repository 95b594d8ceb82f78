"""How the members of a classic group come together as a generation: the phases of classic.py, one by one.

    _prepare         a join phase begins; the syncs that wait fail
    _complete_join   it is over: the next generation, with its protocol and its leader
    _answer_sync     a member gets its assignment, once the leader has sent it
    tick             what time alone brings about

In a join phase every member joins again. The phase ends when all have joined (a new member that was given an
id and has not come back with it counts), or after the longest rebalance timeout: members that have not joined
by then are removed, static ones too. (Kafka keeps those until their sessions expire, and assigns partitions
to absent members.) Then the generation goes up by one, the members vote for a protocol, and the leader, which
alone gets all subscriptions, sends the assignment with its sync; the syncs of the others wait for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from ...errors import RebalanceInProgress, UnknownMember
from ...model import GroupMetadata, JoinResult
from .events import (
    Effect,
    GroupState,
    JoinCompleted,
    MetadataChanged,
    RebalanceStarted,
    SyncCompleted,
)
from .join_phase import JoinPhase
from .member import Member, Members, Offer, new_member_id


class ClassicRebalance:
    """The members of a classic group, and the phase in which they are.

    make_member_id: makes an id from the client id (of a static member: from its group_instance_id).
    same_metadata: whether a restarted static member's new subscription is equivalent to its old one; if so
    it resumes its place without a rebalance. initial_rebalance_delay_ms: how long the first join of an empty
    group waits for other members; each that joins extends it, up to the rebalance timeout.
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

    # -- time
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

    # -- phases
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
