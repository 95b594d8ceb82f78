"""Where reads of committed records end: before the first open transaction of a partition, and which that is.

A reader that is to reach an end and does not says so, with the transaction's id. One that follows the log
waits there, and says so once it has waited for a while (`Standstills`). A consumer has `held_back`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..backends.port import Backend
from ..errors import EmbedlogError
from ..model import TopicPartition

if TYPE_CHECKING:
    from .transaction_admin import TransactionDescription

_logger = logging.getLogger(__name__)


def stable_end(backend: Backend, tp: TopicPartition, offset: int) -> int:
    """The last stable offset of a partition: where its committed records end.

    offset: one that the partition has, or its end. Raises what `Backend.fetch` raises.
    """
    return backend.fetch(*tp, offset, 1, read_committed=True).last_stable_offset


def open_transactions(backend: Backend, tp: TopicPartition) -> list[TransactionDescription]:
    """The open transactions of a partition; none where that cannot be told, such as by old brokers."""
    from .transaction_admin import describe_transactions  # with the wire: few reads need it

    try:
        described = describe_transactions(backend)
    except EmbedlogError:
        return []
    return [transaction for transaction in described if transaction.is_open and tp in transaction.partitions]


def held_back_at(backend: Backend, tp: TopicPartition, offset: int) -> str:
    """Where a read of committed records ended before the log, and on whose account.

    "" if that transaction has ended by now. Raises what `Backend.fetch` raises.
    """
    from ..units import iso  # a first append does without

    blockers = ", ".join(
        f"{transaction.transactional_id!r} "
        f"(producer id {transaction.producer_id}, epoch {transaction.producer_epoch}), "
        f"open since {iso(transaction.start_ms)}"
        for transaction in open_transactions(backend, tp)
    )
    if not blockers and stable_end(backend, tp, offset) > offset:
        return ""
    return (
        f"{tp}: committed records end before offset {offset:,}, where an open transaction begins"
        f"{': that of ' if blockers else ''}{blockers}"
    )


def warn_of_open_transactions(backend: Backend, tp: TopicPartition, offset: int) -> None:
    """Log that a read ends before the log does, and why. Raises what `Backend.fetch` raises."""
    explanation = held_back_at(backend, tp, offset)
    if explanation:
        _logger.warning('%s; isolation_level="read_uncommitted" reads on', explanation)


class Standstills:
    """Finds where a reader that follows waits for an open transaction. For one thread.

    Args:
        interval_s: it looks at most so often, and tells of a position that has not moved since its last look:
            a short transaction is not worth a word.
    """

    def __init__(self, backend: Backend, interval_s: float) -> None:
        self._backend = backend
        self._interval_s = interval_s
        self._looked_at = time.monotonic()
        self._before: dict[TopicPartition, int] = {}
        self._told: set[tuple[TopicPartition, int]] = set()

    def look(self, positions: Mapping[TopicPartition, int]) -> list[str]:
        """Say where it waits, and on whose account, as `held_back_at`: once for each position."""
        now = time.monotonic()
        if now - self._looked_at < self._interval_s:
            return []
        self._looked_at = now
        self._told &= positions.items()
        waiting = dict(positions.items() & self._before.items() - self._told)
        self._before = dict(positions)
        explanations = []
        with contextlib.suppress(EmbedlogError):  # which the next read raises
            edges = {topic: self._backend.offsets(topic) for topic in {tp.topic for tp in waiting}}
            for tp, offset in waiting.items():
                at_end = offset >= edges[tp.topic][tp.partition].log_end_offset
                if not at_end and (explanation := held_back_at(self._backend, tp, offset)):
                    explanations.append(explanation)
                    self._told.add((tp, offset))
        return explanations
