"""How a broker, and the directory that it serves, come into a cluster.

    1  the paths that everything else is below are made
    2  /cluster/id is read, or made: of the first broker the id of its log, so that clients of before see no
       other cluster
    3  a directory remembers its cluster (cluster.json). One that is new, or was served by itself till now,
       brings its topics along: they are registered, all of their partitions here. What cannot be brought
       along, because the cluster has a topic of that name, is an error before anything is changed; so is an
       id that another broker has: a directory must not remember a number that was a slip
    4  the broker registers, under its id: who it is, and where

Of a directory that has been in the cluster before the registries are right about topics, and not the
directory: what was deleted while it was away goes. So it must not be another cluster's, nor another broker's.

Source: Kafka 2.7 design, "Broker node registry", "Cluster id"; Kafka's meta.properties.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

from ...errors import BrokerIdInUse, DirectoryError, InvalidArgument, ZooKeeperError
from ...store.store import Store
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from .lease import clock
from .local_replicas import texts_of
from .membership import Membership, membership_of, remember
from .port import BrokerAddress

logger = logging.getLogger(__name__)

_BASE: Final = (
    paths.BROKER_IDS,
    paths.TOPICS,
    paths.TOPIC_CONFIGS,
    paths.DELETE_TOPICS,
    paths.CONSUMERS,
)
_LOOK_S: Final = 0.05
_GRACE_S: Final = 2.0  # beyond a session's timeout: ZooKeeper ends sessions in ticks
_PROBE_S: Final = 1.0


def join(zookeeper: ZooKeeper, store: Store, address: BrokerAddress, stopped: Callable[[], bool]) -> str:
    """Steps 1 to 3. Returns the cluster's id.

    Raises DirectoryError for a directory of another cluster or broker, InvalidArgument for topics that the
    cluster has already, BrokerIdInUse, ZooKeeperError, StorageError.
    """
    node_id = address.node_id
    for path in _BASE:
        zookeeper.ensure(path)
    member = membership_of(store)
    if member is not None and member.broker != node_id:
        raise DirectoryError(
            f"{store.path} is broker {member.broker} of its cluster, and not {node_id}: serve it as "
            f"--broker-id {member.broker}, or give another directory",
            path=store.path,
        )
    found = zookeeper.get(paths.CLUSTER_ID)
    if found is None and member is None:
        zookeeper.create(paths.CLUSTER_ID, contents.encode_cluster_id(store.catalog.log_id))
        found = zookeeper.get(paths.CLUSTER_ID)
    cluster_id = None if found is None else contents.decode_cluster_id(found.data)
    if cluster_id is None or (member is not None and member.cluster_id != cluster_id):
        of = "" if member is None else member.cluster_id
        raise DirectoryError(
            f"{store.path} is of the cluster {of}, and at {zookeeper.connect_string} is "
            f"{cluster_id or 'none'}: is that the right ZooKeeper, and the right chroot?",
            path=store.path,
        )
    if member is None:
        for _ in _waiting(zookeeper, address, stopped):
            if zookeeper.get(paths.broker(node_id)) is None:
                break
        _bring_topics(zookeeper, store, node_id)
        remember(store, Membership(cluster_id, node_id))
    return cluster_id


def _bring_topics(zookeeper: ZooKeeper, store: Store, node_id: int) -> None:
    """Register the topics of a directory that comes into the cluster. May be done again after a crash."""
    topics = [store.topic(name) for name in store.topics()]
    missing = []
    for topic in topics:
        found = zookeeper.get(paths.topic(topic.name))
        if found is None:
            missing.append(topic)
        elif contents.Topic.decode(found.data).topic_id != topic.topic_id:
            raise InvalidArgument(
                f"{store.path} has a topic {topic.name!r}, and the cluster has another one of that name: "
                "this directory cannot join it as it is"
            )
    for topic in missing:
        zookeeper.create(paths.topic_config(topic.name), contents.encode_config(texts_of(topic.settings)))
        registered = contents.Topic({number: [node_id] for number in range(topic.partitions)}, topic.topic_id)
        zookeeper.create(paths.topic(topic.name), registered.encode())
    if missing:
        logger.info("%d topics of %s are the cluster's now", len(missing), store.path)


def register(
    zookeeper: ZooKeeper,
    address: BrokerAddress,
    clock_ms: Callable[[], int],
    stopped: Callable[[], bool],
) -> tuple[int, float]:
    """Step 4. Returns the session and when it was certainly ours.

    Raises BrokerIdInUse, ZooKeeperError.
    """
    path = paths.broker(address.node_id)
    data = contents.Broker(address.host, address.port, clock_ms(), address.rack).encode()
    for _ in _waiting(zookeeper, address, stopped):
        since, session = clock(), zookeeper.session_id
        if session and zookeeper.create(path, data, ephemeral=True):
            return session, since
        holder = zookeeper.get(path)
        is_ours = holder is not None and session and holder.owner == session  # an attempt's answer was lost
        # It is written only as what it was found to be: made anew it would outlive its session.
        if holder is not None and is_ours and zookeeper.replace(path, data, holder.version):
            return session, since
    raise AssertionError  # the loop ends by an error


def _waiting(zookeeper: ZooKeeper, address: BrokerAddress, stopped: Callable[[], bool]) -> Iterator[None]:
    """Again and again, as long as the id may become ours.

    Where it is taken, it may be by a former session of this very broker, which was killed: that is waited
    for, unless somebody listens at the holder's address. Raises BrokerIdInUse, ZooKeeperError.
    """
    deadline = clock() + zookeeper.session_timeout_s + _GRACE_S
    told = False
    while not stopped():
        yield
        holder = zookeeper.get(paths.broker(address.node_id))
        if holder is None:
            continue
        found = contents.Broker.decode(holder.data)
        where = f"{found.host}:{found.port}"
        is_own = (found.host, found.port) == (address.host, address.port)
        if clock() > deadline or (not is_own and _listens(found.host, found.port)):
            raise BrokerIdInUse(
                f"broker id {address.node_id} is taken by the broker at {where}: give this one another id "
                "(--broker-id), or stop that one",
                holder=where,
            )
        if not told:
            told = True
            logger.warning(
                "waiting for the former session of broker %d (%s, 0x%x) to end, %.0f s at most",
                address.node_id,
                where,
                holder.owner,
                deadline - clock(),
            )
        time.sleep(_LOOK_S)
    raise ZooKeeperError("the broker is shutting down")


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _PROBE_S):
            return True
    except OSError:
        return False
