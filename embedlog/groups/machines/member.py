"""The members of a classic group, and how they agree on a protocol.

An offer is what a member brings to a join. A member is an offer with an id, a session, and at most one join
and one sync outstanding.

Invariant: each offer is checked against those of all members when it arrives, so the members of a group
always have at least one protocol in common.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import (
    EmbedlogError,
    FencedInstance,
    GroupFull,
    InconsistentProtocol,
    InvalidArgument,
    UnknownMember,
)
from ...model import GroupMemberMetadata, GroupMetadata, JoinedMember
from .events import Effect, JoinFailed, MemberDescription, SyncFailed

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long the first join of a member may wait: it has no session yet, and its client may be gone."""


def new_member_id(prefix: str) -> str:
    """`<prefix>-<uuid4>`: unique without coordination; the prefix tells whose it is."""
    return f"{prefix}-{uuid.uuid4()}"


class Offer(NamedTuple):
    """What a member brings to a join. protocols: (name, subscription bytes) in order of preference."""

    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    client_id: str
    client_host: str
    group_instance_id: str | None


@dataclass(slots=True, eq=False)
class Member:
    """One member of a classic group."""

    member_id: str
    offer: Offer
    deadline_ms: int = 0
    is_new: bool = True  # knows no generation yet
    assignment: bytes = b""
    join_request: object | None = None
    sync_request: object | None = None
    generation: int | None = None  # the one that it knows, if that is not the group's

    @classmethod
    def restored(cls, stored: GroupMemberMetadata, group: GroupMetadata, now_ms: int) -> Member:
        """The member as `__consumer_offsets` keeps it; its session begins again."""
        offer = Offer(
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocol_type=group.protocol_type,
            protocols=((group.protocol or "", stored.subscription),),
            client_id=stored.client_id,
            client_host=stored.client_host,
            group_instance_id=stored.group_instance_id,
        )
        member = cls(stored.member_id, offer, is_new=False, assignment=stored.assignment)
        member.renew(now_ms)
        return member

    def fail_join(self, error: EmbedlogError) -> list[Effect]:
        """Answer an outstanding join."""
        request, self.join_request = self.join_request, None
        return [] if request is None else [JoinFailed(request, error)]

    def fail_sync(self, error: EmbedlogError) -> list[Effect]:
        """Answer an outstanding sync."""
        request, self.sync_request = self.sync_request, None
        return [] if request is None else [SyncFailed(request, error)]

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription for a protocol; b"" if the member does not support it."""
        return dict(self.offer.protocols).get(protocol or "", b"")

    def can_expire(self) -> bool:
        """Whether its session runs: not while it waits for an answer, unless to its first join."""
        return self.sync_request is None and (self.is_new or self.join_request is None)

    def renew(self, now_ms: int) -> None:
        """The member is alive: restart its session."""
        self.deadline_ms = now_ms + (
            NEW_MEMBER_JOIN_TIMEOUT_MS if self.is_new else self.offer.session_timeout_ms
        )

    def joined(self, protocol: str | None) -> JoinedMember:
        """The member as the leader sees it."""
        return JoinedMember(self.member_id, self.offer.group_instance_id, self.metadata(protocol))

    def stored(self, protocol: str | None) -> GroupMemberMetadata:
        """The member as `__consumer_offsets` keeps it."""
        return GroupMemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.offer.group_instance_id,
            client_id=self.offer.client_id,
            client_host=self.offer.client_host,
            rebalance_timeout_ms=self.offer.rebalance_timeout_ms,
            session_timeout_ms=self.offer.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    def described(self, protocol: str | None, *, stable: bool) -> MemberDescription:
        """The member as an administrator sees it."""
        return MemberDescription(
            member_id=self.member_id,
            group_instance_id=self.offer.group_instance_id,
            client_id=self.offer.client_id,
            client_host=self.offer.client_host,
            metadata=self.metadata(protocol),
            assignment=self.assignment if stable else b"",
        )


class Members:
    """The members of a group, in the order in which they joined, and the ids given to members yet to join."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # group_instance_id -> member id
        self.pending: dict[str, int] = {}  # ids handed out with MemberIdRequired -> deadline

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def get(self, member_id: str | None) -> Member | None:
        return self._by_id.get(member_id or "")

    def static_id(self, group_instance_id: str | None) -> str | None:
        """The member id of a static member, if there is one of that group_instance_id."""
        return None if group_instance_id is None else self._static.get(group_instance_id)

    def current(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member. Raises UnknownMember, or FencedInstance if its group_instance_id is another's now."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is not None and holder != member_id:
                raise FencedInstance(f"another consumer took over group_instance_id {group_instance_id!r}")
            if holder is None:
                raise UnknownMember(f"group {self._group!r} has no group_instance_id {group_instance_id!r}")
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self._group!r} has no member {member_id!r}: join again")
        return member

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        if member.offer.group_instance_id is not None:
            self._static[member.offer.group_instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if member.offer.group_instance_id is not None:
            del self._static[member.offer.group_instance_id]

    def clear(self) -> None:
        self._by_id.clear()
        self._static.clear()
        self.pending.clear()

    def check_room(self, max_members: int | None) -> None:
        """Raises GroupFull if the group takes no more members; a pending id counts as one."""
        if max_members is not None and len(self._by_id) + len(self.pending) >= max_members:
            raise GroupFull(f"group {self._group!r} takes no more than {max_members:,} members")

    def check_offer(self, offer: Offer, protocol_type: str) -> None:
        """Raises InvalidArgument or InconsistentProtocol if no member of this group can offer that."""
        if offer.session_timeout_ms < 1 or offer.rebalance_timeout_ms < 1:
            raise InvalidArgument("session_timeout_ms and rebalance_timeout_ms must be at least 1")
        names = {name for name, _ in offer.protocols}
        if not offer.protocol_type or not names:
            raise InconsistentProtocol("a member must name a protocol type and at least one protocol")
        if self._by_id and offer.protocol_type != protocol_type:
            raise InconsistentProtocol(f"the group is of type {protocol_type!r}, not {offer.protocol_type!r}")
        for member in self:
            names.intersection_update(name for name, _ in member.offer.protocols)
        if not names:
            raise InconsistentProtocol("no protocol in common with the other members of the group")

    def elected_protocol(self, leader_id: str | None) -> str:
        """The protocol with the most votes. Each member votes for its first that all members support.

        A tie goes to the one that the leader prefers.
        """
        leader = self.get(leader_id) or next(iter(self))
        common = set.intersection(*({name for name, _ in member.offer.protocols} for member in self))
        votes = dict.fromkeys((name for name, _ in leader.offer.protocols if name in common), 0)
        for member in self:
            votes[next(name for name, _ in member.offer.protocols if name in common)] += 1
        return max(votes, key=votes.__getitem__)

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.offer.rebalance_timeout_ms for member in self), default=0)
