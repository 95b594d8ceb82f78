"""The port between clients and a log: what producer, consumer and reader know, and all they know.

`local.py` implements it over the engine in this process, `remote/` over the wire. What
crosses it are encoded record batches and plain values, never segments, locks or sockets, so that every
client is written once.

Invariants a backend keeps: an append is all or nothing for its partition; `fetch` returns whole batches
only; nothing past the last readable offset is ever returned; all methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ..config import TopicSettings
from ..fast_append import FastPath
from ..model import (
    Appended,
    CommittedOffset,
    Fetched,
    Health,
    JoinResult,
    OffsetAndTimestamp,
    PartitionOffsets,
    Piece,
    Record,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)
from ..runtime.wakeups import Wakeup

if TYPE_CHECKING:
    from ..groups.events import GroupDescription
    from ..model import PartitionRecovery, RecoveryReport


class Interrupt:
    """A flag that ends somebody's sleep early: set by close(), wakeup(), or a rebalance, from any thread.

    The sleeper clears it, looks at whatever it sleeps for, and then sleeps: what is set in between ends
    that sleep at once. A backend attaches its own way of waking (say, an Event's set) for as long as it
    waits. `set` never blocks for long and never calls back into a client, so it may be called under locks.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakeup = Wakeup()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], object]] = []

    def set(self) -> None:
        self._is_set = True
        self._wakeup.signal()
        with self._lock:
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_ms: float) -> bool:
        """Sleep until it is set or the time is over, or for nothing; True where it is set."""
        if not self._is_set:
            self._wakeup.sleep(timeout_ms / 1000)
        return self._is_set

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """While inside, `set` also calls `wake`; it is called at once where the flag is set already."""
        with self._lock:
            self._wakers.append(wake)
        try:
            if self._is_set:
                wake()
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


class Coordinator(Protocol):
    """Consumer groups and their offsets, by Kafka's classic group protocol.

    `join_group` and `sync_group` answer with futures, because both wait for the other members: a client
    that polls keeps the future from one poll to the next and never blocks its thread on somebody else.
    """

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
    ) -> Future[JoinResult]:
        """Ask to be in the group's next generation (member_id "" at first; the result gives one).

        on_rebalance is kept beside the member and called, from any thread and possibly under locks,
        whenever the group starts to rebalance: a hint for a client asleep in `Backend.wait`, which its
        next heartbeat confirms. A backend over the wire may never call it.
        """

    def sync_group(
        self, group: str, member_id: str, generation: int, assignments: Mapping[str, bytes]
    ) -> Future[bytes]: ...

    def heartbeat(self, group: str, member_id: str, generation: int) -> None:
        """Keep the membership alive. Raises RebalanceInProgress, UnknownMember, IllegalGeneration."""

    def leave_group(self, group: str, member_id: str) -> None: ...

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
    ) -> None: ...

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...


class Groups(Coordinator, Protocol):
    """A coordinator as an administrator sees it."""

    def list_groups(self) -> list[str]:
        """The groups with members or offsets, sorted."""

    def describe_group(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""

    def delete_group(self, group: str) -> None:
        """Forget a group without members, and its offsets. Raises GroupNotFound, GroupNotEmpty."""

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget offsets of a group that has no members."""


class Lane(Protocol):
    """A partition as whoever appends single records to it knows it: settings at hand, and a short way in."""

    @property
    def settings(self) -> TopicSettings: ...

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """As `Backend.append` of an uncompressed batch of one record without headers, encoded here.

        Here its offset is known, so that a log at hand need not write into the batch afterwards what it
        can encode at once.
        """


class Backend(Protocol):
    """A log as its clients see it."""

    @property
    def fast_path(self) -> FastPath:
        """Where appends to topics with one partition begin; for what it does not take there are the lanes."""

    @property
    def merges_batches(self) -> bool:
        """Whether several batches had better be one: each costs a request, and is appended by itself."""

    def topics(self) -> list[str]:
        """Names of the topics, internal ones included, sorted."""

    def describe_topic(self, topic: str) -> TopicDescription: ...

    def topic_settings(self, topic: str) -> TopicSettings: ...

    def lanes(self, topic: str) -> Sequence[Lane]:
        """A topic's partitions in order: all that appending a record needs, in one look-up.

        For one append; the next one asks again. Raises TopicNotFound, ReadOnly, Closed.
        """

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append encoded batches (their base offsets and epochs are assigned here, in place)."""

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        """Whole batches from the one that contains `offset`, about max_bytes, at least one batch.

        They may be put into `buffer`, which has max_bytes: they are good until it is used again.

        leader_epoch is the epoch of the last record read before `offset` (-1: unknown): LogTruncated is
        raised where that history ends before `offset`. OffsetOutOfRange outside the log.
        """

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        """The record at an offset, where that can be told on a short way; else None, and `fetch` tells.

        A backend that has no short way always returns None. Raises TopicNotFound, PartitionNotFound, Closed.
        """

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        """False where a fetch would return nothing, and that can be told at next to no cost.

        For who reads many partitions that are mostly at their ends. Raises as `fetch` does where the
        partition is gone.
        """

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """Sleep until a partition has something at or past its position, or the time is over.

        True where there is something to read. Never a busy loop. Setting `interrupt` ends the sleep, from
        any thread (False then, and at once where it is set already). Raises Closed when the log is closed
        meanwhile.
        """

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]: ...

    def edges(self, topic: str, partition: int) -> PartitionOffsets:
        """The offsets of one partition, for who does not need all of them."""

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is time_ms or later, in offset order; None where there is none."""

    @property
    def coordinator(self) -> Coordinator | None:
        """Consumer groups; None where this handle cannot join any (a reader process)."""


class Owner(Protocol):
    """Who can change what is there, and keeps it. What a method does, `Log` says."""

    @property
    def recovery(self) -> RecoveryReport: ...

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, Any], *, exist_ok: bool = False
    ) -> TopicDescription: ...

    def alter_topic(self, name: str, settings: Mapping[str, Any]) -> TopicDescription: ...

    def create_partitions(self, name: str, partitions: int) -> TopicDescription: ...

    def delete_topic(self, name: str) -> None: ...

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int: ...

    def check_producer(self, options: Mapping[str, Any]) -> None:
        """Can there be a producer with these options? Raises Closed, UnsupportedByBackend."""

    def flush(self) -> None: ...

    def reopen(self, topic: str, partition: int) -> PartitionRecovery | None: ...

    def compact(self, topic: str) -> int: ...

    def backup(self, destination: str) -> None: ...


class LogBackend(Backend, Protocol):
    """A backend as its `Log` knows it: what is not for the clients, too."""

    @property
    def path(self) -> str:
        """The directory, or the address."""

    @property
    def log_id(self) -> str:
        """What the directory, or the cluster, calls itself for good; empty where it has no such name."""

    @property
    def mode(self) -> str:
        """ "rw" or "r"."""

    @property
    def coordinator(self) -> Groups | None: ...

    def owner(self) -> Owner:
        """Raises ReadOnly where this handle only reads, Closed."""

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]: ...

    def divide(
        self, topic: str, partition: int, start: int, end: int, piece_bytes: int, not_before_ms: int | None
    ) -> list[Piece]:
        """The offsets start..end-1 in pieces of about piece_bytes at most, in order, for several to read.

        Without those of which it is known that all their records are older than not_before_ms. One piece of
        unknown size where nothing is known of bytes. Raises TopicNotFound, StorageError, CorruptRecord.
        """

    def behind_damage(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        """Where reading can go on that came to `offset` and met damage at a byte of a segment's file.

        The offset of the next valid batch, or the log's end. Raises UnsupportedByBackend where files cannot
        be looked into, TopicNotFound, StorageError.
        """

    def health(self) -> Health: ...

    def summary(self) -> str:
        """What there is, in a few words. It may fail where the log is closed."""

    def check_open(self) -> None:
        """Raises Closed, ForkedHandle."""

    def close(self) -> None:
        """May be called again. What waits in it is woken, and raises Closed."""

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's, and wait for nobody."""
