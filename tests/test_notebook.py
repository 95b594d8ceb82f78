"""HTML of logs and groups for notebooks: well formed, escaped, bounded, and true."""

from __future__ import annotations

import bisect
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedlog
from embedlog import Log, Record, TopicPartition
from embedlog.backends.engine import EngineBackend
from embedlog.clients.notebook import moment, summarize, text
from embedlog.cluster import Broker

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html)


def shown(html: str) -> list[list[str]]:
    """The text of each row of each table, without the bars' tooltips."""
    tree = parsed(html)
    for rect in tree.iter("rect"):
        rect.clear()
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def bars(html: str) -> list[int]:
    return [
        int((rect.findtext("title") or "").split(" ")[0].replace(",", ""))
        for rect in parsed(html).iter("rect")
    ]


@pytest.fixture(params=["directory", "wire"])
def any_log(request: pytest.FixtureRequest, path: Path) -> Iterator[Log]:
    if request.param == "directory":
        with embedlog.open(path) as log:
            yield log
    else:
        with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
            yield log


def test_an_empty_log(any_log: Log) -> None:
    assert len(shown(any_log._repr_html_())) == 1
    any_log.create_topic("idle", 3)
    html = any_log._repr_html_()
    assert shown(html)[1][:3] == ["idle", "3", "0"]
    assert bars(html) == []
    assert "first and last" not in html


def test_records_over_time(any_log: Log) -> None:
    """Each bar has the records whose timestamps lie in it, in all partitions."""
    count = 24 if any_log.mode == "rw" and not any_log.path.startswith("kafka://") else 12
    any_log.create_topic("events", 3)
    expected = [0] * count
    ends = [START_MS + 100 * HOUR_MS * (number + 1) // count for number in range(count - 1)]
    for partition in range(3):
        records = []
        for number in range(200):
            at = (number * number * (partition + 1)) % 1000 if number % 2 else number
            records.append(START_MS + at * HOUR_MS // 10)
        records.sort()
        records[0], records[-1] = START_MS, START_MS + 100 * HOUR_MS
        for time_ms in records:
            expected[bisect.bisect_right(ends, time_ms)] += 1
        any_log.append_many(
            "events", [Record(value=b"v", timestamp_ms=time_ms) for time_ms in records], partition=partition
        )
    html = any_log._repr_html_()
    assert bars(html) == expected
    _, row, *rest = shown(html)
    assert row[:3] == ["events", "3", "600"]
    assert row[4:6] == [moment(START_MS), moment(START_MS + 100 * HOUR_MS)]
    assert [each[1:4] for each in rest[1:]] == [["first", "0", "0"], ["last", "0", "199"]]
    if count == 24:
        assert row[3].replace(",", "") == str(any_log.health().bytes)
    assert re.search(r"peak [\d,]+/(s|min|h)$", row[6])


def test_a_topic(any_log: Log) -> None:
    any_log.create_topic("other")
    any_log.append("other", b"not here")
    any_log.create_topic("events", 2)
    for number in range(100):
        at = START_MS + number * HOUR_MS
        any_log.append("events", b'{"id": %d}' % number, partition=number % 2, timestamp_ms=at)
    events = any_log.topic("events", serializer="json")
    html = events._repr_html_()
    rows = shown(html)
    assert rows[1][:3] == ["events", "2", "100"]
    assert [row[1:4] + row[-1:] for row in rows[3:]] == [
        ["first", "0", "0", '{"id": 0}'],
        ["last", "1", "49", '{"id": 99}'],
    ]
    assert sum(bars(html)) == 100
    assert rows[1:2] + rows[3:] == [row for row in shown(any_log._repr_html_()) if row[0] == "events"]
    any_log.delete_topic("events")
    assert "events" in shown(events._repr_html_())[1][-1]


def test_a_consumer(any_log: Log) -> None:
    any_log.create_topic("events", 210)
    for number in range(10):
        any_log.append("events", b"%d" % number, partition=3)
    with any_log.consumer("events", group="<b>billing</b>") as consumer:
        assert len(shown(consumer._repr_html_())) == 1
        count = 0
        while count < 4:
            count += len(consumer.poll(1000, max_records=4 - count))
        html = consumer._repr_html_()
        assert "<b>" not in html and "and 10 more partitions" in html
        rows = shown(html)
        assert rows[:2] == [
            ["topic", "partition", "position", "log end", "lag"],
            ["events", "0", "0", "0", "0"],
        ]
        assert rows[4] == ["events", "3", "4", "10", "6"]
        any_log.delete_topic("events")
        assert shown(consumer._repr_html_())[4] == ["events", "3", "4", "", ""]
    assert parsed(consumer._repr_html_()).text is None


def test_what_records_hold_is_escaped_and_short(log: Log) -> None:
    log.create_topic("t")
    value = b"<script>alert(1)</script>&amp;'\"" + "größer\n".encode() * 1000
    log.append("t", value, key=bytes([255, 0]), timestamp_ms=START_MS)
    log.append("t", None, key="\u202ekey\x00".encode(), timestamp_ms=START_MS + 1)
    html = log._repr_html_()
    assert "<script>" not in html and len(html) < 20_000
    first, last = shown(html)[-2:]
    assert first[-1].startswith("<script>alert(1)</script>&amp;'\"größer·größer") and len(first[-1]) == 81
    assert first[-2] == "b'\\xff\\x00'"
    assert last[-2:] == ["·key·", "null"]


@given(st.one_of(st.none(), st.binary(), st.text(), st.binary(min_size=300, max_size=400)))
def test_any_value_is_well_formed(value: bytes | str | None) -> None:
    shown = parsed(f"<p>{text(value)}</p>")
    assert len("".join(shown.itertext())) <= 81


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_time_is_shown(time_ms: int) -> None:
    assert moment(time_ms)


def test_records_without_times_and_of_one_time(log: Log) -> None:
    log.create_topic("one")
    log.append_many("one", [Record(value=b"x", timestamp_ms=START_MS)] * 5)
    log.create_topic("out-of-order")
    for at in (50, 10, 90, 20, 100, 0):
        log.append("out-of-order", b"x", timestamp_ms=START_MS + at * HOUR_MS)
    html = log._repr_html_()
    assert shown(html)[1][-1] == ""
    assert shown(html)[2][2] == "6"
    assert bars(html) == []  # the last record is older than the first


@pytest.mark.slow
def test_many_topics_and_partitions_cost_a_bounded_number_of_lookups(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        partitions = 12 if number < 14 else 1
        log.create_topic(f"t{number:02}", partitions)
        for partition in range(partitions):
            for at in (0, 1):
                log.append(f"t{number:02}", b"x", partition=partition, timestamp_ms=START_MS + at * HOUR_MS)
    lookups = 0
    original = EngineBackend.offset_for_time

    def counting(self: EngineBackend, topic: str, partition: int, time_ms: int) -> object:
        nonlocal lookups
        lookups += 1
        return original(self, topic, partition, time_ms)

    monkeypatch.setattr(EngineBackend, "offset_for_time", counting)
    html = log._repr_html_()
    assert html.count("<svg") == 6  # of one more topic 1,000 lookups might not be enough
    assert 0 < lookups <= 1_000
    assert "and 10 more topics" in html
    assert len(shown(html)) > 50
    assert "6 of 12 partitions" in html
    assert summarize(log.backend, "t00", 3).first is None
    assert summarize(log.backend, "t00", 20).bars == []


def test_damage_and_closing_show_as_text(path: Path) -> None:
    with embedlog.open(path) as log:
        for topic in ("bad", "good"):
            log.create_topic(topic)
            log.append_many(topic, [b"x" * 100] * 10)
        log.flush()
        (segment,) = (path / "bad_0").glob("*.kafka")
        data = bytearray(segment.read_bytes())
        data[100] ^= 255
        segment.write_bytes(data)
        rows = shown(log._repr_html_())
        assert rows[1][0] == "bad" and rows[1][-1] != ""
        assert rows[2][:3] == ["good", "1", "10"]
    html = log._repr_html_()
    assert html.startswith("<pre>&lt;embedlog.Log") and "closed" in html


def test_a_reader_and_a_compacted_topic(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0)
        for number in range(200):
            log.append("t", b"x" * 50, key=b"k%d" % (number % 3), timestamp_ms=START_MS + number * 1000)
        log.compact("t")
        with embedlog.open(path, mode="r") as reader:
            assert reader._repr_html_().partition("</code>")[2] == log._repr_html_().partition("</code>")[2]
        html = log._repr_html_()
        assert sum(bars(html)) == 200  # offsets, also those that compaction removed


def test_a_group_in_a_notebook(log: Log) -> None:
    log.create_topic("t", 210)
    log.append("t", b"x", partition=1)
    name = "<b>billing</b>"
    log.group(name).reset("t", to="earliest")
    html = log.group(name).describe()._repr_html_()
    assert "<b>" not in html
    rows = shown(html)
    assert rows[2] == ["t", "1", "0", "1", "1", ""]
    assert "and 10 more partitions" in html and "1 behind" in html
    with log.consumer("t", group="live", group_instance_id="web-1") as consumer:
        consumer.poll(0)
        while TopicPartition("t", 0) not in consumer.assignment():
            consumer.poll(100)
        consumer.commit()
        assert shown(log.group("live").describe()._repr_html_())[1][-1] == "web-1"
