"""The port over the wire: `embedlog.open("kafka://host:9092")` has a log with this behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from ...config import LogSettings, TopicSettings
from ...errors import UnsupportedByBackend
from ...fast_append import FastPath
from ...model import (
    Appended,
    Fetched,
    Health,
    OffsetAndTimestamp,
    PartitionOffsets,
    Piece,
    Record,
    TopicDescription,
    TopicPartition,
)
from ..port import Interrupt
from .appending import Appending, Lane, check_asked
from .brokers import Brokers
from .fetching import Fetching
from .groups import RemoteCoordinator
from .lookups import Lookups
from .metadata import Metadata
from .settings import RemoteSettings, addresses
from .topics import Topics

_HERE: Final = "to open its directory, or the command line beside the broker, is the way"


class RemoteBackend:
    """Implements `backend.LogBackend` and `backend.Owner` over the brokers of a cluster.

    Args:
        path: "kafka://host:port,host2:port".
        settings: RemoteSettings, by their names.

    Raises BrokerUnavailable where no broker answers now; InvalidArgument, UnknownSetting, InvalidSetting.
    """

    mode = "rw"
    fast_path = FastPath({})
    merges_batches = True

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = _checked(settings)
        self._brokers = Brokers(path, addresses(path), self.settings)
        self._metadata = Metadata(self._brokers)
        self._lookups = Lookups(self._brokers, self._metadata)
        self._fetching = Fetching(self._brokers, self._metadata, self._lookups)
        self.coordinator = RemoteCoordinator(self._brokers, self._metadata)
        self._topics = Topics(self._brokers, self._metadata, self._lookups)
        self._appending = Appending(self._brokers, self._metadata, self._fetching.appended)
        try:
            self._metadata.connect()
        except BaseException:
            self._brokers.close()
            raise
        self.describe_cluster = self._metadata.cluster
        self.describe_topic = self._metadata.describe
        self.topics = self._metadata.names
        self.offsets = self._lookups.offsets
        self.check_open = self._brokers.check_open
        self.alter_topic = self._topics.alter
        self.create_partitions = self._topics.create_partitions
        self.delete_topic = self._topics.delete

    @property
    def log_id(self) -> str:
        return self._metadata.cluster_id

    # -- topics ------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, Any], *, exist_ok: bool = False
    ) -> TopicDescription:
        return self._topics.create(name, partitions, settings, exist_ok=exist_ok)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        return self._topics.delete_records(TopicPartition(topic, partition), before_offset)

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._metadata.config(topic).settings

    # -- appending ---------------------------------------------------------------------------------------

    def lanes(self, topic: str) -> Sequence[Lane]:
        view = self._metadata.view(topic)
        settings = self._metadata.config(topic).settings
        return [
            Lane(self._appending, TopicPartition(topic, number), settings)
            for number in range(len(view.leaders))
        ]

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        check_asked(flush, expected_offset)
        return self._appending.append(TopicPartition(topic, partition), batches)

    # -- reading -----------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        return self._fetching.fetch(
            TopicPartition(topic, partition), offset, max_bytes, leader_epoch, read_committed
        )

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return None

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        return self._fetching.may_have_data(TopicPartition(topic, partition), offset, read_committed)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        return self._fetching.wait(positions, timeout_ms, read_committed, interrupt)

    def edges(self, topic: str, partition: int) -> PartitionOffsets:
        return self._lookups.edges(TopicPartition(topic, partition))

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        return self._lookups.offset_for_time(TopicPartition(topic, partition), time_ms)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        return self._lookups.offsets_before(TopicPartition(topic, partition), time_ms, max_offsets)

    def divide(
        self, topic: str, partition: int, start: int, end: int, piece_bytes: int, not_before_ms: int | None
    ) -> list[Piece]:
        return [Piece(start, end, -1)]

    # -- the whole ---------------------------------------------------------------------------------------

    def owner(self) -> RemoteBackend:
        return self

    def summary(self) -> str:
        self.check_open()
        return "over the wire"

    def check_producer(self, options: Mapping[str, Any]) -> None:
        self.check_open()
        check_asked(options.get("flush") is True, None)

    def close(self) -> None:
        self.coordinator.close()
        self._brokers.close()

    def abandon(self) -> None:
        try:
            self._brokers.abandon()
        finally:
            self.coordinator.abandon()

    # -- what has no form on the wire --------------------------------------------------------------------

    @property
    def recovery(self) -> NoReturn:
        raise self._unsupported("recovery", "what a broker found when it started stands in its own log")

    def flush(self) -> None:
        raise self._unsupported(
            "flush", "the topic's flush_messages and flush_ms say when its broker makes records durable"
        )

    def behind_damage(self, topic: str, partition: int, offset: int, path: str, pos: int) -> NoReturn:
        raise self._unsupported(
            "reading on behind damage", "`embedlog repair` takes it out, where the log is"
        )

    def reopen(self, topic: str, partition: int) -> NoReturn:
        raise self._unsupported("reopen", _HERE)

    def compact(self, topic: str) -> NoReturn:
        raise self._unsupported("compact", "brokers compact by themselves (min_cleanable_dirty_ratio)")

    def backup(self, destination: str) -> None:
        raise self._unsupported("backup", _HERE)

    def health(self) -> Health:
        raise self._unsupported("health", "brokers tell by their metrics how they are")

    def _unsupported(self, what: str, instead: str) -> UnsupportedByBackend:
        self.check_open()
        return UnsupportedByBackend(f"{what} cannot be asked for over the wire: {instead}")


def _checked(given: Mapping[str, Any]) -> RemoteSettings:
    """Raises UnknownSetting, InvalidSetting; UnsupportedByBackend for a setting of a directory."""
    for name in given:
        of_log = LogSettings.resolved(name, None) or TopicSettings.resolved(name, None)
        if of_log is not None and RemoteSettings.resolved(name, None) is None:
            raise UnsupportedByBackend(
                f"{name} is a setting of the log itself, which the brokers keep: give it to them (`embedlog "
                "serve`), or to create_topic and alter_topic for one topic"
            )
    return RemoteSettings().with_changes(given)
