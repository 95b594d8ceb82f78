"""Requests to another broker of the cluster, over a client's connection.

    add(key, item) -> queue -> the channel's thread: all that are due, in one request -> done, or due again

A channel is of one broker and for one kind of request. What gathers while a request is under way goes with
the next one. An item that the request leaves unanswered is due again after a pause that doubles up to a
second, for as long as it takes; items are independent of each other. The queue is bounded.

Security: the connection is a client's, to the address that the broker advertises to others, with the settings
in the file that inter_broker_client_config names: of TLS, and of the user as whom brokers ask each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from ....errors import BrokerUnavailable, EmbedlogError, RequestTimedOut
from ....runtime.locks import ConditionLock, Lock
from ....wire.messages import Request, Response
from ....wire_client.client_config import CLIENT_CONFIG, client_settings
from ....wire_client.connection import Connection, security_of
from ....wire_client.settings import Address

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R", bound=Response)

_TIMEOUT_S: Final = 10.0  # of a request: a broker that is stopped, or a cable that is cut
_MAX_QUEUED: Final = 10_000
_MAX_AT_ONCE: Final = 1_000
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0


class BrokerClient:
    """What a broker is as a client of others. Thread-safe.

    config: the file with its settings; "" for plain connections. Raises InvalidArgument, InvalidSetting.
    """

    def __init__(self, config: str = "") -> None:
        self.settings = client_settings({CLIENT_CONFIG: config}, client_id="embedlog-broker")
        self.security = security_of(self.settings)


class BrokerConnection:
    """A connection to a broker wherever it is now; connects when it is used. For one thread, but `abort`."""

    def __init__(self, address: Callable[[], Address | None], client: BrokerClient | None = None) -> None:
        self._address = address
        self._client = client or BrokerClient()
        self._connection: Connection | None = None

    def exchange(self, request: Request, response: type[R]) -> R:
        """Send a request, which may be executed twice. Raises BrokerUnavailable, UnsupportedByBackend."""
        deadline = time.monotonic() + _TIMEOUT_S
        address = self._address()
        if address is None:
            self.close()
            raise BrokerUnavailable("the broker is not registered now")
        connection = self._connection
        if connection is not None and (connection.address != address or not connection.is_usable()):
            self.close()
        reused = self._connection is not None
        try:
            return self._exchange(address, request, response, deadline)
        except RequestTimedOut:
            raise
        except BrokerUnavailable:
            if not reused:
                raise
        return self._exchange(address, request, response, deadline)  # the broker was started again

    def _exchange(self, address: Address, request: Request, response: type[R], deadline: float) -> R:
        if self._connection is None:
            client = self._client
            self._connection = Connection(address, client.settings, deadline, client.security)
        try:
            return self._connection.exchange(request, response, deadline)
        except BaseException:
            self.close()
            raise

    def abort(self) -> None:
        """Make a request that is under way fail. From any thread."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Queued(Generic[T]):
    """An item, and when it is to be sent."""

    __slots__ = ("attempts", "due", "item")

    def __init__(self, item: T) -> None:
        self.item = item
        self.attempts = 0
        self.due = 0.0


class BrokerChannel(Generic[K, T]):
    """A queue of items for one broker, and the thread that sends them. Thread-safe.

    Args:
        address: where the broker is; None while it is not registered.
        send: sends some of the items in the channel's thread. Returns the keys of those that are to be sent
            again. Raises EmbedlogError: all of them.
        client: as whom it connects.
    """

    def __init__(
        self,
        name: str,
        address: Callable[[], Address | None],
        send: Callable[[BrokerConnection, Mapping[K, T]], Collection[K]],
        client: BrokerClient | None = None,
    ) -> None:
        self._name = name
        self._send = send
        self._connection = BrokerConnection(address, client)
        self._changed = threading.Condition(ConditionLock())
        # Guarded by the condition's lock.
        self._queue: dict[K, _Queued[T]] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, key: K, item: T) -> bool:
        """Queue an item, in place of what has its key already unless that is equal. An item is done when the
        request with any that had its key is. False if the queue is full or closed."""
        with self._changed:
            queued = self._queue.get(key)
            if queued is not None:
                if queued.item != item:
                    self._queue[key] = _Queued(item)
                    self._changed.notify()
                return True
            if self._closed or len(self._queue) >= _MAX_QUEUED:
                return False
            self._queue[key] = _Queued(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
            return True

    def close(self) -> list[T]:
        """End the thread. Returns the items that are left."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            while thread.is_alive():  # it may be about to connect
                self._connection.abort()
                thread.join(0.1)
        self._connection.close()
        with self._changed:
            unsent = [queued.item for queued in self._queue.values()]
            self._queue.clear()
        return unsent

    def _run(self) -> None:
        while (batch := self._due()) is not None:
            again: Collection[K] = batch.keys()
            try:
                again = self._send(self._connection, {key: queued.item for key, queued in batch.items()})
            except EmbedlogError as error:
                logger.info("%s: %s", self._name, error)
            except Exception:
                logger.exception("%s: internal error", self._name)
            now = time.monotonic()
            with self._changed:
                for key, queued in batch.items():
                    if key not in again:
                        self._queue.pop(key, None)  # or what has replaced it meanwhile
                        continue
                    queued.due = now + min(_FIRST_PAUSE_S * 2**queued.attempts, _MAX_PAUSE_S)
                    queued.attempts = min(queued.attempts + 1, 10)

    def _due(self) -> dict[K, _Queued[T]] | None:
        """The next items to send, once there are some; None if the channel is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                batch: dict[K, _Queued[T]] = {}
                next_due = float("inf")
                for key, queued in self._queue.items():
                    if queued.due > now:
                        next_due = min(next_due, queued.due)
                    elif len(batch) < _MAX_AT_ONCE:
                        batch[key] = queued
                if batch:
                    return batch
                self._changed.wait(None if next_due == float("inf") else next_due - now)
            return None


class BrokerChannels(Generic[K, T]):
    """The channels to all other brokers for one kind of request. Thread-safe.

    kind: what the threads are called.
    """

    def __init__(
        self,
        kind: str,
        address: Callable[[int], Address | None],
        send: Callable[[int, BrokerConnection, Mapping[K, T]], Collection[K]],
        client: BrokerClient | None = None,
    ) -> None:
        self._client = client
        self._kind = kind
        self._address = address
        self._send = send
        self._lock = Lock()
        self._channels: dict[int, BrokerChannel[K, T]] = {}  # guarded by _lock
        self._closed = False  # guarded by _lock

    def add(self, broker: int, key: K, item: T) -> bool:
        """Queue an item for a broker, as `BrokerChannel.add`."""
        with self._lock:
            channel = self._channels.get(broker)
            if channel is None:
                if self._closed:
                    return False
                channel = self._channels[broker] = BrokerChannel(
                    f"embedlog-{self._kind}-{broker}",
                    lambda: self._address(broker),
                    lambda connection, items: self._send(broker, connection, items),
                    self._client,
                )
        return channel.add(key, item)

    def close(self) -> list[T]:
        """End all threads. Returns the items that are left. Idempotent."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
        return [item for channel in channels for item in channel.close()]
