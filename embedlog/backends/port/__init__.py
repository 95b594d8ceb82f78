"""The port between a log and its clients: the interface that `Log`, producers, consumers and readers use.

local.py implements it over the engine in this process, remote/ over the wire. Encoded record batches and
plain values cross it, never segments, locks or sockets, so each client is written once.

    Backend          the core, which every backend has; Appends is what an append needs of it
    TopicAdmin       create, alter and delete topics
    Maintenance      flush, reopen, compact, backup: of the process that has the directory open for writing
    Splits           divide a partition among several readers
    Arrivals         which idle partitions have records again; Turns keeps a client of brokers from waiting

Consumer groups, share groups and transactions are in coordinators.py.

A backend gives the object that implements a part through the property of that name; the property raises
ReadOnly or UnsupportedByBackend, with advice, if the backend does not have that part.

Invariants: an append is all or nothing for its partition; `fetch` returns whole batches only; nothing past
the readable end is returned; every method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...codec.time_range import TimeRange
from ...config import TopicSettings
from ...errors import EmbedlogError
from ...model import (
    Appended,
    Fetched,
    Headers,
    Health,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionOffsets,
    ProducerDescription,
    Record,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)
from ...runtime.locks import Lock
from ...runtime.wakeups import Wakeup

if TYPE_CHECKING:
    from ...errors import BrokerUnavailable
    from ...model import PartitionRecovery, RecoveryReport
    from ...wire.transaction_state import TransactionMetadata
    from .coordinators import GroupAdmin, GroupReader, ShareCoordinator, ShareReader, TransactionCoordinator


class Interrupt:
    """A flag that ends a wait early. Any thread may set it: close(), wakeup(), a rebalance.

    The waiter clears the flag, checks its condition, then waits: a `set` after `clear` ends that wait at
    once. During a wait the backend attaches its own wake-up (say, an Event's set). `set` takes no long-held
    lock and never calls back into a client, so it may be called under locks.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._wakeup = Wakeup()
        self.signal = self._wakeup.signal  # ends a `wait` without setting the flag
        self._lock = Lock()
        self._wakers: list[Callable[[], object]] = []  # guarded by _lock

    def set(self) -> None:
        self.is_set = True
        self.signal()
        with self._lock:
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def clear(self) -> None:
        self.is_set = False

    def wait(self, timeout_ms: float) -> bool:
        """Wait until the flag is set or the timeout is over; may return early. Returns whether it is set."""
        if not self.is_set:
            self._wakeup.sleep(timeout_ms / 1000)
        return self.is_set

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within the context, `set` also calls `wake`. Calls `wake` at once if the flag is already set."""
        with self._lock:
            self._wakers.append(wake)
        try:
            if self.is_set:
                wake()
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


class TopicConfigs(NamedTuple):
    """Every setting of a topic that a client may set, by Kafka's names and as its texts, those too that
    embedlog does not have; and the names of the topic's own. Empty if brokers do not tell."""

    effective: dict[str, str]
    own: frozenset[str] = frozenset()


class TopicAdmin(Protocol):
    """Changes topics. `Log` documents each method."""

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        exist_ok: bool = False,
        replication_factor: int | None = None,
    ) -> TopicDescription: ...

    def validate_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        replication_factor: int | None = None,
    ) -> TopicConfigs:
        """The settings that `create_topic` would give a topic. Raises as that does, and creates nothing."""

    def alter_topic(self, name: str, settings: Mapping[str, Any]) -> TopicDescription: ...

    def create_partitions(self, name: str, partitions: int) -> TopicDescription: ...

    def delete_topic(self, name: str) -> None: ...

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int: ...


class Maintenance(Protocol):
    """What only the writer process of a directory can do. `Log` documents each method."""

    @property
    def recovery(self) -> RecoveryReport: ...

    def flush(self) -> None: ...

    def reopen(self, topic: str, partition: int) -> PartitionRecovery | None: ...

    def compact(self, topic: str) -> int: ...

    def backup(self, destination: str) -> None: ...


class Splits(Protocol):
    """Divides a partition among several readers."""

    def split(
        self, topic: str, partition: int, start: int, end: int, split_bytes: int, not_before_ms: int | None
    ) -> list[OffsetRange]:
        """Divide the offsets start..end-1 into pieces of at most about split_bytes, in order.

        Leaves out segments whose records are all older than not_before_ms. A backend without byte sizes
        returns one piece of unknown size. Raises TopicNotFound, StorageError, CorruptRecord.
        """

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """Base offsets of segments, newest first; see `Log.offsets_before`."""

    def next_valid_offset(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        """Where to resume after CorruptRecord at a byte of a segment's file, met when reading `offset`.

        The offset of the next valid batch, or the log end offset. Raises UnsupportedByBackend if the backend
        cannot read the files, TopicNotFound, StorageError.
        """


class Arrivals(Protocol):
    """Tells a client which of its idle partitions have records again. For one thread, but for `close`."""

    @property
    def turns(self) -> Turns | None:
        """Of a client that several brokers serve, else None."""

    def expect(self, tp: TopicPartition, offset: int) -> bool:
        """The client has read a partition up to `offset`.

        True if it may have records there already. Otherwise `ready` reports it as soon as it may. Raises as
        `Backend.fetch` if the partition is gone.
        """

    def forget(self, tp: TopicPartition) -> bool:
        """Expect a partition no more. Returns whether it was expected."""

    def ready(self) -> Collection[TopicPartition]:
        """The expected partitions that may have records, or whose next fetch fails, until they are forgotten.

        Does not tell of a closed log: see `Backend.check_open`. Raises as `expect`.
        """

    def wait(self, timeout_ms: float) -> None:
        """Block until `ready` has something to report, the client's interrupt is set, or the timeout is over.

        May return early. Never polls in a busy loop.
        """

    def close(self) -> None:
        """Release what is expected. From any thread; no other call may follow."""


class Turns(Protocol):
    """For a client that must not wait long for one broker while others answer. For one thread at a time."""

    def turn(self, wait_s: float) -> AbstractContextManager[None]:
        """Within the context, calls of the backend in this thread raise BrokerUnavailable if an answer takes
        long, or longer than wait_s. The same call of a later turn takes the answer."""

    def may_pass(self, error: BrokerUnavailable) -> bool:
        """Whether this thread is in such a turn, and a later one may have no such error."""

    def forget(self) -> None:
        """Take no answer to what earlier turns have asked."""

    @property
    def answers(self) -> int:
        """Changes with each answer to what an earlier turn has asked."""

    @property
    def patience_s(self) -> float:
        """How long such errors may last for a client that has to come to an end."""


class PartitionAppender(Protocol):
    """Appends single records to one partition, without encoding a batch first."""

    @property
    def settings(self) -> TopicSettings: ...

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """`Backend.append` of an uncompressed batch with one record, encoded here.

        A local log knows the offset before it encodes, so it need not patch the batch afterwards.
        """


class Delivery(Protocol):
    """How appends reach partitions whose leaders may be away, each by itself. Its methods ask no broker,
    except that `can_reach` and `reachable` may connect to one for a moment, and take no lock for long."""

    @property
    def timeout_ms(self) -> int:
        """How long an append is tried, from the time when it is ready (delivery_timeout_ms)."""

    @property
    def has_lanes(self) -> bool:
        """Whether there were several leaders: one may be away while the others are not."""

    def lane(self, topic: str, partition: int) -> Hashable:
        """What an append to a partition has to wait for: its leader, as far as is known."""

    def can_reach(self, topic: str, partition: int) -> bool:
        """Whether the partition has a leader that answers, as far as is known."""

    def reachable(self, topic: str) -> Sequence[int]:
        """The partitions that can be reached; empty if that is not known."""

    def overdue(self, topic: str, partition: int) -> EmbedlogError:
        """The error of records that waited for `timeout_ms`: it says for what."""


class Appends(Protocol):
    """What an append needs of a log."""

    @property
    def delivery(self) -> Delivery | None:
        """None if all partitions are here."""

    @property
    def one_batch_per_append(self) -> bool:
        """Whether each batch costs a request of its own, so that one large batch beats several."""

    def describe_topic(self, topic: str) -> TopicDescription: ...

    def forget_metadata(self, topic: str) -> None:
        """Have the next look-up of a topic ask the brokers. A backend that knows its topics does nothing."""

    def topic_settings(self, topic: str) -> TopicSettings: ...

    def appenders(self, topic: str) -> Sequence[PartitionAppender]:
        """The appenders of a topic's partitions, in order. Valid for one append; the next asks again.

        One look-up gives an append all that it needs. Raises TopicNotFound, ReadOnly, Closed.
        """

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
        timeout_ms: int | None = None,
    ) -> Appended:
        """Append encoded batches. Assigns their base offsets and leader epochs, in place.

        timeout_ms: how long it may be tried, where it is sent to a leader; by default `Delivery.timeout_ms`.
        """


class Backend(Appends, Protocol):
    """A log as its clients see it: the core."""

    @property
    def path(self) -> str:
        """The directory, or the address of the brokers."""

    @property
    def log_id(self) -> str:
        """The permanent id of the directory or the cluster; empty if it has none."""

    @property
    def mode(self) -> str:
        """ "rw" or "r"."""

    def topics(self) -> list[str]:
        """Names of the topics, internal ones included, sorted."""

    def topic_configs(self, topic: str) -> TopicConfigs:
        """A topic's settings as they are now; those of `topic_settings` are as fresh afterwards."""

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Appended:
        """See `Appends.append`. transactional_id: of the one batch, which its producer has made part of a
        transaction; it excludes the other options."""

    def check_append(self, *, flush: bool = False) -> None:
        """Raises ReadOnly, Closed, or UnsupportedByBackend if appends cannot be flushed."""

    # -- reading ---------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        """Whole batches, from the one that contains `offset`: about max_bytes, at least one batch.

        topic_id: the topic that the offset belongs to ("": the one of that name). Raises TopicRecreated if
        another one has its name now (KIP-516).
        buffer: memory of max_bytes for the batches; they are valid until its next use.
        leader_epoch: the epoch of the last record read before `offset` (-1: unknown). Raises LogTruncated
        if that epoch ends before `offset`, OffsetOutOfRange outside the log.
        """

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        """The record at an offset, if the backend can look it up for less than a fetch; else None.

        None says nothing about the record: fetch it. Raises TopicNotFound, PartitionNotFound, Closed.
        """

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> Arrivals:
        """To wait for records of many partitions; setting `interrupt` ends a wait."""

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        """False if a fetch would return nothing, as far as can be told at next to no cost.

        Saves fetches to a reader of many idle partitions. Raises as `fetch` if the partition is gone.
        """

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """Block until a partition has records at or past its position. True if one has.

        Returns False when the timeout is over or `interrupt` is set. Never polls in a busy loop. Raises
        Closed if the log is closed in the meantime.
        """

    def offsets(self, topic: str, partition: int | None = None) -> dict[int, PartitionOffsets]:
        """The edges of all partitions of a topic, or of one of them."""

    def sizes(self, topic: str) -> dict[int, int]:
        """Bytes of the segments, by partition; empty if the backend cannot tell. Raises TopicNotFound."""

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record, in offset order, whose timestamp is time_ms or later; None if there is none."""

    @property
    def reads_times(self) -> bool:
        """Whether it has `offsets_in_time`. Otherwise a range of times is read from the first record at or
        after its start to the first one at or after its end, as Kafka's clients do: exactness would take
        reading all records."""

    def offsets_in_time(self, topic: str, partition: int, offset: int, times: TimeRange) -> OffsetRange:
        """The next offsets, from `offset` on, among which records with these timestamps may be; none are
        between `offset` and their start. Empty, at the log end or past it, if there are no more.

        Raises TopicNotFound, UnsupportedByBackend, StorageError, Closed.
        """

    # -- the parts that not every backend has ------------------------------------------------------------

    @property
    def coordinator(self) -> GroupAdmin | None:
        """Consumer groups; None for a process that only reads."""

    def group_reader(self) -> GroupReader:
        """The consumer groups; in a process that only reads as its files tell, at the time of this call.

        Raises StorageError, CorruptRecord, Closed.
        """

    @property
    def share_coordinator(self) -> ShareCoordinator:
        """Raises ReadOnly, UnsupportedByBackend, Closed."""

    def share_reader(self) -> ShareReader:
        """The share groups at the time of this call; reads what they have stored.

        Raises UnsupportedByBackend, StorageError, CorruptRecord, Closed.
        """

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        """The last state of each transactional id; in a process that only reads as its files tell.

        Raises UnsupportedByBackend, StorageError, CorruptRecord, Closed.
        """

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The idempotent producers that each of these partitions knows; in a process that only reads as its
        files tell.

        Raises TopicNotFound, PartitionNotFound, UnsupportedByBackend, StorageError, CorruptRecord,
        CorruptCheckpoint, Closed.
        """

    @property
    def transactions(self) -> TransactionCoordinator:
        """Raises ReadOnly, UnsupportedByBackend, Closed."""

    @property
    def topic_admin(self) -> TopicAdmin:
        """Raises ReadOnly, Closed."""

    @property
    def maintenance(self) -> Maintenance:
        """Raises ReadOnly, UnsupportedByBackend, Closed."""

    @property
    def splits(self) -> Splits: ...

    # -- life ------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """See `Log.health`. Raises UnsupportedByBackend, Closed."""

    def check_open(self) -> None:
        """Raises Closed, ForkedHandle."""

    def close(self) -> None:
        """Wakes every waiter, which raises Closed. Safe to call again."""

    def abandon(self) -> None:
        """In a forked child: release the inherited resources without waiting for any lock or thread."""
