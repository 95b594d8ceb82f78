"""`embedlog top`: rates and lags, in tables, lines, JSON, and on a terminal that is left as it was."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest
from broker_process import served
from cli_commands import COMMAND, Run, environment

import embedlog

OTHER_SCREEN, FIRST_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@contextmanager
def piped(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, "top", *arguments], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_rates_of_topics_and_groups(log: Path) -> None:
    with embedlog.open(log) as opened:
        opened.group("billing").reset("clicks", to=0, partitions=0)
    with piped(str(log), "--json", "--interval", "0.1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with embedlog.open(log) as opened:
            opened.append_many("clicks", [b"x" * 100] * 1_000, partition=0)
            opened.group("billing").reset("clicks", to=400, partitions=0)
        records = taken = done = 0.0
        while not (records and done):
            facts = json.loads(process.stdout.readline())
            clicks = next(each for each in facts["topics"] if each["topic"] == "clicks")
            records += clicks["records_per_s"]
            taken += clicks["bytes_per_s"]
            (billing,) = facts["groups"]
            done += billing["records_per_s"]
        assert clicks["offsets"] == 1_030
        assert taken > 0
        assert billing["lag"] == 610
        process.terminate()
        assert process.wait() == 0


def test_one_sample_has_queues(log: Path, run: Run) -> None:
    with embedlog.open(log) as opened:
        opened.create_topic("jobs")
        opened.append_many("jobs", [b"a", b"b", b"c"])
        with opened.queue("jobs") as queue:
            job = queue.take()
            job.accept()
    ran = run("top", "data", "--once", "--interval", "0.1")
    assert ["jobs", "1", "0", "0", "B", "3"] in [row[:6] for row in ran.rows()]
    assert ["queue", "group", "available", "acquired", "delayed", "dead"] in ran.rows()
    (queue_row,) = run("top", "data", "--once", "--json", "--interval", "0.1").objects[0]["queues"]
    assert queue_row["available"] + queue_row["acquired"] == 2


def test_topics_are_sorted(log: Path, run: Run) -> None:
    shown = run("top", "data", "--once", "--interval", "0.1", "--sort", "name").out
    assert shown.index("clicks") < shown.index("empty")
    assert "__consumer" not in shown


def test_brokers(tmp_path: Path, run: Run) -> None:
    with served(tmp_path, "--port", "0") as told:
        with embedlog.open(f"kafka://{told['listening']}") as remote:
            remote.create_topic("clicks", partitions=2)
            remote.append_many("clicks", [b"x" * 1_000] * 10)
            taken = sum(remote.backend.sizes("clicks").values())
        ran = run("top", f"kafka://{told['listening']}", "--once", "--json", "--interval", "0.1")
    (facts,) = ran.objects
    assert facts["brokers"][0]["address"] == told["listening"]
    assert facts["topics"][0]["bytes"] == taken > 10_000
    with embedlog.open(tmp_path / "log", mode="r") as log:
        assert taken == sum(log.backend.sizes("clicks").values())


def test_lines_for_a_pipe(log: Path) -> None:
    with piped(str(log), "--interval", "0.1") as process:
        assert process.stdout is not None
        when, *rest = process.stdout.readline().split()
        assert when.endswith("Z")
        assert rest[:2] == ["topic", "clicks"]
        assert "records_per_s=0.0" in rest


def read_to_end(terminal: FileIO, process: subprocess.Popen[bytes]) -> bytes:
    """What a process writes until it ends: it waits for a terminal that nobody reads."""
    shown = b""
    while process.poll() is None:
        if select.select([terminal], [], [], 0.05)[0]:
            shown += terminal.read(4096)
    while select.select([terminal], [], [], 0)[0]:
        shown += terminal.read(4096)
    return shown


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, b"q"], ids=["SIGTERM", "ctrl-C", "q"])
@pytest.mark.slow
def test_the_terminal_is_left_as_it_was(log: Path, end: signal.Signals | bytes) -> None:
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (24, 80))
    before = termios.tcgetattr(its)
    command = [*COMMAND, "top", str(log), "--interval", "0.1"]
    with (
        open(ours, "r+b", buffering=0) as terminal,
        open(its, "rb", buffering=0) as kept,
        subprocess.Popen(command, env={**environment(), "TERM": "xterm"}, stdin=its, stdout=its) as process,
    ):
        shown = b""
        while b"clicks" not in shown:
            shown += terminal.read(4096)
        assert OTHER_SCREEN in shown
        assert termios.tcgetattr(kept) != before
        if isinstance(end, bytes):
            terminal.write(end)
        else:
            process.send_signal(end)
        shown += read_to_end(terminal, process)
        assert FIRST_SCREEN in shown
        assert process.wait() == 0
        assert termios.tcgetattr(kept) == before


@pytest.mark.slow
def test_the_terminal_is_filled(tmp_path: Path) -> None:
    """The rows that short tables do not need are for the long one."""
    with embedlog.open(tmp_path / "data") as log:
        for number in range(40):
            log.create_topic(f"topic-{number:02}")
        log.group("billing").reset("topic-00", to=0, partitions=0)
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (30, 80))
    command = [*COMMAND, "top", str(tmp_path / "data"), "--interval", "0.1", "--sort", "name"]
    with (
        open(ours, "rb", buffering=0) as terminal,
        open(its, "rb", buffering=0),
        subprocess.Popen(command, env={**environment(), "TERM": "xterm"}, stdin=its, stdout=its) as process,
    ):
        shown = b""
        while b"billing" not in shown:
            shown += terminal.read(4096)
        process.terminate()
        shown += read_to_end(terminal, process)
        assert FIRST_SCREEN in shown
        assert process.wait() == 0
    # 2 lines of the head; 3 around each table; billing; the rest is for topics
    assert b"topic-20" in shown
    assert b"topic-21" not in shown
    assert b"and 19 more" in shown
