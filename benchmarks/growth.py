"""`python -m benchmarks.growth`: how costs grow.

A table each for the size of the log, its segments, its partitions, consumers, reader processes, and the
number of descriptors. The log of the first grows from line to line; the others create a new one for each
line. Compare a line with the lines above it. Everything is in the page cache, unless the log is larger.

    µs              CPU time of this process with all its threads, per call or per record: the least of
                    several slices of many calls, which other programs change least
    ms              wall time, the median of single calls


    append          one call of log.append, 100 bytes; of random partitions where there are several
    batch           one call of log.append_many, 1,000 values of 100 bytes
    read            log.read in order, per record
    seek, by time   up to the first record of log.read from a random offset; log.offset_for_time
    read_at         log.read_at at a random offset of a random partition
    poll            an append, then consumer.poll until it returns the record
    open, close     of a log that was closed cleanly; "r": until the end of each partition is known
    crash           open after the writer was killed (SIGKILL) half a second into appending
    memory          of this process, after all of that
    all have it     an append, then until every reader process has read the record
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple, TypeAlias

import embedlog

from .stores import VALUES
from .table import replaced

_TOPIC = "t"
_MB = 1 << 20
_BATCH_BYTES = 108_000  # what 1,000 of the values take
_SIZES_MB = (1, 16, 128, 512)
_LARGE_SIZES_MB = (1, 16, 256, 1024, 4096, 20 * 1024)
_SEGMENTS = (1, 10, 100, 1000)
_PARTITIONS = (1, 10, 100, 1000)
_LARGE_PARTITIONS = (*_PARTITIONS, 10_000)
_CONSUMERS = (1, 2, 4, 8, 16, 32)
_READERS = (0, 1, 2, 4, 8, 16)
_DESCRIPTORS = (128, 256, 1024, 4096)
_SEGMENTED_MB = 64
_OPEN_PARTITIONS = 1000

Figures: TypeAlias = dict[str, float]


class Table(NamedTuple):
    """What grows, up to what with --large, and the function that measures the lines."""

    title: str
    points: Sequence[int]
    large: Sequence[int]
    lines: Callable[[Path, Sequence[int]], Iterator[Figures]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--large", action="store_true", help="logs of up to 20 GB, and of up to 10,000 partitions"
    )
    parser.add_argument("--only", choices=tuple(_TABLES), action="append", help="only this table")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the tables into this page, too")
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results", help="where to write")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="growth-", dir=options.dir))
    try:
        for name, table in _TABLES.items():
            if name in (options.only or _TABLES):
                points = table.large if options.large else table.points
                markdown = _print(table.title, points, table.lines(directory, points))
                if options.page is not None:
                    text = replaced(options.page.read_text(), markdown, f"growth-{name}")
                    options.page.write_text(text)
    finally:
        shutil.rmtree(directory)


def _print(what: str, points: Sequence[int], lines: Iterator[Figures]) -> str:
    """Print a Markdown table, each line as soon as it is measured. Returns it."""
    table: list[str] = []
    print()
    for point, figures in zip(points, lines, strict=True):
        cells = (f"{value:,.0f}" if value >= 100 else f"{value:,.3g}" for value in figures.values())
        rows = [f"| {point:,} | " + " | ".join(cells) + " |"]
        if not table:
            rows[:0] = [f"| {what} | " + " | ".join(figures) + " |", "|---:" * (1 + len(figures)) + "|"]
        print("\n".join(rows), flush=True)
        table += rows
    return "\n".join(table) + "\n"


# -- the tables ----------------------------------------------------------------------------------------


def by_size(directory: Path, sizes_mb: Sequence[int]) -> Iterator[Figures]:
    """One partition that grows. All settings are the defaults, including segments of 1 GiB."""
    path = directory / "size"
    with embedlog.open(path) as log:
        log.create_topic(_TOPIC)
    for megabytes in sizes_mb:
        figures: Figures = {}
        with embedlog.open(path) as log:
            while log.health().bytes < megabytes * _MB:
                for _ in range(max(min(megabytes, 64) * _MB // _BATCH_BYTES // 4, 1)):
                    log.append_many(_TOPIC, VALUES, partition=0)
            log.flush()
            figures |= _appending(log, 1)
            figures |= _reading(log, 1, 200_000)
        yield figures | _opening(path, 1)


def by_segments(directory: Path, counts: Sequence[int]) -> Iterator[Figures]:
    """One partition of 64 MB, in about so many segments."""
    batches = _SEGMENTED_MB * _MB // _BATCH_BYTES
    for count in counts:
        path = directory / f"segments-{count}"
        small = [_split(VALUES, len(VALUES) * batches // count) for _ in range(count)]
        with embedlog.open(path, segment_bytes=_SEGMENTED_MB * _MB // count) as log:
            log.create_topic(_TOPIC)
            for segment in small:
                for values in segment:
                    log.append_many(_TOPIC, values)
        with embedlog.open(path) as log:
            figures = _appending(log, 1) | _reading(log, 1, 200_000)
        yield figures | _opening(path, 1)
        shutil.rmtree(path)


def by_partitions(directory: Path, counts: Sequence[int]) -> Iterator[Figures]:
    """200,000 records, ten segments in each partition, two in each of 10,000."""
    for count in counts:
        path = directory / f"partitions-{count}"
        figures: Figures = {}
        segments = 10 if count < _LARGE_PARTITIONS[-1] else 2
        with embedlog.open(path, segment_bytes=max(200_000 // count * 108 // segments, 1024)) as log:
            took = _timed(partial(log.create_topic, _TOPIC, partitions=count))
            figures["create ms"] = took * 1e3
            for _ in range(segments):
                for number in range(count):
                    for values in _split(VALUES, 200_000 // segments // count):
                        log.append_many(_TOPIC, values, partition=number)
        with embedlog.open(path) as log:
            figures |= _appending(log, count)
            figures |= _reading(log, count, 200_000)
        yield figures | _opening(path, count)
        shutil.rmtree(path)


def by_consumers(directory: Path, counts: Sequence[int]) -> Iterator[Figures]:
    """Consumers in one process, each in a group of its own; and as many that share 64 partitions."""
    for count in counts:
        path = directory / f"consumers-{count}"
        with embedlog.open(path) as log, ExitStack() as stack:
            log.create_topic(_TOPIC, partitions=4)
            log.create_topic("shared", partitions=64)
            for _ in range(100):
                log.append_many(_TOPIC, VALUES)
            figures: Figures = {}
            with _consumer(log, "first") as consumer:  # creates the topic for commits
                consumer.poll(0)
            before = _memory_mb()
            alone = [stack.enter_context(_consumer(log, f"g{i}")) for i in range(count)]
            for consumer in alone:  # joins its group
                consumer.poll(0, max_records=1)
            figures["read µs"] = min(_cpu_us_of_polls(consumer) for consumer in alone)
            figures["append µs"] = _cpu_us(partial(log.append, _TOPIC, VALUES[0]), 5000)
            for consumer in alone:
                _read_all(consumer)
            figures["poll at the end µs"] = _cpu_us(alone[0].poll, 2000)

            def meet(log: embedlog.Log = log, alone: list[Any] = alone) -> None:
                log.append(_TOPIC, VALUES[0])
                for consumer in alone:
                    while not consumer.poll(1000):
                        pass

            figures["append, all poll, each µs"] = _cpu_us(meet, 200) / count
            figures["memory MB"] = _memory_mb() - before
            started = time.perf_counter()
            for _ in range(count):
                stack.enter_context(_consumer(log, "together", "shared")).poll(0)
            figures["join ms each"] = (time.perf_counter() - started) / count * 1e3
            yield figures
        shutil.rmtree(path)


def by_readers(directory: Path, counts: Sequence[int]) -> Iterator[Figures]:
    """Reader processes that follow one partition of the log."""
    for count in counts:
        path = directory / f"readers-{count}"
        with embedlog.open(path) as log, ExitStack() as stack:
            log.create_topic(_TOPIC)
            readers = [stack.enter_context(_reader(path)) for _ in range(count)]

            def meet(log: embedlog.Log = log, readers: list[Any] = readers) -> None:
                log.append(_TOPIC, VALUES[0])
                for reader in readers:
                    assert reader.readline() == b"read\n"

            meet()
            figures = {"append, all have it ms": _each(meet, 500) * 1e3}
            for reader in readers:  # they read on, and say nothing more
                reader.close()
            figures["append µs"] = _cpu_us(partial(log.append, _TOPIC, VALUES[0]), 20_000)
            yield figures
        shutil.rmtree(path)


def by_descriptors(directory: Path, limits: Sequence[int]) -> Iterator[Figures]:
    """1,000 partitions under `ulimit -n`: appends and reads of random ones."""
    for limit in limits:
        path = directory / f"descriptors-{limit}"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            with embedlog.open(path) as log:
                log.create_topic(_TOPIC, partitions=_OPEN_PARTITIONS)
                for number in range(_OPEN_PARTITIONS):
                    log.append_many(_TOPIC, VALUES[:100], partition=number)
                numbers = random.Random(3)

                def append(log: embedlog.Log = log, numbers: random.Random = numbers) -> None:
                    log.append(_TOPIC, VALUES[0], partition=numbers.randrange(_OPEN_PARTITIONS))

                def look_up(log: embedlog.Log = log, numbers: random.Random = numbers) -> None:
                    assert log.read_at(_TOPIC, numbers.randrange(_OPEN_PARTITIONS), numbers.randrange(100))

                # Slices so long that files are flushed and closed, several at a time, in each.
                yield {
                    "append µs": _cpu_us(append, 9000, slices=3),
                    "read_at µs": _cpu_us(look_up, 9000, slices=3),
                }
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        shutil.rmtree(path)


_TABLES = {
    "size": Table("size of the log, MB", _SIZES_MB, _LARGE_SIZES_MB, by_size),
    "segments": Table("segments", _SEGMENTS, _SEGMENTS, by_segments),
    "partitions": Table("partitions", _PARTITIONS, _LARGE_PARTITIONS, by_partitions),
    "consumers": Table("consumers", _CONSUMERS, _CONSUMERS, by_consumers),
    "readers": Table("reader processes", _READERS, _READERS, by_readers),
    "descriptors": Table("ulimit -n", _DESCRIPTORS, _DESCRIPTORS, by_descriptors),
}


# -- the columns ---------------------------------------------------------------------------------------


def _appending(log: embedlog.Log, partitions: int) -> Figures:
    numbers = random.Random(1)

    def append() -> None:
        log.append(_TOPIC, VALUES[0], partition=numbers.randrange(partitions))

    def append_many() -> None:
        log.append_many(_TOPIC, VALUES, partition=numbers.randrange(partitions))

    for number in range(partitions):  # the first one in a partition loads its index
        log.append(_TOPIC, VALUES[0], partition=number)
    return {"append µs": _cpu_us(append, 5000), "batch µs": _cpu_us(append_many, 100)}


def _reading(log: embedlog.Log, partitions: int, records: int) -> Figures:
    numbers = random.Random(2)
    ends = log.offsets(_TOPIC)
    first = log.offset_for_time(_TOPIC, 0, 0)
    assert first is not None
    times_ms = first.timestamp_ms, int(time.time() * 1000)

    def seek() -> None:
        number = numbers.randrange(partitions)
        offset = numbers.randrange(ends[number].log_end_offset)
        record = next(iter(log.read(_TOPIC, number, start=offset, max_bytes=4096)))
        assert record.offset == offset

    def by_time() -> None:
        log.offset_for_time(_TOPIC, numbers.randrange(partitions), numbers.randint(*times_ms))

    if partitions == 1:
        start = max(ends[0].log_end_offset // 2 - records // 2, 0)
        in_order: Iterator[embedlog.Record] = islice(log.read(_TOPIC, 0, start=start), records)
    else:
        in_order = log.read(_TOPIC)
    figures = {
        "read µs": _cpu_us_of_items(in_order),
        "seek µs": _cpu_us(seek, 500),
        "by time µs": _cpu_us(by_time, 200),
    }
    with log.consumer(_TOPIC, auto_offset_reset="latest") as consumer:
        consumer.poll(0)

        def poll() -> None:
            log.append(_TOPIC, VALUES[0], partition=numbers.randrange(partitions))
            while not consumer.poll(1000):
                pass

        figures["poll µs"] = _cpu_us(poll, 300)
    return figures


def _opening(path: Path, partitions: int) -> Figures:
    opens, closes, follows, crashes = [], [], [], []
    for _ in range(3):
        started = time.perf_counter()
        log = embedlog.open(path)
        opens.append(time.perf_counter() - started)
        assert log.recovery.clean
        closes.append(_timed(log.close))
        started = time.perf_counter()
        with embedlog.open(path, mode="r") as log:
            log.offsets(_TOPIC)
            follows.append(time.perf_counter() - started)
    memory_mb = _memory_mb()
    for _ in range(3):
        child = [sys.executable, "-c", _KILLED, str(path), str(partitions)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        assert subprocess.run(child, env=environment, check=False).returncode == -signal.SIGKILL
        started = time.perf_counter()
        with embedlog.open(path) as log:
            crashes.append(time.perf_counter() - started)
            assert not log.recovery.clean
    return {
        "open ms": median(opens) * 1e3,
        "close ms": median(closes) * 1e3,
        "open r ms": median(follows) * 1e3,
        "crash ms": median(crashes) * 1e3,
        "memory MB": memory_mb,
    }


_KILLED = """
import os, signal, sys, time, embedlog
log = embedlog.open(sys.argv[1])
end = time.monotonic() + 0.5
while time.monotonic() < end:
    for number in range(int(sys.argv[2])):
        log.append("t", bytes(100), partition=number)
os.kill(os.getpid(), signal.SIGKILL)
"""


# -- tools ---------------------------------------------------------------------------------------------


@contextmanager
def _consumer(log: embedlog.Log, group: str, topic: str = _TOPIC) -> Iterator[embedlog.Consumer]:
    with log.consumer(topic, group=group, auto_offset_reset="earliest", auto_commit=False) as consumer:
        yield consumer


_FOLLOWER = """
import os, sys, embedlog
with embedlog.open(sys.argv[1], mode="r") as log:
    print("open", flush=True)
    told = True
    for record in log.read("t", 0, follow=True):
        if told:
            try:
                os.write(1, b"read\\n")
            except BrokenPipeError:
                told = False
"""


@contextmanager
def _reader(path: Path) -> Iterator[IO[bytes]]:
    """A process that says `read` for each record until its output is closed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _FOLLOWER, str(path)], env=environment, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _read_all(consumer: embedlog.Consumer) -> None:
    """Read everything there is."""
    while consumer.poll(0, max_records=10_000):
        pass


def _cpu_us_of_polls(consumer: embedlog.Consumer) -> float:
    """CPU time of a record, in microseconds: the least over polls of 10,000, until there are none."""
    least = float("inf")
    started = time.process_time()
    while records := consumer.poll(0, max_records=10_000):
        used = time.process_time() - started
        if len(records) == 10_000:
            least = min(least, used / len(records) * 1e6)
        started = time.process_time()
    return least


def _split(values: list[bytes], count: int) -> Iterator[list[bytes]]:
    """`count` values, in lists of at most `len(values)`."""
    while count > 0:
        yield values[:count]
        count -= len(values)


def _each(call: Callable[[], object], times: int) -> float:
    """The median of `times` calls, in seconds."""
    return median(_timed(call) for _ in range(times))


def _cpu_us(call: Callable[[], object], times: int, slices: int = 10) -> float:
    """CPU time of this process per call, in microseconds: the least over slices of so many calls together."""
    calls_per_slice = times // slices
    least = float("inf")
    for _ in range(slices):
        started = time.process_time()
        for _ in range(calls_per_slice):
            call()
        least = min(least, time.process_time() - started)
    return least / calls_per_slice * 1e6


def _cpu_us_of_items(items: Iterator[object]) -> float:
    """CPU time of this process per item, in microseconds: the least over slices of 20,000 items."""
    least = float("inf")
    started = time.process_time()
    while count := sum(1 for _ in islice(items, 20_000)):
        if count == 20_000:
            least = min(least, (time.process_time() - started) / count * 1e6)
        started = time.process_time()
    return least


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _memory_mb() -> float:
    """The resident memory of this process; NaN on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        return float("nan")
    return pages * os.sysconf("SC_PAGESIZE") / _MB


if __name__ == "__main__":
    main()
