"""The cluster that a directory belongs to: the file cluster.json at its root.

    {"version": 1, "cluster_id": "22 characters", "broker_id": 0}

It is written after the directory's topics have been registered, and never changed. From then on the
registries decide which topics exist, not the directory.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ...errors import CorruptCheckpoint, DirectoryError
from ...files.names import CLUSTER_FILE
from ...store.store import Store

_VERSION: Final = 1


class BrokerMetadata(NamedTuple):
    """A directory's cluster and its broker id there."""

    cluster_id: str
    broker: int


def read_broker_metadata(store: Store) -> BrokerMetadata | None:
    """The metadata of a directory; None for one that has never been in a cluster.

    Raises CorruptCheckpoint, StorageError.
    """
    try:
        fields = store.catalog.read_json(CLUSTER_FILE)
    except FileNotFoundError:
        return None
    cluster_id, broker = fields.get("cluster_id"), fields.get("broker_id")
    if fields.get("version") != _VERSION or not isinstance(cluster_id, str) or not isinstance(broker, int):
        path = store.catalog.file(CLUSTER_FILE)
        raise CorruptCheckpoint("not a valid cluster.json", path=path)
    return BrokerMetadata(cluster_id, broker)


def write_broker_metadata(store: Store, metadata: BrokerMetadata) -> None:
    """Bind the directory to this cluster and broker id. Raises OSError."""
    text = json.dumps({"version": _VERSION, "cluster_id": metadata.cluster_id, "broker_id": metadata.broker})
    store.fs.write_file(store.catalog.file(CLUSTER_FILE), text.encode())


def check_standalone(store: Store) -> None:
    """Raises DirectoryError if the directory belongs to a cluster."""
    metadata = read_broker_metadata(store)
    if metadata is not None:
        raise DirectoryError(
            f"{store.path} is broker {metadata.broker} of the cluster {metadata.cluster_id}: give its "
            "ZooKeeper (--zookeeper); a standalone broker would append records that the cluster does not "
            "know",
            path=store.path,
        )
