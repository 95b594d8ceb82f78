"""How a member gets from what it has to its target assignment: it revokes first, then it gets.

    STABLE                 it has its target; its epoch is the target's
    UNREVOKED_PARTITIONS   it has been told to stop reading partitions, and has not said that it did: it stays
                           in its epoch
    UNRELEASED_PARTITIONS  it is in the target's epoch, and waits for partitions that other members still have

A pure function of one member: the group says which partitions are free.

Source: Kafka's CurrentAssignmentBuilder (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable

from ...wire.modern_group_state import Assignment, MemberAssignment, MemberState, TopicIdPartition


def reconcile(
    current: MemberAssignment,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> MemberAssignment:
    """What the member has from now on.

    Args:
        owned: what the member says that it reads; None if it does not say.
        is_free: whether no member has the partition, be it only pending revocation.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _reads(owned, current.pending_revocation):
        return current
    assigned = current.assigned & target
    to_revoke = current.assigned - target
    if to_revoke and _reads(owned, to_revoke):
        return current._replace(
            state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, pending_revocation=to_revoke
        )
    released = current.pending_revocation  # by the member itself
    free = frozenset(
        partition for partition in target - assigned if partition in released or is_free(partition)
    )
    waits = len(assigned) + len(free) < len(target)
    return MemberAssignment(
        epoch=target_epoch,
        previous_epoch=current.epoch if current.epoch != target_epoch else current.previous_epoch,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=assigned | free,
    )


def _reads(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether the member may still read one of the partitions."""
    return owned is None or not owned.isdisjoint(partitions)
