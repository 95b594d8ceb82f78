"""A consumer's commits: where its offsets are stored, and when auto-commit is due.

The store is the group's coordinator or the user's `OffsetStore`; a consumer without a group has none.
Auto-commit does not raise when partitions were reassigned: their new owners resume from the previous commit.

A coordinator does not expire offsets of topics that the group's members read, so a member commits only
changed positions. A standalone consumer's offsets expire offsets_retention_minutes after their last commit,
so it commits all positions every time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

from ..errors import (
    BrokerUnavailable,
    CommitFailed,
    FencedInstance,
    InvalidArgument,
    InvalidType,
    UnstableOffsetCommit,
)
from ..model import CommittedOffset, TopicPartition
from ..validation import as_seconds, as_topic_partition, check_committed, check_flag
from .membership import Committer, MemberOffsets
from .offset_store import OffsetStore
from .waits import Waits

_logger = logging.getLogger(__name__)
_NEVER = float("inf")
_ENDING_S: Final = 1.0  # a broker of Kafka ends a transaction after its commit has returned
_RETRY_S: Final = 0.02
_AGAIN_S: Final = 1.0
_COMMIT: Final = "the auto-commit"
_T = TypeVar("_T")


def once_stable(call: Callable[[], _T]) -> _T:
    """Call again for a second, in case the transaction that may change the offsets is just ending.

    Raises UnstableOffsetCommit if it is not.
    """
    deadline = time.monotonic() + _ENDING_S
    while True:
        try:
            return call()
        except UnstableOffsetCommit:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


class Committed(Protocol):
    """What is committed from: the consumer's positions."""

    def done(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]: ...

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None: ...

    @property
    def waits(self) -> Waits: ...


class TransactionOffsets(NamedTuple):
    """What a transaction commits of a group's offsets, and the member that does."""

    group: str
    offsets: Mapping[TopicPartition, CommittedOffset]
    member: Committer


class Commits:
    """Loads and saves a consumer's offsets.

    Args:
        store: None without a group.
        group: the name to commit under.
        auto: whether auto-commit is on; None: if there is a store.
    """

    def __init__(
        self,
        store: OffsetStore | None,
        group: str | None,
        *,
        auto: bool | None,
        interval_ms: int,
    ) -> None:
        if auto is not None:
            check_flag("auto_commit", auto)
        if auto and store is None:
            raise InvalidArgument("auto_commit needs group=, the name under which the offsets are committed")
        self._store = store
        self._group = group or ""
        self._auto = auto if auto is not None else store is not None
        self.standalone = False
        self._interval_s = as_seconds("auto_commit_interval_ms", interval_ms)
        self.due = time.monotonic() + self._interval_s if self._auto else _NEVER

    def stand_alone(self, store: OffsetStore) -> None:
        """From now on the coordinator does not know which partitions this consumer reads."""
        self._store, self.standalone = store, True

    def load(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions. Raises InvalidType if a user's store errs."""
        if self._store is None:
            return {}
        offsets = self._store.load(self._group, partitions)
        if not isinstance(offsets, Mapping):
            raise InvalidType(
                f"{type(self._store).__name__}.load must return a dict of TopicPartition -> CommittedOffset, "
                f"not {type(offsets).__name__}"
            )
        for name, committed in offsets.items():
            check_committed(name, committed)
        return offsets

    @property
    def stores(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    def stored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """As `load`, also of what an open transaction may change."""
        if isinstance(self._store, MemberOffsets):
            return self._store.stored(self._group, partitions)
        return self.load(partitions)

    def begin(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit where the group begins. Raises UnstableOffsetCommit if it is rebalancing."""
        if self._store is not None and offsets:
            try:
                self._store.save(self._group, offsets)
            except CommitFailed as error:
                raise UnstableOffsetCommit(str(error)) from error

    def save(self, offsets: Mapping[TopicPartition, CommittedOffset], positions: Committed) -> None:
        """Commit these offsets. Raises InvalidArgument without a group."""
        if self._store is None:
            raise InvalidArgument("commit needs a group: give the consumer group=")
        if offsets:
            self._store.save(self._group, offsets)
            positions.committed(offsets)

    def of_transaction(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> TransactionOffsets:
        """What a transaction needs to commit these offsets. Raises InvalidArgument, CommitFailed."""
        if self._store is None:
            raise InvalidArgument("commit_offsets needs a consumer in a group: give it group=")
        if not isinstance(self._store, MemberOffsets):
            raise InvalidArgument(
                "commit_offsets needs a consumer whose offsets are in the log: this one keeps them in its "
                "offset_store, which no transaction includes"
            )
        if self._auto:
            raise InvalidArgument(
                "commit_offsets needs a consumer with auto_commit=False: this one commits by itself, also "
                "what belongs to an aborted transaction"
            )
        return TransactionOffsets(self._group, offsets, self._store.member(self._group, offsets))

    def auto(self, positions: Committed, *, last: bool = False) -> None:
        """Commit what is done, if auto-commit is on. In a turn (waits.py), what cannot be committed now is
        committed later, unless it is the last time."""
        if not self._auto:
            return
        self.due = time.monotonic() + self._interval_s
        try:
            self.save(positions.done(unchanged=self.standalone), positions)
        except (CommitFailed, FencedInstance) as error:
            _logger.warning("auto-commit: %s; their records will be read again", error)
        except BrokerUnavailable as error:
            positions.waits.put_off(_COMMIT, error)
            self.due = min(self.due, time.monotonic() + _AGAIN_S)
            if last:
                _logger.warning("auto-commit: %s; some records will be read again", error)
        else:
            positions.waits.over(_COMMIT)


def as_commits(
    offsets: Mapping[TopicPartition, int | CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    """Validate offsets that a user commits. Raises InvalidType, InvalidArgument, InvalidCommit."""
    if not isinstance(offsets, Mapping):
        raise InvalidType(
            f"offsets must map each TopicPartition to an offset, not be {type(offsets).__name__}"
        )
    commits = {}
    for name, offset in offsets.items():
        tp = as_topic_partition(name)
        commits[tp] = CommittedOffset(offset) if isinstance(offset, int) else offset
        check_committed(tp, commits[tp])
    return commits


def check_store(store: object) -> None:
    """Raises InvalidType unless it has the two methods of an OffsetStore."""
    for method in ("load", "save"):
        if isinstance(store, type) or not callable(getattr(store, method, None)):
            raise InvalidType(
                f"offset_store must have the methods load and save of embedlog.OffsetStore, not be "
                f"{type(store).__name__}"
            )
