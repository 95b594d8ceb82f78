"""Bindings in ZooKeeper, as Kafka 2.7 kept them: one znode for each resource, and a znode for each change.

    writer   the rules of the resource, if nobody has changed them meanwhile -> a numbered notification
    reader   a watch on the notifications -> the thread reads the resources that they name

Everything is read again after a lost connection, and when notifications are missing. A znode that nobody can
read is an error at the start; later it leaves its resource's rules as they were.

Source: Kafka's ZkAclStore and ZkAclChangeStore; KIP-290.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from ...errors import CorruptZnode, EmbedlogError, ZooKeeperUnavailable
from ...runtime.locks import Lock
from ...security.acl_store import OnChange
from ...security.acls import (
    Binding,
    BindingFilter,
    PatternType,
    Resource,
    ResourceType,
    Rule,
    check_binding,
)
from . import contents, paths
from .client import ZooKeeper

logger = logging.getLogger(__name__)

_ROOTS: Final = {PatternType.LITERAL: paths.ACLS, PatternType.PREFIXED: paths.PREFIXED_ACLS}
_CHANGES: Final = {
    PatternType.LITERAL: paths.ACL_CHANGES,
    PatternType.PREFIXED: paths.PREFIXED_ACL_CHANGES,
}
_KEPT: Final = 1_000  # notifications
_ATTEMPTS: Final = 100  # of a change that others make at the same time
_PAUSE_S: Final = 1.0  # without a connection


class ZooKeeperAcls:
    """Implements `AclStore`. Thread-safe.

    Args:
        zookeeper: a client, which stays open.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._on_change: OnChange | None = None
        self._lock = Lock()  # held while rules are read
        self._rules: dict[Resource, set[Rule]] = {}
        self._seen = dict.fromkeys(_CHANGES, -1)  # the number of the last notification
        self._read_all = True
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="embedlog-acls", daemon=True)

    def open(self, on_change: OnChange) -> None:
        """See `AclStore`."""
        self._on_change = on_change
        for path in (*_ROOTS.values(), *_CHANGES.values()):
            self._zookeeper.ensure(path)
        with self._lock:
            self._refresh(strict=True)
        self._thread.start()

    def add(self, bindings: Iterable[Binding]) -> None:
        """See `AclStore`. Raises InvalidArgument for a name that cannot be a znode."""
        by_resource: dict[Resource, set[Rule]] = {}
        for binding in bindings:
            by_resource.setdefault(check_binding(binding).resource, set()).add(binding.rule)
        for resource in by_resource:
            _path(resource)
        for resource, rules in by_resource.items():
            self._change(resource, lambda present, rules=rules: present | rules)  # type: ignore[misc]
        self._apply(by_resource)

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
        """See `AclStore`."""
        self._apply_all()
        removed_bindings: list[set[Binding]] = [set() for _ in filters]
        changed = []
        for resource in self._chosen(filters):

            def without(present: set[Rule], resource: Resource = resource) -> set[Rule]:
                kept_rules = set(present)
                for binding_filter, bindings in zip(filters, removed_bindings, strict=True):
                    for rule in present:
                        if binding_filter.matches(binding := Binding(resource, rule)):
                            bindings.add(binding)
                            kept_rules.discard(rule)
                return kept_rules

            if self._change(resource, without):
                changed.append(resource)
        self._apply(changed)
        return [sorted(bindings) for bindings in removed_bindings]

    def look(self) -> None:
        """See `AclStore`: ZooKeeper tells of changes."""

    def close(self) -> None:
        """See `AclStore`."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    # -- writing ---------------------------------------------------------------------------------------

    def _change(self, resource: Resource, change: Callable[[set[Rule]], set[Rule]]) -> bool:
        """Change the rules about a resource. Returns whether that changes anything."""
        path = _path(resource)
        for _ in range(_ATTEMPTS):
            znode = self._zookeeper.get(path)
            rules = set() if znode is None else contents.decode_acl(znode.data)
            changed_rules = change(rules)
            if changed_rules == rules:
                return False
            data = contents.encode_acl(sorted(changed_rules))
            if znode is None:
                is_written = self._zookeeper.create(path, data)
            elif changed_rules:
                is_written = self._zookeeper.replace(path, data, znode.version)
            else:
                transaction = self._zookeeper.transaction()
                transaction.delete(path, znode.version)
                is_written = self._zookeeper.commit(transaction) is None
            if is_written:
                self._zookeeper.append(
                    f"{_CHANGES[resource.pattern]}/{paths.ACL_CHANGE}", contents.encode_acl_change(resource)
                )
                return True
        raise ZooKeeperUnavailable(f"{path} changes all the time: try again")

    def _chosen(self, filters: Sequence[BindingFilter]) -> list[Resource]:
        return sorted(
            resource
            for resource, rules in self._rules.items()
            if any(
                binding_filter.matches(Binding(resource, rule))
                for binding_filter in filters
                for rule in rules
            )
        )

    # -- reading ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._closed:
                return
            try:
                with self._lock:
                    self._refresh()
                pause_s = None
            except EmbedlogError as error:
                self._read_all = True
                if pause_s is None:
                    logger.warning("the ACLs stay as they were until ZooKeeper can be read: %s", error)
                pause_s = _PAUSE_S

    def _watched(self, event: Any) -> None:
        """In kazoo's thread."""
        if event.type == EventType.NONE:  # the connection
            self._read_all = True
        self._wake.set()

    def _apply(self, resources: Iterable[Resource]) -> None:
        """Put changes of this process into force."""
        with self._lock:
            self._read(list(resources), strict=False)
            self._publish()

    def _apply_all(self) -> None:
        with self._lock:
            self._read_all = True
            self._refresh()

    def _refresh(self, *, strict: bool = False) -> None:
        """Read what notifications name, or all."""
        changed_resources: list[Resource] = []
        for pattern, path in _CHANGES.items():
            notifications = sorted(
                name
                for name in self._zookeeper.children(path, self._watched) or ()
                if name.startswith(paths.ACL_CHANGE)
            )
            numbers = {name: int(name.removeprefix(paths.ACL_CHANGE)) for name in notifications}
            unseen = [name for name in notifications if numbers[name] > self._seen[pattern]]
            if unseen and numbers[unseen[0]] > self._seen[pattern] + 1:
                self._read_all = True
            for name in () if self._read_all else unseen:
                changed_resources += self._named_by(f"{path}/{name}")
            if unseen:
                self._seen[pattern] = numbers[unseen[-1]]
            for name in notifications[:-_KEPT]:
                self._zookeeper.delete(f"{path}/{name}")
        if self._read_all:
            self._read_all = False
            try:
                changed_resources = self._listed()
                for deleted_resource in self._rules.keys() - set(changed_resources):
                    del self._rules[deleted_resource]
                self._read(changed_resources, strict=strict)
            except BaseException:
                self._read_all = True
                raise
        elif changed_resources:
            self._read(changed_resources, strict=strict)
        else:
            return
        self._publish()

    def _named_by(self, path: str) -> list[Resource]:
        znode = self._zookeeper.get(path)
        try:
            return [] if znode is None else [contents.decode_acl_change(znode.data)]
        except CorruptZnode as error:
            logger.error("%s: all ACLs are read: %s", path, error)
            self._read_all = True
            return []

    def _listed(self) -> list[Resource]:
        """All resources that have rules."""
        places = [(pattern, type) for pattern in _ROOTS for type in ResourceType if type > ResourceType.ANY]
        lists = self._zookeeper.pipeline_of(
            [f"{_ROOTS[pattern]}/{type.spelling}" for pattern, type in places],
            KazooClient.get_children_async,
        )
        return [
            Resource(type, name, pattern)
            for (pattern, type), names in zip(places, lists, strict=True)
            if not isinstance(names, NoNodeError)
            for name in names
        ]

    def _read(self, resources: Sequence[Resource], *, strict: bool) -> None:
        responses = self._zookeeper.pipeline_of(map(_path, resources))
        for resource, response in zip(resources, responses, strict=True):
            if isinstance(response, NoNodeError):
                self._rules.pop(resource, None)
                continue
            try:
                rules = contents.decode_acl(response[0])
            except CorruptZnode as error:
                if strict:
                    raise
                logger.error("%s stays as it was: %s", _path(resource), error)
            else:
                self._rules[resource] = rules

    def _publish(self) -> None:
        if self._on_change is not None:
            self._on_change(
                frozenset(
                    Binding(resource, rule) for resource, rules in self._rules.items() for rule in rules
                )
            )


def _path(resource: Resource) -> str:
    """Raises InvalidArgument."""
    build = paths.acl if resource.pattern is PatternType.LITERAL else paths.prefixed_acl
    return build(resource.type.spelling, resource.name)
