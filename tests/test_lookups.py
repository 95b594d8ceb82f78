"""Lookups by offset: next to earlier ones, in reader processes, while the log changes."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path

import pytest

import embedlog
import embedlog.segment
import embedlog.storage.writer_state
import embedlog.store.read_only_partition
from embedlog import Log, errors
from embedlog.codec import plain_scanning
from embedlog.files.filesystem import FileSystem
from embedlog.runtime.recent import Recent
from embedlog.store.read_only_store import ReadOnlyStore


def fill(log: Log, topic: str, count: int) -> None:
    for start in range(0, count, 20):
        log.append_many(topic, [b"%d" % offset for offset in range(start, start + 20)])


def check(log: Log, topic: str, offsets: range | list[int], value: str = "%d") -> None:
    for offset in offsets:
        record = log.read_at(topic, 0, offset)
        assert record is not None
        assert (record.offset, record.value) == (offset, (value % offset).encode())


def test_neighbours_in_every_direction_and_across_segments(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", segment_bytes=2_000, index_interval_bytes=300)
        fill(log, "t", 1_000)
        check(log, "t", range(1_000))
        check(log, "t", list(range(999, -1, -1)))
        chosen = random.Random(1)
        offset = 500
        for _ in range(2_000):
            offset = min(max(offset + chosen.randint(-9, 10), 0), 999)
            check(log, "t", [offset])


def test_kept_records_end_with_their_files(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", segment_bytes=2_000)
        fill(log, "t", 400)
        check(log, "t", range(50))
        log.delete_records("t", 0, 45)
        check(log, "t", range(45, 60))
        with pytest.raises(errors.OffsetOutOfRange):
            log.read_at("t", 0, 44)
        log.delete_topic("t")
        log.create_topic("t")
        log.append("t", b"new")
        assert log.read_at("t", 0, 0).value == b"new"  # type: ignore[union-attr]
        with pytest.raises(errors.OffsetOutOfRange):
            log.read_at("t", 0, 50)


def test_compaction_replaces_kept_records(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, segment_bytes=1_024)
        for offset in range(100):
            log.append("t", b"%d" % offset, key=b"%d" % (offset % 10))
        check(log, "t", range(80))
        log.compact("t")
        found = [log.read_at("t", 0, offset) for offset in range(70)]
        assert None in found
        kept = {record.offset: record for record in log.read("t")}
        assert found == [kept.get(offset) for offset in range(70)]


def test_a_reader_follows_appends_deletions_and_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=2_000)
        fill(log, "t", 200)
        with embedlog.open(path, mode="r") as reader:
            check(reader, "t", range(200))
            log.append_many("t", [b"%d" % offset for offset in range(200, 260)])
            check(reader, "t", range(150, 260))
            log.delete_records("t", 0, 155)
            with pytest.raises(errors.OffsetOutOfRange):
                reader.read_at("t", 0, 154)
            check(reader, "t", range(155, 260))
            log.close()
            with embedlog.open(path) as following:
                following.append_many("t", [b"%d" % offset for offset in range(260, 300)])
                check(reader, "t", range(155, 300))
                following.delete_topic("t")
                following.create_topic("t")
                following.append("t", b"again")
                assert reader.read_at("t", 0, 0).value == b"again"  # type: ignore[union-attr]
                with pytest.raises(errors.OffsetOutOfRange):
                    reader.read_at("t", 0, 155)
        with pytest.raises(errors.Closed):
            reader.read_at("t", 0, 0)


class Counting(FileSystem):
    """Counts stat calls."""

    stats = 0

    def stat(self, path: str) -> os.stat_result:
        self.stats += 1
        return super().stat(path)

    def size(self, path: str) -> int:
        self.stats += 1
        return super().size(path)


def test_lookups_of_a_reader_make_no_stat_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes, and but for one now and then, for writers of older versions."""
    monkeypatch.setattr(embedlog.store.read_only_partition, "_CHECK_S", 1e9)
    monkeypatch.setattr(embedlog.segment, "_CHECK_INDEX_S", 1e9)
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t")
        fill(log, "t", 2_000)
        log.flush()
        fs = Counting()
        store = ReadOnlyStore(str(path), fs=fs)
        for _ in range(2):
            assert store.record_at("t", 0, 5) is not None
        before = fs.stats
        for offset in range(0, 2_000, 7):
            record = store.record_at("t", 0, offset)
            assert record is not None and record.offset == offset
        assert fs.stats == before
        store.close()


def test_bytes_near_an_offset() -> None:
    compiled = pytest.importorskip(
        "embedlog.codec.compiled_decoding", reason="built without a compiler", exc_type=ImportError
    )
    for seed in range(300):
        chosen = random.Random(seed)
        count = chosen.randrange(6)
        offsets = array("I", sorted(chosen.sample(range(1, 50), count)))
        positions = array("I", sorted(chosen.sample(range(1, 900), count)))
        for offset in range(60):
            arguments = (
                offsets,
                positions,
                offset,
                chosen.choice([900, 1_500]),
                chosen.choice([0, 90, 1 << 62]),
            )
            pos, stop, last = plain_scanning.bytes_near(*arguments)
            assert compiled.bytes_near(*arguments) == (pos, stop, last), arguments
            assert 0 <= pos < stop
            assert last < 0 or last in offsets


def test_recent_keeps_the_last_entries() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    recent.put("a", 3)
    recent.put("c", 4)
    assert [recent.get(key) for key in "abc"] == [3, None, 4]


def test_a_reader_notices_a_file_that_was_replaced_without_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As writers of older versions do after a clean end."""
    monkeypatch.setattr(embedlog.storage.writer_state.WriterState, "_mark_superseded", lambda *_: None)
    monkeypatch.setattr(embedlog.store.read_only_partition, "_CHECK_S", 0)
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t")
        fill(log, "t", 20)
    with embedlog.open(path, mode="r") as reader:
        check(reader, "t", range(20))
        with embedlog.open(path) as log:
            log.append_many("t", [b"%d" % offset for offset in range(20, 40)])
            check(reader, "t", range(40))
