"""The coordinators of groups and of transactional ids: finds them, and sends them requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ...errors import BrokerUnavailable
from ...validation import check_group, check_text
from ...wire.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ...wire.error_codes import ErrorCode
from ...wire.messages import Request, Response
from ...wire_client.connection import Connection
from ...wire_client.settings import Address
from .brokers import Brokers, check_code

R = TypeVar("R", bound=Response)
T = TypeVar("T")

_GROUP: Final = 0  # key types
_TRANSACTION: Final = 1
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinators:
    """The coordinators of a cluster's groups, or of its transactional ids. Thread-safe."""

    def __init__(self, brokers: Brokers, *, of_transactions: bool = False) -> None:
        self._brokers = brokers
        self._of_transactions = of_transactions
        self._found: dict[str, Address] = {}

    def ask(
        self,
        name: str,
        request: Request,
        response: type[R],
        checked: Callable[[R], T],
        *,
        timeout_ms: int | None = None,
        wait_ms: int = 0,
        client_id: str | None = None,
        on: Callable[[Connection], None] | None = None,
    ) -> T:
        """Returns checked(the coordinator's response); retried while that raises Retry.

        Args:
            timeout_ms: for all attempts together, default_api_timeout_ms by default.
            wait_ms: how long the coordinator may delay its response on purpose, in addition.
            on: called with the connection before the request is sent.

        Raises InvalidGroup, and the errors of the response's codes.
        """
        if self._of_transactions:
            check_text("transactional_id", name)
        else:
            check_group(name)
        settings = self._brokers.settings
        within = settings.default_api_timeout_ms if timeout_ms is None else timeout_ms

        def attempt(deadline: float) -> T:
            address = self._found.get(name) or self.find(name, deadline)
            limit = min(deadline, self._brokers.limit(deadline) + wait_ms / 1000)
            try:
                if not wait_ms and on is None and client_id is None:
                    received = self._brokers.ask(address, request, response, deadline)
                else:
                    with self._brokers.connection(address, limit) as connection:
                        if on is not None:
                            on(connection)
                        received = connection.exchange(request, response, limit, client_id=client_id)
            except BrokerUnavailable:
                self._found.pop(name, None)
                raise
            return checked(received)

        return self._brokers.retried(attempt, within + wait_ms)

    def check(self, name: str, code: int, subject: str, topic: str = "") -> None:
        """Raises as `check_code`; if the coordinator has moved, the next request looks it up."""
        if code in _MOVED:
            self._found.pop(name, None)
        kind = "transactional id" if self._of_transactions else "group"
        check_code(code, subject, names={kind: name, "topic": topic})

    def find(self, name: str, deadline: float) -> Address:
        """Look up a coordinator. For an attempt: raises Retry."""
        key_type, kind = (_TRANSACTION, "transactional id") if self._of_transactions else (_GROUP, "group")
        request = FindCoordinatorRequest(key=name, key_type=key_type)
        response = self._brokers.ask_any(request, FindCoordinatorResponse, deadline)
        check_code(
            response.error_code, f"coordinator of {kind} {name!r}", response.error_message, {kind: name}
        )
        self._found[name] = address = response.host, response.port
        return address
