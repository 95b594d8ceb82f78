"""Group members driven by hand over raw connections."""

from __future__ import annotations

from typing import Any

from wire import Wire

from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from embedlog.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from embedlog.wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from embedlog.wire.consumer_protocol import Subscription, encode_subscription
from embedlog.wire.error_codes import ErrorCode

G = "g"
SESSION_MS = 300_000
MEMBER_ID_SINCE = 4  # JoinGroup
HEARTBEAT_MAX, LEAVE_MAX, SYNC_MAX, JOIN_MAX = 4, 5, 5, 9


class Member:
    """One member with its own connection. `version` is JoinGroup's; the other versions follow from it."""

    def __init__(self, wire: Wire, group: str = G, *, version: int = JOIN_MAX, **join: Any) -> None:
        self.wire = wire
        self.group = group
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.instance = join.get("group_instance_id")
        self._join = join
        self._number = 0
        self._refused: Any = None

    def request(self, **changes: Any) -> JoinGroupRequest:
        fields: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": SESSION_MS,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [
                JoinGroupRequestProtocol(name="range", metadata=encode_subscription(Subscription(("t",))))
            ],
            "reason": None,
        }
        return JoinGroupRequest(**{**fields, **self._join, **changes})

    def send_join(self) -> None:
        """Send JoinGroup; `joined` reads the response. A newcomer sends two: the first gets its id."""
        self._refused = None
        if self.version >= MEMBER_ID_SINCE and not self.member_id and self.instance is None:
            response = self.wire.ask(self.request(), self.version)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                self._refused = response
                return
            self.member_id = response.member_id
        self._number = self.wire.send(self.request(), self.version)

    def joined(self) -> Any:
        """The response to JoinGroup."""
        response = self._refused or self.wire.receive(JoinGroupRequest, self.version, self._number)
        if not response.error_code:
            self.member_id, self.generation = response.member_id, response.generation_id
        return response

    def join(self) -> Any:
        self.send_join()
        return self.joined()

    def send_sync(self, given: dict[str, bytes], **changes: Any) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=changes.get("protocol_type", "consumer"),
            protocol_name=changes.get("protocol_name", "range"),
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in given.items()
            ],
        )
        self._number = self.wire.send(request, min(self.version, SYNC_MAX))

    def synced(self) -> Any:
        return self.wire.receive(SyncGroupRequest, min(self.version, SYNC_MAX), self._number)

    def sync(self, given: dict[str, bytes] | None = None, **changes: Any) -> Any:
        self.send_sync(given or {}, **changes)
        return self.synced()

    def heartbeat(self, **changes: Any) -> int:
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        code = self.wire.ask(
            HeartbeatRequest(**{**fields, **changes}), min(self.version, HEARTBEAT_MAX)
        ).error_code
        assert isinstance(code, int)
        return code

    def leave(self) -> Any:
        return self.wire.ask(
            LeaveGroupRequest(
                group_id=self.group,
                member_id=self.member_id,
                members=[
                    MemberIdentity(member_id=self.member_id, group_instance_id=self.instance, reason=None)
                ],
            ),
            min(self.version, LEAVE_MAX),
        )

    def settle(self) -> None:
        """Join and sync as the only member."""
        assert self.join().error_code == 0
        assert self.sync({self.member_id: b"all"}).error_code == 0
