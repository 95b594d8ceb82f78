"""The prompt of `embedlog sql`, on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog

pytest.importorskip("prompt_toolkit")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
ENDLESS = "SELECT max(a.n + b.n) FROM visits a, visits b WHERE a.n + b.n = -1;"


class Terminal:
    """A prompt, what is typed into it, and what it shows."""

    def __init__(self, log: Path, state: Path, *options: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 100))
        self.running = subprocess.Popen(
            [sys.executable, "-m", "embedlog", "sql", str(log), *options],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={
                **os.environ,
                "TERM": "xterm",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "XDG_STATE_HOME": str(state),
            },
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, pattern: str) -> None:
        """Wait until it shows a pattern, after the latest one."""
        while not (found := re.search(pattern, shown := _CONTROL.sub("", self._seen))):
            read = self._read()
            assert read, f"it ended before it showed {pattern}: {shown}"
            self._seen += read
        self._seen = shown[found.end() :]

    def ask(self, text: str, pattern: str) -> None:
        """Type a line at the prompt; wait until the answer shows a pattern, and for the next prompt."""
        self.type(text + "\r")
        self.until(pattern)
        self.until("sql>")

    def ends(self) -> int:
        """The exit code."""
        while self._read():
            pass
        return self.running.wait()

    def _read(self) -> str:
        try:
            return os.read(self._ours, 1 << 16).decode(errors="replace")
        except OSError:  # nobody has the other end any more
            return ""

    def close(self) -> None:
        self.running.kill()
        self.running.wait()
        os.close(self._ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("visits")
        log.create_topic("orders.eu-1")
        log.append_many("visits", [b'{"city": "Bern", "n": 1}'] * 40_000)
    return tmp_path / "log"


@pytest.fixture
def terminal(path: Path, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(path, tmp_path / "state")
    yield opened
    opened.close()


def test_statements_commands_and_history(terminal: Terminal, path: Path, tmp_path: Path) -> None:
    terminal.until("sql>")
    terminal.type("SELECT ci\t")
    terminal.until(r"(?s)SELECT ci.*ty")
    terminal.ask(", count(*) AS times\rFROM visits GROUP BY 1;", r"city +times\nBern +40,000\n")
    terminal.ask("SELECT bad FROM visits;", '"bad" not found')
    terminal.ask(".tables", r"topic *\norders.eu-1\nvisits\n")
    terminal.ask(".schema visits", r"city +VARCHAR\nn +BIGINT\n")
    terminal.ask(".schema missing", "no topic")
    terminal.ask(".mode yellow", r"\.mode table\|csv")
    terminal.ask(".mode csv", "csv\n")
    terminal.ask("SELECT min(n) AS least, 'x' AS x FROM visits;", r"least,x\n1,x\n")
    terminal.type("typed in vain")
    terminal.until("vain")
    terminal.type("\x03")
    terminal.until("sql>")
    terminal.ask("SELECT 7 AS seven;", r"seven\n7\n")
    terminal.type("\x04")
    assert terminal.ends() == 0
    history = tmp_path / "state" / "embedlog" / "sql_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+SELECT city, count(*) AS times\n+FROM visits GROUP BY 1;\n" in history.read_text()


@pytest.mark.slow
def test_history_lasts(path: Path, tmp_path: Path) -> None:
    for typed in ("SELECT 41 + 1 AS answer;", "\x1b[A\x1b[A"):  # up, over .quit
        terminal = Terminal(path, tmp_path / "state")
        terminal.until("sql>")
        terminal.ask(typed, r"answer\n +42\n")
        terminal.type(".quit\r")
        assert terminal.ends() == 0
        terminal.close()


@pytest.mark.slow
def test_ctrl_c_ends_the_query_and_not_the_prompt(terminal: Terminal) -> None:
    terminal.until("sql>")
    terminal.type(ENDLESS + "\r")
    terminal.until(r"records .*/s")  # it is running: the progress bar
    terminal.type("\x03")
    terminal.until("interrupted\n")
    terminal.until("sql>")
    terminal.ask("SELECT count(*) AS records FROM visits;", r"records\n +40,000\n")
    terminal.type("\x04")
    assert terminal.ends() == 0


@pytest.mark.slow
def test_without_a_file_for_the_history(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    terminal = Terminal(path, tmp_path / "file")
    terminal.until("sql>")
    terminal.ask("SELECT 1 AS one;", r"one\n +1\n")
    terminal.type("\x04")
    assert terminal.ends() == 0
    terminal.close()


def test_without_a_terminal_it_needs_a_query(path: Path) -> None:
    command = [sys.executable, "-m", "embedlog", "sql", str(path)]
    ran = subprocess.run(command, input="SELECT 1", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no QUERY" in ran.stderr and "standard input" in ran.stderr


@pytest.mark.parametrize("query", ["", " ;", "-- a comment"])
def test_an_empty_query(path: Path, query: str) -> None:
    command = [sys.executable, "-m", "embedlog", "sql", str(path), "-"]
    ran = subprocess.run(command, input=query, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "the query is empty\n")
