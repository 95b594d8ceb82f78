"""Delivery after a consumer's death: at most once, at least once, exactly once; and partition ownership.

The consumers of the first half are processes of their own, killed with SIGKILL; what they "do" with a
record is to write its number to a pipe, which survives them. The second half runs random schedules of
joins, leaves, deaths and commits on the coordinator of a real log, under a clock of its own.
"""

from __future__ import annotations

import gc
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCS, blocks
from housekeeping import housekeep

import embedlog
from embedlog import Log, TopicPartition
from embedlog.clients.consumer import Consumer
from embedlog.errors import CommitFailed
from embedlog.open import log_over
from embedlog.runtime import finalizing
from embedlog.store.store import Store

RECORDS = 400

CONSUMER = """
import os, signal, sys
import embedlog

directory, when, die_in_batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
with (
    embedlog.open(directory) as log,
    log.consumer("t", group="g", auto_commit=when == "auto", auto_commit_interval_ms=1) as consumer,
):
    batches = 0
    while records := consumer.poll(max_records=5):
        batches += 1
        if when == "before":
            consumer.commit()
        if batches == die_in_batch and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        for record in records:
            os.write(1, record.value + b"\\n")
        if batches == die_in_batch:
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "after":
            consumer.commit()
"""


def make_log(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=3)
        for number in range(RECORDS):
            log.append("t", str(number).encode(), key=f"key {number}".encode(), partition=number % 3)


def consume(
    path: Path, when: str, *, die_in_batch: int = 0, kill_after: int | None = None
) -> tuple[int, list[int]]:
    """Run a consumer process; its exit code, and the records it processed. May kill it after some."""
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, str(path), when, str(die_in_batch)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        done = []
        for line in process.stdout:
            done.append(int(line))
            if len(done) == kill_after:
                process.kill()
    return process.wait(), done


def killed_again_and_again(path: Path, when: str, seed: int) -> Counter[int]:
    """All that was processed by consumers killed at random points, until one gets to the end."""
    chance = random.Random(seed)
    processed: Counter[int] = Counter()
    code = -1
    while code != 0:
        code, done = consume(path, when, kill_after=chance.randrange(10, 80))
        assert code in (0, -signal.SIGKILL)
        processed.update(done)
    return processed


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_log(tmp_path / "log")
    return tmp_path / "log"


@pytest.mark.slow
def test_commit_before_processing_is_at_most_once(directory: Path) -> None:
    processed = killed_again_and_again(directory, "before", seed=1)
    assert set(processed.values()) == {1}


@pytest.mark.slow
def test_commit_after_processing_is_at_least_once(directory: Path) -> None:
    processed = killed_again_and_again(directory, "after", seed=2)
    assert set(processed) == set(range(RECORDS))


@pytest.mark.slow
def test_auto_commit_is_at_least_once(directory: Path) -> None:
    processed = killed_again_and_again(directory, "auto", seed=3)
    assert set(processed) == set(range(RECORDS))


def test_a_death_between_commit_and_processing_loses_that_batch(directory: Path) -> None:
    code, first = consume(directory, "before", die_in_batch=3)
    assert (code, len(first)) == (-signal.SIGKILL, 10)
    code, rest = consume(directory, "before")
    assert code == 0
    assert len(rest) == RECORDS - 15
    assert not set(first) & set(rest)


def test_a_death_between_processing_and_commit_repeats_that_batch(directory: Path) -> None:
    code, first = consume(directory, "after", die_in_batch=3)
    assert (code, len(first)) == (-signal.SIGKILL, 15)
    code, rest = consume(directory, "after")
    assert code == 0
    assert sorted(first[:10] + rest) == list(range(RECORDS))
    assert set(first[10:]) < set(rest)


def test_offset_and_result_in_one_transaction_are_exactly_once(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "exactly-once.md").read_text()
    [program] = [block.text for block in blocks(page) if block.title == "totals.py"]
    assert "max_records=250" in program
    smaller = program.replace("max_records=250", "max_records=100").replace(
        "time.sleep(0.2)", "time.sleep(0)"
    )
    (tmp_path / "totals.py").write_text(smaller)
    keys = [b"key %d" % number for number in range(30 * RECORDS)]
    rounds = 8
    chance = random.Random(4)
    with embedlog.open(tmp_path / "shop") as log:
        log.create_topic("orders", partitions=3)
        runs, code = 0, -1
        while runs < 10 or code != 0:
            # The log grows while it is read; the end is read by a process that is not killed.
            if runs < rounds:
                log.append_many("orders", [(key, b"x") for key in keys[runs::rounds]])
            process = subprocess.Popen([sys.executable, "totals.py"], cwd=tmp_path, stdout=subprocess.PIPE)
            assert process.stdout is not None
            with process.stdout:
                lines_until_kill = chance.randrange(1, 14) if runs < 10 else -1
                for line in process.stdout:  # of 15 or more
                    lines_until_kill -= 1
                    if lines_until_kill == 0:
                        process.kill()
                    assert line
            code = process.wait()
            assert code == (-signal.SIGKILL if runs < 10 else 0)
            runs += 1
    found = sqlite3.connect(tmp_path / "totals.sqlite")
    totals = dict(found.execute("SELECT customer, orders FROM totals"))
    found.close()
    assert totals == {key.decode(): 1 for key in keys}


# -- random schedules --------------------------------------------------------------------------------

PARTITIONS = [TopicPartition("t", number) for number in range(5)]
SESSION_MS = 1_000
SCHEDULES = 200


class Schedule:
    """One group, some consumers, and everything that must never happen."""

    def __init__(self, log: Log, store: Store, clock: list[int], seed: int) -> None:
        self.log, self.store, self.clock = log, store, clock
        self.group = f"group {seed}"
        self.chance = random.Random(seed)
        self.alive: list[Consumer] = []
        self.stalled: list[Consumer] = []
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.seen: set[tuple[int, int]] = set()
        self.failed_commits = 0

    def join(self) -> None:
        def own(partitions: tuple[TopicPartition, ...]) -> None:
            consumer = found[0]()
            assert consumer is not None
            member = consumer._assignment.membership
            assert member is not None
            for tp in partitions:
                owner = self.owners.setdefault((member.generation, tp), member.member_id)
                assert owner == member.member_id, f"{tp} has two owners in generation {member.generation}"

        # By a weak reference, so that the callback does not keep a dropped consumer alive.
        found: list[weakref.ref[Consumer]] = []
        consumer = self.log.consumer(
            "t",
            group=self.group,
            auto_commit=self.chance.random() < 0.5,
            auto_commit_interval_ms=1,
            assignors=[self.chance.choice(["range", "roundrobin", "sticky"]), "range"],
            max_poll_interval_ms=SESSION_MS,
            on_assigned=own,
        )
        found.append(weakref.ref(consumer))
        self.alive.append(consumer)

    def leave(self) -> None:
        self._any().close(commit=self.chance.random() < 0.7)

    def drop(self) -> None:
        """The application drops a consumer without closing it."""
        self._any()
        gc.collect()
        handed_over = threading.Event()
        finalizing.run_soon(handed_over.set)
        handed_over.wait()

    def stall(self) -> None:
        """A consumer's thread does something else for too long."""
        self.stalled.append(self._any())

    def come_back(self) -> None:
        if self.stalled:
            consumer = self.stalled.pop(self.chance.randrange(len(self.stalled)))
            try:
                consumer.commit()
            except CommitFailed:
                self.failed_commits += 1
            self.alive.append(consumer)

    def poll(self) -> None:
        for record in self.chance.choice(self.alive).poll(max_records=self.chance.randrange(1, 9)):
            self.seen.add((record.partition, record.offset))

    def commit(self) -> None:
        try:
            self.chance.choice(self.alive).commit()
        except CommitFailed:
            self.failed_commits += 1

    def pass_time(self) -> None:
        self.clock[0] += self.chance.randrange(1, SESSION_MS)
        housekeep(self.store)

    def produce(self) -> None:
        self.log.append("t", b"x", partition=self.chance.randrange(len(PARTITIONS)))

    def check(self) -> None:
        assert self.log.backend.coordinator is not None
        for tp, kept in self.log.backend.coordinator.committed_offsets(self.group).items():
            assert kept.offset >= self.committed.get(tp, 0), f"the committed offset of {tp} went back"
            self.committed[tp] = kept.offset

    def run(self) -> None:
        steps = [self.join] * 2 + [self.leave, self.drop, self.stall, self.come_back, self.pass_time]
        steps += [self.commit, self.produce] * 2 + [self.poll] * 9
        for _ in range(60):
            if not self.alive:
                self.join()
            self.chance.choice(steps)()
            self.check()
        self.finish()

    def finish(self) -> None:
        """Whoever is left reads everything there is, and commits it."""
        self.stalled.clear()
        if not self.alive:
            self.join()
        ends = {number: edges.log_end_offset for number, edges in self.log.offsets("t").items()}
        everything = {(number, offset) for number, end in ends.items() for offset in range(end)}
        while self.seen != everything or self.committed != {tp: ends[tp.partition] for tp in PARTITIONS}:
            for consumer in self.alive:
                self.seen.update((record.partition, record.offset) for record in consumer.poll())
                try:
                    consumer.commit()
                except CommitFailed:
                    self.failed_commits += 1
            self.clock[0] += SESSION_MS // 4
            housekeep(self.store)
            self.check()
        for consumer in self.alive:
            consumer.close()
        self.check()

    def _any(self) -> Consumer:
        return self.alive.pop(self.chance.randrange(len(self.alive)))


@pytest.fixture
def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, Store, list[int]]:
    # Heartbeats go by the real clock, sessions by this one.
    monkeypatch.setattr("embedlog.clients.membership.HEARTBEAT_INTERVAL_MS", 0)
    clock = [1_700_000_000_000]
    store = Store(str(tmp_path / "log"), clock_ms=lambda: clock[0], background=False)
    return log_over(store), store, clock


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Exempt earlier objects from the test's garbage collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("small_heap")
def test_random_schedules(clocked: tuple[Log, Store, list[int]]) -> None:
    log, store, clock = clocked
    failed_commits = generations = 0
    with log:
        log.create_topic("t", partitions=len(PARTITIONS))
        for seed in range(SCHEDULES):
            schedule = Schedule(log, store, clock, seed)
            schedule.run()
            failed_commits += schedule.failed_commits
            generations += len({generation for generation, _ in schedule.owners})
    # The schedules are worth something only if they come by these corners.
    assert failed_commits > 20
    assert generations > 3 * SCHEDULES


def test_a_member_that_stalls_too_long_loses_its_partitions(clocked: tuple[Log, Store, list[int]]) -> None:
    log, store, clock = clocked
    told: list[str] = []
    with log:
        log.create_topic("t", partitions=5)
        log.append("t", b"0", partition=0)
        one = log.consumer(
            "t",
            group="g",
            max_poll_interval_ms=SESSION_MS,
            on_revoked=lambda partitions: told.append("revoked"),
            on_lost=lambda partitions: told.append("lost"),
        )
        assert [record.value for record in one.poll()] == [b"0"]
        two = log.consumer("t", group="g", max_poll_interval_ms=SESSION_MS)
        two.poll()
        clock[0] += SESSION_MS + 1
        housekeep(store)
        assert [record.value for record in two.poll()] == [b"0"]
        assert two.assignment() == set(PARTITIONS)
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            one.commit()
        one.poll()
        assert told == ["lost"]
        two.poll()
        one.poll()
        assert len(one.assignment()) + len(two.assignment()) == 5
