"""How a broker works at groups: elsewhere than in its processors, from the time the groups are loaded.

Everything about groups goes through one lock, which somebody may hold while he writes to the offsets topic.
So it is done by the node's other threads, and answered by futures: when it is done, when the other members
have done their part, when its time is over, or when the broker stops, whichever comes first.

The groups of earlier times are read when the broker starts, while the port is open already: until they are
there, members are told to come back (COORDINATOR_LOAD_IN_PROGRESS). Then they find their group as it was,
with them in it, so that a broker that is restarted within their sessions' timeouts costs no rebalance.
Offsets that nobody uses expire by the clock of the log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from ..errors import Closed, EmbedlogError
from ..wire.error_codes import ErrorCode
from .api_errors import ApiError
from .broker_context import BrokerContext, RequestContext

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

_MS_PER_MINUTE: Final = 60_000


class GroupRequests:
    """Between the handlers of groups and the coordinator. Safe between threads."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._loading = False
        self._stopped = False
        self._unanswered: dict[Future[Any], Callable[[], object]] = {}

    def start(self) -> None:
        """Load the groups, and let offsets expire from now on. Nothing is waited for."""
        self._begin_loading()
        self._broker.store.background.add_timer("offset expiry", self._expire)

    def stop(self) -> None:
        """Whoever waits for other members is sent away, and nobody else is let in."""
        with self._lock:
            self._stopped = True
            unanswered = list(self._unanswered.values())
        for refuse in unanswered:
            refuse()

    def check_coordinates(self, group: str) -> None:
        """Is this the group's coordinator? Raises Refusal. (A group without a name is refused elsewhere.)"""
        if group and not self._broker.coordination.coordinates(group):
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates group {group!r}")

    def do(
        self,
        context: RequestContext,
        work: Callable[[], _R],
        failed: Callable[[EmbedlogError], _R],
        *,
        group: str | None = None,
        timeout_ms: int | None = None,
    ) -> _R | Future[_R]:
        """What `work` returns, or `failed` makes of its error.

        `group` is the one that it is about; None where it is about several, or none. After timeout_ms it is
        answered with COORDINATOR_NOT_AVAILABLE, and may yet be done.
        """

        def begin(response: Future[_R]) -> None:
            try:
                result = work()
            except EmbedlogError as error:
                result = failed(error)
            _settle(response, result)

        response = self._begin(group, begin, failed)
        if timeout_ms is not None and isinstance(response, Future):
            loop = context.connection.loop
            late = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"not done after {timeout_ms:,} ms")

            def begin_waiting() -> None:
                timer = loop.call_later(timeout_ms / 1000, lambda: _settle(response, failed(late)))
                response.add_done_callback(lambda _: loop.post(timer.cancel))

            loop.post(begin_waiting)
        return response

    def wait(
        self,
        group: str,
        begin: Callable[[], Future[_T]],
        answered: Callable[[_T], _R],
        failed: Callable[[EmbedlogError], _R],
    ) -> _R | Future[_R]:
        """What `answered` makes of the result that `begin` promises, or `failed` of an error of either."""

        def go_on(response: Future[_R], done: Future[_T]) -> None:
            try:
                result = answered(done.result())
            except EmbedlogError as error:
                result = failed(error)
            _settle(response, result)

        def begin_it(response: Future[_R]) -> None:
            try:
                promised = begin()
            except EmbedlogError as error:
                _settle(response, failed(error))
            else:
                promised.add_done_callback(lambda done: go_on(response, done))

        return self._begin(group, begin_it, failed)

    # -- inside ----------------------------------------------------------------------------------------

    def _begin(
        self,
        group: str | None,
        begin: Callable[[Future[_R]], None],
        failed: Callable[[EmbedlogError], _R],
    ) -> _R | Future[_R]:
        response: Future[_R] = Future()
        try:
            if group is not None:
                self.check_coordinates(group)
            with self._lock:
                self._check_ready()
                self._unanswered[response] = lambda: _settle(response, failed(_stopping()))
        except ApiError as error:
            return failed(error)
        response.add_done_callback(self._answered)

        def run() -> None:
            try:
                begin(response)
            except BaseException as error:  # a defect: the connection says so and closes
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
            self._broker.groups.load(clients=True)
        except Closed:
            pass
        except EmbedlogError as error:
            logger.error("the groups cannot be loaded, the next request tries again: %s", error)
        finally:
            self._loading = False

    def _expire(self) -> int | None:
        if self._stopped:
            return None
        settings = self._broker.settings
        if self._broker.groups.is_loaded:
            self._broker.groups.expire_offsets(settings.offsets_retention_minutes * _MS_PER_MINUTE)
        return settings.offsets_retention_check_interval_ms


def _stopping() -> ApiError:
    return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is shutting down")


def _settle(response: Future[_R], result: _R) -> None:
    with contextlib.suppress(InvalidStateError):  # it was answered otherwise
        response.set_result(result)
