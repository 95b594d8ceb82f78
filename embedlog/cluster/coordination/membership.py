"""What a directory remembers of the cluster that it is of: the file cluster.json at its root.

    {"version": 1, "cluster_id": "22 characters", "broker_id": 0}

It is written once the directory's topics are registered, and never changed. As long as it is there, the
registries are right about topics, and not the directory.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ...errors import CorruptCheckpoint, DirectoryError
from ...files.names import CLUSTER_FILE
from ...store.store import Store

_VERSION: Final = 1


class Membership(NamedTuple):
    """What a directory remembers: its cluster, and which of its brokers it is."""

    cluster_id: str
    broker: int


def membership_of(store: Store) -> Membership | None:
    """None for a directory that has never been in a cluster. Raises CorruptCheckpoint, StorageError."""
    try:
        found = store.catalog.read_json(CLUSTER_FILE)
    except FileNotFoundError:
        return None
    cluster_id, broker = found.get("cluster_id"), found.get("broker_id")
    if found.get("version") != _VERSION or not isinstance(cluster_id, str) or not isinstance(broker, int):
        path = store.catalog.file(CLUSTER_FILE)
        raise CorruptCheckpoint("which cluster it is of cannot be understood", path=path)
    return Membership(cluster_id, broker)


def remember(store: Store, member: Membership) -> None:
    """From now on the directory is of this cluster. Raises OSError."""
    text = json.dumps({"version": _VERSION, "cluster_id": member.cluster_id, "broker_id": member.broker})
    store.fs.write_file(store.catalog.file(CLUSTER_FILE), text.encode())


def check_on_its_own(store: Store) -> None:
    """May the directory be served by a broker on its own? Raises DirectoryError for one of a cluster."""
    member = membership_of(store)
    if member is not None:
        raise DirectoryError(
            f"{store.path} is broker {member.broker} of the cluster {member.cluster_id}: say where its "
            "ZooKeeper is (--zookeeper), or there would be records that the cluster does not know of",
            path=store.path,
        )
