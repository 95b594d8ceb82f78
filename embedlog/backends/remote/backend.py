"""The port over the wire: the backend of `embedlog.open("kafka://host:9092")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ...config import LogSettings, TopicSettings
from ...errors import UnsupportedByBackend
from ...model import (
    Appended,
    Fetched,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
)
from ..port import Interrupt
from .appending import Appending, RemoteAppender, check_options
from .arrivals import RemoteArrivals
from .brokers import Brokers
from .fetching import Fetching
from .groups import RemoteCoordinator
from .lookups import Lookups
from .metadata import Metadata
from .settings import RemoteSettings, addresses
from .topics import Topics


class RemoteBackend:
    """Implements `port.Backend` over the brokers of a cluster.

    Args:
        path: "kafka://host:port,host2:port".
        settings: RemoteSettings, by their names.

    Raises BrokerUnavailable if no broker responds, InvalidArgument, UnknownSetting, InvalidSetting.
    """

    mode = "rw"
    one_batch_per_append = True

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = _checked(settings)
        self._brokers = Brokers(path, addresses(path), self.settings)
        self._metadata = Metadata(self._brokers)
        self.splits = Lookups(self._brokers, self._metadata)
        self._fetching = Fetching(self._brokers, self._metadata, self.splits)
        self.coordinator = RemoteCoordinator(self._brokers, self._metadata)
        self.topic_admin = Topics(self._brokers, self._metadata, self.splits)
        self._appending = Appending(self._brokers, self._metadata, self._fetching.note_append)
        try:
            self._metadata.connect()
        except BaseException:
            self._brokers.close()
            raise
        self.describe_cluster = self._metadata.cluster
        self.describe_topic = self._metadata.describe
        self.topics = self._metadata.names
        self.offsets = self.splits.offsets
        self.check_open = self._brokers.check_open

    @property
    def log_id(self) -> str:
        return self._metadata.cluster_id

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._metadata.config(topic).settings

    # -- appending ---------------------------------------------------------------------------------------

    def check_append(self, *, flush: bool = False) -> None:
        self.check_open()
        check_options(flush, None)

    def appenders(self, topic: str) -> Sequence[RemoteAppender]:
        view = self._metadata.view(topic)
        settings = self._metadata.config(topic).settings
        return [
            RemoteAppender(self._appending, TopicPartition(topic, number), settings)
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
        check_options(flush, expected_offset)
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

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> RemoteArrivals:
        return RemoteArrivals(self, self._fetching, read_committed, interrupt)

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

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        return self.splits.offset_for_time(TopicPartition(topic, partition), time_ms)

    # -- the whole ---------------------------------------------------------------------------------------

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
    def maintenance(self) -> NoReturn:
        self.check_open()
        raise UnsupportedByBackend(
            "recovery, flush, reopen, compact and backup need the log's directory: open that, or use the "
            "command line on the broker's machine. A topic's flush_messages and flush_ms say when its broker "
            "makes records durable, and brokers compact by themselves (min_cleanable_dirty_ratio)"
        )

    def health(self) -> NoReturn:
        self.check_open()
        raise UnsupportedByBackend("health is not available over the wire: see the brokers' metrics")


def _checked(given: Mapping[str, Any]) -> RemoteSettings:
    """Raises UnknownSetting, InvalidSetting; UnsupportedByBackend for a setting of a log directory."""
    for name in given:
        of_log = LogSettings.resolved(name, None) or TopicSettings.resolved(name, None)
        if of_log is not None and RemoteSettings.resolved(name, None) is None:
            raise UnsupportedByBackend(
                f"{name} is a setting of the log itself, which the brokers keep: pass it to `embedlog "
                "serve`, or to create_topic and alter_topic for one topic"
            )
    return RemoteSettings().with_changes(given)
