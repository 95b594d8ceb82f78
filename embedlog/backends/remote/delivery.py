"""How appends reach the leaders of their partitions: implements `port.Delivery` from what is known."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import BrokerUnavailable
from ...model import TopicPartition
from ...wire_client.settings import Address, shown_address
from .brokers import Brokers
from .metadata import Metadata


class RemoteDelivery:
    """The leaders of a cluster's partitions. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self.timeout_ms = brokers.settings.delivery_timeout_ms
        self._has_lanes = False

    @property
    def has_lanes(self) -> bool:
        # Brokers that are away may be missing in the metadata: the one that is left was not always alone.
        self._has_lanes = self._has_lanes or len(self._brokers.addresses_by_node()) > 1
        return self._has_lanes

    def lane(self, topic: str, partition: int) -> Address | None:
        return self._metadata.last_leader(TopicPartition(topic, partition))

    def can_reach(self, topic: str, partition: int) -> bool:
        leader = self.lane(topic, partition)
        return leader is not None and (not self.has_lanes or self._brokers.can_reach(leader))

    def reachable(self, topic: str) -> Sequence[int]:
        if self.has_lanes or self._metadata.lacks_leader(topic):
            return self._metadata.led_partitions(topic)
        return ()

    def overdue(self, topic: str, partition: int) -> BrokerUnavailable:
        leader = self.lane(topic, partition)
        if leader is None:
            why = "it has no leader"
        else:
            away = self._brokers.why_away(leader)
            why = str(away) if away else f"its leader {shown_address(leader)} was busy with earlier records"
        return BrokerUnavailable(
            f"{TopicPartition(topic, partition)}: not sent within {self.timeout_ms:,} ms "
            f"(delivery_timeout_ms): {why}"
        )
