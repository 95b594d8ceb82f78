"""An owner's requests over TCP: the dispatcher of its socket on a port, and a raw connection to it."""

from __future__ import annotations

import contextlib
from typing import Any

from wire import Wire

from embedlog.backends.local import WriterBackend
from embedlog.backends.log_requests import LogCalls, LogRequests, decode, encode, error_named
from embedlog.cluster import Broker
from embedlog.cluster.broker.broker_context import BrokerContext
from embedlog.cluster.broker.dispatch import Dispatcher
from embedlog.cluster.coordination import BrokerAddress
from embedlog.cluster.coordination.single import SingleBroker
from embedlog.cluster.network.listeners import LOCAL
from embedlog.cluster.network.server import Server, bind
from embedlog.runtime.closing import Closing
from embedlog.wire.frames import decode_response_header
from embedlog.wire.messages import Request
from embedlog.wire.owner_apis import OWNER_APIS, LogRequest, LogResponse


class OwnerPort(Closing):
    """A second port of a broker's log, which offers what an owner's socket does."""

    def __init__(self, broker: Broker, *, shared: bool = True, advertised_port: int = 0) -> None:
        backend = broker.log.backend
        assert isinstance(backend, WriterBackend)
        context = broker.context
        with contextlib.ExitStack() as undo:
            self._server = Server([(bind("127.0.0.1", 0), LOCAL)], broker.settings)
            undo.callback(self._server.stop, 0)
            address = BrokerAddress(broker.address.node_id, "127.0.0.1", advertised_port or self.port, None)
            self.context = BrokerContext(
                context.store,
                context.groups,
                SingleBroker(context.store, address),
                context.settings,
                context._executors,
                context.transactions,
            )
            dispatcher = Dispatcher(self.context, LogRequests(backend, shared=shared))
            dispatcher.start()
            undo.callback(dispatcher.stop)
            self._server.start(dispatcher, 100)
            self._undo = undo.pop_all()

    @property
    def port(self) -> int:
        return self._server.listeners[0].port

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._undo.close()


class OwnerWire(Wire):
    """A raw connection to an owner."""

    def receive(self, request: type[Request] | Request, version: int, number: int) -> Any:
        exchange = OWNER_APIS.get(request.api.key)
        if exchange is None:
            return super().receive(request, version, number)
        frame = self.receive_frame()
        found, pos = decode_response_header(frame, exchange.api, version)
        assert found == number
        return exchange.response.decode(frame, version, pos)

    def log(self, name: str, arguments: object) -> LogResponse:
        response: LogResponse = self.ask(LogRequest(name=name, arguments=encode(arguments)), 0)
        return response

    @property
    def calls(self) -> LogCalls:
        """The owner's requests as methods."""

        def ask(name: str, arguments: object) -> Any:
            response = self.log(name, arguments)
            if response.error is not None:
                raise error_named(response.error, response.message)
            return decode(response.result)

        return LogCalls(ask)
