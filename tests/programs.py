"""Python code in processes of their own, for tests that need a second one, or one that dies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def crash(path: Path, destination: Path) -> Path:
    """What a kill would leave now: a copy of the directory of a log that goes on living."""
    passing = shutil.ignore_patterns("*.tmp", "*.deleted", "*-delete")  # may go while we look at them
    shutil.copytree(path, destination, ignore=passing)
    return destination


class Program:
    """Python code in a process of its own: lines come out, lines go in; killed at the end of the test."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        self.pid = self.process.pid

    def line(self) -> str:
        """The next line it prints; its errors, where there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the program ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def say(self, line: object = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait until it has ended well; what it printed since the last `line`."""
        out, errors = self.process.communicate()
        assert self.process.returncode == 0, f"exit code {self.process.returncode}: {errors}"
        return out

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.communicate()
