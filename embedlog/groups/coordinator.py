"""The coordinator of a log's consumer groups: drives the registry, stores offsets, keeps time.

Embedded consumers and a broker's connections call the same methods, from any thread. Joins and syncs return
futures, since they depend on other members. One lock guards all groups; futures are completed, and members
woken, after its release.

Members of this process end with the open log: the next open restores groups with their offsets and
generations, but without members, which join again. A broker's clients outlive the broker: the next broker
restores them as members, and their sessions expire if they are gone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from ..errors import Closed, EmbedlogError, GroupNotEmpty, UnknownMember
from ..model import CommittedOffset, GroupMetadata, JoinResult, TopicPartition
from ..runtime.background_failures import log_failure
from ..runtime.futures import new_future
from ..runtime.locks import ReentrantLock
from ..runtime.uninterruptible import whole
from ..store.store import Store
from ..validation import check_group
from ..wire.consumer_protocol import PROTOCOL_TYPE, same_topics
from .answers import Answers, NotStored
from .completions import Completion
from .dispatch import GroupDispatch
from .expiry import expire, topics_read
from .machines.classic import ClassicGroup
from .machines.consumer_group import ConsumerGroup
from .machines.events import Effect, GroupDescription, GroupState, GroupType, JoinCompleted, JoinFailed
from .machines.member import Offer
from .machines.migration import Migration
from .machines.modern_group import ModernGroup
from .machines.modern_member import HeartbeatResult, MemberHeartbeat
from .machines.registry import Group, GroupRegistry
from .machines.share_membership import ShareMembership
from .marker import Marker
from .modern_groups import ModernGroupDescription
from .offsets import Offsets, check_offsets, positions

logger = logging.getLogger(__name__)

T = TypeVar("T")

REMOTE = "/"
"""The prefix of the client_host of a broker's clients, as in Kafka. Other members are programs on this
machine, and have its name."""


class GroupCoordinator:
    """Implements `backends.port.coordinators.GroupAdmin` over a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = ReentrantLock()
        self._offsets = Offsets(store)
        self._groups = GroupRegistry(
            initial_rebalance_delay_ms=store.settings.group_initial_rebalance_delay_ms,
            same_metadata=same_topics,
        )
        self._dispatch = GroupDispatch(store, self._offsets, self._groups)
        self._restored = False
        self._answers = Answers(self._store_metadata, self._leave_if_withdrawn)
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
        """See `coordinators.Coordinator`. A broker adds, of its clients:

        Args:
            protocol_type: "consumer", or what else the members call their protocol.
            client_host: the member's host; None for this machine.
            require_known_member: a new dynamic member only gets its id (MemberIdRequired).
            max_members, max_groups: limits. Raises TooManyGroups; GroupFull is the future's exception.
        """
        joined: Future[JoinResult] = new_future()

        offer = Offer(
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple((name, bytes(metadata)) for name, metadata in protocols),
            client_id=client_id,
            client_host=socket.gethostname() if client_host is None else client_host,
            group_instance_id=group_instance_id,
        )

        def join() -> Iterable[Effect]:
            try:
                machine = self._group(group, member_id, max_groups)
            except UnknownMember as error:
                return [JoinFailed(joined, error)]
            if on_rebalance is not None:
                self._answers.wake_later(joined, on_rebalance)
            return self._dispatch.join(
                machine,
                member_id,
                offer,
                joined,
                require_known_member=require_known_member,
                max_members=max_members,
            )

        self._change(group, join)
        joined.add_done_callback(lambda done: self._withdraw(group, done) if done.cancelled() else None)
        return joined

    def _withdraw(self, group: str, joined: Future[JoinResult]) -> None:
        with contextlib.suppress(EmbedlogError):  # the group or the log is gone
            self._change(
                group, lambda: self._groups.classic(group, "").withdraw(joined, self._store.clock_ms())
            )

    def _leave_if_withdrawn(self, group: str, answer: Effect) -> None:
        if isinstance(answer, JoinCompleted) and answer.request.cancelled():  # type: ignore[attr-defined]
            with contextlib.suppress(EmbedlogError):
                self.leave_group(group, answer.result.member_id)

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
        synced: Future[bytes] = new_future()

        def sync() -> Iterable[Effect]:
            return self._dispatch.sync(
                self._existing(group),
                member_id,
                generation,
                assignments,
                synced,
                group_instance_id=group_instance_id,
                protocol_type=protocol_type,
                protocol=protocol,
            )

        self._change(group, sync)
        return synced

    def heartbeat(
        self, group: str, member_id: str, generation: int, *, group_instance_id: str | None = None
    ) -> None:
        with self._lock:
            self._check_open()
            try:
                self._dispatch.heartbeat(self._existing(group), member_id, generation, group_instance_id)
            finally:
                self._wake_when_due()  # a member may have to join again in time

    def leave_group(self, group: str, member_id: str, *, group_instance_id: str | None = None) -> None:
        """Leave. With member_id "" it is the current static member of that group_instance_id."""

        def leave() -> Iterable[Effect]:
            self._answers.forget(group, member_id)
            return self._dispatch.leave(self._existing(group), member_id, group_instance_id)

        self._change(group, leave)

    # -- membership of modern groups -------------------------------------------------------------------

    def member_heartbeat(
        self,
        type: GroupType,
        group: str,
        beat: MemberHeartbeat,
        *,
        session_timeout_ms: int,
        max_members: int | None = None,
        max_groups: int | None = None,
    ) -> HeartbeatResult:
        """A heartbeat of a member of a group of that type; its changes are stored.

        Raises as `ModernGroup.heartbeat`, and InvalidRegularExpression, TooManyGroups, StorageError. A group
        of another type: GroupNotFound; for consumer groups InconsistentProtocol.
        """
        groups = self._dispatch.modern_groups[type]
        results: list[HeartbeatResult] = []

        def heartbeat() -> Iterable[Effect]:
            self._restore()
            groups.check(beat)
            before = self._groups.find(group)
            if before is None:
                self._groups.check_room(max_groups)
            result, effects = groups.heartbeat(
                group, before, beat, session_timeout_ms=session_timeout_ms, max_members=max_members
            )
            results.append(result)
            return effects

        self._change(group, heartbeat)
        return results[0]

    def check_member_epoch(self, group: str, member_id: str, member_epoch: int) -> None:
        """Returns if a member of a group of KIP-848 is in that epoch, and for every classic group.

        Raises UnknownMember, StaleMemberEpoch, IllegalGeneration, GroupNotFound.
        """
        with self._lock:
            self._check_open()
            machine = self._existing(group)
            if isinstance(machine, ConsumerGroup):
                machine.check_epoch(member_id, member_epoch)

    def describe_modern_group(self, type: GroupType, group: str) -> ModernGroupDescription:
        """Raises GroupNotFound, also for a group of another type."""
        return self._locked(lambda: self._dispatch.modern_groups[type].describe(group))

    def modern_group_state(self, type: GroupType, group: str) -> GroupState:
        """Raises GroupNotFound, also for a group of another type."""
        modern: ModernGroup = self._locked(lambda: self._dispatch.modern_groups[type].get(group))
        return modern.state

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
        check_offsets(offsets, negative=negative)
        with self._lock:
            self._check_open()
            machine = self._group(group, member_id, max_groups)
            now_ms = self._store.clock_ms()
            machine.check_commit(member_id, generation, now_ms=now_ms, group_instance_id=group_instance_id)
            self._offsets.commit(group, offsets, now_ms)

    def commit_in_transaction(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer_id: int,
        producer_epoch: int,
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
        max_groups: int | None = None,
    ) -> None:
        """Commit in a transaction, which the partition of `offsets_partition` has been added to.

        Without a member id or a generation nothing is checked of the members. Raises as `commit_offsets`;
        InvalidTxnState, InvalidProducerEpoch: the transaction is not open.
        """
        check_offsets(offsets, negative=False)
        with self._lock:
            self._check_open()
            machine = self._group(group, member_id, max_groups)
            now_ms = self._store.clock_ms()
            machine.check_commit_in_transaction(
                member_id, generation, now_ms=now_ms, group_instance_id=group_instance_id
            )
            self._offsets.commit_in_transaction(group, offsets, producer_id, producer_epoch, now_ms)

    def offsets_partition(self, group: str) -> TopicPartition:
        """The partition of `__consumer_offsets` with a group's offsets. The first use creates the topic."""
        check_group(group)
        return self._locked(lambda: self._offsets.partition_of(group).name)

    def end_transaction(self, number: int, marker: Marker) -> None:
        """End a transaction in a partition of `__consumer_offsets`: its offsets are the groups', or dropped.

        Raises as `Partition.end_transaction`.
        """
        with self._lock:
            self._check_open()
            self._offsets.end_transaction(number, marker, self._store.clock_ms())

    def pending_offsets(self, group: str) -> set[TopicPartition]:
        """The partitions for which an open transaction may change a group's offset."""
        return self._locked(lambda: self._offsets.pending(group))

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        names = None if partitions is None else list(partitions)
        with self._lock:
            if require_stable:
                self._offsets.check_stable(group, names)
            return positions(self.stored_offsets(group, names))

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
            read = topics_read(self._dispatch.describe(self._existing(group)))
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
            before_ms = self._store.clock_ms() - retention_ms
            for group in self._groups:
                if not isinstance(group, ShareMembership):
                    described = self._dispatch.describe(group)
                    expire(group, described, self._offsets, before_ms, self._forget)

    def forget_topic(self, topic: str) -> None:
        """Delete a deleted topic's offsets: a later topic of that name is another one."""
        try:
            with self._lock:
                if not self._closed:
                    self._offsets.forget_topic(topic)
        except EmbedlogError as error:
            log_failure(logger, f"offsets committed for the deleted topic {topic} are still there", error)

    # -- groups ----------------------------------------------------------------------------------------

    def list_groups(self) -> list[str]:
        """The groups with members or offsets, sorted; without share groups."""
        groups = self._locked(lambda: list(self._groups))
        return sorted(group.name for group in groups if not isinstance(group, ShareMembership))

    def list_share_groups(self) -> list[str]:
        """The share groups that have or had members, sorted."""
        groups = self._locked(lambda: list(self._groups))
        return sorted(group.name for group in groups if isinstance(group, ShareMembership))

    def describe_group(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""
        return self._locked(lambda: self._dispatch.describe(self._groups.get(group)))

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. Raises GroupNotFound, GroupNotEmpty."""
        self._locked(lambda: self._forget(group))

    def adopt_group(self, group: str, metadata: GroupMetadata) -> None:
        """Take over the generation of a group without members from another coordinator.

        A group that has had members here stays unchanged. Raises StorageError.
        """
        with self._lock:
            self._check_open()
            machine = self._group(group, "", None)
            if isinstance(machine, ClassicGroup) and machine.is_unused and not machine.generation:
                machine.restore(metadata._replace(members=()), self._store.clock_ms())
                self._offsets.save_metadata(group, machine.metadata())

    @property
    def is_loaded(self) -> bool:
        """Whether the stored groups and offsets have been read. If not, the next call reads them first.

        Takes no lock.
        """
        return self._restored

    def load(
        self,
        *,
        clients: bool = False,
        session_timeout_ms: int | None = None,
        migration: Migration | None = None,
    ) -> None:
        """Read the stored groups and offsets now; with `clients` also members that are a broker's clients.

        session_timeout_ms: how long members of modern groups may be silent from now on; None if they are
        gone. migration: how groups with members may change their type from now on.
        Raises CorruptRecord, StorageError.
        """
        with self._lock:
            self._check_open()
            if migration is not None:
                self._dispatch.consumer_groups.migration = migration
            self._restore(clients, session_timeout_ms)
            self._wake_when_due()

    def abandon(self) -> None:
        """In a forked child: replace the inherited lock, which may be held forever."""
        self._lock = ReentrantLock()
        self._closed = True

    def close(self) -> None:
        """Fail outstanding joins and syncs with Closed."""
        with self._lock:
            self._closed = True
            completions = self._answers.carry_out(self._groups.close(Closed("the log is closed")))
        for complete in completions:
            complete()

    # -- inside ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._store.check_open()
        if self._closed:
            raise Closed("the log is closed")

    def _locked(self, work: Callable[[], T]) -> T:
        """Do something with the groups loaded. The timer wakes when a member may have expired."""
        with self._lock:
            self._check_open()
            self._restore()
            result = work()
            self._wake_when_due()
            return result

    def _restore(self, clients: bool = False, session_timeout_ms: int | None = None) -> None:
        """Restore the stored groups; see `GroupDispatch.restore`."""
        if not self._restored:
            self._dispatch.restore(clients=clients, session_timeout_ms=session_timeout_ms, is_live=_is_remote)
            self._restored = True

    def _group(self, name: str, member_id: str, max_groups: int | None) -> Group:
        """The group of a member; without a member id perhaps a new one."""
        if not self._restored:
            self._restore()
        if member_id:
            return self._groups.of_member(name, member_id)
        if name not in self._groups:
            self._groups.check_room(max_groups)
        return self._groups.get_or_create(name)

    def _forget(self, name: str) -> None:
        """Raises GroupNotEmpty."""
        self._groups.delete(name)
        self._offsets.forget_group(name)

    def _existing(self, name: str) -> Group:
        """Raises GroupNotFound."""
        if not self._restored:
            self._restore()
        return self._groups.get(name)

    def _wake_when_due(self) -> None:
        due = self._groups.next_deadline_ms()
        if due is not None:
            self._wake_timer(max(due - self._store.clock_ms(), 0))

    @whole
    def _change(self, group: str, work: Callable[[], Iterable[Effect]]) -> None:
        """Change a group under the lock and carry out the effects; complete futures after its release.

        All of it, or Ctrl-C would leave a group half-way, whose other members would wait forever.
        """
        with self._lock:
            self._check_open()
            completions = self._answers.carry_out(work(), group)
            self._wake_when_due()
        for complete in completions:
            complete()

    def _store_metadata(self, group: str, metadata: GroupMetadata) -> NotStored | None:
        """Store what an effect says."""
        try:
            if not self._closed:
                self._offsets.save_metadata(group, metadata)
        except EmbedlogError as error:
            return NotStored(error, self._groups.classic(group, "").rebalance(self._store.clock_ms()))
        return None

    def _tick(self) -> int | None:
        with self._lock:
            if self._closed:
                return None
            now = self._store.clock_ms()
            completions: list[Completion] = []
            for group in self._groups:
                completions += self._answers.carry_out(self._dispatch.tick(group, now), group.name)
            due = self._groups.next_deadline_ms()
        for complete in completions:
            complete()
        return None if due is None else max(due - now, 1)


def _is_remote(client_host: str) -> bool:
    """Whether a member is a broker's client, which outlives the broker."""
    return client_host.startswith(REMOTE)
