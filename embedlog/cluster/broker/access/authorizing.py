"""A broker's access control, as its settings ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ....codec import encode_batch
from ....errors import InvalidArgument, InvalidSetting, PartitionNotFound, TopicExists
from ....files.names import INTERNAL_TOPICS, check_topic_name
from ....security.acl_store import AclStore
from ....security.acls import parse_super_users
from ....security.authorizer import Authorizer
from ....store.store import Store
from ...coordination import Coordination
from ...settings.broker_settings import BrokerSettings
from .access import AccessControl
from .access_log import AccessLog

_KEPT: Final = {"retention_bytes": 256 << 20}  # of a partition of the topic that is made for denials


def access_control(
    settings: BrokerSettings, store: Store, coordination: Coordination, acl_store: Callable[[], AclStore]
) -> AccessControl | None:
    """What decides about requests; None without an authorizer.

    Raises InvalidSetting; CorruptCheckpoint, StorageError, CorruptZnode, ZooKeeperError if the ACLs cannot be
    read.
    """
    topic = settings.authorizer_audit_topic
    if topic:
        check_topic_name(topic)
        if topic in INTERNAL_TOPICS:
            raise InvalidSetting(f"authorizer_audit_topic: {topic} is an internal topic, name another one")
    authorizer = authorizer_of(settings, acl_store)
    if authorizer is None:
        return None
    audit = _AuditTopic(store, coordination, topic).append if topic else None
    return AccessControl(authorizer, AccessLog(audit))


def authorizer_of(settings: BrokerSettings, store: Callable[[], AclStore]) -> Authorizer | None:
    """The authorizer that settings ask for, over a store of bindings. Raises as `access_control`."""
    if not settings.authorizer_class_name:
        _check_unused(settings)
        return None
    try:
        super_users = parse_super_users(settings.super_users)
    except InvalidArgument as error:
        raise InvalidSetting(f"super_users: {error}; several are separated by ;") from None
    return Authorizer(store(), super_users, allow_if_none=settings.allow_everyone_if_no_acl_found)


def _check_unused(settings: BrokerSettings) -> None:
    """Raises InvalidSetting for settings that do nothing without an authorizer."""
    for name in ("super_users", "allow_everyone_if_no_acl_found", "authorizer_audit_topic"):
        if getattr(settings, name):
            raise InvalidSetting(f"{name} needs an authorizer: set authorizer_class_name=AclAuthorizer too")


class _AuditTopic:
    """The topic for denials, created if it is missing. In a cluster a broker appends to the first partition
    that it leads."""

    def __init__(self, store: Store, coordination: Coordination, topic: str) -> None:
        self._store = store
        self._coordination = coordination
        self._topic = topic

    def append(self, value: bytes) -> None:
        """Append a record. Raises EmbedlogError."""
        store, coordination = self._store, self._coordination
        if self._topic not in store.topics():
            try:
                coordination.create_topic(self._topic, max(len(coordination.brokers()), 1), _KEPT)
            except TopicExists:  # another broker has made it
                coordination.catch_up([self._topic])
        for partition in store.by_topic.get(self._topic, ()):
            if coordination.leads(partition.name):
                partition.append(encode_batch([(None, value, (), store.clock_ms())]))
                return
        raise PartitionNotFound(f"this broker leads no partition of {self._topic}")
