"""Runs a page of the docs as its reader would: saves its files, runs its Python, types its commands.

- A block with a title (```python title="app.py") is saved under that name.
- A Python block without one runs here, in the page's namespace; `print(...)  # text` must print that text.
- Of a console block, lines that begin with `$ ` are typed into one shell, and the lines below are what must
  come out; `...` stands for anything, and what is measured (210 ms, 4.2 kB) may differ. A command that ends
  in `&` runs until the page ends, and the next one waits until what is shown below it has come.
- `pip install` is not run: its extras must exist.

Each of a page's ports is replaced by a free one.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from optional_programs import INSTALL
from programs import session_of

import embedlog

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
DOCUMENTS: Final = [DOCS / "index.md", DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
"""The pages that run as a whole."""
WAIT_S: Final = 300
_FENCE: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.S | re.M)
_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.M)
_PRINTED: Final = re.compile(r"print\(.*\)\s+# (.+)$")
_PORT: Final = re.compile(r"\b(?:localhost:|127\.0\.0\.1:|0\.0\.0\.0:|-port[ =])(\d{4,5})\b")
_MEASURED: Final = re.compile(r"\b\d[\d,.]* (?:B|kB|MB|GB|ms|s|min)\b")
_BOLD: Final = re.compile(r"\x1b\[\d*m")
_EXTRAS: Final = re.compile(r"embedlog\[([\w,-]+)\]")
_CONFIGURED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


class Block(NamedTuple):
    """A fenced block: its language, the file that it is saved in or "", its text."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*match.groups(default="")) for match in _FENCE.finditer(page)]


def programs_of(page: str) -> list[pytest.MarkDecorator]:
    """A test that types a page's commands needs the programs that they start."""
    typed = "\n".join(block.text for block in blocks(page) if block.language == "console")
    return [
        pytest.mark.program(name)
        for name in INSTALL
        if re.search(rf"(?:^\$|; |\| |\$\() ?{name} ", typed, re.M)
    ]


def python_blocks(page: str) -> list[str]:
    return [block.text for block in blocks(page) if block.language == "python" and not block.title]


def run_python(block: str, namespace: dict[str, object]) -> None:
    """Execute a block; each `print(...)  # text` must have printed that text."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "a block of the docs", "exec"), namespace)
    stated = [match[1] for line in block.splitlines() if (match := _PRINTED.search(line))]
    assert out.getvalue().splitlines() == stated


def run_page(page: str, directory: Path) -> None:
    """Run all blocks of a page in a directory, which must be the current one.

    Raises AssertionError at the first block that does something else than the page says.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    with Shell(directory) as shell:
        run_blocks(on_free_ports(page), directory, shell, namespace)
        log = namespace.get("log")
        if isinstance(log, embedlog.Log):
            log.close()
        namespace.clear()  # ends the clients, before the brokers


def run_blocks(page: str, directory: Path, shell: Shell, namespace: dict[str, object]) -> None:
    """As `run_page`, of a part of a page, whose ports are free."""
    for language, title, text in blocks(page):
        if title:
            (directory / title).parent.mkdir(parents=True, exist_ok=True)
            (directory / title).write_text(text)
        elif language == "python":
            run_python(text, namespace)
        elif language == "console":
            shell.type(text)


class Shell:
    """bash in a directory, where `python` and `embedlog` are these."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        programs = directory / ".bin"
        programs.mkdir()
        for name, command in (("embedlog", "-m embedlog"), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            (programs / name).chmod(0o755)
        search = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env={**os.environ, "PATH": search, "PYTHONPATH": str(ROOT), "TZ": "UTC", "COLUMNS": "110"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._send("set -m")  # jobs have numbers: `kill %1`
        self._jobs: list[str] = []  # their process ids

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            for job in reversed(self._jobs):
                self._type(f"kill -TERM {job} 2> /dev/null && wait {job}")
        assert self._bash.stdin is not None and self._bash.stdout is not None
        for pid in session_of(self._bash.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._bash.wait()
        self._bash.stdin.close()
        self._bash.stdout.close()

    def type(self, block: str, *, figures: re.Pattern[str] = _MEASURED, failing: bool = False) -> None:
        """Type the commands of a block, and compare what comes out, except for figures.

        A command must exit with 0 unless some may be failing.
        """
        for command, shown in _COMMAND.findall(block):
            if command.startswith("pip install"):
                _check_extras(command)
            elif command.endswith("&"):
                self._begin(command.removesuffix("&"), shown, figures)
            else:
                code, printed = self._type(command)
                assert code == 0 or failing, f"$ {command}\n{printed}exit {code}"
                matches = not shown.strip() or _matches(shown, printed, figures)
                assert matches, f"$ {command}\n{printed}is not\n{shown}"

    def _begin(self, command: str, shown: str, figures: re.Pattern[str]) -> None:
        said = self._directory / f".said-{len(self._jobs)}"
        said.touch()
        self._type(f"{command} > {said} 2>&1 < /dev/null &")
        self._jobs.append(self._type("echo $!")[1].strip())
        wanted = shown.rstrip() or "...listening ..."
        end = time.monotonic() + WAIT_S
        while not any(
            _matches(expected, printed := said.read_text(), figures)
            for expected in (wanted, f"{wanted}\n...")
        ):
            running, _ = self._type(f"kill -0 {self._jobs[-1]} 2> /dev/null")
            assert running == 0 and time.monotonic() < end, f"$ {command}&\n{printed}is not\n{wanted}"
            time.sleep(0.05)

    def _type(self, command: str) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        assert self._bash.stdout is not None
        self._send(f"{command}\nprintf '\\1%d\\n' $?")
        printed = b""
        end = time.monotonic() + WAIT_S
        while not (found := re.search(rb"\x01(\d+)\n", printed)):  # a job may print more after it
            ready, _, _ = select.select([self._bash.stdout], [], [], max(0, end - time.monotonic()))
            assert ready, f"$ {command}\n{printed.decode()}does not end"
            printed += os.read(self._bash.stdout.fileno(), 65_536)
        return int(found[1]), printed[: found.start()].decode()

    def _send(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{text}\n".encode())
        self._bash.stdin.flush()


def _matches(shown: str, printed: str, figures: re.Pattern[str]) -> bool:
    rules = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    shown, printed = (figures.sub("#", text) for text in (shown, _BOLD.sub("", printed)))
    return doctest.OutputChecker().check_output(shown, printed, rules)


def _check_extras(command: str) -> None:
    extras = _CONFIGURED["project"]["optional-dependencies"]
    for named in _EXTRAS.findall(command):
        assert set(named.split(",")) <= extras.keys(), command


def on_free_ports(page: str) -> str:
    """A page with free ports instead of its own; those in a row stay in a row."""
    rows: list[list[int]] = []
    for port in sorted({int(found) for found in _PORT.findall(page)}):
        if rows and rows[-1][-1] == port - 1:
            rows[-1].append(port)
        else:
            rows.append([port])
    for row in rows:
        for port, free in zip(row, _free_row(len(row)), strict=True):
            page = re.sub(rf"\b{port}\b", str(free), page)
    return page


def _free_row(length: int) -> list[int]:
    while True:
        with contextlib.ExitStack() as held:

            def bound(port: int, held: contextlib.ExitStack = held) -> int:
                taken = held.enter_context(socket.socket())
                taken.bind(("127.0.0.1", port))
                found: int = taken.getsockname()[1]
                return found

            first = bound(0)
            with contextlib.suppress(OSError, OverflowError):
                return [first, *(bound(first + more) for more in range(1, length))]
