"""Where quotas are kept: the port, and `quotas.json` in a log's directory.

    {"version": 1, "quotas": [{"entity": {"user": "alice", "client-id": null},
                               "values": {"producer_byte_rate": 1048576}}]}

null is the default. A cluster has them in ZooKeeper (cluster/coordination/zookeeper_quotas.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar

from ..errors import CorruptCheckpoint, InvalidArgument
from .document import Contents, Document
from .quota_rules import Entity, QuotasByEntity, checked_value, entity

_VERSION: Final = 1
_V = TypeVar("_V")


class QuotaStore(Protocol):
    """Quotas that outlive a broker. Thread-safe."""

    @property
    def changes(self) -> int:
        """Grows when the quotas have changed. Does not wait. Raises EmbedlogError."""

    def read(self) -> QuotasByEntity:
        """All quotas. Raises EmbedlogError."""

    def alter(self, of: Entity, changes: Mapping[str, float | None]) -> None:
        """Set an entity's quotas; None removes one. Durable. Raises EmbedlogError."""

    def close(self) -> None: ...


class StoredQuotas:
    """`quotas.json`.

    Args:
        path: of the file, which need not exist.
    """

    def __init__(self, path: str) -> None:
        self._document = Document(path, _VERSION)

    @property
    def changes(self) -> int:
        return self._document.changes

    def read(self) -> QuotasByEntity:
        return self._decode(self._document.read())

    def alter(self, of: Entity, changes: Mapping[str, float | None]) -> None:
        def change(contents: dict[str, Any]) -> Contents:
            quotas = dict(self._decode(contents))
            quotas[of] = altered(quotas.get(of, {}), changes)
            return {
                "quotas": [
                    {"entity": dict(quota_of), "values": values}
                    for quota_of, values in quotas.items()
                    if values
                ]
            }

        self._document.update(change)

    def close(self) -> None:
        """A file needs none."""

    def _decode(self, contents: Contents) -> dict[Entity, Mapping[str, float]]:
        quotas: dict[Entity, Mapping[str, float]] = {}
        try:
            for quota in contents.get("quotas", []):
                of = entity(quota["entity"].items())
                quotas[of] = {key: checked_value(of, key, quota["values"][key]) for key in quota["values"]}
        except (InvalidArgument, AttributeError, KeyError, TypeError) as error:
            path = self._document.path
            raise CorruptCheckpoint(f"{path} has quotas that are none: {error}", path=path) from None
        return quotas


def altered(before: Mapping[str, _V], changes: Mapping[str, _V | None]) -> dict[str, _V]:
    """Values after changes of which None removes one."""
    return {key: value for key, value in {**before, **changes}.items() if value is not None}
