"""The command line: how long a command takes to start, and to print a topic."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .broker import serving
from .crash import environment
from .measure import Contender, Prepare, Row, Work, duration
from .reading import fill
from .stores import TOPIC

_RECORDS = 200  # thousands


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(_RECORDS * scale), 1)
    return [
        Row(
            "embedlog --version",
            "ms",
            False,
            [
                Contender("embedlog", _command([sys.executable, "-m", "embedlog", "--version"])),
                Contender("nothing: python -c ''", _command([sys.executable, "-c", ""])),
            ],
        ),
        _printing(thousands),
        _printing(thousands, "--json"),
    ]


def _printing(thousands: int, *options: str) -> Row:
    kcat = [Contender("kcat, over the wire", _cat("kcat", thousands, *options))]
    return Row(
        f"{' '.join(['embedlog cat', *options])}, {thousands * 1000:,} records",
        "ms",
        False,
        [
            Contender("embedlog", _cat("directory", thousands, *options)),
            Contender("embedlog, over the wire", _cat("wire", thousands, *options)),
            *(kcat if shutil.which("kcat") else []),
        ],
    )


def _command(command: list[str]) -> Prepare:
    @contextmanager
    def prepare(_: Path) -> Iterator[Work]:
        env = environment()
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's program finds its modules compiled

        def run() -> None:
            subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)

        run()
        yield duration(1, 1e-3, run)

    return prepare


def _cat(how: str, thousands: int, *options: str) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, 1000, keyed=False)
        cat = [sys.executable, "-m", "embedlog", "cat"]
        if how == "directory":
            with _command([*cat, str(where), TOPIC, *options])(where) as work:
                yield work
            return
        with serving("broker", where) as served:
            address = f"127.0.0.1:{served.port}"
            command = (
                ["kcat", "-C", "-e", "-q", *(["-J"] if options else []), "-b", address, "-t", TOPIC]
                if how == "kcat"
                else [*cat, "--bootstrap-server", address, TOPIC, *options]
            )
            with _command(command)(where) as work:
                yield work

    return prepare
