"""Compaction equals a dict: any keys, codecs, sizes, rounds and reopens, beside readers and writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from engine import NAME, START_MS, Bench, last_values, read_all, read_committed
from faults import Image, PowerCutFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import examples
from transactions import coordinated

from embedlog.codec import encode_batch, read_header, scan
from embedlog.compaction import CompactionResult, compact, should_compact
from embedlog.config import TopicSettings
from embedlog.errors import CorruptRecord, DiskFull, StorageError
from embedlog.files.filesystem import FileSystem
from embedlog.model import PartitionState, Record
from embedlog.retention import apply_retention
from embedlog.runtime.throttle import Throttle
from embedlog.storage.batch_cleaner import BYTES_PER_KEY

pytestmark = pytest.mark.plain

PLENTY = 1 << 20
HOUR_MS = 3_600_000


def compacted(**given: Any) -> TopicSettings:
    return TopicSettings(**{"cleanup_policy": "compact", "segment_bytes": 4096, **given})


def clean(bench: Bench, first_dirty: int = 0, *, buffer: int = PLENTY, **more: Any) -> CompactionResult:
    return compact(
        bench.partition,
        bench.partition.settings,
        bench.time_ms,
        dedupe_buffer_bytes=buffer,
        first_dirty_offset=first_dirty,
        **more,
    )


def offsets_of(bench: Bench) -> list[int]:
    return [record.offset for record in read_all(bench.partition)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    with Bench(str(tmp_path), compacted()) as opened:
        yield opened


# -- the property --------------------------------------------------------------------------------------

_keys = st.sampled_from([b"a", b"b", b"c", b"d", b"", None])
_values = st.sampled_from([None, b"", b"1", b"value" * 20])
_batch = st.tuples(
    st.just("append"),
    st.lists(st.tuples(_keys, _values), min_size=1, max_size=5),
    st.sampled_from([(), (("h", b"x"), ("n", None))]),
    st.integers(0, 4),
)
_steps = st.one_of(
    _batch,
    _batch,
    _batch,
    st.tuples(st.just("roll")),
    st.tuples(st.just("compact"), st.sampled_from([1, 2, 3, 1000])),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("wait"), st.sampled_from([1, HOUR_MS, 3 * HOUR_MS])),
)


class Model:
    """The appended records, and what compaction must keep."""

    def __init__(self) -> None:
        self.appended: dict[int, Record] = {}
        self.first_cleaned: dict[int, tuple[int, int]] = {}  # offset -> the time, and number of the round
        self.rounds = 0
        self.first_dirty = 0
        self.last_clean_ms = -1

    def check(self, bench: Bench, delete_retention_ms: int) -> None:
        records = read_all(bench.partition)
        assert all(self.appended[record.offset] == record for record in records)
        assert [r.offset for r in records] == sorted({r.offset for r in records})
        assert last_values(records) == last_values(self.appended.values())
        left = {record.offset for record in records}
        latest = {r.key: r.offset for r in self.appended.values()}
        clean_keys = [r.key for r in records if r.offset < self.first_dirty and r.key is not None]
        latest_clean = {r.key: r.offset for r in self.appended.values() if r.offset < self.first_dirty}
        assert len(clean_keys) == len(set(clean_keys)), "a key twice in the clean part"
        for offset, record in self.appended.items():
            if offset >= self.first_dirty or record.key is None:
                assert offset in left, "the dirty head and records without key stay"
            elif record.value is not None:
                assert (offset in left) <= (latest_clean[record.key] == offset)
            elif latest[record.key] == offset:
                cleaned_ms, number = self.first_cleaned[offset]
                due = cleaned_ms + delete_retention_ms
                if bench.time_ms < due:
                    assert offset in left, "a tombstone went too early"
                elif self.last_clean_ms >= due and self.rounds > number:
                    assert offset not in left, "a tombstone outlived its time"


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(_steps, min_size=1, max_size=40),
    segment_bytes=st.sampled_from([1024, 1500, 1 << 20]),
    delete_retention_ms=st.sampled_from([0, 2 * HOUR_MS]),
)
def test_a_compacted_log_equals_a_dict(
    steps: list[tuple[Any, ...]], segment_bytes: int, delete_retention_ms: int
) -> None:
    topic = compacted(segment_bytes=segment_bytes, delete_retention_ms=delete_retention_ms)
    with tempfile.TemporaryDirectory() as root, Bench(root, topic) as bench:
        model = Model()
        for step in [*steps, ("roll",), ("compact", 1000), ("reopen",)]:
            if step[0] == "append":
                _, pairs, headers, codec = step
                base = bench.append(*pairs, headers=headers, codec=codec)
                for i, (key, value) in enumerate(pairs):
                    record = Record(*NAME, base + i, bench.time_ms, 0, key, value, headers)
                    model.appended[base + i] = record
            elif step[0] == "roll":
                bench.partition.roll()
            elif step[0] == "compact":
                done = clean(bench, model.first_dirty, buffer=step[1] * BYTES_PER_KEY)
                model.rounds += 1
                for offset in range(model.first_dirty, done.first_dirty_offset):
                    model.first_cleaned[offset] = bench.time_ms, model.rounds
                assert done.first_dirty_offset >= model.first_dirty
                model.first_dirty = done.first_dirty_offset
                model.last_clean_ms = bench.time_ms
                assert done.finished == (model.first_dirty == bench.partition.segments()[-1].base_offset)
                model.check(bench, delete_retention_ms)
            elif step[0] == "reopen":
                bench.reopen()
                assert bench.report is not None and not bench.report.damage
                model.check(bench, delete_retention_ms)
            else:
                bench.time_ms += step[1]


_transaction_steps = st.one_of(
    st.tuples(st.just("data"), st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"])),
    st.tuples(st.just("data"), st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"])),
    st.tuples(st.just("plain"), st.just(0), st.sampled_from([b"a", b"b", b"c"])),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("compact"), st.sampled_from([1, 1000]), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    st.tuples(st.just("forget snapshots"), st.just(0), st.just(0)),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(_transaction_steps, min_size=1, max_size=60), retention_ms=st.sampled_from([0, HOUR_MS])
)
def test_read_committed_equals_a_dict_whatever_transactions_there_were(
    steps: list[tuple[str, int, Any]], retention_ms: int
) -> None:
    topic = compacted(delete_retention_ms=retention_ms)
    with tempfile.TemporaryDirectory() as root, Bench(root, topic) as bench:
        producers = Transactional(bench)
        first_dirty = 0
        for number, (what, who, detail) in enumerate([*steps, ("roll", 0, 0), ("compact", 1000, 0)]):
            value = b"%d" % number
            if what == "data":
                producers.send(who, detail, value)
            elif what == "plain":
                producers.committed[bench.append((detail, value))] = (detail, value)
            elif what == "end":
                producers.end(who, commit=detail)
            elif what == "roll":
                bench.partition.roll()
            elif what == "compact":
                before = bench.partition.lifecycle.for_cleaning().last_batches
                first_dirty = clean(bench, first_dirty, buffer=who * BYTES_PER_KEY).first_dirty_offset
                assert bench.partition.lifecycle.for_cleaning().last_batches == before
                bench.time_ms += HOUR_MS
            else:
                before = bench.partition.lifecycle.for_cleaning()
                if what == "forget snapshots":
                    bench.partition.flush()
                    bench.remove_snapshots()
                    bench.recovery_point = 0
                bench.reopen()
                after = bench.partition.lifecycle.for_cleaning()
                assert after.last_stable_offset == before.last_stable_offset
                assert after.last_batches == before.last_batches
            committed = read_committed(bench.partition, max_bytes=300)
            assert {r.key: r.value for r in committed} == producers.expected()
            assert all(producers.committed[r.offset] == (r.key, r.value) for r in committed)


class Transactional:
    """Producers with transactions, and what their committed records amount to."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.committed: dict[int, tuple[bytes, bytes]] = {}
        self.open: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self.sequences: dict[int, int] = {}

    def send(self, producer: int, key: bytes, value: bytes, *, codec: int = 0) -> int:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        batch = encode_batch(
            [(key, value, (), self.bench.time_ms)],
            compression=codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        offset = coordinated(self.bench.partition, batch).base_offset
        self.open.setdefault(producer, {})[offset] = (key, value)
        return offset

    def end(self, producer: int, *, commit: bool) -> int | None:
        records = self.open.pop(producer, None)
        if records is None:
            return None
        if commit:
            self.committed.update(records)
        return self.bench.append_marker(producer, commit=commit)

    def expected(self) -> dict[bytes, bytes]:
        unstable = min((min(records) for records in self.open.values()), default=1 << 62)
        return dict(self.committed[offset] for offset in sorted(self.committed) if offset < unstable)


# -- one rule at a time --------------------------------------------------------------------------------


def test_offsets_headers_and_the_active_segment_stay(bench: Bench) -> None:
    bench.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), headers=(("h", b"x"),), codec=4)
    bench.partition.roll()
    bench.append((b"a", b"3"))
    result = clean(bench)
    assert result.first_dirty_offset == 3 and result.finished
    assert result.records_removed == 1 and result.segments_replaced == 1
    assert result.bytes_written < result.bytes_read
    kept = read_all(bench.partition)
    assert [(r.offset, r.key, r.value) for r in kept] == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"a", b"3")]
    assert kept[0].headers == (("h", b"x"),)
    header = read_header(bench.partition.fetch(0, 100).data)
    assert (header.base_offset, header.last_offset, header.compression) == (0, 2, 4)
    assert bench.partition.fetch(0, 100).may_have_gaps


def test_segments_are_merged_up_to_segment_bytes(bench: Bench) -> None:
    for i in range(20):
        bench.append((b"k%d" % i, b"v" * 400))
        bench.partition.roll()
    clean(bench)
    sizes = [segment.size for segment in bench.partition.segments()]
    assert len(sizes) == 4 and all(size <= 4096 for size in sizes)
    assert offsets_of(bench) == list(range(20))
    assert [r.offset for r in read_all(bench.reopen())] == list(range(20))
    for offset in range(20):
        assert read_all(bench.partition, start=offset, max_bytes=1)[0].offset == offset


def test_a_fully_compacted_part_still_tells_readers_where_to_continue(bench: Bench) -> None:
    bench.settings = bench.partition.settings = compacted(delete_retention_ms=0)
    bench.append((b"a", b"1"))
    bench.append((b"a", None))
    bench.partition.roll()
    first_dirty = clean(bench).first_dirty_offset
    clean(bench, first_dirty)
    assert bench.partition.fetch(0, 100).data, "else a reader would wait at offset 0 for ever"
    assert offsets_of(bench) == []
    assert read_all(bench.reopen()) == []
    assert bench.append((b"a", b"2")) == 2


def test_tombstones_stay_for_delete_retention_ms_from_their_first_cleaning_on(bench: Bench) -> None:
    bench.append((b"a", b"1"), (b"b", b"1"))
    bench.append((b"a", None), (b"c", b"1"), codec=3)
    bench.partition.roll()
    bench.time_ms += 100 * bench.partition.settings.delete_retention_ms
    first_dirty = clean(bench).first_dirty_offset
    kept = read_all(bench.partition)
    assert [(r.offset, r.key, r.timestamp_ms) for r in kept] == [
        (1, b"b", START_MS),
        (2, b"a", START_MS),
        (3, b"c", START_MS),
    ], "and the delete horizon changes no timestamp"
    bench.time_ms += bench.partition.settings.delete_retention_ms - 1
    assert clean(bench, first_dirty).records_removed == 0
    bench.reopen()
    bench.time_ms += 1
    assert clean(bench, first_dirty).records_removed == 1
    assert offsets_of(bench) == [1, 3]


def test_the_delete_horizon_is_kafkas(bench: Bench) -> None:
    """KIP-534: attribute bit 6, the base timestamp is the horizon, record timestamps count from it."""
    from aiokafka.record.default_records import DefaultRecordBatch

    bench.append((b"a", None), (b"b", b"1"), codec=1)
    bench.partition.roll()
    clean(bench)
    data = bench.partition.fetch(0, 1000).data
    header = read_header(data)
    assert header.has_delete_horizon
    assert header.base_timestamp_ms == bench.time_ms + bench.partition.settings.delete_retention_ms
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert [(r.offset, r.key, r.value, r.timestamp) for r in batch] == [
        (0, b"a", None, START_MS),
        (1, b"b", b"1", START_MS),
    ]


def test_records_without_key_are_never_lost(bench: Bench) -> None:
    bench.append((None, b"1"), (None, None), (b"a", b"1"))
    bench.append((None, b"2"), (b"a", b"2"))
    bench.partition.roll()
    clean(bench)
    assert offsets_of(bench) == [0, 1, 3, 4]


def test_a_full_map_cleans_a_part_and_later_rounds_the_rest(bench: Bench) -> None:
    for i in range(40):
        bench.append((b"k%d" % (i % 10), b"%d" % i))
    bench.partition.roll()
    rounds = []
    first_dirty = 0
    while not rounds or not rounds[-1].finished:
        rounds.append(clean(bench, first_dirty, buffer=3 * BYTES_PER_KEY))
        first_dirty = rounds[-1].first_dirty_offset
        assert last_values(read_all(bench.partition)) == {b"k%d" % i: b"%d" % (30 + i) for i in range(10)}
    assert len(rounds) > 5
    assert offsets_of(bench) == list(range(30, 40))


def test_records_that_are_too_young_wait(bench: Bench) -> None:
    bench.settings = bench.partition.settings = compacted(min_compaction_lag_ms=HOUR_MS)
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.partition.roll()
    bench.time_ms += HOUR_MS // 2
    bench.append((b"a", b"3"), (b"a", b"4"))
    bench.partition.roll()
    assert clean(bench).first_dirty_offset == 0
    bench.time_ms += HOUR_MS // 2
    assert clean(bench).first_dirty_offset == 2
    assert offsets_of(bench) == [1, 2, 3]


def test_when_a_partition_is_worth_compacting(bench: Bench) -> None:
    def worth(first_dirty: int, **given: Any) -> bool:
        return should_compact(bench.partition, compacted(**given), bench.time_ms, first_dirty)

    bench.append((b"a", b"1"))
    assert not worth(0), "the active segment is never cleaned"
    bench.partition.roll()
    assert worth(0, min_cleanable_dirty_ratio=1.0)
    assert not worth(1)
    bench.append((b"a", b"2"))
    bench.partition.roll()
    assert worth(1, min_cleanable_dirty_ratio=0.5) and not worth(1, min_cleanable_dirty_ratio=0.51)
    late = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": HOUR_MS}
    bench.time_ms += HOUR_MS
    assert not worth(1, **late)
    bench.time_ms += 1
    assert worth(1, **late)
    assert not worth(1, cleanup_policy="delete")
    assert not worth(2, min_cleanable_dirty_ratio=0.0)


def test_a_position_beyond_the_log_begins_again(bench: Bench) -> None:
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.partition.roll()
    assert clean(bench, 1000).first_dirty_offset == 2
    assert offsets_of(bench) == [1]


# -- transactions --------------------------------------------------------------------------------------


def markers(bench: Bench) -> list[int]:
    found = []
    for segment, size in bench.partition.readable_segments():
        found += [header.base_offset for header in segment.walk(0, size) if header.is_control]
    return found


def test_aborted_records_go_and_open_transactions_are_left_alone(bench: Bench) -> None:
    producers = Transactional(bench)
    bench.append((b"a", b"plain"))
    producers.send(1, b"a", b"aborted")
    producers.end(1, commit=False)
    producers.send(2, b"b", b"committed")
    producers.end(2, commit=True)
    bench.partition.roll()
    producers.send(1, b"a", b"open")
    bench.append((b"b", b"plain"), (b"b", b"plain again"))
    bench.partition.roll()
    bench.append((b"z", b"z"))
    result = clean(bench)
    assert result.first_dirty_offset == 5, "the segment with the open transaction is not cleaned"
    assert offsets_of(bench) == [0, 3, 5, 6, 7, 8]
    assert [r.offset for r in read_committed(bench.partition)] == [0, 3]
    assert producers.end(1, commit=True) is not None
    assert [r.value for r in read_committed(bench.partition)][2:] == [b"open", b"plain", b"plain again", b"z"]


def test_markers_outlive_their_transaction_by_delete_retention_ms(bench: Bench) -> None:
    producers = Transactional(bench)
    first_dirty = 0
    producers.send(1, b"a", b"1")
    committed = producers.end(1, commit=True)
    producers.send(1, b"b", b"1")
    aborted = producers.end(1, commit=False)
    producers.send(1, b"a", b"2")
    last = producers.end(1, commit=True)
    bench.append((b"z", b"z"))
    bench.partition.roll()

    def again() -> list[int]:
        nonlocal first_dirty
        first_dirty = clean(bench, first_dirty).first_dirty_offset
        return markers(bench)

    assert again() == [committed, aborted, last], "their records have gone only now"
    assert len(bench.partition.lifecycle.for_cleaning().aborted) == 1
    bench.time_ms += HOUR_MS
    assert again() == [committed, aborted, last], "and from now on their time runs"
    assert bench.partition.lifecycle.for_cleaning().aborted == ()
    bench.time_ms += bench.partition.settings.delete_retention_ms - 1
    assert again() == [committed, aborted, last]
    bench.reopen()
    bench.time_ms += 1
    assert again() == [last], "a record of its transaction is left"
    assert [r.value for r in read_committed(bench.partition)] == [b"2", b"z"]


def test_the_last_marker_with_a_producers_epoch_stays_empty(bench: Bench) -> None:
    bench.settings = bench.partition.settings = compacted(delete_retention_ms=0)
    producers = Transactional(bench)
    producers.send(1, b"a", b"1")
    bench.append_marker(1, commit=False, producer_epoch=3)
    bench.append((b"a", b"2"))
    bench.partition.roll()
    for _ in range(4):
        clean(bench)
        assert markers(bench) == [1]
    data = bench.partition.fetch(0, 1).data
    assert read_header(data).record_count == 0
    bench.remove_snapshots()
    bench.recovery_point = 0
    assert bench.reopen().lifecycle.for_cleaning().last_batches == {1: (3, -1)}


def test_nothing_past_the_maps_end_is_changed(bench: Bench) -> None:
    """Its tombstones and markers have not been cleaned yet, and read_committed still needs the abort."""
    producers = Transactional(bench)
    bench.append((b"a", b"1"))
    bench.partition.roll()
    bench.append((b"a", b"2"))
    bench.append((b"b", b"1"))
    bench.append((b"b", None))
    bench.append_marker(2, commit=True)
    producers.send(1, b"c", b"aborted")
    producers.end(1, commit=False)
    bench.append((b"d", b"1"))
    bench.partition.roll()
    bench.append((b"head", b"1"))
    path = bench.partition.segments()[1].path
    tail = Path(path).read_bytes()[-400:]
    result = clean(bench, buffer=BYTES_PER_KEY)
    assert (result.first_dirty_offset, result.finished, result.segments_replaced) == (2, False, 2)
    assert Path(bench.partition.segments()[0].path).read_bytes().endswith(tail)
    for _ in range(2):
        assert offsets_of(bench) == [1, 2, 3, 5, 7, 8]
        assert [r.offset for r in read_committed(bench.partition)] == [1, 2, 3, 7, 8]
        bench.reopen()
    clean(bench, 2)
    assert offsets_of(bench) == [1, 3, 7, 8]


def test_producer_state_can_be_rebuilt_after_compaction(bench: Bench) -> None:
    producers = Transactional(bench)
    for i in range(8):
        producers.send(1, b"a", b"%d" % i, codec=2)
    producers.end(1, commit=False)
    bench.append((b"a", b"later"))
    bench.partition.roll()
    clean(bench)
    assert [r.value for r in read_all(bench.partition)] == [b"later"]
    before = bench.partition.lifecycle.for_cleaning().last_batches
    bench.remove_snapshots()
    bench.recovery_point = 0
    bench.reopen()
    assert bench.partition.lifecycle.for_cleaning().last_batches == before == {1: (0, 7)}
    producers.send(1, b"a", b"the next sequence is still accepted")


# -- in company ----------------------------------------------------------------------------------------


def test_appends_and_reads_go_on_meanwhile(tmp_path: Path) -> None:
    with Bench(str(tmp_path), compacted(segment_bytes=2048)) as bench:
        partition = bench.partition
        done = threading.Event()
        errors: list[BaseException] = []
        appended: dict[int, tuple[bytes, bytes]] = {}

        def guarded(work: Any) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    errors.append(error)
                    done.set()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def append() -> None:
            for i in range(3000):
                pair = (b"k%d" % (i * 7 % 50), b"%d" % i)
                batch = encode_batch([(*pair, (), START_MS)])
                appended[partition.append(batch).base_offset] = pair
            done.set()

        def read() -> None:
            while not done.is_set():
                offset = 0
                while offset < partition.offsets().log_end_offset:
                    found = scan(partition.fetch(offset, 3000).data)
                    assert found.error is None and found.headers
                    assert found.headers[0].last_offset >= offset
                    offset = found.headers[-1].next_offset

        threads = [guarded(append), guarded(read), guarded(read)]
        first_dirty = 0
        while not done.is_set():
            first_dirty = clean(bench, first_dirty).first_dirty_offset
        for thread in threads:
            thread.join()
        assert errors == []
        partition.roll()
        clean(bench, first_dirty)
        left = read_all(partition)
        assert {r.key: r.value for r in left} == dict(appended[offset] for offset in sorted(appended))
        assert len(left) == 50


def test_a_reader_of_an_old_segment_finishes(bench: Bench) -> None:
    bench.append((b"a", b"1"))
    bench.append((b"a", b"2"))
    bench.partition.roll()
    held, size = bench.partition.readable_segments()[0]
    before = held.pread(size, 0)
    clean(bench)
    assert bench.partition.segments()[0] is not held
    assert held.pread(size, 0) == before
    assert [path.endswith(".deleted") for path in bench.waiting]
    bench.unlink_waiting()
    assert held.pread(size, 0) == before
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_retention_may_overtake_a_round(bench: Bench) -> None:
    bench.settings = bench.partition.settings = compacted(
        cleanup_policy="compact,delete", retention_bytes=0, delete_policy="bytes"
    )
    for i in range(3):
        bench.append((b"a", b"%d" % i))
        bench.partition.roll()

    def meanwhile(size: int) -> None:
        apply_retention(bench.partition, bench.time_ms, 0)

    result = clean(bench, throttle=meanwhile)
    assert not result.finished and result.first_dirty_offset == 0 and result.segments_replaced == 0
    assert bench.partition.offsets().log_start_offset == 3
    assert not [name for name in bench.names() if name.endswith(".cleaned")]
    assert clean(bench, result.first_dirty_offset).first_dirty_offset == 3


def test_a_round_can_be_stopped(bench: Bench) -> None:
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.partition.roll()
    result = clean(bench, stopped=lambda: True)
    assert (result.first_dirty_offset, result.finished) == (0, False)
    assert offsets_of(bench) == [0, 1]


def test_the_throttle_counts_every_byte_read_and_written(bench: Bench) -> None:
    for i in range(20):
        bench.append((b"%d" % (i % 3), b"v" * 100))
    bench.partition.roll()
    told: list[int] = []
    result = clean(bench, throttle=told.append)
    assert sum(told) == 2 * result.bytes_read + result.bytes_written


def test_a_throttle_sleeps_as_long_as_the_rate_demands() -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    throttle = Throttle(1000, clock=lambda: now, sleep=sleep)
    for _ in range(10):
        throttle(500)
    assert now == pytest.approx(5.0)
    now += 60
    throttle(500)
    assert slept[-1] == pytest.approx(0.5), "idle time is not saved up"
    Throttle((1 << 63) - 1, clock=lambda: now, sleep=sleep)(1 << 40)
    assert len(slept) == 11


def test_a_round_goes_on_in_small_steps(bench: Bench) -> None:
    """Whoever waits for the interpreter waits for one step, however large the batches are."""
    steps: list[int] = []
    read: list[int] = []
    records = [(b"k%d" % (i % 700), b"v") for i in range(1000)]
    bench.append(*records)
    for i in range(100):
        bench.append((b"x%d" % (i % 3), b"v"))
    bench.partition.roll()
    result = clean(bench, pace=lambda: steps.append(len(read)), throttle=read.append)
    assert result.records_removed == 300 + 97
    assert len(steps) >= 2 * (1000 // 64 + 101), "both passes: each batch, and each 64 records of one"


def test_compacted_segments_have_the_indexes_of_their_records(bench: Bench) -> None:
    for i in range(3000):
        bench.append((b"k%d" % (i % 1500), bytes(50)))
        bench.time_ms += i % 3
        if i % 1000 == 999:
            bench.partition.roll()
    bench.partition.settings = compacted(segment_bytes=1 << 20, index_interval_bytes=4096)
    assert clean(bench).records_removed == 1500
    segment = bench.partition.segments()[0]
    bench.files.indexes.forget(segment.path)
    saved = segment.entries()
    assert len(saved[0].offsets) > 10
    assert saved == segment.rebuild_indexes()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
def test_keys_of_any_length_are_distinguished(bench: Bench, size: int) -> None:
    keys = [bytes([i]) * size for i in range(5)]
    for turn in range(3):
        bench.append(*((key, b"%d" % turn) for key in keys))
    bench.partition.roll()
    clean(bench)
    assert last_values(read_all(bench.partition)) == dict.fromkeys(keys, b"2")
    assert offsets_of(bench) == list(range(10, 15))


def test_a_woken_throttle_stops_sleeping() -> None:
    throttle = Throttle(1)
    throttle.wake()
    throttle(1 << 30)


# -- trouble -------------------------------------------------------------------------------------------


def test_damage_ends_the_round_and_stays_as_it_is(bench: Bench) -> None:
    for i in range(10):
        bench.append((b"a", b"%d" % i))
    bench.partition.roll()
    path = bench.partition.segments()[0].path
    damaged = bytearray(Path(path).read_bytes())
    damaged[400] ^= 1
    Path(path).write_bytes(damaged)
    before = bytes(damaged)
    with pytest.raises(CorruptRecord, match="at byte"):
        clean(bench)
    assert Path(path).read_bytes() == before
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


class Failing(FileSystem):
    """Fails from the n-th change to the disk on, for as long as it is told to."""

    left: int | None = None
    error = errno.EIO

    def _change(self) -> None:
        if self.left is None:
            return
        if not self.left:
            raise OSError(self.error, os.strerror(self.error))
        self.left -= 1

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        self._change()
        return super().open_write(path, create=create, truncate=truncate)

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._change()
        super().pwrite_all(fd, data, pos)

    def sync(self, fd: int) -> None:
        self._change()
        super().sync(fd)

    def sync_dir(self, path: str) -> None:
        self._change()
        super().sync_dir(path)

    def rename(self, source: str, destination: str) -> None:
        self._change()
        super().rename(source, destination)


def test_a_disk_that_fails_at_any_step_loses_nothing(tmp_path: Path) -> None:
    failed = set()
    for step in range(200):
        fs = Failing()
        root = tmp_path / str(step)
        root.mkdir()
        with Bench(str(root), compacted(), fs) as bench:
            for i in range(6):
                bench.append((b"k%d" % (i % 2), b"%d" % i))
                bench.partition.roll()
            bench.append((b"last", b"1"))
            bench.partition.flush()
            fs.left = step
            try:
                clean(bench)
            except StorageError:
                failed.add(bench.partition.state)
            else:
                break
            finally:
                fs.left = None
            expected = {b"k0": b"4", b"k1": b"5", b"last": b"1"}
            assert last_values(read_all(bench.partition)) == expected
            if bench.partition.state is PartitionState.ONLINE:
                assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]
                clean(bench)
                assert last_values(read_all(bench.partition)) == expected
            bench.reopen()
            assert last_values(read_all(bench.partition)) == expected
            clean(bench)
            assert offsets_of(bench) == [4, 5, 6]
    assert failed == {PartitionState.ONLINE, PartitionState.FAILED}
    assert step > 10


@pytest.mark.slow
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """A child process that compacts is killed before each of its system calls, and inside each write."""
    script = Path(__file__).with_name("compaction_kills.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 60, "so many kills"


def test_a_power_cut_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """A segment's replacement is durable first: a swapped file must not be empty after a power cut."""
    root, copy = tmp_path / "log", tmp_path / "copy"
    root.mkdir()
    images: list[Image] = []

    def remember() -> None:
        images.extend(image for image in (fs.image(), fs.lost_data()) if image not in images)

    class Photographed(PowerCutFileSystem):
        def _note(self, operation: str, path: str) -> None:
            remember()
            super()._note(operation, path)

    fs = Photographed(root)
    with Bench(str(root), compacted(), fs) as bench:
        fs.sync_dir(str(root))
        for i in range(6):
            bench.append((b"k%d" % (i % 2), b"%d" % i))
            bench.partition.roll()
        bench.append((b"last", b"1"))
        bench.partition.checkpoint()
        expected = last_values(read_all(bench.partition))
        images.clear()
        clean(bench)
        remember()
        recovery_point = bench.recovery_point
    assert any(path.endswith(".swap") for image in images for path in image.files)
    for number, image in enumerate(images):
        image.write(copy)
        with Bench(str(copy), compacted(), recovery_point=recovery_point) as after:
            assert after.report is None or not after.report.damage, (number, after.report)
            assert last_values(read_all(after.partition)) == expected, (number, sorted(image.files))


def test_no_room_for_the_new_file_is_disk_full_and_harmless(tmp_path: Path) -> None:
    fs = Failing()
    fs.error = errno.ENOSPC
    with Bench(str(tmp_path), compacted(), fs) as bench:
        bench.append((b"a", b"1"), (b"a", b"2"))
        bench.partition.roll()
        fs.left = 1
        with pytest.raises(DiskFull):
            clean(bench)
        fs.left = None
        assert offsets_of(bench) == [0, 1]
        clean(bench)
        assert offsets_of(bench) == [1]
