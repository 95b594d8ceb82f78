"""Until when a session is certainly ours: what a broker asks before it says anything in the cluster's name,
and a consumer of ZooKeeper's groups before it gives out a record.

ZooKeeper ends a session when it has heard nothing of it for the session's timeout. It counts from when it
heard; we count from before we asked something that it answered, which is earlier. So when our time is over
the others may have gone on without us, and before that they have not. The clock runs on while this process
is stopped or the machine asleep: who wakes up finds the lease over, whatever he was in the middle of.

It is the leader of an ensemble that ends sessions, so the question is one that only the leader answers
(sync): a follower that has lost it answers others for a while. What a follower has heard of us it tells the
leader with the next heartbeat between them, so our time is somewhat shorter than the timeout.

There is one question at a time. Where it gets no answer nothing else is asked: kazoo looks whether a server
is still there only while it has nothing to send, and would else stay with one that is silent.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from ..zookeeper.client import ZooKeeper
from ..zookeeper.paths import CONTROLLER_EPOCH

_OF_THE_TIMEOUT: Final = 0.8  # less the time between two questions, and clocks differ
_ASKED: Final = 6  # times within the timeout

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds; it runs while the machine is asleep."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Renewed by a thread of its own. `is_valid` may be asked by anybody, and takes no lock."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._seconds = zookeeper.session_timeout_s * _OF_THE_TIMEOUT
        self._until = 0.0
        self._session = 0
        self._unanswered = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="embedlog-lease", daemon=True)
        self._thread.start()

    @property
    def is_valid(self) -> bool:
        return clock() < self._until

    def begin(self, session: int, since: float) -> None:
        """A session is ours, and was at `since` (by `clock`)."""
        with self._lock:
            self._session = session
            self._until = since + self._seconds
            self._unanswered = False  # kazoo forgets what it is asked while a session ends

    def end(self) -> None:
        """The session is over."""
        with self._lock:
            self._session = 0
            self._until = 0.0

    def stop(self) -> None:
        """End it, and the thread."""
        self.end()
        self._stopped.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._stopped.wait(self._zookeeper.session_timeout_s / _ASKED):
            session, asked = self._session, clock()
            if not session or self._unanswered or not self._zookeeper.is_connected:
                continue

            def answered(result: Any, session: int = session, asked: float = asked) -> None:
                self._unanswered = False
                if result.successful():
                    with self._lock:
                        if self._session == session == self._zookeeper.session_id:
                            self._until = max(self._until, asked + self._seconds)

            self._unanswered = True
            self._zookeeper.kazoo.sync_async(CONTROLLER_EPOCH).rawlink(answered)
