"""The disk space that a record takes, counting all files of the closed store."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import embedlog

from .measure import Contender, Opener, Prepare, Row, Sample, Work
from .stores import TOPIC, VALUES, Call, embedlog_batches, lmdb_batches, raw, sqlite_batches


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    batches = max(int(100 * scale), 10)
    documents = _documents()
    size = sum(map(len, documents)) / len(documents)
    return [
        _row(f"disk, {len(VALUES[0])} B of noise, batches of 1,000", VALUES, batches, embedlog_batches()),
        _row(f"disk, JSON of {size:.0f} B, embedlog with zstd", documents, batches, _compressed),
    ]


def _row(title: str, values: list[bytes], batches: int, opener: Opener) -> Row:
    return Row(
        title,
        "bytes/record",
        False,
        [
            Contender("embedlog", _filling(opener, values, batches)),
            Contender("sqlite", _filling(sqlite_batches(), values, batches)),
            Contender("lmdb", _filling(lmdb_batches(), values, batches)),
            Contender("the values alone", _filling(raw(b"".join(values)), values, batches)),
        ],
    )


def _filling(opener: Opener, values: list[bytes], batches: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        def work() -> Sample:
            with opener(where) as append:
                for _ in range(batches):
                    append(values)
            files = [path for path in where.rglob("*") if path.is_file()]
            # Blocks, not lengths: lmdb's file is sparse.
            return Sample(sum(path.stat().st_blocks * 512 for path in files) / (batches * len(values)))

        yield work

    return prepare


@contextmanager
def _compressed(where: Path) -> Iterator[Call]:
    with embedlog.open(where, compression_type="zstd") as log:
        log.create_topic(TOPIC)
        yield lambda values: log.append_many(TOPIC, values)


def _documents() -> list[bytes]:
    """Made-up page views."""
    chosen = random.Random(0)
    return [
        json.dumps(
            {
                "user": chosen.randrange(100_000),
                "page": chosen.choice(["/", "/search", "/cart", "/item"]),
                "time_ms": 1_700_000_000_000 + number * 37,
                "took_ms": round(chosen.expovariate(1 / 40), 1),
            }
        ).encode()
        for number in range(1000)
    ]
