"""Quix Streams with exactly-once, killed again and again, and other frameworks, against `embedlog serve`.

They run in environments of their own, which `make test-foreign` makes: they pin their clients.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import embedlog
from embedlog import Log

HERE = Path(__file__).parent / "frameworks"
PYTHON = HERE / ".venv" / "bin" / "python"
QUIX = Path(__file__).parent / "quix"
HANGS_S = 240
KILLS, LINES_AT_ONCE, KEYS = 4, 400, 7


def counts(log: Log) -> list[tuple[str, int]]:
    """What Quix Streams has committed."""
    found = []
    for partition in log.offsets("quix-counts"):
        for record in log.read("quix-counts", partition, isolation_level="read_committed"):
            said = json.loads(record.value or b"")
            found.append((said["line"], said["count"]))
    return found


@pytest.mark.timeout(2 * HANGS_S)
def test_quix_streams_counts_exactly_once(bootstrap: str, tmp_path: Path) -> None:
    dice = random.Random()

    def start() -> subprocess.Popen[bytes]:
        command = [QUIX / ".venv" / "bin" / "python", QUIX / "quix_count.py", bootstrap, tmp_path / "state"]
        with open(tmp_path / "said", "ab") as said:
            return subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)

    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("quix-lines", partitions=2)
        log.create_topic("quix-counts", partitions=2)
        app = start()
        try:
            fed = 0
            for _ in range(KILLS):
                numbers = range(fed, fed + LINES_AT_ONCE)
                log.append_many("quix-lines", [(b"key %d" % (n % KEYS), b"%d" % n) for n in numbers])
                fed += LINES_AT_ONCE
                time.sleep(dice.uniform(1, 5))  # how far it gets differs, and does not matter
                assert app.poll() is None, (tmp_path / "said").read_text()
                app.kill()
                app.wait()
                app = start()
            while len(counts(log)) < fed:
                assert app.poll() is None, (tmp_path / "said").read_text()
                time.sleep(0.2)
            found = counts(log)
        finally:
            app.kill()
            app.wait()
    assert Counter(line for line, _ in found) == Counter(str(number) for number in range(fed))
    of_key = defaultdict(list)
    for line, count in found:
        of_key[int(line) % KEYS].append(count)
    assert all(sorted(each) == list(range(1, len(each) + 1)) for each in of_key.values()), "state was lost"


def test_faststream(bootstrap: str) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("faststream-in", partitions=2)
        log.create_topic("faststream-out", partitions=2)
    command = list(map(str, [PYTHON, HERE / "faststream_chain.py", bootstrap, 50]))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert ran.returncode == 0, ran.stderr
    assert str(list(range(1, 51))) in ran.stdout


@contextmanager
def running(said: Path, script: str, *arguments: str | Path) -> Iterator[None]:
    """A program of HERE, killed at the end."""
    with open(said, "ab") as output:
        program = subprocess.Popen([PYTHON, HERE / script, *arguments], stdout=output, stderr=output)
        try:
            yield
            assert program.poll() is None, said.read_text()
        finally:
            program.kill()
            program.wait()


def read_all(log: Log, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Waits until the topic has so many records."""
    while sum(offsets.log_end_offset for offsets in log.offsets(topic).values()) < count:
        time.sleep(0.1)
    records = [record for partition in log.offsets(topic) for record in log.read(topic, partition)]
    return [(record.key or b"", record.value or b"") for record in records]


def committed(log: Log, group: str) -> int:
    lags = log.group(group).describe().partitions.values()
    return sum(lag.committed.offset for lag in lags if lag.committed)


@pytest.mark.timeout(HANGS_S)
def test_faust(bootstrap: str, tmp_path: Path) -> None:
    """An agent with a table. A second worker, elsewhere, gets the table from its changelog.

    Records come once a worker is ready. Of those that wait for it, Faust sometimes skips some, beside Apache
    Kafka, too.
    """
    said = tmp_path / "said"
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("faust-lines", partitions=2)
        log.create_topic("faust-counts", partitions=2)
        for run in range(2):
            numbers = range(50 * run, 50 * (run + 1))
            with running(said, "faust_count.py", bootstrap, tmp_path / f"data-{run}"):
                while said.read_text().count("Worker ready") <= run:
                    time.sleep(0.1)
                log.append_many("faust-lines", [(b"key %d" % (n % KEYS), b"%d" % n) for n in numbers])
                read_all(log, "faust-counts", 50 * (run + 1))
                while committed(log, "faust") < 50 * (run + 1):
                    time.sleep(0.1)
        found = [json.loads(value) for _, value in read_all(log, "faust-counts", 100)]
    assert sorted(each["line"] for each in found) == list(range(100))
    for key in range(KEYS):
        of_key = sorted((each["line"], each["count"]) for each in found if each["line"] % KEYS == key)
        assert [count for _, count in of_key] == list(range(1, len(of_key) + 1))


@pytest.mark.timeout(HANGS_S)
def test_celery(bootstrap: str, tmp_path: Path) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("celery-tasks")
    results = tmp_path / "results"
    results.mkdir()
    with running(tmp_path / "said", "celery_tasks.py", bootstrap, results, "worker", "0"):
        command = list(map(str, [PYTHON, HERE / "celery_tasks.py", bootstrap, results, "send", 20]))
        sent = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert sent.returncode == 0, sent.stderr
    assert str([number * number for number in range(20)]) in sent.stdout


@pytest.mark.timeout(HANGS_S)
def test_bytewax(bootstrap: str, tmp_path: Path) -> None:
    """A dataflow's source and sink. A second run goes on from the first one's snapshots: offsets and sums."""
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("bytewax-in", partitions=2)
        log.create_topic("bytewax-out", partitions=2)
        expected, sums = [], Counter[bytes]()
        for run in range(2):
            records = [(b"key %d" % (n % KEYS), b"%d" % n) for n in range(50 * run, 50 * (run + 1))]
            log.append_many("bytewax-in", records)
            for key, number in records:
                sums[key] += int(number)
                expected.append((key, b"%d" % sums[key]))
            command = list(map(str, [PYTHON, HERE / "bytewax_sum.py", bootstrap, tmp_path / "recovery"]))
            ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
            assert ran.returncode == 0, ran.stderr
            assert sorted(read_all(log, "bytewax-out", len(expected))) == sorted(expected)
