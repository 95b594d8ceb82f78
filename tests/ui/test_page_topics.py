"""What the page says of a log and of its topics, and that each look at them is bounded."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from rounds import examples
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.backends.remote import RemoteBackend
from embedlog.cluster import Broker
from embedlog.model import TopicPartition
from embedlog.ui import application
from embedlog.ui.times import Span, Spans, history

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
START_MS = 1_767_225_600_000  # 2026-01-01


@contextmanager
def visiting(log: Log) -> Iterator[TestClient]:
    with TestClient(application(log)) as client:
        yield client


@pytest.fixture
def grown(path: Path) -> Path:
    """A log with a topic that got n records in its nth hour, of 24, in batches of 10 at most."""
    with embedlog.open(path) as log:
        log.create_topic(
            "clicks", 2, segment_bytes=4_096, index_interval_bytes=256, retention_ms=100 * YEAR_MS
        )
        for hour in range(24):
            for at in range(hour):
                log.append("clicks", b"x" * 40, partition=at % 2, timestamp_ms=START_MS + hour * HOUR_MS + at)
    return path


def test_history_equals_a_count(grown: Path) -> None:
    with embedlog.open(grown, "r") as log, embedlog.open(grown, "r") as other:
        end_ms = START_MS + 24 * HOUR_MS
        store = application(log).state.site.store
        seen = history(log, store, "clicks", START_MS, end_ms, bars=24)
        assert list(seen.records) == list(range(24))
        assert seen.bytes is not None
        assert sum(seen.bytes) == sum(other.backend.sizes("clicks").values())
        assert seen.bytes[0] == 0
        assert (seen.looked_at, seen.partitions, seen.failed) == (2, 2, 0)
        part = history(log, store, "clicks", START_MS + 10 * HOUR_MS, START_MS + 12 * HOUR_MS, bars=12)
        assert sum(part.records) == 10 + 11
        store.close()
    with Broker(grown, port=0) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        told = history(log, None, "clicks", START_MS, end_ms, bars=24)
        assert told == seen._replace(bytes=None, is_exact=False)
        spans = Spans(log, None)
        edges = {TopicPartition("clicks", number): each for number, each in log.offsets("clicks").items()}
        spans.look(edges, 1)
        spans.look(edges, 1)
        assert spans.of(list(edges)) == (START_MS + HOUR_MS, START_MS + 23 * HOUR_MS + 22)


def test_a_plot_of_brokers_asks_for_few_times(path: Path) -> None:
    """A burst in a year: the bars without records need no requests of their own, in any partition."""
    with (
        Broker(path, port=0, metrics_port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
    ):
        log.create_topic("clicks", 3)
        for at in range(25):
            log.append("clicks", b"x", partition=at % 2, timestamp_ms=START_MS + YEAR_MS // 2 + at)
        before = lookups(broker)
        year = history(log, None, "clicks", START_MS, START_MS + YEAR_MS)
        assert len(year.times) == 53
        assert sorted(year.records)[-2:] == [0, 25]
        assert lookups(broker) - before <= 12
        before = lookups(broker)
        assert sum(history(log, None, "clicks", START_MS, START_MS + HOUR_MS).records) == 0
        assert lookups(broker) - before <= 4


def lookups(broker: Broker) -> int:
    """How many requests of ListOffsets a broker has answered."""
    assert broker.context.meter is not None
    return sum(count for (api, _), count in broker.context.meter.requests().items() if api == "ListOffsets")


def test_offsets_for_times_are_the_first_from_each_on(path: Path) -> None:
    """In whatever order the records came; with one record, with many, with none."""
    draw = random.Random(30)
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
    ):
        assert isinstance(log.backend, RemoteBackend)
        log.create_topic("scattered", 5)
        stamps = {number: [draw.randrange(100) for _ in range(number * number)] for number in range(5)}
        for number, of_partition in stamps.items():
            for stamp in of_partition:
                log.append("scattered", b"x", partition=number, timestamp_ms=stamp)
        for _ in range(examples(100)):
            times = sorted(draw.choices(range(110), k=draw.randrange(1, 70)))
            records = log.backend.splits.offsets_for_times(
                [TopicPartition("scattered", number) for number in stamps], times
            )
            for number, of_partition in stamps.items():
                expected = [
                    next((offset for offset, stamp in enumerate(of_partition) if stamp >= time_ms), None)
                    for time_ms in times
                ]
                first_records = records[TopicPartition("scattered", number)]
                assert [record and record.offset for record in first_records] == expected


def test_a_topic(grown: Path) -> None:
    with embedlog.open(grown, "r") as log, visiting(log) as client:
        page = client.get("/topics/clicks").text
        assert "276 records;" in page
        assert "for 100 years" in page
        assert page.count('<rect class="bar"') == 2 * 45  # from 01:00 to 23:00, each half an hour
        assert " settings, 3 of its own" in page
        assert page.count("its own</span>") == 3
        for number in (0, 1):
            assert f"/topics/clicks/records?partition={number}&amp;from=0" in page
        for query in (
            "range=hour",
            "from=2026-01-01T10:00&to=2026-01-01T12:00",
            "from=2026-01-01",
            "first=9",
        ):
            assert client.get(f"/topics/clicks?{query}").status_code == 200
        for query in ("from=yesterday", "to=99999-01-01", "from=2026-01-02&to=2026-01-01", "from=0001-01-01"):
            assert client.get(f"/topics/clicks?{query}").status_code == 200
        assert "not a time" in client.get("/topics/clicks?from=%3Cscript%3E").text
        assert "<script>" not in client.get("/topics/clicks?from=%3Cscript%3E").text


@pytest.mark.parametrize(
    "wanted",
    ["none", "%00", "a b", "..%2f..%2fetc", "x" * 300, "clicks/partitions/2", "clicks/partitions/-1"],
)
def test_what_is_not_there(grown: Path, wanted: str) -> None:
    with embedlog.open(grown, "r") as log, visiting(log) as client:
        assert client.get(f"/topics/{wanted}").status_code == 404
        assert client.get(f"/topics/clicks/partitions/{'9' * 5_000}").status_code == 404


def test_segments(grown: Path) -> None:
    with embedlog.open(grown) as log:
        log.alter_topic("clicks", cleanup_policy="compact")
        log.compact("clicks")
        with visiting(log) as client:
            page = client.get("/topics/clicks/partitions/0").text
            assert page.count(">active<") == 1
            assert page.count(">compacted<") >= 1
            topic = client.get("/topics/clicks").text
            assert "the last record of each key" in topic
            assert "are compacted" in topic


def test_the_overview(grown: Path) -> None:
    with embedlog.open(grown, max_bytes=10_000_000) as log:
        log.create_topic("empty")
        with visiting(log) as client:
            page = client.get("/").text
            assert "of 10.0 MB" in page
            assert "closed the log in order" in page
            assert page.count("2026-01-01 ") + page.count("2026-01-02 ") + page.count("2025-12-31 ") == 2
    with embedlog.open(grown, "r") as log, visiting(log) as client:
        assert "No process has the log open" in client.get("/").text


def test_the_overview_has_lags_and_dead_letters(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.create_topic("other")
        log.append_many("jobs", [b"%d" % number for number in range(5)])
        for group, read in (("ahead", 4), ("behind", 2)):
            with log.consumer("jobs", group=group) as consumer:
                for record in consumer:
                    if record.offset == read - 1:
                        consumer.commit()
                        break
        with log.queue("jobs") as queue:
            queue.take(10_000).reject("no")
        while "dlq.jobs" not in log.topics() or not log.offsets("dlq.jobs")[0].log_end_offset:
            threading.Event().wait(0.01)
        with visiting(log) as client:
            page = client.get("/?order=lag").text
            (row,) = [part for part in page.split("<tr>") if ">jobs</a>" in part]
            assert re.findall(r'class="number">([^<]*)<', row)[-2:] == ["3", "1"]
            (row,) = [part for part in page.split("<tr>") if ">other</a>" in part]
            assert re.findall(r'class="number">([^<]*)<', row)[-2:] == ["–", "–"]


def test_a_log_that_another_process_writes(grown: Path) -> None:
    with embedlog.open(grown), embedlog.open(grown, "r") as log, visiting(log) as client:
        assert "has the log open for writing since" in client.get("/").text


def test_many_partitions(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("wide", 100)
        for number in range(100):
            log.append("wide", b"1", partition=number, timestamp_ms=START_MS + number)
        with visiting(log) as client:
            page = client.get("/topics/wide").text
            assert "These are 25 of 100 partitions with records" in page
            assert "1 to 50 of 100" in page
            assert page.count(">records</a>") == 50
            assert "51 to 100 of 100" in client.get("/topics/wide?first=50").text


def test_names_of_strangers(path: Path) -> None:
    group = "<script>alert(1)</script>&name=x"
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        log.append("clicks", b"1")
        with log.consumer("clicks", group=group) as consumer:
            next(iter(consumer))
            consumer.commit()
        with visiting(log) as client:
            page = client.get("/topics/clicks").text
            assert "<script>alert" not in page
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
            assert "/group?name=%3Cscript%3Ealert%281%29%3C/script%3E%26name%3Dx" in page
        hostile = "a\u202eb\nc"
        with log.consumer("clicks", group=hostile) as consumer:
            next(iter(consumer))
            consumer.commit()
        with visiting(log) as client:
            where = f"/group?name={quote(hostile)}"
            for page in ("/topics/clicks", "/groups", where):
                text = client.get(page).text
                assert "\u202e" not in text, page
                assert r"a\u202eb" in text, page
    noted = {"program": "<script>", "pid": "x", "since_ms": "y", "max_bytes": "z"}
    (path / "writer.json").write_text(json.dumps(noted))
    (path / "clean-shutdown").unlink()
    with embedlog.open(path, "r") as log, visiting(log) as client:
        page = client.get("/").text
        assert "&lt;script&gt; (process x) wrote the log and did not close it" in page


def test_damage(grown: Path) -> None:
    """A page that says so, not an error."""
    first = sorted(grown.glob("clicks_0/*.kafka"))[0]
    for index in grown.glob("clicks_0/*index"):
        index.unlink()
    first.write_bytes(b"\xff" * first.stat().st_size)
    with embedlog.open(grown, "r") as log, visiting(log) as client:
        for page in ("/", "/topics/clicks", "/topics/clicks/partitions/0"):
            assert client.get(page).status_code == 200
        assert "damaged" in client.get("/topics/clicks/partitions/0").text


def test_a_recovery_that_finds_damage(grown: Path) -> None:
    (grown / "clean-shutdown").unlink()
    last = max(grown.glob("clicks_0/*.kafka"))
    last.write_bytes(last.read_bytes()[:100])
    with embedlog.open(grown) as log, visiting(log) as client:
        page = client.get("/").text
        assert "degraded" in page
        assert "clicks 0 refuses appends:" in page
        assert "did not close the log: opening it checked 2 partitions" in page
        assert "damaged: refuses appends" in client.get("/topics/clicks").text


@pytest.mark.slow
def test_a_thousand_topics(path: Path) -> None:
    """A page of them, and no lookup in its request: the sampler has made them, some at a time."""
    with embedlog.open(path) as log:
        for number in range(1_000):
            log.create_topic(f"topic-{number:03}")
        for number in range(900):
            log.append(f"topic-{number:03}", b"1")
        with visiting(log) as client:
            page = client.get("/").text
            assert page.count('<th scope="row">') == 100
            assert "1 to 100 of 1,000" in page
            assert page.count(time.strftime("%Y-")) <= 2 * 100
            assert "topic-950" in client.get("/?first=900").text
            site = client.app.state.site  # type: ignore[attr-defined]
            known = sum(topic.span.last_ms >= 0 for topic in site.sampler.latest().topics.values())
            assert known <= 500


def test_spans_before_1970() -> None:
    assert Span(-5_000, -4_000).joined(Span()) == Span().joined(Span(-5_000, -4_000)) == Span(-5_000, -4_000)
    assert Span(-5_000, -4_000).joined(Span(7, 8)) == Span(-5_000, 8)
    assert Span().joined(Span()) == Span()
