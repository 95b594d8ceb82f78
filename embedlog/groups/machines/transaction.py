"""A transactional id as a state machine: its producers, one after the other, and their transactions.

    (none), Empty, CompleteCommit, CompleteAbort -- initialize -----> Empty, with an epoch for a new producer
    Empty, CompleteCommit, CompleteAbort --------- add_partitions --> Ongoing
    Ongoing -------------------------------------- end -------------> PrepareCommit, PrepareAbort
    Ongoing -------------------------------------- fence -----------> PrepareAbort
    PrepareCommit -- a marker in each partition -- complete --------> CompleteCommit
    PrepareAbort --- a marker in each partition -- complete --------> CompleteAbort

An operation changes nothing. It returns the metadata that is the next record of the transactional id in
`__transaction_state`; when it is stored, `apply` makes it the state. The record of a prepared end decides the
transaction. From then on markers are missing in `unmarked`, and may be written more than once; after the
last of them, `complete` lets the next transaction begin. So a crash between any two steps leaves a state from
which `unmarked` and `complete` go on to the same outcome, and a transaction without a prepared end is Ongoing
until it is ended or fenced.

Fencing. An id has one producer at a time. A new one gets a higher epoch, so the requests of earlier ones fail
with ProducerFenced. With transaction.version 2 (KIP-890) each end raises the epoch by one as well: whatever
is late from one transaction cannot get into the next, and a repeated end is told from the next one by its
epoch. `fence` (a time-out, a new producer, an operator) raises it by two, or the producer's own abort would
pass for a repetition. Clients get epochs up to 32,766; then the id gets a new producer id, with epoch 0.
Epoch 32,767 is left for fencing.

No I/O, no clock, no threads: the caller stores what the operations return, one after the other.

Invariants: a pair of producer id and epoch is given to at most one producer; once an end is prepared, the
outcome of the transaction never changes.

Source: KIP-98, KIP-360 (a producer that raises its own epoch), KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from ...errors import ConcurrentTransactions, InvalidProducerIdMapping, InvalidTxnState, ProducerFenced
from ...model import NO_TIMESTAMP, TopicPartition
from ...wire.transaction_state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

LARGEST_EPOCH: Final = 32_766
"""The largest epoch that a producer gets."""

RAISES_EPOCHS: Final = 2
"""The transaction.version from which on each end of a transaction raises the epoch."""

_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
# Tuples: they compare by identity first, while a set would hash the states, by their names.
_PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMMITS: Final = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


class ProducerIdAndEpoch(NamedTuple):
    """Which producer it is."""

    producer_id: int
    producer_epoch: int


class Change(NamedTuple):
    """The next state of a transactional id: what is stored, and what is not.

    last_epoch: the epoch from which the producer itself raised its epoch to the current one, for a request
    that it repeats; -1 after anything else, and after a restart.
    """

    metadata: TransactionMetadata
    last_epoch: int = NO_PRODUCER_EPOCH


class Transaction:
    """One transactional id. The caller sees to it that its operations come one after the other."""

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None = None) -> None:
        """metadata: the last record; None if there is none."""
        self.transactional_id = transactional_id
        self._metadata = metadata
        self._last_epoch = NO_PRODUCER_EPOCH
        self.unmarked: set[TopicPartition] = set()  # where the marker of a prepared end may be missing
        if metadata is not None:
            self.apply(Change(metadata))

    # -- state -----------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether it has never had a producer."""
        return self._metadata is None

    @property
    def metadata(self) -> TransactionMetadata:
        """What is stored. Raises InvalidProducerIdMapping if no producer has begun with the id."""
        if self._metadata is None:
            raise InvalidProducerIdMapping(f"no producer has begun with transactional id {self._shown}")
        return self._metadata

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The current producer."""
        return ProducerIdAndEpoch(self.metadata.producer_id, self.metadata.producer_epoch)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """What the producer goes on with once a prepared end is complete."""
        if self.metadata.next_producer_id >= 0:
            return ProducerIdAndEpoch(self.metadata.next_producer_id, 0)
        return self.producer

    @property
    def is_ongoing(self) -> bool:
        """Whether a transaction is open."""
        return self._metadata is not None and self._metadata.state is _ONGOING

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome of the transaction is stored, but not complete."""
        return self._metadata is not None and self._metadata.state in _PREPARED

    @property
    def commits(self) -> bool:
        """Whether the outcome is a commit; else it is an abort."""
        return self.metadata.state in _COMMITS

    def deadline_ms(self) -> int | None:
        """When the open transaction is to be fenced; None if none is open."""
        return self.metadata.start_ms + self.metadata.timeout_ms if self.is_ongoing else None

    def expires_ms(self, expiration_ms: int) -> int | None:
        """When the unused id is to be forgotten; None while a transaction is open or being ended."""
        if self._metadata is None or self.is_ongoing or self.is_prepared:
            return None
        return self._metadata.last_update_ms + expiration_ms

    def apply(self, change: Change) -> None:
        """Take over what has been stored."""
        self._metadata, self._last_epoch = change
        self.unmarked = set(change.metadata.partitions) if self.is_prepared else set()

    # -- requests of producers -------------------------------------------------------------------------

    def check_initialize(self, expected: ProducerIdAndEpoch | None) -> None:
        """Check that a producer may initialize. See `initialize`. Raises ProducerFenced."""
        if expected is None or self._metadata is None:
            return
        producer_id, epoch = expected
        if 0 <= epoch == self._last_epoch:
            rotated = epoch >= LARGEST_EPOCH and producer_id == self._metadata.previous_producer_id
            if rotated or producer_id == self._metadata.producer_id:
                return
        if expected != self.producer:
            raise self._fenced(expected)

    def initialize(
        self,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
        new_producer_id: Callable[[], int],
    ) -> Change:
        """A producer begins with the id: earlier ones are fenced. An open transaction must be ended before.

        Args:
            timeout_ms: how long its transactions may be open.
            expected: the producer, if it goes on after an error; None: it is a new one.
            new_producer_id: called if a new producer id is needed.

        Raises ProducerFenced: another producer has begun since. ConcurrentTransactions: a transaction is
        being ended.
        """
        if self._metadata is None:
            producer_id = new_producer_id()
            metadata = TransactionMetadata(
                producer_id,
                0,
                timeout_ms,
                _EMPTY,
                last_update_ms=now_ms,
                previous_producer_id=producer_id,
            )
            return Change(metadata)
        self.check_initialize(expected)
        assert not self.is_ongoing
        self._check_not_prepared()
        producer_id, epoch = self.producer
        if expected is not None and expected != self.producer:  # it repeats its request
            last_epoch = self._last_epoch
        else:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else epoch
            producer_id, epoch = producer_id, epoch + 1
            if epoch > LARGEST_EPOCH:
                producer_id, epoch = new_producer_id(), 0
        metadata = self._next(_EMPTY, now_ms)._replace(
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )
        return Change(metadata, last_epoch)

    def add_partitions(
        self,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
        now_ms: int,
    ) -> Change | None:
        """The producer is about to write to partitions; its transaction begins with the first ones.

        Returns None if they are part of the transaction already.

        Raises ProducerFenced, InvalidProducerIdMapping; ConcurrentTransactions: the last transaction is still
        being ended.
        """
        self._check(producer)
        self._check_not_prepared()
        metadata = self.metadata
        if self.is_ongoing and metadata.partitions.issuperset(partitions):
            return None
        changed = self._next(_ONGOING, now_ms)._replace(
            partitions=metadata.partitions.union(partitions),
            start_ms=metadata.start_ms if self.is_ongoing else now_ms,
            client_version=client_version,
        )
        return Change(changed, self._last_epoch)

    def check_in_transaction(
        self, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Check that partitions are part of the producer's open transaction. Raises as `add_partitions`, and
        InvalidTxnState if they are not."""
        self._check(producer)
        self._check_not_prepared()
        if not (self.is_ongoing and self.metadata.partitions.issuperset(partitions)):
            raise InvalidTxnState(f"a partition is not part of a transaction of {self._shown}")

    def end(
        self,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: int,
        now_ms: int,
        new_producer_id: Callable[[], int],
    ) -> Change | None:
        """The producer commits or aborts: the prepared end.

        Returns None if the transaction has ended so already, and the producer repeats its request; `producer`
        is what it goes on with. With transaction.version 2 the epoch rises, and there may be nothing to
        abort.

        Raises ProducerFenced, InvalidProducerIdMapping, ConcurrentTransactions (it is being ended so),
        InvalidTxnState (there is no transaction, or it has ended otherwise).
        """
        raises_epoch = client_version >= RAISES_EPOCHS
        repeats = raises_epoch and self._repeats_end(producer)
        if not repeats:
            self._check(producer)
        if self.is_prepared or (self.metadata.state is not _EMPTY and not self.is_ongoing):
            if repeats or not raises_epoch:
                if self.commits is not commit:
                    raise InvalidTxnState(f"the transaction of {self._shown} {self._outcome()}")
                self._check_not_prepared()
                return None
            self._check_not_prepared()
        elif repeats:
            raise self._fenced(producer)
        if not self.is_ongoing and (commit or not raises_epoch):
            raise InvalidTxnState(f"{self._shown} has no transaction to {'commit' if commit else 'abort'}")
        changed = self._next(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT, now_ms
        )._replace(
            client_version=client_version,
            start_ms=self.metadata.start_ms if self.is_ongoing else now_ms,
        )
        if not raises_epoch:
            return Change(changed, self._last_epoch)
        epoch = self.metadata.producer_epoch
        if epoch >= LARGEST_EPOCH:
            changed = changed._replace(next_producer_id=new_producer_id())
        return Change(changed._replace(producer_epoch=epoch + 1), last_epoch=epoch)

    # -- the coordinator's steps -----------------------------------------------------------------------

    def fence(self, now_ms: int) -> Change:
        """Abort the open transaction, whatever its producer does: the prepared end."""
        assert self.is_ongoing
        epoch = min(self.metadata.producer_epoch + 2, LARGEST_EPOCH + 1)
        changed = self._next(TransactionState.PREPARE_ABORT, now_ms)
        return Change(changed._replace(producer_epoch=epoch, client_version=RAISES_EPOCHS))

    def abort_for(
        self, expected: ProducerIdAndEpoch | None, now_ms: int, new_producer_id: Callable[[], int]
    ) -> Change:
        """Abort the open transaction, since a producer begins: the prepared end. See `initialize`.

        If it is the same producer, which goes on after an error, it aborts. Otherwise the old one is fenced.
        """
        ended = None
        if expected is not None and expected == self.producer:
            ended = self.end(
                expected,
                commit=False,
                client_version=RAISES_EPOCHS,
                now_ms=now_ms,
                new_producer_id=new_producer_id,
            )
        return ended or self.fence(now_ms)

    def complete(self, now_ms: int) -> Change:
        """Each partition has the marker of the prepared end."""
        assert self.is_prepared
        assert not self.unmarked
        metadata = self.metadata
        state = TransactionState.COMPLETE_COMMIT if self.commits else TransactionState.COMPLETE_ABORT
        changed = self._next(state, now_ms)._replace(partitions=frozenset(), next_producer_id=NO_PRODUCER_ID)
        if metadata.next_producer_id >= 0:
            changed = changed._replace(producer_id=metadata.next_producer_id, producer_epoch=0)
        return Change(changed, self._last_epoch)

    def raise_epoch(self, latest: ProducerIdAndEpoch) -> None:
        """A partition knows this producer: if its epoch is later, records were lost with the power.

        It is not given again; the next record states it.
        """
        if latest.producer_id == self.metadata.producer_id and not self.is_prepared:
            epoch = max(latest.producer_epoch, self.metadata.producer_epoch)
            self._metadata = self.metadata._replace(producer_epoch=epoch)

    # -- inside ----------------------------------------------------------------------------------------

    def _next(self, state: TransactionState, now_ms: int) -> TransactionMetadata:
        """The next record, with what is the same in all of them."""
        metadata = self.metadata
        return metadata._replace(
            state=state, last_update_ms=now_ms, previous_producer_id=metadata.producer_id
        )

    def _repeats_end(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether a producer repeats the end that has raised its epoch, or brought it a new producer id."""
        metadata = self.metadata
        if metadata.client_version < RAISES_EPOCHS:
            return False  # the last end did not raise it: an earlier epoch is a fenced producer's
        if producer.producer_id == metadata.producer_id:
            is_handed_out = metadata.producer_epoch <= LARGEST_EPOCH or metadata.next_producer_id >= 0
            return is_handed_out and producer.producer_epoch + 1 == metadata.producer_epoch
        rotated = metadata.producer_epoch == 0 and producer.producer_epoch == LARGEST_EPOCH
        return rotated and producer.producer_id == metadata.previous_producer_id

    def _check(self, producer: ProducerIdAndEpoch) -> None:
        if producer.producer_id != self.metadata.producer_id:
            raise InvalidProducerIdMapping(
                f"transactional id {self._shown} has another producer id than {producer.producer_id}: "
                f"{self.metadata.producer_id}"
            )
        if producer != self.producer:
            raise self._fenced(producer)

    def _check_not_prepared(self) -> None:
        if self.is_prepared:
            raise ConcurrentTransactions(f"the last transaction of {self._shown} is still being ended")

    def _fenced(self, producer: ProducerIdAndEpoch) -> ProducerFenced:
        return ProducerFenced(
            f"producer {producer.producer_id} with epoch {producer.producer_epoch} of transactional id "
            f"{self._shown} is fenced: another one has begun, or its transaction was aborted for its time"
        )

    def _outcome(self) -> str:
        being = "is being" if self.is_prepared else "was"
        return f"{being} {'committed' if self.commits else 'aborted'}"

    @property
    def _shown(self) -> str:
        return repr(self.transactional_id)
