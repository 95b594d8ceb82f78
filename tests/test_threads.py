"""Many threads on one log: order without gaps in each partition, and close ends all of them."""

from __future__ import annotations

import linecache
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FaultyFileSystem, store_of

import embedlog
from embedlog import Closed, Log, Record, TopicNotFound
from embedlog.runtime import locks

PARTITIONS = 3


class Crowd:
    """Threads whose errors are not lost."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, act: Callable[[], object]) -> None:
        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def in_order(records: list[Record], appenders: int, count: int) -> None:
    """Every appender's numbers are there once, in its order, and offsets have no gaps."""
    for number in range(PARTITIONS):
        own = [r for r in records if r.partition == number]
        assert [r.offset for r in own] == list(range(len(own)))
        seen: dict[bytes | None, list[int]] = defaultdict(list)
        for record in own:
            seen[record.key].append(int(record.value or b""))
        assert all(numbers == sorted(set(numbers)) for numbers in seen.values())
    together: dict[bytes | None, list[int]] = defaultdict(list)
    for record in records:
        together[record.key].append(int(record.value or b""))
    assert {key: sorted(numbers) for key, numbers in together.items()} == {
        b"%d" % i: list(range(count)) for i in range(appenders)
    }


@pytest.mark.parametrize("flush", [False, True])
def test_appenders_and_readers_at_once(path: Path, crowd: Crowd, flush: bool) -> None:
    appenders, count = 4, 60 if flush else 300
    with embedlog.open(path, segment_bytes=4096, flush_ms=1) as log:
        log.create_topic("t", partitions=PARTITIONS)
        placed: list[tuple[int, int]] = []

        def append_singly(who: int) -> None:
            for i in range(count):
                meta = log.append("t", b"%d" % i, key=b"%d" % who, partition=i % PARTITIONS, flush=flush)
                assert meta.durable or not flush
                placed.append((meta.partition, meta.offset))

        def append_in_lots(who: int) -> None:
            for i in range(0, count, 10):
                pairs = [(b"%d" % who, b"%d" % j) for j in range(i, i + 10)]
                for meta in log.append_many("t", pairs, partition=who % PARTITIONS, flush=flush):
                    placed.append((meta.partition, meta.offset))

        seen: dict[str, list[Record]] = {}

        def follow(name: str, reader: Log) -> None:
            got = seen[name] = []
            for record in reader.read("t", follow=True, max_bytes=700):
                got.append(record)
                if len(got) == appenders * count:
                    return

        def poll(name: str) -> None:
            got = seen[name] = []
            with log.consumer("t") as consumer:
                while len(got) < appenders * count:
                    got += consumer.poll(60_000, max_records=7)

        with embedlog.open(path, mode="r") as other:
            for who in range(appenders):
                crowd.start(lambda who=who: (append_in_lots if who % 2 else append_singly)(who))  # type: ignore[misc]
            crowd.start(lambda: follow("here", log))
            crowd.start(lambda: follow("there", other))
            crowd.start(lambda: poll("polled"))
            crowd.join()
        assert crowd.errors == []
        assert len(placed) == len(set(placed)) == appenders * count
        for records in (*seen.values(), list(log.read("t"))):
            in_order(records, appenders, count)
    with embedlog.open(path) as log:
        in_order(list(log.read("t")), appenders, count)


def test_conditional_appends_from_many_threads_win_once_each(log: Log, crowd: Crowd) -> None:
    log.create_topic("t")
    won: list[int] = []

    def compete() -> None:
        while True:
            end = log.offsets("t")[0].log_end_offset
            if end >= 200:
                return
            try:
                won.append(log.append("t", b"x", partition=0, expected_offset=end).offset)
            except embedlog.UnexpectedOffset:
                continue

    for _ in range(5):
        crowd.start(compete)
    crowd.join()
    assert crowd.errors == []
    assert sorted(won) == list(range(len(won)))
    assert log.offsets("t")[0].log_end_offset == len(won)


@pytest.mark.slow
def test_topics_are_created_and_deleted_beside_appenders_and_readers(log: Log, crowd: Crowd) -> None:
    """Whoever comes too late is told that there is no such topic, and nothing else."""
    stop = threading.Event()

    def until_stop(act: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            while not stop.is_set():
                try:
                    act()
                except TopicNotFound:
                    continue

        return run

    for act in (
        lambda: log.append("t", b"x"),
        lambda: log.append_many("t", [b"x"] * 20, flush=True),
        lambda: [None for _ in log.read("t")],
        log.health,
        log.flush,
        lambda: log.offsets("t"),
    ):
        crowd.start(until_stop(act))
    for _ in range(6):
        log.create_topic("t", partitions=2)
        log.create_partitions("t", 3)
        log.delete_topic("t")
    stop.set()
    crowd.join()
    assert crowd.errors == []
    assert log.topics() == []


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_health_skips_a_topic_that_is_being_deleted(path: Path, log: Log, crowd: Crowd, mode: str) -> None:
    for number in range(20):  # so that most of the time is spent between the list of topics and their edges
        log.create_topic(f"t{number}")
    stop = threading.Event()
    with embedlog.open(path, mode="r") as reader:
        asked = log if mode == "rw" else reader

        def look() -> None:
            while not stop.is_set():
                asked.health()

        crowd.start(look)
        for _ in range(30):
            log.create_topic("u")
            log.delete_topic("u")
        stop.set()
        crowd.join()
        assert crowd.errors == []
        assert asked.health().topics == 20


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.slow
def test_close_ends_all_blocked_calls(path: Path, crowd: Crowd, mode: str) -> None:
    """With Closed, at once, and with no hang: those who append, read, wait, and who are just about to."""
    for turn in range(8):
        writer = embedlog.open(path, segment_bytes=2048)
        if not turn:
            writer.create_topic("t", partitions=PARTITIONS)
            writer.append_many("t", [b"x"] * 50)
        log = writer if mode == "rw" else embedlog.open(path, mode="r")
        acts: list[Callable[[], object]] = [
            lambda log=log: [None for _ in log.read("t", follow=True)],
            lambda log=log: [None for _ in log.read("t", follow=True, start="latest")],
            lambda log=log: log.consumer("t").poll(3_600_000) and log.topics(),
            log.health,
            lambda log=log: log.offsets("t"),
            lambda log=log: log.offset_for_time("t", 0, 0),
        ]  # fmt: skip
        if mode == "rw":
            acts += [
                lambda log=log: log.append("t", b"x"),
                lambda log=log: log.append("t", b"x", flush=True),
                lambda log=log: log.append_many("t", [b"y"] * 5),
                log.flush,
                lambda log=log: log.create_topic("u", exist_ok=True) and log.delete_topic("u"),
            ]
        begun = threading.Barrier(len(acts) + 1)

        def until_closed(act: Callable[[], object], begun: threading.Barrier = begun) -> None:
            begun.wait()
            while True:
                act()

        for act in acts:
            crowd.start(lambda act=act: until_closed(act))  # type: ignore[misc]
        begun.wait()
        if turn % 2:
            log.offsets("t")
        log.close()
        writer.close()
        crowd.join()
        assert [error for error in crowd.errors if not isinstance(error, Closed)] == []
        assert len(crowd.errors) == len(acts)
        crowd.errors.clear()
    with embedlog.open(path) as log:
        for number in range(PARTITIONS):
            offsets = [r.offset for r in log.read("t", number)]
            assert offsets == list(range(len(offsets)))


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def waits_or_ended(thread: threading.Thread, lock: str = ".append_lock") -> bool:
    """Does a thread stand where it takes a lock, or has it ended?"""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_filename == locks.__file__:
        frame = frame.f_back
    return frame is None or lock in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def test_a_roll_and_a_checkpoint_may_write_the_same_snapshot(log: Log, crowd: Crowd) -> None:
    log.create_topic("t")
    partition = store_of(log).partition("t", 0)
    for _ in range(2):
        crowd.start(lambda: [partition.log.producers.write_snapshot(7, bytes(9)) for _ in range(50)])
    crowd.join()
    assert crowd.errors == []


def test_close_waits_for_an_append_that_rolls(path: Path) -> None:
    fs = FaultyFileSystem(path)
    log = embedlog.open(path, fs=fs, segment_bytes=1024)
    log.create_topic("t")
    log.append("t", bytes(900))
    closing = threading.Thread(target=log.close)

    def close() -> None:
        closing.start()
        until(lambda: waits_or_ended(closing))

    fs.at("create", close, path="00000000001.kafka")
    log.append("t", bytes(900), flush=True)
    closing.join()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert log.recovery.partitions == []
        assert sum(1 for _ in log.read("t")) == 2


def test_many_threads_close_at_once(path: Path, crowd: Crowd) -> None:
    for _ in range(5):
        log = embedlog.open(path)
        with log.producer() as producer:
            for _ in range(4):
                crowd.start(log.close)
            crowd.join()
            assert producer.closed
        assert crowd.errors == []
        assert embedlog.open(path, mode="r").topics() == []
