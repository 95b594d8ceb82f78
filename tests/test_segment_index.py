"""Indexes are hints: whatever their files hold, a lookup equals a scan, by offset and by time."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import UnsyncedFileSystem, crash, open_log, partition_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import segment
from embedlog.codec import BatchHeader, encode_batch, read_header
from embedlog.errors import CorruptIndex
from embedlog.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    UNBOUNDED,
    IndexBuilder,
    decode_offsets,
    decode_times,
    encode_offsets,
    encode_times,
    lookup_offset,
    lookup_time,
)
from embedlog.log import Log
from embedlog.model import Record

pytestmark = pytest.mark.plain

SETTINGS = {"segment_bytes": 1200, "index_interval_bytes": 100}

# The timestamps of each batch's records. They jump, and they stand still.
BATCHES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=40)


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="embedlog-test-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make(path: Path, batches: list[list[int]], *, clean: bool) -> list[Record]:
    log = open_log(path, UnsyncedFileSystem(), **SETTINGS)
    log.create_topic("t")
    for number, times in enumerate(batches):
        rows = [(None, b"%d.%d" % (number, i), (), time_ms) for i, time_ms in enumerate(times)]
        partition_of(log).append(encode_batch(rows))
    records = list(log.read("t"))
    log.close() if clean else crash(log)
    return records


def check(log: Log, records: list[Record]) -> None:
    """Look-ups against a scan: at every offset, and at every time that there is and those beside it."""
    assert list(log.read("t")) == records
    for record in reversed(records):
        assert next(log.read("t", 0, start=record.offset)) == record
    times = sorted({t + d for t in {r.timestamp_ms for r in records} for d in (-1, 0, 1)})
    for time_ms in (*times[1::2], *times, *reversed(times)):  # a lookup goes on where an earlier one ended
        found = log.offset_for_time("t", 0, time_ms)
        wanted = next((r for r in records if r.timestamp_ms >= time_ms), None)
        assert (found and found[:2]) == (wanted and (wanted.offset, wanted.timestamp_ms)), time_ms


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_lookups_of_ever_later_times_read_each_header_about_once(
    path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a plot, one for each bar."""
    headers = 0

    def counted_header(*args: Any) -> BatchHeader:
        nonlocal headers
        headers += 1
        return read_header(*args)

    with embedlog.open(path) as log:
        log.create_topic("t")
        for number in range(100):
            log.append("t", b"", timestamp_ms=10 * number)
        with contextlib.nullcontext(log) if mode == "rw" else embedlog.open(path, mode="r") as opened:
            monkeypatch.setattr(segment, "read_header", counted_header)
            places = [opened.offset_for_time("t", 0, time_ms) for time_ms in range(0, 991, 5)]
    offsets = [place.offset for place in places if place is not None]
    assert offsets == [(number + 1) // 2 for number in range(199)]
    assert headers < 100 + 3 * len(offsets)


def open_reader(path: Path) -> Log:
    return embedlog.open(path, mode="r")


def open_writer(path: Path) -> Log:
    return open_log(path, UnsyncedFileSystem(), **SETTINGS)


@pytest.mark.parametrize("opened", [open_writer, open_reader])
@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, clean=st.booleans(), data=st.data())
def test_damaged_index_files(
    opened: Callable[[Path], Log], batches: list[list[int]], clean: bool, data: st.DataObject
) -> None:
    with directory() as path:
        records = make(path, batches, clean=clean)
        files = sorted(p for p in (path / "t_0").iterdir() if p.suffix in (".index", ".timeindex"))
        for file in files:
            content = file.read_bytes()
            what = data.draw(
                st.sampled_from(["kept", "gone", "short", "garbage", "zeros", "flip", "another's"])
            )
            if what == "gone":
                file.unlink()
            elif what == "short":
                file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
            elif what == "garbage":
                file.write_bytes(data.draw(st.binary(max_size=100)))
            elif what == "zeros":
                file.write_bytes(content + bytes(data.draw(st.integers(1, 50))))
            elif what == "flip" and content:
                flipped = bytearray(content)
                flipped[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                file.write_bytes(flipped)
            elif what == "another's":
                other = data.draw(st.sampled_from([f for f in files if f.suffix == file.suffix]))
                file.write_bytes(other.read_bytes() if other.exists() else b"")
        with opened(path) as log:
            check(log, records)
        with open_writer(path) as log:
            check(log, records)
            log.append("t", b"goes on", timestamp_ms=61)
            check(log, list(log.read("t")))


@settings(max_examples=examples(30), deadline=None)
@given(batches=BATCHES, more=BATCHES)
def test_lookups_during_growth_equal_a_scan(batches: list[list[int]], more: list[list[int]]) -> None:
    with directory() as path:
        log = open_log(path, UnsyncedFileSystem(), **SETTINGS)
        with log, embedlog.open(path, mode="r") as reader:
            log.create_topic("t")
            for times in batches:
                log.append_many("t", [Record(value=b"x", timestamp_ms=t) for t in times])
            check(log, list(log.read("t")))
            check(reader, list(log.read("t")))
            for times in more:
                log.append_many("t", [Record(value=b"y", timestamp_ms=t) for t in times])
            check(log, list(log.read("t")))
            check(reader, list(log.read("t")))


def test_the_largest_timestamp_is_found_without_the_time_index() -> None:
    with directory() as path:
        records = make(path, [[i % 7 * 10] for i in range(40)], clean=True)
        for file in (path / "t_0").glob("*.timeindex"):
            file.write_bytes(file.read_bytes()[:12])
        with open_writer(path) as log:
            for segment in partition_of(log).segments()[:-1]:
                own = [r for r in records if segment.base_offset <= r.offset < segment.next_offset]
                assert segment.largest_timestamp_ms == max(r.timestamp_ms for r in own)


def test_a_lookup_by_time_gives_the_first_record_at_or_after_it() -> None:
    """In the order of offsets, not of times: a later record may be older."""
    with directory() as path:
        make(path, [[50, 10], [20, 60], [30, 30], [60, 5]], clean=True)
        with open_writer(path) as log:
            found = [log.offset_for_time("t", 0, t) for t in (0, 50, 51, 60, 61)]
            assert [at and at.offset for at in found] == [0, 0, 3, 3, None]
            log.delete_records("t", 0, 4)
            at = log.offset_for_time("t", 0, 50)
            assert at is not None and at.offset == 6


# -- entries ---------------------------------------------------------------------------------------------


def test_offset_entries_are_kafkas() -> None:
    builder = IndexBuilder(1000, 0)
    for number in range(4):
        builder.add(number * 100, 1000 + number * 2 + 1, 5_000 + number)
    data = encode_offsets(builder.offsets)
    assert list(OFFSET_ENTRY.iter_unpack(data)) == [(3, 100), (5, 200), (7, 300)]
    assert decode_offsets(data, 400, 8) == builder.offsets
    assert list(TIME_ENTRY.iter_unpack(encode_times(builder.times))) == [(5_001, 3), (5_002, 5), (5_003, 7)]
    assert lookup_offset(builder.offsets, 4) == (3, 100)
    assert lookup_offset(builder.offsets, 2) == (0, 0)
    assert lookup_time(builder.times, 5_002) == (5_001, 3)
    assert lookup_time(builder.times, 5_001) is None


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 300))
def test_any_bytes_decode_to_entries_in_order_or_not_at_all(data: bytes, size: int, span: int) -> None:
    try:
        offsets = decode_offsets(data, size, span)
        assert list(offsets.offsets) == sorted(set(offsets.offsets))
        assert list(offsets.positions) == sorted(set(offsets.positions))
        assert not offsets.positions or offsets.positions[-1] < size
    except CorruptIndex:
        pass
    try:
        times = decode_times(data, UNBOUNDED)
        assert list(times.timestamps) == sorted(set(times.timestamps))
    except CorruptIndex:
        pass
