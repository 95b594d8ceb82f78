"""Background tasks whose last attempt failed, with the reason, for `Health`.

A background task has no caller to raise to. It logs its failure, and records it here until the same task
succeeds. Safe between threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Hashable, Iterator

from ..errors import Located
from .locks import Lock

logger = logging.getLogger(__name__)


def log_failure(to: logging.Logger, what: str, error: Exception) -> None:
    """Log what failed: damage in a line with its place and what to do, any other error with its traceback.

    Args:
        what: failed, as "offsets committed for the deleted topic t are still there".
    """
    if isinstance(error, Located):
        directory = os.path.dirname(os.path.dirname(str(error.path)))
        hint = f"embedlog verify {directory} --deep tells how much is damaged, and what can be done"
        to.error("%s: %s; %s", what, error, hint)
    else:
        to.error("%s", what, exc_info=error)


class BackgroundFailures:
    """Failures by task and by its subject, a partition or a file."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reasons: dict[tuple[str, Hashable], str] = {}

    @contextlib.contextmanager
    def tolerated(self, doing: str, subject: Hashable, *kinds: type[Exception]) -> Iterator[None]:
        """Swallow, log and record an error of these kinds. Success clears an earlier record.

        Damage is logged once, until the task succeeds: it stays until it is repaired.
        """
        try:
            yield
        except kinds as error:
            reason = f"{doing} {subject}: {error}"
            with self._lock:
                is_new = self._reasons.get((doing, subject)) != reason
                self._reasons[doing, subject] = reason
            if is_new or not isinstance(error, Located):
                log_failure(logger, f"{doing} {subject}", error)
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
