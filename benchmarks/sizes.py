"""`python -m benchmarks.sizes`: plots of appending and reading against record size and batch size.

Prints the figures, and plots them to docs/images/performance-append.svg and performance-read.svg with
matplotlib.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import starmap
from pathlib import Path

import embedlog

from .measure import Contender, Opener, Prepare, Result, Row, Work, calling, measure, rate
from .stores import (
    TOPIC,
    embedlog_batches,
    embedlog_one,
    lmdb_batches,
    lmdb_environment,
    lmdb_one,
    raw,
    same_batch,
    sqlite_batches,
    sqlite_connection,
    sqlite_one,
)

_IMAGES = Path(__file__).parent.parent / "docs" / "images"
_RECORD_SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000, 1_000_000)
_BATCH_SIZES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
_MOST_BYTES = 60_000_000
_MOST_RECORDS = 300_000


def main() -> None:
    """Measure and plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="sizes-", dir=options.dir))
    figures: dict[str, dict[int, dict[str, float]]] = {}
    try:
        for title, points in (
            ("append, batches of 100: record size", {n: _append(n, 100) for n in _RECORD_SIZES}),
            ("append, records of 100 bytes: batch size", {n: _append(100, n) for n in _BATCH_SIZES}),
            ("read values, batches of 100: record size", {n: _read(n, 100) for n in _RECORD_SIZES}),
            ("read values, records of 100 bytes: batch size", {n: _read(100, n) for n in _BATCH_SIZES}),
        ):
            print(f"\n{title}")
            figures[title] = {}
            for point, row in points.items():
                results = measure(row, options.rounds, directory)
                figures[title][point] = {result.name: result.median for result in results}
                print(f"{point:>12,}  {_line(results)}", flush=True)
    finally:
        shutil.rmtree(directory)
    (options.dir / "sizes.json").write_text(json.dumps(figures, indent=1) + "\n")
    _draw(figures)


def _line(results: list[Result]) -> str:
    return "  ".join(f"{result.name} {result.median:>14,.0f}" for result in results)


def _counts(size: int, batch: int) -> tuple[int, int]:
    """(calls, records) for a run that is not too long."""
    records = max(min(_MOST_BYTES // size, _MOST_RECORDS), batch)
    if batch == 1:
        records = min(records, 50_000)
    return max(records // batch, 1), max(records // batch, 1) * batch


def _append(size: int, batch: int) -> Row:
    values = [random.Random(i).randbytes(size) for i in range(batch)]
    calls, _ = _counts(size, batch)
    openers: dict[str, Opener] = {
        "embedlog": embedlog_one() if batch == 1 else embedlog_batches(),
        "sqlite": sqlite_one() if batch == 1 else sqlite_batches(),
        "lmdb": lmdb_one() if batch == 1 else lmdb_batches(),
        "os.write": raw(same_batch(values)),
    }
    argument = values[0] if batch == 1 else values
    contenders = [
        Contender(name, calling(opener, argument, batch, calls)) for name, opener in openers.items()
    ]
    return Row("", "records/s", True, contenders)


def _read(size: int, batch: int) -> Row:
    values = [random.Random(i).randbytes(size) for i in range(batch)]
    calls, records = _counts(size, batch)

    @contextmanager
    def with_embedlog(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC)
            for _ in range(calls):
                log.append_many(TOPIC, values)
            yield rate(records, lambda: sum(len(value or b"") for value in log.read_values(TOPIC)))

    @contextmanager
    def with_sqlite(where: Path) -> Iterator[Work]:
        with closing(sqlite_connection(where, "OFF")) as connection:
            for _ in range(calls):
                connection.executemany("INSERT INTO log (value) VALUES (?)", [(v,) for v in values])
            connection.commit()
            query = "SELECT value FROM log ORDER BY id"
            yield rate(records, lambda: sum(len(value) for (value,) in connection.execute(query)))

    @contextmanager
    def with_lmdb(where: Path) -> Iterator[Work]:
        with lmdb_environment(where, sync=False) as environment:
            with environment.begin(write=True) as transaction:
                for i in range(records):
                    transaction.put(i.to_bytes(8, "big"), values[i % batch], append=True)
            with environment.begin() as transaction:
                cursor = transaction.cursor()
                yield rate(
                    records, lambda: sum(len(value) for value in cursor.iternext(keys=False, values=True))
                )

    prepares: dict[str, Prepare] = {
        "embedlog": with_embedlog,
        "sqlite": with_sqlite,
        "lmdb": with_lmdb,
    }
    return Row("", "records/s", True, list(starmap(Contender, prepares.items())))


def _draw(figures: dict[str, dict[int, dict[str, float]]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "embedlog"
    import matplotlib.pyplot as plt

    colours = {"embedlog": "#c2410c", "sqlite": "#64748b", "lmdb": "#0f766e", "os.write": "#a8a29e"}
    titles = list(figures)
    _IMAGES.mkdir(parents=True, exist_ok=True)
    for name, pair in (("append", titles[:2]), ("read", titles[2:])):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4))
        for axis, title in zip(axes, pair, strict=True):
            points = figures[title]
            what, against = title.split(": ")
            for store in next(iter(points.values())):
                axis.plot(
                    list(points),
                    [rates[store] for rates in points.values()],
                    marker="o",
                    markersize=3.5,
                    linewidth=2 if store == "embedlog" else 1.2,
                    color=colours[store],
                    label=store,
                )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(what, fontsize=10)
            axis.set_xlabel("bytes a record" if against == "record size" else "records a batch")
            axis.set_ylabel("records a second")
            axis.grid(True, which="major", linewidth=0.4, color="#d6d3d1")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].legend(frameon=False, fontsize=9)
        figure.tight_layout()
        figure.savefig(_IMAGES / f"performance-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
