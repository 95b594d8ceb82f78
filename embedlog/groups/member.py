"""A member inside the consumer-group state machine, and how members agree on a protocol.

An offer is what a member brings to a join; a member is an offer with an id, a session and at most one join
and one sync outstanding. Used by classic.py alone.

Invariants: as each member's offer is checked against those of all others when it joins, the members of a
group always have at least one protocol in common.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..errors import GroupFull, InconsistentProtocol, InvalidArgument
from ..model import GroupMemberMetadata, JoinedMember
from .events import MemberDescription

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a newcomer's join may wait: it has no session yet, and its client may be gone."""


def new_member_id(prefix: str) -> str:
    """`<prefix>-<uuid4>`: unique without asking anyone, and the prefix says whose it is."""
    return f"{prefix}-{uuid.uuid4()}"


class Offer(NamedTuple):
    """What a member brings to a join."""

    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    client_id: str
    client_host: str
    group_instance_id: str | None


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    offer: Offer
    deadline_ms: int = 0
    is_new: bool = True  # has not been told a generation yet
    assignment: bytes = b""
    join_request: object | None = None
    sync_request: object | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription for a protocol; b"" where it has none."""
        return dict(self.offer.protocols).get(protocol or "", b"")

    def can_expire(self) -> bool:
        """Whether silence counts: not while the member waits for us, a newcomer's join excepted."""
        return self.sync_request is None and (self.is_new or self.join_request is None)

    def renew(self, now_ms: int) -> None:
        """The member has shown itself alive."""
        self.deadline_ms = now_ms + (
            NEW_MEMBER_JOIN_TIMEOUT_MS if self.is_new else self.offer.session_timeout_ms
        )

    def joined(self, protocol: str | None) -> JoinedMember:
        """The member as the leader is told of it."""
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
        """The member as people see it."""
        return MemberDescription(
            member_id=self.member_id,
            group_instance_id=self.offer.group_instance_id,
            client_id=self.offer.client_id,
            client_host=self.offer.client_host,
            metadata=self.metadata(protocol),
            assignment=self.assignment if stable else b"",
        )


def check_offer(offer: Offer, members: Collection[Member], protocol_type: str) -> None:
    """Raises InvalidArgument or InconsistentProtocol if the offer is impossible in itself or among these."""
    if offer.session_timeout_ms < 1 or offer.rebalance_timeout_ms < 1:
        raise InvalidArgument("session_timeout_ms and rebalance_timeout_ms must be at least 1")
    names = {name for name, _ in offer.protocols}
    if not offer.protocol_type or not names:
        raise InconsistentProtocol("a member must name a protocol type and at least one protocol")
    if members and offer.protocol_type != protocol_type:
        raise InconsistentProtocol(f"the group is of type {protocol_type!r}, not {offer.protocol_type!r}")
    for member in members:
        names.intersection_update(name for name, _ in member.offer.protocols)
    if not names:
        raise InconsistentProtocol("no protocol in common with the other members of the group")


def check_room(group: str, members: int, max_members: int | None) -> None:
    """Raises GroupFull where a group with so many members takes no more."""
    if max_members is not None and members >= max_members:
        raise GroupFull(f"group {group!r} takes no more than {max_members:,} members")


def elected_protocol(members: Collection[Member], leader: Member) -> str:
    """The protocol with most votes, each member voting for its first that all have.

    Of equals, the one that the leader likes best.
    """
    common = set.intersection(*({name for name, _ in m.offer.protocols} for m in members))
    votes = dict.fromkeys((name for name, _ in leader.offer.protocols if name in common), 0)
    for member in members:
        votes[next(name for name, _ in member.offer.protocols if name in common)] += 1
    return max(votes, key=votes.__getitem__)
