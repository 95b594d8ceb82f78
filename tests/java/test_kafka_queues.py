"""Queues over the share groups of Apache Kafka (KIP-932).

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_programs import apache_kafka
from kafka_tools import classpath
from queue_over_brokers import kill_workers, settled_by_workers

import embedlog
import embedlog.aio
from embedlog.errors import BrokerUnavailable, InvalidArgument, LockLost, UnsupportedByBackend


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("kafka")
    with apache_kafka(classpath(path / "classpath", "connect"), path) as bootstrap:
        yield f"kafka://{bootstrap}"


@pytest.fixture
def log(address: str) -> Iterator[embedlog.Log]:
    with embedlog.open(address) as log:
        yield log


def take(queue: Any) -> Any:
    return queue.take(timeout_ms=math.inf)


def test_a_group_begins_with_the_first_job_and_gets_each_once(log: embedlog.Log) -> None:
    log.create_topic("all", partitions=3, retention_ms=-1)
    log.append_many("all", [(b"%d" % number, b"%d" % number) for number in range(60)])
    with log.queue("all", group="all") as queue:
        values = []
        for _ in range(60):
            with take(queue) as job:
                assert job.deliveries == 1
                values.append(job.value or b"")
        assert sorted(values) == sorted(b"%d" % number for number in range(60))
        assert queue.take(timeout_ms=500, default=None) is None
    with log.queue("all", group="all") as queue:
        assert queue.take(timeout_ms=500, default=None) is None


def test_jobs_of_aborted_transactions_are_not_delivered(log: embedlog.Log) -> None:
    with log.queue("tx", group="tx") as queue:
        for number in range(6):
            try:
                with log.transaction("tx") as tx:
                    tx.append("tx", b"%d" % number)
                    if number % 2:
                        raise RuntimeError("planned")
            except RuntimeError:
                pass
        for value in (b"0", b"2", b"4"):
            with take(queue) as job:
                assert job.value == value
        assert queue.take(timeout_ms=500, default=None) is None


def test_release_reject_renew_and_dead_letters(log: embedlog.Log) -> None:
    with log.queue("mails", group="mails", max_deliveries=3, backoff_ms=200, lock_ms=2_000) as queue:
        queue.send(b"poison", key=b"k")
        for count in (1, 2, 3):
            with pytest.raises(RuntimeError), take(queue) as job:
                assert job.deliveries == count
                raise RuntimeError("planned")
        queue.send(b"bad")
        take(queue).reject("no such customer")
        queue.send(b"long")
        job = take(queue)
        time.sleep(3)  # the queue renews its lock
        job.renew()
        job.accept()
        with pytest.raises(LockLost):
            job.accept()
        queue.send(b"later")
        before = time.monotonic()
        take(queue).release(delay_ms=3_000)  # longer than its lock
        job = take(queue)
        assert (job.value, job.deliveries) == (b"later", 2)
        assert time.monotonic() - before >= 3
        job.accept()
        assert queue.take(timeout_ms=500, default=None) is None
    letters = list(log.read("dlq.mails"))
    assert [letter.value for letter in letters] == [b"poison", b"bad"]
    assert [dict(letter.headers)["embedlog.error"] for letter in letters] == [
        b"RuntimeError: planned",
        b"no such customer",
    ]


def test_close_gives_jobs_back(log: embedlog.Log) -> None:
    with log.queue("back", group="back") as queue:
        queue.send(b"work")
        job = take(queue)
    with pytest.raises(LockLost):
        job.accept()
    with log.queue("back", group="back") as queue:
        before = time.monotonic()
        job = take(queue)
        assert job.deliveries == 2  # Kafka counts what the end of a session gives back
        job.accept()
        assert time.monotonic() - before < 20  # its lock lasts for 30 s


def test_a_lost_connection_gives_jobs_back(log: Any, address: str) -> None:
    with (
        embedlog.open(address) as elsewhere,
        log.queue("lost", group="lost") as queue,
        elsewhere.queue("lost", group="lost") as other,
    ):
        queue.send(b"work")
        job = take(queue)
        before = time.monotonic()
        for connection in list(log.backend._brokers._busy):
            connection.abort()
        take(other).accept()
        assert time.monotonic() - before < 20
        with pytest.raises((LockLost, BrokerUnavailable)):
            job.accept()
        queue.send(b"more")
        values = {
            job.value for source in (queue, other) if (job := source.take(timeout_ms=3_000, default=None))
        }
        assert values == {b"more"}


def test_what_kafka_does_not_give_is_refused(log: embedlog.Log, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnsupportedByBackend, match="in parallel"):
        log.queue("refused", group="r", ordered_by_key=True)
    with pytest.raises(UnsupportedByBackend, match="fsync"):
        log.queue("refused", group="r", flush=True)
    with pytest.raises(InvalidArgument, match="lock_ms=100"):
        log.queue("refused", group="r", lock_ms=100)
    with pytest.raises(InvalidArgument, match="at most 5 times"):
        log.queue("refused", group="r", max_deliveries=20)
    assert "refused" not in log.topics()
    with (
        log.queue("told", group="told", max_deliveries=10) as queue,
        pytest.raises(UnsupportedByBackend, match="at once"),
    ):
        queue.send(b"work", delay_ms=1_000)
    assert "dies at delivery 10 is gone without a dead letter" in caplog.text


def test_tasks(address: str) -> None:
    async def work() -> list[bytes | None]:
        async with await embedlog.aio.open(address) as log, log.queue("tasks", group="tasks") as queue:
            for number in range(20):
                await queue.send(b"%d" % number)
            values: list[bytes | None] = []
            while len(values) < 20:
                async with await queue.take(timeout_ms=math.inf) as job:
                    values.append(job.value)
            return values

    assert asyncio.run(work()) == [b"%d" % number for number in range(20)]


def test_killed_workers_lose_no_job(address: str, tmp_path: Path) -> None:
    with embedlog.open(address) as log, log.queue("jobs", lock_ms=3_000, max_deliveries=8) as queue:
        for number in range(400):
            queue.send(b"%d" % number)
    kill_workers(address, tmp_path, kills=6, lock_ms=3_000)
    accepted, again = settled_by_workers(tmp_path)
    assert accepted == {b"%d" % number for number in range(400)}
    assert not again, "a job that was accepted was delivered again"
