"""Requests to the owner of a log through its socket, or wherever the API Log is offered."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ...errors import BrokerUnavailable, Closed, RequestTimedOut, StorageError, UnsupportedByBackend
from ...wire.owner_apis import LOG, LogRequest, LogResponse
from ...wire_client.connection import Connection
from ...wire_client.settings import ClientSettings, shown_address
from ..log_requests import decode, encode, error_named
from .brokers import Brokers

_LONGEST_S: Final = 86_400.0  # compaction and backup of a large log take hours
_LOOK_S: Final = 10.0  # between two looks whether the owner still answers
_ANSWERS_WITHIN_S: Final = 30.0  # it answers a new connection within milliseconds

AskAgain: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Any]
"""Sends a request by name, with arguments, and returns its result; if it has to be repeated, with more
arguments."""


def owner_requests(brokers: Brokers) -> AskAgain:
    """Sends requests to an owner; raises its errors. Thread-safe.

    A request whose owner ends is repeated to the next one, except for a backup. Raises BrokerUnavailable
    after default_api_timeout_ms without an owner, UnsupportedByBackend if a broker is no owner.
    """

    def ask(name: str, arguments: Mapping[str, Any], when_repeated: Mapping[str, Any]) -> Any:
        request = LogRequest(name=name, arguments=encode(arguments))
        is_repeated = False

        def attempt(deadline: float) -> Any:
            nonlocal is_repeated
            if is_repeated and when_repeated:
                request.arguments = encode({**arguments, **when_repeated})
            is_repeated = True
            with brokers.connection(brokers.addresses()[0], brokers.limit(deadline)) as connection:
                try:
                    response = exchange(connection, request)
                except BrokerUnavailable as error:
                    if name != "backup":
                        raise
                    brokers.check_open()
                    state = "does not answer" if isinstance(error, RequestTimedOut) else "ended"
                    raise StorageError(
                        f"{brokers.path}: its owner {state} during the backup ({error}): remove "
                        f"{arguments['destination']} and repeat the backup"
                    ) from error
            return outcome(response)

        return brokers.retried(attempt)

    return ask


def exchange(connection: Connection, request: LogRequest) -> LogResponse:
    """Send a request and wait until it is executed, however long that takes, while the owner is alive.

    Raises UnsupportedByBackend, BrokerUnavailable; RequestTimedOut if the owner, which has the request, no
    longer answers other connections either: it executes the request if it goes on.
    """
    if not connection.is_owner:
        raise UnsupportedByBackend(f"{connection!r}: it does not offer {LOG.name}, so it is no log's owner")
    deadline = time.monotonic() + _LONGEST_S
    connection.send(request, deadline, version=0)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(_LOOK_S * 1000):
        _check_alive(connection, request.name)
    return connection.receive(LogResponse, deadline)


def _check_alive(connection: Connection, name: str) -> None:
    """Raises RequestTimedOut unless the owner answers a new connection.

    An ended owner does not answer it, but then the old connection has ended, too, as its user sees.
    """
    try:
        probe = Connection(connection.address, ClientSettings(), time.monotonic() + _ANSWERS_WITHIN_S)
    except RequestTimedOut as error:
        raise RequestTimedOut(
            f"the log's owner at {shown_address(connection.address)} has got the request {name!r} but does"
            " not answer: its process may be stopped (SIGSTOP, a debugger). If it goes on, it executes the"
            " request; ask again then"
        ) from error
    except BrokerUnavailable:
        return
    probe.close()


def outcome(response: LogResponse) -> Any:
    """A request's result. Raises the owner's error; BrokerUnavailable if the owner is about to end."""
    if response.error == Closed.__name__:
        raise BrokerUnavailable(response.message)
    if response.error is not None:
        raise error_named(response.error, response.message)
    return decode(response.result)
