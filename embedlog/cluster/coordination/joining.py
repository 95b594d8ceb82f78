"""How a broker and its directory join a cluster.

    1  Create the parent znodes.
    2  Read /cluster/id, or create it: the first broker uses the id of its log, so that its previous clients
       see the same cluster.
    3  Store the cluster in the directory (cluster.json). A new directory, or one that was served standalone
       until now, registers its topics, with all their partitions on this broker. A topic name that the
       cluster has already is an error before anything changes. So is a broker id that is in use: a mistyped
       id must not be stored. Producer ids that the directory has assigned are not assigned again.
    4  Register the broker's address under its id.

For a directory that has joined before, the registries decide which topics exist: it deletes those that were
deleted while it was away. Hence it must not belong to another cluster or broker id.

Source: Kafka 2.7 design, "Broker node registry", "Cluster id"; Kafka's meta.properties.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ...errors import BrokerIdInUse, DirectoryError, InvalidArgument, ZooKeeperError
from ...store.producer_ids import producer_ids_of
from ...store.store import Store
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from .broker_metadata import BrokerMetadata, read_broker_metadata, write_broker_metadata
from .lease import clock
from .local_replicas import encode_settings
from .port import BrokerAddress

logger = logging.getLogger(__name__)

_BASE: Final = (
    paths.BROKER_IDS,
    paths.TOPICS,
    paths.TOPIC_CONFIGS,
    paths.DELETE_TOPICS,
    paths.CONSUMERS,
)
_POLL_S: Final = 0.05
_GRACE_S: Final = 2.0  # after a session's timeout: ZooKeeper expires sessions in ticks
_PROBE_S: Final = 1.0


def join(zookeeper: ZooKeeper, store: Store, address: BrokerAddress, stopped: Callable[[], bool]) -> str:
    """Steps 1 to 3. Returns the cluster's id.

    Raises DirectoryError for a directory of another cluster or broker, InvalidArgument for topics that the
    cluster has already, BrokerIdInUse, ZooKeeperError, StorageError.
    """
    node_id = address.node_id
    for path in _BASE:
        zookeeper.ensure(path)
    metadata = read_broker_metadata(store)
    if metadata is not None and metadata.broker != node_id:
        raise DirectoryError(
            f"{store.path} is broker {metadata.broker} of its cluster, not {node_id}: serve it as "
            f"--broker-id {metadata.broker}, or give another directory",
            path=store.path,
        )
    znode = zookeeper.get(paths.CLUSTER_ID)
    if znode is None and metadata is None:
        zookeeper.create(paths.CLUSTER_ID, contents.encode_cluster_id(store.catalog.log_id))
        znode = zookeeper.get(paths.CLUSTER_ID)
    cluster_id = None if znode is None else contents.decode_cluster_id(znode.data)
    if cluster_id is None or (metadata is not None and metadata.cluster_id != cluster_id):
        own_cluster_id = "" if metadata is None else metadata.cluster_id
        raise DirectoryError(
            f"{store.path} belongs to the cluster {own_cluster_id}, and {zookeeper.connect_string} has "
            f"{cluster_id or 'none'}: check the address of ZooKeeper and its chroot",
            path=store.path,
        )
    if metadata is None:
        for _ in _await_broker_id(zookeeper, address, stopped):
            if zookeeper.get(paths.broker(node_id)) is None:
                break
        _register_local_topics(zookeeper, store, node_id)
        if store.topics():
            _reserve_producer_ids(zookeeper, producer_ids_of(store).next(1)[0], node_id)
        write_broker_metadata(store, BrokerMetadata(cluster_id, node_id))
    return cluster_id


def _register_local_topics(zookeeper: ZooKeeper, store: Store, node_id: int) -> None:
    """Register the topics of a directory that joins the cluster. Idempotent: it is repeated after a crash."""
    topics = [store.topic(name) for name in store.topics()]
    unregistered = []
    for topic in topics:
        znode = zookeeper.get(paths.topic(topic.name))
        if znode is None:
            unregistered.append(topic)
        elif contents.TopicAssignment.decode(znode.data).topic_id != topic.topic_id:
            raise InvalidArgument(
                f"{store.path} cannot join the cluster: both have a topic {topic.name!r}, with different ids"
            )
    for topic in unregistered:
        zookeeper.create(
            paths.topic_config(topic.name), contents.encode_config(encode_settings(topic.settings))
        )
        registered = contents.TopicAssignment(
            {number: [node_id] for number in range(topic.partitions)}, topic.topic_id
        )
        zookeeper.create(paths.topic(topic.name), registered.encode())
    if unregistered:
        logger.info("registered %d topics of %s in the cluster", len(unregistered), store.path)


def _reserve_producer_ids(zookeeper: ZooKeeper, first_unused: int, node_id: int) -> None:
    """Reserve ids: no broker assigns a producer id below `first_unused` from now on."""
    while True:
        znode = zookeeper.get(paths.PRODUCER_IDS)
        last = -1 if znode is None or not znode.data else contents.ProducerIds.decode(znode.data).last
        if last + 1 >= first_unused:
            return
        data = contents.ProducerIds(node_id, last + 1, first_unused - 1).encode()
        if znode is None:
            zookeeper.create(paths.PRODUCER_IDS, data)
        else:
            zookeeper.replace(paths.PRODUCER_IDS, data, znode.version)


def register(
    zookeeper: ZooKeeper,
    address: BrokerAddress,
    clock_ms: Callable[[], int],
    stopped: Callable[[], bool],
    protocols: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, float]:
    """Step 4. Returns the session, and a time at which it was certainly valid.

    Raises BrokerIdInUse, ZooKeeperError.
    """
    path = paths.broker(address.node_id)
    data = contents.Broker(
        address.host,
        address.port,
        clock_ms(),
        address.rack,
        endpoints=address.endpoints,
        protocols=protocols,
    ).encode()
    for _ in _await_broker_id(zookeeper, address, stopped):
        since, session = clock(), zookeeper.session_id
        if session and zookeeper.create(path, data, ephemeral=True):
            return session, since
        holder = zookeeper.get(path)
        is_ours = holder is not None and session and holder.owner == session  # an attempt's response was lost
        # Replaced only in the version that was read: created again it would outlive this session.
        if holder is not None and is_ours and zookeeper.replace(path, data, holder.version):
            return session, since
    raise AssertionError  # the loop ends with an error


def _await_broker_id(
    zookeeper: ZooKeeper, address: BrokerAddress, stopped: Callable[[], bool]
) -> Iterator[None]:
    """Yields before each attempt to take the broker id, for as long as it may become free.

    The holder may be a previous session of this broker, which was killed: wait for it to expire, unless a
    process listens at the holder's address. Raises BrokerIdInUse, ZooKeeperError.
    """
    deadline = clock() + zookeeper.session_timeout_s + _GRACE_S
    logged = False
    while not stopped():
        yield
        holder = zookeeper.get(paths.broker(address.node_id))
        if holder is None:
            continue
        registered = contents.Broker.decode(holder.data)
        host, port = registered.at(address.endpoints[0][0]) if address.endpoints else registered[:2]
        if clock() > deadline or ((host, port) != (address.host, address.port) and _is_listening(host, port)):
            raise BrokerIdInUse(
                f"broker id {address.node_id} is taken by the broker at {host}:{port}: give this one another "
                "id (--broker-id), or stop that one",
                holder=f"{host}:{port}",
            )
        if not logged:
            logged = True
            logger.warning(
                "waiting for the previous session of broker %d (%s:%d, 0x%x) to expire, %.0f s at most",
                address.node_id,
                host,
                port,
                holder.owner,
                deadline - clock(),
            )
        time.sleep(_POLL_S)
    raise ZooKeeperError("the broker is shutting down")


def _is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _PROBE_S):
            return True
    except OSError:
        return False
