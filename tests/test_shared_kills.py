"""Rounds on a shared log: owner and clients are killed, terminated and closed, others fork and start.

Of all that was acknowledged nothing is lost or doubled, a group's offsets never go back, and the directory is
never owned twice: seen from outside, through /proc.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from programs import Program
from rounds import ROUNDS
from shared_workers import APPENDER, CONSUMER, GROUP, PARTITIONS, TOPIC, Workers, owners

import embedlog

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

# What a call may raise while owners change: its outcome is unknown, or its group has a new generation.
UNKNOWN = {"BrokerUnavailable", "RequestTimedOut"}
EXPECTED = UNKNOWN | {"IllegalGeneration", "RebalanceInProgress", "UnknownMember"}


def kill(worker: Program) -> None:
    worker.process.send_signal(signal.SIGKILL)


def terminate(worker: Program) -> None:
    worker.process.send_signal(signal.SIGTERM)


def close(worker: Program) -> None:
    worker.say("close")


class Watch:
    """Looks at all processes again and again, in a thread: is there a second owner?"""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopping = threading.Event()
        self.looks = 0  # that found one owner
        self.found: list[dict[str, int]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            found = owners(self._path)
            self.looks += len(found) == 1
            if len(found) > 1:
                self.found.append(found)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def run(path: Path, seed: object, events: int) -> Workers:
    rng = random.Random(str(seed))
    with embedlog.open(path, shared=True, offsets_topic_num_partitions=1) as log:
        log.create_topic(TOPIC, PARTITIONS)
    workers, watch = Workers(path), Watch(path)
    committed: dict[int, int] = {}
    try:
        for code in (APPENDER, APPENDER, CONSUMER, APPENDER):
            workers.start(code)
        for number in range(events):
            workers.wait_for(rng.randrange(1, 150))
            victim = workers.owner() if number % 2 == 0 else rng.choice(workers.running)
            action = rng.choice([kill, kill, terminate, close, None])
            if action is None or victim is None:
                rng.choice(workers.running).say("fork")  # a consumer takes no notice
            else:
                workers.end(victim, action)
                workers.start(CONSUMER if rng.random() < 0.3 and workers.append else APPENDER)
            with embedlog.open(path, mode="r") as reader:
                now = {tp.partition: each.offset for tp, each in reader.group(GROUP).offsets().items()}
            assert all(now.get(partition, -1) >= offset for partition, offset in committed.items())
            committed = now
        workers.start(APPENDER)
        workers.wait_for(20)
        workers.close()
    finally:
        workers.kill()
        watch.stop()
    assert watch.found == []
    assert watch.looks > events
    return workers


def check(workers: Workers) -> None:
    assert set(workers.errors) <= EXPECTED, Counter(workers.errors)
    with embedlog.open(workers.path) as log:
        assert log.recovery.damage == []
        records = list(log.read(TOPIC))
        twice = [value for value, count in Counter(record.value for record in records).items() if count > 1]
        assert twice == []
        there = {(record.value or b"").decode(): (record.partition, record.offset) for record in records}
        assert {value: there.get(value) for value in workers.appended} == workers.appended
        assert len(workers.appended) > 20
        committed = {tp.partition: each.offset for tp, each in log.group(GROUP).offsets().items()}
        for partition, offset in workers.committed.items():
            assert committed[partition] >= offset
        for partition, edges in log.offsets(TOPIC).items():
            assert committed.get(partition, 0) <= edges.log_end_offset


@pytest.mark.slow
def test_killed_and_closed_a_few_times(path: Path) -> None:
    check(run(path, "few", 6))


@pytest.mark.random
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.soak
def test_rounds(path: Path, round_: int) -> None:
    check(run(path, random.random(), 20))
