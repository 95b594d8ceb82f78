"""Kaskade, a terminal program for Kafka, in a terminal of its own against `embedlog serve`."""

from __future__ import annotations

import os
import re
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import embedlog

KASKADE = Path(__file__).parent / "frameworks" / ".venv" / "bin" / "kaskade"
HANGS_S = 240
ROWS, COLUMNS = 40, 160
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[ -/]+[0-~]|[=>]|[PX^_\]].*?(\x07|\x1b\\))")


class Terminal:
    """What a person sees and types."""

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self._shown = b""

    def until(self, *texts: str) -> None:
        """Wait until all of them were drawn since the last keys."""
        while not all(text in self._drawn() for text in texts):
            try:
                self._shown += os.read(self._ours, 65536)
            except BaseException as error:  # it has ended, or hangs
                error.add_note(f"drawn so far:\n{self._drawn()}")
                raise

    def _drawn(self) -> str:
        return ESCAPES.sub(b"", self._shown).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        self._shown = b""
        os.write(self._ours, keys)


@contextmanager
def kaskade(home: Path, *arguments: str) -> Iterator[Terminal]:
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (ROWS, COLUMNS))
    told = {**os.environ, "TERM": "xterm-256color", "HOME": str(home), "LC_ALL": "C.UTF-8"}
    try:
        with subprocess.Popen(
            [KASKADE, *arguments], env=told, stdin=its, stdout=its, stderr=its, start_new_session=True
        ) as program:
            os.close(its)
            try:
                yield Terminal(ours)
            finally:
                program.kill()
    finally:
        os.close(ours)


@pytest.mark.timeout(HANGS_S)
def test_consumer(bootstrap: str, tmp_path: Path) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("kaskade-read", partitions=2)
        log.append_many(
            "kaskade-read", [(b"key-%d" % number, b'{"order": %d}' % number) for number in range(20)]
        )
        command = [
            "consumer",
            "-b",
            bootstrap,
            "-t",
            "kaskade-read",
            "--earliest",
            "-k",
            "string",
            "-v",
            "json",
        ]
        with kaskade(tmp_path, *command) as terminal:
            terminal.until(
                *(f"key-{number}" for number in range(20)), *(f"'order': {number}" for number in range(20))
            )
            log.append("kaskade-read", b'{"order": "new"}', key=b"key-new")
            terminal.type(b"n")
            terminal.until("'order': 'new'")
