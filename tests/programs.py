"""Python code in child processes, for tests that need a second process or one that dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).parent.parent
_PROC = Path("/proc")


def crash(path: Path, destination: Path) -> Path:
    """What a kill would leave now: a copy of an open log's directory."""
    passing = shutil.ignore_patterns(
        "*.tmp", "*.deleted", "*-delete", "*.sock"
    )  # may go while we look at them
    shutil.copytree(path, destination, ignore=passing)
    return destination


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended may be left for its parent to see."""
    return pid in _running()


def children_of(parent: int) -> list[int]:
    """The processes that a process has started and that run."""
    return [pid for pid, its_parent in _running().items() if its_parent == parent]


def session_of(leader: int) -> list[int]:
    """The processes of a session (setsid) that run."""
    members = []
    for pid in _running():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                members.append(pid)
    return members


def _running() -> dict[int, int]:
    """The processes that run, each with its parent. Not every Linux has `ps`; other systems have no /proc."""
    if not _PROC.exists():
        shown = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True).stdout
        rows = [line.split() for line in shown.splitlines()]
    else:
        rows = []
        for status in _PROC.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent = status.read_text(errors="replace").rpartition(") ")[2].split()[:2]
                rows.append([status.parent.name, parent, state])
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


def may_mount() -> bool:
    """May this user mount a file system of his own (user and mount namespaces)?"""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class Program:
    """Python code in a child process that exchanges lines with the test; killed at its end.

    Its errors go into a file, where one is given: one that runs for long and says much would else wait until
    somebody reads.
    """

    def __init__(self, code: str, *arguments: object, errors: Path | None = None) -> None:
        self._errors = errors
        with contextlib.ExitStack() as opened:
            into = subprocess.PIPE if errors is None else opened.enter_context(open(errors, "ab"))
            self.process = self._started(code, arguments, into)
        self.pid = self.process.pid

    @staticmethod
    def _started(code: str, arguments: Sequence[object], errors: int | IO[bytes]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "tests")))},
        )

    def line(self) -> str:
        """The next line it prints, or its errors if it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the program ended: {self._said()}")
        return line.rstrip("\n")

    def say(self, line: object = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait for its success; return what it printed since the last `line`."""
        out, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise AssertionError(f"exit code {self.process.returncode}: {errors or self._said()}")
        return out

    def _said(self) -> str:
        if self._errors is not None:
            return self._errors.read_text()[-4000:]
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self.process.kill()
        self.process.communicate()
