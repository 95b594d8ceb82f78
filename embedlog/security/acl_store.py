"""Where bindings are kept: what a store offers, and the one in a log's directory, acls.json.

    {"version": 1, "acls": [{"resource_type": "Topic", "name": "clicks", "pattern_type": "LITERAL",
                             "principal": "User:alice", "host": "*", "operation": "Read",
                             "permission": "Allow"}, ...]}

A store is read when it is opened. A damaged one is an error then; one that is damaged later changes nothing,
as no rules might let everyone in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from ..errors import CorruptCheckpoint, EmbedlogError, InvalidArgument
from ..files.filesystem import FileSystem
from ..files.names import ACLS_FILE
from ..runtime.locks import Lock
from .acls import (
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    check_binding,
)
from .document import Contents, Document

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_LOOK_S: Final = 0.5

OnChange: TypeAlias = Callable[[frozenset[Binding]], None]


class AclStore(Protocol):
    """Keeps bindings. Methods raise StorageError, ZooKeeperError, CorruptCheckpoint, CorruptZnode."""

    def open(self, on_change: OnChange) -> None:
        """Read all bindings. `on_change` is called now and after each change, wherever it was made; a change
        that this store makes has been passed to it when the method returns."""

    def add(self, bindings: Iterable[Binding]) -> None:
        """Store bindings; durable when this returns. Those that are there already stay."""

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
        """Remove what the filters choose; durable when this returns. Returns what each has removed."""

    def look(self) -> None:
        """Notice now what another process has changed, if that needs no other machine. Raises nothing."""

    def close(self) -> None:
        """End the notices of changes. Safe to call again."""


class DocumentAcls:
    """The store of a broker on its own, and of `embedlog acls` on a directory. Thread-safe."""

    def __init__(self, directory: str, fs: FileSystem | None = None) -> None:
        self._document = Document(os.path.join(directory, ACLS_FILE), _VERSION, fs, check_s=0)
        self._on_change: OnChange = _ignore
        self._lock = Lock()  # one reading at a time, so that the last one wins
        self._read_changes = -1
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure = ""

    def open(self, on_change: OnChange) -> None:
        """See `AclStore`. Another thread looks for changes by other processes twice a second."""
        self._on_change = on_change
        self._refresh()
        self._thread = threading.Thread(target=self._watch, name="embedlog-acls", daemon=True)
        self._thread.start()

    def bindings(self, binding_filter: BindingFilter) -> list[Binding]:
        """The bindings that a filter chooses, in order."""
        return sorted(filter(binding_filter.matches, _decode(self._document)))

    def add(self, bindings: Iterable[Binding]) -> None:
        added = [check_binding(binding) for binding in bindings]
        self._change(lambda current: current.union(added))

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
        removed: list[list[Binding]] = []

        def without(current: set[Binding]) -> set[Binding]:
            removed[:] = [
                sorted(binding for binding in current if binding_filter.matches(binding))
                for binding_filter in filters
            ]
            return current.difference(*removed)

        self._change(without)
        return removed

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _change(self, change: Callable[[set[Binding]], set[Binding]]) -> None:
        def changed(contents: dict[str, Any]) -> Contents:
            bindings = change(set(_parse(contents, self._document.path)))
            return {"acls": [_as_json(binding) for binding in sorted(bindings)]}

        self._document.update(changed)
        if self._thread is not None:
            self._refresh()

    def look(self) -> None:
        try:
            self._refresh()
            self._failure = ""
        except EmbedlogError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                logger.error("the ACLs stay as they were: %s", error)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            self.look()

    def _refresh(self) -> None:
        with self._lock:
            changes = self._document.changes
            if changes != self._read_changes:
                self._on_change(frozenset(_decode(self._document)))
                self._read_changes = changes


def _ignore(bindings: frozenset[Binding]) -> None:
    pass


def _decode(document: Document) -> list[Binding]:
    return _parse(document.read(), document.path)


def _parse(contents: Contents, path: str) -> list[Binding]:
    """Raises CorruptCheckpoint."""
    with contextlib.suppress(TypeError, KeyError, AttributeError, InvalidArgument):
        return [
            check_binding(
                Binding(
                    Resource(
                        ResourceType.parse(acl["resource_type"]),
                        acl["name"],
                        PatternType.parse(acl["pattern_type"]),
                    ),
                    Rule(
                        acl["principal"],
                        acl["host"],
                        Operation.parse(acl["operation"]),
                        Permission.parse(acl["permission"]),
                    ),
                )
            )
            for acl in contents.get("acls", ())
        ]
    raise CorruptCheckpoint(f"{path} has an entry that is not an ACL: mend the file", path=path)


def _as_json(binding: Binding) -> dict[str, str]:
    (type, name, pattern), rule = binding
    return {
        "resource_type": type.spelling,
        "name": name,
        "pattern_type": pattern.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.spelling,
        "permission": rule.permission.spelling,
    }
