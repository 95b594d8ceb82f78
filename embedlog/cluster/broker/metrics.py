"""Prometheus metrics and health over HTTP, on a port of their own.

    GET /metrics    the meter's counters, and current values of the log, the server and background work
    GET /health     200 and {"status": "ok"}, or "degraded" with the reason if retention is held up; 503 and
                    the reason if partitions refuse appends, there is no room for them, or background work
                    fails

Nothing is computed between scrapes. Needs prometheus-client (extra `cluster`), which is imported on use: a
broker without a metrics port works without it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...backends.port import Backend
from ...errors import EmbedlogError
from ...errors.public import public_message
from ..network.server import Server, bind, listen
from ..network.tls_context import ListenerTls
from ..network.tls_errors import reason_of
from .broker_context import BrokerContext
from .meter import BUCKETS_S, Meter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from ...metrics import Families

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S: Final = 10.0
_BACKLOG: Final = 16
_MAX_CONCURRENT: Final = 16
_POLL_S: Final = 0.2  # until a stop is noticed


class Collector:
    """Collects a broker's metrics for Prometheus; called for each scrape."""

    def __init__(self, broker: BrokerContext, backend: Backend, meter: Meter, server: Server) -> None:
        self._broker = broker
        self._backend = backend
        self._meter = meter
        self._server = server

    def collect(self) -> Iterator[Metric]:
        from ...metrics import Families, add_queues, add_store

        yield from self._of_requests()
        into = Families()
        self._add_connections(into)
        self._add_quotas(into)
        self._add_records(into)
        add_store(into, self._broker.store)
        try:
            add_queues(into, self._backend)
        except EmbedlogError as error:  # the other values still tell
            logger.warning("metrics of work queues: %s", error)
        self._add_cluster(into)
        yield from into

    def _of_requests(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "embedlog_requests",
            "Requests answered, by the first error in the response.",
            labels=("api", "error"),
        )
        for (api, error), count in self._meter.requests().items():
            requests.add_metric((api, error), count)
        yield requests
        seconds = HistogramMetricFamily(
            "embedlog_request_duration_seconds",
            "From a request's arrival to its response; Fetch waits for records, JoinGroup for members.",
            labels=("api",),
        )
        for api, times in self._meter.durations().items():
            so_far, buckets = 0, []
            for limit, count in zip((*map(str, BUCKETS_S), "+Inf"), times.counts, strict=True):
                so_far += count
                buckets.append((limit, so_far))
            seconds.add_metric((api,), buckets, times.total_s)
        yield seconds

    def _add_quotas(self, into: Families) -> None:
        from prometheus_client.core import CounterMetricFamily

        quotas = self._broker.quotas
        if quotas is None:
            return
        text = "Answers that told a client to wait, and connections that were refused, by the quota."
        answers = into.family("embedlog_throttled", text, "quota", kind=CounterMetricFamily)
        text = "How long these clients had to wait."
        seconds = into.family("embedlog_throttle_seconds", text, "quota", kind=CounterMetricFamily)
        common = tuple(into.common.values())
        for key, count in quotas.throttled.items():
            answers.add_metric((*common, key), count)
            seconds.add_metric((*common, key), quotas.throttle_ms[key] / 1000)

    def _add_connections(self, into: Families) -> None:
        server, processors = self._server, self._server.processors
        into.gauge("embedlog_connections", "Open connections.", server.connections)
        into.counter("embedlog_connections_accepted", "Connections accepted.", server.accepted)
        into.counter("embedlog_connections_rejected", "Connections rejected by a limit.", server.rejected)
        slow = sum(processor.too_slow for processor in processors)
        text = "Connections closed because a request arrived too slowly."
        into.counter("embedlog_connections_timed_out", text, slow)
        pending = sum(len(processor.handshakes) for processor in processors)
        into.gauge("embedlog_ssl_handshakes", "TLS handshakes that are under way.", pending)
        ended = sum(processor.handshakes.closed for processor in processors)
        text = "TLS handshakes ended because they took too long, or were too many."
        into.counter("embedlog_ssl_handshakes_timed_out", text, ended)
        buffered = sum(processor.frame_memory.held_bytes for processor in processors)
        into.gauge("embedlog_request_buffer_bytes", "Memory of large requests that are arriving.", buffered)
        received = sum(processor.bytes_in for processor in processors)
        into.counter("embedlog_received_bytes", "Bytes received from clients.", received)
        sent = sum(processor.bytes_out for processor in processors)
        into.counter("embedlog_sent_bytes", "Bytes sent to clients.", sent)
        unsent = sum(processor.unsent_bytes for processor in processors)
        text = "Memory of responses that clients have not read yet."
        into.gauge("embedlog_response_buffer_bytes", text, unsent)

        authenticator = self._broker.authenticator
        if authenticator is not None:
            text = "Authentications that succeeded, those of running connections included."
            into.counter("embedlog_authentications", text, authenticator.succeeded)
            text = "Authentications that failed."
            into.counter("embedlog_authentications_failed", text, authenticator.failed)
            text = "Connections closed because their session had ended."
            into.counter("embedlog_sessions_expired", text, authenticator.expired)
            closed = sum(processor.candidates.closed for processor in processors)
            text = "Connections closed because they did not authenticate in time, or too many did not."
            into.counter("embedlog_connections_unauthenticated", text, closed)

    def _add_records(self, into: Families) -> None:
        meter = self._meter
        into.counter("embedlog_produced_batches", "Batches appended for clients.", meter.produced_batches)
        into.counter("embedlog_produced_records", "Records appended for clients.", meter.produced_records)
        text = "Bytes of batches appended for clients."
        into.counter("embedlog_produced_bytes", text, meter.produced_bytes)
        into.counter("embedlog_fetched_bytes", "Bytes of batches fetched by clients.", meter.fetched_bytes)

    def _add_cluster(self, into: Families) -> None:
        coordination, node_id = self._broker.coordination, self._broker.coordination.node_id
        leaders = Counter(
            coordination.placement(partition.name).leader for partition in self._broker.store.partitions()
        )
        into.gauge("embedlog_active_brokers", "Live brokers.", len(coordination.brokers()))
        is_controller = coordination.controller_id() == node_id
        into.gauge("embedlog_active_controller", "1 if this broker is the controller.", is_controller)
        is_current = coordination.is_current
        into.gauge("embedlog_lease_valid", "0 while this broker must not answer clients.", is_current)
        into.gauge("embedlog_leader_partitions", "Partitions that this broker leads.", leaders[node_id])
        into.gauge("embedlog_offline_partitions", "Partitions without a leader.", leaders[-1])


class MetricsServer:
    """Answers GET /metrics and GET /health.

    Args:
        host, port: the address to listen on; port 0 takes a free one.
        tls: serves HTTPS with its certificate; None: HTTP.

    Raises AddressInUse, InvalidArgument; EmbedlogError if prometheus-client is not installed.
    """

    def __init__(self, host: str, port: int, tls: ListenerTls | None = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise EmbedlogError("metrics need prometheus-client: pip install 'embedlog[cluster]'") from error
        self.registry: CollectorRegistry = prometheus_client.CollectorRegistry()
        self._http = _Http((host, port), _Handler, bind_and_activate=False)
        self._http.server_close()  # its IPv4 socket
        self._http.socket = bind(host, port)
        self._http.owner = self
        self._http.tls = tls
        self.host = host
        self.port: int = self._http.socket.getsockname()[1]
        self._broker: BrokerContext | None = None
        self._thread = threading.Thread(target=self._serve, name="embedlog-metrics", daemon=True)

    def start(self, broker: BrokerContext, backend: Backend, meter: Meter, server: Server) -> None:
        """Begin to serve requests. Raises AddressInUse."""
        self._broker = broker
        self.registry.register(Collector(broker, backend, meter, server))
        listen(self._http.socket, _BACKLOG)
        self._thread.start()

    def _serve(self) -> None:
        self._http.serve_forever(_POLL_S)

    def stop(self) -> None:
        """Close the port."""
        if self._thread.ident is not None:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def health(self) -> tuple[int, dict[str, Any]]:
        """An HTTP status and the body. Reasons name files as in the directory, not where that is."""
        assert self._broker is not None
        try:
            self._broker.store.check_open()
        except EmbedlogError as error:
            return 503, {"status": "closed", "why": public_message(error)}
        failed = self._broker.store.failed_partitions()
        if failed:
            refusing = {str(name): self._told(reason) for name, reason in failed.items()}
            return 503, {"status": "failing", "why": "partitions refuse appends", "partitions": refusing}
        store = self._broker.store
        if full := store.quota.full():
            sizes = {"disk_bytes": store.quota.used(), "max_bytes": store.quota.limit}
            return 503, {"status": "full", "why": f"there is no room for appends: {full}", **sizes}
        if failing := store.background.failures.reasons():
            return 503, {
                "status": "failing",
                "why": "background work fails",
                "background": [*map(self._told, failing)],
            }
        if blocked := store.cleaner.blocked():
            return 200, {"status": "degraded", "why": "retention cannot delete", "background": blocked}
        return 200, {"status": "ok", "partitions": len(self._broker.store.partitions())}

    def _told(self, reason: str) -> str:
        assert self._broker is not None
        return reason.replace(self._broker.store.path + os.sep, "")


class _Http(ThreadingHTTPServer):
    """One thread per request, up to a limit; further connections are closed."""

    daemon_threads = True
    owner: MetricsServer
    tls: ListenerTls | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._slots = threading.Semaphore(_MAX_CONCURRENT)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_REQUEST_TIMEOUT_S)
            if self.tls is not None:
                try:
                    request = self.tls.current().context.wrap_socket(request, server_side=True)
                except OSError as error:
                    logger.warning("%s: a scrape failed: %s", client_address[0], reason_of(error))
                    request.close()
                    return
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("%s: a scrape failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float] = _REQUEST_TIMEOUT_S
    server_version = "embedlog"
    sys_version = ""

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        owner = self.server.owner  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(owner.registry))
        elif path == "/health":
            status, body = owner.health()
            self._answer(status, "application/json", json.dumps(body).encode() + b"\n")
        else:
            self._answer(404, "text/plain", b"try /metrics or /health\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: " + format, self.client_address[0], *args)
