"""Signals and listening ports of commands that run until they are stopped."""

from __future__ import annotations

import argparse
import select
import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Final, Self

from .arguments import count

LAST_PORT: Final = 65_535


def stops() -> list[signal.Signals]:
    """The signals that end a command: SIGTERM and SIGINT, unless the command was started with them ignored.

    A script starts its background jobs with SIGINT ignored, so that Ctrl-C ends the script and not them. We
    leave it ignored, as a JVM, and so Kafka, does.
    """
    both = (signal.SIGTERM, signal.SIGINT)
    return [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]


class Stopped(BaseException):
    """A signal came while the broker was starting."""


class Stop:
    """The signals of `stops`, as something to wait for. Before `is_awaited` is set they raise Stopped.

    After the first one they have their usual effect again: who does not want to wait sends another.
    """

    def __init__(self) -> None:
        self.is_awaited = False
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.setblocking(False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._fd_before = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._got) for number in stops()}
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

    def wait(self) -> int:
        """Wait for one of the signals. Returns which one came."""
        select.select([self._woken], [], [])
        self._restore()
        return self._woken.recv(1)[0]

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
