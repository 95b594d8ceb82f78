"""What the sender of a request may do: the authorizer's decisions, with a trace of what was denied.

Handlers and guards ask an `Access`, which is one request's. On the socket of a log's owner, and while there
is no authorizer, nobody asks.
"""

from __future__ import annotations

from typing import Final

from ....runtime.closing import Closing
from ....security.acls import CLUSTER_NAME, Operation, ResourceType
from ....security.authorizer import Authorizer
from ....security.principal import Principal
from ....wire.error_codes import ErrorCode
from ....wire.error_meanings import DENIED
from .access_log import AccessLog

REFUSED: Final = {ResourceType[kind.upper().replace(" ", "_")]: code for code, kind in DENIED.items()}
"""The error of what is denied, by the type of the resource."""


class Access:
    """What one request may do. `principal`, `host` and `api` are for the log of what is denied."""

    __slots__ = ("_control", "api", "host", "principal")

    def __init__(self, control: AccessControl, principal: Principal, host: str, api: str) -> None:
        self._control = control
        self.principal = principal
        self.host = host
        self.api = api

    def may(self, operation: Operation, type: ResourceType, name: str) -> bool:
        """Whether it may do something. What is denied is logged."""
        control, question = self._control, (self.principal, self.host, operation, type, name)
        if control.authorizer.allows(*question):
            return True
        if control.authorizer.look() and control.authorizer.allows(*question):
            return True  # by an ACL that was added a moment ago
        control.log.denied(self.principal, self.host, operation, type, name, self.api)
        return False

    def sees(
        self, operation: Operation, type: ResourceType = ResourceType.CLUSTER, name: str = CLUSTER_NAME
    ) -> bool:
        """Answer as `may`, of what the request did not name or does not need: nothing is logged."""
        return self._control.authorizer.allows(self.principal, self.host, operation, type, name)

    def may_somewhere(self, operation: Operation, type: ResourceType) -> bool:
        """Whether it may do something with at least one resource of a type."""
        return self._control.authorizer.allows_some(self.principal, self.host, operation, type)

    def topic_code(self, operation: Operation, name: str | None, *, by_id: bool = False) -> ErrorCode:
        """NONE if it may do something with a topic, or the error.

        name: None if no topic has the id that the client sent. A client that may not describe a topic is not
        told that there is one with its id; Kafka, which does not take ids for a secret, tells it.
        """
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.may(operation, ResourceType.TOPIC, name):
            return ErrorCode.NONE
        if by_id and not self.sees(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def operations(self, all_of: int, type: ResourceType, name: str) -> int:
        """The operations that it may do, among those of a bit set (KIP-430)."""
        return sum(
            1 << operation
            for operation in Operation
            if all_of >> operation & 1 and self.sees(operation, type, name)
        )


class AccessControl(Closing):
    """A broker's authorizer, and the log of what it denies. Thread-safe."""

    def __init__(self, authorizer: Authorizer, log: AccessLog) -> None:
        self.authorizer = authorizer
        self.log = log

    def of(self, principal: Principal, host: str, api: str) -> Access:
        """What a request may do."""
        return Access(self, principal, host, api)

    def close(self) -> None:
        """Idempotent."""
        self.log.close()
        self.authorizer.close()
