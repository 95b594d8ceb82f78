"""What a consumer or a reader waits for because a broker does not answer, each with its reason.

A partition without a leader delays only its own records: a turn (backends/port/) that fails for it puts it
off, goes on with the others, and tries again after a pause that doubles up to a second. Who waits longer than
a second is told once, by a warning.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from ..backends.port import Turns
from ..errors import BrokerUnavailable

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_TOLD_S: Final = 1.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wait:
    """Why, since when, when to try again, and how many answers had come at the last try."""

    error: BrokerUnavailable
    since: float
    due: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    answers: int = 0
    told: bool = False


class Waits:
    """A consumer's partitions, and whatever else it needs, that wait. For one thread, but for `reasons`.

    turns: None if nothing waits for brokers: then all errors are raised.
    """

    def __init__(self, turns: Turns | None) -> None:
        self._turns = turns
        self._waits: dict[Hashable, _Wait] = {}

    def turn(self, wait_s: float) -> AbstractContextManager[None]:
        """What the client does in the context waits for no broker much longer than wait_s."""
        return nullcontext() if self._turns is None else self._turns.turn(wait_s)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._waits

    def __bool__(self) -> bool:
        return bool(self._waits)

    def is_due(self, name: Hashable) -> bool:
        """Whether to try: it does not wait, its pause is over, or a broker has answered since."""
        wait = self._waits.get(name)
        if wait is None or self._turns is None:
            return True
        return wait.answers != self._turns.answers or time.monotonic() >= wait.due

    @property
    def due(self) -> float:
        """When the first pause is over (time.monotonic)."""
        return min((wait.due for wait in self._waits.values()), default=math.inf)

    def may_pass(self, error: BrokerUnavailable) -> bool:
        """Whether a later turn may have no such error."""
        return self._turns is not None and self._turns.may_pass(error)

    def put_off(self, name: Hashable, error: BrokerUnavailable, *, with_an_end: bool = False) -> None:
        """Try again later. Raises the error if it will not pass, or if the caller cannot wait for that.

        with_an_end: raise it, too, when it has lasted for the patience that the backend has.
        """
        if not self.may_pass(error):
            raise error
        now = time.monotonic()
        assert self._turns is not None
        wait = self._waits.setdefault(name, _Wait(error, now))
        if with_an_end and now - wait.since > self._turns.patience_s:
            del self._waits[name]
            raise error
        wait.error, wait.answers = error, self._turns.answers
        wait.due = now + wait.pause_s
        wait.pause_s = min(wait.pause_s * 2, _MAX_PAUSE_S)
        if not wait.told and now - wait.since > _TOLD_S:
            wait.told = True
            _logger.warning("%s waits: %s", name, error)

    def over(self, name: Hashable) -> None:
        """It waits no more."""
        wait = self._waits.pop(name, None)
        if wait is not None and wait.told:
            _logger.info("%s goes on", name)

    def check(self) -> None:
        """Raises the error of one that has waited for the patience that the backend has."""
        for wait in self._waits.values():
            if self._turns is not None and time.monotonic() - wait.since > self._turns.patience_s:
                raise wait.error.with_traceback(None)

    def clear(self) -> None:
        """The consumer has other partitions: what was asked for them is to be asked anew."""
        self._waits.clear()
        if self._turns is not None:
            self._turns.forget()

    def reasons(self) -> dict[str, str]:
        """Why each one waits, of about now. From any thread."""
        return {str(name): str(wait.error) for name, wait in list(self._waits.items())}
