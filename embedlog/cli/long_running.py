"""What long-running commands share: the signals that stop them, ports, and log lines on standard error."""

from __future__ import annotations

import argparse
import json
import logging
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Self

from ..units import iso
from .arguments import Argument, arg, count

LAST_PORT: Final = 65_535


def stops() -> list[signal.Signals]:
    """The signals that end a command: SIGTERM and SIGINT, unless the command was started with them ignored.

    A shell script starts its background jobs with SIGINT ignored, so that Ctrl-C ends only the script. We
    leave it ignored, as a JVM, and so Kafka, does.
    """
    stop_signals = (signal.SIGTERM, signal.SIGINT)
    return [number for number in stop_signals if signal.getsignal(number) is not signal.SIG_IGN]


class Stopped(BaseException):
    """A signal came while the broker was starting."""


class Stop:
    """Waits for the signals of `stops`. Until `is_awaited` is set they raise Stopped.

    reloads: SIGHUP is not one that ends the command, but one for which `wait` calls its argument.

    After `wait`, the second signal has its usual effect, for a user who does not want to wait.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self.is_awaited = False
        self._reloads = reloads
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.setblocking(False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._fd_before = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        # SIGHUP is taken even if it was ignored, as nohup has it: that is how daemons are told.
        signals = [*stops(), signal.SIGHUP] if self._reloads else stops()
        self._before = {number: signal.signal(number, self._got) for number in signals}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
        self._wakes.close()
        self._woken.close()

    def wait(self, reload: Callable[[], object] = lambda: None) -> int:
        """Wait for one of the signals. Returns which one came. For SIGHUP: see `reloads`."""
        while (number := self.next()) == signal.SIGHUP:
            reload()
        self._restore()
        return number

    def next(self) -> int:
        """Wait for the next of the signals, or 0 for `tell`. Returns which one came."""
        while True:
            select.select([self._woken], [], [])
            number = self._woken.recv(1)[0]
            if number == 0 or number in self._before:
                return number

    def fileno(self) -> int:
        """For select: it can be read when `next` would return at once."""
        return self._woken.fileno()

    def tell(self) -> None:
        """End a `next`, from any thread."""
        self._wakes.send(b"\0")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        self._before = {}

    def _got(self, number: int, frame: FrameType | None) -> None:
        if not self.is_awaited:
            raise Stopped


def port(text: str) -> int:
    """An argparse type."""
    number = count(text)
    if number > LAST_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number up to {LAST_PORT}")
    return number


FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


def log_options(level: str, **options: Any) -> Iterator[Argument]:
    """How a command logs, from `level` on unless a flag names another; `options` override these defaults."""
    format_help = "the format of log lines on standard error (text)"
    yield arg("--log-format", format_help, choices=FORMATS, **{"default": "text"} | options)
    level_help = f"the lowest level that is logged ({level})"
    yield arg("--log-level", level_help, choices=LEVELS, **{"default": level} | options)


def log_messages(form: str, level: str) -> None:
    """Log to standard error: in a form of FORMATS, from a level of LEVELS on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger("embedlog")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


class _Text(logging.Formatter):
    """One line per message, even if a client put a newline into it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class _Json(logging.Formatter):
    """One JSON object per message."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)
