"""Where reads of committed records end: before the first open transaction of a partition, and which that is.

A reader that is to reach an end and does not says so, with the transaction's id. One that follows the log, or
is a consumer, waits there instead (`Consumer.held_back`).
"""

from __future__ import annotations

import logging
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
    return [each for each in described if each.is_open and tp in each.partitions]


def held_back_at(backend: Backend, tp: TopicPartition, offset: int) -> str:
    """Where a read of committed records ended before the log, and on whose account.

    "" if that transaction has ended by now. Raises what `Backend.fetch` raises.
    """
    found = ", ".join(
        f"{each.transactional_id!r} (producer id {each.producer_id}, epoch {each.producer_epoch})"
        for each in open_transactions(backend, tp)
    )
    if not found and stable_end(backend, tp, offset) > offset:
        return ""
    return (
        f"{tp}: committed records end before offset {offset:,}, where an open transaction begins"
        f"{': that of ' if found else ''}{found}"
    )


def warn_of_open_transactions(backend: Backend, tp: TopicPartition, offset: int) -> None:
    """Log that a read ends before the log does, and why. Raises what `Backend.fetch` raises."""
    where = held_back_at(backend, tp, offset)
    if where:
        _logger.warning('%s; isolation_level="read_uncommitted" reads on', where)
