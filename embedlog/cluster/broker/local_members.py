"""Members of groups that are processes of this machine: their membership ends with their process.

A client on the owner's Unix socket is known by its process. The kernel closes all connections of a process
when that ends, however it ends: so when the last one closes, its members leave their groups at once, and
no session timeout has to pass. A process that is alive and has lost its connections joins again, as
after any end of its membership.

A join or a sync may wait for other members for minutes. If its connection hangs up meanwhile, it is closed
without the response; else it would be the last connection for that long.

Members are stored with their hosts, which name the process. An owner that takes over looks whether the
processes of the members that it finds are alive, until they connect: some have ended with the owner before,
or were it.

Static members (KIP-345) stay until their session timeouts: they are to come back under their instance ids.

Invariant: offsets are not touched. What a killed member had read and not committed is read again.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import Future
from typing import Any, Final

from ...errors import EmbedlogError
from ...groups.coordinator import REMOTE
from ...runtime.locks import Lock
from ...runtime.processes import Process, process_of
from ..network.connection import Connection
from ..network.server import PROCESS
from .broker_context import BrokerContext

_CLIENT_HOST: Final = re.compile(re.escape(REMOTE + PROCESS) + r"([1-9]\d*)")

_LOOK_MS: Final = 500


class LocalMembers:
    """Knows which members the processes beside this one have. Thread-safe."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._lock = Lock()
        # All are guarded by _lock.
        self._members: dict[str, set[tuple[str, str]]] = {}
        self._restored: dict[tuple[str, str], Process] = {}  # not heard of since: their processes
        self._waiting: set[Connection] = set()  # for other members: their joins and syncs are not answered
        self._stopped = False

    def waits(self, connection: Connection, response: Future[Any]) -> None:
        """The connection's request waits for other members, until the response is complete."""
        with self._lock:
            self._waiting.add(connection)
        response.add_done_callback(lambda _: self._answered(connection))
        if connection.half_closed:  # before: the request was large, and decoded in another thread
            connection.loop.post(lambda: self.on_half_close(connection))

    def _answered(self, connection: Connection) -> None:
        with self._lock:
            self._waiting.discard(connection)

    def on_half_close(self, connection: Connection) -> None:
        """Close the connection if its process has ended: it may be the last one."""
        with self._lock:
            waits = connection in self._waiting
        if waits and connection.has_hung_up:
            connection.close(None)

    def note(self, connection: Connection, group: str, member_id: str, instance_id: str | None) -> None:
        """A request of a member, or its new id, came or goes over this connection."""
        if not member_id or instance_id is not None:
            return
        with self._lock:
            self._restored.pop((group, member_id), None)
            if not connection.closed:  # else `gone` may have been called
                self._members.setdefault(connection.host, set()).add((group, member_id))
                return
        self._end({(group, member_id)})

    def forget(self, connection: Connection, group: str, member_id: str) -> None:
        """Its membership has ended."""
        with self._lock:
            self._members.get(connection.host, set()).discard((group, member_id))

    def gone(self, host: str) -> None:
        """The last connection of a process has closed."""
        with self._lock:
            members = self._members.pop(host, None)
        if members:
            self._end(members)

    def restored(self) -> None:
        """The groups have been loaded, with their members."""
        groups = self._broker.groups
        with contextlib.suppress(EmbedlogError):  # the log is closed
            for group in groups.list_groups():
                for member in groups.describe_group(group).members:
                    process = _CLIENT_HOST.fullmatch(member.client_host)
                    client = process_of(int(process[1])) if process else None
                    if member.group_instance_id is None and client:
                        with self._lock:
                            self._restored[group, member.member_id] = client
        self._broker.store.background.add_timer("restored members", self._end_absent)

    def _end_absent(self) -> int | None:
        """End the memberships of processes that are no more. Returns in how many ms to look again."""
        with self._lock:
            if self._stopped:
                return None
            ended = {member for member, process in self._restored.items() if process.has_ended}
            for member in ended:
                del self._restored[member]
            any_left = bool(self._restored)
        self._leave(ended)
        return _LOOK_MS if any_left else None

    def stop(self) -> None:
        """End no more memberships: from now on connections close because the owner closes them."""
        with self._lock:
            self._stopped = True

    def _end(self, members: set[tuple[str, str]]) -> None:
        if not self._stopped:
            with contextlib.suppress(RuntimeError):  # the executor is shut down
                self._broker.run_blocking(self._leave, members)

    def _leave(self, members: set[tuple[str, str]]) -> None:
        for group, member_id in members:
            with contextlib.suppress(EmbedlogError):  # it has left, or the log is closed
                self._broker.groups.leave_group(group, member_id)
