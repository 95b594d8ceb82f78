"""A broker of a cluster: the port over ZooKeeper.

One thread does all that is asked of the cluster unasked: it registers, reads what has changed in the
registries, is elected controller, decides as one, and has the directory follow. Whoever answers requests
looks at what that thread found last: a view, and the partitions that this broker leads. Nothing of it is
asked of ZooKeeper then. Changes to topics are written to the registries by whoever is asked for them, as
Kafka's own tools do, and answered when the view has them.

    watch -> noted -> thread: refresh -> controller decides -> directory follows -> `leads` answers

This broker counts while its lease (lease.py) holds. When its session is over it leads nothing, registers
again in the session that follows, and reads everything anew; what is not as it should be then (another
cluster's id, a broker with the same id) is tried again and told in the log.

Source: Kafka 0.10 and 2.7 design, "ZooKeeper directories", "Broker node registry".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
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
from ...files.names import check_topic_name
from ...groups.offsets import OFFSETS_TOPIC
from ...model import TopicPartition
from ...store.store import Store
from ...store.topic import check_more_partitions, check_partition_count, new_id
from ...wire.offsets_topic import partition_for
from ..log_throttle import LogThrottle
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from .assignment import assigned, check_assignment
from .cluster_view import EMPTY, ClusterView, Registries, State
from .controller import Controller
from .joining import join, register
from .lease import Lease
from .local_replicas import LocalReplicas, settings_of, texts_of
from .port import NOWHERE, Assignment, BrokerAddress, Placement
from .zookeeper_offsets import ZooKeeperOffsets

logger = logging.getLogger(__name__)

_CHANGE_S: Final = 15.0  # within which a change of topics is seen
_CATCH_UP_S: Final = 2.0  # to wait for another broker's topic to be seen
_TICK_S: Final = 1.0  # between two looks at what no watch tells
_BREATHER_S: Final = 0.2  # after a failure
_JOIN_S: Final = 60.0
_LAST_ID: Final = (1 << 63) - 1
_UNCONNECTED: Final = 0  # stands for the session's id while there is no connection


class RegisteredBroker:
    """Implements `port.Coordination` in a cluster. Safe between threads.

    Made, it is not yet in the cluster: `start` registers it, and returns once it knows the cluster and its
    directory has followed.

    Args:
        address: what is registered: where clients, and other brokers, reach it.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        store: Store,
        address: BrokerAddress,
    ) -> None:
        self._zookeeper = zookeeper
        self._store = store
        self._address = address
        self._cluster_id = ""
        self._view = EMPTY
        self._led: frozenset[TopicPartition] = frozenset()
        self._followed = threading.Condition()
        self._wake = threading.Event()
        self._stopped = False
        self._began = False
        self._session = 0  # in which it is registered
        self._wants_offsets_topic = False
        self._late: frozenset[str] = frozenset()  # topics already waited for in vain: not again
        self._ids_lock = threading.Lock()
        self._ids_begin_at = -1
        self._registries = Registries(zookeeper, self._wake.set)
        self._topics_here = LocalReplicas(store, address.node_id)
        self._controller = Controller(zookeeper, address.node_id)
        self._lease = Lease(zookeeper)
        self._consumer_offsets = ZooKeeperOffsets(zookeeper)
        self._unreachable = LogThrottle()
        self._thread = threading.Thread(target=self._run, name="embedlog-cluster", daemon=True)
        zookeeper.on_session(self._session_changed)

    # -- beginning and ending --------------------------------------------------------------------------

    def start(self) -> None:
        """Join the cluster. Raises BrokerIdInUse, DirectoryError, InvalidArgument, ZooKeeperError."""
        self._join()
        self._thread.start()
        self._await(lambda: self._began, "the broker to be in the cluster", _JOIN_S)

    def close(self) -> None:
        """Leave the cluster: at once, for the others. May be called twice."""
        self._stopped = True
        self._led = frozenset()
        self._wake.set()
        self._zookeeper.close()  # whatever the thread waits for fails now
        if self._thread.ident is not None:
            self._thread.join()
        self._lease.stop()
        with self._followed:
            self._followed.notify_all()

    # -- looking ---------------------------------------------------------------------------------------

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
            BrokerAddress(number, broker.host, broker.port, broker.rack)
            for number, broker in self._view.brokers.items()
        ]

    def controller_id(self) -> int:
        return self._view.controller

    def placement(self, partition: TopicPartition) -> Placement:
        view = self._view
        state = view.state(partition)
        if state is None:
            return NOWHERE
        replicas = tuple(view.topics[partition.topic].topic.partitions.get(partition.partition, ()))
        return Placement(state.leader, state.leader_epoch, replicas, state.isr)

    def leads(self, partition: TopicPartition) -> bool:
        return partition in self._led and self._lease.is_valid

    def coordinator_of(self, group: str) -> BrokerAddress | None:
        view = self._view
        topic = view.topics.get(OFFSETS_TOPIC)
        if topic is None:
            self._wants_offsets_topic = True
            self._wake.set()
            return None
        state = view.state(TopicPartition(OFFSETS_TOPIC, partition_for(group, len(topic.topic.partitions))))
        broker = None if state is None else view.brokers.get(state.leader)
        if state is None or broker is None:
            return None
        return BrokerAddress(state.leader, broker.host, broker.port, broker.rack)

    def coordinates(self, group: str) -> bool:
        topic = self._view.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return False
        return self.leads(TopicPartition(OFFSETS_TOPIC, partition_for(group, len(topic.topic.partitions))))

    @property
    def consumer_offsets(self) -> ZooKeeperOffsets:
        return self._consumer_offsets

    def unknown(self, topics: Iterable[str]) -> frozenset[str]:
        view, here = self._view, frozenset(self._store.topics())
        return frozenset(name for name in topics if name not in here or not _is_whole(view, name))

    def catch_up(self, topics: Iterable[str]) -> None:
        try:
            _, there = self._zookeeper.together(
                [
                    lambda kazoo: kazoo.sync_async(paths.TOPICS),
                    lambda kazoo: kazoo.get_children_async(paths.TOPICS),
                ]
            )
            wanted = frozenset(there).intersection(topics) - self._late
            if wanted:
                self._registries.note(paths.TOPICS)
                self._wake.set()
                self._await(lambda: not self.unknown(wanted), "topics of other brokers", _CATCH_UP_S)
        except RequestTimedOut:
            self._late |= self.unknown(wanted)
        except ZooKeeperError as error:
            logger.debug("broker %d cannot look for topics: %s", self.node_id, error)
        self._late = self.unknown(self._late)

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
            assignment = assigned(alive, partitions)
        else:
            check_assignment(assignment, alive)
        self._register_topic(name, contents.Topic(assignment, new_id()), texts_of(checked))
        self._seen(lambda view: name in view.topics, name, f"topic {name!r} to be made")

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        check_partition_count(count)
        path = paths.topic(name)
        while True:
            found = self._zookeeper.get(path)
            if found is None:
                raise TopicNotFound(f"no topic {name!r} in this cluster")
            topic = contents.Topic.decode(found.data)
            there, alive = len(topic.partitions), list(self._view.brokers)
            check_more_partitions(name, there, count)
            if assignment is None:
                before = topic.partitions[0][0] if topic.partitions.get(0) else alive[0]
                start = sorted(alive).index(before) if before in alive else 0
                added: Assignment = assigned(alive, count - there, first=there, start=start, shift=start)
            else:
                check_assignment(assignment, alive)
                added = {there + n: assignment[key] for n, key in enumerate(sorted(assignment))}
            grown = topic._replace(partitions={**topic.partitions, **added})
            if self._zookeeper.replace(path, grown.encode(), found.version):
                break
        self._registries.note(path)
        self._seen(
            lambda view: name in view.topics and len(view.topics[name].topic.partitions) >= count,
            name,
            f"topic {name!r} to have {count} partitions",
        )

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        given = TopicSettings.parse({key: value for key, value in changes.items() if value is not None})
        dropped = {key.replace("_", ".") for key, value in changes.items() if value is None}
        path = paths.topic_config(name)
        while True:
            if self._zookeeper.get(paths.topic(name)) is None:
                raise TopicNotFound(f"no topic {name!r} in this cluster")
            found = self._zookeeper.get(path)
            before = {} if found is None else contents.decode_config(found.data)
            kept = {key: text for key, text in before.items() if key not in dropped}
            after = {**kept, **texts_of(given)}
            data = contents.encode_config(after)
            if found is None and self._zookeeper.create(path, data):
                break
            if found is not None and self._zookeeper.replace(path, data, found.version):
                break
        self._registries.note(path)
        wanted = settings_of(after)
        self._seen(
            lambda view: name in view.topics and settings_of(view.topics[name].config) == wanted,
            name,
            f"the settings of topic {name!r} to change",
        )

    def delete_topic(self, name: str) -> None:
        check_topic_name(name)
        found = self._zookeeper.get(paths.topic(name))
        if found is None:
            raise TopicNotFound(f"no topic {name!r} in this cluster")
        self._zookeeper.create(paths.deletion(name))
        self._registries.note(paths.DELETE_TOPICS)
        self._wake.set()

        def is_gone() -> bool:
            if name not in self._view.names:
                return name not in self._store.topics()
            there = self._view.topics.get(name)  # made again meanwhile, perhaps
            return there is not None and there.created != found.created

        self._await(is_gone, f"topic {name!r} to be deleted")

    def _register_topic(self, name: str, topic: contents.Topic, config: Mapping[str, str]) -> None:
        if self._zookeeper.get(paths.deletion(name)) is not None:
            raise TopicExists(f"topic {name!r} is being deleted")
        path, of_config = paths.topic(name), paths.topic_config(name)
        transaction = self._zookeeper.transaction()
        transaction.create(path, topic.encode(), acl=self._zookeeper.acl_of(path))
        transaction.create(of_config, contents.encode_config(config), acl=self._zookeeper.acl_of(of_config))
        error = self._zookeeper.commit(transaction)
        if isinstance(error, NodeExistsError):
            raise TopicExists(f"topic {name!r} exists already")
        if error is not None:
            raise ZooKeeperError(f"topic {name!r} could not be registered: {error!r}")
        self._registries.note(paths.TOPICS)

    def _seen(self, registered: Callable[[ClusterView], bool], name: str, what: str) -> None:
        """Wait until a topic is as it is to be, in the view and here."""
        self._wake.set()

        def is_so() -> bool:
            view = self._view
            topic = view.topics.get(name)
            return (
                topic is not None
                and registered(view)
                and _is_whole(view, name)
                and self._topics_here.has(name, topic)
            )

        self._await(is_so, what)

    def _await(self, is_so: Callable[[], bool], what: str, timeout_s: float = _CHANGE_S) -> None:
        deadline = time.monotonic() + timeout_s
        with self._followed:
            while not is_so():
                if self._stopped:
                    raise ZooKeeperUnavailable("the broker is shutting down")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RequestTimedOut(f"waited {timeout_s:g} s for {what}: it may yet come to be")
                self._followed.wait(left)

    # -- producer ids ----------------------------------------------------------------------------------

    def next_producer_ids(self, count: int) -> range:
        with self._ids_lock:
            if self._ids_begin_at < 0:  # those in a log that was brought along are given to nobody
                used = (partition.largest_producer_id for partition in self._store.partitions())
                self._ids_begin_at = max(used, default=-1) + 1
            while True:
                found = self._zookeeper.get(paths.PRODUCER_IDS)
                last = -1 if found is None or not found.data else contents.ProducerIds.decode(found.data).last
                first = max(last + 1, self._ids_begin_at)
                if first + count > _LAST_ID:
                    raise ZooKeeperError("no producer ids are left")
                data = contents.ProducerIds(self.node_id, first, first + count - 1).encode()
                if (
                    self._zookeeper.create(paths.PRODUCER_IDS, data)
                    if found is None
                    else self._zookeeper.replace(paths.PRODUCER_IDS, data, found.version)
                ):
                    return range(first, first + count)

    # -- the thread ------------------------------------------------------------------------------------

    def _session_changed(self, there_is_one: bool) -> None:
        if not there_is_one:
            self._lease.end()
            self._led = frozenset()
            self._session = 0
            logger.warning("broker %d has lost its session with ZooKeeper: it serves nobody", self.node_id)
        self._wake.set()

    def _run(self) -> None:
        told = ""
        while not self._stopped:
            try:
                self._step()
                told = ""
            except ZooKeeperUnavailable as error:
                if not self._stopped and self._unreachable.count():
                    logger.warning("broker %d: %s; it is tried again and again", self.node_id, error)
                self._wake.wait(_BREATHER_S)
            except EmbedlogError as error:
                if not self._stopped and str(error) != told:
                    told = str(error)
                    logger.warning("broker %d: %s", self.node_id, error)
                self._wake.wait(_BREATHER_S)
            except Exception:
                logger.exception("broker %d: what keeps it in the cluster failed", self.node_id)
                self._wake.wait(_BREATHER_S)
            else:
                self._wake.wait(_TICK_S)
            self._wake.clear()

    def _step(self) -> None:
        """One round. Raises ZooKeeperError, StorageError: the next one goes on."""
        if not self._session or self._zookeeper.session_id not in (self._session, _UNCONNECTED):
            self._join()
        view = self._registries.refresh() or self._view
        while True:
            changed = []
            if self._controller.elect(view, self._store.clock_ms):
                changed.append(paths.CONTROLLER)
            changed += self._controller.carry_out(view)
            if self._wants_offsets_topic and OFFSETS_TOPIC not in view.topics and view.brokers:
                self._make_offsets_topic(view)
                changed.append(paths.TOPICS)
            if not changed:
                break
            self._registries.note(*changed)
            view = self._registries.refresh() or view
        behind: list[str] = []

        def raise_epoch(name: TopicPartition, found: State, wanted: contents.PartitionState) -> None:
            path = paths.partition_state(*name)
            self._zookeeper.replace(path, wanted.encode(), found.version)
            behind.append(path)

        led = self._topics_here.follow(view, raise_epoch)
        if behind:
            self._registries.note(*behind)
            self._wake.set()
        with self._followed:
            self._view = view
            self._led = led if self._session else frozenset()
            self._began = self._began or self.node_id in view.brokers
            self._followed.notify_all()

    def _join(self) -> None:
        """Be registered in the session that there is now."""
        self._cluster_id = join(self._zookeeper, self._store, self._address, lambda: self._stopped)
        session, since = register(self._zookeeper, self._address, self._store.clock_ms, lambda: self._stopped)
        self._registries.forget()
        self._led = frozenset()  # until the registries say so again
        self._session = session
        self._lease.begin(session, since)
        logger.log(
            logging.WARNING if self._began else logging.INFO,  # what tells the end of a trouble is as loud
            "broker %d is registered at %s, session 0x%x",
            self.node_id,
            self._zookeeper.connect_string,
            session,
        )

    def _make_offsets_topic(self, view: ClusterView) -> None:
        settings = self._store.settings
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }
        assignment = assigned(list(view.brokers), settings.offsets_topic_num_partitions)
        try:
            self._register_topic(OFFSETS_TOPIC, contents.Topic(assignment, new_id()), config)
        except TopicExists:
            pass  # another broker was asked as well


def _is_whole(view: ClusterView, name: str) -> bool:
    """Are the states of all the topic's partitions known?"""
    topic = view.topics.get(name)
    return topic is not None and len(topic.states) == len(topic.topic.partitions)
