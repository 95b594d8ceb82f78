"""Background tasks whose last attempt failed, with the reason, for `Health`.

A background task has no caller to raise to. It logs its failure, and records it here until the same task
succeeds. Safe between threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Hashable, Iterator

logger = logging.getLogger(__name__)


class BackgroundFailures:
    """Failures by task and by its subject, a partition or a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[tuple[str, Hashable], str] = {}

    @contextlib.contextmanager
    def tolerated(self, doing: str, subject: Hashable, *kinds: type[Exception]) -> Iterator[None]:
        """Swallow, log and record an error of these kinds. Success clears an earlier record."""
        try:
            yield
        except kinds as error:
            logger.exception("%s %s", doing, subject)
            with self._lock:
                self._reasons[doing, subject] = f"{doing} {subject}: {error}"
        else:
            with self._lock:
                self._reasons.pop((doing, subject), None)

    def forget(self, subject: Hashable) -> None:
        """Clear the records of a partition or file that is gone."""
        with self._lock:
            for key in [key for key in self._reasons if key[1] == subject]:
                del self._reasons[key]

    def reasons(self) -> list[str]:
        """A line per failing task."""
        with self._lock:
            return sorted(self._reasons.values())
