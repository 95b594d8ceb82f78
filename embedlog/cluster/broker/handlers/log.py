"""Log: what only the owner's socket offers (wire/owner_apis.py). Each request begins in another thread, but
for those of queues whose client has a processor to itself.

An acquire of a share group goes on without one: it is answered when records come, when the client has gone,
or when the owner is about to end, whichever comes first. What comes after that is given back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

from ....backends.log_requests import LogRequests, decode, encode
from ....backends.share_requests import ACKNOWLEDGE, ACQUIRE
from ....errors import Closed, EmbedlogError, InvalidArgument
from ....model import Delivery
from ....runtime.locks import Lock
from ....wire.owner_apis import LogRequest, LogResponse
from ...network.connection import Connection
from ..broker_context import BrokerContext, Handler, RequestContext

logger = logging.getLogger(__name__)


_Execute: TypeAlias = Callable[[str, Mapping[str, Any]], object]


class _Waiting:
    """An acquire that has no response yet."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.response: Future[LogResponse] = Future()
        self.acquired: Future[list[Delivery]] | None = None  # once it has begun

    def answer(self, response: LogResponse) -> bool:
        """Answer. False if that is too late."""
        try:
            self.response.set_result(response)
        except InvalidStateError:
            return False
        return True

    def cancel(self) -> None:
        """Take no records any more."""
        if self.acquired is not None:
            self.acquired.cancel()


class LogHandlers:
    """Handles Log."""

    def __init__(self, broker: BrokerContext, requests: LogRequests) -> None:
        self._broker = broker
        self._requests = requests
        self._lock = Lock()
        self._stopped = False
        self._waiting: set[_Waiting] = set()

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"Log": self.log}

    def stop(self) -> None:
        """Answer the acquires that wait; their clients ask the next owner."""
        with self._lock:
            self._stopped = True
            waiting = list(self._waiting)
        for acquire in waiting:
            self._give_up(acquire)

    def on_half_close(self, connection: Connection) -> None:
        """The client has gone: its acquires take no records."""
        with self._lock:
            waiting = [acquire for acquire in self._waiting if acquire.connection is connection]
        for acquire in waiting:
            self._give_up(acquire)

    def log(self, context: RequestContext, request: LogRequest) -> LogResponse | Future[LogResponse]:
        may_wait = context.connection.loop.may_wait
        if request.name != ACQUIRE or not self._requests.shared:
            if request.name == ACKNOWLEDGE and may_wait:
                return self._answer(request, self._requests.execute)
            return self._broker.run_blocking(self._answer, request, self._requests.execute)
        waiting = _Waiting(context.connection)
        waiting.response.add_done_callback(lambda _: self._answered(waiting))
        with self._lock:
            self._waiting.add(waiting)
        if may_wait:
            self._begin(waiting, request)
        else:
            self._broker.run_blocking(self._begin, waiting, request)
        return waiting.response

    def _answer(self, request: LogRequest, execute: _Execute) -> LogResponse:
        try:
            return LogResponse(result=encode(execute(request.name, _arguments(request))))
        except EmbedlogError as error:
            return LogResponse(error=type(error).__name__, message=str(error))
        except Exception as error:  # the client must get a response
            logger.exception("%s: the request %r", self._broker.store.path, request.name)
            return LogResponse(error="EmbedlogError", message=f"{type(error).__name__}: {error}")

    # -- acquires --------------------------------------------------------------------------------------

    def _begin(self, waiting: _Waiting, request: LogRequest) -> None:
        acquires: list[Future[list[Delivery]]] = []
        refused = self._answer(
            request, lambda _, arguments: acquires.append(self._requests.shares.acquire(arguments))
        )
        if not acquires:
            waiting.answer(refused)
            return
        waiting.acquired = acquires[0]
        acquires[0].add_done_callback(lambda done: self._acquired(waiting, request, done))
        if waiting.response.done() or waiting.connection.half_closed or self._stopped:
            self._give_up(waiting)

    def _acquired(self, waiting: _Waiting, request: LogRequest, done: Future[list[Delivery]]) -> None:
        if done.cancelled():
            return
        response = self._answer(request, lambda *_: [delivery[:4] for delivery in done.result()])
        if not waiting.answer(response) and done.exception() is None:
            with contextlib.suppress(EmbedlogError):  # then their locks expire
                self._requests.shares.give_back(_arguments(request), done.result())

    def _give_up(self, waiting: _Waiting) -> None:
        waiting.answer(LogResponse(error=Closed.__name__, message="the owner is about to end"))
        waiting.cancel()

    def _answered(self, waiting: _Waiting) -> None:
        """The response is there, or the connection has been closed."""
        with self._lock:
            self._waiting.discard(waiting)
        if waiting.response.cancelled():
            waiting.cancel()


def _arguments(request: LogRequest) -> dict[str, Any]:
    """Raises InvalidArgument."""
    arguments = decode(request.arguments)
    if not isinstance(arguments, dict):
        raise InvalidArgument(f"the arguments of {request.name!r} are not a JSON object")
    return arguments
