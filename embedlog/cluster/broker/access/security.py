"""What a broker knows of its clients: users, sessions, quotas, permissions.

A cluster keeps them in ZooKeeper, a broker on its own in the directory of its log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from ....files.names import QUOTAS_FILE
from ....runtime.closing import Closing
from ....security.acl_store import AclStore, DocumentAcls
from ....security.quota_meters import Windows
from ....security.quota_store import QuotaStore, StoredQuotas
from ....security.quotas import Quotas
from ....security.users import DocumentUsers, UserStore
from ....store.store import Store
from ...coordination import Coordination, SingleBroker
from ...network.listeners import Listener
from ...settings.broker_settings import BrokerSettings
from .authentication import authenticator_of
from .authorizing import access_control


class BrokerSecurity(Closing):
    """A broker's users, and what is kept for them.

    authenticator: None if no listener has SASL. access: None if requests may do everything.

    Raises InvalidSetting, InvalidArgument, and what reading users, quotas and ACLs raises.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        coordination: Coordination,
        listeners: Iterable[Listener],
    ) -> None:
        with contextlib.ExitStack() as undo:
            self.users, quota_store, acl_store = _stores(store, coordination)
            self.authenticator = authenticator_of(self.users, settings, listeners)
            if self.authenticator is not None:
                undo.callback(self.authenticator.close)
            self.quotas = Quotas(
                quota_store(),
                Windows(settings.quota_window_num, settings.quota_window_size_seconds),
                settings.max_connection_creation_rate,
            )
            undo.callback(self.quotas.close)
            self.access = access_control(settings, store, coordination, acl_store)
            if self.access is not None:
                undo.callback(self.access.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """End their threads; denials that were noted reach their topic before."""
        self._undo.close()


def _stores(
    store: Store, coordination: Coordination
) -> tuple[UserStore, Callable[[], QuotaStore], Callable[[], AclStore]]:
    """Find them in ZooKeeper if that is where the cluster is, else in the log's directory."""
    if isinstance(coordination, SingleBroker):
        quotas_path = os.path.join(store.path, QUOTAS_FILE)
        return (
            DocumentUsers(store.path),
            lambda: StoredQuotas(quotas_path),
            lambda: DocumentAcls(store.path, store.fs),
        )
    from ...coordination.registered import RegisteredBroker
    from ...coordination.zookeeper_quotas import ZooKeeperQuotas
    from ...coordination.zookeeper_users import ZooKeeperUsers
    from ...zookeeper.acls import ZooKeeperAcls

    assert isinstance(coordination, RegisteredBroker)
    zookeeper = coordination.zookeeper
    return ZooKeeperUsers(zookeeper), lambda: ZooKeeperQuotas(zookeeper), lambda: ZooKeeperAcls(zookeeper)
