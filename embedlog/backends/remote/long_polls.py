"""Long polls of several leaders at once: who has records for a waiter.

A poll that has not been answered is kept for the waiter's next wait, if that is for the same offsets. The
records of an answer are cached for the next fetches (fetching.py). A leader that is away, or is overdue with
its answer, concerns its own partitions alone: they are reported as if they had records, and their next
fetches tell why they have none.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ...errors import BrokerUnavailable
from ...model import TopicPartition
from ...wire.apis.fetch import FetchRequest, FetchResponse
from ...wire_client.connection import Connection, NotKafka
from ...wire_client.settings import Address
from ..port import Interrupt
from .brokers import Brokers, Retry
from .metadata import Metadata
from .turns import PATIENCE_S, Turns

MAX_WAIT_MS: Final = 30_000
_OVERDUE_S: Final = 1.0


class Fetches(Protocol):
    """What the polls are part of: `fetching.Fetching`."""

    def poll_request(
        self,
        positions: Mapping[TopicPartition, int],
        ids: Mapping[str, str],
        wait_ms: int,
        read_committed: bool,
    ) -> FetchRequest:
        """A long poll of wait_ms. ids: the topics'."""

    def cache(
        self,
        response: FetchResponse,
        ids: Mapping[str, str],
        positions: Mapping[TopicPartition, int],
        read_committed: bool,
        *,
        is_old: bool,
    ) -> bool:
        """Keep the records of a long poll for later fetches. Returns whether there are any, or an error.

        is_old: partitions without records may have some by now.
        """

    def expect_error(self, name: TopicPartition) -> None:
        """The partition is to be fetched from, whether or not it has records: that tells an error."""


class _Asked(NamedTuple):
    """What a leader is asked for: the offsets, the ids of their topics, and whether committed records."""

    positions: dict[TopicPartition, int]
    ids: dict[str, str]
    read_committed: bool


class _Poll(NamedTuple):
    """A request without an answer, which is due at a time."""

    connection: Connection
    asked: _Asked
    due: float


class LongPolls:
    """The polls of one waiter. For one thread at a time, but for `close`.

    turns: the waiter's other requests: it is woken by their responses, too.
    """

    def __init__(
        self, brokers: Brokers, metadata: Metadata, fetching: Fetches, turns: Turns | None = None
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._fetching = fetching
        self._turns = turns
        self._polls: dict[Address, _Poll] = {}
        self._wakers: tuple[socket.socket, socket.socket] | None = None

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: float,
        read_committed: bool,
        interrupt: Interrupt,
    ) -> bool:
        """Wait until a partition may have records: True. False at the timeout and if interrupted.

        Raises as `Metadata.view` if a topic is gone, NotKafka, TlsFailed, Closed.
        """
        until = time.monotonic() + timeout_ms / 1000
        while True:
            self._brokers.check_open()
            if interrupt.is_set:
                return False
            if self._begin(positions, until, read_committed) or self._answered(positions, until, interrupt):
                return True
            if time.monotonic() >= until:
                return False

    def close(self) -> None:
        """Give the polls up."""
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            self._brokers.drop(poll.connection)
        wakers, self._wakers = self._wakers, None
        for waker in wakers or ():
            waker.close()

    # -- asking ------------------------------------------------------------------------------------------

    def _begin(self, positions: Mapping[TopicPartition, int], until: float, read_committed: bool) -> bool:
        """Ask the leaders that are not asked yet. True if one cannot be."""
        failed = False
        by_leader: dict[Address, dict[TopicPartition, int]] = {}
        ids: dict[str, str] = {}
        limit = self._brokers.limit(until + PATIENCE_S)
        for name, offset in positions.items():
            try:
                if name.topic not in ids:
                    ids[name.topic] = self._metadata.topic_id(name.topic, limit)
                by_leader.setdefault(self._metadata.leader(name, limit), {})[name] = offset
            except (Retry, BrokerUnavailable) as error:
                self._fail([name], error)
                failed = True
        for leader, poll in list(self._polls.items()):
            if leader not in by_leader:
                self._drop(leader)
            elif time.monotonic() > poll.due + _OVERDUE_S:
                self._drop(leader)
                self._fail(
                    by_leader.pop(leader), BrokerUnavailable(f"{poll.connection.name} does not answer")
                )
                failed = True
        for leader, of_leader in by_leader.items():
            asked = _Asked(of_leader, {tp.topic: ids[tp.topic] for tp in of_leader}, read_committed)
            last = self._polls.get(leader)
            if last is not None and last.asked == asked:
                continue
            self._drop(leader)
            try:
                self._ask(leader, asked, until)
            except BrokerUnavailable as error:
                self._fail(of_leader, error)
                failed = True
        return failed

    def _ask(self, leader: Address, asked: _Asked, until: float) -> None:
        """Raises BrokerUnavailable."""
        connection = self._brokers.take_soon(leader, PATIENCE_S)
        now = time.monotonic()
        wait_ms = min(max(int((until - now) * 1000), 0), MAX_WAIT_MS)
        try:
            request = self._fetching.poll_request(asked.positions, asked.ids, wait_ms, asked.read_committed)
            connection.send(request, now + PATIENCE_S)
        except BaseException:
            self._brokers.drop(connection)
            raise
        self._polls[leader] = _Poll(connection, asked, now + wait_ms / 1000)

    def _fail(self, names: Mapping[TopicPartition, int] | Sequence[TopicPartition], error: Exception) -> None:
        """These partitions' next fetches tell why. Raises Closed, NotKafka."""
        self._brokers.check_open()
        if isinstance(error, NotKafka):
            raise error
        for name in names:
            self._metadata.forget(name.topic)
            self._fetching.expect_error(name)

    def _drop(self, leader: Address) -> None:
        poll = self._polls.pop(leader, None)
        if poll is not None:
            self._brokers.drop(poll.connection)

    # -- answers -----------------------------------------------------------------------------------------

    def _answered(self, positions: Mapping[TopicPartition, int], until: float, interrupt: Interrupt) -> bool:
        """Wait for the first answers. True if they have records, or one of them is an error."""
        now = time.monotonic()
        # An answer that is due by then is waited for a little longer, unless it is late already.
        due = [poll.due for poll in self._polls.values() if poll.due <= until and now < poll.due + PATIENCE_S]
        ready = self._select(max(until, min(max(due), now) + PATIENCE_S) if due else until, interrupt)
        if interrupt.is_set:
            return False
        some = self._turns is not None and self._turns.look(ready)
        for leader, poll in list(self._polls.items()):
            if poll.connection not in ready:
                continue
            try:
                if not poll.connection.has_response(0.0):
                    continue
                response = poll.connection.receive(FetchResponse, 0.0)
            except BrokerUnavailable as error:
                self._drop(leader)
                self._fail(poll.asked.positions, error)
                some = True
                continue
            except BaseException:
                self._drop(leader)
                raise
            del self._polls[leader]
            self._brokers.give_back(poll.connection)
            is_old = time.monotonic() > poll.due + PATIENCE_S  # it may be empty no longer
            try:
                some |= self._fetching.cache(
                    response, poll.asked.ids, poll.asked.positions, poll.asked.read_committed, is_old=is_old
                )
            except Retry as error:
                self._fail(poll.asked.positions, error)
                some = True
        return some

    def _select(self, until: float, interrupt: Interrupt) -> set[Connection]:
        """Sleep until responses have begun, the interrupt is set, or the time is over. Returns where."""
        connections = [poll.connection for poll in self._polls.values()]
        if self._turns is not None:
            connections += self._turns.waiting()
        if received := {connection for connection in connections if connection.has_received()}:
            return received
        if self._wakers is None:
            self._wakers = socket.socketpair()
            for waker in self._wakers:
                waker.setblocking(False)
        sleeper, waker = self._wakers
        poll = select.poll()
        for fd in (sleeper.fileno(), *(connection.fileno() for connection in connections)):
            poll.register(fd, select.POLLIN)
        with interrupt.waking(_sending(waker)):
            fds = {fd for fd, _ in poll.poll(max(until - time.monotonic(), 0) * 1000)}
        if sleeper.fileno() in fds:
            sleeper.recv(1024)
        return {connection for connection in connections if connection.fileno() in fds}


def _sending(waker: socket.socket) -> Callable[[], None]:
    def wake() -> None:
        try:
            waker.send(b"w")
        except OSError:
            pass  # it is full, or closed: there is no sleeper to wake

    return wake
