"""The driver's plan and the tasks' scans, without Spark: split and scanned, they return the log's records."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import damage
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as pushed
from pyspark.sql.types import StructType
from random_logs import START_MS, make_log
from rounds import examples

import embedlog
from embedlog import Log, Record
from embedlog.errors import (
    CorruptRecord,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    RecordsLost,
    TopicNotFound,
)
from embedlog.spark.filters import ALL, ScanBounds, scan_bounds
from embedlog.spark.offsets import Span, planned_spans, planned_tasks
from embedlog.spark.options import read_options
from embedlog.spark.scan import scan
from embedlog.spark.schema import arrow_schema, columns_of, full_schema

SCHEMA = full_schema(include_headers=True)


@contextmanager
def made(seed: int) -> Iterator[tuple[Log, list[str]]]:
    with tempfile.TemporaryDirectory() as directory:
        topics = make_log(Path(directory) / "log", random.Random(seed))
        with embedlog.open(Path(directory) / "log", mode="r") as log:
            yield log, topics


def pieces_of(log: Log, wanted: ScanBounds = ALL, **options: object) -> list[Span]:
    """The driver's plan for options."""
    chosen = read_options({"path": log.path, **{n: str(v) for n, v in options.items()}}, "batch")
    tasks = planned_tasks(
        log,
        planned_spans(log, chosen, wanted),
        min_partitions=chosen.min_partitions,
        max_records=chosen.max_records_per_partition,
        not_before_ms=wanted.not_before_ms,
    )
    offsets = [sum(span.end - span.start for span in spans) for spans in tasks]
    assert len(tasks) >= min(chosen.min_partitions or 0, sum(offsets))
    assert max(offsets, default=0) <= (chosen.max_records_per_partition or 1 << 63)
    return [span for spans in tasks for span in spans]


def test_small_partitions_share_tasks(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("t", partitions=400)
        log.create_topic("large", partitions=2)
        for number in range(400):
            log.append("t", b"value", partition=number)
        for number in range(2):
            log.append_many("large", [bytes(1000)] * 5000, partition=number)
        spans = {
            t: [Span(t, n, 0, edges.log_end_offset) for n, edges in log.offsets(t).items()]
            for t in log.topics()
        }
        tasks = planned_tasks(log, spans["t"])
        assert len(tasks) < 10
        assert [span for each in tasks for span in each] == spans["t"]
        assert len(planned_tasks(log, spans["t"], min_partitions=100)) == 100
        assert {len(each) for each in planned_tasks(log, spans["t"], max_records=3)} == {3, 1}
        assert planned_tasks(log, spans["large"]) == [(span,) for span in spans["large"]]


def test_narrow_record_batches_hold_several_chunks(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("t")
        for _ in range(30):
            log.append_many("t", [bytes(1000)] * 500)
        options = read_options({"path": log.path, "subscribe": "t"}, "batch")
        for name in ("offset", "value"):
            schema = StructType([full_schema(False)[name]])
            columns, arrow = columns_of(schema), arrow_schema(schema)
            found = list(scan(log, Span("t", 0, 0, 15_000), columns, arrow, options))
            assert sum(batch.num_rows for batch in found) == 15_000
            assert (len(found) == 1) == (name == "offset")


def rows(
    log: Log, pieces: list[Span], schema: StructType = SCHEMA, **options: object
) -> list[tuple[Any, ...]]:
    """The tasks' rows for pieces."""
    chosen = read_options(
        {"path": log.path, "subscribe": "t", **{n: str(v) for n, v in options.items()}}, "batch"
    )
    wanted = arrow_schema(schema)
    found: list[tuple[Any, ...]] = []
    for piece in pieces:
        for batch in scan(log, piece, columns_of(schema), wanted, chosen):
            assert batch.schema.equals(wanted)
            batch.validate(full=True)
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def as_row(record: Record) -> tuple[Any, ...]:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=record.timestamp_ms)
    headers = [{"key": name, "value": value} for name, value in record.headers]
    where = (record.topic, record.partition, record.offset)
    return record.key, record.value, *where, when, record.timestamp_type, headers


def read(log: Log, topics: list[str], isolation_level: str = "read_committed") -> list[tuple[Any, ...]]:
    """The same by plain Python."""
    return [as_row(record) for topic in topics for record in log.read(topic, isolation_level=isolation_level)]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    st.integers(0, 10**9),
    st.booleans(),
    st.sampled_from([{}, {"minPartitions": 7}, {"maxRecordsPerPartition": 9}]),
)
def test_a_scan_in_pieces_equals_pythons_reader(seed: int, committed: bool, cut: dict[str, int]) -> None:
    level = "read_committed" if committed else "read_uncommitted"
    with made(seed) as (log, topics):
        pieces = pieces_of(log, subscribePattern="t.*", isolation_level=level, **cut)
        assert rows(log, pieces, isolation_level=level) == read(log, topics, level)
        offsets = sum(
            edge.log_end_offset - edge.log_start_offset
            for topic in topics
            for edge in log.offsets(topic).values()
        )
        planned = sum(piece.end - piece.start for piece in pieces)
        assert planned <= offsets if committed else planned == offsets
        if "minPartitions" in cut:
            assert len(pieces) >= min(7, planned)
        if "maxRecordsPerPartition" in cut:
            assert all(piece.end - piece.start <= 9 for piece in pieces)


comparisons = st.sampled_from(
    [pushed.EqualTo, pushed.GreaterThan, pushed.GreaterThanOrEqual, pushed.LessThan, pushed.LessThanOrEqual]
)
times = st.integers(-600_000, 600_000).map(
    lambda us: datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(microseconds=us)
)
values = {
    "offset": st.integers(-2, 200),
    "partition": st.integers(-1, 5),
    "topic": st.sampled_from(["t0", "t1", "t", "", "x"]),
    "timestamp": times,
}


@st.composite
def a_filter(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(values)))
    value = values[column]
    if draw(st.integers(0, 3)) == 0:
        made: Any = pushed.In((column,), tuple(draw(st.lists(value, min_size=1, max_size=3))))
    elif column == "topic" and draw(st.booleans()):
        operator = draw(
            st.sampled_from([pushed.StringStartsWith, pushed.StringEndsWith, pushed.StringContains])
        )
        made = operator((column,), draw(st.sampled_from(["t", "1", "t0"])))
    else:
        made = draw(comparisons)((column,), draw(value))
    return pushed.Not(made) if draw(st.integers(0, 4)) == 0 else made


def passes(row: tuple[Any, ...], each: Any) -> bool:
    """A filter as Spark passes it."""
    if isinstance(each, pushed.Not):
        return not passes(row, each.child)
    value = row[SCHEMA.fieldNames().index(each.attribute[0])]
    name = type(each).__name__
    if name == "In":
        return value in each.value
    if name.startswith("String"):
        method = {
            "StringStartsWith": "startswith",
            "StringEndsWith": "endswith",
            "StringContains": "__contains__",
        }
        return bool(getattr(value, method[name])(each.value))
    compared = {
        "EqualTo": value == each.value,
        "GreaterThan": value > each.value,
        "GreaterThanOrEqual": value >= each.value,
        "LessThan": value < each.value,
        "LessThanOrEqual": value <= each.value,
    }
    return compared[name]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.integers(0, 10**9), st.lists(a_filter(), min_size=1, max_size=3))
def test_filters_drop_no_matching_records(seed: int, filters: list[Any]) -> None:
    with made(seed) as (log, topics):
        pieces = pieces_of(log, scan_bounds(filters), subscribePattern="t.*")
        found = rows(log, pieces)
        wanted = [row for row in read(log, topics) if all(passes(row, each) for each in filters)]
        assert [row for row in found if all(passes(row, each) for each in filters)] == wanted
        for each in filters:  # and those that can be applied by partition or offset leave nothing else
            if each.__class__ is not pushed.Not and each.attribute[0] in ("topic", "partition"):
                assert all(passes(row, each) for row in found)
            if type(each).__name__ in ("EqualTo", "LessThan", "GreaterThan") and each.attribute == (
                "offset",
            ):
                assert all(passes(row, each) for row in found)


def test_segments_that_are_too_old_are_not_opened(path: Path) -> None:
    directory = damage.make_log(path)
    segments = damage.segments(directory)
    with embedlog.open(path, mode="r") as log:
        after = damage.batches(segments[3])[0].base_timestamp_ms
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=after)
        pieces = pieces_of(log, scan_bounds([pushed.GreaterThanOrEqual(("timestamp",), when)]), subscribe="t")
        for old in segments[:3]:
            old.unlink()
        assert [row[4] for row in rows(log, pieces)] == list(range(after - 1_000_000, damage.RECORDS))


def test_old_segments_in_the_middle_are_skipped(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1024)
        for number in range(40):
            late = number < 10 or number >= 30
            log.append("t", b"x" * 100, timestamp_ms=2_000_000 + number if late else number)
        wanted = ScanBounds(not_before_ms=2_000_000)
        pieces = pieces_of(log, wanted, subscribe="t")
        assert len(pieces) == 2
        read_offsets = {offset for piece in pieces for offset in range(piece.start, piece.end)}
        assert read_offsets >= {*range(10), *range(30, 40)}
        assert len(read_offsets) < 30


def test_a_large_partition_is_split_by_bytes(path: Path) -> None:
    """Records of very different sizes: equal bytes, not equal numbers of records."""
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=60_000, index_interval_bytes=1000)
        for number in range(600):
            log.append("t", b"x" * (20 if number < 400 else 1000))
        pieces = pieces_of(log, subscribe="t", minPartitions=4)
        assert len(pieces) == 4
        bytes_of = [sum(len(row[1]) + 70 for row in rows(log, [piece])) for piece in pieces]
        assert max(bytes_of) < 1.2 * min(bytes_of)
        assert pieces[0].end - pieces[0].start > 300
        # Whole batches in each: none has to be decoded twice.
        assert rows(log, pieces) == read(log, ["t"])


def test_one_batch_is_split_if_many_tasks_are_wanted(log: Log) -> None:
    log.create_topic("t")
    log.append_many("t", [b"%d" % n for n in range(100)])
    pieces = pieces_of(log, subscribe="t", minPartitions=4)
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert rows(log, pieces) == read(log, ["t"])
    assert len(pieces_of(log, subscribe="t", minPartitions=1000)) == 100


# -- where to begin and to end -------------------------------------------------------------------------


@pytest.fixture
def clicks(log: Log) -> Log:
    """Two partitions of ten records, a record a second; the first three of partition 1 are deleted."""
    log.create_topic("t", partitions=2)
    for partition in (0, 1):
        for number in range(10):
            log.append("t", b"%d" % number, partition=partition, timestamp_ms=1000 * number)
    log.delete_records("t", 1, 3)
    return log


def both(first: object, second: object) -> str:
    return json.dumps({"t": {"0": first, "1": second}})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 10), (3, 10)]),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(0, 10), (3, 10)]),
        ({"startingOffsets": both(2, -2)}, [(2, 10), (3, 10)]),
        ({"endingOffsets": both(2, -1)}, [(0, 2), (3, 10)]),
        ({"startingOffsets": both(2, 4), "endingOffsets": both(5, 4)}, [(2, 5)]),
        ({"startingTimestamp": 4500}, [(5, 10), (5, 10)]),
        ({"startingTimestamp": 4500, "startingOffsets": both(0, 9)}, [(5, 10), (5, 10)]),
        ({"startingTimestamp": 4500, "startingOffsetsByTimestamp": both(0, 0)}, [(5, 10), (5, 10)]),
        ({"startingOffsetsByTimestamp": both(1000, 9000), "startingOffsets": "earliest"}, [(1, 10), (9, 10)]),
        ({"startingTimestamp": 0}, [(0, 10), (3, 10)]),
        ({"endingTimestamp": 6000}, [(0, 10), (3, 10)]),  # early records may follow late ones
        ({"endingTimestamp": 99_000}, [(0, 10), (3, 10)]),
        ({"endingOffsetsByTimestamp": both(2000, 99_000), "endingOffsets": both(1, 1)}, [(0, 10), (3, 10)]),
        ({"startingTimestamp": 99_000, "startingOffsetsByTimestampStrategy": "latest"}, []),
        ({"startingTimestamp": 4500, "endingTimestamp": 6000}, [(5, 10), (5, 10)]),
    ],
)
def test_where_reading_begins_and_ends(clicks: Log, options: dict[str, object], expected: list[Any]) -> None:
    pieces = pieces_of(clicks, subscribe="t", **options)
    assert [(piece.start, piece.end) for piece in pieces] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingTimestamp": 99_000}, "startingOffsetsByTimestampStrategy=latest"),
        ({"startingOffsetsByTimestamp": both(0, 99_000)}, "startingOffsetsByTimestamp"),
        ({"startingOffsets": '{"t": {"0": 1}}'}, "t 1; -2 means earliest"),
        ({"startingOffsets": '{"t": {"0": 1, "1": 5, "2": 1}}'}, "names t 2"),
        ({"startingTimestamp": 6000, "endingTimestamp": 4000}, "after endingTimestamp"),
        ({"startingOffsetsByTimestamp": both(0, 1), "endingTimestamp": 0}, "t 1: .* is 1, after endingTime"),
    ],
)
def test_contradictory_options_are_refused(clicks: Log, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pieces_of(clicks, subscribe="t", **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": 2000, "endingTimestamp": 6000}, {2000, 3000, 4000, 5000}),
        ({"startingTimestamp": 8000}, {8000, 9000}),
        ({"endingTimestamp": 3000}, {0, 1000, 2000}),
        ({"startingOffsetsByTimestamp": both(8000, 0), "endingOffsetsByTimestamp": both(9000, 0)}, {8000}),
        ({"startingOffsets": both(3, 0), "endingTimestamp": 3000}, {0, 1000, 2000}),
        ({"startingOffsets": both(8, 0), "endingTimestamp": 3000}, set()),
    ],
)
@pytest.mark.parametrize("name", ["offset", "timestamp"])
def test_times_out_of_order(log: Log, options: dict[str, object], expected: set[int], name: str) -> None:
    log.create_topic("t", partitions=2, segment_bytes=1024)
    late_first = [*range(5000, 10_000, 1000), *range(0, 5000, 1000)]
    for number in late_first:
        log.append("t", bytes(400), partition=0, timestamp_ms=number)
    log.append("t", b"", partition=1, timestamp_ms=9000)
    schema = StructType([full_schema(False)[name]])
    times = [record.timestamp_ms for record in log.read("t", 0)]
    pieces = [piece for piece in pieces_of(log, subscribe="t", **options) if piece.partition == 0]
    found = [row[0] for row in rows(log, pieces, schema, **options)]
    if name == "timestamp":
        found = [(at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) for at in found]
        assert sorted(found) == sorted(expected)
    else:
        assert sorted(times[offset] for offset in found) == sorted(expected)


@pytest.mark.parametrize("options", [{"startingOffsets": both(0, 1)}, {"endingOffsets": both(11, 5)}])
def test_offsets_out_of_range(clicks: Log, options: dict[str, object]) -> None:
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss=false"):
        pieces_of(clicks, subscribe="t", **options)
    pieces = pieces_of(clicks, subscribe="t", failOnDataLoss="false", **options)
    expected = [(0, 10), (3, 10)] if "startingOffsets" in options else [(0, 10), (3, 5)]
    assert [(piece.start, piece.end) for piece in pieces] == expected


def test_selections(clicks: Log) -> None:
    clicks.create_topic("table")
    clicks.append("table", b"x")
    assert {piece.topic for piece in pieces_of(clicks, subscribe="t, table")} == {"t", "table"}
    assert {piece.topic for piece in pieces_of(clicks, subscribePattern="t")} == {"t"}
    assert {piece.topic for piece in pieces_of(clicks, subscribePattern="t(able)?")} == {"t", "table"}
    assert pieces_of(clicks, subscribePattern="nothing") == []
    assert pieces_of(clicks, assign='{"t": [1]}') == [Span("t", 1, 3, 10)]
    with pytest.raises(TopicNotFound, match="no topic 'clocks'"):
        pieces_of(clicks, subscribe="clocks")
    with pytest.raises(PartitionNotFound, match="0 to 1, not 2"):
        pieces_of(clicks, assign='{"t": [0, 2]}')


# -- while tasks run ------------------------------------------------------------------------------------


def test_records_appended_after_planning_are_not_read(clicks: Log) -> None:
    with embedlog.open(clicks.path, mode="r") as reader:
        pieces = pieces_of(reader, subscribe="t")
        planned = read(reader, ["t"])
        clicks.append_many("t", [b"late"] * 50)
        assert rows(reader, pieces) == planned
        assert len(rows(reader, pieces_of(reader, subscribe="t"))) == len(planned) + 50


def test_records_deleted_after_planning(clicks: Log, caplog: pytest.LogCaptureFixture) -> None:
    with embedlog.open(clicks.path, mode="r") as reader:
        pieces = pieces_of(reader, subscribe="t")
        clicks.delete_records("t", 0, 4)
        with pytest.raises(RecordsLost, match="t 0: offsets 0 to 3 are gone"):
            rows(reader, pieces)
        found = rows(reader, pieces, failOnDataLoss="false")
        assert found == read(reader, ["t"])
        assert "offsets 0 to 3 are gone" in caplog.text
        clicks.delete_records("t", 0, 10)
        assert [row[3] for row in rows(reader, pieces, failOnDataLoss="false")] == [1] * 7


def test_a_tail_lost_after_planning(path: Path) -> None:
    directory = damage.make_log(path)
    with embedlog.open(path, mode="r") as log:
        pieces = pieces_of(log, subscribe="t")
    last = damage.segments(directory)[-1]
    kept = damage.batches(last)[2]
    for file in ("clean-shutdown", "recovery-point-offset-checkpoint", "writer-state"):
        (path / file).unlink()
    with last.open("r+b") as file:
        file.truncate(kept.pos)
    with embedlog.open(path, mode="r") as log:
        with pytest.raises(RecordsLost, match=f"offsets {kept.base_offset} to 299 are gone"):
            rows(log, pieces)
        found = rows(log, pieces, failOnDataLoss="false")
        assert [row[4] for row in found] == list(range(kept.base_offset))


# -- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [30, 4, 12, 80], ids=["crc", "base offset", "length", "value"])
def test_damage_is_located_or_skipped_and_counted(
    path: Path, tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = damage.make_log(path)
    segment = damage.segments(directory)[1]
    hit = damage.batches(segment)[5]
    damage.flip(segment, hit.pos + (8 if at == 12 else at))
    report = tmp_path / "report"
    with embedlog.open(path, mode="r") as log:
        pieces = pieces_of(log, subscribe="t", minPartitions=3)
        with pytest.raises(CorruptRecord) as caught:
            rows(log, pieces)
        assert caught.value.path is not None and Path(caught.value.path) == segment
        assert str(hit.base_offset) in str(caught.value)
        found = rows(log, pieces, skipDamaged="true", damageReportPath=report)
        expected = [number for number in range(damage.RECORDS) if number != hit.base_offset]
        assert [row[4] for row in found] == expected
        assert "1 offsets passed over" in caplog.text
        (told,) = [json.loads(file.read_text()) for file in report.iterdir()]
        assert (told["topic"], told["partition"]) == ("t", 0)
        assert (told["first_offset"], told["last_offset"]) == (hit.base_offset, hit.base_offset)
        assert Path(told["segment"]) == segment
        # A task that runs again reports the same once.
        rows(log, pieces, skipDamaged="true", damageReportPath=report)
        assert len(list(report.iterdir())) == 1


@pytest.mark.parametrize("byte", [8, 16, 70], ids=["length", "magic", "CRC"])
def test_a_wrong_length_hides_no_later_batch(tmp_path: Path, byte: int) -> None:
    """The look-up of a piece's first offset is led past whole batches by a damaged one before it."""
    segment = damage.segments(damage.make_log(tmp_path / "log"))[3]
    before, first = (batch for batch in damage.batches(segment) if batch.base_offset in (224, 225))
    damage.flip(segment, before.pos + 10, 0x20)  # 8 KiB more
    damage.flip(segment, first.pos + byte)
    with embedlog.open(tmp_path / "log", mode="r") as log:
        pieces = pieces_of(log, subscribe="t", minPartitions=4)
        assert any(piece.start == first.base_offset for piece in pieces)
        found = [row[4] for row in rows(log, pieces, skipDamaged="true")]
    assert found == [number for number in range(damage.RECORDS) if number not in (224, 225)]


@settings(max_examples=examples(40))
@given(st.integers(0, 10**9))
def test_the_rest_is_read_around_any_damage(seed: int) -> None:
    """Random damage to one segment: what is found are records of the log, and all but one stretch of them.

    Where an offset is hit, the label of the batch behind stays legible: nothing else could tell.
    """
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        segment = chosen.choice(damage.segments(damage.make_log(path)))
        whole = damage.batches(segment)
        first = chosen.randrange(len(whole))
        last = min(first + chosen.choice([0, 0, 1, 5, 200]), len(whole) - 1)
        spared = 0
        for header in whole[first : last + 1]:
            bytes_hit = [chosen.randrange(spared, header.size) for _ in range(chosen.choice([1, 3]))]
            for byte in bytes_hit:
                damage.flip(segment, header.pos + byte, 1 << chosen.randrange(8))
            spared = 17 if min(bytes_hit) < 8 else 0
        with embedlog.open(path, mode="r") as log:
            pieces = pieces_of(log, subscribe="t", minPartitions=chosen.choice([1, 4]))
            found = [(row[4], row[1]) for row in rows(log, pieces, skipDamaged="true")]
        hit = range(whole[first].base_offset, whole[last].base_offset + 1)
        expected = [(n, damage.value(n)) for n in range(damage.RECORDS)]
        assert [each for each in found if each[0] not in hit] == [e for e in expected if e[0] not in hit]
        assert set(found) <= set(expected)
