"""The consumer: reads topics at its own pace, alone or in a group, and keeps its positions.

    with log.consumer("clicks", group="billing") as consumer:
        for record in consumer: ...

Each turn, of `poll` and of an iteration alike:

    release     the records returned last time are done                  positions.py
    advance     metadata, heartbeat, gain or give up partitions          assignment.py
    commit      what is done, if auto-commit is due                      offset_commits.py
    take        records of the next partition                            reader.py
    wait        in the backend, for data, a rebalance or close()         backends/port/

Advance and commit only if they are due, or another thread has set the interrupt. An iteration takes a turn
for each chunk, not for each record: between two records it only compares the clock and two fields, without
the guard against a second thread. A call from elsewhere ends the chunk first: it takes `_left` away.

Delivery: auto-commit commits only records that the application has received and come back from, so a crash
during processing repeats records (at least once). Commit before processing for at most once; store offset
and result in one transaction, by an `OffsetStore`, for exactly once.

Invariants: `poll` waits no longer than its timeout, also during a rebalance: the futures of a join and a sync
are kept from one call to the next. An error swallows no records: those before it are returned first.

Source: design documents, "The consumer" and "Consumer rebalancing"; Kafka's KafkaConsumer.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic

from .. import validation
from ..backends.port import Backend, Interrupt
from ..config import MAX_INT32
from ..errors import (
    Closed,
    CommitFailed,
    EmbedlogError,
    InvalidArgument,
    PartitionNotFound,
    TopicNotFound,
    counted,
)
from ..model import CommittedOffset, K, Record, TopicPartition, V, of_one_or_two
from ..runtime.closing import closes
from ..runtime.thread_guard import ThreadGuard
from .assignment import Assignment, RebalanceCallback
from .assignors import Assignor, as_assignors
from .decoding import decoded_chunk, take
from .first_offsets import FirstOffsets, check_reset
from .membership import MemberOffsets, Membership
from .offset_commits import Commits, TransactionOffsets, as_commits, check_store, once_stable
from .offset_store import OffsetStore
from .partition_reader import DEFAULT_FETCH_BYTES
from .position import Position
from .positions import Positions
from .reader import checked_isolation
from .seeking import Seeking
from .subscription import Topics

if TYPE_CHECKING:
    from .record_serde import RecordSerde

_FOREVER: Final = float("inf")
_NOTHING: Final[Iterator[Any]] = iter(())

_logger = logging.getLogger(__name__)


@of_one_or_two
class Consumer(Seeking, Generic[V, K]):
    """Reads records of topics, as an iterator of `Record` and a context manager; from `Log.consumer`.

    Args:
        backend: the log.
        topics: a name, several names, or a compiled pattern. A pattern must match whole names, and includes
            topics created later, but never internal ones. () to `assign` partitions instead.
        group: consumers of one group share the partitions. Each group, and each consumer without a group,
            reads all records. Offsets are committed under this name.
        serde: decodes values and keys (see `Topic.consumer`); by default they are bytes.
        auto_offset_reset: where to start without a committed offset, or if that offset no longer exists:
            "earliest", "latest", "by_duration:PT1H" (the first record of the last hour; an ISO 8601
            duration), or "error", which raises OffsetOutOfRange or LogTruncated. A partition or topic that
            appears after the consumer, or after its group's first commit, is read from its first record,
            except with "error". So with "latest" and "by_duration" a group commits where it begins at once.
        auto_commit: commit what is done every auto_commit_interval_ms, before giving up partitions, at the
            end of an iteration and at `close`. By default True in a group.
        assignors: strategies to assign the partitions, best first: names ("range", "roundrobin", "sticky")
            or `Assignor` objects. The group uses one that all members support.
        isolation_level: "read_committed" returns no records of aborted transactions, and none past the first
            open one. "read_uncommitted" returns all records.
        max_poll_records: the most records that `poll` returns.
        fetch_max_bytes: how many bytes to fetch from a partition at a time.
        max_poll_interval_ms: the longest time between polls. After that the consumer loses its partitions.
            Within one process it is also the session timeout, since a member fails only if its loop stalls.
        client_id: a name that administrators see.
        group_instance_id: makes it a static member, which keeps its partitions across a restart. It takes the
            place of a live consumer with the same id, whose polls then raise FencedInstance.
        offset_store: stores the group's offsets outside the log. The consumer does not join the group, and
            reads all partitions. A process with mode="r" needs a store to commit.
        stop_at_end: end an iteration when all partitions are read to their ends.
        on_assigned: called by the polling thread with the partitions that the group has assigned.
        on_revoked: called with the partitions before they are given up: commit here.
        on_lost: called instead if other members may own the partitions already. By default `on_revoked`.
        metadata_refresh_ms: how often to look for new topics and partitions.

    Use it in one thread at a time; otherwise it raises ConcurrentUse. Other threads may call `close`,
    `wakeup`, `estimated_lag` and `held_back`. A consumer that is garbage-collected without `close` leaves its
    group and commits nothing. Raises InvalidArgument, InvalidType, InvalidGroup, TopicNotFound. Raises
    GroupError for a group without `offset_store` on a log opened for reading.
    """

    def __init__(
        self,
        backend: Backend,
        topics: Topics = (),
        group: str | None = None,
        serde: RecordSerde[V, K] | None = None,
        *,
        auto_offset_reset: str = "earliest",
        auto_commit: bool | None = None,
        auto_commit_interval_ms: int = 5_000,
        assignors: Sequence[str | Assignor] = ("range", "sticky"),
        isolation_level: str = "read_committed",
        max_poll_records: int = 500,
        fetch_max_bytes: int = DEFAULT_FETCH_BYTES,
        max_poll_interval_ms: int = 300_000,
        client_id: str = "embedlog",
        group_instance_id: str | None = None,
        offset_store: OffsetStore | None = None,
        stop_at_end: bool = False,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        metadata_refresh_ms: int = 1_000,
    ) -> None:
        # 1. Check what nothing below checks, before anything is begun that would have to be ended.
        check_reset(auto_offset_reset)
        if group is not None:
            validation.check_group(group)
        validation.check_positive(max_poll_records=max_poll_records, fetch_max_bytes=fetch_max_bytes)
        validation.check_positive(metadata_refresh_ms=metadata_refresh_ms)
        validation.check_positive(auto_commit_interval_ms=auto_commit_interval_ms)
        validation.check_int("max_poll_interval_ms", max_poll_interval_ms, low=1, high=MAX_INT32)
        validation.check_flag("stop_at_end", stop_at_end)
        validation.check_text("client_id", client_id)
        if group_instance_id is not None:
            validation.check_text("group_instance_id", group_instance_id)
        read_committed = checked_isolation(isolation_level)
        supported = as_assignors(assignors)
        # 2. What a turn uses. The interrupt is first: the parts below get it, and set it from other threads.
        self._interrupt = self._new_interrupt()
        self._backend = backend
        self._group = group
        self._serde = serde
        self._max_poll_records = max_poll_records
        self._stop_at_end = stop_at_end
        self._inside = ThreadGuard()
        self._closed = self._woken = False
        self._due = 0.0  # when a turn has to advance or commit
        self._current: Position | None = None  # the partition that an iteration is in
        self._left: Iterator[Record[V, K]] = _NOTHING  # what an iteration may take of it without a turn
        # 3. Who keeps the offsets. Only a group that keeps them itself has members: it knows who may commit.
        membership: Membership | None = None
        store = offset_store
        if offset_store is not None:
            check_store(offset_store)
            if group is None:
                raise InvalidArgument("offset_store needs group=, the name under which it keeps the offsets")
        elif group is not None:
            membership = Membership(
                backend,
                group,
                assignors=supported,
                max_poll_interval_ms=max_poll_interval_ms,
                client_id=client_id,
                group_instance_id=group_instance_id,
                interrupt=self._interrupt,
            )
            store = MemberOffsets(membership.coordinator, membership, read_committed=read_committed)
        self._commits = Commits(store, group, auto=auto_commit, interval_ms=auto_commit_interval_ms)
        # 4. Where partitions are read. None has a position yet: the first turn looks its offset up.
        first_offsets = FirstOffsets(
            backend, self._commits, auto_offset_reset, is_pattern=isinstance(topics, re.Pattern)
        )
        self._positions = Positions(
            backend,
            load=self._commits.load,
            first_offsets=first_offsets,
            max_bytes=fetch_max_bytes,
            read_committed=read_committed,
            interrupt=self._interrupt,
        )
        # 5. Which partitions: last, for without a membership it assigns them to the positions at once.
        self._assignment = Assignment(
            backend,
            topics,
            metadata_refresh_ms,
            membership=membership,
            positions=self._positions,
            first_offsets=first_offsets,
            commits=self._commits,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else counted(len(self._positions), "partition")
        group = f", group {self._group}" if self._group is not None else ""
        with contextlib.suppress(EmbedlogError):
            for name, ids in self.held_back().items():
                state += f"; {name} waits for the end of {', '.join(map(repr, ids))}"
        for what, why in self._positions.waits.reasons().items():
            state += f"; {what} waits: {why}"
        return f"<embedlog.Consumer {self._assignment.watch}{group}: {state}>"

    def _repr_html_(self) -> str:
        """For notebooks: position and lag in each partition. From any thread, as `estimated_lag`."""
        from .notebook import consumer_html

        return consumer_html(self._backend, self._positions.estimated(), repr(self))

    # -- records ---------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record[V, K]]:
        """Return available records, or wait up to `timeout_ms` (or math.inf) for some.

        They may be of several partitions. The records of the previous poll count as done from now on.
        Returns [] at the timeout, after `wakeup`, and if `close` is called meanwhile.

        Raises CorruptRecord, StorageError, FencedInstance, Closed. With auto_offset_reset="error" raises
        LogTruncated and OffsetOutOfRange. After an error the next poll reads the other partitions first.
        """
        wait_s = validation.as_seconds("timeout_ms", timeout_ms)
        if max_records is not None:
            validation.check_int("max_records", max_records, low=1)
        limit = max_records or self._max_poll_records
        deadline = 0.0
        self._enter()
        try:
            self._positions.release()
            with self._positions.turn(wait_s):
                while self._turn():
                    try:
                        records = take(self._positions, limit, self._serde)
                        if records:
                            return records
                    except (TopicNotFound, PartitionNotFound) as error:
                        self._notice_deletion(error)
                    self._backend.check_open()
                    deadline = deadline or time.monotonic() + wait_s
                    if self._woken or deadline - time.monotonic() < 0.001:
                        break
                    self._sleep(deadline)
                self._woken = False
                return []
        finally:
            self._inside.release()

    def __iter__(self) -> Iterator[Record[V, K]]:
        interrupt = self._interrupt
        while self._next_chunk():
            records, due = self._left, self._due
            # Python runs signal handlers at `yield`, and not between it and the step of the loop. So Ctrl-C
            # loses no record.
            for record in records:
                yield record
                if self._left is not records or interrupt.is_set or time.monotonic() >= due:
                    break

    def __next__(self) -> Record[V, K]:
        """Wait for the next record. The iteration ends at `close`, or at stop_at_end."""
        if not self._interrupt.is_set and time.monotonic() < self._due:
            for record in self._left:
                return record
        while self._next_chunk():
            for record in self._left:
                return record
        raise StopIteration

    def _next_chunk(self) -> bool:
        """Set `_left` to records of the next partition that has any. False at the end of the iteration."""
        self._inside.acquire()
        try:
            self._left = _NOTHING
            self._positions.release()
            with self._positions.turn(_FOREVER):
                while (has_more := self._try_chunk()) is None:
                    self._woken = False
                    self._sleep(_FOREVER)
                return has_more
        finally:
            self._inside.release()

    def _try_chunk(self) -> bool | None:
        """`_next_chunk` without waiting: None if nothing is ready."""
        if self._closed or not self._turn():
            return False
        last_position, self._current = self._current, None
        try:
            self._current = self._positions.continued(last_position)
        except (TopicNotFound, PartitionNotFound) as error:
            self._notice_deletion(error)
        if self._current is not None:
            self._left = decoded_chunk(self._current, self._serde)
            return True
        self._backend.check_open()
        if self._at_end():
            self._commits.auto(self._positions)
            return False
        return None

    def _at_end(self) -> bool:
        if self._stop_at_end:
            self._positions.waits.check()
        return self._stop_at_end and self._assignment.is_stable and self._positions.all_idle

    def wakeup(self) -> None:
        """Make a waiting `poll` return [], from any thread. If none waits, the next one does not wait."""
        self._woken = True
        self._interrupt.set()

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None) -> None:
        """Commit the positions after all records returned so far, or `offsets` (of the next records to read).

        Without arguments, all returned records count as processed: call it after processing (at least once)
        or before processing (at most once).

        Durability is that of the topic `__consumer_offsets`, or of the offset store. Raises CommitFailed if a
        partition is no longer assigned to this consumer, FencedInstance, InvalidCommit for an invalid offset,
        InvalidArgument without a group.
        """
        self._enter()
        try:
            self._commits.save(self._to_commit(offsets), self._positions)
        finally:
            self._inside.release()

    def _transaction_offsets(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None
    ) -> TransactionOffsets:
        """What a transaction commits: as `commit`. They count as committed from now on; if the transaction is
        aborted, `seek_to_committed` goes back."""
        with self._using():
            transaction_offsets = self._commits.of_transaction(self._to_commit(offsets))
            self._positions.committed(transaction_offsets.offsets)
            return transaction_offsets

    def _to_commit(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        if offsets is None:
            return self._positions.returned(unchanged=self._commits.standalone)
        commits = as_commits(offsets)
        for tp in commits:
            if self._assignment.membership is not None and tp not in self._positions:
                raise CommitFailed(f"{tp} is not, or no longer, assigned to this consumer")
        return self._positions.identified(commits)

    def committed(self, tp: TopicPartition) -> CommittedOffset | None:
        """The group's committed offset of a partition, even if another member reads it, or None.

        Raises UnstableOffsetCommit if an open transaction may change it and has not ended in a second.
        """
        name = validation.as_topic_partition(tp)
        with self._using():
            return once_stable(lambda: self._commits.load([name])).get(name)

    # -- partitions ------------------------------------------------------------------------------

    @property
    def group(self) -> str | None:
        """The name of the group, or None."""
        return self._group

    @property
    def closed(self) -> bool:
        """Whether `close` has finished."""
        return self._closed

    @property
    def subscription(self) -> tuple[str, ...]:
        """The subscribed topics that exist now, sorted; empty after `assign`."""
        return () if self._assignment.by_hand else tuple(sorted(self._assignment.watch.partitions))

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions. In a group there are none before the first poll."""
        with self._using():
            return set(self._positions.partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on, and leave the group.

        Commits still store the group's offsets, if there is a group. Partitions that were assigned before
        keep their positions. Raises TopicNotFound, PartitionNotFound.
        """
        topic_partitions = validation.as_topic_partitions(partitions)
        with self._using():
            self._assignment.assign(topic_partitions)

    # -- the end ---------------------------------------------------------------------------------

    @closes
    def close(self, commit: bool = True) -> None:
        """Commit what is done (with auto-commit, unless commit=False), and leave the group.

        Any thread may call it, more than once. It ends a `poll` or iteration that waits in another thread.
        The last record of an iteration is not done until the application asks for the next one.
        """
        validation.check_flag("commit", commit)
        if self._inside.forked:
            self._closed = True
            return
        self._inside.closing = True
        self._interrupt.set()
        with self._inside:
            if self._closed:
                return
            self._end_chunk()
            try:
                self._assignment.give_up(lost=False, commit=commit)
            except Closed:
                _logger.warning("the log was closed before its consumer: the last offsets are not committed")
            finally:
                self._closed = True
                self._positions.close()
                self._assignment.leave()

    # -- one turn --------------------------------------------------------------------------------

    def _new_interrupt(self) -> Interrupt:
        return Interrupt()

    def _turn(self) -> bool:
        """Advance and commit if that is due, without waiting. False if the consumer is closing."""
        if self._interrupt.is_set or time.monotonic() >= self._due:
            # A set after this ends the next wait; what was set before is handled below.
            self._interrupt.clear()
            if self._inside.closing:
                return False
            self._due = 0.0  # an error leaves it due
            self._assignment.advance()
            if time.monotonic() >= self._commits.due:
                self._commits.auto(self._positions)
            self._due = min(self._assignment.due, self._commits.due)
        return not self._inside.closing

    def _sleep(self, deadline: float) -> None:
        left_ms = min(deadline, self._due) - time.monotonic()
        try:
            self._positions.wait(max(1, int(left_ms * 1000)))
        except (TopicNotFound, PartitionNotFound) as error:
            self._notice_deletion(error)

    def _notice_deletion(self, error: TopicNotFound | PartitionNotFound) -> None:
        """Refresh the subscription at the next turn: the topic has gone, or has fewer partitions now."""
        if self._assignment.by_hand:
            raise error
        self._assignment.watch.expire()
        self._due = 0.0

    # -- one thread at a time --------------------------------------------------------------------

    def _enter(self) -> None:
        """Keep other threads out until `_inside.release`, and end the chunk that is being iterated over."""
        self._inside.acquire()
        if self._closed:
            self._inside.release()
            raise Closed("the consumer is closed")
        self._end_chunk()

    def _end_chunk(self) -> None:
        if self._left is not _NOTHING:
            if self._current is not None:
                self._positions.hold_last(self._current)
            self._left = _NOTHING

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._inside.release()
