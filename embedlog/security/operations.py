"""The operations that a client is authorized for, as bit sets.

Without an authorizer every client may perform every operation that a resource has. Source: KIP-430, and the
operations that Kafka's documentation lists per type of resource.
"""

from __future__ import annotations

from typing import Final

from .acls import Operation


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


UNKNOWN_OPERATIONS: Final = -(2**31)
"""The value if the client did not request the set."""

ON_A_GROUP: Final = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE)
ON_A_TOPIC: Final = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
ON_THE_CLUSTER: Final = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
