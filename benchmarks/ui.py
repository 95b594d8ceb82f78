"""`python -m benchmarks.ui`: how long the page takes to answer, on a log of 1,000 topics and 100 GB; then
as a client of a broker with 200 topics of 16 partitions.

    page                    as a browser asks for it, over HTTP, of `embedlog ui` in a process of its own
    first                   the first answer: nothing is known, no index is loaded
    median, p99             of the others

The 100 GB are a topic of sparse segments: batches of 2 MB whose headers are right and whose records are
holes. Nothing that these pages do reads a record.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import embedlog
from embedlog.files.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE, WRITER_STATE_FILE

_SPARSE: Final = "sparse"
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")  # docs/format/record-batch-v2.md
_BATCH_BYTES, _BATCH_RECORDS, _BATCH_MS = 2_000_000, 2_000, 10_000
_SEGMENT_BATCHES: Final = 500
_START_MS: Final = 1_767_225_600_000  # 2026-01-01
_FILLED: Final = 100  # topics with records
_WIRE_PARTITIONS: Final = 16
_PAGES: Final = (
    "/",
    "/?order=size",
    "/?first=900",
    "/?search=topic-05",
    "/topics/topic-0001",
    f"/topics/{_SPARSE}",
    f"/topics/{_SPARSE}?from=2026-01-02&to=2026-01-03",
    f"/topics/{_SPARSE}/partitions/0",
    "/groups",
    "/transactions",
    "/activity",
)
_WIRE_PAGES: Final = (
    "/",
    "/topics/topic-0001",
    "/topics/topic-0001/records",
    "/groups",
    "/group?name=group-01",
    "/queues",
    "/transactions",
    "/activity",
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ui", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results", help="where to write")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--segments", type=int, default=100, help="of a sparse GB each")
    parser.add_argument("--rounds", type=int, default=100, help="how often each page is asked for")
    parser.add_argument("--wire-topics", type=int, default=200, help="of 16 partitions, of a broker")
    parser.add_argument("--wire-only", action="store_true", help="leave out the directory")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="ui-", dir=options.dir))
    try:
        if not options.wire_only:
            _fill(directory / "log", options.topics, options.segments)
            _measure([str(directory / "log")], _PAGES, options.rounds)
        _fill_wire(directory / "served", options.wire_topics)
        with _served(directory / "served") as address:
            _measure(["--bootstrap-server", address], _WIRE_PAGES, options.rounds)
    finally:
        shutil.rmtree(directory)


def _fill(path: Path, topics: int, segments: int) -> None:
    with embedlog.open(path) as log:
        log.create_topic(_SPARSE)
        for number in range(topics - 1):
            log.create_topic(f"topic-{number:04}")
        for number in range(min(topics - 1, _FILLED)):
            log.append_many(f"topic-{number:04}", [b'{"user": 1}'] * 1_000)
    number = 0
    for _ in range(segments):
        with open(path / f"{_SPARSE}_0" / f"{number * _BATCH_RECORDS:011}.kafka", "wb") as segment:
            for at in range(_SEGMENT_BATCHES):
                segment.seek(at * _BATCH_BYTES)
                segment.write(_header(number))
                number += 1
            segment.truncate(_SEGMENT_BATCHES * _BATCH_BYTES)
    (path / CLEAN_SHUTDOWN_FILE).unlink()
    (path / WRITER_STATE_FILE).unlink(missing_ok=True)
    (path / RECOVERY_POINT_FILE).write_text(f"0\n1\n{_SPARSE} 0 {number * _BATCH_RECORDS}\n")
    with embedlog.open(path) as log:  # recovers, and makes the indexes
        assert log.offsets(_SPARSE)[0].log_end_offset == number * _BATCH_RECORDS
        assert log.offset_for_time(_SPARSE, 0, 1 << 60) is None  # asks each segment


def _header(number: int) -> bytes:
    first_ms = _START_MS + number * _BATCH_MS
    return _BATCH.pack(
        number * _BATCH_RECORDS,
        _BATCH_BYTES - 12,
        *(0, 2, 0, 0),
        _BATCH_RECORDS - 1,
        first_ms,
        first_ms + _BATCH_MS - 1,
        *(-1, -1, -1),
        _BATCH_RECORDS,
    )


def _fill_wire(path: Path, topics: int) -> None:
    with embedlog.open(path) as log:
        for number in range(topics):
            name = f"topic-{number:04}"
            log.create_topic(name, _WIRE_PARTITIONS)
            for partition in range(_WIRE_PARTITIONS):
                log.append_many(name, [b'{"user": 1}'] * 100, partition=partition)
        for number in range(20):
            log.group(f"group-{number:02}").reset(f"topic-{number:04}", to="earliest")


@contextlib.contextmanager
def _served(path: Path) -> Iterator[str]:
    """The address of a broker in a process of its own."""
    command = [sys.executable, "-m", "embedlog", "serve", str(path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield json.loads(served.stdout.readline())["listening"]
        finally:
            served.terminate()


def _measure(log: list[str], pages: Sequence[str], rounds: int) -> None:
    command = [sys.executable, "-m", "embedlog", "ui", *log, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            where, _, token = json.loads(served.stdout.readline())["address"].partition("/?")
            with closing(http.client.HTTPConnection(where.removeprefix("http://"))) as connection:
                connection.request("GET", f"/?{token}")
                let_in = connection.getresponse()
                let_in.read()
                cookie = let_in.headers["Set-Cookie"].partition(";")[0]
                print(f"{log[-1][-40:]:<44}{'first':>12}{'median':>12}{'p99':>12}")
                for page in pages:
                    took = [_ask(connection, page, cookie) for _ in range(rounds)]
                    p99 = sorted(took[1:])[int(len(took) * 0.99) - 1]
                    _show(page, took[0], statistics.median(took[1:]), p99)
        finally:
            served.terminate()


def _ask(connection: http.client.HTTPConnection, page: str, cookie: str) -> float:
    began = time.perf_counter()
    connection.request("GET", page, headers={"Cookie": cookie})
    response = connection.getresponse()
    response.read()
    assert response.status == 200, f"{page}: {response.status}"
    return time.perf_counter() - began


def _show(page: str, *seconds: float) -> None:
    print(f"{page:<44}" + "".join(f"{duration_s * 1e3:>9,.1f} ms" for duration_s in seconds), flush=True)


if __name__ == "__main__":
    main()
