"""Which brokers are to keep which partitions: a function, and the check of what somebody else has chosen.

As Kafka assigns where racks are not known: partition p of a topic goes to broker (start + p) mod n of those
that are alive, by id; its further replicas to the next ones, at a distance that grows by one whenever the
brokers have been gone through, so that the partitions of a broker that is lost are spread over all others.
The start is drawn for each topic, so that their first partitions do not all meet on one broker; partitions
that come later go on where the first ones began.

Source: Kafka, AdminUtils.assignReplicasToBrokers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...errors import InvalidArgument
from .port import Assignment

_SHOWN = 10


def assigned(
    brokers: Sequence[int],
    partitions: int,
    *,
    first: int = 0,
    start: int | None = None,
    shift: int | None = None,
    replicas: int = 1,
) -> dict[int, list[int]]:
    """Partitions first, first + 1, ... and the brokers for each, the preferred leader first.

    Args:
        brokers: that are alive.
        partitions: how many are to be assigned.
        start, shift: where it begins, and how far the second replica is from the first; None draws them.

    Raises InvalidArgument where there are fewer brokers than replicas.
    """
    ordered = sorted(brokers)
    if replicas < 1 or len(ordered) < replicas:
        raise InvalidArgument(f"{replicas} replicas need as many brokers, and {len(ordered)} are alive")
    start = random.randrange(len(ordered)) if start is None else start
    shift = random.randrange(len(ordered)) if shift is None else shift
    found = {}
    for partition in range(first, first + partitions):
        if partition and partition % len(ordered) == 0:
            shift += 1
        leader = (partition + start) % len(ordered)
        others = [
            (leader + 1 + (shift + number) % (len(ordered) - 1)) % len(ordered)
            for number in range(replicas - 1)
        ]
        found[partition] = [ordered[index] for index in (leader, *others)]
    return found


def check_assignment(assignment: Assignment, brokers: Sequence[int]) -> None:
    """Raises InvalidArgument unless each partition has one replica, on one of these brokers."""
    for partition, chosen in assignment.items():
        if len(chosen) != 1 or chosen[0] not in brokers:
            raise InvalidArgument(
                f"partition {partition} has one replica, on one of the brokers {list(brokers)[:_SHOWN]}: not "
                f"{list(chosen)[:_SHOWN]}"
            )
