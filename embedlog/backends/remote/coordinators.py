"""The coordinators of groups: finds them, and sends them requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ...errors import BrokerUnavailable
from ...validation import check_group
from ...wire.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ...wire.error_codes import ErrorCode
from ...wire.messages import Request, Response
from .brokers import Brokers, check_code
from .settings import Address

R = TypeVar("R", bound=Response)
T = TypeVar("T")

_GROUP: Final = 0
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinators:
    """The coordinators of a cluster's groups. Thread-safe."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._found: dict[str, Address] = {}

    def ask(
        self,
        group: str,
        request: Request,
        response: type[R],
        checked: Callable[[R], T],
        *,
        timeout_ms: int | None = None,
        wait_ms: int = 0,
        client_id: str | None = None,
    ) -> T:
        """Returns checked(the coordinator's response); retried while that raises Retry.

        Args:
            timeout_ms: for all attempts together, default_api_timeout_ms by default.
            wait_ms: how long the coordinator may delay its response on purpose, in addition.

        Raises InvalidGroup, and the errors of the response's codes.
        """
        check_group(group)
        settings = self._brokers.settings
        within = settings.default_api_timeout_ms if timeout_ms is None else timeout_ms

        def attempt(deadline: float) -> T:
            address = self._found.get(group) or self.find(group, deadline)
            limit = min(deadline, self._brokers.limit(deadline) + wait_ms / 1000)
            try:
                with self._brokers.connection(address, limit) as connection:
                    answer = connection.exchange(request, response, limit, client_id=client_id)
            except BrokerUnavailable:
                self._found.pop(group, None)
                raise
            return checked(answer)

        return self._brokers.retried(attempt, within + wait_ms)

    def check(self, group: str, code: int, what: str) -> None:
        """Raises as `check_code`; if the coordinator has moved, the next request looks it up."""
        if code in _MOVED:
            self._found.pop(group, None)
        check_code(code, what)

    def find(self, group: str, deadline: float) -> Address:
        """Look up a group's coordinator. For an attempt: raises Retry."""
        request = FindCoordinatorRequest(key=group, key_type=_GROUP)
        answer = self._brokers.ask_any(request, FindCoordinatorResponse, deadline)
        check_code(answer.error_code, f"coordinator of group {group!r}", answer.error_message)
        self._found[group] = address = answer.host, answer.port
        return address
