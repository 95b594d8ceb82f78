"""A consumer's commits: where its offsets are kept, and when auto-commit is due.

Offsets live with the group's coordinator or in the user's `OffsetStore`; a consumer without a group has
neither. Auto-commit never fails a consumer because its partitions went to others: they read on from what
was committed before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from .errors import CommitFailed, InvalidArgument, InvalidCommit, InvalidType
from .model import CommittedOffset, TopicPartition
from .offset_store import OffsetStore
from .positions import Positions

_logger = logging.getLogger(__name__)
_NEVER = float("inf")


class Commits:
    """Loads and saves a consumer's offsets.

    Args:
        store: where; None without a group.
        group: the name under which.
        auto: whether auto-commit is on; None: where there is a store.
    """

    def __init__(
        self, store: OffsetStore | None, group: str | None, *, auto: bool | None, interval_ms: int
    ) -> None:
        if auto and store is None:
            raise InvalidArgument("auto_commit needs group=, the name under which the offsets are committed")
        self._store = store
        self._group = group or ""
        self._auto = auto if auto is not None else store is not None
        self._interval_s = interval_ms / 1000
        self.due = time.monotonic() + self._interval_s if self._auto else _NEVER

    def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions."""
        return self._store.load(self._group, partitions) if self._store is not None else {}

    def save(self, offsets: Mapping[TopicPartition, CommittedOffset], positions: Positions) -> None:
        """Commit these; InvalidArgument without a group."""
        if self._store is None:
            raise InvalidArgument("commit needs a group: give the consumer group=")
        if offsets:
            self._store.save(self._group, offsets)
            positions.committed(offsets)

    def auto(self, positions: Positions) -> None:
        """Commit what is done, if auto-commit is on."""
        if not self._auto:
            return
        self.due = time.monotonic() + self._interval_s
        try:
            self.save(positions.done(), positions)
        except CommitFailed as error:
            _logger.warning("auto-commit: %s; those records will be read again", error)


def checked_offset(tp: TopicPartition, offset: int | CommittedOffset) -> CommittedOffset:
    """An offset to commit as the user gives it; InvalidType, InvalidCommit."""
    if not isinstance(offset, CommittedOffset):
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidType(f"{tp}: an offset to commit must be int, not {type(offset).__name__}")
        offset = CommittedOffset(offset)
    if offset.offset < 0:
        raise InvalidCommit(f"{tp}: an offset to commit must not be negative, not {offset.offset}")
    return offset
