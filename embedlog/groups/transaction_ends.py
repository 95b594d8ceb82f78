"""Ends of transactions, carried out: the missing markers, the completion, and who waits for it.

The coordinator prepares an end, with a record; all after that is done here, and done again until it succeeds.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Final

from ..errors import DiskFull, EmbedlogError, LogFull, StorageError
from ..model import TopicPartition
from ..store.store import Store
from .machines.transaction import Change, Transaction
from .other_brokers import End
from .transaction_markers import TransactionMarkers

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000


class Ended:
    """How many transactions were committed and aborted."""

    def __init__(self) -> None:
        self.committed = self.aborted = 0

    def count(self, committed: bool) -> None:
        self.committed += committed
        self.aborted += not committed


class TransactionEnds:
    """The prepared ends of a store's transactions. The coordinator's lock guards all but `complete_waits`.

    Args:
        make: stores a change of a transaction, then applies it.
        schedule: the coordinator looks at its transactions at that time, at the latest.
    """

    def __init__(
        self,
        store: Store,
        markers: TransactionMarkers,
        make: Callable[[Transaction, Change], None],
        schedule: Callable[[int], None],
    ) -> None:
        self._store = store
        self._markers = markers
        self._make = make
        self._schedule = schedule
        self._expiration_ms = store.settings.transactional_id_expiration_ms
        self.flushing: set[str] = set()  # ids whose prepared end is not durable yet
        self.prepared: Counter[str] = Counter()  # by id: how many ends since the start
        self.ended = Ended()  # since the open
        self._waiting: dict[str, list[Future[None]]] = {}  # by id
        self._over: list[Future[None]] = []

    # -- carrying out ----------------------------------------------------------------------------------

    def finish_first(self, transaction: Transaction) -> None:
        """Finish the last transaction before the next one. Raises DiskFull, LogFull: it waits for room."""
        failed = self.finish(transaction)
        if isinstance(failed, (DiskFull, LogFull)):
            raise failed

    def finish(self, transaction: Transaction) -> EmbedlogError | None:
        """Write the missing markers of a prepared end, and complete it. Returns what is done later."""
        if not transaction.is_prepared or transaction.transactional_id in self.flushing:
            return None
        transactional_id = transaction.transactional_id
        end = End(transactional_id, self.prepared[transactional_id])
        failed = self._markers.write_missing(transaction, end)
        if not transaction.unmarked:
            failed = self._complete(transaction)
        if failed is not None:
            logger.warning("the transaction of %r is ended later: %s", transactional_id, failed)
            self._schedule(self._store.clock_ms() + RETRY_MS)
        return failed

    def _complete(self, transaction: Transaction) -> StorageError | None:
        """All markers are written. Returns an error if that could not be stored."""
        now_ms = self._store.clock_ms()
        try:
            self._make(transaction, transaction.complete(now_ms))
        except StorageError as error:
            return error
        self.ended.count(transaction.commits)
        self._schedule(now_ms + self._expiration_ms)
        self.over(transaction.transactional_id)
        return None

    def marked(self, transaction: Transaction, end: End, name: TopicPartition) -> None:
        """Another broker has written a marker of an end, perhaps of an earlier one."""
        if transaction.is_prepared and end.number == self.prepared[end.transactional_id]:
            transaction.unmarked.discard(name)
            if not transaction.unmarked:
                self.finish(transaction)

    def forget(self) -> None:
        """It is unknown what ends are being carried out."""
        self.flushing.clear()
        for transactional_id in list(self._waiting):
            self.over(transactional_id)

    # -- waiting ---------------------------------------------------------------------------------------

    def wait(self, transactional_id: str) -> Future[None]:
        """A future that completes after `over`."""
        over: Future[None] = Future()
        self._waiting.setdefault(transactional_id, []).append(over)
        return over

    def over(self, transactional_id: str) -> None:
        """The end is carried out."""
        self._over += self._waiting.pop(transactional_id, ())

    def complete_waits(self) -> None:
        """Tell those whose wait is over. Called after the release of the lock."""
        while self._over:
            with contextlib.suppress(IndexError, InvalidStateError):  # another thread was quicker; cancelled
                self._over.pop().set_result(None)
