"""Groups seen from outside: their committed offsets and their members.

Both are in the topic `__consumer_offsets` of a directory, which is read without a lock. Members live in the
process that writes the log: without it groups are empty, whatever the topic says. Over the wire, brokers are
asked.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..backends.port import Backend, GroupAdmin
from ..errors import EmbedlogError, GroupNotFound
from ..files.names import WRITER_FILE
from ..groups.events import MemberDescription
from ..groups.offsets import OFFSETS_TOPIC, LoadedGroups, load_groups, positions
from ..model import CommittedOffset, GroupMemberMetadata, TopicPartition
from ..store.read_only_store import ReadOnlyStore
from ..wire.consumer_protocol import decode_assignment
from .opening import Viewed

_NAMED = 10

Committed = Mapping[TopicPartition, CommittedOffset]


class GroupView(NamedTuple):
    """A group; its generation is None if unknown, and 0 if it never had members."""

    name: str
    committed: Committed
    generation: int | None
    protocol: str | None
    members: tuple[MemberDescription | GroupMemberMetadata, ...]

    def consumers(self) -> dict[TopicPartition, str]:
        """The member that each partition is assigned to."""
        found = {}
        for member in self.members:
            with contextlib.suppress(EmbedlogError):  # of another kind than consumers
                for name in decode_assignment(member.assignment).partitions:
                    found[name] = member.group_instance_id or f"{member.client_host}:{member.member_id}"
        return found


def all_groups(engine: Viewed) -> Iterator[GroupView]:
    """All groups there are, sorted by name. Raises StorageError, CorruptRecord, BrokerUnavailable."""
    if isinstance(engine, ReadOnlyStore):
        loaded, live = _loaded(engine), _members_live(engine)
        for name in loaded.names():
            yield _in_directory(loaded, name, live)
    else:
        coordinator = _coordinator(engine)
        for name in coordinator.list_groups():
            with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                yield _asked(coordinator, name)


def one_group(engine: Viewed, name: str, target: str) -> GroupView:
    """The group of that name; `target` is where. Raises GroupNotFound, and what `all_groups` raises."""
    if isinstance(engine, ReadOnlyStore):
        loaded = _loaded(engine)
        names = loaded.names()
        if name in names:
            return _in_directory(loaded, name, _members_live(engine))
    else:
        coordinator = _coordinator(engine)
        names = coordinator.list_groups()
        if name in names:
            return _asked(coordinator, name)
    raise GroupNotFound(f"no group {name!r} in {target} (groups: {', '.join(names[:_NAMED]) or 'none yet'})")


def committed_offsets(engine: Viewed, group: str) -> Committed:
    """A group's committed offsets; empty if there is no such group. Raises what `all_groups` raises."""
    if isinstance(engine, ReadOnlyStore):
        return positions(_loaded(engine).offsets.get(group, {}))
    return _coordinator(engine).committed_offsets(group)


def _coordinator(backend: Backend) -> GroupAdmin:
    coordinator = backend.coordinator
    assert coordinator is not None
    return coordinator


def _asked(coordinator: GroupAdmin, name: str) -> GroupView:
    found = coordinator.describe_group(name)
    generation = None if found.generation < 0 else found.generation
    return GroupView(name, coordinator.committed_offsets(name), generation, found.protocol, found.members)


def _in_directory(loaded: LoadedGroups, name: str, live: bool) -> GroupView:
    metadata = loaded.metadata.get(name)
    committed = positions(loaded.offsets.get(name, {}))
    if metadata is None:
        return GroupView(name, committed, 0, None, ())
    return GroupView(
        name, committed, metadata.generation, metadata.protocol, metadata.members if live else ()
    )


def _loaded(engine: ReadOnlyStore) -> LoadedGroups:
    exists = OFFSETS_TOPIC in engine.topics()
    return load_groups(engine.partitions_of(OFFSETS_TOPIC) if exists else ())


def _members_live(engine: ReadOnlyStore) -> bool:
    """Whether a process has the log open for writing, as far as can be told without touching its lock."""
    try:
        pid = json.loads(engine.fs.read_file(engine.catalog.file(WRITER_FILE)))["pid"]
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, KeyError, TypeError, ValueError, OverflowError, EmbedlogError):
        return False
    return True
