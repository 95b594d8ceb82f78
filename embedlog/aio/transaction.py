"""Transactions for tasks: `async with log.transaction("loader-1") as tx`; `embedlog.Transaction`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ..clients.transaction import Transaction as SyncTransaction
from ..errors import InvalidType
from ..model import CommittedOffset, TopicPartition
from ..runtime.closing import OfOneProcess
from .consumer import Consumer
from .threads import Threads, in_thread


class Transaction(OfOneProcess):
    """Appends and offset commits that take effect together or not at all; see `embedlog.Transaction`.

    Any task may append to it during the `async with` block. Cancelling the task in the block aborts it.
    Commit and abort run to their ends even if the task is cancelled.
    """

    append = in_thread(SyncTransaction.append)
    append_many = in_thread(SyncTransaction.append_many)

    def __init__(self, transaction: SyncTransaction, threads: Threads) -> None:
        self._transaction = transaction
        self.threads = threads

    def __repr__(self) -> str:
        return repr(self._transaction).replace("embedlog.", "embedlog.aio.", 1)

    def opened(self) -> SyncTransaction:
        """The `embedlog.Transaction` beneath this one."""
        return self._transaction

    @property
    def transactional_id(self) -> str:
        """The transactional id, by which other processes know it."""
        return self._transaction.transactional_id

    async def __aenter__(self) -> Self:
        beginning = self.threads.start(self._transaction.__enter__)
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError as cancelled:
            if await _ended(beginning):
                await self.__aexit__(type(cancelled), cancelled, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ending = self.threads.start(self._transaction.__exit__, kind, error, None)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await _ended(ending)
            raise

    async def commit_offsets(
        self,
        consumer: Consumer[Any, Any],
        offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None,
    ) -> None:
        """Commit a consumer's offsets as part of it; see `embedlog.Transaction.commit_offsets`."""
        if not isinstance(consumer, Consumer):
            raise InvalidType(f"commit_offsets takes an embedlog.aio.Consumer, not {type(consumer).__name__}")
        await consumer.in_transaction(self._transaction, offsets)


async def _ended(future: asyncio.Future[Any]) -> bool:
    """Wait for a call, also if the task is cancelled again. Returns whether it succeeded."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    return future.exception() is None
