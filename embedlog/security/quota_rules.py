"""Client quotas: which limits there are, and which of them a request falls under.

A quota is a number under a key (`producer_byte_rate`) for an entity: a user, a client id, both together, or
an address. A name may be the default, for those without a quota of their own. Of the quotas with a key the
first in this order applies:

    1  user, client id             4  <default>, client id         7  client id
    2  user, <default>             5  <default>, <default>         8  <default>
    3  user                        6  user <default>

What shares a quota: 1, 2, 4, 5 each pair of user and client id; 3, 6 all clients of a user; 7, 8 all users
of a client id.

Source: Kafka's documentation, "Quotas"; KIP-55 (users), KIP-546 (the entities' types), KIP-599 (mutations),
KIP-612 (connections).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ..errors import InvalidArgument

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
KEYS: Final = (*CLIENT_KEYS, CONNECTION_CREATION_RATE)
_LARGEST: Final = {
    PRODUCER_BYTE_RATE: (1 << 63) - 1,
    CONSUMER_BYTE_RATE: (1 << 63) - 1,
    CONNECTION_CREATION_RATE: (1 << 31) - 1,
}
"""Of keys whose values are whole numbers."""
_EPSILON: Final = 1e-6

Entity: TypeAlias = tuple[tuple[str, "str | None"], ...]
"""Pairs of a type and a name, in the order of TYPES. The name None is the default."""

Values: TypeAlias = Mapping[str, float]
QuotasByEntity: TypeAlias = Mapping[Entity, Values]


def entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """An entity of these types and names. Raises InvalidArgument."""
    pairs = list(parts)
    names = dict(pairs)
    if not pairs:
        raise InvalidArgument("a quota is of a user, a client id or an address: give at least one")
    if len(names) < len(pairs):
        raise InvalidArgument("a quota's entity has each type once")
    for kind, name in pairs:
        if kind not in TYPES:
            raise InvalidArgument(f"{kind!r} is not one of the types {', '.join(TYPES)}")
        if name == "":
            raise InvalidArgument(f"the name of a {kind} is empty")
    if IP in names and len(names) > 1:
        raise InvalidArgument("a quota of an address (ip) has neither user nor client id")
    return tuple((kind, names[kind]) for kind in TYPES if kind in names)


def check_key(of: Entity, key: str) -> None:
    """Raises InvalidArgument for a key that such an entity does not have."""
    keys = (CONNECTION_CREATION_RATE,) if of[0][0] == IP else CLIENT_KEYS
    if key not in keys:
        raise InvalidArgument(f"{key!r} is not a quota of this entity: it has {', '.join(keys)}")


def checked_value(of: Entity, key: str, value: float) -> float:
    """The value as it is kept. Raises InvalidArgument."""
    check_key(of, key)
    if not math.isfinite(value) or value <= 0:
        raise InvalidArgument(f"{key} must be greater than 0, not {value:g}; remove a quota to lift it")
    largest = _LARGEST.get(key)
    if largest is None:
        return value
    if abs(round(value) - value) > _EPSILON or value > largest:
        raise InvalidArgument(f"{key} must be a whole number up to {largest:,}, not {value!r}")
    return round(value)


class Applied(NamedTuple):
    """A quota that applies, and the user and client id that share it: "" where all do."""

    limit: float
    user: str
    client_id: str


class QuotaRules:
    """All quotas at one time. Immutable."""

    def __init__(self, quotas: QuotasByEntity) -> None:
        self._quotas = {quota_of: dict(values) for quota_of, values in quotas.items() if values}
        self.has_clients = any(quota_of[0][0] != IP for quota_of in self._quotas)
        self.has_addresses = any(quota_of[0][0] == IP for quota_of in self._quotas)

    def applied(self, user: str, client_id: str) -> dict[str, Applied]:
        """The quotas of a client by their keys."""
        quotas: dict[str, Applied] = {}
        for of, shared_user, shared_client in (
            (((USER, user), (CLIENT_ID, client_id)), user, client_id),
            (((USER, user), (CLIENT_ID, None)), user, client_id),
            (((USER, user),), user, ""),
            (((USER, None), (CLIENT_ID, client_id)), user, client_id),
            (((USER, None), (CLIENT_ID, None)), user, client_id),
            (((USER, None),), user, ""),
            (((CLIENT_ID, client_id),), "", client_id),
            (((CLIENT_ID, None),), "", client_id),
        ):
            for key, limit in self._quotas.get(of, {}).items():
                if key not in quotas:
                    quotas[key] = Applied(limit, shared_user, shared_client)
        return quotas

    def connection_rate(self, address: str) -> float | None:
        """The connections per second that an address may create; None if there is no limit."""
        address_limit = self._quotas.get(((IP, address),), {}).get(CONNECTION_CREATION_RATE)
        if address_limit is not None:
            return address_limit
        return self._quotas.get(((IP, None),), {}).get(CONNECTION_CREATION_RATE)
