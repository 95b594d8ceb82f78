"""A broker's place among brokers: on its own, or one of ZooKeeper's cluster until the end of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from ...errors import InvalidArgument
from ...store.store import Store
from ..settings.broker_settings import BrokerSettings
from .broker_metadata import check_standalone
from .port import BrokerAddress, Coordination
from .single import SingleBroker


@contextlib.contextmanager
def membership(
    store: Store,
    address: BrokerAddress,
    protocols: Mapping[str, str],
    settings: BrokerSettings,
    zookeeper: str | None,
    zookeeper_auth: str | None,
) -> Iterator[Coordination]:
    """The coordination of a broker that is at `address`.

    Args:
        protocols: of its listeners, by their names.
        zookeeper: "host:port,host:port/chroot"; None for a broker on its own.
        zookeeper_auth: "user:password".

    Raises InvalidArgument, BrokerIdInUse, ZooKeeperUnavailable, ZooKeeperError.
    """
    if zookeeper is None:
        check_standalone(store)
        yield SingleBroker(store, address)
        return
    try:
        from ..zookeeper.client import ZooKeeper
        from ..zookeeper.security import Security
        from .registered import RegisteredBroker
    except ImportError as error:
        raise InvalidArgument(
            f"brokers form a cluster through kazoo, which is not installed ({error}): "
            "pip install 'embedlog[cluster]'"
        ) from None
    client = ZooKeeper(
        zookeeper,
        session_timeout_s=settings.zookeeper_session_timeout_ms / 1000,
        auth=zookeeper_auth,
        set_acl=settings.zookeeper_set_acl,
        security=Security.of(settings),
    )
    with client, contextlib.closing(RegisteredBroker(client, store, address, protocols)) as registered:
        registered.start()
        yield registered
