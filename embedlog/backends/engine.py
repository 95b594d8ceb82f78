"""What a store in this process (local.py) and a read-only store (read_only.py) have in common: reading.

Nothing is decided here: each method finds the partition and calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, Self, TypeVar

from ..codec.time_range import TimeRange
from ..config import TopicSettings, as_texts
from ..errors import StorageError, TopicNotFound, TopicRecreated
from ..files.names import TRANSACTION_STATE_TOPIC
from ..model import (
    Fetched,
    Health,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionOffsets,
    ProducerDescription,
    Record,
    TopicDescription,
    TopicPartition,
)
from ..storage.reader import ReadablePartition
from ..store.store import Store
from .port import TopicConfigs

if TYPE_CHECKING:
    from ..store.read_only_store import ReadOnlyStore
    from ..wire.transaction_state import TransactionMetadata
    from .stored_shares import StoredShares

_READ_ERRORS: Final = (StorageError, OSError)

T = TypeVar("T")


class EngineBackend:
    """What both kinds of engine share: reading. Implements `port.Splits` too."""

    mode: ClassVar[str]
    one_batch_per_append = False
    reads_times = True
    delivery = None

    def __init__(self, engine: Store | ReadOnlyStore) -> None:
        self._engine = engine

    @property
    def path(self) -> str:
        return self._engine.path

    @property
    def log_id(self) -> str:
        return self._engine.catalog.log_id

    @property
    def splits(self) -> Self:
        return self

    def topics(self) -> list[str]:
        return self._engine.topics()

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._engine.describe_topic(topic)

    def forget_metadata(self, topic: str) -> None: ...

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._engine.topic_settings(topic)

    def topic_configs(self, topic: str) -> TopicConfigs:
        own = self._engine.describe_topic(topic).settings
        return TopicConfigs(as_texts(self._engine.topic_settings(topic).as_dict()), frozenset(as_texts(own)))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        readable = self._engine.partition(topic, partition)
        # After the partition is found: then it is this topic's. No id comes back.
        if topic_id and self._engine.topic_id(topic) != topic_id:
            self._engine.topic(topic)
            raise TopicRecreated(
                f"{TopicPartition(topic, partition)}: the topic was deleted, and another one has its name now"
            )
        try:
            return readable.fetch(
                offset, max_bytes, leader_epoch=leader_epoch, read_committed=read_committed, buffer=buffer
            )
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return self._engine.record_at(topic, partition, offset)

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        return self._engine.partition(topic, partition).has_data(offset, read_committed=read_committed)

    def offsets(self, topic: str, partition: int | None = None) -> dict[int, PartitionOffsets]:
        if partition is None:
            return self._engine.offsets(topic)
        return {partition: self._engine.partition(topic, partition).offsets()}

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offset_for_time(time_ms)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def offsets_in_time(self, topic: str, partition: int, offset: int, times: TimeRange) -> OffsetRange:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offsets_in_time(offset, times)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        return self._engine.partition(topic, partition).offsets_before(time_ms, max_offsets)

    def split(
        self, topic: str, partition: int, start: int, end: int, split_bytes: int, not_before_ms: int | None
    ) -> list[OffsetRange]:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.split(start, end, split_bytes, not_before_ms)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def next_valid_offset(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        readable = self._engine.partition(topic, partition)
        try:
            return readable.offset_after_damage(offset, path, pos)
        except _READ_ERRORS as error:
            self._read_failed(readable, error)

    def check_open(self) -> None:
        self._engine.check_open()

    def health(self) -> Health:
        """See `Log.health`."""
        topics = self._of_each_topic(self._engine.offsets)
        edges = [offsets for topic in topics for offsets in topic.values()]
        refusing, damage, failing = self._trouble()
        disk_bytes, used_fraction, full = self._disk()
        try:
            free_bytes = self._engine.fs.free_bytes(self.path)
        except OSError as error:  # the directory was moved or removed
            raise StorageError(f"{self.path} cannot be read: {error}", path=self.path) from error
        return Health(
            "degraded" if refusing or damage else "full" if full else "degraded" if failing else "ok",
            self.path,
            self.mode,
            len(topics),
            len(edges),
            self._bytes(),
            free_bytes,
            sum(edge.log_end_offset - edge.flushed_offset for edge in edges),
            refusing,
            damage,
            failing,
            disk_bytes,
            used_fraction,
            full,
        )

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        """Which partitions refuse appends and why; what is damaged; what fails in the background."""
        return {}, [], []

    def _disk(self) -> tuple[int, float, str]:
        """Bytes on disk, their fraction of max_bytes, and which bound leaves no room, if one does."""
        return -1, 0.0, ""

    def share_reader(self) -> StoredShares:
        from .stored_shares import StoredShares

        return StoredShares(self._engine)

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        from ..groups.transaction_log import read_transactions

        exists = TRANSACTION_STATE_TOPIC in self._engine.topics()
        return read_transactions(self._engine.partitions_of(TRANSACTION_STATE_TOPIC) if exists else ())

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        return {
            name: [
                producer.described(producer_id)
                for producer_id, producer in self._engine.partition(*name).known_producers().items()
            ]
            for name in partitions
        }

    def _bytes(self) -> int:
        """Bytes of all segments."""
        return sum(sum(sizes.values()) for sizes in self._of_each_topic(self.sizes))

    def sizes(self, topic: str) -> dict[int, int]:
        return {
            partition.name.partition: sum(size for _, size in partition.readable_segments())
            for partition in self._engine.partitions_of(topic)
        }

    def _of_each_topic(self, ask: Callable[[str], T]) -> list[T]:
        """The answers for all topics, without those that are deleted in the meantime."""
        answers = []
        for topic in self._engine.topics():
            with contextlib.suppress(TopicNotFound):
                answers.append(ask(topic))
        return answers

    def _read_failed(self, partition: ReadablePartition, error: StorageError | OSError) -> NoReturn:
        """Raise the error; TopicNotFound if the topic was deleted in the meantime."""
        if self._engine.partition(*partition.name) is not partition:
            raise TopicNotFound(f"{partition.name}: the topic was deleted meanwhile") from error
        if isinstance(error, OSError):
            raise StorageError(f"{partition.name}: {error}", path=self._engine.path) from error
        raise error
