"""Dispatch: from a frame to the handler of its API, and from the response to a frame.

    frame -> header -> API and version offered? -> message -> handler -> message -> chunks

The table of handlers is also what ApiVersions advertises: an API without a handler is not offered. A
malformed request closes its connection, with one line in the log; an operation that fails becomes an error
code in the response.

Most requests are a producer's and differ from the one before on the same connection only in their records.
These go straight to the handler of Produce, which reads and answers them by a template.

On the socket of a log's owner there is one more API, and Produce takes two more options (wire/owner_apis.py).
Of a log that is not shared only this API is offered, to tools.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from ...backends.log_requests import LogRequests
from ...runtime.log_throttle import LogThrottle
from ...wire.apis import APIS
from ...wire.apis.produce import ProduceRequest
from ...wire.errors import ProtocolError
from ...wire.frames import (
    RequestHeader,
    decode_request_header,
    encode_response_chunks,
    unsupported_api_versions,
)
from ...wire.messages import Exchange, Response
from ...wire.owner_apis import LOG, OWNER_APIS
from ..network.close_reasons import CloseConnection
from ..network.connection import Connection
from ..network.event_loop import EncodedResponse
from ..network.outbox import Chunk
from .access.authentication import SASL_AUTHENTICATE, SASL_HANDSHAKE
from .api_errors import TO_PROCESSES_OF_THE_LOG, TO_THE_NETWORK, ErrorAnswers
from .broker_context import BrokerContext, Handler, RequestContext
from .futures import flatten_future, map_future
from .group_requests import GroupRequests
from .guards.authorization import guarded
from .handlers.acls import AclHandlers
from .handlers.commits import CommitHandlers
from .handlers.configs import ConfigHandlers
from .handlers.describe import DescribeHandlers
from .handlers.fetch import FetchHandlers
from .handlers.group_admin import GroupAdminHandlers
from .handlers.groups import GroupHandlers
from .handlers.log import LogHandlers
from .handlers.metadata import MetadataHandlers
from .handlers.modern_groups import ConsumerGroupHandlers, ShareGroupHandlers
from .handlers.offsets import OffsetHandlers
from .handlers.produce import ProduceHandlers
from .handlers.quotas import QuotaHandlers
from .handlers.replicas import ReplicaHandlers
from .handlers.sasl import SaslHandlers
from .handlers.share_fetch import ShareFetchHandlers
from .handlers.share_offsets import ShareOffsetHandlers
from .handlers.topic_partitions import TopicPartitionHandlers
from .handlers.topics import TopicHandlers
from .handlers.transaction_admin import TransactionAdminHandlers
from .handlers.transactions import TransactionHandlers
from .handlers.users import UserHandlers
from .last_produce import LastProduce, remember
from .local_members import LocalMembers
from .usage import Usage, usage_of

logger = logging.getLogger(__name__)

_PRODUCE: Final = 0
_API_VERSIONS: Final = 18
_MAX_TEMPLATE_BYTES: Final = 16 << 10  # decoding is a small part of handling a larger request
_MAX_FRAME_BYTES: Final = 8 << 20  # a message of many small fields takes some forty times its size

# Larger frames are handled by another thread: a processor would take tens of milliseconds, while its other
# connections wait. A Produce request is mostly records, which take less time and are better not copied.
_LARGE: Final = 64 << 10
_LARGE_PRODUCE: Final = 4 << 20


class Route(NamedTuple):
    """An API's handler and the versions that it offers."""

    exchange: Exchange
    handler: Handler
    low: int
    high: int


class Dispatcher:
    """Implements `connection.Application` over a broker's context.

    Args:
        requests: on the owner's socket, what executes requests to the owner; None on the network.
    """

    def __init__(self, broker: BrokerContext, requests: LogRequests | None = None) -> None:
        on_the_network = requests is None
        answers = TO_THE_NETWORK if on_the_network else TO_PROCESSES_OF_THE_LOG
        self._broker = broker
        self._coordination = broker.coordination
        self._access = broker.access
        self._faults = broker.faults
        self._meter = broker.meter if on_the_network else None  # metrics are of the network
        self._quotas = broker.quotas if on_the_network else None
        self._stale_session_log = LogThrottle()
        self._members = None if on_the_network else LocalMembers(broker)
        self._groups = GroupRequests(broker, None if self._members is None else self._members.restored)
        # The handlers that are used below, besides for their requests.
        metadata = MetadataHandlers(broker)
        self._fetch = FetchHandlers(broker)
        self._produce = ProduceHandlers(broker, answers)
        self._share_fetch = None if broker.shares is None else ShareFetchHandlers(broker, broker.shares)
        self._log = None if requests is None else LogHandlers(broker, requests)
        handlers = self._protected(
            {**metadata.handlers(), **self._standard_handlers(answers), **self._optional_handlers()}
        )
        self._routes = {
            key: Route(
                exchange, handlers[exchange.api.name], exchange.api.min_version, exchange.api.max_version
            )
            for key, exchange in _exchanges(requests).items()
            if exchange.api.name in handlers
        }
        metadata.advertise({key: (route.low, route.high) for key, route in self._routes.items()})

    def _standard_handlers(self, answers: ErrorAnswers) -> dict[str, Handler]:
        """API -> handler, of the APIs that every broker has."""
        broker, groups = self._broker, self._groups
        return {
            **self._produce.handlers(),
            **self._fetch.handlers(),
            **OffsetHandlers(broker, answers.code_for).handlers(),
            **TopicHandlers(broker, answers).handlers(),
            **TopicPartitionHandlers(broker).handlers(),
            **ReplicaHandlers(broker).handlers(),
            **ConfigHandlers(broker, answers).handlers(),
            **AclHandlers(broker).handlers(),
            **DescribeHandlers(broker).handlers(),
            **GroupHandlers(broker, groups, self._members).handlers(),
            **CommitHandlers(broker, groups, answers.commit_code_for).handlers(),
            **GroupAdminHandlers(broker, groups).handlers(),
            **TransactionHandlers(broker, groups, answers.code_for).handlers(),
            **TransactionAdminHandlers(broker, groups).handlers(),
            **ConsumerGroupHandlers(broker, groups).handlers(),
        }

    def _optional_handlers(self) -> dict[str, Handler]:
        """API -> handler, of users, quotas, share groups and an owner's requests, if this broker has them."""
        broker = self._broker
        handlers: dict[str, Handler] = {}
        if broker.users is not None:
            handlers.update(SaslHandlers(broker).handlers())
            handlers.update(UserHandlers(broker, broker.users).handlers())
        if self._quotas is not None:
            handlers.update(QuotaHandlers(broker, self._quotas).handlers())
        if self._share_fetch is not None and broker.shares is not None:
            handlers.update(self._share_fetch.handlers())
            handlers.update(ShareGroupHandlers(broker, self._groups).handlers())
            handlers.update(ShareOffsetHandlers(broker, self._groups, broker.shares).handlers())
        if self._log is not None:
            handlers.update(self._log.handlers())
        return handlers

    def _protected(self, handlers: dict[str, Handler]) -> dict[str, Handler]:
        """The handlers behind their guards if there are ACLs; around these the faults of a test."""
        if self._access is not None:
            from .guards.api_permissions import PERMISSIONS  # not needed by most

            handlers = guarded(self._broker, self._access, handlers, PERMISSIONS)
        return handlers if self._faults is None else self._faults.around(self._broker, handlers)

    def start(self) -> None:
        """Start the background work of handlers."""
        self._groups.start()

    def stop(self) -> None:
        """Answer the requests that wait for other clients or for records, so that closing need not wait."""
        self._broker.is_stopping = True
        if self._members is not None:
            self._members.stop()
        self._groups.stop()
        self._fetch.stop()
        if self._share_fetch is not None:
            self._share_fetch.stop()
        if self._log is not None:
            self._log.stop()
        if self._faults is not None:
            self._faults.release()

    def handle(self, connection: Connection, frame: memoryview) -> bytes | EncodedResponse:
        """See `connection.Application`."""
        # 1. The cluster may have gone on without this broker; a client may have to authenticate again.
        if not self._coordination.is_current:
            raise self._no_session()
        if connection.session_ends <= connection.loop.now:
            assert self._broker.authenticator is not None
            answer = self._broker.authenticator.admit(connection, frame)
            if answer is not None:
                return answer
        # 2. Without any quota a request need not be counted. Quotas may have changed.
        quotas = self._quotas
        if quotas is not None:
            now = connection.loop.now
            if now >= quotas.look_at:
                quotas.look(now)
            if not quotas.is_on:
                quotas = None
        # 3. Most requests are a producer's, like its last one: answered by a template if no quota limits it.
        last = connection.application_state
        if isinstance(last, LastProduce) and not (
            quotas is not None and quotas.limits(connection.principal.name, last.context.client_id)
        ):
            began = 0.0 if self._meter is None else time.perf_counter()
            result = self._produce.produce_again(last, frame)
            if isinstance(result, bytes):
                if not self._coordination.is_current:
                    raise self._no_session()
                if self._meter is not None:
                    self._meter.count_request(_PRODUCE, None, time.perf_counter() - began)
                return result
            if result is not None:
                return self._encode_result(*result, began)
        # 4. Others are checked by their header alone: decoding a message may take forty times its size.
        try:
            header = decode_request_header(frame)
            key, version = header.api_key, header.api_version
            route = self._routes.get(key)
            if route is None or not route.low <= version <= route.high:
                return self._reject_version(key, version, header.correlation_id)
            connection.client_id = client_id = header.client_id or ""
            if len(frame) > _MAX_FRAME_BYTES and key != _PRODUCE:
                raise CloseConnection(
                    f"a {route.exchange.api.name} request of {len(frame):,} bytes: only Produce may have "
                    f"more than {_MAX_FRAME_BYTES:,}"
                )
        except ProtocolError as error:
            raise _malformed(error) from None
        usage = None if quotas is None else usage_of(quotas, connection, client_id, key, version)
        # 5. Another thread decodes and handles what is large: this one's other connections would wait.
        context = RequestContext(version, client_id, connection, connection.principal, usage)
        decode_and_run = self._decode_and_run if usage is None else partial(usage.run, self._decode_and_run)
        if len(frame) > (_LARGE_PRODUCE if key == _PRODUCE else _LARGE):
            if key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):  # their handlers are of the loop's thread
                raise CloseConnection(f"a {route.exchange.api.name} request of {len(frame):,} bytes")
            # The copy is writable like the original: appends put their offsets into it.
            return flatten_future(
                self._broker.run_large(decode_and_run, context, route, header, memoryview(bytearray(frame)))
            )
        return decode_and_run(context, route, header, frame)

    def _decode_and_run(
        self, context: RequestContext, route: Route, header: RequestHeader, frame: memoryview
    ) -> EncodedResponse:
        began = time.perf_counter()
        rules = 0 if self._access is None else self._access.authorizer.changes  # before they are asked
        try:
            request = route.exchange.request.decode(frame, header.api_version, header.body_pos)
        except ProtocolError as error:
            raise _malformed(error) from None
        result = route.handler(context, request)
        if (
            isinstance(request, ProduceRequest)
            and isinstance(result, Response)
            and len(frame) <= _MAX_TEMPLATE_BYTES
        ):
            remember(frame, header, context, request, rules)
        if context.usage is not None:
            return self._finish(context.usage, len(frame), header, result, began)
        return self._encode_result(header, result, began)

    def _finish(
        self,
        usage: Usage,
        frame_bytes: int,
        header: RequestHeader,
        result: Response | Future[Any] | None,
        began: float,
    ) -> EncodedResponse:
        """Encode as `_encode_result`, and count it for a client with a quota."""

        def finish(response: Response | None) -> Sequence[Chunk]:
            usage.finish(frame_bytes, response)
            return self._encode(header, response, began)

        return map_future(result, finish) if isinstance(result, Future) else finish(result)

    def _encode_result(
        self, header: RequestHeader, result: Response | Future[Any] | None, began: float
    ) -> EncodedResponse:
        if isinstance(result, Future):
            return map_future(result, lambda response: self._encode(header, response, began))
        return self._encode(header, result, began)

    def on_half_close(self, connection: Connection) -> None:
        """See `connection.Application`."""
        self._fetch.on_half_close(connection)
        if self._share_fetch is not None:
            self._share_fetch.on_half_close(connection)
        if self._members is not None:
            self._members.on_half_close(connection)
        if self._log is not None:
            self._log.on_half_close(connection)

    def on_close(self, connection: Connection) -> None:
        """See `connection.Application`."""
        if self._share_fetch is not None:
            self._share_fetch.on_close(connection)

    def on_gone(self, host: str) -> None:
        """See `connection.Application`."""
        if self._members is not None:
            self._members.gone(host)

    def _encode(self, header: RequestHeader, response: Response | None, began: float) -> Sequence[Chunk]:
        if not self._coordination.is_current:
            raise self._no_session()
        if self._meter is not None:
            self._meter.count_request(header.api_key, response, time.perf_counter() - began)
        return _encode_response(response, header.api_version, header.correlation_id)

    def _no_session(self) -> CloseConnection:
        """Closes the connection, so that the client tries another broker.

        The session is checked before each request and before each response: this process may have been
        suspended in between while the cluster went on.
        """
        reason = "this broker has no ZooKeeper session"
        if count := self._stale_session_log.count():
            logger.warning("%s: connections are closed (%d since the last message)", reason, count)
        return CloseConnection(reason, logging.DEBUG)

    def _reject_version(self, key: int, version: int, correlation_id: int) -> EncodedResponse:
        if key == _API_VERSIONS:
            route = self._routes[key]
            return _encode_response(unsupported_api_versions((route.low, route.high)), 0, correlation_id)
        name = APIS[key].api.name if key in APIS else "unknown"
        raise CloseConnection(f"API {key} ({name}) version {version} is not offered here")


def _exchanges(requests: LogRequests | None) -> Mapping[int, Exchange]:
    """Key -> API, of those that may be offered."""
    if requests is None:
        return APIS
    exchanges = {**APIS, **OWNER_APIS}
    return exchanges if requests.shared else {key: exchanges[key] for key in (_API_VERSIONS, LOG.key)}


def _malformed(error: ProtocolError) -> CloseConnection:
    return CloseConnection(f"a request that is not Kafka's protocol: {error}")


def _encode_response(response: Response | None, version: int, correlation_id: int) -> Sequence[Chunk]:
    if response is None:  # a produce request with acks=0
        return ()
    return encode_response_chunks(response, version, correlation_id)  # type: ignore[return-value]
