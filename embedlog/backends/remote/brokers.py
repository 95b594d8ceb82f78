"""The brokers of a cluster: their addresses, connections to them, and retries.

A request has a connection to itself for as long as it takes; idle connections are kept and reused. So a
request that waits (a fetch, a join) does not delay others.

Attempts that failed by a broken connection or by an error code that Kafka calls retriable (`Retry`) are
repeated until the deadline, after a pause that doubles up to a second. A caller whose request must not be
executed twice has to ensure that itself.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from ...errors import BrokerUnavailable, Closed, EmbedlogError, ForkedHandle, TlsFailed
from ...runtime.locks import Lock
from ...wire.error_meanings import known_code
from ...wire.messages import Request, Response
from ...wire_client.connection import Connection, NotKafka, security_of
from ...wire_client.error_mapping import error_of
from ...wire_client.settings import Address, ClientSettings, shown_address

T = TypeVar("T")
R = TypeVar("R", bound=Response)

_MAX_PAUSE_S: Final = 1.0
_MAX_PAUSE_NEARBY_S: Final = 0.05  # if its brokers are processes of this machine
_CONNECT_S: Final = 10.0


class Retry(Exception):
    """An attempt failed and may be retried; `error` is raised after the deadline."""

    def __init__(self, error: EmbedlogError) -> None:
        super().__init__(str(error))
        self.error = error


def check_code(
    code: int, subject: str, message: str | None = None, names: Mapping[str, str] | None = None
) -> None:
    """Raises Retry for a retriable code, the code's error for any other; nothing for 0.

    `message` is the broker's own message; `subject` and `names` are as in `error_of`.
    """
    if code:
        error = error_of(code, subject, message, names)
        error_code = known_code(code)
        if error_code is not None and error_code.retriable:
            raise Retry(error)
        raise error


class Use:
    """A context of `Brokers.connection`; a generator's would cost an append twice as much."""

    __slots__ = ("_address", "_brokers", "_connection", "_deadline")

    _connection: Connection

    def __init__(self, brokers: Brokers, address: Address, deadline: float) -> None:
        self._brokers = brokers
        self._address = address
        self._deadline = deadline

    def __enter__(self) -> Connection:
        self._connection = self._brokers.take(self._address, self._deadline)
        return self._connection

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._brokers.give_back(self._connection)
        else:
            self._brokers.drop(self._connection)


class Brokers:
    """Connections to the brokers of one cluster. Thread-safe.

    on_lost: called before each retry of a request that no broker answered, in the thread that asks. It may
    bring a broker back; what it raises is raised to the caller.
    """

    def __init__(
        self,
        path: str,
        bootstrap: Iterable[Address],
        settings: ClientSettings,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.settings = settings
        self.reaches_owner = False  # whether the peer connected to last is a log's owner
        self._on_lost = on_lost
        self._max_pause = _MAX_PAUSE_S if on_lost is None else _MAX_PAUSE_NEARBY_S
        self._bootstrap = tuple(bootstrap)
        self._lock = Lock()
        self._idle: dict[Address, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._nodes: dict[int, Address] = {}
        self._closing = threading.Event()
        self._forked = False
        self._idle_s = settings.connections_max_idle_ms / 1000
        self._security = security_of(settings)

    # -- who is there ------------------------------------------------------------------------------------

    def learn(self, nodes: dict[int, Address]) -> None:
        """Set the cluster's brokers."""
        if nodes:
            self._nodes = nodes

    def node(self, node_id: int) -> Address:
        """A broker's address. Raises Retry."""
        address = self._nodes.get(node_id)
        if address is None:
            raise Retry(BrokerUnavailable(f"{self.path}: broker {node_id} is not there"))
        return address

    def nodes(self) -> list[Address]:
        """All known brokers of the cluster."""
        return list(self._nodes.values())

    def addresses(self) -> list[Address]:
        """The known brokers and the bootstrap servers."""
        return list(dict.fromkeys([*self._nodes.values(), *self._bootstrap]))

    # -- asking ------------------------------------------------------------------------------------------

    def ask(self, address: Address, request: Request, response: type[R], deadline: float) -> R:
        """Send a request to a broker, once, within request_timeout_ms. Raises as `Connection.exchange`."""
        limit = self.limit(deadline)
        with self.connection(address, limit) as connection:
            return connection.exchange(request, response, limit)

    def ask_any(self, request: Request, response: type[R], deadline: float) -> R:
        """Send a request to the brokers in turn until one responds. Raises BrokerUnavailable."""
        failures = []
        for address in self.addresses():
            try:
                return self.ask(address, request, response, deadline)
            except BrokerUnavailable as error:
                self.check_open()
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        kinds = {type(failure) for failure in failures}
        kind = kinds.pop() if len(kinds) == 1 else BrokerUnavailable
        raise kind(f"{self.path}: no broker responds: {'; '.join(map(str, failures))}") from failures[0]

    def retried(self, attempt: Callable[[float], T], timeout_ms: int | None = None) -> T:
        """The result of attempt(deadline), retried while it raises Retry or BrokerUnavailable.

        timeout_ms: how long in all, default_api_timeout_ms by default. Raises the last error.
        """
        within = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + within / 1000
        pause = self.settings.retry_backoff_ms / 1000
        while True:
            self.check_open()
            error: EmbedlogError
            try:
                return attempt(deadline)
            except (NotKafka, TlsFailed):
                self.check_open()
                raise
            except Retry as again:
                error = again.error
            except BrokerUnavailable as lost:
                error = lost
                if self._on_lost is not None:
                    self.check_open()
                    self._on_lost()
            self.check_open()
            if time.monotonic() + pause >= deadline:
                raise error
            self.pause(pause)
            pause = min(max(pause * 2, 0.001), self._max_pause)

    def pause(self, seconds: float) -> None:
        """Sleep, unless the log is being closed."""
        self._closing.wait(seconds)

    def limit(self, deadline: float) -> float:
        """The deadline of a request that is sent now."""
        return min(deadline, time.monotonic() + self.settings.request_timeout_ms / 1000)

    # -- connections -------------------------------------------------------------------------------------

    def connection(self, address: Address, deadline: float) -> Use:
        """Exclusive use of a connection to a broker. It is closed after an exception."""
        return Use(self, address, deadline)

    def check_open(self) -> None:
        """Raises Closed, ForkedHandle."""
        if self._forked:
            raise ForkedHandle(
                f"{self.path} was opened before this process was forked, and the handle is its parent's: "
                "open it again here"
            )
        if self._closing.is_set():
            raise Closed(f"the log {self.path} is closed")

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        if self._forked:
            return
        self._closing.set()
        with self._lock:
            idle = [connection for waiting in self._idle.values() for connection in waiting]
            self._idle.clear()
            busy = list(self._busy)
        for connection in busy:
            connection.abort()  # its user closes it
        for connection in idle:
            connection.abort()
            connection.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets without waiting for a lock."""
        self._forked = True
        self._lock = Lock()
        for connection in (*self._busy, *itertools.chain(*self._idle.values())):
            connection.close()
        self._busy, self._idle = set(), {}

    def take(self, address: Address, deadline: float) -> Connection:
        """A connection for one thread alone: an idle one, or a new one. Raises as `Connection`, Closed."""
        self.check_open()
        oldest = time.monotonic() - self._idle_s
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                limit = min(deadline, time.monotonic() + _CONNECT_S)
                connection = Connection(address, self.settings, limit, self._security)
                self.reaches_owner = connection.is_owner
                break
            if connection.idle_since > oldest and connection.is_usable():
                break
            connection.close()
        with self._lock:
            self._busy.add(connection)
        if self._closing.is_set():
            self.drop(connection)
            self.check_open()
        return connection

    def give_back(self, connection: Connection) -> None:
        """The connection is idle again."""
        connection.idle_since = time.monotonic()
        surplus = [connection]
        with self._lock:
            self._busy.discard(connection)
            if not self._closing.is_set():
                idle = self._idle.setdefault(connection.address, [])
                # The connection returned last is taken first, so surplus ones stay at the front, and expire.
                surplus = (
                    idle[:1] if idle and idle[0].idle_since < connection.idle_since - self._idle_s else []
                )
                idle[:] = [*idle[len(surplus) :], connection]
        for expired in surplus:
            expired.close()

    def drop(self, connection: Connection) -> None:
        """Close a connection that is in use."""
        connection.close()
        with self._lock:
            self._busy.discard(connection)

    def __repr__(self) -> str:
        return f"<Brokers {', '.join(map(shown_address, self.addresses()))}>"
