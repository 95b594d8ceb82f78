"""The pages of work queues, and dead letters that are sent again."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from cli_commands import runner
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.clients.queue_admin import describe_queues
from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.metrics import LogCollector
from embedlog.ui import application

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """Of five jobs two are dead letters, one is locked, and two wait."""
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.append_many("jobs", [b'{"n": %d, "html": "<b>"}' % number for number in range(5)])
        with log.queue("jobs") as queue:  # closed, it has written what was rejected
            for _ in range(2):
                job = queue.take(10_000)
                job.reject(HOSTILE)
        dead(log, 2)
        with log.queue("jobs", lock_ms=60_000) as queue:
            locked = queue.take(10_000)
            yield log
            locked.accept()


@pytest.fixture
def visitor(log: Log) -> Iterator[TestClient]:
    with TestClient(application(log, writable=True), follow_redirects=False) as client:
        yield client


def csrf_of(visitor: TestClient) -> str:
    return visitor.get("/").text.partition('data-csrf="')[2].partition('"')[0]


def dead(log: Log, expected: int) -> bool:
    """Waits until there are so many dead letters: what was done to a job is written a moment later."""
    while True:
        (queue,) = describe_queues(log.backend)
        if queue.dead == expected:
            return True
        threading.Event().wait(0.01)


def test_a_queue(visitor: TestClient) -> None:
    assert 'href="/queue?topic=jobs&amp;group=default"' in visitor.get("/queues").text
    page = visitor.get("/queue?topic=jobs&group=default").text
    assert "<b>2</b><span>dead letters" in page
    assert HOSTILE not in page
    assert "<b>&#34;" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3  # of the letters, and the last one
    assert re.search(r"The last error, [0-9-]+ [0-9:]+[.][0-9]{3}: &lt;script", page)
    for heading in ("key", "age"):
        assert f">{heading}</th>" in page
    assert re.search(r'<td><time title="[0-9-]+ [0-9:]+[.][0-9]{3}">[0-9.,]+ (ms|s|min)</time></td>', page)
    assert visitor.get("/queue?topic=jobs&group=none").status_code == 409
    assert visitor.get("/queue").status_code == 409


def test_dead_letters_are_sent_again(log: Log, visitor: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"csrf": csrf_of(visitor), "topic": "jobs", "group": "default"}
    for wrong in ("", "0", "0:", "x:1", "-1:0", "9:" + "9" * 30):
        assert visitor.post("/queue/redrive", data={**fields, "which": wrong}).status_code == 409
    assert visitor.post("/queue/redrive", data={**fields, "csrf": "x", "which": "all"}).status_code == 409
    assert dead(log, 2)
    with caplog.at_level(logging.INFO):
        assert visitor.post("/queue/redrive", data={**fields, "which": "0:1"}).status_code == 303
    assert dead(log, 1)
    assert "dead letter 0:1 of jobs was sent again" in caplog.text
    assert visitor.post("/queue/redrive", data={**fields, "which": "0:1"}).status_code == 409
    page = visitor.get("/queue?topic=jobs&group=default").text
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2  # of the letter, and the last error
    assert visitor.post("/queue/redrive", data={**fields, "which": "all"}).status_code == 303
    assert dead(log, 0)
    assert log.offsets("jobs")[0].log_end_offset == 7


def test_a_page_that_changes_nothing(log: Log) -> None:
    with TestClient(application(log)) as visitor:
        assert "again" not in visitor.get("/queue?topic=jobs&group=default").text
        fields = {"csrf": csrf_of(visitor), "topic": "jobs", "group": "default", "which": "all"}
        assert visitor.post("/queue/redrive", data=fields).status_code == 403
    assert dead(log, 2)


def test_queues_of_brokers(path: Path) -> None:
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        TestClient(application(log, writable=True)) as visitor,
    ):
        assert "No share group has taken records" in visitor.get("/queues").text
        broker.log.create_topic("jobs", 2)
        broker.log.append_many("jobs", [b"%d" % number for number in range(6)], partition=1)
        with broker.log.queue("jobs") as queue:
            for number in range(4):
                job = queue.take(10_000)
                if number == 3:
                    job.reject(HOSTILE)
                else:
                    job.accept()
        while "dlq.jobs" not in log.topics() or not log.offsets("dlq.jobs")[0].log_end_offset:
            threading.Event().wait(0.01)
        page = visitor.get("/queues").text
        assert 'href="/queue?topic=jobs&amp;group=default"' in page
        assert page.count("<tr>") == 2  # the redrive group is none of them
        page = visitor.get("/queue?topic=jobs&group=default").text
        assert "<b>2</b><span>unfinished" in page
        assert "<b>1</b><span>dead letters" in page
        assert "partition=1&amp;from=4&amp;order=oldest" in page
        assert "&lt;script&gt;alert(1)" in page
        assert HOSTILE not in page
        assert "redrive" not in page.replace("embedlog queue redrive DIR", "")  # no form sends them
        with broker.log.queue("dlq.jobs", "embedlog.redrive") as queue:
            letter = queue.take(10_000)
            letter.accept()
        assert "<b>0</b><span>dead letters" in visitor.get("/queue?topic=jobs&group=default").text
        for wrong in ("topic=jobs&group=none", "topic=none&group=default", ""):
            assert visitor.get(f"/queue?{wrong}").status_code == 409


def test_a_share_group_of_other_clients(path: Path) -> None:
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        TestClient(application(log)) as visitor,
    ):
        broker.log.create_topic("t")
        broker.log.append_many("t", [b"x"] * 3)
        config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "workers", "client.id": "<b>"}
        consumer = confluent_kafka.ShareConsumer(config)
        consumer.subscribe(["t"])
        while "workers" not in visitor.get("/queues").text:
            consumer.poll(0.1)
        page = visitor.get("/queue?topic=t&group=workers").text
        assert "&lt;b&gt;" in page
        consumer.close()


def test_ages_of_jobs_from_before_1970(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time_ms = -86_400_000 * 365 * 5
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        for each in (time_ms, -1):
            log.backend.append("jobs", 0, encode_batch([(None, b"v", (), each)]))
        with log.queue("jobs") as jobs:
            jobs.take(10_000).release()
            (queue,) = describe_queues(log.backend)
            assert queue.oldest_timestamp_ms == time_ms
            with TestClient(application(log)) as visitor:
                page = visitor.get("/queue?topic=jobs&group=default").text
                assert re.search(r'<td><time title="196[45]-[^"]+">6\d years</time></td>', page)
                assert len(re.findall(r"<td>–</td><td>\w", page)) == 1, "-1 is no time"
                assert "196" in visitor.get("/queues").text
            (metric,) = [
                each
                for each in LogCollector(log).collect()
                if each.name == "embedlog_queue_oldest_age_seconds"
            ]
            assert metric.samples[0].value > 86_400 * 365 * 60
    run = runner(capsys, path.parent, monkeypatch)
    for command in (["list"], ["describe", "jobs"]):
        name, *rest = command
        assert re.search(r"6\d years ago", run("queue", name, str(path), *rest).out)
    (described,) = run("queue", "describe", str(path), "jobs", "--json").objects
    assert described["oldest_timestamp_ms"] == time_ms
