"""The commands of docs/cluster.md, docs/mirroring.md, docs/how-to and what the README shows, as they stand.

Ports are replaced by free ones. What a page shows as output must come, but for the figures in it. What ends
in `&` runs on until the end, and the next block waits until all of it says that it is `listening`.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cli_commands import Run, runner
from zookeepers import WAIT_S, eventually

ROOT = Path(__file__).parent.parent.parent
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.S | re.M)


class Terminal:
    """A shell in a directory of its own, where `embedlog` is this one."""

    def __init__(self, directory: Path, ports: dict[str, str], run: Run) -> None:
        self.directory = directory
        self._here = run
        self._ports = ports
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        command = directory / "bin" / "embedlog"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m embedlog "$@"\n')
        command.chmod(0o755)
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def type(self, block: str) -> None:
        """Run the lines of a block that begin with `$ `; the others are what is to come out."""
        for command in re.findall(r"^\$ (.*(?:\n(?!\$ ).*)*)", block, re.M):
            line, _, shown = command.partition("\n")
            for port, free in self._ports.items():
                line = line.replace(port, free)
            if line.endswith("&"):
                self._begin(line.removesuffix("&"))
            else:
                self._run(line, shown.rstrip("\n"))

    def _begin(self, line: str) -> None:
        said = self.directory / f"said-{len(self._running)}"
        with said.open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {line}"],
                cwd=self.directory,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._running.append((process, said))

    def port(self, documented: str) -> str:
        """The free port that stands for one of a page."""
        return self._ports[documented]

    def wait(self) -> None:
        """Until all that runs says that it is listening."""
        for process, said in self._running:
            eventually(
                lambda ended=process.poll, said=said: "listening " in said.read_text() or ended() is not None,
                "it listens",
            )
            assert "listening " in said.read_text(), said.read_text()

    def _run(self, line: str, shown: str) -> None:
        if line.startswith("embedlog "):  # in this process: sooner
            ran = self._here(*shlex.split(line)[1:])
            assert ran.code == 0, (line, ran.err)
            assert not shown or _shape(ran.out) == _shape(shown)
            return
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert not shown or _shape(done.stdout) == _shape(shown)

    def close(self) -> None:
        """Stop all that runs, the last one first: it must end in order."""
        for process, _ in reversed(self._running):
            process.terminate()
            assert process.wait(WAIT_S) == 0


def _shape(text: str) -> list[list[str]]:
    """The words of each line, without figures."""
    return [re.sub(r"[\d,.]+|\b[kM]?B\b|\bm?s\b", " ", line).split() for line in text.splitlines()]


@pytest.fixture
def terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    with ExitStack() as ends:
        terminal = Terminal(tmp_path, _free_ports(), runner(capsys, tmp_path, monkeypatch))
        ends.callback(terminal.close)
        yield terminal


def _free_ports() -> dict[str, str]:
    """Free ports for those that the pages have: three in a row for ZooKeeper, and for the brokers."""
    while True:
        with ExitStack() as held:

            def bound(port: int, held: ExitStack = held) -> int:
                taken = held.enter_context(socket.socket())
                taken.bind(("127.0.0.1", port))
                found: int = taken.getsockname()[1]
                return found

            first = bound(0)
            try:
                row = [first, bound(first + 1), bound(first + 2)]
            except (OSError, OverflowError):
                continue
            brokers = [bound(0) for _ in range(3)]
        names = ("2181", "2182", "2183", "9092", "9093", "9094")
        return dict(zip(names, map(str, row + brokers), strict=True))


@pytest.mark.jvm
def test_from_one_process_to_three_brokers_and_into_a_copy(terminal: Terminal) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    blocks = CONSOLE.findall(page)
    assert len(blocks) == 3
    for block in blocks:
        terminal.type(block)
        terminal.wait()
    described = re.search(r"`(embedlog cluster describe .*?)`", page)
    assert described is not None
    terminal.type(f"$ {described[1]}\n")
    mirroring = CONSOLE.findall((ROOT / "docs" / "mirroring.md").read_text())[0]
    terminal.type(mirroring.partition("\nfrom")[0].replace("localhost", "127.0.0.1") + "\n")
    terminal.type("$ embedlog cat ./copy clicks\nso far\n")


def test_the_commands_of_the_readme(terminal: Terminal) -> None:
    readme = (ROOT / "README.md").read_text()
    (block,) = CONSOLE.findall(readme.split("## On the command line")[1].split("\n## ")[0])
    once = block.replace("tail -f ", "tail -f --max-records 1 ")
    (first,) = re.findall(r"^```python\n(.*?)^```", readme.split("## Two commands")[0], re.S | re.M)
    names: dict[str, Any] = {}
    exec(first, names)  # makes what the commands look at
    names["log"].close()
    terminal.type(once)
    assert len(once.splitlines()) == 6


def test_how_to_secure_a_broker(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of the page in turn, shell and Python."""
    page = (ROOT / "docs" / "how-to" / "secure-a-broker.md").read_text()
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", page, re.S | re.M)
    assert [language for language, _ in blocks].count("python") == 2
    monkeypatch.chdir(terminal.directory)
    for language, block in blocks:
        if language == "python":
            exec(block.replace("9093", terminal.port("9093")), {})
        else:
            terminal.type(block)
            terminal.wait()
