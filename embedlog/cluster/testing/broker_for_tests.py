"""A broker for tests: it stops and starts again on the same records and ports, and fails on demand.

    with BrokerForTests() as broker:
        broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
        ...
        broker.restart()

Invariants: the directory, the ports and the injected faults live as long as this object. Each start makes a
new `Broker`, and with it a new `log`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from ...errors import Closed, GroupNotEmpty, GroupNotFound, TopicNotFound
from ...log import Log
from ...runtime.closing import Closing
from ..broker.broker import Broker
from ..network.listeners import bracketed
from ..settings.broker_settings import BrokerSettings
from .injected_faults import InjectedFault, InjectedFaults


class BrokerForTests(Closing):
    """A broker that a test stops, starts and has fail. The constructor starts it. A context manager.

    Args:
        path: the log directory; None for a temporary one, which `close` deletes.
        port: the port to listen on; 0, the default, takes a free one at the first start and keeps it.
        settings: other arguments of `Broker`.

    Raises the errors of `Broker`. Not for several threads at once, except for `inject`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, port: int = 0, **settings: Any) -> None:
        self._settings = dict(settings)
        self._faults = InjectedFaults()
        self._broker: Broker | None = None
        with contextlib.ExitStack() as undo:
            if path is None:
                path = undo.enter_context(tempfile.TemporaryDirectory(prefix="embedlog-broker-"))
            self._path = os.fspath(path)
            if port:
                self._settings["port"] = port
            self.start()
            self._undo = undo.pop_all()

    def __repr__(self) -> str:
        state = "stopped" if self._broker is None else self._broker.bootstrap_servers
        return f"<embedlog.cluster.BrokerForTests {self._path}: {state}>"

    @property
    def broker(self) -> Broker:
        """The broker that runs. Raises Closed while it is stopped."""
        if self._broker is None:
            raise Closed("the broker is stopped: start() it")
        return self._broker

    @property
    def log(self) -> Log:
        """The log that the broker serves, another one after each start. Raises Closed while it is stopped."""
        return self.broker.log

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings."""
        return self.broker.settings

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port", as clients are configured: the same after each start, and while it is stopped."""
        return self._bootstrap_servers

    @property
    def port(self) -> int:
        """The port, the same after each start."""
        return int(self._bootstrap_servers.rpartition(":")[2])

    def start(self) -> None:
        """Start it again, on the records and ports that it had. Does nothing if it runs.

        Raises AddressInUse if another program has taken the port meanwhile, and the errors of `Broker`.
        """
        if self._broker is not None:
            return
        broker = Broker(self._path, faults=self._faults, **self._settings)
        if "listeners" in self._settings:
            self._settings["listeners"] = ",".join(
                f"{listener.name}://{bracketed(listener.host)}:{listener.port}"
                for listener in broker.listeners
            )
        else:
            self._settings["port"] = broker.port
        self._bootstrap_servers = broker.bootstrap_servers
        self._broker = broker

    def stop(self) -> None:
        """Close the connections and the log cleanly; the records stay. Does nothing if it is stopped.

        Responses that a fault delays are sent before.
        """
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def inject(
        self,
        api: str,
        *,
        error: str | int | None = None,
        delay_ms: float = 0,
        topic: str | None = None,
        client_id: str | None = None,
        times: int | None = 1,
    ) -> InjectedFault:
        """Have the next requests of an API fail, wait, or both. Faults are tried in the order of injection.

        Args:
            api: Kafka's name of the API: "Produce", "Fetch", "OffsetCommit", "JoinGroup" and so on.
            error: the name or number of one of Kafka's errors. A request that changes something is not
                executed; one that reads is answered with the error. With acks=0 the connection is closed.
            delay_ms: how long the response waits after the broker has handled the request.
            topic: only what the requests say about this topic; the rest is handled as usual.
            client_id: only requests with this client id.
            times: how many requests it meets; None: all, until it is removed.

        Returns: the fault. Its `requests` counts those that it has met, and `remove()` ends it; so does the
            end of a `with` block.

        Raises InvalidArgument, InvalidType for what cannot be injected. Thread-safe.
        """
        return self._faults.inject(
            api, error=error, delay_ms=delay_ms, topic=topic, client_id=client_id, times=times
        )

    def clear_faults(self) -> None:
        """Remove all faults, and send the responses that they delay. Thread-safe."""
        self._faults.clear()

    @contextlib.contextmanager
    def cleaned(self) -> Iterator[BrokerForTests]:
        """A block that leaves nothing: the topics, groups and faults made in it are removed at its end.

        A broker that was stopped in it is started. Raises GroupNotEmpty if a consumer of the block is still
        open, after everything else was removed.
        """
        topics, groups = set(self.log.topics()), set(self.log.groups())
        try:
            yield self
        finally:
            self.clear_faults()
            self.start()
            busy = []
            for group in set(self.log.groups()) - groups:
                try:
                    self.log.group(group).delete()
                except GroupNotFound:
                    pass
                except GroupNotEmpty:
                    busy.append(group)
            for topic in set(self.log.topics()) - topics:
                with contextlib.suppress(TopicNotFound):
                    self.log.delete_topic(topic)
            if busy:
                raise GroupNotEmpty(
                    f"consumers of the groups {', '.join(sorted(busy))} are open: close them in the test"
                )

    def close(self) -> None:
        """Stop it, and delete its directory if that is temporary."""
        self._faults.clear()
        self.stop()
        self._undo.close()
