"""The speed without a compiler: the same work with EMBEDLOG_LOOPS=plain, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from embedlog.codec.loops import LOOPS_VARIABLE

from .crash import environment
from .measure import Contender, Prepare, Row, Sample, Work, calling
from .reading import embedlog_values, lmdb_values, sqlite_values
from .stores import VALUES, embedlog_batches, lmdb_batches, sqlite_batches

_BATCH = 1000


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(200 * scale), 1)
    return [
        Row(
            "append, batches of 1,000, without a compiler",
            "records/s",
            True,
            [
                Contender("embedlog, plain Python", _alone("append", thousands)),
                Contender("sqlite WAL NORMAL", calling(sqlite_batches(), VALUES, _BATCH, thousands)),
                Contender("lmdb no sync", calling(lmdb_batches(), VALUES, _BATCH, thousands)),
            ],
        ),
        Row(
            "read in order, values, without a compiler",
            "records/s",
            True,
            [
                Contender("embedlog, plain Python", _alone("read", thousands)),
                Contender("sqlite", sqlite_values(thousands)),
                Contender("lmdb", lmdb_values(thousands)),
            ],
        ),
    ]


def _alone(what: str, thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        yield partial(_measured, what, thousands, where)

    return prepare


def _measured(what: str, thousands: int, where: Path) -> Sample:
    command = [sys.executable, "-m", __name__, what, str(thousands), str(where)]
    plain = {**environment(), LOOPS_VARIABLE: "plain"}
    output = subprocess.run(command, check=True, env=plain, stdout=subprocess.PIPE).stdout
    return Sample(*json.loads(output))


def _prepared(what: str, thousands: int) -> Prepare:
    """Runs in the child."""
    if what == "append":
        return calling(embedlog_batches(), VALUES, _BATCH, thousands)
    return embedlog_values(thousands)


if __name__ == "__main__":
    with _prepared(sys.argv[1], int(sys.argv[2]))(Path(sys.argv[3])) as work:
        print(json.dumps(work()))
