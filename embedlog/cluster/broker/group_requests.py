"""Runs requests about groups outside the processors' threads, once the groups have been loaded.

All group operations take the coordinator's lock, which a thread may hold while it appends to the offsets
topic. So they run in the broker's other threads and are answered by futures: when the operation is done, when
the other members have sent theirs, on a timeout, or when the broker stops, whichever comes first.

The broker loads stored groups at its start while the port is open already; until then members get
COORDINATOR_LOAD_IN_PROGRESS. (As in Kafka, a classic heartbeat gets no error, and a sync
REBALANCE_IN_PROGRESS.) A group keeps its members across the restart, so a restart within their session
timeouts costs no rebalance. Unused offsets expire by the log's clock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from ...errors import Closed, EmbedlogError
from ...files.names import TRANSACTION_STATE_TOPIC
from ...groups.machines.migration import Migration, MigrationPolicy
from ...runtime.background_failures import log_failure
from ...runtime.locks import Lock
from ...wire.error_codes import ErrorCode
from .api_errors import ApiError
from .broker_context import BrokerContext, RequestContext

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

_MS_PER_MINUTE: Final = 60_000


class GroupRequests:
    """Between the handlers of groups and the coordinator. Thread-safe.

    on_loaded: called once the groups have been loaded; may block.
    """

    def __init__(self, broker: BrokerContext, on_loaded: Callable[[], object] | None = None) -> None:
        self._broker = broker
        self._on_loaded = on_loaded
        self._lock = Lock()
        self._loading = False
        self._stopped = False
        self._unanswered: dict[Future[Any], Callable[[], object]] = {}

    def start(self) -> None:
        """Begin to load the groups and to expire offsets. Does not wait."""
        self._begin_loading()
        self._broker.store.background.add_timer("offset expiry", self._expire)

    def stop(self) -> None:
        """Answer all pending requests with an error, and reject later ones."""
        with self._lock:
            self._stopped = True
            unanswered = list(self._unanswered.values())
        for reject in unanswered:
            reject()

    def check_coordinates(self, group: str) -> None:
        """Raises ApiError unless this broker coordinates the group. An empty name is rejected elsewhere."""
        if group and not self._broker.coordination.coordinates(group):
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates group {group!r}")

    def check_coordinates_transactions(self, transactional_id: str) -> None:
        """Raises ApiError unless this broker coordinates the transactional id."""
        if not self._broker.coordination.coordinates(transactional_id, TRANSACTION_STATE_TOPIC):
            raise ApiError(
                ErrorCode.NOT_COORDINATOR, f"another broker coordinates transactional id {transactional_id!r}"
            )

    def run(
        self,
        context: RequestContext,
        work: Callable[[], _R],
        failed: Callable[[EmbedlogError], _R],
        *,
        group: str | None = None,
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> _R | Future[_R]:
        """A future of work(), or of failed(error).

        `group` is None if the work is about several groups or none, `transactional_id` likewise. After
        timeout_ms the result is failed(COORDINATOR_NOT_AVAILABLE); the work may still be done.
        """

        def begin(response: Future[_R]) -> None:
            try:
                result = work()
            except EmbedlogError as error:
                result = failed(error)
            complete(response, result)

        response = self._begin(group, transactional_id, begin, failed)
        return self._limited(context, response, failed, timeout_ms)

    def run_each(
        self,
        context: RequestContext,
        names: Iterable[str],
        work: Callable[[str], _T],
        failed: Callable[[str, EmbedlogError], _T],
        answer: Callable[[list[_T]], _R],
    ) -> _R | Future[_R]:
        """A future of answer(entries): for each name work(name), or failed(name, error)."""

        def entry(name: str) -> _T:
            try:
                return work(name)
            except EmbedlogError as error:
                return failed(name, error)

        return self.run(
            context,
            lambda: answer([entry(name) for name in names]),
            lambda error: answer([failed(name, error) for name in names]),
        )

    def run_async(
        self,
        context: RequestContext,
        group: str | None,
        begin: Callable[[], Future[_T]],
        answered: Callable[[_T], _R],
        failed: Callable[[EmbedlogError], _R],
        *,
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> _R | Future[_R]:
        """A future of answered(result of begin()), or of failed(error) for an error of either. Otherwise as
        `run`."""

        def go_on(response: Future[_R], done: Future[_T]) -> None:
            try:
                result = answered(done.result())
            except EmbedlogError as error:
                result = failed(error)
            complete(response, result)

        def start(response: Future[_R]) -> None:
            try:
                promised = begin()
            except EmbedlogError as error:
                complete(response, failed(error))
            else:
                promised.add_done_callback(lambda done: go_on(response, done))

        response = self._begin(group, transactional_id, start, failed)
        return self._limited(context, response, failed, timeout_ms)

    def _limited(
        self,
        context: RequestContext,
        response: _R | Future[_R],
        failed: Callable[[EmbedlogError], _R],
        timeout_ms: int | None,
    ) -> _R | Future[_R]:
        if timeout_ms is not None and isinstance(response, Future):
            timed_out = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"timed out after {timeout_ms:,} ms")
            complete_after(context, response, timeout_ms, lambda: failed(timed_out))
        return response

    def _begin(
        self,
        group: str | None,
        transactional_id: str | None,
        begin: Callable[[Future[_R]], None],
        failed: Callable[[EmbedlogError], _R],
    ) -> _R | Future[_R]:
        response: Future[_R] = Future()
        try:
            if group is not None:
                self.check_coordinates(group)
            if transactional_id is not None:
                self.check_coordinates_transactions(transactional_id)
            with self._lock:
                self._check_ready()
                self._unanswered[response] = lambda: complete(response, failed(_stopping()))
        except ApiError as error:
            return failed(error)
        response.add_done_callback(self._answered)

        def run() -> None:
            try:
                begin(response)
            except BaseException as error:  # a defect: the connection logs it and closes
                with contextlib.suppress(InvalidStateError):
                    response.set_exception(error)

        self._broker.run_blocking(run)
        return response

    def _answered(self, response: Future[Any]) -> None:
        with self._lock:
            del self._unanswered[response]

    def _check_ready(self) -> None:
        if self._stopped:
            raise _stopping()
        if not self._broker.groups.is_loaded:
            self._begin_loading()
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the groups are being loaded")

    def _begin_loading(self) -> None:
        if not self._loading:
            self._loading = True
            self._broker.run_blocking(self._load)

    def _load(self) -> None:
        try:
            settings = self._broker.settings
            session_ms = max(
                settings.group_consumer_session_timeout_ms, settings.group_share_session_timeout_ms
            )
            self._broker.groups.load(
                clients=True,
                session_timeout_ms=session_ms,
                migration=Migration(
                    MigrationPolicy(settings.group_consumer_migration_policy),
                    max_classic=settings.group_max_size,
                    max_consumer=settings.group_consumer_max_size,
                ),
            )
            if self._on_loaded is not None:
                self._on_loaded()
        except Closed:
            pass
        except EmbedlogError as error:
            log_failure(logger, "the groups cannot be loaded, the next request retries", error)
        finally:
            self._loading = False

    def _expire(self) -> int | None:
        if self._stopped:
            return None
        settings = self._broker.settings
        if self._broker.groups.is_loaded:
            self._broker.groups.expire_offsets(settings.offsets_retention_minutes * _MS_PER_MINUTE)
        return settings.offsets_retention_check_interval_ms


def complete_after(
    context: RequestContext, response: Future[_R], timeout_ms: int, result: Callable[[], _R]
) -> None:
    """Complete a future with this result after a time, unless it is complete by then."""
    loop = context.connection.loop

    def start_timer() -> None:
        timer = loop.call_later(timeout_ms / 1000, lambda: complete(response, result()))
        response.add_done_callback(lambda _: loop.post(timer.cancel))

    loop.post(start_timer)


def _stopping() -> ApiError:
    return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is shutting down")


def complete(response: Future[_R], result: _R) -> None:
    """Complete a future, unless it is complete already."""
    with contextlib.suppress(InvalidStateError):  # answered by a timeout or the stop
        response.set_result(result)
