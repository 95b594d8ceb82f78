"""Those that wait until the end of a transaction is carried out: futures, completed without a lock."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError


class EndWaiters:
    """By transactional id. The coordinator's lock guards all but `complete`."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Future[None]]] = {}
        self._over: list[Future[None]] = []

    def wait(self, transactional_id: str) -> Future[None]:
        """A future that completes after `over`."""
        over: Future[None] = Future()
        self._waiting.setdefault(transactional_id, []).append(over)
        return over

    def over(self, transactional_id: str) -> None:
        """The end is carried out."""
        self._over += self._waiting.pop(transactional_id, ())

    def all_over(self) -> None:
        """It is unknown what ends are being carried out."""
        for transactional_id in list(self._waiting):
            self.over(transactional_id)

    def complete(self) -> None:
        """Tell those that are over. Called after the release of the lock."""
        while self._over:
            with contextlib.suppress(IndexError, InvalidStateError):  # another thread was quicker; cancelled
                self._over.pop().set_result(None)


class Ended:
    """How many transactions were committed and aborted."""

    def __init__(self) -> None:
        self.committed = self.aborted = 0

    def count(self, committed: bool) -> None:
        self.committed += committed
        self.aborted += not committed
