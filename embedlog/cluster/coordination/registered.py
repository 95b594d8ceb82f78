"""A broker of a cluster: implements the port over ZooKeeper.

One background thread registers the broker, reads changes of the registries, stands for controller, acts as
controller, and brings the directory in line. Requests use that thread's latest results, a view and the
partitions that this broker leads, and do not query ZooKeeper. The broker that gets a request to change topics
writes the change to the registries, as Kafka's own tools do, and responds once its view has it.

    watch -> stale paths -> thread: refresh -> controller decides -> directory follows -> `leads`

This broker may answer while its lease (lease.py) is valid. When its session ends it leads nothing, registers
again in the next session, and reads everything again. If it cannot (another cluster's id, a broker with the
same id), it logs the reason and retries.

Source: Kafka 0.10 and 2.7 design, "ZooKeeper directories", "Broker node registry".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kazoo.exceptions import NodeExistsError

from ...config import TopicSettings
from ...errors import (
    EmbedlogError,
    RequestTimedOut,
    TopicExists,
    TopicNotFound,
    ZooKeeperError,
    ZooKeeperUnavailable,
)
from ...files.names import TRANSACTION_STATE_TOPIC, check_topic_name
from ...groups.offsets import OFFSETS_TOPIC
from ...model import TopicPartition
from ...runtime.locks import ConditionLock, Lock
from ...runtime.log_throttle import LogThrottle
from ...store.store import Store
from ...store.topic import check_more_partitions, check_partition_count, new_id
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from ..zookeeper.contents import NO_LEADER
from . import hashed
from .assignment import assign_replicas, check_assignment
from .cluster_view import EMPTY, ClusterView, Registries, TopicView, VersionedLeaderAndIsr
from .controller import Controller
from .joining import join, register
from .lease import Lease
from .local_replicas import LocalReplicas, decode_settings, encode_settings
from .port import UNKNOWN_PLACEMENT, Assignment, BrokerAddress, Placement
from .zookeeper_offsets import ZooKeeperOffsets

logger = logging.getLogger(__name__)

_CHANGE_S: Final = 15.0  # timeout for a change of topics to be applied
_CATCH_UP_S: Final = 2.0  # timeout for another broker's topic to appear
_TICK_S: Final = 1.0  # between checks of state that no watch reports
_RETRY_S: Final = 0.2
_JOIN_S: Final = 60.0
_PLAINTEXT: Final = "PLAINTEXT"
_LAST_ID: Final = (1 << 63) - 1
_UNCONNECTED: Final = 0  # the session id while there is no connection


class RegisteredBroker:
    """Implements `port.Coordination` in a cluster. Thread-safe.

    `start` registers the broker, and returns when it knows the cluster and its directory is in line with it.

    Args:
        address: registered for clients and other brokers.
        protocols: the security protocols of its listeners, by name.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        store: Store,
        address: BrokerAddress,
        protocols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._zookeeper = zookeeper
        self._store = store
        self._address = address
        self._protocols = protocols
        self._listener = address.endpoints[0][0] if address.endpoints else _PLAINTEXT
        self._cluster_id = ""
        self._view = EMPTY
        self._led: frozenset[TopicPartition] = frozenset()
        self._applied = threading.Condition(ConditionLock())  # notified after each step of the thread
        self._wake = threading.Event()
        self._stopped = False
        self._is_registered = False
        self._session = 0  # in which it is registered
        self._wanted_topics: frozenset[str] = frozenset()  # internal ones, to be created; replaced as a whole
        self._late_topics: frozenset[str] = frozenset()  # waited for once without success: not again
        self._producer_ids_lock = Lock()
        self._min_producer_id = -1  # guarded by _producer_ids_lock; -1: not read yet
        self._registries = Registries(zookeeper, self._wake.set)
        self._local_replicas = LocalReplicas(store, address.node_id)
        self._controller = Controller(zookeeper, address.node_id)
        self._lease = Lease(zookeeper)
        self._consumer_offsets = ZooKeeperOffsets(zookeeper)
        self._unavailable_log = LogThrottle()
        self._thread = threading.Thread(target=self._run, name="embedlog-cluster", daemon=True)
        zookeeper.on_session(self._on_session)

    # -- starting and closing --------------------------------------------------------------------------

    def start(self) -> None:
        """Join the cluster. Raises BrokerIdInUse, DirectoryError, InvalidArgument, ZooKeeperError."""
        self._join()
        self._thread.start()
        self._await(lambda: self._is_registered, "the broker to join the cluster", _JOIN_S)

    def close(self) -> None:
        """Leave the cluster; the others notice at once. Idempotent."""
        self._stopped = True
        self._led = frozenset()
        self._wake.set()
        self._zookeeper.close()  # fails the thread's pending requests
        if self._thread.ident is not None:
            self._thread.join()
        self._lease.stop()
        with self._applied:
            self._applied.notify_all()

    # -- queries ---------------------------------------------------------------------------------------

    @property
    def zookeeper(self) -> ZooKeeper:
        """The client of the broker's session."""
        return self._zookeeper

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def node_id(self) -> int:
        return self._address.node_id

    @property
    def is_current(self) -> bool:
        return self._lease.is_valid

    def brokers(self) -> list[BrokerAddress]:
        return [
            BrokerAddress(number, *broker.at(self._listener), broker.rack, broker.endpoints)
            for number, broker in self._view.brokers.items()
        ]

    def controller_id(self) -> int:
        return self._view.controller

    def placement(self, partition: TopicPartition) -> Placement:
        view = self._view
        state = view.state(partition)
        if state is None:
            return UNKNOWN_PLACEMENT
        replicas = tuple(view.topics[partition.topic].topic.partitions.get(partition.partition, ()))
        return Placement(state.leader, state.leader_epoch, replicas, state.isr)

    def leads(self, partition: TopicPartition) -> bool:
        return partition in self._led and self._lease.is_valid

    def coordinator_of(self, name: str, topic: str = OFFSETS_TOPIC) -> BrokerAddress | None:
        view = self._view
        partition = hashed.partition_of(view, topic, name)
        if partition is None:
            self._wanted_topics |= {topic}
            self._wake.set()
            return None
        return hashed.coordinator_of(view, partition, self._listener)

    def coordinates(self, name: str, topic: str = OFFSETS_TOPIC) -> bool:
        partition = self.partition_of(name, topic)
        return partition is not None and self.leads(partition)

    def partition_of(self, name: str, topic: str = OFFSETS_TOPIC) -> TopicPartition | None:
        return hashed.partition_of(self._view, topic, name)

    def broker_of(self, partition: TopicPartition) -> int | None:
        view = self._view
        topic = view.topics.get(partition.topic)
        if topic is None:
            return NO_LEADER if partition.topic in view.names else None
        replicas = topic.topic.partitions.get(partition.partition)
        if not replicas:
            return None
        state = view.state(partition)
        if state is not None and state.leader != NO_LEADER:
            return state.leader
        return replicas[0] if len(replicas) == 1 else NO_LEADER

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        broker = self._view.brokers.get(node_id)
        return None if broker is None else broker.at(self._listener)

    @property
    def latest_coordinator_epoch(self) -> int:
        topic = self._view.topics.get(TRANSACTION_STATE_TOPIC)
        states = {} if topic is None else topic.states
        return max((partition.state.leader_epoch for partition in states.values()), default=0)

    @property
    def consumer_offsets(self) -> ZooKeeperOffsets:
        return self._consumer_offsets

    def unknown_topics(self, topics: Iterable[str]) -> frozenset[str]:
        view, local = self._view, frozenset(self._store.topics())
        return frozenset(name for name in topics if name not in local or not _has_all_states(view, name))

    def catch_up(self, topics: Iterable[str]) -> None:
        try:
            _, registered = self._zookeeper.pipeline(
                [
                    lambda kazoo: kazoo.sync_async(paths.TOPICS),
                    lambda kazoo: kazoo.get_children_async(paths.TOPICS),
                ]
            )
            unknown_topics = frozenset(registered).intersection(topics) - self._late_topics
            if unknown_topics:
                self._registries.invalidate(paths.TOPICS)
                self._wake.set()
                self._await(
                    lambda: not self.unknown_topics(unknown_topics), "topics of other brokers", _CATCH_UP_S
                )
        except RequestTimedOut:
            self._late_topics |= self.unknown_topics(unknown_topics)
        except ZooKeeperError as error:
            logger.debug("broker %d cannot look for topics: %s", self.node_id, error)
        self._late_topics = self.unknown_topics(self._late_topics)

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        assignment: Assignment | None = None,
    ) -> None:
        check_topic_name(name)
        check_partition_count(partitions)
        checked = TopicSettings.parse(settings)
        alive = list(self._view.brokers)
        if assignment is None:
            assignment = assign_replicas(alive, partitions)
        else:
            check_assignment(assignment, alive)
        self._register_topic(name, contents.TopicAssignment(assignment, new_id()), encode_settings(checked))
        self._await_topic(name, lambda topic: True, f"topic {name!r} to be created")

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        check_partition_count(count)
        path = paths.topic(name)
        while True:
            znode = self._zookeeper.get(path)
            if znode is None:
                raise TopicNotFound(f"no topic {name!r} in this cluster")
            topic = contents.TopicAssignment.decode(znode.data)
            current, alive = len(topic.partitions), list(self._view.brokers)
            check_more_partitions(name, current, count)
            if assignment is None:
                leader = topic.partitions[0][0] if topic.partitions.get(0) else alive[0]
                start = sorted(alive).index(leader) if leader in alive else 0
                added: Assignment = assign_replicas(
                    alive, count - current, first=current, start=start, shift=start
                )
            else:
                check_assignment(assignment, alive)
                added = {current + index: assignment[key] for index, key in enumerate(sorted(assignment))}
            grown = topic._replace(partitions={**topic.partitions, **added})
            if self._zookeeper.replace(path, grown.encode(), znode.version):
                break
        self._registries.invalidate(path)
        self._await_topic(
            name,
            lambda topic: len(topic.topic.partitions) >= count,
            f"topic {name!r} to have {count} partitions",
        )

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        changed = TopicSettings.parse({key: value for key, value in changes.items() if value is not None})
        dropped = {key.replace("_", ".") for key, value in changes.items() if value is None}
        path = paths.topic_config(name)
        while True:
            if self._zookeeper.get(paths.topic(name)) is None:
                raise TopicNotFound(f"no topic {name!r} in this cluster")
            znode = self._zookeeper.get(path)
            config = {} if znode is None else contents.decode_config(znode.data)
            kept_config = {key: text for key, text in config.items() if key not in dropped}
            new_config = {**kept_config, **encode_settings(changed)}
            data = contents.encode_config(new_config)
            if znode is None and self._zookeeper.create(path, data):
                break
            if znode is not None and self._zookeeper.replace(path, data, znode.version):
                break
        self._registries.invalidate(path)
        new_settings = decode_settings(new_config)
        self._await_topic(
            name,
            lambda topic: decode_settings(topic.config) == new_settings,
            f"the settings of topic {name!r} to change",
        )

    def delete_topic(self, name: str) -> None:
        check_topic_name(name)
        znode = self._zookeeper.get(paths.topic(name))
        if znode is None:
            raise TopicNotFound(f"no topic {name!r} in this cluster")
        self._zookeeper.create(paths.deletion(name))
        self._registries.invalidate(paths.DELETE_TOPICS)
        self._wake.set()

        def is_gone() -> bool:
            if name not in self._view.names:
                return name not in self._store.topics()
            topic = self._view.topics.get(name)
            return topic is not None and topic.created != znode.created  # created again meanwhile

        self._await(is_gone, f"topic {name!r} to be deleted")

    def _register_topic(self, name: str, topic: contents.TopicAssignment, config: Mapping[str, str]) -> None:
        if self._zookeeper.get(paths.deletion(name)) is not None:
            raise TopicExists(f"topic {name!r} is being deleted")
        transaction = self._zookeeper.transaction()
        for path, data in (
            (paths.topic(name), topic.encode()),
            (paths.topic_config(name), contents.encode_config(config)),
        ):
            transaction.create(path, data, acl=self._zookeeper.acl_of(path))
        error = self._zookeeper.commit(transaction)
        if isinstance(error, NodeExistsError):
            raise TopicExists(f"topic {name!r} exists already")
        if error is not None:
            raise ZooKeeperError(f"topic {name!r} could not be registered: {error!r}")
        self._registries.invalidate(paths.TOPICS)

    def _await_topic(self, name: str, condition: Callable[[TopicView], bool], description: str) -> None:
        """Wait until the topic meets the condition, in the view and in the directory."""
        self._wake.set()

        def is_met() -> bool:
            view = self._view
            topic = view.topics.get(name)
            return (
                topic is not None
                and condition(topic)
                and _has_all_states(view, name)
                and self._local_replicas.has(name, topic)
            )

        self._await(is_met, description)

    def _await(self, condition: Callable[[], bool], description: str, timeout_s: float = _CHANGE_S) -> None:
        deadline = time.monotonic() + timeout_s
        with self._applied:
            while not condition():
                if self._stopped:
                    raise ZooKeeperUnavailable("the broker is shutting down")
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise RequestTimedOut(f"waited {timeout_s:g} s for {description}: it may still happen")
                self._applied.wait(remaining_s)

    # -- producer ids ----------------------------------------------------------------------------------

    def next_producer_ids(self, count: int) -> range:
        with self._producer_ids_lock:
            if self._min_producer_id < 0:  # ids in a directory that joined with records are not assigned
                used_ids = (partition.log.largest_producer_id for partition in self._store.partitions())
                self._min_producer_id = max(used_ids, default=-1) + 1
            while True:
                znode = self._zookeeper.get(paths.PRODUCER_IDS)
                last = -1 if znode is None or not znode.data else contents.ProducerIds.decode(znode.data).last
                first = max(last + 1, self._min_producer_id)
                if first + count > _LAST_ID:
                    raise ZooKeeperError("no producer ids are left")
                data = contents.ProducerIds(self.node_id, first, first + count - 1).encode()
                if (
                    self._zookeeper.create(paths.PRODUCER_IDS, data)
                    if znode is None
                    else self._zookeeper.replace(paths.PRODUCER_IDS, data, znode.version)
                ):
                    return range(first, first + count)

    # -- the thread ------------------------------------------------------------------------------------

    def _on_session(self, is_active: bool) -> None:
        if not is_active:
            self._lease.end()
            self._led = frozenset()
            self._session = 0
            logger.warning("broker %d has lost its ZooKeeper session: it serves no clients", self.node_id)
        self._wake.set()

    def _run(self) -> None:
        logged = ""
        while not self._stopped:
            try:
                self._step()
                logged = ""
            except ZooKeeperUnavailable as error:
                if not self._stopped and self._unavailable_log.count():
                    logger.warning("broker %d: %s; retrying", self.node_id, error)
                self._wake.wait(_RETRY_S)
            except EmbedlogError as error:
                if not self._stopped and str(error) != logged:
                    logged = str(error)
                    logger.warning("broker %d: %s", self.node_id, error)
                self._wake.wait(_RETRY_S)
            except Exception:
                logger.exception("broker %d: internal error of its coordination", self.node_id)
                self._wake.wait(_RETRY_S)
            else:
                self._wake.wait(_TICK_S)
            self._wake.clear()

    def _step(self) -> None:
        """One round. Raises ZooKeeperError, StorageError; the next round continues."""
        if not self._session or self._zookeeper.session_id not in (self._session, _UNCONNECTED):
            self._join()
        view = self._registries.refresh() or self._view
        while True:
            changed = []
            if self._controller.elect(view, self._store.clock_ms):
                changed.append(paths.CONTROLLER)
            changed += self._controller.reconcile(view)
            for topic in self._wanted_topics - view.topics.keys() if view.brokers else ():
                self._create_internal_topic(view, topic)
                changed.append(paths.TOPICS)
            if not changed:
                break
            self._registries.invalidate(*changed)
            view = self._registries.refresh() or view
        raised: list[str] = []

        def raise_epoch(
            name: TopicPartition, current: VersionedLeaderAndIsr, state: contents.LeaderAndIsr
        ) -> None:
            path = paths.partition_state(*name)
            self._zookeeper.replace(path, state.encode(), current.version)
            raised.append(path)

        led = self._local_replicas.follow(view, raise_epoch)
        if raised:
            self._registries.invalidate(*raised)
            self._wake.set()
        with self._applied:
            self._view = view
            self._led = led if self._session else frozenset()
            self._is_registered = self._is_registered or self.node_id in view.brokers
            self._applied.notify_all()

    def _join(self) -> None:
        """Register in the current session."""
        self._cluster_id = join(self._zookeeper, self._store, self._address, lambda: self._stopped)
        session, since = register(
            self._zookeeper, self._address, self._store.clock_ms, lambda: self._stopped, self._protocols
        )
        self._registries.invalidate_all()
        self._led = frozenset()  # until the registries have been read again
        self._session = session
        self._lease.begin(session, since)
        logger.log(
            logging.WARNING if self._is_registered else logging.INFO,  # as loud as the loss of the session
            "broker %d is registered at %s, session 0x%x",
            self.node_id,
            self._zookeeper.connect_string,
            session,
        )

    def _create_internal_topic(self, view: ClusterView, name: str) -> None:
        partitions, config = hashed.TOPICS[name](self._store.settings)
        assignment = assign_replicas(list(view.brokers), partitions)
        try:
            self._register_topic(name, contents.TopicAssignment(assignment, new_id()), config)
        except TopicExists:
            pass  # another broker has created it


def _has_all_states(view: ClusterView, name: str) -> bool:
    """Whether the states of all the topic's partitions are known."""
    topic = view.topics.get(name)
    return topic is not None and len(topic.states) == len(topic.topic.partitions)
