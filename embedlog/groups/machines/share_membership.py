"""The members of a share group (KIP-932), on what all modern groups have in common (modern_group.py).

Each member may read all partitions of its topics, as every other member does. So nothing is revoked before
another may have it; who gets which record is decided when records are fetched (share_partition.py).

    Empty ---first heartbeat---> Stable ---the last member is gone---> Empty

There are no static members, and no committed offsets.

Source: Kafka's ShareGroup (KIP-932).
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

from ...errors import GroupNotFound, InvalidArgument
from ...wire.modern_group_state import SHARE, MemberAssignment
from .assignors import SHARE_ASSIGNORS
from .events import GroupType
from .modern_group import ModernGroup
from .modern_member import JOIN, LEAVE, FencedMemberEpoch, MemberHeartbeat, ModernMember, check_identity


class ShareMembership(ModernGroup):
    """The members of one share group."""

    type = GroupType.SHARE
    assignors: ClassVar = SHARE_ASSIGNORS
    key_versions = SHARE

    @staticmethod
    def check(beat: MemberHeartbeat) -> None:
        check_identity(beat, LEAVE)
        if beat.rack_id == "":
            raise InvalidArgument("a rack has a name of at least one character")
        if beat.member_epoch == JOIN and not beat.topics:
            raise InvalidArgument("a member says its topics when it joins")

    def check_commit(
        self, member_id: str, member_epoch: int, *, now_ms: int = 0, group_instance_id: str | None = None
    ) -> NoReturn:
        """A share group has no committed offsets: raises GroupNotFound."""
        raise GroupNotFound(f"group {self.name!r} is a share group, which commits no offsets")

    check_commit_in_transaction = check_commit

    def _check_epoch(self, member: ModernMember, beat: MemberHeartbeat) -> None:
        """The previous epoch is fine: the member may not have got the last answer."""
        if beat.member_epoch not in (member.current.epoch, member.current.previous_epoch):
            raise FencedMemberEpoch(
                f"member {member.member_id!r} is in epoch {member.current.epoch}, not {beat.member_epoch}: "
                "it joins again"
            )

    def _reconciled(self, member: ModernMember, beat: MemberHeartbeat) -> MemberAssignment:
        """Its target: no other member has to give it up."""
        current, target = member.current, self.target(member.member_id)
        if (current.epoch, current.assigned) == (self.target_epoch, target):
            return current
        return MemberAssignment(self.target_epoch, current.epoch, assigned=target)

    def _says_all(self, beat: MemberHeartbeat) -> bool:
        return beat.member_epoch == JOIN or beat.topics is not None
