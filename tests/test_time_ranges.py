"""Ranges of times over records that are out of order: every door gives what a list comprehension does."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_commands import runner
from faults import partition_of, store_of
from housekeeping import housekeep
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rounds import examples
from starlette.testclient import TestClient

import embedlog
import embedlog.aio
from embedlog import Log, Record, TopicPartition
from embedlog.cli import sizes
from embedlog.clients.reader import _warn_of_seek
from embedlog.cluster import Broker
from embedlog.codec import NONE, ZSTD, encode_batch, set_max_timestamp
from embedlog.codec.time_range import EVER, TimeRange
from embedlog.segment import Segment
from embedlog.storage import segment_times
from embedlog.ui import application, times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.one_of(
    st.integers(-5_000, 5_000),
    st.sampled_from([-1, 0, 1, -(1 << 62), 1_700_000_000_000, 1_700_000_000_000_000_000, (1 << 63) - 1]),
)
PLACES = st.one_of(st.none(), st.integers(-6_000, 6_000), st.just(1_800_000_000_000))
KINDS = ("plain", "zstd", "lying", "compacted", "append time")
Range = tuple[int | None, int | None]


def when(time_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms)


def stamp(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


def ends(of: Range) -> dict[str, datetime]:
    names = zip(("start", "end"), of, strict=True)
    return {name: when(time_ms) for name, time_ms in names if time_ms is not None}


def within(records: list[Record], of: Range) -> list[Record]:
    start, end = of
    return [
        each
        for each in records
        if (start is None or each.timestamp_ms >= start) and (end is None or each.timestamp_ms < end)
    ]


def filled(log: Log, batches: list[list[int]], kind: str) -> list[Record]:
    """Write the batches to two partitions in turn; all records, as a full read returns them."""
    options: dict[str, object] = {"segment_bytes": 1024}
    if kind == "compacted":
        options |= {"cleanup_policy": "compact"}
    if kind == "append time":
        options |= {"message_timestamp_type": "LogAppendTime"}
    log.create_topic("t", 2, **options)  # type: ignore[arg-type]
    number = itertools.count()
    for partition, stamps in zip(itertools.cycle((0, 1)), batches, strict=False):
        rows = [(b"%d" % (next(number) % 7), b"%d" % next(number) * 30, (), time_ms) for time_ms in stamps]
        if kind == "append time":
            log.append_many("t", [row[:2] for row in rows], partition=partition)
            continue
        batch = encode_batch(rows, compression=ZSTD if kind == "zstd" else NONE)
        if kind == "lying" and max(stamps) < 0:  # as librdkafka writes it, and earlier versions kept it
            set_max_timestamp(batch, 0)
        partition_of(log, "t", partition).append(batch)
    if kind == "compacted":
        for partition in partition_of(log, "t", 0), partition_of(log, "t", 1):
            partition.roll()
            cleaner = store_of(log).cleaner
            cleaner.compact_partition(partition, None, cleaner.pace(), force=True)
    every = list(log.read("t"))
    if kind in ("plain", "zstd", "lying"):
        assert sorted(each.timestamp_ms for each in every) == sorted(itertools.chain(*batches))
    return every


def doors(log: Log, path: Path, of: Range) -> Iterator[tuple[str, list[tuple[int, int]], list[bytes | None]]]:
    """(name, places, values) by every door of a log, one that gives no places without them."""
    records = list(log.read("t", **ends(of)))  # type: ignore[arg-type]
    yield "read", [(each.partition, each.offset) for each in records], [each.value for each in records]
    small = list(log.read("t", **ends(of), max_bytes=1))  # type: ignore[arg-type]
    yield "small fetches", [(each.partition, each.offset) for each in small], [each.value for each in small]
    yield "read_values", [], list(log.read_values("t", **ends(of)))  # type: ignore[arg-type]
    columns = ["partition", "offset", "value"]
    rows = [
        tuple(row.values())
        for batch in log.read_arrow("t", columns=columns, **ends(of))  # type: ignore[arg-type]
        for row in batch.to_pylist()
    ]
    yield "read_arrow", [row[:2] for row in rows], [row[2] for row in rows]


@contextmanager
def opened() -> Iterator[tuple[Log, Path]]:
    directory = Path(tempfile.mkdtemp())
    try:
        with embedlog.open(directory / "log") as log:
            yield log, directory / "log"
    finally:
        shutil.rmtree(directory)


@settings(max_examples=examples(40))
@given(
    batches=st.lists(st.lists(TIMES, min_size=1, max_size=8), max_size=30),
    ranges=st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    summarized=st.booleans(),
)
@example(
    batches=[[5]] * 8 + [[1] * 8] * 12,
    ranges=[(5, 6), (0, 2), (None, 5), (6, None)],
    kind="plain",
    summarized=True,
)
@example(
    batches=[[-1]], ranges=[(-1, 0), (None, 0), (0, None), (3, 3), (4, 3)], kind="plain", summarized=False
)
def test_every_door_gives_what_a_list_comprehension_does(
    batches: list[list[int]], ranges: list[Range], kind: str, summarized: bool
) -> None:
    with opened() as (log, path):
        every = filled(log, batches, kind)
        if summarized:
            log.flush()
            housekeep(store_of(log))
        if kind == "append time" and every:
            now_ms = every[len(every) // 2].timestamp_ms
            ranges = [(now_ms, None), (None, now_ms), (now_ms, now_ms + 1), *ranges]
        with embedlog.open(path, mode="r") as reader:
            for each_log, of in itertools.product((log, reader), ranges):
                expected = within(every, of)
                for name, places, values in doors(each_log, path, of):
                    assert values == [each.value for each in expected], (name, of)
                    if name != "read_values":
                        assert places == [(each.partition, each.offset) for each in expected], (name, of)


def in_order(log: Log, count: int = 200) -> list[Record]:
    """Records a millisecond apart, in segments of ten or so; the background has read them."""
    log.create_topic("t", segment_bytes=1024)
    for time_ms in range(1, count + 1):
        partition_of(log).append(encode_batch([(None, b"x" * 30, (), time_ms)]))
    log.flush()
    housekeep(store_of(log))
    return list(log.read("t"))


def files_read(log: Log, of: Range, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Record], set[str]]:
    """The records in a range, and the segments that were read for them."""
    paths: set[str] = set()
    with monkeypatch.context() as patched:
        for name in ("pread", "pread_into"):
            original = getattr(Segment, name)

            def noted(segment: Segment, *args: object, original: Callable[..., object] = original) -> object:
                paths.add(segment.path)
                return original(segment, *args)

            patched.setattr(Segment, name, noted)
        return list(log.read("t", **ends(of))), paths  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [(50, 60), (1, 2), (199, None), (None, 3), (300, None), (90, 90)])
def test_segments_outside_the_range_are_not_read(
    path: Path, of: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(path) as log:
        every = in_order(log)
        total = len(partition_of(log).readable_segments())
        with embedlog.open(path, mode="r") as reader:
            for each in (log, reader):
                found, paths = files_read(each, of, monkeypatch)
                assert found == within(every, of)
                assert len(paths) <= 4 < total


def rewritten(manifest: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change a manifest's lines, with a CRC that is right."""
    version, _, *lines = manifest.read_text().splitlines()[:-1]
    version, *lines = change([version, *lines])
    text = "\n".join([version, str(len(lines)), *lines, ""]).encode()
    manifest.write_bytes(text + b"crc32 %08x\n" % zlib.crc32(text))


def as_version_1(lines: list[str]) -> list[str]:
    return ["1", *(" ".join(line.split(" ")[:5]) for line in lines[1:])]


@pytest.mark.parametrize("harm", ["missing", "short", "garbage", "stale", "version 1", "of other sizes"])
def test_the_manifest_is_a_hint(path: Path, harm: str) -> None:
    """Of times out of order: two days a segment, from the last to the first."""
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1024)
        for number in range(100):
            partition_of(log).append(encode_batch([(None, b"x" * 30, (), 1_000 - number)]))
        housekeep(store_of(log))
        manifest = path / "t_0" / "segment-manifest"
        stale = manifest.read_bytes()
        for number in range(100):
            partition_of(log).append(encode_batch([(None, b"x" * 30, (), 3_000 + number % 50)]))
        housekeep(store_of(log))
        every = list(log.read("t"))
    if harm == "missing":
        manifest.unlink()
    elif harm in ("short", "garbage", "stale"):
        manifest.write_bytes({"short": stale[:50], "garbage": b"\xff" * 500, "stale": stale}[harm])
    elif harm == "version 1":
        rewritten(manifest, as_version_1)
    else:  # as of segments that were since replaced
        rewritten(
            manifest,
            lambda lines: [re.sub(r"^(\d+) \d+ (.*) \d+ \d+$", r"\1 7 \2 5 6", line) for line in lines],
        )
    for mode in ("r", "rw"):
        with embedlog.open(path, mode=mode) as log:  # type: ignore[arg-type]
            for of in ((None, 950), (3_040, None), (990, 3_001), (2_000, 2_500)):
                assert list(log.read("t", **ends(of))) == within(every, of)  # type: ignore[arg-type]
            if harm == "version 1" and mode == "rw":
                housekeep(store_of(log))
                noted = partition_of(log).log.manifest.summaries.values()
                assert noted and all(each.times is not None for each in noted)


def test_records_appended_since_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The active segment's times are found as far as it was read, and read on."""
    monkeypatch.setattr(segment_times, "_LITTLE", 0)
    with embedlog.open(path) as log, embedlog.open(path, mode="r") as reader:
        log.create_topic("t")
        partition = partition_of(log)
        for time_ms in (500, 400, 600, 5, 450):
            partition.append(encode_batch([(None, b"%d" % time_ms, (), time_ms)], compression=ZSTD))
            for each in (log, reader):
                every = list(each.read("t"))
                for of in ((0, 100), (450, 501), (None, 500), (600, None), (401, 449)):
                    assert list(each.read("t", **ends(of))) == within(every, of)  # type: ignore[arg-type]


def test_damage_is_met_not_passed_over(path: Path) -> None:
    with embedlog.open(path) as log:
        every = in_order(log)
    first = path / "t_0" / "00000000000.kafka"
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    (path / "t_0" / "segment-manifest").unlink()
    with embedlog.open(path, mode="r") as log:
        with pytest.raises(embedlog.CorruptRecord):
            list(log.read("t", start=when(0), end=when(5)))
        assert list(log.read("t", start=when(150))) == within(every, (150, None))


@pytest.mark.parametrize("shared", [False, True])
def test_following_ends_with_the_first_record_at_or_after_the_end(path: Path, shared: bool) -> None:
    """If one is there already, all that are there are read first."""
    with embedlog.open(path, shared=shared) as writer, embedlog.open(path, mode="r") as reader:
        writer.create_topic("t")

        def append(*times: int) -> None:
            for time_ms in times:
                writer.append("t", b"%d" % time_ms, timestamp_ms=time_ms)

        append(10, 50, 20, 5)
        for log in (writer, reader):
            found = log.read("t", follow=True, start=when(10), end=when(30))
            assert [each.value for each in found] == [b"10", b"20"]
        following = [log.read("t", start=when(20), end=when(100), follow=True) for log in (writer, reader)]
        for found in following:
            assert [next(found).value, next(found).value] == [b"50", b"20"]
        append(7, 60, 100, 70)
        for found in following:
            assert [each.value for each in found] == [b"60"]


def test_asyncio(path: Path) -> None:
    async def read() -> None:
        async with await embedlog.aio.open(path) as log:
            await log.create_topic("t")
            for time_ms in (10, 50, 20, 60, 5, 30):
                await log.append("t", b"%d" % time_ms, timestamp_ms=time_ms)
            of = ends((20, 55))
            expected = [b"50", b"20", b"30"]
            assert [each.value async for each in log.read("t", **of)] == expected  # type: ignore[arg-type]
            found = log.read("t", follow=True, **of)  # type: ignore[arg-type]
            assert [each.value async for each in found] == expected

    asyncio.run(read())


def test_over_the_wire_it_is_a_seek(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_seek.cache_clear()
    with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.create_topic("t")
        for time_ms in (10, 50, 20, 60, 30):
            log.append("t", b"%d" % time_ms, timestamp_ms=time_ms)
        assert [each.timestamp_ms for each in log.read("t", start=when(20), end=when(60))] == [50, 20]
        assert [each.timestamp_ms for each in broker.log.read("t", start=when(20), end=when(60))] == [
            50,
            20,
            30,
        ]
        assert list(log.read_values("t", end=when(60))) == [b"10", b"50", b"20"]
        said = [each.getMessage() for each in caplog.records if "late" in each.getMessage()]
        assert len(said) == 1, "once for each topic"
        assert said[0].startswith("t: through brokers a range of times ends")


def test_consumers_and_groups_seek(path: Path) -> None:
    """Where one place is meant, a time is the first record at or after it, as in Kafka."""
    with embedlog.open(path) as log:
        log.create_topic("t")
        for time_ms in (10, 50, 20, 60, 30):
            log.append("t", b"%d" % time_ms, timestamp_ms=time_ms)
        with log.consumer(auto_commit=False) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek_to_time(when(20))
            assert [each.timestamp_ms for each in consumer.poll(10_000)] == [50, 20, 60, 30]
        assert log.group("g").reset("t", to=when(20))[TopicPartition("t", 0)].after == 1


def test_the_command_line_after_a_backfill(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand records of November, then 9,000 of the years before it."""
    november = datetime(2026, 11, 1, tzinfo=UTC)
    with embedlog.open(path) as log:
        log.create_topic("t", 1, segment_bytes=1 << 16)
        for first, step, count in ((november, 1, 1_000), (datetime(2024, 11, 1, tzinfo=UTC), 7_000, 9_000)):
            times = [first + timedelta(seconds=step * number) for number in range(count)]
            stamps = map(stamp, times)
            log.append_many("t", [Record(value=b"%d" % each, timestamp_ms=each) for each in stamps])
        every = list(log.read("t"))
    run = runner(capsys, path.parent, monkeypatch)
    of_2025 = "--from", "2025-01-01T00:00Z", "--to", "2026-01-01T00:00Z"
    for options, start, end in (
        (of_2025, datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (("--from", "2026-11-01T00:00Z"), november, None),
        (("--to", "2026-11-01T00:00Z"), None, november),
    ):
        of = start and stamp(start), end and stamp(end)
        expected = [each.value.decode() for each in within(every, of)]  # type: ignore[union-attr]
        assert run("cat", str(path), "t", *options).out.splitlines() == expected
        assert [each["value"] for each in run("cat", str(path), "t", "--json", *options).objects] == expected
    expected = [each.value.decode() for each in every[:1_000]]  # type: ignore[union-attr]
    late = [each.value.decode() for each in within(every[1_000:], (stamp(november), None))]  # type: ignore[union-attr]
    assert run("tail", str(path), "t", "--from", "2026-11-01T00:00Z").out.splitlines() == expected + late


def test_ranges_of_all_times() -> None:
    assert -(1 << 63) in EVER and (1 << 63) - 1 in EVER
    assert 3 in TimeRange(3, 4) and 4 not in TimeRange(3, 4) and 2 not in TimeRange(3, 4)


# -- what is shown by time ---------------------------------------------------------------------------------


def bars_of(page: str) -> list[int]:
    """The records of each bar."""
    return [
        int(each.replace(",", "")) for each in re.findall(r"<title>(?:about )?([\d,]+) records? from", page)
    ]


def backfilled(log: Log, partitions: int = 2) -> list[int]:
    """1,000 records of a day, then 3,000 of the ten days before it, in each partition."""
    log.create_topic("t", partitions, segment_bytes=1 << 15)
    day_ms, start_ms = 86_400_000, 1_700_000_000_000
    stamps = [start_ms + number * 80_000 for number in range(1_000)]
    stamps += [start_ms - 10 * day_ms + number * 288_000 for number in range(3_000)]
    for partition in range(partitions):
        for first in range(0, len(stamps), 10):
            some = stamps[first : first + 10]
            records = [Record(value=b"x" * 20, timestamp_ms=each) for each in some]
            log.append_many("t", records, partition=partition)
    return stamps


def test_bars_count_every_record(path: Path) -> None:
    with embedlog.open(path) as log:
        stamps = backfilled(log)
        with TestClient(application(log)) as visitor:
            page = visitor.get("/topics/t").text
    assert "about" not in page.partition("Partitions</h2>")[0]
    shown = bars_of(page)
    assert sum(shown) == 2 * len(stamps)
    assert max(shown) < 2 * 400  # the three thousand are of ten days, not of the end


def test_bars_of_much_are_about_right_and_say_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_COUNTED_BYTES", 0)
    with embedlog.open(path) as log:
        stamps = backfilled(log)
        with TestClient(application(log)) as visitor:
            page = visitor.get("/topics/t").text
    assert f"about {2 * len(stamps):,} records" in page
    shown = bars_of(page)
    assert abs(sum(shown) - 2 * len(stamps)) <= len(shown)
    assert max(shown) < 2 * 500


@pytest.mark.parametrize("counted_bytes", [1 << 30, 0], ids=["counted", "sampled"])
@pytest.mark.parametrize("none", [False, True], ids=["", "some without a time"])
def test_bars_before_1970(
    path: Path, counted_bytes: int, none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "_COUNTED_BYTES", counted_bytes)
    first = datetime(1965, 3, 1, tzinfo=UTC)
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1 << 15)
        for day in range(2_000, 0, -20):  # the newest first
            time_ms = stamp(first + timedelta(days=day))
            log.backend.append("t", 0, encode_batch([(None, b"v" * 5_000, (), time_ms)] * 3))
        if none:
            log.backend.append("t", 0, encode_batch([(None, b"v", (), -1)] * 7))
        with TestClient(application(log)) as visitor:
            everything = visitor.get("/topics/t").text
            bounds = {"from": "1965-01-01T00:00", "to": "1969-12-31T00:00"}
            chosen = visitor.get("/topics/t", params=bounds).text
            records = visitor.get("/topics/t/records", params=bounds).text
    assert abs(sum(bars_of(everything)) - 300) <= (0 if counted_bytes else 15)
    assert "There are no records with a time yet" not in everything
    assert 'value="1965-01-01T00:00:00"' in chosen
    expected = 3 * len(range(20, 1_767, 20))
    assert abs(sum(bars_of(chosen)) - expected) <= (0 if counted_bytes else 15)
    assert "from=1965-" in chosen, "a link to the records of the highest bar"
    assert "1965-" in records


def test_bars_of_a_topic_with_some_records_without_a_time(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        for time_ms in (-1, 1_700_000_000_000, -1, 1_700_000_060_000):
            log.backend.append("t", 0, encode_batch([(None, b"v", (), time_ms)]))
        with TestClient(application(log)) as visitor:
            page = visitor.get("/topics/t").text
            log.create_topic("none")
            log.backend.append("none", 0, encode_batch([(None, b"v", (), -1)]))
            assert "There are no records with a time yet" in visitor.get("/topics/none").text
    assert sum(bars_of(page)) == 2
    assert "2023-11-14" in page


def test_brokers_bars_say_that_they_are_about_right(path: Path) -> None:
    with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        stamps = backfilled(broker.log)
        with TestClient(application(log)) as visitor:
            assert f"about {2 * len(stamps):,} records" in visitor.get("/topics/t").text


@pytest.mark.parametrize("odd", [1_700_000_000_000_000_000, (1 << 63) - 1, 1_700_000_000_000_000])
def test_a_time_past_the_calendar_is_shown_as_such(
    path: Path, odd: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(capsys, path.parent, monkeypatch)
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append_many("t", [Record(value=b"x", timestamp_ms=each) for each in (1_700_000_000_000, 5, odd)])
        assert f"{odd} ms" in log._repr_html_()
        with TestClient(application(log)) as visitor:
            for place in ("/", "/topics/t", "/topics/t/partitions/0", "/topics/t/records", "/records"):
                assert visitor.get(place).status_code in (200, 404), place
        assert [each.timestamp_ms for each in log.read("t", start=when(0), end=when(6))] == [5]
        assert [each.timestamp_ms for each in log.read("t", start=when(1_800_000_000_000))] == [odd]
    assert run("cat", str(path), "t", "--json").objects[2]["timestamp_ms"] == odd
    for command in (
        ["stats"],
        ["stats", "--json"],
        ["top", "--once"],
        ["cat", "t", "--format", "{timestamp}"],
    ):
        name, *rest = command
        ran = run(name, str(path), *rest)
        assert (ran.code, ran.err) == (0, "")
    (facts,) = run("stats", str(path), "t", "--json").objects
    assert (facts["oldest_timestamp_ms"], facts["newest_timestamp_ms"]) == (5, odd)


def test_stats_tell_the_earliest_and_the_latest(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(capsys, path.parent, monkeypatch)
    with embedlog.open(path) as log:
        stamps = backfilled(log, 1)
    (facts,) = run("stats", str(path), "t", "--json").objects
    assert (facts["oldest_timestamp_ms"], facts["newest_timestamp_ms"]) == (min(stamps), max(stamps))
    assert facts["timestamps_are_exact"]
    monkeypatch.setattr(sizes, "_TIMES_READ_BYTES", 0)
    monkeypatch.setattr(
        segment_times.SegmentTimes, "known", lambda *_: segment_times.Times(1 << 62, -(1 << 62), 0)
    )
    (facts,) = run("stats", str(path), "t", "--json").objects
    assert min(stamps) <= facts["oldest_timestamp_ms"] < 1_700_000_000_000
    assert facts["newest_timestamp_ms"] == max(stamps)
    assert not facts["timestamps_are_exact"]
    assert "about" in run("stats", str(path), "t").out
