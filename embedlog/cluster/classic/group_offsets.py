"""A group's offsets: stored in ZooKeeper, in Kafka's __consumer_offsets, or in both during a migration.

    offsets_storage  dual_commit_enabled   committed to        resumed from
    zookeeper        no                    ZooKeeper           ZooKeeper
    kafka            no                    Kafka               Kafka
    either           yes                   both                the larger offset of the two

A commit covers all partitions that a consumer owns: a coordinator deletes an offset that is not committed
again within offsets_retention_minutes. During a migration the larger of the two offsets is written to both
places as soon as a partition is claimed, so the new place has all of them even if no record arrives.

A commit by a former owner is rejected. ZooKeeper does that itself: the offset is written in a transaction
that checks the owner's node. Kafka does not know ZooKeeper's owners, so ownership is checked just before; a
commit that is delayed until after the end of the session is accepted late. Its records were consumed: nothing
is skipped, at worst some records are read again.

Source: Kafka 0.10 implementation, "Consumer Offset Tracking", "Migrating offsets from ZooKeeper to Kafka".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ...errors import BrokerError, BrokerUnavailable
from ...model import CommittedOffset, TopicPartition
from .connector_settings import ConnectorSettings
from .registry import Registry
from .simple_consumer import SimpleConsumer

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class GroupOffsets:
    """The offsets of one group. For one thread."""

    def __init__(self, registry: Registry, settings: ConnectorSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._group = registry.group
        in_both = settings.dual_commit_enabled
        self._in_zookeeper = in_both or settings.offsets_storage == "zookeeper"
        self._in_kafka = in_both or settings.offsets_storage == "kafka"
        self._coordinator: SimpleConsumer | None = None

    def fetch(self, consumer: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of the partitions that a consumer has claimed; those without one are left out.

        With dual_commit_enabled they are in both places afterwards. Raises ZooKeeperUnavailable,
        BrokerUnavailable, BrokerError.
        """
        offsets: dict[TopicPartition, int] = {}
        if self._in_zookeeper:
            offsets.update(self._registry.offsets(partitions))
        if self._in_kafka and partitions:
            committed = self._with_coordinator(
                lambda consumer: consumer.fetch_offsets(self._group, partitions)
            )
            for name, committed_offset in committed.items():
                if committed_offset is not None:
                    offsets[name] = max(committed_offset.offset, offsets.get(name, 0))
        if self._in_zookeeper and self._in_kafka:
            self.commit(consumer, offsets)  # the next commit reports what is refused
        return offsets

    def commit(self, consumer: str, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Store offsets of partitions that a consumer owns. Returns the rejected ones, which it does not own.

        Raises ZooKeeperUnavailable, BrokerUnavailable, BrokerError: some may be stored.
        """
        if not offsets:
            return set()
        if self._in_zookeeper:
            refused = self._registry.commit(consumer, offsets)
        else:
            refused = set(offsets) - self._registry.still_owned(consumer, offsets)
        if self._in_kafka:
            owned = {name: CommittedOffset(offset) for name, offset in offsets.items() if name not in refused}
            if owned:
                self._with_coordinator(lambda coordinator: coordinator.commit_offsets(self._group, owned))
        return refused

    def close(self) -> None:
        """Close the connection."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _with_coordinator(self, ask: Callable[[SimpleConsumer], T]) -> T:
        """Ask the group's coordinator; retry after a pause if it has moved or is not ready."""
        for retries in range(self._settings.offsets_commit_max_retries, -1, -1):
            try:
                return ask(self._find_coordinator())
            except (BrokerUnavailable, BrokerError) as error:
                self.close()
                if not retries or (isinstance(error, BrokerError) and not error.retriable):
                    raise
                _logger.info("%s; asking again", error)
                time.sleep(self._settings.offsets_channel_backoff_ms / 1000)
        raise AssertionError("there is a last attempt")

    def _find_coordinator(self) -> SimpleConsumer:
        """A connection to the coordinator, found by asking any broker."""
        if self._coordinator is not None:
            return self._coordinator
        failure: BrokerUnavailable | BrokerError = BrokerUnavailable(
            f"no broker is registered in /brokers/ids that knows the coordinator of group {self._group!r}"
        )
        for broker in self._registry.brokers():
            try:
                with self._connect(broker.host, broker.port) as consumer:
                    coordinator = consumer.find_coordinator(self._group)
            except (BrokerUnavailable, BrokerError) as error:
                failure = error
            else:
                self._coordinator = self._connect(coordinator.host, coordinator.port)
                return self._coordinator
        raise failure

    def _connect(self, host: str, port: int) -> SimpleConsumer:
        settings = self._settings
        return SimpleConsumer(
            host,
            port,
            settings.socket_timeout_ms,
            client_id=settings.client_id,
            client_config=settings.client_config,
        )
