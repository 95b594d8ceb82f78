"""Consumer groups of one log: the state machine (groups.py), the offsets (offsets.py), and time.

Embedded consumers and a broker's connections call the same methods from any thread. A join or a sync is
answered by a future when the other members have done their part. One lock guards all groups; futures are
completed, and members woken, after it is let go.

Members of this process live as long as the log is open: when it is opened anew, groups are there with their
offsets and their generation, and nobody is in them; whoever was joins again. Members that were a broker's
clients live elsewhere: to the next broker they are still there, until their sessions say otherwise.
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
from ..validation import as_topic_partition, check_committed, check_group, check_int
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
from .registry import Group, Groups

logger = logging.getLogger(__name__)

_LEAST_OFFSET: Final = -1 << 63

REMOTE = "/"
"""What the client_host of a broker's clients begins with, as Kafka writes it; other members are this
machine's programs, and named by its name."""

_Completion = Callable[[], None]


class GroupCoordinator:
    """Implements `backend.Coordinator` over a store. Safe between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._offsets = Offsets(store)
        self._groups = Groups(
            initial_rebalance_delay_ms=store.settings.group_initial_rebalance_delay_ms,
            same_metadata=same_topics,
        )
        self._restored = False
        # Who is to be woken when a group rebalances: first by the join that has not been answered yet,
        # then by group and member. A member woken once joins again, and brings its waker along.
        self._wakers_of_joins: dict[object, Callable[[], object]] = {}
        self._wakers: dict[str, dict[str, Callable[[], object]]] = {}
        self._closed = False
        self._wake_timer = store.background.add_timer("groups", self._tick)
        store.deletions.listen(self._forget_topic)

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
        """See `backend.Coordinator`. What a broker says of its clients:

        Args:
            protocol_type: what kind of group it is; of consumers, where nothing is said.
            client_host: where the member is; None for this machine.
            require_known_member: a newcomer that is not static only learns its id (MemberIdRequired).
            max_members, max_groups: how many there may be. Raises TooManyGroups; GroupFull in the future.
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
        """Leave. With member_id "" it is the static member of that group_instance_id, whoever it is now."""
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
            _check_commit(name, committed, low=_LEAST_OFFSET if negative else 0)
        with self._lock:
            self._check_open()
            found = self._of_member(group, member_id) if member_id else self._group(group, max_groups)
            found.check_commit(
                member_id, generation, now_ms=self._store.clock_ms(), group_instance_id=group_instance_id
            )
            self._offsets.commit(group, offsets)

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
        """Forget offsets of a group, unless its members read those topics.

        Raises GroupNotFound, GroupNotEmpty (then nothing is forgotten), StorageError.
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
        """Forget what nobody has used for so long, and the groups of which nothing is left (KIP-211).

        An offset's time runs from its commit; that of a group without members from when the last one left, if
        that was later. Offsets of topics that members read do not expire. Raises StorageError.
        """
        with self._lock:
            self._check_open()
            self._restore()
            now = self._store.clock_ms()
            for group in self._groups:
                if group.is_unused and self._offsets.says_members(group.name):
                    # Those of an earlier opening: their absence begins now, not when they joined.
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

    def _forget_topic(self, topic: str) -> None:
        """A topic was deleted: one that gets its name later has nothing to do with it."""
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
        """Forget a group without members, and its offsets. Raises GroupNotFound, GroupNotEmpty."""
        with self._lock:
            self._check_open()
            self._known(group)
            self._forget(group)

    def adopt_group(self, group: str, metadata: GroupMetadata) -> None:
        """Continue from the generation that a group without members had reached at another coordinator.

        A group that has had members here stays as it is. Raises StorageError.
        """
        with self._lock:
            self._check_open()
            found = self._group(group, None)
            if found.is_unused and not found.generation:
                found.restore(metadata._replace(members=()), self._store.clock_ms())
                self._offsets.save_metadata(group, found.metadata())

    @property
    def is_loaded(self) -> bool:
        """Have the groups and offsets of earlier times been read? If not, the next call that needs them waits
        for that. Asking takes no lock."""
        return self._restored

    def load(self, *, clients: bool = False) -> None:
        """Read them now, with the members that were clients of a broker if `clients`.

        Raises CorruptRecord, StorageError.
        """
        with self._lock:
            self._check_open()
            self._restore(clients)
            due = self._groups.next_deadline_ms()
            if due is not None:
                self._wake_timer(max(due - self._store.clock_ms(), 0))

    def abandon(self) -> None:
        """In a forked child: nothing waits here, and the inherited lock may be held for ever."""
        self._lock = threading.RLock()
        self._closed = True

    def close(self) -> None:
        """Everything that waits fails with Closed."""
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
        """The groups of earlier times: with their generation, so that none is used twice; nobody in them, but
        for those whose members are all clients, if these are wanted."""
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
            raise TooManyGroups(f"there are {len(self._groups):,} groups: delete some that nobody uses")
        return self._groups.get_or_create(name)

    def _of_member(self, name: str, member_id: str) -> Group:
        """The group that a member believes itself to be in: it makes none."""
        self._restore()
        check_group(name)
        if name not in self._groups:
            raise UnknownMember(f"group {name!r} has no member {member_id!r}: join again")
        return self._groups.get(name)

    def _forget(self, name: str) -> None:
        """Raises GroupNotEmpty."""
        self._groups.delete(name)
        self._offsets.forget_group(name)

    def _known(self, name: str) -> Group:
        self._restore()
        return self._groups.get(name)

    @contextmanager
    def _changing(self, group: str) -> Iterator[list[Effect]]:
        """Collect a change's effects under the lock, store what must be stored, then tell who waits."""
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
        """Do what must be done under the lock; returns what is to be told after it."""
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
    """What tells the caller its answer."""
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
    """The topics that the members read; None where only they know: any, then."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE:
        return None
    try:
        subscriptions = [decode_subscription(member.metadata) for member in group.members]
    except CorruptRecord:  # or none yet, in the first join phase
        return None
    return frozenset(topic for subscription in subscriptions for topic in subscription.topics)


def _check_commit(name: TopicPartition, committed: CommittedOffset, *, low: int) -> None:
    topic, partition = as_topic_partition(name)
    check_topic_name(topic)
    check_int("partition", partition, low=0)
    check_committed(name, committed, low=low)
