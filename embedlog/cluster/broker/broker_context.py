"""What the request handlers of a broker share: the log, the groups, the cluster, the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from ...errors import EmbedlogError, TopicNotFound
from ...groups.coordinator import GroupCoordinator
from ...groups.share_coordinator import ShareGroupCoordinator
from ...groups.transaction_coordinator import TransactionCoordinator
from ...model import TopicPartition
from ...partition import Partition
from ...runtime.locks import ReentrantLock
from ...security.principal import Principal
from ...store.store import Store
from ...wire.error_codes import ErrorCode
from ..coordination import BrokerAddress, Coordination
from ..coordination.producer_id_block import ProducerIdBlock
from ..network.close_reasons import CloseConnection
from ..network.connection import Connection
from ..settings.broker_settings import BrokerSettings
from .access.access import Access
from .api_errors import ApiError, error_code_for
from .executors import Executors
from .group_settings import GroupConfigs
from .meter import Meter
from .peers.broker_channel import BrokerClient
from .peers.transaction_permission import TransactionPermissions
from .usage import Usage, current

if TYPE_CHECKING:
    from .access.security import BrokerSecurity

_P = ParamSpec("_P")
_T = TypeVar("_T")


Handler: TypeAlias = Callable[["RequestContext", Any], Any]
"""Answers a request with a response, a future of one, or None (a produce request with acks=0)."""


class RequestContext(NamedTuple):
    """A request's API version, its sender, and what it uses of quotas if some apply."""

    version: int
    client_id: str
    connection: Connection
    principal: Principal
    usage: Usage | None = None


class Faults(Protocol):
    """What a test has injected into a broker (injected_faults.py)."""

    def around(self, broker: BrokerContext, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The handlers, each wrapped by the faults of its API."""

    def release(self) -> None:
        """Send the responses that are delayed."""


class BrokerContext:
    """One broker's parts. Handlers know these and not each other.

    Args:
        executors: run what a processor must not do itself.
        transactions: the coordinator; None for a log whose owner serves its tools alone.
        shares: gives the coordinator of share groups; None in a cluster.
        meter: counts requests and records; None to count nothing.
        security: what is known of clients; None on the socket of a log's owner, whose clients may do
            everything.
        faults: those of a test.
    """

    def __init__(
        self,
        store: Store,
        groups: GroupCoordinator,
        coordination: Coordination,
        settings: BrokerSettings,
        executors: Executors,
        transactions: TransactionCoordinator | None,
        meter: Meter | None = None,
        shares: Callable[[], ShareGroupCoordinator] | None = None,
        security: BrokerSecurity | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.store = store
        self.groups = groups
        self.transactions = transactions
        self.permissions: TransactionPermissions | None = None
        if transactions is not None:
            client = BrokerClient(settings.inter_broker_client_config)
            self.permissions = TransactionPermissions(store, coordination, transactions, client)
        self.coordination = coordination
        self.settings = settings
        self.meter = meter
        self.users = None if security is None else security.users
        self.authenticator = None if security is None else security.authenticator
        self.access = None if security is None else security.access
        self.quotas = None if security is None else security.quotas
        self.shares = shares
        self.is_stopping = False  # set when the broker begins to close
        self.faults = faults
        self.group_configs = GroupConfigs(store, lambda: self.settings)
        self.dynamic_settings: dict[str, Any] = {}  # changed since the start
        self.topic_requests_lock = ReentrantLock()  # held by requests that change topics
        self._initial_settings = settings
        self._executors = executors
        self.producer_ids = ProducerIdBlock(coordination)
        self._topic_names: dict[bytes, str] = {}  # replaced as a whole, never changed
        self._topic_names_version = -1  # the catalog's `changes` that they are from

    def close(self) -> None:
        """Ask other brokers nothing more."""
        if self.permissions is not None:
            self.permissions.close()

    def run_blocking(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run it in another thread."""
        return _submit(self._executors.io, work, *args, **kwargs)

    def run_large(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run it in the thread for large requests, after those before it."""
        return _submit(self._executors.large, work, *args, **kwargs)

    def run_conversion(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run it in the thread that converts for old clients."""
        return _submit(self._executors.converter, work, *args, **kwargs)

    def led_partition(self, topic: str, number: int, leader_epoch: int = -1) -> Partition:
        """A partition that this broker leads, in the client's current leader epoch (-1: it sent none).

        Raises TopicNotFound, PartitionNotFound, Closed, ApiError.
        """
        partition = self.store.partition(topic, number)
        self.check_led(partition, leader_epoch)
        return partition

    def check_led(self, partition: Partition, leader_epoch: int) -> None:
        """Raises ApiError unless this broker leads the partition in that leader epoch (-1: in any)."""
        if not self.coordination.leads(partition.name):
            raise not_leader()
        if leader_epoch < 0:
            return
        current = partition.log.current_epoch
        if leader_epoch < current:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {current}, not {leader_epoch}"
            )
        if leader_epoch > current:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {current}, not {leader_epoch} yet"
            )

    def missing_code(self, name: TopicPartition) -> ErrorCode:
        """The error code for a partition that does not exist; NONE if it does."""
        try:
            self.store.partition(*name)
        except EmbedlogError as error:
            return error_code_for(error)
        return ErrorCode.NONE

    def check_wanted(self, connection: Connection) -> None:
        """Raises CloseConnection if no client waits for the answer of a long request any more."""
        if self.is_stopping:
            raise CloseConnection("the broker is shutting down")
        if connection.half_closed:
            raise CloseConnection("the client has gone", logging.DEBUG)

    def access_of(self, connection: Connection, api: str) -> Access | None:
        """What a connection's requests may do; None: everything."""
        if self.access is None:
            return None
        return self.access.of(connection.principal, connection.host, api)

    def brokers_for(self, connection: Connection) -> list[BrokerAddress]:
        """The live brokers, at the listener that a client came through; without those that do not have it."""
        addresses = [broker.at(connection.listener.name) for broker in self.coordination.brokers()]
        return [broker for broker in addresses if broker is not None]

    def queue_groups(self) -> set[str]:
        """The share groups that have begun to read a topic, those of the library's queues included."""
        return set() if self.shares is None else {group for group, _ in self.shares().list_share_groups()}

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, 16 bytes. Raises TopicNotFound."""
        return self.store.topic(topic).uuid

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id; None if there is none, or it has been deleted."""
        name = self._topic_names.get(topic_id)
        if name is not None and self._has_id(name, topic_id):
            return name
        changes = self.store.catalog.changes
        if changes != self._topic_names_version:
            # Topics change under the lock: names read while another thread holds it are not cached.
            locked = self.store.topics_lock.acquire(blocking=False)
            try:
                self._topic_names = {self.topic_id(name): name for name in self.store.topics()}
                self._topic_names_version = changes if locked else -1
            except TopicNotFound:  # deleted meanwhile
                self._topic_names_version = -1
            finally:
                if locked:
                    self.store.topics_lock.release()
        return self._topic_names.get(topic_id)

    def check_request_size(self, partitions: int) -> None:
        """Raises ApiError if one request must not create that many partitions."""
        limit = self.settings.max_partitions_per_request
        if partitions > limit:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the request would create {partitions:,} partitions; one request may create {limit:,} "
                "(max.partitions.per.request)",
            )

    def check_room_for(self, partitions: int) -> None:
        """Raises ApiError if there is no room for that many more partitions."""
        if len(self.store.partitions()) + partitions > self.settings.max_partitions:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions:,} more partitions would be more than {self.settings.max_partitions:,} in all "
                "(max.partitions)",
            )

    def alter_settings(self, dynamic_settings: Mapping[str, Any]) -> None:
        """Replace the dynamic settings; all others get their initial values back. Until the broker stops.

        Parts that read their settings once, at the start, are not affected.
        Raises UnknownSetting, InvalidSetting.
        """
        self.settings = self._initial_settings.with_changes(dynamic_settings)
        self.dynamic_settings = dict(dynamic_settings)
        if self.quotas is not None:
            self.quotas.max_creation_rate = self.settings.max_connection_creation_rate

    def initial_value(self, name: str) -> Any:
        """A setting's value at the start of the broker."""
        return getattr(self._initial_settings, name)

    def _has_id(self, name: str, topic_id: bytes) -> bool:
        try:
            return self.topic_id(name) == topic_id
        except TopicNotFound:
            return False


def _submit(executor: Executor, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Its time counts for the client whose request this thread works on."""
    usage = current()
    if usage is None:
        return executor.submit(work, *args, **kwargs)
    return executor.submit(lambda: usage.run(work, *args, **kwargs))


def not_leader() -> ApiError:
    """The error for a partition that another broker leads."""
    return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads this partition")


def internal_topic(topic: str) -> ApiError:
    """The error for a change to one of `INTERNAL_TOPICS`."""
    return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker writes to {topic}")
