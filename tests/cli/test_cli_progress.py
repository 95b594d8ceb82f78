"""Progress bars: shown on a terminal for long tasks only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import Run, call, environment
from rounds import first_is_quick

import embedlog

COMMAND = """
import sys
from embedlog.cli import main, ui
ui._PATIENCE_S = float(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
BAR = "━"
COMMANDS = [
    ["append", "data", "clicks", "lines"],
    ["backup", "data", "copy"],
    ["export", "data", "exported"],
    ["import", "data", "kafka/clicks-0", "--topic", "imported"],
    ["verify", "data"],
    ["repair", "data", "clicks", "0"],
    ["dump", "data/clicks_0/00000000000.kafka"],
]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with records, one with Kafka's names, and lines to append."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, layout in (("data", "classic"), ("kafka", "kafka")):
        with embedlog.open(tmp_path / name, layout=layout) as log:
            log.create_topic("clicks", segment_bytes=50_000)
            for _ in range(100):
                log.append_many("clicks", [b"x" * 100] * 20)
    (tmp_path / "lines").write_bytes(b"a line\n" * 10_000)
    return tmp_path


def on_a_terminal(arguments: list[str], cwd: Path, *, stdin: int | None = None, patience_s: float = 0) -> str:
    """What a command shows on standard error, if that is a terminal. By default everything takes long."""
    ours, its = os.openpty()
    command = [sys.executable, "-c", COMMAND, str(patience_s), *arguments]
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdin=stdin, stderr=its, stdout=subprocess.DEVNULL
        )
        os.close(its)
        shown = b""
        try:
            while data := terminal.read(4096):
                shown += data
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, shown
    return shown.decode()


@pytest.mark.parametrize("arguments", first_is_quick(COMMANDS, 2), ids=lambda given: given[0])
def test_a_bar_on_a_terminal(given: Path, arguments: list[str]) -> None:
    shown = on_a_terminal(arguments, given)
    assert BAR in shown
    assert "?" not in shown.replace("\x1b[?25", "")  # but for what hides the cursor
    assert " kB / " in shown
    assert "B/s" in shown
    assert "00:00" in shown  # left


@pytest.mark.parametrize("more", [[], ["--format", "{offset}"], ["--from", "-10"]], ids=str)
def test_reading_has_a_bar_of_records(given: Path, more: list[str]) -> None:
    shown = on_a_terminal(["cat", "data", "clicks", *more], given)
    assert BAR in shown
    total = 10 if more[:1] == ["--from"] else 2_000
    assert f"{total:,} / {total:,}" in shown
    code, _, errors = call(["cat", "data", "clicks", *more], given)
    assert (code, errors) == (0, b"")


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda given: given[0])
def test_nothing_is_shown_elsewhere(given: Path, arguments: list[str]) -> None:
    code, _, errors = call(arguments, given)
    assert (code, errors) == (0, b"")


@pytest.mark.parametrize("arguments", COMMANDS[1:], ids=lambda given: given[0])
def test_with_json_there_is_no_bar(given: Path, arguments: list[str]) -> None:
    assert on_a_terminal([*arguments, "--json"], given) == ""


def test_appending_json_lines_has_a_bar(given: Path, run: Run) -> None:
    (given / "lines").write_bytes(b'{"value": "x"}\n' * 10_000)
    assert BAR in on_a_terminal(["append", "data", "clicks", "lines", "--json"], given)


def test_appending_from_a_pipe_has_a_bar_without_an_end(given: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a line\n" * 2_000)
    os.close(writing)
    with open(reading, "rb") as pipe:
        shown = on_a_terminal(["append", "data", "clicks"], given, stdin=pipe.fileno())
    assert BAR in shown
    assert "14.0 kB   " in shown


@pytest.mark.parametrize("flag", ["--ack", "--quiet"])
def test_append_shows_no_bar_with_acks_or_quiet(given: Path, flag: str) -> None:
    assert on_a_terminal(["append", "data", "clicks", "lines", flag], given) == ""


def test_short_tasks_show_no_bar(given: Path) -> None:
    assert on_a_terminal(["verify", "data"], given, patience_s=3600) == ""
