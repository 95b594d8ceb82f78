"""A topic's (broker, partition) pairs from ZooKeeper's registries: a partitioner chooses one of them.

They are watched: a broker comes or goes, a topic is created, a broker registers an existing topic (since 0.8:
a partition gets another leader). Cached values are used until a watch fires, and while ZooKeeper cannot be
reached.

The list is sorted by broker, then by partition: a partitioner returns an index into it. Partitions whose
broker is not registered are left out.

Source: Kafka 0.7 design, "Automatic producer load balancing"; 0.10 implementation, "Producer APIs".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import KazooException

from ...errors import CorruptZnode, ZooKeeperError, ZooKeeperUnavailable
from ...runtime.locks import Lock
from ...runtime.wakeups import Wakeup
from ..zookeeper import paths
from ..zookeeper.client import ZooKeeper
from ..zookeeper.contents import Broker, LeaderAndIsr, decode_number
from ..zookeeper.security import Security
from .channel import address_for
from .producer_data import BrokerPartition
from .producer_pool import ProducerPool

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0  # if ZooKeeper cannot be read


class ZooKeeperPartitions:
    """The registries, and a thread that follows them. It keeps the pool's list of brokers current.

    Raises as `ZooKeeper`.
    """

    def __init__(
        self,
        connect: str,
        pool: ProducerPool,
        *,
        session_timeout_s: float,
        auth: str | None = None,
        security: Security,
    ) -> None:
        self._pool = pool
        self._lock = Lock()
        self._topics: dict[str, list[BrokerPartition]] = {}
        self._stale: set[str] = set()
        self._brokers_stale = True
        self._brokers: dict[int, tuple[str, int]] = {}
        self._wakeup = Wakeup()
        self._closed = False
        self._zookeeper = ZooKeeper(
            connect, session_timeout_s=session_timeout_s, auth=auth, security=security
        )
        self._zookeeper.on_session(self._session)
        try:
            self._read_brokers()
        except BaseException:
            self._zookeeper.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="classic producer's watches", daemon=True)
        self._thread.start()

    def of(self, topic: str) -> list[BrokerPartition]:
        """A topic's pairs with a registered broker, sorted; none if there is no such topic (yet).

        Raises ZooKeeperUnavailable if the topic has not been read yet, CorruptZnode.
        """
        with self._lock:
            pairs = self._topics.get(topic)
            if pairs is None or (topic in self._stale and self._zookeeper.is_connected):
                try:
                    pairs = self._read_topic(topic)
                except ZooKeeperUnavailable:
                    if pairs is None:
                        raise
            return [pair for pair in pairs if pair.broker in self._brokers]

    def has(self, topic: str) -> bool:
        """Whether the topic existed at the last `of`."""
        return bool(self._topics.get(topic))

    def mark_stale(self, topic: str) -> None:
        """Read the topic again: a broker rejected a request, and the watch may fire later."""
        with self._lock:
            self._stale.add(topic)

    def close(self) -> None:
        self._closed = True
        self._wakeup.signal()
        self._thread.join()
        self._zookeeper.close()

    # -- reading, under the lock -----------------------------------------------------------------------

    def _read_brokers(self) -> None:
        with self._lock:
            self._brokers_stale = False
            addresses: dict[int, tuple[str, int]] = {}
            for name in self._zookeeper.children(paths.BROKER_IDS, self._brokers_changed) or []:
                node = self._zookeeper.get(paths.broker(int(name)), self._brokers_changed)
                if node is not None:
                    broker = Broker.decode(node.data)
                    addresses[int(name)] = address_for(broker, self._pool.security)
            self._brokers = addresses
            self._pool.follow(addresses)

    def _read_topic(self, topic: str) -> list[BrokerPartition]:
        self._stale.discard(topic)
        changed = self._changed(topic)
        try:
            pairs = self._of_brokers(topic, changed) + self._of_states(topic, changed)
        except BaseException:
            self._stale.add(topic)
            raise
        self._topics[topic] = sorted(pairs)
        if not pairs:  # there is nothing to watch: the next send reads it again
            self._stale.add(topic)
        return self._topics[topic]

    def _of_states(self, topic: str, changed: Callable[[Any], None]) -> list[BrokerPartition]:
        self._zookeeper.get(paths.topic(topic), changed)
        names = self._zookeeper.children(paths.partitions(topic), changed) or []
        responses = self._zookeeper.pipeline_of(
            [paths.partition_state(topic, int(name)) for name in names],
            lambda kazoo, path: kazoo.get_async(path, changed),
        )
        return [
            BrokerPartition(LeaderAndIsr.decode(response[0]).leader, int(name))
            for name, response in zip(names, responses, strict=True)
            if not isinstance(response, KazooException)
        ]

    def _of_brokers(self, topic: str, changed: Callable[[Any], None]) -> list[BrokerPartition]:
        """The pairs as in 0.7: each broker states how many partitions it has, and numbers them itself."""
        pairs: list[BrokerPartition] = []
        for name in self._zookeeper.children(paths.topic(topic), changed) or []:
            parsed = paths.parse(f"{paths.topic(topic)}/{name}")
            if parsed is not None and parsed.kind == "topic_of_broker":
                node = self._zookeeper.get(paths.topic_of_broker(topic, int(name)), changed)
                count = 0 if node is None else decode_number(node.data)
                pairs += [BrokerPartition(int(name), number) for number in range(count)]
        return pairs

    # -- watches: called in kazoo's thread, which must not wait ----------------------------------------

    def _brokers_changed(self, event: object) -> None:
        self._brokers_stale = True
        self._wakeup.signal()

    def _changed(self, topic: str) -> Callable[[object], None]:
        def changed(event: object) -> None:
            self._stale.add(topic)
            self._wakeup.signal()

        return changed

    def _session(self, exists: bool) -> None:
        if exists:  # the old session's watches are gone
            self._brokers_stale = True
            self._stale.update(list(self._topics))
            self._wakeup.signal()

    def _follow(self) -> None:
        """Read changes as soon as a watch fires."""
        pause: float | None = None
        while True:
            self._wakeup.sleep(pause)
            if self._closed:
                return
            pause = None
            try:
                if self._brokers_stale:
                    self._read_brokers()
                with self._lock:
                    for topic in [name for name in list(self._stale) if self._topics.get(name)]:
                        self._read_topic(topic)
            except (ZooKeeperError, CorruptZnode) as error:
                logger.warning("the registries cannot be read, cached ones are used: %s", error)
                self._brokers_stale = True
                pause = _RETRY_S
