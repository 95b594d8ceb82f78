"""Queues over a broker's share groups: what differs from a directory, faults of the connection, and kills.

test_queue.py has what is the same. tests/java/test_kafka_queues.py has Apache Kafka.
"""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from queue_over_brokers import kill_workers, settled_by_workers

import embedlog
from embedlog.clients.queue_admin import redrive
from embedlog.cluster import Broker
from embedlog.errors import BrokerUnavailable, InvalidArgument, LockLost, UnsupportedByBackend
from embedlog.wire_client.connection import Connection


@pytest.fixture
def log(broker: Broker) -> Iterator[Any]:
    with embedlog.open(f"kafka://127.0.0.1:{broker.port}") as log:
        yield log


def take(queue: Any) -> Any:
    return queue.take(timeout_ms=math.inf)


def test_every_release_counts(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        take(queue).release(counted=False)
        job = take(queue)
        assert job.deliveries == 2
        before = time.monotonic()
        job.release(delay_ms=300)  # held here until then
        assert take(queue).deliveries == 3
        assert time.monotonic() - before >= 0.3


def test_failures_become_a_dead_letter_after_the_queues_limit(log: Any) -> None:
    with log.queue("jobs", max_deliveries=3, backoff_ms=10) as queue:
        queue.send(b"poison", key=b"k", headers={"h": b"v"})
        for count in (1, 2, 3):
            with pytest.raises(RuntimeError), take(queue) as job:
                assert job.deliveries == count
                raise RuntimeError("planned")
        assert queue.take(timeout_ms=200, default=None) is None
    (letter,) = log.read("dlq.jobs")
    assert (letter.key, letter.value) == (b"k", b"poison")
    assert dict(letter.headers)["embedlog.deliveries"] == b"3"
    assert dict(letter.headers)["embedlog.error"] == b"RuntimeError: planned"


def test_a_job_whose_worker_died_at_its_last_delivery_is_a_dead_letter(log: Any, broker: Broker) -> None:
    other: Any
    with embedlog.open(f"kafka://127.0.0.1:{broker.port}") as other:
        queue = other.queue("jobs", max_deliveries=1, lock_ms=300)
        queue.send(b"work")
        del queue._source._in_hand  # whoever renews locks fails: the worker is dead
        job = queue.intake.source._coordinator.acquire(
            "default", "jobs", "dead/0", max_records=1, max_wait_ms=5_000, options=queue._source.options
        ).result()
        assert len(job) == 1
        with log.queue("jobs", max_deliveries=1, lock_ms=300) as heir:
            assert heir.take(timeout_ms=2_000, default=None) is None
    (letter,) = log.read("dlq.jobs")
    assert letter.value == b"work"
    assert b"worker of its last delivery" in dict(letter.headers)["embedlog.error"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ordered_by_key": True}, UnsupportedByBackend, "in parallel"),
        ({"flush": True}, UnsupportedByBackend, "fsync"),
        ({"max_deliveries": 32_767}, None, ""),
    ],
)
def test_what_brokers_do_not_give_is_refused_at_the_start(
    log: Any, options: dict[str, object], error: type[Exception] | None, words: str
) -> None:
    if error is None:
        log.queue("jobs", **options).close()
        return
    with pytest.raises(error, match=words):
        log.queue("jobs", **options)
    assert "jobs" not in log.topics()


def test_delays_are_refused_in_words(log: Any) -> None:
    with log.queue("jobs") as queue, pytest.raises(UnsupportedByBackend, match="when it is due"):
        queue.send(b"work", delay_ms=1)


def test_dead_letters_cannot_be_sent_again(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        take(queue).reject("why")
    with pytest.raises(UnsupportedByBackend, match="directory"):
        list(redrive(log.backend, "dlq.jobs"))


def test_a_broker_without_renewals_is_refused(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "has", lambda *_: False)
    with pytest.raises(UnsupportedByBackend, match=r"Kafka 4\.2 or newer"):
        log.queue("jobs")


def test_the_group_gets_its_settings(log: Any, broker: Broker) -> None:
    log.queue("jobs", group="mailers", lock_ms=5_000).close()
    settings = broker.context.group_configs.shares_of("mailers")
    assert settings.options.lock_ms == 5_000
    log.append("jobs", b"before any member")
    with log.queue("jobs", group="mailers", lock_ms=5_000) as queue:
        assert take(queue).value == b"before any member"


def test_a_lost_connection_gives_jobs_back(log: Any) -> None:
    with log.queue("jobs") as queue, log.queue("jobs") as other:
        queue.send(b"work")
        job = take(queue)
        for connection in list(log.backend._brokers._busy):
            connection.abort()
        assert take(other).value == b"work"
        with pytest.raises((LockLost, BrokerUnavailable)):
            job.accept()
        with pytest.raises(LockLost):
            job.accept()
        queue.send(b"more")
        assert take(queue).value == b"more"  # in a new session


def test_a_session_in_another_epoch_begins_anew(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"1")
        take(queue).accept()
        (member,) = log.backend.share_coordinator._members.values()
        for session in member._sessions.values():
            session._epoch = 1_000
        queue.send(b"2")
        assert take(queue).value == b"2"


def test_an_idle_acquire_does_not_hold_up_an_accept(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        job = take(queue)
        waiting = threading.Thread(target=lambda: queue.take(timeout_ms=1_500, default=None))
        waiting.start()
        time.sleep(0.2)
        before = time.monotonic()
        job.accept()
        assert time.monotonic() - before < 1
        waiting.join()


def test_two_queues_of_a_group_share_the_jobs_of_several_partitions(log: Any) -> None:
    log.create_topic("jobs", partitions=3)
    log.append_many("jobs", [(b"%d" % number, b"%d" % number) for number in range(200)])
    values: Counter[bytes | None] = Counter()

    def work() -> None:
        with log.queue("jobs") as queue:
            while (job := queue.take(timeout_ms=1_500, default=None)) is not None:
                with job:
                    values[job.value] += 1

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {b"%d" % number: 1 for number in range(200)}


def test_settings_that_may_not_be_changed_are_told(
    log: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedlog.backends.remote.share_settings import ShareSettings
    from embedlog.errors import AuthorizationFailed

    denied = AuthorizationFailed("denied", resource_type="group", resource="default")
    monkeypatch.setattr(ShareSettings, "_set", lambda *_: denied)
    with caplog.at_level(logging.WARNING):
        log.queue("jobs").close()
    assert "share.auto.offset.reset is not earliest" in caplog.text
    assert "share.isolation.level is not read_committed" in caplog.text
    assert "is gone without a dead letter" in caplog.text
    with pytest.raises(InvalidArgument, match="lock_ms=60,000"):
        log.queue("jobs", lock_ms=60_000)


def test_killed_workers_lose_no_job(broker: Broker, tmp_path: Path) -> None:
    address = f"kafka://127.0.0.1:{broker.port}"
    with embedlog.open(address) as log, log.queue("jobs", lock_ms=2_000) as queue:
        for number in range(300):
            queue.send(b"%d" % number)
    kill_workers(address, tmp_path, kills=4, lock_ms=2_000)
    accepted, after_accept = settled_by_workers(tmp_path)
    assert accepted == {b"%d" % number for number in range(300)}
    assert not after_accept, "a job that was accepted was delivered again"


@embedlog.worker("jobs", max_deliveries=2, backoff_ms=10, concurrency=3)
def work(job: Any) -> None:
    if job.value == b"7":
        raise RuntimeError("planned")


def test_workers(log: Any) -> None:
    with log.queue("jobs", max_deliveries=2) as queue:
        for number in range(20):
            queue.send(b"%d" % number)
    with log.run_workers(work, background=True):
        deadline = time.monotonic() + 20
        while "dlq.jobs" not in log.topics() and time.monotonic() < deadline:
            time.sleep(0.05)
    with log.queue("jobs", max_deliveries=2) as queue:
        while (job := queue.take(timeout_ms=1_000, default=None)) is not None:
            job.accept()
    (letter,) = log.read("dlq.jobs")
    assert (letter.value, dict(letter.headers)["embedlog.deliveries"]) == (b"7", b"2")


def test_the_work_command(log: Any, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import embedlog\n\n@embedlog.worker('jobs')\ndef note(job):\n    print('did', job.value, flush=True)"
    )
    command = [sys.executable, "-m", "embedlog", "work", "tasks:note", f"kafka://127.0.0.1:{broker.port}"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            with log.queue("jobs") as queue:
                queue.send(b"work")
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            assert any(line == b"did b'work'\n" for line in lines)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    with log.queue("jobs") as queue:
        assert queue.take(timeout_ms=500, default=None) is None


def test_a_restarted_broker_loses_no_job(path: Path) -> None:
    with Broker(path) as first:
        port = first.port
        opened = embedlog.open(f"kafka://127.0.0.1:{port}")
        queue: Any = opened.queue("jobs", lock_ms=2_000)
        for number in range(10):
            queue.send(b"%d" % number)
        done = [take(queue) for _ in range(3)]
        done[0].accept()
    with opened, Broker(path, port=port):
        for job in done[1:]:
            with pytest.raises((LockLost, BrokerUnavailable)):
                job.accept()
        values = set()
        while len(values) < 9:
            with take(queue) as job:
                values.add(job.value)
        assert values == {b"%d" % number for number in range(1, 10)}
        assert queue.take(timeout_ms=3_000, default=None) is None
        queue.close()
