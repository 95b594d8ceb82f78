"""Processes of this machine, and whether one still runs, told also after its end.

    boot, pid namespace, pid, start time

A pid alone is given to another process later, and means another one in a container. Where the system does
not tell the rest (macOS), a process counts as running while its pid is in use.

Source: proc(5): /proc/sys/kernel/random/boot_id, /proc/pid/ns/pid, starttime in /proc/pid/stat.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_STATE, _START = 0, 19  # fields of /proc/pid/stat after the name, which may have spaces
_UNKNOWN: Final = "-"


class Process(NamedTuple):
    """A process. `str` of it is one word for each field, which `parsed` takes."""

    boot: str
    namespace: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"{self.boot} {self.namespace} {self.pid} {self.start}"

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more: it was killed, has exited, or is what its parent has not reaped.

        False if that is unknown, since it is of another container. One that is stopped runs.
        """
        if self.boot != (boot := _boot()):
            return _UNKNOWN not in (self.boot, boot)
        if self.namespace != _namespace():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # another user's
        stat = _stat(self.pid)
        if not stat:
            return False
        return stat[_STATE] in "ZX" or (self.start != _UNKNOWN and stat[_START] != self.start)


def this_process() -> Process:
    """The process that calls."""
    pid = os.getpid()
    return Process(_boot(), _namespace(), pid, _start(pid))


def process_of(pid: int) -> Process | None:
    """The process that has a pid now; None for 0, which stands for one of another container."""
    return Process(_boot(), _namespace(), pid, _start(pid)) if pid > 0 else None


def parsed(text: str) -> Process | None:
    """The process that `str` has written; None if it has not."""
    words = text.split(" ")
    if len(words) != len(Process._fields) or not (words[2].isascii() and words[2].isdigit()):
        return None
    return Process(words[0], words[1], int(words[2]), words[3])


def _start(pid: int) -> str:
    stat = _stat(pid)
    return stat[_START] if stat else _UNKNOWN


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read().rpartition(") ")[2].split()
    except OSError:
        return []
    return stat if len(stat) > _START else []


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return _UNKNOWN


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return _UNKNOWN
