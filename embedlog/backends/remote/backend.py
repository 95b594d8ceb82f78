"""The port over the wire: the backend of `embedlog.open("kafka://host:9092")`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ...codec import read_header
from ...codec.record_batch import TRANSACTIONAL_BIT
from ...codec.time_range import TimeRange
from ...config import LogSettings, TopicSettings
from ...errors import InvalidTxnState, UnsupportedByBackend
from ...model import (
    Appended,
    Fetched,
    Health,
    OffsetAndTimestamp,
    ProducerDescription,
    Record,
    TopicPartition,
)
from ...wire.transaction_state import TransactionMetadata
from ...wire_client.client_config import client_settings
from ...wire_client.settings import Address, ClientSettings, addresses
from ..log_requests import LogCalls
from ..port import Interrupt, TopicConfigs
from ..port.coordinators import KEPT_FOREVER, ShareCoordinator
from .acls import RemoteAcls
from .appending import Appending, RemoteAppender
from .arrivals import RemoteArrivals
from .brokers import Brokers
from .delivery import RemoteDelivery
from .fetching import Fetching
from .groups import RemoteCoordinator
from .log_dirs import LogDirs
from .lookups import Lookups
from .maintenance import owner_requests
from .metadata import Metadata
from .quotas import RemoteQuotas
from .share_admin import RemoteShareGroups
from .share_groups import ShareCalls
from .topics import Topics
from .transactions import RemoteTransactions
from .users import RemoteUsers

if TYPE_CHECKING:
    from .queues import BrokerQueues

_ATTRIBUTES: Final = 22  # the pos of their low byte in a batch


class RemoteBackend:
    """Implements `port.Backend` over the brokers of a cluster.

    Args:
        path: "kafka://user@host:port,host2:port".
        settings: ClientSettings, by their names; `client_config` names a file with more.
        bootstrap: the addresses to begin with, if they are not in the path.
        on_lost: called when no broker answers, before a retry; see `Brokers`.

    Raises BrokerUnavailable if no broker responds, TlsFailed, AuthenticationFailed, InvalidArgument,
    UnknownSetting, InvalidSetting.
    """

    mode = "rw"
    one_batch_per_append = True
    reads_times = False

    def __init__(
        self,
        path: str,
        settings: Mapping[str, Any],
        bootstrap: Sequence[Address] = (),
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        bootstrap_addresses = bootstrap or addresses(path)
        self.settings = _checked(settings, "" if bootstrap else path)
        self._brokers = Brokers(path, bootstrap_addresses, self.settings, on_lost)
        self._metadata = Metadata(self._brokers)
        # A log's owner leads all partitions: what is sent to it needs no thread beside the sender, which a
        # process that ends may not start.
        self.delivery = None if self._brokers.has_owner else RemoteDelivery(self._brokers, self._metadata)
        self.splits = Lookups(self._brokers, self._metadata)
        self._log_dirs = LogDirs(self._brokers, self._metadata)
        self._fetching = Fetching(self._brokers, self._metadata, self.splits)
        self.coordinator = RemoteCoordinator(self._brokers, self._metadata)
        self.topic_admin = Topics(self._brokers, self._metadata, self.splits)
        self._appending = Appending(self._brokers, self._metadata, self._fetching.note_append)
        self._transactions = RemoteTransactions(
            self._brokers, self._metadata, self.coordinator, self._fetching.note_append
        )
        self._appenders: dict[str, list[RemoteAppender]] = {}  # the topics' as of their last use
        ask = owner_requests(self._brokers)
        self._maintenance = LogCalls(lambda name, arguments: ask(name, arguments, {}))
        self._share_coordinator = ShareCalls(ask)
        self._queues: BrokerQueues | None = None
        try:
            self._metadata.connect()
        except BaseException:
            self._brokers.close()
            raise
        self.describe_cluster = self._metadata.cluster
        self.describe_topic = self._metadata.describe
        self.forget_metadata = self._metadata.forget
        self.topics = self._metadata.names
        self.offsets = self.splits.offsets
        self.check_open = self._brokers.check_open

    @property
    def log_id(self) -> str:
        return self._metadata.cluster_id

    def group_reader(self) -> RemoteCoordinator:
        return self.coordinator

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._metadata.config(topic).settings

    def topic_configs(self, topic: str) -> TopicConfigs:
        self._metadata.forget_settings(topic)
        return self._metadata.config(topic).configs

    # -- appending ---------------------------------------------------------------------------------------

    def check_append(self, *, flush: bool = False) -> None:
        self.check_open()
        self._appending.check_options(flush, None)

    def appenders(self, topic: str) -> Sequence[RemoteAppender]:
        count = len(self._metadata.view(topic).leaders)
        settings = self._metadata.config(topic).settings
        appenders = self._appenders.get(topic)
        if appenders is None or len(appenders) != count or appenders[0].settings is not settings:
            appenders = self._appenders[topic] = [
                RemoteAppender(self._appending, TopicPartition(topic, number), settings)
                for number in range(count)
            ]
        return appenders

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Appended:
        name = TopicPartition(topic, partition)
        if transactional_id is not None:
            return self._transactions.append(transactional_id, name, batches, timeout_ms)
        if len(batches) > _ATTRIBUTES and batches[_ATTRIBUTES] & TRANSACTIONAL_BIT:
            if expected_offset is not None:
                raise UnsupportedByBackend(
                    "expected_offset: not in a transaction over the wire; begin it in the process that has "
                    "the log's directory open"
                )
            producer_id = read_header(batches).producer_id
            raise InvalidTxnState(f"producer {producer_id} has no transactional id here")
        return self._appending.append(
            name, batches, flush=flush, expected_offset=expected_offset, timeout_ms=timeout_ms
        )

    # -- reading -----------------------------------------------------------------------------------------

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
        return self._fetching.fetch(
            TopicPartition(topic, partition), topic_id, offset, max_bytes, leader_epoch, read_committed
        )

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return None

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> RemoteArrivals:
        return RemoteArrivals(self, self._brokers, self._fetching, read_committed, interrupt)

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

    def sizes(self, topic: str) -> dict[int, int]:
        return self._log_dirs.sizes(topic)

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        return self.splits.offset_for_time(TopicPartition(topic, partition), time_ms)

    def offsets_in_time(self, topic: str, partition: int, offset: int, times: TimeRange) -> NoReturn:
        raise UnsupportedByBackend("a range of times over the wire is read from a seek to a seek")

    # -- the whole ---------------------------------------------------------------------------------------

    def close(self) -> None:
        self.coordinator.close()
        self._brokers.close()

    def abandon(self) -> None:
        try:
            self._brokers.abandon()
        finally:
            self.coordinator.abandon()

    @property
    def acls(self) -> RemoteAcls:
        """The brokers' ACLs."""
        self.check_open()
        return RemoteAcls(self._brokers)

    @property
    def users(self) -> RemoteUsers:
        """The brokers' users."""
        self.check_open()
        return RemoteUsers(self._brokers)

    @property
    def share_groups(self) -> RemoteShareGroups:
        """The brokers' share groups, to look at."""
        self.check_open()
        return RemoteShareGroups(self._brokers, self._metadata)

    @property
    def quotas(self) -> RemoteQuotas:
        """The brokers' quotas."""
        self.check_open()
        return RemoteQuotas(self._brokers)

    # -- what only a log's owner offers --------------------------------------------------------------------

    @property
    def share_coordinator(self) -> ShareCoordinator:
        self.check_open()
        if self._brokers.reaches_owner:
            return self._share_coordinator
        if self._queues is None:
            from .queues import BrokerQueues

            self._queues = BrokerQueues(
                self._brokers,
                self._metadata,
                self.coordinator.coordinators,
                self.appenders,
                lambda topic: self.topic_admin.create_topic(topic, 1, KEPT_FOREVER, exist_ok=True),
            )
        return self._queues

    @property
    def transactions(self) -> RemoteTransactions:
        self.check_open()
        return self._transactions

    def stored_transactions(self) -> dict[str, TransactionMetadata]:
        return self.transactions.describe_all()

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        return self.transactions.producers(partitions)

    def share_reader(self) -> NoReturn:
        self.check_open()
        raise UnsupportedByBackend(
            "brokers do not tell which jobs are locked or were delivered before: look at the log's directory"
        )

    @property
    def maintenance(self) -> LogCalls:
        self.check_open()
        if self._brokers.reaches_owner:
            return self._maintenance
        raise UnsupportedByBackend(
            "recovery, flush, reopen, compact and backup need the log's directory: open that, or use the "
            "command line on the broker's machine. A topic's flush_messages and flush_ms say when its broker "
            "makes records durable, and brokers compact by themselves (min_cleanable_dirty_ratio)"
        )

    def health(self) -> Health:
        self.check_open()
        if self._brokers.reaches_owner:
            return self._maintenance.health()
        raise UnsupportedByBackend("health is not available over the wire: see the brokers' metrics")


def _checked(settings: Mapping[str, Any], address: str) -> ClientSettings:
    """Raises UnknownSetting, InvalidSetting; UnsupportedByBackend for a setting of a log directory."""
    for name in settings:
        of_log = LogSettings.resolved(name, None) or TopicSettings.resolved(name, None)
        if of_log is not None and ClientSettings.resolved(name, None) is None:
            raise UnsupportedByBackend(
                f"{name} is a setting of the log itself, which the brokers keep: pass it to `embedlog "
                "serve`, or to create_topic and alter_topic for one topic"
            )
    return client_settings(settings, address)
