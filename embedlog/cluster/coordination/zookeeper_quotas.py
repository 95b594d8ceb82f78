"""Quotas in ZooKeeper, where Kafka's brokers and tools of that time kept them: implements `QuotaStore`.

A znode has the settings of an entity, those that are not quotas included (a user's SCRAM credentials), which
a change keeps. After a change a notification is written, which all brokers watch. A thread reads everything
when there is one, at the start and in each new session.

Source: Kafka 2.7's `AdminZkClient`, `ZkNodeChangeNotificationListener`; KIP-546, KIP-612.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from ...errors import CorruptZnode, EmbedlogError, InvalidArgument
from ...runtime.locks import Lock
from ...security.quota_rules import CLIENT_ID, IP, KEYS, USER, Entity, QuotasByEntity, checked_value
from ...security.quota_store import altered
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_KEPT_S: Final = 15 * 60.0  # a notification, as Kafka does
_MOST_PURGED: Final = 100  # at a time
_DIRECTORIES: Final = {USER: "users", CLIENT_ID: "clients", IP: "ips"}


class ZooKeeperQuotas:
    """The quotas of a cluster. Raises ZooKeeperError, ZooKeeperUnavailable."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._lock = Lock()  # held while reading
        self._quotas: QuotasByEntity = {}
        self._changes = 0
        self._wake = threading.Event()
        self._closed = False
        zookeeper.ensure(paths.CONFIG_CHANGES)
        self._load()
        zookeeper.on_session(lambda is_active: self._wake.set() if is_active else None)
        self._thread = threading.Thread(target=self._run, name="embedlog-quotas", daemon=True)
        self._thread.start()

    @property
    def changes(self) -> int:
        return self._changes

    def read(self) -> QuotasByEntity:
        return self._quotas

    def alter(self, of: Entity, changes: Mapping[str, float | None]) -> None:
        entity_path = _entity_path(of)
        path = paths.config_entity(entity_path)
        while True:
            znode = self._zookeeper.get(path)
            config = {} if znode is None else contents.decode_config(znode.data)
            texts = {key: None if value is None else str(value) for key, value in changes.items()}
            data = contents.encode_config(altered(config, texts))
            if (
                self._zookeeper.create(path, data)
                if znode is None
                else self._zookeeper.replace(path, data, znode.version)
            ):
                break
        self._zookeeper.append(paths.CONFIG_CHANGE, contents.encode_config_change(entity_path))
        self._purge()
        self._load()

    def close(self) -> None:
        """End the thread. The session's owner closes the session."""
        self._closed = True
        self._wake.set()
        self._thread.join(_RETRY_S)  # longer only if it waits for ZooKeeper

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closed:
                return
            try:
                self._load()
            except EmbedlogError as error:
                logger.warning("quotas cannot be read from ZooKeeper, those of before apply: %s", error)
                self._wake.wait(_RETRY_S)
                self._wake.set()

    def _load(self) -> None:
        with self._lock:
            self._zookeeper.children(paths.CONFIG_CHANGES, lambda _: self._wake.set())
            users = self._names("users")
            entities: list[Entity] = [
                *(((USER, name),) for name in users),
                *(((USER, user), (CLIENT_ID, name)) for user, name in self._pairs(users)),
                *(((CLIENT_ID, name),) for name in self._names("clients")),
                *(((IP, name),) for name in self._names("ips")),
            ]
            responses = self._zookeeper.pipeline_of(
                paths.config_entity(_entity_path(entity)) for entity in entities
            )
            quotas = {}
            for entity, response in zip(entities, responses, strict=True):
                if not isinstance(response, KazooException) and (values := _values(entity, response[0])):
                    quotas[entity] = values
            if quotas != self._quotas:
                self._quotas = quotas
                self._changes += 1

    def _names(self, directory: str) -> list[str | None]:
        """The names of a directory's entities."""
        return [
            paths.unsanitized(name) for name in self._zookeeper.children(paths.config_entity(directory)) or ()
        ]

    def _pairs(self, users: Iterable[str | None]) -> list[tuple[str | None, str | None]]:
        """Users and client ids with settings for both together."""
        user_names = list(users)
        node_paths = [paths.config_entity(f"{_entity_path(((USER, user),))}/clients") for user in user_names]
        responses = self._zookeeper.pipeline_of(node_paths, KazooClient.get_children_async)
        return [
            (user, paths.unsanitized(name))
            for user, names in zip(user_names, responses, strict=True)
            if not isinstance(names, KazooException)
            for name in names
        ]

    def _purge(self) -> None:
        """Delete notifications that every broker has seen for long."""
        names = self._zookeeper.children(paths.CONFIG_CHANGES) or []
        node_paths = [f"{paths.CONFIG_CHANGES}/{name}" for name in names[:_MOST_PURGED]]
        stats = self._zookeeper.pipeline_of(node_paths, KazooClient.exists_async)
        for path, stat in zip(node_paths, stats, strict=True):
            if stat is not None and time.time() - stat.ctime / 1000 > _KEPT_S:
                self._zookeeper.delete(path)


def _entity_path(entity: Entity) -> str:
    return "/".join(f"{_DIRECTORIES[kind]}/{paths.sanitized(name)}" for kind, name in entity)


def _values(entity: Entity, data: bytes) -> dict[str, float]:
    """An entity's quotas; what cannot be read is logged and left out."""
    quotas: dict[str, float] = {}
    try:
        for key, text in contents.decode_config(data).items():
            if key in KEYS:
                quotas[key] = checked_value(entity, key, float(text))
    except (CorruptZnode, InvalidArgument, ValueError) as error:
        logger.error("a quota in ZooKeeper is skipped: %s: %s", _entity_path(entity), error)
    return quotas
