"""Runs the command line: in this process for speed, in a child process if the test needs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import embedlog
from embedlog.cli import main

COMMAND = [sys.executable, "-m", "embedlog"]
ROOT = Path(embedlog.__file__).parents[1]


class Ran(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON lines of standard output."""
        return [json.loads(line) for line in self.out.splitlines()]

    def rows(self) -> list[list[str]]:
        """The cells of a table, split at the space between columns."""
        return [line.split() for line in self.out.splitlines()]


Run = Callable[..., Ran]


def runner(capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs commands in this process, in a directory."""
    monkeypatch.chdir(directory)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TZ", "UTC")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return run


def environment() -> dict[str, str]:
    """The environment of a command in a child process."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def spawn(arguments: Sequence[str], cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a child process, with pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=environment(), **{**pipes, **options})


def call(arguments: Sequence[str], cwd: Path, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run a command in a child process to its end: (code, standard output, standard error)."""
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(), input=given, capture_output=True, check=False
    )
    return done.returncode, done.stdout, done.stderr
