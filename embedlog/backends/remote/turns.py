"""The requests of a consumer's turns, which wait for no broker for long.

Within a turn (`Brokers.turns`), a request waits PATIENCE_S at most: for a connection, which another thread
makes, and for its response. Then it fails with BrokerUnavailable, but goes on: its connection is kept, and
the same request of a later turn takes the response. Until that is here, requests to this broker fail at once.
So a broker that is away or stopped takes time from a poll once, and a slow one is only slow.

A response that a request of its own did not wait for is kept for a moment, among the last few.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast

from ...errors import BrokerUnavailable, RequestTimedOut
from ...wire.messages import Request, Response
from ...wire_client.connection import Connection
from ...wire_client.settings import Address, shown_address
from .brokers import Brokers

R = TypeVar("R", bound=Response)

PATIENCE_S: Final = 0.25
_KEPT: Final = 16


class _Pending(NamedTuple):
    """Requests that were sent, and what has been received of their responses."""

    connection: Connection
    requests: Sequence[Request]
    response: type[Response]
    responses: list[Any]
    since: float


class Turns:
    """Implements `port.Turns`, over the brokers of a cluster."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._pending: dict[Address, _Pending] = {}
        self._answered: deque[tuple[Address, _Pending]] = deque(maxlen=_KEPT)
        self._until = 0.0
        self.answers = 0

    @contextmanager
    def turn(self, wait_s: float) -> Iterator[None]:
        self._until = time.monotonic() + max(wait_s, PATIENCE_S)
        before = self._brokers.turns
        self._brokers.turns = self
        try:
            yield
        finally:
            self._brokers.turns = before

    def may_pass(self, error: BrokerUnavailable) -> bool:
        return self._brokers.turns is self and self._brokers.may_pass(error)

    @property
    def patience_s(self) -> float:
        return self._brokers.settings.default_api_timeout_ms / 1000

    def is_late(self, address: Address) -> bool:
        return address in self._pending

    def waiting(self) -> list[Connection]:
        """The connections on which responses are to come."""
        return [pending.connection for pending in self._pending.values()]

    def look(self, ready: Collection[Connection]) -> bool:
        """Take what has come on these. Returns whether there are responses, or a broker has failed."""
        some = False
        for address in [at for at, pending in self._pending.items() if pending.connection in ready]:
            try:
                pending = self._whole(address, 0.0)
            except BrokerUnavailable:
                some = True
                continue
            if pending is not None:
                some = True
                self._answered.append((address, pending))
        self.answers += some
        return some

    def ask_all(self, address: Address, requests: Sequence[Request], response: type[R]) -> list[R]:
        """The responses to these requests, of now or of an earlier turn. Raises BrokerUnavailable."""
        for index, (answering, answered) in enumerate(self._answered):
            if answering == address and answered.requests == requests:
                del self._answered[index]
                return cast(list[R], answered.responses)
        patience_s = PATIENCE_S
        pending = self._pending.get(address)
        if pending is not None:
            patience_s = 0.0
            if pending.requests != requests:
                whole = self._whole(address, 0.0)
                if whole is None:
                    raise self._late(address)
                self._answered.append((address, whole))
                self.answers += 1
                pending, patience_s = None, PATIENCE_S
        until = min(self._until, time.monotonic() + patience_s)
        if pending is None:
            self._send(address, requests, response, until)
        whole = self._whole(address, until)
        if whole is None:
            raise self._late(address)
        return cast(list[R], whole.responses)

    def forget(self) -> None:
        self._answered.clear()
        pending, self._pending = self._pending, {}
        for one in pending.values():
            self._brokers.drop(one.connection)

    close = forget

    def _send(
        self, address: Address, requests: Sequence[Request], response: type[Response], until: float
    ) -> None:
        connection = self._brokers.take_soon(address, until - time.monotonic())
        since = time.monotonic()
        try:
            for request in requests:
                connection.send(request, max(until, since + PATIENCE_S))
        except BaseException:
            self._brokers.drop(connection)
            raise
        self._pending[address] = _Pending(connection, list(requests), response, [], since)

    def _whole(self, address: Address, until: float) -> _Pending | None:
        """What is pending at a broker, as soon as all responses are here; None if they are not by then."""
        pending = self._pending[address]
        try:
            while len(pending.responses) < len(pending.requests):
                if not pending.connection.has_response(until):
                    late_s = time.monotonic() - pending.since
                    if late_s < self._brokers.settings.request_timeout_ms / 1000:
                        return None
                    raise RequestTimedOut(f"{pending.connection.name} did not respond in time")
                pending.responses.append(pending.connection.receive(pending.response, until))
        except BaseException as error:
            del self._pending[address]
            self._brokers.drop(pending.connection)
            if isinstance(error, RequestTimedOut):
                self._brokers.note_away(address, error)
            raise
        del self._pending[address]
        self._brokers.give_back(pending.connection)
        return pending

    def _late(self, address: Address) -> BrokerUnavailable:
        late_s = time.monotonic() - self._pending[address].since
        return BrokerUnavailable(f"broker {shown_address(address)} has not responded for {late_s:.1f} s")
