"""What every handler of a broker works with: the log, its groups, the cluster, the settings."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from ..errors import TopicNotFound
from ..files.names import INTERNAL_TOPICS
from ..groups.coordinator import GroupCoordinator
from ..model import TopicPartition
from ..partition import Partition
from ..store.store import Store
from ..wire.error_codes import ErrorCode
from .connection import Connection
from .coordination import Coordination
from .meter import Meter
from .problems import ApiError
from .settings import BrokerSettings

_PRODUCER_IDS_AT_ONCE: Final = 1_000

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


Handler: TypeAlias = Callable[["RequestContext", Any], Any]
"""Answers a request: with a response, a future of one, or (a produce request with acks=0) with None."""


class RequestContext(NamedTuple):
    """A request's circumstances: its version, and who asks."""

    version: int
    client_id: str
    connection: Connection


class BrokerContext:
    """One broker's parts. Handlers know it, and not each other.

    Args:
        executor: where goes what waits for a disk or computes for long; nothing waits in a processor.
        in_turn: an executor of one thread, for requests so large that they would keep a processor from its
            other connections: one at a time, or together they would do so by the interpreter's lock.
        converter: an executor of one thread that converts answers for old clients: no other request waits for
            it, and only one conversion is in memory at a time.
        meter: counts; None where nobody wants to know.
    """

    def __init__(
        self,
        store: Store,
        groups: GroupCoordinator,
        coordination: Coordination,
        settings: BrokerSettings,
        executor: ThreadPoolExecutor,
        in_turn: ThreadPoolExecutor,
        converter: ThreadPoolExecutor,
        meter: Meter | None = None,
    ) -> None:
        self.store = store
        self.groups = groups
        self.coordination = coordination
        self.settings = settings
        self.meter = meter
        self.altered: dict[str, Any] = {}  # settings that were changed since the start
        self.topics_lock = threading.RLock()  # held by requests that change topics
        self._started_with = settings
        self._executor = executor
        self._in_turn = in_turn
        self._converter = converter
        self._ids_lock = threading.Lock()
        self._producer_ids = range(0)
        self._names: dict[bytes, str] = {}
        self._names_of = -1  # which of the catalog's changes they are of

    def offload(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have it done by another thread."""
        return self._executor.submit(work, *args, **kwargs)

    def in_turn(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have it done by the thread for what is large, behind the others."""
        return self._in_turn.submit(work, *args, **kwargs)

    def convert(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have it done by the thread that converts for old clients."""
        return self._converter.submit(work, *args, **kwargs)

    def partition(self, topic: str, number: int) -> Partition:
        """Raises TopicNotFound, PartitionNotFound, Closed."""
        return self.store.partition(topic, number)

    def led(self, topic: str, number: int, leader_epoch: int = -1) -> Partition:
        """A partition that this broker leads, in the epoch that the client knows (-1: it knows none).

        Raises TopicNotFound, PartitionNotFound, Closed, Refusal.
        """
        partition = self.partition(topic, number)
        if not self.leads(partition.name):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads this partition")
        check_epoch(partition, leader_epoch)
        return partition

    def leads(self, partition: TopicPartition) -> bool:
        """Whether this broker appends to the partition and answers for it."""
        return self.coordination.leads(partition)

    def is_internal(self, topic: str) -> bool:
        """Whether only the broker itself writes to it."""
        return topic in INTERNAL_TOPICS

    def new_producer_id(self) -> int:
        """One that nobody had before. Takes a block of them at a time. Raises StorageError."""
        with self._ids_lock:
            if not self._producer_ids:
                self._producer_ids = self.coordination.next_producer_ids(_PRODUCER_IDS_AT_ONCE)
            first, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
            return first

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, 16 bytes. Raises TopicNotFound."""
        return _uuid(self.store.topic(topic).topic_id)

    def topic_named(self, topic_id: bytes) -> str | None:
        """The name of the topic that has this id; None where there is none (any more)."""
        name = self._names.get(topic_id)
        if name is not None and self._has_id(name, topic_id):
            return name
        changes = self.store.catalog.changes
        if changes != self._names_of:
            # Topics are changed under the lock: what is read while somebody has it is not kept for long.
            settled = self.store.topics_lock.acquire(blocking=False)
            try:
                self._names = {_uuid(self.store.topic(name).topic_id): name for name in self.store.topics()}
                self._names_of = changes if settled else -1
            except TopicNotFound:  # deleted just now
                self._names_of = -1
            finally:
                if settled:
                    self.store.topics_lock.release()
        return self._names.get(topic_id)

    def check_request_size(self, partitions: int) -> None:
        """May one request create so many partitions? Raises Refusal."""
        limit = self.settings.max_partitions_per_request
        if partitions > limit:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the request would create {partitions:,} partitions; one request may create {limit:,} "
                "(max.partitions.per.request)",
            )

    def check_room_for(self, partitions: int) -> None:
        """May so many partitions be added? Raises Refusal."""
        there = len(self.store.partitions())
        if there + partitions > self.settings.max_partitions:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions:,} more partitions would be more than {self.settings.max_partitions:,} in all "
                "(max.partitions)",
            )

    def alter_settings(self, own: Mapping[str, Any]) -> None:
        """Have these settings, and all others as at the start, until the broker stops.

        Whose settings are read once, at the start, does not notice. Raises UnknownSetting, InvalidSetting.
        """
        self.settings = self._started_with.with_changes(own)
        self.altered = dict(own)

    def value_at_start(self, name: str) -> Any:
        """What a setting of the broker was when it started."""
        return getattr(self._started_with, name)

    def _has_id(self, name: str, topic_id: bytes) -> bool:
        try:
            return self.topic_id(name) == topic_id
        except TopicNotFound:
            return False


def check_epoch(partition: Partition, epoch: int) -> None:
    """Is the epoch that a client knows (-1: none) the current one? Raises Refusal."""
    if epoch < 0:
        return
    current = partition.current_epoch
    if epoch < current:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {current}, not {epoch}")
    if epoch > current:
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {current}, not {epoch} yet")


def then(before: Future[_T], step: Callable[[_T], _R]) -> Future[_R]:
    """A future of step(result), called in the thread that completes `before`.

    When it is cancelled, so is `before`: nobody waits for that any more.
    """
    after: Future[_R] = Future()

    def go_on(done: Future[_T]) -> None:
        if not after.set_running_or_notify_cancel():
            return
        try:
            result = step(done.result())
        except BaseException as error:
            after.set_exception(error)
        else:
            after.set_result(result)

    def give_up(done: Future[_R]) -> None:
        if done.cancelled():
            before.cancel()

    before.add_done_callback(go_on)
    after.add_done_callback(give_up)
    return after


def chained(before: Future[_T | Future[_T]]) -> Future[_T]:
    """A future of what `before` promises, or what its result does."""
    after: Future[_T] = Future()
    waits_for: list[Future[Any]] = [before]

    def go_on(done: Future[Any]) -> None:
        result: Any = None
        error = None
        try:
            result = done.result()
        except BaseException as found:
            error = found
        if isinstance(result, Future):
            waits_for[0] = result
            result.add_done_callback(go_on)
            if after.cancelled():
                result.cancel()
        elif after.set_running_or_notify_cancel():
            if error is None:
                after.set_result(result)
            else:
                after.set_exception(error)

    def give_up(done: Future[_T]) -> None:
        if done.cancelled():
            waits_for[0].cancel()

    before.add_done_callback(go_on)
    after.add_done_callback(give_up)
    return after


def gathered(futures: Sequence[Future[Any]]) -> Future[None]:
    """Completed when all of these are. Nothing is waited for."""
    all_done: Future[None] = Future()
    left = len(futures)
    lock = threading.Lock()

    def one_is_done(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last and all_done.set_running_or_notify_cancel():
            all_done.set_result(None)

    for future in futures:
        future.add_done_callback(one_is_done)
    return all_done


def _uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")
