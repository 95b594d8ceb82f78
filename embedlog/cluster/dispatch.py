"""Requests meet the log here: from a frame to the handler of its API, and back to a frame.

    frame -> header -> API and version offered? -> message -> handler -> message -> chunks

The table of handlers is also what ApiVersions offers: an API that has no handler is not advertised, so that
no client waits for it. Whatever a client sends wrong closes its connection, with one line in the log; what
the log cannot do becomes an error code in the answer.

Most requests are a producer's and differ from the one before on the same connection only in their records. A
template (wire/request_template.py) reads and answers these without decoding or encoding fields. Their records
are handled like any others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from ..wire.apis import APIS
from ..wire.apis.produce import PartitionProduceResponse, ProduceRequest
from ..wire.errors import ProtocolError
from ..wire.frames import (
    RequestHeader,
    decode_request_header,
    encode_response_chunks,
    unsupported_api_versions,
)
from ..wire.messages import Exchange, Response
from ..wire.request_template import RequestTemplate, template_of
from .broker_context import BrokerContext, Handler, RequestContext, chained, then
from .connection import Answer, Chunk, CloseConnection, Connection
from .group_work import GroupWork
from .handlers.commits import CommitHandlers
from .handlers.configs import ConfigHandlers
from .handlers.describe import DescribeHandlers
from .handlers.fetch import FetchHandlers
from .handlers.group_admin import GroupAdminHandlers
from .handlers.groups import GroupHandlers
from .handlers.metadata import MetadataHandlers
from .handlers.offsets import OffsetHandlers
from .handlers.produce import ProduceHandlers
from .handlers.topics import TopicHandlers
from .log_throttle import LogThrottle

logger = logging.getLogger(__name__)

_PRODUCE: Final = 0
_API_VERSIONS: Final = 18
_SMALL: Final = 16 << 10  # in larger requests it does not matter what is done for each
_LARGEST_FRAME: Final = 8 << 20  # a message of nothing but small things takes some forty times its bytes

# Frames beyond these are left to another thread: a processor would take tens of milliseconds, while its other
# connections wait. Those of Produce are mostly records, which are faster, and are better not copied.
_LARGE: Final = 64 << 10
_LARGE_PRODUCE: Final = 4 << 20


class Route(NamedTuple):
    """Who answers an API, in which versions."""

    exchange: Exchange
    handler: Handler
    low: int
    high: int


class Seen:
    """A produce request that a connection has sent, for those that are like it.

    `what` is all that it said, but for its partitions and their records.
    """

    __slots__ = ("call", "request", "template", "what")

    def __init__(self, what: Sequence[object], call: RequestContext, request: ProduceRequest) -> None:
        self.what = what
        self.call = call
        self.request = request
        self.template: RequestTemplate | None = (
            None  # made when a second one has come, as it costs more than decoding one
        )


class Dispatcher:
    """Implements `processor.Application` over a node."""

    def __init__(self, node: BrokerContext) -> None:
        describing = MetadataHandlers(node)
        fetching = FetchHandlers(node)
        self._producing = ProduceHandlers(node)
        self._groups = GroupWork(node)
        handlers = {
            **describing.handlers(),
            **self._producing.handlers(),
            **fetching.handlers(),
            **OffsetHandlers(node).handlers(),
            **TopicHandlers(node).handlers(),
            **ConfigHandlers(node).handlers(),
            **DescribeHandlers(node).handlers(),
            **GroupHandlers(node, self._groups).handlers(),
            **CommitHandlers(node, self._groups).handlers(),
            **GroupAdminHandlers(node, self._groups).handlers(),
        }
        self._node = node
        self._meter = node.meter
        self._turned_away = LogThrottle()
        self._fetching = fetching
        self._routes = {
            key: Route(
                exchange, handlers[exchange.api.name], exchange.api.min_version, exchange.api.max_version
            )
            for key, exchange in APIS.items()
            if exchange.api.name in handlers
        }
        describing.offer({key: (route.low, route.high) for key, route in self._routes.items()})

    def start(self) -> None:
        """Begin what goes on beside requests."""
        self._groups.start()

    def stop(self) -> None:
        """Who waits for other clients or for records is answered now: closing need not wait for those."""
        self._groups.stop()
        self._fetching.stop()

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        """See `processor.Application`."""
        self._check_current()
        seen = connection.memo
        if isinstance(seen, Seen) and seen.template is not None:
            found = seen.template.records_of(frame)
            if found is not None:
                return self._once_more(seen, seen.template, *found)
        try:
            header = decode_request_header(frame)
            key, version = header.api_key, header.api_version
            route = self._routes.get(key)
            if route is None or not route.low <= version <= route.high:
                return self._unsupported(key, version, header.correlation_id)
            connection.client_id = client_id = header.client_id or ""
            if len(frame) > _LARGEST_FRAME and key != _PRODUCE:
                raise CloseConnection(
                    f"a {route.exchange.api.name} request of {len(frame):,} bytes: only Produce may have "
                    f"more than {_LARGEST_FRAME:,}"
                )
        except ProtocolError as error:
            raise _not_the_protocol(error) from None
        call = RequestContext(version, client_id, connection)
        if len(frame) > (_LARGE_PRODUCE if key == _PRODUCE else _LARGE):
            # Writable, as what it is a copy of: appends put their offsets into it.
            return chained(
                self._node.in_turn(self._work_at, call, route, header, memoryview(bytearray(frame)))
            )
        return self._work_at(call, route, header, frame)

    def _work_at(
        self, call: RequestContext, route: Route, header: RequestHeader, frame: memoryview
    ) -> Answer:
        began = time.perf_counter()
        try:
            request = route.exchange.request.decode(frame, header.api_version, header.body_pos)
        except ProtocolError as error:
            raise _not_the_protocol(error) from None
        result = route.handler(call, request)
        if isinstance(request, ProduceRequest) and isinstance(result, Response) and len(frame) <= _SMALL:
            _remember(frame, header, call, request)
        return self._answer(header, result, began)

    def _once_more(
        self, seen: Seen, same: RequestTemplate, correlation_id: int, index: int, records: memoryview
    ) -> Answer:
        began = time.perf_counter()
        version, client_id, connection = call = seen.call
        connection.client_id = client_id
        result = self._producing.once_more(call, seen.request, index, records)
        if isinstance(result, PartitionProduceResponse):
            self._check_current()
            if self._meter is not None:
                self._meter.answered(_PRODUCE, None, time.perf_counter() - began)
            return (same.response(correlation_id, result),)
        return self._answer(RequestHeader(_PRODUCE, version, correlation_id, client_id, 0), result, began)

    def _answer(self, header: RequestHeader, result: Response | Future[Any] | None, began: float) -> Answer:
        if isinstance(result, Future):
            return then(result, lambda response: self._finish(header, response, began))
        return self._finish(header, result, began)

    def on_half_close(self, connection: Connection) -> None:
        """See `processor.Application`."""
        self._fetching.on_half_close(connection)

    def _finish(self, header: RequestHeader, response: Response | None, began: float) -> Sequence[Chunk]:
        self._check_current()
        if self._meter is not None:
            self._meter.answered(header.api_key, response, time.perf_counter() - began)
        return _encoded(response, header.api_version, header.correlation_id)

    def _check_current(self) -> None:
        """Asked before each request and before each answer: this process may have been stopped in between,
        and the others gone on without it. Raises CloseConnection, so that the client asks another broker."""
        if not self._node.coordination.is_current:
            why = "this broker has no session with ZooKeeper just now"
            if times := self._turned_away.times():
                logger.warning("%s: clients are turned away (%d since this was said)", why, times)
            raise CloseConnection(why, logging.DEBUG)

    def _unsupported(self, key: int, version: int, correlation_id: int) -> Answer:
        if key == _API_VERSIONS:
            route = self._routes[key]
            return _encoded(unsupported_api_versions((route.low, route.high)), 0, correlation_id)
        name = APIS[key].api.name if key in APIS else "unknown"
        raise CloseConnection(f"API {key} ({name}) version {version} is not offered here")


def _remember(
    frame: memoryview, header: RequestHeader, call: RequestContext, request: ProduceRequest
) -> None:
    """A produce request has been answered. If the one before said the same, the next may, too."""
    connection = call.connection
    what = (
        call.version,
        call.client_id,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [(topic.name, topic.topic_id) for topic in request.topic_data],
    )
    seen = connection.memo
    if isinstance(seen, Seen) and seen.what == what:
        if seen.template is None:
            seen.template = template_of(frame, header, request)
    else:
        connection.memo = Seen(what, call, request)
    for topic in request.topic_data:  # what is remembered holds no records
        topic.partition_data.clear()


def _not_the_protocol(error: ProtocolError) -> CloseConnection:
    return CloseConnection(f"a request that is not Kafka's protocol: {error}")


def _encoded(response: Response | None, version: int, correlation_id: int) -> Sequence[Chunk]:
    if response is None:  # a produce request that wants no answer
        return ()
    return encode_response_chunks(response, version, correlation_id)  # type: ignore[return-value]
