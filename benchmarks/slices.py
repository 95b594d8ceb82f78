"""What in_slices measures: everyday calls, each prepared once in a process and then run slice by slice.

A path yields (items, action): one call of the action is a slice of so many items. Paths use only names that
checkouts have in common, and nothing but embedlog.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import embedlog

Slice: TypeAlias = tuple[int, Callable[[], object]]
Prepare: TypeAlias = Callable[[Path], Iterator[Slice]]

TOPIC = "t"
VALUES = [random.Random(number).randbytes(100) for number in range(1000)]
PAIRS = [(b"key-%d" % number, value) for number, value in enumerate(VALUES)]
_HEADERS = [("source", b"benchmark"), ("trace", b"0123456789abcdef")]
_RECORDS = 100_000
_FUTURES = 512


# -- appending -----------------------------------------------------------------------------------------


def _append(partitions: int = 1, settings: dict[str, Any] | None = None, **options: Any) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions, **(settings or {}))
            append, value = log.append, VALUES[0]

            def act() -> None:
                for _ in range(1000):
                    append(TOPIC, value, **options)

            yield 1000, act

    return prepare


def _expecting(where: Path) -> Iterator[Slice]:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC)
        ends = [0]

        def act() -> None:
            end = ends[0]
            for offset in range(end, end + 1000):
                log.append(TOPIC, VALUES[0], partition=0, expected_offset=offset)
            ends[0] = end + 1000

        yield 1000, act


def _append_many(records: list[Any], partitions: int = 1) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions)
            calls = max(10_000 // len(records) // (10 if partitions > 10 else 1), 10)
            calls = min(calls, 1000)

            def act() -> None:
                for _ in range(calls):
                    log.append_many(TOPIC, records)

            yield calls * len(records), act

    return prepare


def _send(partitions: int, keyed: bool) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions)

            def act() -> None:
                with log.producer() as producer:
                    for _ in range(20):
                        if keyed:
                            for key, value in PAIRS:
                                producer.send(TOPIC, value, key=key)
                        else:
                            for value in VALUES:
                                producer.send(TOPIC, value)

            yield 20_000, act

    return prepare


def _futures(where: Path) -> Iterator[Slice]:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC)
        with log.producer(flush=True) as producer:

            def act() -> None:
                for _ in range(4):
                    futures = [producer.send(TOPIC, value) for value in VALUES[:_FUTURES]]
                    for future in futures:
                        future.result()

            yield 4 * _FUTURES, act


# -- consuming -----------------------------------------------------------------------------------------


def _fill(where: Path, partitions: int = 1, batch: int = 1000, records: int = _RECORDS) -> None:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC, partitions=partitions)
        for number in range(partitions):
            for start in range(0, records // partitions, batch):
                first = start % 1000
                log.append_many(TOPIC, PAIRS[first : first + batch], partition=number)


def _consumed(items: int, consume: Callable[[embedlog.Consumer], object]) -> Prepare:
    """A slice consumes so many records from the start of a partition."""

    def prepare(where: Path) -> Iterator[Slice]:
        _fill(where)
        with embedlog.open(where) as log, log.consumer(TOPIC, group="g") as consumer:
            while not consumer.poll(1000, max_records=1):
                pass
            start = embedlog.TopicPartition(TOPIC, 0)

            def act() -> None:
                consumer.seek(start, 0)
                consume(consumer)

            yield items, act

    return prepare


def _iterate(consumer: embedlog.Consumer) -> None:
    deque(islice(consumer, 50_000), maxlen=0)


def _poll_one(consumer: embedlog.Consumer) -> None:
    for _ in range(2000):
        assert consumer.poll(0, max_records=1)


def _poll_many(consumer: embedlog.Consumer) -> None:
    for _ in range(100):
        assert consumer.poll(0, max_records=500)


def _empty_polls(consumer: embedlog.Consumer) -> Slice:
    while consumer.poll(0):
        pass
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:  # the first refresh of metadata is over
        consumer.poll(0)

    def act() -> None:
        for _ in range(500):
            consumer.poll(0)

    return 500, act


def _one_each(log: embedlog.Log, partitions: int) -> None:
    log.create_topic(TOPIC, partitions=partitions)
    for number in range(partitions):
        log.append(TOPIC, VALUES[0], partition=number)


def _empty_poll(partitions: int) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            _one_each(log, partitions)
            with log.consumer(TOPIC, group="g") as consumer:
                consumer.poll(1000, max_records=1)
                yield _empty_polls(consumer)

    return prepare


def _empty_poll_beside(partitions: int) -> Prepare:
    """A reader in the process of the writer, as in consuming.py."""

    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            _one_each(log, partitions)
            with embedlog.open(where, mode="r") as reader, reader.consumer(TOPIC) as consumer:
                yield _empty_polls(consumer)

    return prepare


_WRITER = """
import sys, embedlog
with embedlog.open(sys.argv[1]) as log:
    for number in range(log.describe_topic("t").partitions):
        log.append("t", bytes(100), partition=number)
    print("open", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _written(where: Path) -> Iterator[None]:
    """Another process has the log open for writing."""
    command = [sys.executable, "-c", _WRITER, str(where)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        yield


def _empty_poll_reader(partitions: int) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            _one_each(log, partitions)
        with _written(where), embedlog.open(where, mode="r") as log, log.consumer(TOPIC) as consumer:
            yield _empty_polls(consumer)

    return prepare


# -- reading -------------------------------------------------------------------------------------------


def _read_at(order: str) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        _fill(where, batch=100)
        with embedlog.open(where) as log:
            yield _look_ups(log, order)

    return prepare


def _read_at_reader(order: str) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        _fill(where, batch=100)
        with _written(where), embedlog.open(where, mode="r") as log:
            yield _look_ups(log, order)

    return prepare


def _look_ups(log: embedlog.Log, order: str) -> Slice:
    numbers = random.Random(0)
    offsets = [numbers.randrange(_RECORDS) for _ in range(1000)]
    if order == "neighbours":
        offsets = list(range(5000, 6000))

    def act() -> None:
        for offset in offsets:
            assert log.read_at(TOPIC, 0, offset)

    return 1000, act


def _read(read: Callable[[embedlog.Log], Any]) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        _fill(where)
        with embedlog.open(where) as log:
            yield _RECORDS, lambda: deque(read(log), maxlen=0)

    return prepare


# -- starting ------------------------------------------------------------------------------------------

_FIRST_APPEND = """
import sys, embedlog
with embedlog.open(sys.argv[1]) as log:
    log.create_topic("t", exist_ok=True)
    log.append("t", bytes(100))
"""


def _process(*arguments: str) -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        command = [sys.executable, *arguments, str(where / "log")]
        if arguments[0] == "-m":
            command.pop()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield 3, lambda: [subprocess.run(command, check=True, stdout=subprocess.DEVNULL) for _ in range(3)]

    return prepare


def _open_close(partitions: int, mode: str = "w") -> Prepare:
    def prepare(where: Path) -> Iterator[Slice]:
        with embedlog.open(where) as log:
            _one_each(log, partitions)
        calls = 10 if partitions < 1000 else 3

        def act() -> None:
            for _ in range(calls):
                if mode == "r":
                    embedlog.open(where, mode="r").close()
                else:
                    embedlog.open(where).close()

        yield calls, act

    return prepare


PATHS: dict[str, Prepare] = {
    "append": _append(),
    "append, headers": _append(headers=_HEADERS),
    "append, key of 4 partitions": _append(4, key=b"key"),
    "append, timestamp": _append(timestamp_ms=1_700_000_000_000),
    "append, partition": _append(4, partition=2),
    "append, expected_offset": _expecting,
    "append, zstd": _append(settings={"compression_type": "zstd"}),
    **{f"append_many of {n:,}": _append_many(list(VALUES[:n])) for n in (1, 10, 100, 1000)},
    **{f"append_many of 100 pairs, {n} partitions": _append_many(PAIRS[:100], n) for n in (1, 4, 100)},
    "send to the end of close": _send(1, False),
    "send to the end of close, keyed, 4 partitions": _send(4, True),
    "512 durable futures": _futures,
    "for record in consumer, of a group": _consumed(50_000, _iterate),
    "poll(max_records=1)": _consumed(2000, _poll_one),
    "poll(max_records=500), a record": _consumed(50_000, _poll_many),
    **{f"empty poll, {n:,} partitions": _empty_poll(n) for n in (1, 100, 1000)},
    **{f"empty poll, reader process, {n:,} partitions": _empty_poll_reader(n) for n in (1, 100, 1000)},
    **{f"empty poll, reader beside writer, {n:,} partitions": _empty_poll_beside(n) for n in (1, 1000)},
    "read_at, random": _read_at("random"),
    "read_at, neighbours": _read_at("neighbours"),
    "read_at, random, reader process": _read_at_reader("random"),
    "read_at, neighbours, reader process": _read_at_reader("neighbours"),
    "read": _read(lambda log: log.read(TOPIC)),
    "read_values": _read(lambda log: log.read_values(TOPIC)),
    "read_arrow": _read(lambda log: log.read_arrow(TOPIC)),
    "a process that imports": _process("-c", "import embedlog"),
    "a process that appends": _process("-c", _FIRST_APPEND),
    "embedlog --version": _process("-m", "embedlog", "--version"),
    **{f"open and close, {n:,} partitions": _open_close(n) for n in (1, 100, 1000)},
    **{f"open and close to read, {n:,} partitions": _open_close(n, "r") for n in (1, 1000)},
}


def main() -> None:
    """Serve in_slices: a line with a name prepares a path; each empty line is a slice, `end` the last."""
    directory = Path(sys.argv[1])
    for number, line in enumerate(sys.stdin):
        where = directory / f"{os.getpid()}-{number}"
        where.mkdir()
        with contextmanager(PATHS[line.strip()])(where) as (items, action):
            action()
            print("ready", flush=True)
            for order in sys.stdin:
                if order.strip() == "end":
                    break
                print(_cpu_s(action) / items * 1e6, flush=True)


def _cpu_s(action: Callable[[], object]) -> float:
    """CPU time of all threads and of children that have ended."""
    before = os.times()
    started = time.process_time()
    action()
    used = time.process_time() - started
    after = os.times()
    return used + after.children_user - before.children_user + after.children_system - before.children_system


if __name__ == "__main__":
    main()
