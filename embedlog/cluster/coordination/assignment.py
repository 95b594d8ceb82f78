"""Assigns partitions to brokers, and checks assignments that users choose.

Kafka's rack-unaware algorithm: partition p of a topic goes to live broker (start + p) mod n, by id; its other
replicas to the following brokers, at a distance that grows by one each time around, so that the partitions of
a lost broker are spread over all others. The start is random for each topic, so that first partitions do not
all meet on one broker; partitions added later continue from the same start.

Source: Kafka, AdminUtils.assignReplicasToBrokers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...errors import InvalidArgument
from .port import Assignment

_SHOWN = 10


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    *,
    first: int = 0,
    start: int | None = None,
    shift: int | None = None,
    replicas: int = 1,
) -> dict[int, list[int]]:
    """Assign partitions first, first + 1, ...; the preferred leader is each one's first broker.

    Args:
        brokers: the live ones.
        partitions: how many to assign.
        start, shift: the broker of partition 0, and the distance to the second replica; None: random.

    Raises InvalidArgument if there are fewer brokers than replicas.
    """
    ordered = sorted(brokers)
    if replicas < 1 or len(ordered) < replicas:
        raise InvalidArgument(f"{replicas} replicas need as many brokers, and {len(ordered)} are alive")
    start = random.randrange(len(ordered)) if start is None else start
    shift = random.randrange(len(ordered)) if shift is None else shift
    assignment = {}
    for partition in range(first, first + partitions):
        if partition and partition % len(ordered) == 0:
            shift += 1
        leader = (partition + start) % len(ordered)
        followers = [
            (leader + 1 + (shift + number) % (len(ordered) - 1)) % len(ordered)
            for number in range(replicas - 1)
        ]
        assignment[partition] = [ordered[index] for index in (leader, *followers)]
    return assignment


def check_assignment(assignment: Assignment, brokers: Sequence[int]) -> None:
    """Raises InvalidArgument unless each partition has one replica, on one of these brokers."""
    for partition, replicas in assignment.items():
        if len(replicas) != 1 or replicas[0] not in brokers:
            raise InvalidArgument(
                f"partition {partition} has one replica, on one of the brokers {list(brokers)[:_SHOWN]}: not "
                f"{list(replicas)[:_SHOWN]}"
            )
