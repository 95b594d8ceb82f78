"""The brokers of a cluster: their addresses, connections to them, and retries.

A request has a connection to itself for as long as it takes; idle connections are kept and reused. So a
request that waits (a fetch, a join) does not delay others.

Attempts that failed by a broken connection or by an error code that Kafka calls retriable (`Retry`) are
repeated until the deadline, after a pause that doubles up to a second. A caller whose request must not be
executed twice has to ensure that itself.

Here alone is known which brokers can be reached. A broker to which connecting fails is left alone for a
moment, which doubles up to a second (Kafka's reconnect.backoff): until then requests to it fail at once. One
that is connected but does not answer counts as away, too: what any broker can answer, another one is asked
after `_ANSWER_S`. `begun` and `can_reach` connect in another thread, so a broker that is away delays no
request that has others to ask.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ...errors import BrokerUnavailable, Closed, EmbedlogError, ForkedHandle, RequestTimedOut, TlsFailed
from ...runtime.locks import Lock
from ...runtime.wakeups import OneShotEvent
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
_ANSWER_S: Final = 1.0  # after that, another broker is asked
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0
_REACH_S: Final = 0.25

_logger = logging.getLogger(__name__)


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


class Asking(Protocol):
    """Whose turn the requests of a thread belong to: `turns.Turns`."""

    def ask_all(self, address: Address, requests: Sequence[Request], response: type[R]) -> list[R]:
        """As `Brokers.ask_all`, but what takes long fails now and goes on."""

    def is_late(self, address: Address) -> bool:
        """Whether a request to this broker has no response yet."""


class _Away(NamedTuple):
    """A broker that cannot be reached: why, until when connecting is not tried, and how long that is."""

    error: EmbedlogError
    until: float
    pause_s: float


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self._brokers.give_back(self._connection)
            return
        self._brokers.drop(self._connection)
        if isinstance(error, RequestTimedOut):
            self._brokers.note_away(self._address, error)


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
        self._away: dict[Address, _Away] = {}
        self._answered: set[Address] = set()  # since they were away last
        self._dials: dict[Address, tuple[OneShotEvent, float]] = {}  # other threads connect, since when
        self._of_thread = threading.local()
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

    def addresses_by_node(self) -> dict[int, Address]:
        """The known brokers of the cluster, by id."""
        return self._nodes

    def nodes(self) -> list[Address]:
        """All known brokers of the cluster."""
        return list(self._nodes.values())

    def addresses(self) -> list[Address]:
        """The known brokers and the bootstrap servers; those that are away come last."""
        return sorted(dict.fromkeys([*self._nodes.values(), *self._bootstrap]), key=self._away.__contains__)

    # -- asking ------------------------------------------------------------------------------------------

    @property
    def turns(self) -> Asking | None:
        """Whose turn this thread's requests belong to; None if they may wait."""
        return getattr(self._of_thread, "turns", None)

    @turns.setter
    def turns(self, turns: Asking | None) -> None:
        self._of_thread.turns = turns

    def ask(self, address: Address, request: Request, response: type[R], deadline: float) -> R:
        """Send a request to a broker, once, within request_timeout_ms. Raises as `Connection.exchange`."""
        return self.ask_all(address, [request], response, deadline)[0]

    def ask_all(
        self, address: Address, requests: Sequence[Request], response: type[R], deadline: float
    ) -> list[R]:
        """As `ask`, of several requests, all of which are sent before the first response is received."""
        if (turns := self.turns) is not None:
            return turns.ask_all(address, requests, response)
        limit = self.limit(deadline)
        with self.connection(address, limit) as connection:
            for request in requests:
                connection.send(request, limit)
            return [connection.receive(response, limit) for _ in requests]

    def ask_any(self, request: Request, response: type[R], deadline: float) -> R:
        """Send a request to the brokers in turn until one responds. Raises BrokerUnavailable.

        A broker has a second to respond before the next one is asked. If none does so soon, each has
        request_timeout_ms.
        """
        failures: dict[Address, BrokerUnavailable] = {}
        untried = self.addresses()
        limit_s = _ANSWER_S if len(untried) > 1 else math.inf
        if (turns := self.turns) is not None:
            untried.sort(key=turns.is_late)
            limit_s = math.inf  # each has the turn's patience
        while untried:
            slow = []
            for address in untried:
                try:
                    return self.ask(address, request, response, min(deadline, time.monotonic() + limit_s))
                except BrokerUnavailable as error:
                    self.check_open()
                    failures[address] = error
                    if isinstance(error, RequestTimedOut) and limit_s is not math.inf:
                        slow.append(address)
            untried, limit_s = slow, math.inf
        first = next(iter(failures.values()))
        if len(failures) == 1:
            raise first
        kinds = {type(failure) for failure in failures.values()}
        kind = kinds.pop() if len(kinds) == 1 else BrokerUnavailable
        texts = "; ".join(map(str, failures.values()))
        raise kind(f"{self.path}: no broker responds: {texts}") from first

    def retried(self, attempt: Callable[[float], T], timeout_ms: int | None = None) -> T:
        """The result of attempt(deadline), retried while it raises Retry or BrokerUnavailable.

        timeout_ms: how long in all, default_api_timeout_ms by default. Raises the last error. In a consumer's
        turn there is one attempt: later turns are the others.
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
                if self.turns is not None:
                    raise BrokerUnavailable(str(again)) from again.error
                error = again.error
            except BrokerUnavailable as lost:
                if self.turns is not None:
                    raise
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
        self._busy, self._idle, self._dials = set(), {}, {}

    def take(self, address: Address, deadline: float) -> Connection:
        """A connection for one thread alone: an idle one, or a new one. Raises as `Connection`, Closed."""
        self.check_open()
        connection = self._take_idle(address)
        if connection is None:
            connection = self._connect(address, min(deadline, time.monotonic() + _CONNECT_S))
        with self._lock:
            self._busy.add(connection)
        if self._closing.is_set():
            self.drop(connection)
            self.check_open()
        return connection

    def take_soon(self, address: Address, wait_s: float) -> Connection:
        """As `take`, but another thread connects, and it waits for that for wait_s at most."""
        self.begun(address, wait_s)
        connection = self._take_idle(address)
        if connection is None:
            error = self.why_away(address)
            if error is None:
                raise BrokerUnavailable(f"broker {shown_address(address)} has not let anybody connect yet")
            raise type(error)(str(error))
        with self._lock:
            self._busy.add(connection)
        return connection

    def begun(self, address: Address, wait_s: float) -> bool:
        """Whether there is an idle connection within wait_s, of the time when connecting has begun.

        It goes on in another thread, unless the broker was away a moment ago. Raises Closed.
        """
        self.check_open()
        connection = self._take_idle(address)
        if connection is not None:
            self._put_idle(connection)
            return True
        now = time.monotonic()
        away = self._away.get(address)
        if away is not None and now < away.until:
            return False
        done = OneShotEvent()
        with self._lock:
            current, since = self._dials.setdefault(address, (done, now))
        if current is done:
            dial = threading.Thread(
                target=self._dial, args=(address, done), name="embedlog-connect", daemon=True
            )
            dial.start()
        return current.wait(max(since + wait_s - now, 0)) and address not in self._away

    def can_reach(self, address: Address) -> bool:
        """Whether a broker answers, as far as is known: who has not been asked yet is connected to.

        One that was away is connected to again in another thread, and can be reached once that is done.
        """
        if address in self._away:
            return self.begun(address, 0)
        connection = self._take_idle(address)
        if connection is not None:
            self._put_idle(connection)
        return address in self._answered or self.begun(address, _REACH_S)

    def why_away(self, address: Address) -> EmbedlogError | None:
        """Why a broker cannot be reached; None if it can, as far as is known."""
        away = self._away.get(address)
        return None if away is None else away.error

    @property
    def has_owner(self) -> bool:
        """Whether it is a log's owner, which its clients may start again."""
        return self._on_lost is not None

    def may_pass(self, error: BrokerUnavailable) -> bool:
        """Whether a broker that failed so may answer later by itself."""
        return not (self.has_owner or isinstance(error, NotKafka | TlsFailed))

    def note_away(self, address: Address, error: EmbedlogError) -> None:
        """A broker does not answer. Connecting is not tried again for a moment, unless it is a log's owner,
        which its clients may start again."""
        self._answered.discard(address)
        away = self._away.get(address)
        pause_s = 0.0
        if not self.has_owner:
            pause_s = min(away.pause_s * 2 if away else _FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        self._away[address] = _Away(error, time.monotonic() + pause_s, pause_s)

    def _note_answer(self, address: Address) -> None:
        self._answered.add(address)
        self._away.pop(address, None)

    def _connect(self, address: Address, deadline: float) -> Connection:
        away = self._away.get(address)
        if away is not None and time.monotonic() < away.until:
            raise type(away.error)(str(away.error))
        try:
            connection = Connection(address, self.settings, deadline, self._security)
        except BrokerUnavailable as error:
            self.note_away(address, error)
            raise
        self._note_answer(address)
        self.reaches_owner = connection.is_owner
        return connection

    def _dial(self, address: Address, done: OneShotEvent) -> None:
        try:
            self.give_back(self._connect(address, time.monotonic() + _CONNECT_S))
        except BrokerUnavailable as error:
            _logger.info("%s", error)
        except EmbedlogError as error:
            self.note_away(address, error)
        except Exception as error:
            self.note_away(address, BrokerUnavailable(f"broker {shown_address(address)}: {error}"))
        finally:
            with self._lock:
                self._dials.pop(address, None)
            done.set()

    def _take_idle(self, address: Address) -> Connection | None:
        """An idle connection that can be used; closes those that cannot."""
        oldest = time.monotonic() - self._idle_s
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None or (connection.idle_since > oldest and connection.is_usable()):
                return connection
            if connection.idle_since > oldest:
                self._answered.discard(address)  # the broker has closed it
            connection.close()

    def _put_idle(self, connection: Connection) -> None:
        with self._lock:
            if not self._closing.is_set():
                self._idle.setdefault(connection.address, []).append(connection)
                return
        connection.close()

    def give_back(self, connection: Connection) -> None:
        """The connection is idle again."""
        connection.idle_since = time.monotonic()
        if connection.address in self._away:
            self._note_answer(connection.address)
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
