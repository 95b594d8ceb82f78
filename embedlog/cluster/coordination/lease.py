"""A lease: until when a ZooKeeper session is certainly valid. A broker checks it before it answers for the
cluster, and a consumer of ZooKeeper's groups before it delivers a record.

ZooKeeper expires a session that it has not heard from for the session timeout, counted from the last request
that it received. The lease is counted from before that request was sent, which is earlier, so it ends before
the session can. Its clock keeps running while this process is stopped or the machine sleeps: after waking up
the lease has expired.

The leader of the ensemble expires sessions, so the lease is renewed by a request that only the leader answers
(sync): a follower that has lost the leader still answers others for a while. A follower reports the sessions
that it has heard from with its next heartbeat to the leader, so the lease is shorter than the timeout.

One renewal is outstanding at a time. While it is unanswered nothing else is sent: kazoo checks for a dead
server only while it has nothing to send, and would otherwise stay connected to a silent one.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from ...runtime.locks import Lock
from ..zookeeper.client import ZooKeeper
from ..zookeeper.paths import CONTROLLER_EPOCH

_TIMEOUT_SHARE: Final = 0.8  # the rest covers followers' heartbeats and clock drift
_RENEWALS: Final = 6  # within the timeout

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds. Keeps running while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Renewed by its own thread. `is_valid` is thread-safe and takes no lock."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._seconds = zookeeper.session_timeout_s * _TIMEOUT_SHARE
        self._until = 0.0
        self._session = 0
        self._unanswered = False
        self._lock = Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="embedlog-lease", daemon=True)
        self._thread.start()

    @property
    def is_valid(self) -> bool:
        return clock() < self._until

    def begin(self, session: int, since: float) -> None:
        """Begin the lease of a session that was valid at `since` (of `clock`)."""
        with self._lock:
            self._session = session
            self._until = since + self._seconds
            self._unanswered = False  # kazoo drops requests when a session ends

    def end(self) -> None:
        """The session is over."""
        with self._lock:
            self._session = 0
            self._until = 0.0

    def stop(self) -> None:
        """End the lease and its thread."""
        self.end()
        self._stopped.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._stopped.wait(self._zookeeper.session_timeout_s / _RENEWALS):
            session, sent_at = self._session, clock()
            if not session or self._unanswered or not self._zookeeper.is_connected:
                continue

            def on_response(result: Any, session: int = session, sent_at: float = sent_at) -> None:
                self._unanswered = False
                if result.successful():
                    with self._lock:
                        if self._session == session == self._zookeeper.session_id:
                            self._until = max(self._until, sent_at + self._seconds)

            self._unanswered = True
            self._zookeeper.kazoo.sync_async(CONTROLLER_EPOCH).rawlink(on_response)
