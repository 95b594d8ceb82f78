"""Consumers of a group: iterating, polling for one record at a time, and polling with nothing new."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import persistqueue

import embedlog

from .measure import Contender, Prepare, Row, Work, duration, rate
from .reading import fill, fill_sqlite, sqlite_records
from .stores import TOPIC, VALUES, persist_sqlite, sqlite_connection

_GROUP = "benchmark"
_NEXT = "SELECT id, timestamp_ms, key, value FROM log WHERE id > ? LIMIT 1"


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(200 * scale), 1)
    return [
        Row(
            "for record in consumer, of a group",
            "records/s",
            True,
            [
                Contender("embedlog", _iterating(thousands)),
                Contender("embedlog, log.read", _reading(thousands)),
                Contender("sqlite", sqlite_records(thousands)),
            ],
        ),
        Row(
            "poll(max_records=1)",
            "us",
            False,
            [
                Contender("embedlog", _polling(int(10_000 * scale))),
                Contender("sqlite, SELECT ... LIMIT 1", _selecting(int(10_000 * scale))),
                Contender("persist-queue sqlite, get", _taking(int(1_000 * scale))),
            ],
        ),
        *(_empty_poll(partitions, int(calls * scale)) for partitions, calls in _EMPTY_POLLS),
    ]


_EMPTY_POLLS = ((1, 10_000), (100, 10_000), (1000, 10_000))


@contextmanager
def _joined(log: embedlog.Log) -> Iterator[embedlog.Consumer]:
    """A member that has its partitions, and has read one record."""
    with log.consumer(TOPIC, _GROUP) as consumer:
        while not consumer.poll(1000, max_records=1):
            pass
        yield consumer


def _iterating(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, 1000, keyed=True)
        count = thousands * 1000 - 1
        with embedlog.open(where) as log, _joined(log) as consumer:
            yield rate(count, lambda: deque(islice(consumer, count), maxlen=0))

    return prepare


def _reading(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, 1000, keyed=True)
        with embedlog.open(where) as log:
            yield rate(thousands * 1000, lambda: deque(log.read(TOPIC), maxlen=0))

    return prepare


def _polling(calls: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, calls // 1000 + 1, 1000, keyed=True)
        with embedlog.open(where) as log, _joined(log) as consumer:

            def poll_all() -> None:
                for _ in range(calls):
                    assert consumer.poll(0, max_records=1)

            yield duration(calls, 1e-6, poll_all)

    return prepare


def _selecting(calls: int) -> Prepare:
    """A query that remembers its position, as a program with such a table would."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill_sqlite(where, calls // 1000 + 1)
        with closing(sqlite_connection(where, "NORMAL")) as connection:

            def select_all() -> None:
                last = 0
                for _ in range(calls):
                    last = connection.execute(_NEXT, (last,)).fetchone()[0]

            yield duration(calls, 1e-6, select_all)

    return prepare


def _taking(calls: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with persist_sqlite(where) as put:
            for number in range(calls):
                put(VALUES[number % len(VALUES)])
        with closing(persistqueue.SQLiteQueue(str(where), multithreading=True)) as queue:
            yield duration(calls, 1e-6, _times(calls, queue.get_nowait))

    return prepare


# -- nothing new ---------------------------------------------------------------------------------------


def _empty_poll(partitions: int, calls: int) -> Row:
    @contextmanager
    def polling(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions)
            for number in range(partitions):
                log.append(TOPIC, VALUES[0], partition=number)
            log.flush()  # or the first of the calls would see what the flush of a second later changes
            with _joined(log) as consumer:
                while consumer.poll(0):
                    pass
                consumer.poll(0)  # the first one with nothing new asks about each partition
                yield duration(calls, 1e-6, _times(calls, lambda: consumer.poll(0)))

    @contextmanager
    def selecting(where: Path) -> Iterator[Work]:
        fill_sqlite(where, 1)
        with closing(sqlite_connection(where, "NORMAL")) as connection:

            def select() -> None:
                assert connection.execute(_NEXT, (1 << 40,)).fetchone() is None

            yield duration(calls, 1e-6, _times(calls, select))

    @contextmanager
    def polling_in_a_reader(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions)
            for number in range(partitions):
                log.append(TOPIC, VALUES[0], partition=number)
            log.flush()  # or the first of the calls would see what the flush of a second later changes
            with embedlog.open(where, mode="r") as reader, reader.consumer(TOPIC) as consumer:
                while consumer.poll(0):
                    pass
                consumer.poll(0)  # the first one with nothing new asks about each partition
                yield duration(calls, 1e-6, _times(calls, lambda: consumer.poll(0)))

    return Row(
        f"poll with nothing new, partitions: {partitions:,}",
        "us",
        False,
        [
            Contender("embedlog", polling),
            Contender("embedlog, reader process", polling_in_a_reader),
            Contender("sqlite, one table", selecting),
        ],
    )


def _times(calls: int, call: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(calls):
            call()

    return repeat
