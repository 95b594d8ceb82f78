"""The port's coordinators: consumer groups, share groups, transactions.

    Coordinator             consumer groups and their offsets; GroupAdmin adds administration
    ShareCoordinator        share groups: records handed out one by one
    TransactionCoordinator  transactional ids and their transactions
    GroupReader             groups as an administrator sees them; ShareReader the same of share groups

A backend gives them through properties of `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...model import (
    Acknowledgement,
    CommittedOffset,
    Delivery,
    JoinResult,
    ShareGroupDescription,
    ShareGroupOptions,
    TopicPartition,
    UnfinishedRecords,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ...errors import EmbedlogError
    from ...groups.machines.events import GroupDescription
    from ...groups.machines.transaction import ProducerIdAndEpoch
    from ...wire.transaction_state import TransactionMetadata

KEPT_FOREVER: Final[Mapping[str, Any]] = MappingProxyType({"retention_ms": -1})
"""The settings of a queue's topics at brokers, which delete no finished jobs, but old ones by default."""


class Coordinator(Protocol):
    """Consumer groups and their offsets, by Kafka's classic group protocol.

    `join_group` and `sync_group` depend on the other members, so they return futures: a client keeps a
    future from one poll to the next and never blocks its thread.
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
        """Join the group's next generation. A new member gives member_id "" and gets its id in the result.

        Cancelling the future withdraws a join that is not answered yet: the member leaves the group.

        on_rebalance is called when the group starts to rebalance, from any thread and possibly under locks:
        a hint to a client that waits in `Backend.wait`, confirmed by its next heartbeat. A backend over the
        wire may never call it.
        """

    def sync_group(
        self,
        group: str,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        *,
        group_instance_id: str | None = None,
    ) -> Future[bytes]: ...

    def heartbeat(
        self, group: str, member_id: str, generation: int, *, group_instance_id: str | None = None
    ) -> None:
        """Keep the membership alive. Raises RebalanceInProgress, UnknownMember, IllegalGeneration.

        A static member also gives its group_instance_id, here and with each sync and commit. Without it the
        coordinator cannot tell it from a member that expired; with it, raises FencedInstance if another
        consumer has taken its place.
        """

    def leave_group(self, group: str, member_id: str) -> None: ...

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
    ) -> None: ...

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """A group's committed offsets, of all partitions by default; empty if there is no such group.

        require_stable: raise UnstableOffsetCommit while an open transaction may change one of them.
        """


class GroupReader(Protocol):
    """The consumer groups of a log, to look at."""

    def list_groups(self) -> list[str]:
        """The groups with members or offsets, sorted."""

    def describe_group(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """A group's committed offsets, of all partitions by default; empty if there is no such group."""


class GroupAdmin(Coordinator, GroupReader, Protocol):
    """A coordinator with the operations of an administrator."""

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. Raises GroupNotFound, GroupNotEmpty."""

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets of a group without members."""


class ShareCoordinator(Protocol):
    """Share groups: the records of a topic are handed out one by one, to any number of members (KIP-932).

    A member is an id that the caller chooses; it need not join. The first `acquire` creates the group, which
    begins at the log's start.

    keeps_delays: whether a job can have a delay, and be given back uncounted; share groups of brokers know
    neither.
    """

    keeps_delays: bool

    def prepare(self, group: str, options: ShareGroupOptions) -> None:
        """A queue opens. Raises UnsupportedByBackend, InvalidArgument for what it cannot have."""

    def acquire(
        self,
        group: str,
        topic: str,
        member_id: str,
        *,
        max_records: int,
        max_wait_ms: int,
        options: ShareGroupOptions,
    ) -> Future[list[Delivery]]:
        """Lock 1..max_records records for a member, as soon as there are some; none after max_wait_ms.

        The hand-out is stored before the future completes, as durably as any append to an internal topic. A
        cancelled future takes no records. Its errors: TopicNotFound, InvalidGroup, InvalidArgument,
        StorageError, Closed.
        """

    def acknowledge(
        self, group: str, topic: str, acknowledgements: Sequence[Acknowledgement], *, flush: bool = False
    ) -> list[EmbedlogError | None]:
        """Say what becomes of deliveries. Returns an error or None for each, in order.

        The error is LockLost if the record is not locked by that delivery any more, StorageError if nothing
        changed since it could not be stored. An acknowledgement may be repeated, say because the response
        was lost: if it has been applied, that is no error. flush: durable on return. A rejected record is in
        the dead letters' topic on return, or will be.
        """

    def release_member(self, group: str, topic: str, member_id: str) -> None:
        """Release all that a member has locked; these deliveries do not count."""

    def list_share_groups(self) -> list[tuple[str, str]]:
        """The (group, topic) of each share group, sorted."""

    def describe_share_group(self, group: str, topic: str) -> ShareGroupDescription:
        """Raises GroupNotFound, TopicNotFound."""

    def delete_share_group(self, group: str, topic: str) -> None:
        """Forget what the group has done; its next member begins at the log start. Raises GroupNotFound."""


class ShareReader(Protocol):
    """Share groups as what they have stored tells, at one moment, to look at."""

    def list_share_groups(self) -> list[tuple[str, str]]:
        """The (group, topic) of each share group, sorted."""

    def describe_share_group(self, group: str, topic: str) -> ShareGroupDescription:
        """Raises GroupNotFound, TopicNotFound."""

    def unfinished(self, group: str, topic: str) -> dict[int, list[UnfinishedRecords]]:
        """The records of each partition that the group has not finished, ascending. Raises GroupNotFound,
        TopicNotFound."""


class TransactionCoordinator(Protocol):
    """Transactional ids, each with one producer at a time, and their transactions (KIP-98, KIP-890).

    A producer adds the partitions that it is about to write to, appends batches with its producer id and
    epoch (`Backend.append`), and ends the transaction. The next one has another epoch, and its sequence
    numbers begin with 0.
    """

    def init_producer_id(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """A producer begins: earlier ones are fenced, an open transaction is aborted. Durable on return.

        Args:
            timeout_ms: a transaction that is open for longer is aborted.
            expected: the producer, if it goes on after an error; None: it is a new one.

        Raises InvalidArgument; ProducerFenced; ConcurrentTransactions if the last transaction cannot be ended
        now; StorageError.
        """

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """The producer is about to write to partitions.

        Raises TopicNotFound, PartitionNotFound (then none is added); ProducerFenced, ConcurrentTransactions,
        StorageError.
        """

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction. Raises as `add_partitions`; UnknownMember,
        FencedInstance, IllegalGeneration, RebalanceInProgress: the member must not commit any more."""

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, flush: bool = False
    ) -> ProducerIdAndEpoch:
        """Commit or abort. Returns what the producer goes on with. May be repeated.

        flush: a commit survives a power cut, whole. Raises ProducerFenced, ConcurrentTransactions (it is
        being ended so), InvalidTxnState (there is no transaction, or it has ended otherwise), FlushFailed,
        StorageError. After DiskFull or LogFull it is open as before.
        """

    def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, whose producer is fenced; nothing if none is open.

        Raises TransactionNotFound, ConcurrentTransactions, StorageError.
        """

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """The last state of an id. Raises TransactionNotFound."""

    def transactional_ids(self) -> list[str]:
        """All that have not expired, sorted."""
