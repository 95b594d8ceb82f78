"""The coordinator of a log's consumer groups: drives the registry, stores offsets, keeps time.

Embedded consumers and a broker's connections call the same methods, from any thread. Joins and syncs return
futures, since they depend on other members. One lock guards all groups; futures are completed, and members
woken, after its release.

Members of this process end with the open log: the next open restores groups with their offsets and
generations, but without members, which join again. A broker's clients outlive the broker: the next broker
restores them as members, and their sessions expire if they are gone.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from ..errors import Closed, CorruptRecord, EmbedlogError, GroupNotEmpty, TooManyGroups, UnknownMember
from ..files.names import check_topic_name
from ..model import NO_TIMESTAMP, CommittedOffset, GroupMetadata, JoinResult, TopicPartition
from ..store.store import Store
from ..validation import as_topic_partition, check_committed, check_group
from ..wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription, same_topics
from .events import (
    Effect,
    GroupDescription,
    JoinCompleted,
    JoinFailed,
    MetadataChanged,
    RebalanceStarted,
    SyncCompleted,
    SyncFailed,
)
from .offsets import Offsets, positions
from .registry import Group, GroupRegistry

logger = logging.getLogger(__name__)

_LEAST_OFFSET: Final = -1 << 63

REMOTE = "/"
"""The prefix of the client_host of a broker's clients, as in Kafka. Other members are programs on this
machine, and have its name."""

_Completion = Callable[[], None]


class GroupCoordinator:
    """Implements `backends.port.GroupAdmin` over a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._offsets = Offsets(store)
        self._groups = GroupRegistry(
            initial_rebalance_delay_ms=store.settings.group_initial_rebalance_delay_ms,
            same_metadata=same_topics,
        )
        self._restored = False
        # Members' on_rebalance callbacks: keyed by the join until it is answered, then by group and member
        # id. A callback is called once; the member brings it again with its next join.
        self._wakers_of_joins: dict[object, Callable[[], object]] = {}
        self._wakers: dict[str, dict[str, Callable[[], object]]] = {}
        self._closed = False
        self._wake_timer = store.background.add_timer("groups", self._tick)

    # -- membership ------------------------------------------------------------------------------------

    def join_group(
        self,
        group: str,
        member_id: str,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Sequence[tuple[str, bytes]],
        client_id: str = "",
        group_instance_id: str | None = None,
        on_rebalance: Callable[[], object] | None = None,
        protocol_type: str = PROTOCOL_TYPE,
        client_host: str | None = None,
        require_known_member: bool = False,
        max_members: int | None = None,
        max_groups: int | None = None,
    ) -> Future[JoinResult]:
        """See `port.Coordinator`. A broker adds, of its clients:

        Args:
            protocol_type: "consumer", or what else the members call their protocol.
            client_host: the member's host; None for this machine.
            require_known_member: a new dynamic member only gets its id (MemberIdRequired).
            max_members, max_groups: limits. Raises TooManyGroups; GroupFull is the future's exception.
        """
        joined: Future[JoinResult] = Future()
        with self._changing(group) as changes:
            try:
                found = self._of_member(group, member_id) if member_id else self._group(group, max_groups)
            except UnknownMember as error:
                changes.append(JoinFailed(joined, error))
                return joined
            if on_rebalance is not None:
                self._wakers_of_joins[joined] = on_rebalance
            changes.extend(
                found.join(
                    member_id,
                    request=joined,
                    session_timeout_ms=session_timeout_ms,
                    rebalance_timeout_ms=rebalance_timeout_ms,
                    protocol_type=protocol_type,
                    protocols=protocols,
                    client_id=client_id,
                    client_host=socket.gethostname() if client_host is None else client_host,
                    now_ms=self._store.clock_ms(),
                    group_instance_id=group_instance_id,
                    require_known_member=require_known_member,
                    max_members=max_members,
                )
            )
        return joined

    def sync_group(
        self,
        group: str,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        *,
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Future[bytes]:
        synced: Future[bytes] = Future()
        with self._changing(group) as changes:
            changes.extend(
                self._known(group).sync(
                    member_id,
                    generation,
                    assignments,
                    request=synced,
                    now_ms=self._store.clock_ms(),
                    group_instance_id=group_instance_id,
                    protocol_type=protocol_type,
                    protocol=protocol,
                )
            )
        return synced

    def heartbeat(
        self, group: str, member_id: str, generation: int, *, group_instance_id: str | None = None
    ) -> None:
        with self._lock:
            self._check_open()
            self._known(group).heartbeat(
                member_id, generation, now_ms=self._store.clock_ms(), group_instance_id=group_instance_id
            )

    def leave_group(self, group: str, member_id: str, *, group_instance_id: str | None = None) -> None:
        """Leave. With member_id "" it is the current static member of that group_instance_id."""
        with self._changing(group) as changes:
            self._wakers.get(group, {}).pop(member_id, None)
            changes.extend(
                self._known(group).leave(
                    member_id, now_ms=self._store.clock_ms(), group_instance_id=group_instance_id
                )
            )

    # -- offsets ---------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
        max_groups: int | None = None,
        negative: bool = False,
    ) -> None:
        """Commit for a member, or, with no member id, for a group that has no members.

        `negative` also accepts negative offsets, which clients commit to reset a position. Raises
        TooManyGroups if the group would exceed max_groups, and whatever else a commit raises.
        """
        for name, committed in offsets.items():
            check_topic_name(as_topic_partition(name).topic)
            check_committed(name, committed, low=_LEAST_OFFSET if negative else 0)
        with self._lock:
            self._check_open()
            found = self._of_member(group, member_id) if member_id else self._group(group, max_groups)
            now_ms = self._store.clock_ms()
            found.check_commit(member_id, generation, now_ms=now_ms, group_instance_id=group_instance_id)
            self._offsets.commit(group, offsets, now_ms)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return positions(self.stored_offsets(group, partitions))

    def stored_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """As `committed_offsets`, including negative offsets that clients have committed."""
        with self._lock:
            self._check_open()
            return self._offsets.of(group, partitions)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets of a group, unless its members read those topics.

        Raises GroupNotFound, GroupNotEmpty (then nothing is deleted), StorageError.
        """
        partitions = list(partitions)
        with self._lock:
            self._check_open()
            read = _topics_read(self._known(group).describe())
            for name in partitions:
                if read is None or name.topic in read:
                    raise GroupNotEmpty(f"the members of group {group!r} read {name.topic}")
            self._offsets.delete(group, partitions)

    def expire_offsets(self, retention_ms: int) -> None:
        """Delete offsets that have expired, and groups without members or offsets (KIP-211).

        An offset expires retention_ms after its commit, or after the last member left the group if that was
        later. Offsets of topics that members read do not expire. Raises StorageError.
        """
        with self._lock:
            self._check_open()
            self._restore()
            now = self._store.clock_ms()
            for group in self._groups:
                if group.is_unused and self._offsets.has_stored_members(group.name):
                    # Members of an earlier open: they left now, not when they joined.
                    self._offsets.save_metadata(group.name, group.metadata())
                offsets = self._offsets.of(group.name, None)
                read = _topics_read(group.describe())
                since = NO_TIMESTAMP if read else self._offsets.state_timestamp_ms(group.name)
                expired = [
                    name
                    for name, offset in offsets.items()
                    if read is not None
                    and name.topic not in read
                    and now - max(offset.commit_timestamp_ms, since) >= retention_ms
                ]
                if group.is_unused and len(expired) == len(offsets):
                    self._forget(group.name)
                else:
                    self._offsets.delete(group.name, expired)

    def forget_topic(self, topic: str) -> None:
        """Delete a deleted topic's offsets: a later topic of that name is another one."""
        try:
            with self._lock:
                if not self._closed:
                    self._offsets.forget_topic(topic)
        except EmbedlogError:
            logger.exception("offsets committed for the deleted topic %s are still there", topic)

    # -- groups ----------------------------------------------------------------------------------------

    def list_groups(self) -> list[str]:
        """The groups with members or offsets, sorted."""
        with self._lock:
            self._check_open()
            self._restore()
            return sorted(group.name for group in self._groups)

    def describe_group(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""
        with self._lock:
            self._check_open()
            return self._known(group).describe()

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. Raises GroupNotFound, GroupNotEmpty."""
        with self._lock:
            self._check_open()
            self._known(group)
            self._forget(group)

    def adopt_group(self, group: str, metadata: GroupMetadata) -> None:
        """Take over the generation of a group without members from another coordinator.

        A group that has had members here stays unchanged. Raises StorageError.
        """
        with self._lock:
            self._check_open()
            found = self._group(group, None)
            if found.is_unused and not found.generation:
                found.restore(metadata._replace(members=()), self._store.clock_ms())
                self._offsets.save_metadata(group, found.metadata())

    @property
    def is_loaded(self) -> bool:
        """Whether the stored groups and offsets have been read. If not, the next call reads them first.

        Takes no lock.
        """
        return self._restored

    def load(self, *, clients: bool = False) -> None:
        """Read the stored groups and offsets now; with `clients` also members that are a broker's clients.

        Raises CorruptRecord, StorageError.
        """
        with self._lock:
            self._check_open()
            self._restore(clients)
            due = self._groups.next_deadline_ms()
            if due is not None:
                self._wake_timer(max(due - self._store.clock_ms(), 0))

    def abandon(self) -> None:
        """In a forked child: replace the inherited lock, which may be held for ever."""
        self._lock = threading.RLock()
        self._closed = True

    def close(self) -> None:
        """Fail outstanding joins and syncs with Closed."""
        with self._lock:
            self._closed = True
            completions = self._carry_out(self._groups.close(Closed("the log is closed")))
            self._wakers.clear()
        for complete in completions:
            complete()

    # -- inside ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._store.check_open()
        if self._closed:
            raise Closed("the log is closed")

    def _restore(self, clients: bool = False) -> None:
        """Restore the stored groups with their generations, so that none is used twice. Without members,
        except, with `clients`, groups whose members are all a broker's clients."""
        if self._restored:
            return
        loaded = self._offsets.load()
        for name in loaded.names():
            group = self._groups.get_or_create(name)
            metadata = loaded.metadata.get(name)
            if metadata is not None:
                stay = clients and all(each.client_host.startswith(REMOTE) for each in metadata.members)
                members = metadata.members if stay else ()
                group.restore(metadata._replace(members=members), self._store.clock_ms())
        self._restored = True

    def _group(self, name: str, max_groups: int | None) -> Group:
        self._restore()
        if max_groups is not None and name not in self._groups and len(self._groups) >= max_groups:
            raise TooManyGroups(f"there are {len(self._groups):,} groups: delete some that are not in use")
        return self._groups.get_or_create(name)

    def _of_member(self, name: str, member_id: str) -> Group:
        """The group of a member. Raises UnknownMember if there is none; a member id never creates one."""
        if not self._restored:
            self._restore()
        group = self._groups.find(name)
        if group is None:
            check_group(name)
            raise UnknownMember(f"group {name!r} has no member {member_id!r}: join again")
        return group

    def _forget(self, name: str) -> None:
        """Raises GroupNotEmpty."""
        self._groups.delete(name)
        self._offsets.forget_group(name)

    def _known(self, name: str) -> Group:
        """Raises GroupNotFound."""
        if not self._restored:
            self._restore()
        return self._groups.get(name)

    @contextmanager
    def _changing(self, group: str) -> Iterator[list[Effect]]:
        """Collect effects under the lock and carry them out; complete futures after its release."""
        effects: list[Effect] = []
        with self._lock:
            self._check_open()
            yield effects
            completions = self._carry_out(effects, group)
            due = self._groups.next_deadline_ms()
            if due is not None:
                self._wake_timer(max(due - self._store.clock_ms(), 0))
        for complete in completions:
            complete()

    def _carry_out(self, effects: Iterable[Effect], group: str = "") -> list[_Completion]:
        """Carry out effects, lock held. Returns the completions to call after its release."""
        completions: list[_Completion] = []
        failed: EmbedlogError | None = None
        for effect in effects:
            if isinstance(effect, MetadataChanged):
                try:
                    if not self._closed:
                        self._offsets.save_metadata(effect.group, effect.metadata)
                except EmbedlogError as error:
                    failed = error
                    again = self._groups.get(effect.group).rebalance(self._store.clock_ms())
                    completions += self._carry_out(again, effect.group)
            elif isinstance(effect, RebalanceStarted):
                wakers = self._wakers.pop(effect.group, {})
                completions += [_calling(wakers[m]) for m in effect.member_ids if m in wakers]
            else:
                wake = self._wakers_of_joins.pop(effect.request, None)
                if wake is not None and isinstance(effect, JoinCompleted) and failed is None:
                    self._wakers.setdefault(group, {})[effect.result.member_id] = wake
                completions.append(_completion(effect, failed))
        return completions

    def _tick(self) -> int | None:
        with self._lock:
            if self._closed:
                return None
            now = self._store.clock_ms()
            completions = [
                completion
                for group in self._groups
                for completion in self._carry_out(group.tick(now), group.name)
            ]
            due = self._groups.next_deadline_ms()
        for complete in completions:
            complete()
        return None if due is None else max(due - now, 1)


def _calling(wake: Callable[[], object]) -> _Completion:
    def call() -> None:
        wake()

    return call


def _completion(
    effect: JoinCompleted | JoinFailed | SyncCompleted | SyncFailed, failed: EmbedlogError | None
) -> _Completion:
    """Completes the future of a join or sync."""
    future = effect.request
    assert isinstance(future, Future)

    def complete() -> None:
        if not future.set_running_or_notify_cancel():
            return
        if failed is not None:
            future.set_exception(failed)
        elif isinstance(effect, (JoinFailed, SyncFailed)):
            future.set_exception(effect.error)
        elif isinstance(effect, SyncCompleted):
            future.set_result(effect.assignment)
        else:
            future.set_result(effect.result)

    return complete


def _topics_read(group: GroupDescription) -> frozenset[str] | None:
    """The topics that the members read; None if unknown, so that it may be any topic."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE:
        return None
    try:
        subscriptions = [decode_subscription(member.metadata) for member in group.members]
    except CorruptRecord:  # or empty, in the first join phase
        return None
    return frozenset(topic for subscription in subscriptions for topic in subscription.topics)
