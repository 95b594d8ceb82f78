"""Accepts that linger: the jobs whose blocks have ended, until their accepts go to the coordinator together.

    add     a job's block has ended: its accept waits here for others
    send    one request for all that wait, durable if the queue's are

A request is sent at the first one's deadline, before jobs are asked for, and before jobs are given back. Of a
process that is killed, the jobs whose accepts still wait are handed out again.

Invariants: an accept is here until a request has executed it, or never will; `send` returns when no request
of another thread is under way, so that what was added before has been sent; while requests fail, nothing is
added, and the end of a block waits for its own accept, which raises the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from ..backends.port.coordinators import ShareCoordinator
from ..errors import (
    BrokerUnavailable,
    EmbedlogError,
    GroupNotFound,
    LockLost,
    StorageError,
    TopicNotFound,
)
from ..model import Acknowledgement, AcknowledgeType, Delivery, TopicPartition
from ..runtime.locks import Lock

NEVER: Final = float("inf")
_MOST: Final = 1_000
_PAUSE_S: Final = 1.0  # after a request that failed

_logger = logging.getLogger(__name__)


class Accepts:
    """The accepts of one queue that have not been sent. Thread-safe.

    linger_s: how long one may wait; 0 for not at all.
    """

    def __init__(
        self, coordinator: ShareCoordinator, topic: str, group: str, *, linger_s: float, flush: bool
    ) -> None:
        self._coordinator = coordinator
        self._topic = topic
        self._group = group
        self._linger_s = linger_s
        self._flush = flush
        self._sending = Lock()  # held during a request
        self._lock = Lock()
        # Guarded by _lock.
        self._waiting: list[Delivery] = []
        self._has_failed = False
        self.due_at = NEVER
        """When `send` is due, by time.monotonic."""

    def add(self, delivery: Delivery) -> bool:
        """Have a job accepted by the next `send`. False if it has to be accepted in another way."""
        if not self._linger_s:
            return False
        with self._lock:
            if self._has_failed or len(self._waiting) >= _MOST:
                return False
            self._waiting.append(delivery)
            if len(self._waiting) == 1:
                self.due_at = time.monotonic() + self._linger_s
        return True

    def send(self) -> None:
        """Accept what waits. What has lost its lock is logged.

        Raises as the coordinator. Where another request may help, the accepts wait on.
        """
        if not self._linger_s:
            return
        with self._sending:
            with self._lock:
                sent = list(self._waiting)
            if not sent:
                return
            accepts = [Acknowledgement(*delivery[:3], AcknowledgeType.ACCEPT) for delivery in sent]
            results: Sequence[EmbedlogError | None]
            try:
                results = self._coordinator.acknowledge(self._group, self._topic, accepts, flush=self._flush)
            except (GroupNotFound, TopicNotFound) as error:  # deleted, and these deliveries with it
                results = [LockLost(str(error))] * len(sent)
            except EmbedlogError as error:
                results = [error] * len(sent)
            self._sent(sent, results)

    def _sent(self, sent: list[Delivery], results: Sequence[EmbedlogError | None]) -> None:
        """Raises the last error but LockLost."""
        failure: EmbedlogError | None = None
        again = []
        for delivery, error in zip(sent, results, strict=True):
            if isinstance(error, LockLost):
                place = TopicPartition(self._topic, delivery.partition)
                what = "%s, offset %d: its accept came too late: it may be done again (%s)"
                _logger.warning(what, place, delivery.offset, error)
            elif error is not None:
                failure = error
                if isinstance(error, (BrokerUnavailable, StorageError)):
                    again.append(delivery)
        with self._lock:
            self._waiting[: len(sent)] = again
            self._has_failed = bool(again)
            pause_s = _PAUSE_S if again else self._linger_s
            self.due_at = time.monotonic() + pause_s if self._waiting else NEVER
        if failure is not None:
            raise failure
