"""The producer of one transactional id: begins and ends its transactions, and stamps their batches.

              begin                       commit, abort
    READY -------------------> OPEN -----------------------> READY
      ^                          | an append of unknown outcome, offsets that are refused,
      |          abort           v the coordinator has aborted it
      '----------------------- BROKEN      it can only be aborted
                               FENCED      another producer has begun with the id: for good

It stands where an append has a backend (`port.Appends`): append.py and the producer encode batches for it as
for any log. Here each batch gets the producer's id and epoch, the next sequence number of its partition and
the transactional bit, and a partition is added to the transaction before its first batch.

The first transaction begins the producer at the coordinator, which fences earlier ones of the id and costs an
fsync. Those that follow go on with the producer id and epoch that the end of the last one has returned.

An end of unknown outcome (Ctrl-C, a failed disk) is resolved at once, by an abort: the coordinator refuses it
if the commit is stored. That the coordinator has aborted a transaction for its time is told from a new
producer by the epoch: fencing raises it by two, a new producer by one more. After the former it goes on.

Invariants: one transaction at a time; nothing is appended outside of it; none is committed after an append of
unknown outcome. All methods are safe between threads.

Source: Kafka's TransactionManager; KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends.port import Appends, Backend, PartitionAppender
from ..codec import encode_one, set_producer, split
from ..codec.record_batch import TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from ..config import TopicSettings
from ..errors import (
    Closed,
    CommitFailed,
    ConcurrentTransactions,
    DiskFull,
    EmbedlogError,
    GroupError,
    InvalidArgument,
    InvalidProducerEpoch,
    InvalidTxnState,
    LogFull,
    PartitionNotFound,
    ProducerFenced,
    RecordTooLarge,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
)
from ..groups.machines.transaction import ProducerIdAndEpoch
from ..model import (
    Appended,
    AppendedInPieces,
    CommittedOffset,
    Headers,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)
from ..runtime.closing import Closing
from ..runtime.locks import ReentrantLock
from ..wire.transaction_state import TransactionState

if TYPE_CHECKING:
    from .consumer import Consumer

_SEQUENCES: Final = (1 << 31) - 1
_NOTHING_APPENDED: Final = (
    DiskFull,
    LogFull,
    InvalidArgument,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
)
_ABORTED: Final = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
_FENCED_BY: Final = 2  # epochs: what the coordinator raises it by when it aborts an open transaction

logger = logging.getLogger(__name__)


class _State(enum.Enum):
    READY = "ready"
    OPEN = "open"
    BROKEN = "broken"
    FENCED = "fenced"
    CLOSED = "closed"


class TransactionManager(Closing):
    """The producer of a transactional id. Implements `port.Appends` within its open transaction."""

    one_batch_per_append = True

    def __init__(self, backend: Backend, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._backend = backend
        self.delivery = backend.delivery
        self.lock = ReentrantLock()  # held to use several methods as one
        # All are guarded by lock.
        self._state = _State.READY
        self._producer: ProducerIdAndEpoch | None = None  # None: it has not begun, or is not known any more
        self._timeout_ms = 0  # as of its begin
        self._renew = False  # it begins again, with the next transaction
        self._sequences: dict[TopicPartition, int] = {}  # the partitions of the transaction
        self._has_begun = False  # has the coordinator been told of the transaction?
        self._broken: BaseException | None = None

    def __repr__(self) -> str:
        return f"<transactional id {self.transactional_id!r}: {self._state.value}>"

    # -- transactions ----------------------------------------------------------------------------------

    def begin_producer(self, timeout_ms: int) -> None:
        """Fence earlier producers of the id now, not only with the first transaction. Raises as `begin`."""
        with self.lock:
            self._check_usable()
            if self._producer is None or self._renew or self._timeout_ms != timeout_ms:
                coordinator = self._backend.transactions
                self._producer = coordinator.init_producer_id(
                    self.transactional_id, timeout_ms=timeout_ms, expected=self._producer
                )
                self._timeout_ms, self._renew = timeout_ms, False

    def begin(self, timeout_ms: int) -> None:
        """Begin a transaction. The first one fences earlier producers of the id, durably.

        Raises ConcurrentTransactions: one is open here. ProducerFenced: another producer has begun since.
        InvalidArgument, StorageError, Closed.
        """
        with self.lock:
            if self._state in (_State.OPEN, _State.BROKEN):
                raise ConcurrentTransactions(
                    f"a transaction of {self.transactional_id!r} is open already: end it first, or give each "
                    "thread a transactional id of its own"
                )
            try:
                self.begin_producer(timeout_ms)
            except ProducerFenced as error:
                explained = self._explained(error)
                if not isinstance(explained, TransactionAborted):
                    raise explained from error
                # What `leave` has left was aborted meanwhile: go on with the epoch of that.
                self._state = _State.READY
                self.begin_producer(timeout_ms)
            self._sequences = {}
            self._has_begun, self._broken = False, None
            self._state = _State.OPEN

    def commit(self, *, flush: bool = False) -> None:
        """Commit the open transaction. Nothing to commit is no error.

        flush: it survives a power cut, whole.

        Raises InvalidTxnState: none is open, or a part of it failed. TransactionAborted, ProducerFenced: it
        was aborted. DiskFull, LogFull: it is open as before. After any other error a note says what became
        of it, and it is not open any more.
        """
        with self.lock:
            self._check_sound("commit")
            self._end(commit=True, flush=flush)

    def abort(self) -> None:
        """Abort the open transaction. Raises InvalidTxnState: none is open; else as `commit`."""
        with self.lock:
            self._check_open("abort")
            self._end(commit=False, flush=False)

    def leave(self) -> None:
        """Let go of an open transaction whose abort could not be stored, as the disk is full: the next one
        begins with that abort, and so does a time-out."""
        with self.lock:
            if self._state in (_State.OPEN, _State.BROKEN):
                self._state, self._renew = _State.READY, True

    def close(self) -> None:
        """Abort what is open: readers need not wait until its time is over."""
        with self.lock:
            if self._state in (_State.OPEN, _State.BROKEN):
                try:
                    self._end(commit=False, flush=False)
                except EmbedlogError as error:
                    self.leave()
                    logger.warning("%r: it is aborted when its time is over: %s", self, error)
            if self._state is not _State.FENCED:
                self._state = _State.CLOSED

    def check_open(self) -> None:
        """Raises InvalidTxnState unless a transaction is open, and may be committed; ProducerFenced."""
        with self.lock:
            self._check_sound("append to")

    def check_any(self) -> None:
        """Raises InvalidTxnState unless there is a transaction to abort; ProducerFenced."""
        with self.lock:
            self._check_open("abort")

    def fail(self, error: BaseException) -> None:
        """Something of the open transaction could not be appended: it can only be aborted."""
        with self.lock:
            if self._state is _State.OPEN:
                self._break(error)

    # -- its contents ----------------------------------------------------------------------------------

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._backend.topic_settings(topic)

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._backend.describe_topic(topic)

    def forget_metadata(self, topic: str) -> None:
        self._backend.forget_metadata(topic)

    def appenders(self, topic: str) -> Sequence[PartitionAppender]:
        return [
            _Appender(self, TopicPartition(topic, number), appender.settings)
            for number, appender in enumerate(self._backend.appenders(topic))
        ]

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
        """Append batches as part of the open transaction. Its commit flushes them, so `flush` is ignored."""
        name = TopicPartition(topic, partition)
        appends: list[Appended] = []
        with self.lock:
            producer = self._check_sound("append to")
            if name not in self._sequences:
                self.expect(topic, (partition,))
            try:
                for batch in split(batches):  # one by one: a partition checks all of an append first
                    sequence = self._sequences[name]
                    set_producer(batch, *producer, sequence, 0, len(batch), transactional=True)
                    appended = self._backend.append(
                        topic,
                        partition,
                        batch,
                        transactional_id=self.transactional_id,
                        timeout_ms=timeout_ms,
                    )
                    appends.append(appended)
                    records = appended.last_offset - appended.base_offset + 1
                    self._sequences[name] = (sequence + records) & _SEQUENCES
            except _NOTHING_APPENDED as error:
                if appends:
                    self._break(error)
                raise
            except InvalidProducerEpoch as error:
                raise self._explained(error) from error
            except BaseException as error:
                self._break(error)
                raise
        return appends[0] if len(appends) == 1 else AppendedInPieces.of(appends)

    def expect(self, topic: str, partitions: Iterable[int]) -> None:
        """Tell the coordinator of all partitions that are about to be appended to, at once."""
        with self.lock:
            producer = self._check_sound("append to")
            names = [TopicPartition(topic, number) for number in partitions]
            new = [name for name in names if name not in self._sequences]
            if not new:
                return
            had_begun, self._has_begun = self._has_begun, True
            try:
                self._backend.transactions.add_partitions(self.transactional_id, producer, new)
            except (ConcurrentTransactions, DiskFull, LogFull):  # nothing of it is stored
                self._has_begun = had_begun
                raise
            except _NOTHING_APPENDED:
                raise
            except InvalidProducerEpoch as error:
                raise self._explained(error) from error
            except BaseException as error:
                self._break(error)
                raise
            self._sequences.update(dict.fromkeys(new, 0))

    def commit_offsets(
        self,
        consumer: Consumer[Any, Any],
        offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None,
    ) -> None:
        """Commit a consumer's offsets with the transaction. See `Transaction.commit_offsets`."""
        with self.lock:
            producer = self._check_sound("commit offsets with")
            group_offsets = consumer._transaction_offsets(offsets)
            if not group_offsets.offsets:
                return
            self._has_begun = True
            try:
                self._backend.transactions.commit_offsets(
                    self.transactional_id,
                    producer,
                    group_offsets.group,
                    group_offsets.offsets,
                    **group_offsets.member._asdict(),
                )
            except InvalidProducerEpoch as error:
                raise self._explained(error) from error
            except GroupError as error:
                failed = CommitFailed(
                    f"the group {group_offsets.group!r} has reassigned the partitions ({error}): abort the "
                    "transaction; their new owners read the records again"
                )
                self._break(failed)
                raise failed from error
            except BaseException as error:
                self._break(error)
                raise

    # -- inside ----------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._state is _State.FENCED:
            raise self._fenced()
        if self._state is _State.CLOSED:
            raise Closed(
                f"the log or producer of {self.transactional_id!r} is closed, which has aborted what was open"
            )

    def _check_open(self, what: str) -> ProducerIdAndEpoch:
        self._check_usable()
        if self._state is _State.READY or self._producer is None:
            raise InvalidTxnState(f"there is no open transaction of {self.transactional_id!r} to {what}")
        return self._producer

    def _check_sound(self, what: str) -> ProducerIdAndEpoch:
        producer = self._check_open(what)
        if isinstance(self._broken, TransactionAborted):
            raise self._broken
        if self._broken is not None:
            raise InvalidTxnState(
                f"the transaction of {self.transactional_id!r} can only be aborted, since a part of it "
                f"failed: {self._broken}"
            ) from self._broken
        return producer

    def _break(self, error: BaseException) -> None:
        self._broken = error
        self._state = _State.BROKEN

    def _end(self, *, commit: bool, flush: bool) -> None:
        producer = self._producer
        assert producer is not None
        if not self._has_begun:  # the coordinator knows nothing of it
            self._state = _State.READY
            return
        try:
            self._producer = self._backend.transactions.end(
                self.transactional_id, producer, commit=commit, flush=flush
            )
        except (DiskFull, LogFull):
            raise
        except InvalidProducerEpoch as error:
            explained = self._explained(error)
            if commit or not isinstance(explained, TransactionAborted):
                raise explained from error
        except BaseException as error:
            self._abort_unless_committed(error, producer)
            raise
        self._state = _State.READY

    def _abort_unless_committed(self, error: BaseException, producer: ProducerIdAndEpoch) -> None:
        """Abort after an end of unknown outcome, unless it is committed."""
        self._state = _State.READY
        coordinator = self._backend.transactions
        try:
            try:
                self._producer = coordinator.end(self.transactional_id, producer, commit=False)
                error.add_note(f"the transaction of {self.transactional_id!r} was aborted")
            except InvalidTxnState:
                description = coordinator.describe(self.transactional_id)
                self._producer = ProducerIdAndEpoch(description.producer_id, description.producer_epoch)
                error.add_note(f"the transaction of {self.transactional_id!r} was committed")
        except EmbedlogError as second:
            self._producer = None
            error.add_note(
                f"whether the transaction of {self.transactional_id!r} was committed is told by the next one "
                f"of this id, or by the next open of the log: {second}"
            )

    def _explained(self, error: EmbedlogError) -> EmbedlogError:
        """Why the coordinator or a partition does not know this producer any more."""
        producer = self._producer
        if producer is None:
            return error
        try:
            description = self._backend.transactions.describe(self.transactional_id)
        except (TransactionError, Closed):
            return error
        ended = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + _FENCED_BY)
        if description.state in _ABORTED and (description.producer_id, description.producer_epoch) == ended:
            self._producer, self._renew, self._has_begun = ended, True, False
            aborted = TransactionAborted(
                f"the transaction of {self.transactional_id!r} was aborted: it was open for longer than "
                f"{self._timeout_ms:,} ms (timeout_ms), or an operator has aborted it. The next one may begin"
            )
            self._break(aborted)
            return aborted
        self._state = _State.FENCED
        return self._fenced()

    def _fenced(self) -> ProducerFenced:
        return ProducerFenced(
            f"another producer has begun with transactional id {self.transactional_id!r}: this one can go on "
            "no more. If both are to work, give each an id of its own; if this one is to take over, open the "
            "log again"
        )


class _Appender:
    """Implements `port.PartitionAppender` within a transaction."""

    __slots__ = ("_appends", "_name", "settings")

    def __init__(self, appends: Appends, name: TopicPartition, settings: TopicSettings) -> None:
        self._appends = appends
        self._name = name
        self.settings = settings

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        attributes = TIMESTAMP_TYPE_BIT if self.settings.append_time else 0
        batch = encode_one(key, value, timestamp_ms, attributes | TRANSACTIONAL_BIT, 0, -1, headers)
        appended = self._appends.append(*self._name, batch, flush=flush, expected_offset=expected_offset)
        if self.settings.append_time:
            timestamp_ms = appended.timestamp_ms
        return RecordMetadata(*self._name, appended.base_offset, timestamp_ms, appended.durable)
