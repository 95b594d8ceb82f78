"""Verify reports each kind of damage at its position and under its name, and nothing else."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import RECORDS, batches, files, flip, make_log, segments, value
from encoding import encode_values
from faults import FaultyFileSystem, crash, in_child, open_log, partition_of, store_of
from housekeeping import housekeep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import Log
from embedlog.codec import crc32c
from embedlog.errors import CorruptRecord, DirectoryError, NotALog, PartitionNotFound, TopicNotFound
from embedlog.files.filesystem import FileSystem
from embedlog.runtime.background_failures import BackgroundFailures
from embedlog.segment import Segment
from embedlog.store.repair import repair_partition
from embedlog.store.verify import CHECKPOINT, DAMAGE, INDEX_FAULT, TORN_TAIL, verify_log

pytestmark = pytest.mark.plain


def test_verify_changes_nothing(path: Path) -> None:
    directory = make_log(path)
    before = files(path)
    report = verify_log(path, deep=True)
    assert (report.findings, report.leftovers, report.ok, report.records_lost) == ((), (), True, 0)
    assert (report.segments, report.batches, report.records) == (5, RECORDS, RECORDS)
    assert report.bytes == sum(each.stat().st_size for each in segments(directory))
    assert report.seconds > 0
    assert files(path) == before


def test_verify_reports_progress_and_takes_topics(path: Path) -> None:
    make_log(path)
    with embedlog.open(path) as log:
        log.create_topic("u", partitions=2)
        log.append("u", b"one", partition=1)
    seen: list[tuple[int, int]] = []
    whole = verify_log(path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (whole.bytes, whole.bytes)
    assert seen == sorted(seen)
    assert verify_log(path, topic="u").records == 1
    assert verify_log(path, topic="u", partition=1).records == 1
    assert verify_log(path, topic="u", partition=0).records == 0
    with pytest.raises(TopicNotFound):
        verify_log(path, topic="v")
    with pytest.raises(PartitionNotFound):
        verify_log(path, topic="u", partition=2)
    with pytest.raises(DirectoryError):
        verify_log(path / "nowhere")
    with pytest.raises(NotALog):
        verify_log(path / "t_0")


# -- damaged batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "byte", "reason"),
    [
        ("base offset", 7, "says it begins with offset"),
        ("base offset, high", 1, "says it begins with offset"),
        ("length", 8, "cut short"),
        ("length, low", 11, "CRC"),
        ("leader epoch", 15, "the history says 0"),
        ("magic", 16, "magic 18"),
        ("crc", 18, "CRC"),
        ("attributes", 22, "CRC"),
        ("last offset delta", 26, "CRC"),
        ("max timestamp", 40, "CRC"),
        ("producer id", 50, "impossible numbers"),
        ("record count", 60, "record count of 17 for 1 offsets"),
        ("record", 80, "CRC"),
        ("last byte", -1, "CRC"),
    ],
)
def test_one_damaged_batch_is_one_finding(path: Path, place: str, byte: int, reason: str) -> None:
    directory = make_log(path)
    segment = segments(directory)[1]
    victim = batches(segment)[3]
    flip(segment, victim.pos + byte % victim.size)
    report = verify_log(path)
    (finding,) = report.findings
    assert (finding.kind, finding.topic, finding.partition) == (DAMAGE, "t", 0)
    assert (finding.path, finding.pos, finding.size) == (str(segment), victim.pos, victim.size)
    assert (finding.first_offset, finding.last_offset) == (victim.base_offset, victim.last_offset)
    assert finding.records_lost == report.records_lost == 1
    assert reason in finding.reason
    assert report.records == RECORDS - 1
    assert not report.ok
    assert f"at byte {victim.pos:,}" in str(finding)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_located(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = _shared(tmp_path_factory)
    segment = segments(path / "t_0")[data.draw(st.integers(0, 4))]
    victim = data.draw(st.sampled_from(batches(segment)))
    pos = victim.pos + data.draw(st.integers(0, victim.size - 1))
    bits = 1 << data.draw(st.integers(0, 7))
    flip(segment, pos, bits)
    try:
        report = verify_log(path)
    finally:
        flip(segment, pos, bits)
    (finding,) = report.findings
    assert (finding.path, finding.pos, finding.size) == (str(segment), victim.pos, victim.size)
    assert (finding.first_offset, finding.last_offset) == (victim.base_offset, victim.last_offset)
    assert report.records == RECORDS - 1


_made: list[Path] = []


def _shared(factory: pytest.TempPathFactory) -> Path:
    if not _made:
        _made.append(factory.mktemp("verify") / "log")
        make_log(_made[0])
    return _made[0]


def test_many_damages_at_once(path: Path) -> None:
    directory = make_log(path)
    victims = []
    for number, segment in enumerate(segments(directory)):
        for victim in batches(segment)[number::20]:
            flip(segment, victim.pos + 70)
            victims.append(victim.base_offset)
    report = verify_log(path)
    assert [finding.first_offset for finding in report.findings] == victims
    assert {finding.kind for finding in report.findings} == {DAMAGE}
    assert report.records == RECORDS - len(victims)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("legible", ["before", "behind", "both"])
def test_a_wrong_offset_among_damage_is_not_trusted(path: Path, legible: str, bits: int) -> None:
    """Nothing is wrong with the batch in the middle but its offset, which its CRC does not cover."""
    directory = make_log(path)
    segment = segments(directory)[1]
    chosen = batches(segment)
    for victim in chosen[10:20]:
        flip(segment, victim.pos + 70)
    for illegible in {"before": [16], "behind": [14], "both": []}[legible]:
        flip(segment, chosen[illegible].pos + 16)
    victim = chosen[15]
    flip(segment, victim.pos + 70)  # whole again
    flip(segment, victim.pos + 7, bits)
    (finding,) = verify_log(path).findings
    assert (finding.pos, finding.size) == (chosen[10].pos, chosen[20].pos - chosen[10].pos)
    assert (finding.first_offset, finding.last_offset) == (chosen[10].base_offset, chosen[19].base_offset)
    repair_partition(path, "t", 0)
    with embedlog.open(path) as log:
        assert all(record.value == value(record.offset) for record in log.read("t", 0))


def test_a_wrong_offset_before_a_damaged_end_is_not_the_end(path: Path) -> None:
    segment = segments(make_log(path))[-1]
    *_, victim, last = batches(segment)
    flip(segment, victim.pos + 5)
    flip(segment, last.pos + 70)
    with embedlog.open(path, mode="r") as log:
        assert log.offsets("t")[0].log_end_offset == RECORDS
        with pytest.raises(CorruptRecord, match=r"base offset .* is expected"):
            list(log.read("t", 0, start=victim.base_offset))


@pytest.mark.parametrize("byte", [9, 16, 70], ids=["length", "magic", "CRC"])
def test_a_whole_batch_among_damage_is_kept(path: Path, byte: int) -> None:
    directory = make_log(path)
    segment = segments(directory)[1]
    chosen = batches(segment)
    for victim in (chosen[9], chosen[11]):
        flip(segment, victim.pos + byte)
    report = verify_log(path)
    assert [finding.first_offset for finding in report.findings] == [
        c.base_offset for c in (chosen[9], chosen[11])
    ]
    assert report.records == RECORDS - 2


def test_a_range_of_zeros(path: Path) -> None:
    directory = make_log(path)
    segment = segments(directory)[2]
    found = batches(segment)
    first, behind = found[10].pos + 100, found[40].pos + 20
    data = bytearray(segment.read_bytes())
    data[first:behind] = bytes(behind - first)
    segment.write_bytes(data)
    (finding,) = verify_log(path).findings
    assert (finding.pos, finding.size) == (found[10].pos, found[41].pos - found[10].pos)
    assert (finding.first_offset, finding.last_offset) == (found[10].base_offset, found[40].last_offset)
    assert finding.records_lost == 31


def test_damage_of_large_batches(path: Path) -> None:
    with embedlog.open(path, max_message_bytes=64 << 20) as log:
        log.create_topic("t")
        for number in range(4):
            log.append("t", bytes([65 + number]) * (9 << 20), timestamp_ms=number)
        log.append("t", b"small", timestamp_ms=5)
    segment = segments(path / "t_0")[0]
    victim = batches(segment)[1]
    flip(segment, victim.pos + (5 << 20))
    (finding,) = verify_log(path).findings
    assert (finding.pos, finding.size, finding.first_offset) == (victim.pos, victim.size, 1)


def test_a_batch_inside_a_record_is_not_a_batch_of_the_log(path: Path) -> None:
    inner = bytes(encode_values([b"not of this log"], 5, base_offset=20))
    with embedlog.open(path) as log:
        log.create_topic("t")
        for number in range(10):
            log.append("t", inner * 3, timestamp_ms=number)
    segment = segments(path / "t_0")[0]
    victim = batches(segment)[4]
    flip(segment, victim.pos + victim.size - 2)
    (finding,) = verify_log(path).findings
    assert (finding.pos, finding.size, finding.last_offset) == (victim.pos, victim.size, 4)


def test_undecodable_records_are_found_by_deep_verify(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"good")
        batch = encode_values([b"a" * 40], 5)
        struct.pack_into(">i", batch, 57, 1)
        batch[61] = 0x7F  # the record says it is longer than it is
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        partition_of(log).append(batch)
        log.append("t", b"good as well")
    assert verify_log(path).ok
    report = verify_log(path, deep=True)
    (finding,) = report.findings
    assert (finding.kind, finding.first_offset, finding.last_offset) == (DAMAGE, 1, 1)


# -- kills ------------------------------------------------------------------------------------------------


def _compact(log: Log) -> None:
    store_of(log).cleaner.compact_partition(partition_of(log), None, store_of(log).cleaner.pace(), force=True)
    housekeep(store_of(log))


def _delete(log: Log) -> None:
    log.delete_records("t", 0, 30)
    housekeep(store_of(log))


@pytest.mark.slow
@pytest.mark.parametrize("work", [_compact, _delete])
def test_a_log_killed_during_compaction_or_deletion_is_valid(
    work: Callable[[Log], None], tmp_path: Path
) -> None:
    made, copy = tmp_path / "made", tmp_path / "copy"
    policy = "compact" if work is _compact else "delete"
    with open_log(made, segment_bytes=1024, cleanup_policy=policy, file_delete_delay_ms=0) as log:
        log.create_topic("t")
        for i in range(40):
            log.append("t", b"v%d" % i * 20, key=b"k%d" % (i % 3))
        partition_of(log).roll()
    kills = 0
    while True:
        shutil.copytree(made, copy)

        def until_killed(kills: int = kills) -> None:
            fs = FaultyFileSystem(copy)
            with open_log(copy, fs, segment_bytes=1024, cleanup_policy=policy, file_delete_delay_ms=0) as log:
                fs.calls.clear()
                fs.exit_before = kills
                work(log)
                crash(log)

        status = in_child(until_killed)
        assert status in (0, 77)
        assert verify_log(copy).findings == (), kills
        open_log(copy, cleanup_policy=policy).close()
        assert verify_log(copy).findings == (), kills
        shutil.rmtree(copy)
        if status == 0:
            break
        kills += 1
    assert kills > 20


# -- missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "lost"), [(0, (0, 71)), (1, (72, 143)), (3, (216, 287)), (4, (288, 299))])
def test_a_missing_segment(path: Path, number: int, lost: tuple[int, int]) -> None:
    directory = make_log(path)
    segments(directory)[number].unlink()
    (finding,) = verify_log(path).findings
    assert (finding.kind, finding.first_offset, finding.last_offset) == (DAMAGE, *lost)
    assert finding.records_lost == lost[1] - lost[0] + 1


def test_an_empty_directory(path: Path) -> None:
    directory = make_log(path)
    for segment in segments(directory):
        segment.unlink()
    found = verify_log(path).findings
    assert {finding.kind for finding in found} == {DAMAGE}
    assert [finding.first_offset for finding in found] == [0, 72, 144, 216, 288]
    assert [finding.last_offset for finding in found] == [71, 143, 215, 287, 299]
    (directory / "segment-manifest").unlink()
    (finding,) = verify_log(path).findings
    assert (finding.kind, finding.first_offset, finding.last_offset) == (DAMAGE, 0, 299)
    shutil.rmtree(directory)
    (finding,) = verify_log(path).findings
    assert "directory is missing" in finding.reason


@pytest.mark.parametrize("number", [0, 4])
def test_a_segment_cut_short_anywhere(path: Path, number: int) -> None:
    directory = make_log(path)
    segment = segments(directory)[number]
    whole = segment.read_bytes()
    found = batches(segment)
    behind = found[-1].next_offset
    for size in [0, 1, found[1].pos - 1, found[1].pos, found[1].pos + 13, len(whole) - 1]:
        segment.write_bytes(whole[:size])
        intact = [header for header in found if header.pos + header.size <= size]
        lost = intact[-1].next_offset if intact else found[0].base_offset
        damage = [finding for finding in verify_log(path).findings if finding.kind != INDEX_FAULT]
        assert [(f.kind, f.first_offset, f.last_offset) for f in damage] == [(DAMAGE, lost, behind - 1)]
        assert damage[0].pos == (intact[-1].pos + intact[-1].size if intact else 0)


def test_allowed_gaps(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("t")
        store_of(log).mark_gaps("t")
        for offset in (5, 6, 100, 7_000_000_000):
            partition_of(log).append_as_is(encode_values([b"v"], 5, base_offset=offset))
    report = verify_log(path, deep=True)
    assert (report.findings, report.records) == ((), 4)


# -- tails ---------------------------------------------------------------------------------------------


def test_a_torn_tail_after_a_crash_is_not_damage(path: Path) -> None:
    log = open_log(path)
    log.create_topic("t")
    log.append("t", value(1), flush=True)
    housekeep(store_of(log))
    log.append("t", value(2))
    crash(log)
    (path / "writer-state").unlink()  # what a reboot leaves of it is not to be relied on
    segment = segments(path / "t_0")[0]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-5])
    report = verify_log(path)
    (finding,) = report.findings
    assert (finding.kind, finding.pos) == (TORN_TAIL, batches_behind(whole))
    assert report.ok
    with open_log(path) as log:
        assert [r.value for r in log.read("t")] == [value(1)]
    after = verify_log(path)
    assert after.findings == ()
    assert [leftover.what for leftover in after.leftovers] == ["bytes that recovery or repair set aside"]


def batches_behind(data: bytes) -> int:
    return 12 + int(struct.unpack_from(">i", data, 8)[0])


def test_valid_batches_after_a_torn_one_are_damage(path: Path) -> None:
    log = open_log(path)
    log.create_topic("t")
    for number in range(5):
        log.append("t", value(number))
    crash(log)
    segment = segments(path / "t_0")[0]
    victim = batches(segment)[2]
    flip(segment, victim.pos + 80)
    (finding,) = verify_log(path).findings
    assert (finding.kind, finding.first_offset, finding.last_offset) == (DAMAGE, 2, 2)


# -- indexes and checkpoints -------------------------------------------------------------------------------


def test_damaged_indexes(path: Path) -> None:
    directory = make_log(path)
    first = segments(directory)[0]
    for suffix, damage, reason in [
        (".index", lambda data: data[:4] + struct.pack(">I", 276) + data[8:], "inside a batch"),
        (".index", lambda data: struct.pack(">I", 0) + data[4:], "there is"),
        (".index", lambda data: data[::-1], "not in order|past"),
        (".index", lambda data: data + struct.pack(">II", 71, 1 << 30), "past the segment's end"),
        (".timeindex", lambda data: struct.pack(">q", 7) + data[8:], "says 7 is the largest"),
        (".timeindex", lambda data: data[12:24] + data[:12], "not in order"),
    ]:
        index = first.with_suffix(suffix)
        good = index.read_bytes()
        index.write_bytes(damage(good))
        (finding,) = verify_log(path).findings
        assert (finding.kind, finding.path) == (INDEX_FAULT, str(index))
        assert any(part in finding.reason for part in reason.split("|")), finding.reason
        index.unlink()
        (finding,) = verify_log(path).findings
        assert (finding.kind, finding.path, finding.reason) == (INDEX_FAULT, str(index), "missing")
        index.write_bytes(good)
        assert verify_log(path).findings == ()


def test_an_index_is_judged_around_damage(path: Path) -> None:
    directory = make_log(path)
    for segment in segments(directory):
        flip(segment, batches(segment)[4].pos + 70)
    assert {finding.kind for finding in verify_log(path).findings} == {DAMAGE}


def test_damaged_checkpoints(path: Path) -> None:
    directory = make_log(path)
    for file, text, kind in [
        (path / "recovery-point-offset-checkpoint", b"0\n1\nt 0 400\n", DAMAGE),
        (path / "recovery-point-offset-checkpoint", b"noise", CHECKPOINT),
        (path / "log-start-offset-checkpoint", b"0\n1\nt zero 3\n", CHECKPOINT),
        (directory / "leader-epoch-checkpoint", b"0\n1\n0 x\n", CHECKPOINT),
        (directory / "leader-epoch-checkpoint", b"0\n2\n0 0\n1 900\n", CHECKPOINT),
        (directory / "00000000300.snapshot", b"noise", CHECKPOINT),
        (directory / "00000000000.txnindex", b"\1" * 34, CHECKPOINT),
    ]:
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(text)
        found = verify_log(path).findings
        assert [finding.kind for finding in found] == [kind], (file, found)
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
    (directory / "leader-epoch-checkpoint").unlink()
    assert [(f.kind, f.reason) for f in verify_log(path).findings] == [(CHECKPOINT, "missing")]


def test_leftovers_are_reported(path: Path) -> None:
    directory = make_log(path)
    for name in ["00000000000.kafka.deleted", "a.cut", "00000000072.kafka.cleaned", "x.recovering", "y.tmp"]:
        (directory / name).write_bytes(b"12345")
    report = verify_log(path)
    assert report.ok
    assert sorted(os.path.basename(leftover.path) for leftover in report.leftovers) == sorted(
        ["00000000000.kafka.deleted", "a.cut", "00000000072.kafka.cleaned", "x.recovering", "y.tmp"]
    )
    assert {leftover.size for leftover in report.leftovers} == {5}


# -- while it is written -----------------------------------------------------------------------------------


class Looking(FileSystem):
    """Verifies a log after each change of its names, as if its writer stopped there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.looks = 0
        self.findings: list[str] = []

    def rename(self, source: str, destination: str) -> None:
        super().rename(source, destination)
        self._look(destination)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._look(path)

    def _look(self, name: str) -> None:
        if "c_0" in name:
            self.looks += 1
            report = verify_log(self._path, deep=True)
            self.findings += [f"behind {os.path.basename(name)}: {finding}" for finding in report.findings]


def test_a_running_compaction_is_not_damage(path: Path) -> None:
    with embedlog.open(path, file_delete_delay_ms=0) as log:
        log.create_topic("c", segment_bytes=2_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        for number in range(100):
            log.append("c", value(number), key=b"%d" % (number % 7))
    fs = Looking(path)
    with embedlog.open(path, fs=fs) as log:
        fs.looks = 0
        log.compact("c")
        housekeep(log._writer())
    assert fs.findings == []
    assert fs.looks > 20


@pytest.mark.slow
def test_a_live_log(path: Path) -> None:
    """Appends, rolls, deletions and compactions go on while it is read, again and again."""
    done = threading.Event()
    written: list[int] = []
    with embedlog.open(path, file_delete_delay_ms=0) as log:
        log.create_topic("t", segment_bytes=5_000, index_interval_bytes=300)
        log.create_topic("c", segment_bytes=5_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)

        def write() -> None:
            while not done.is_set():
                for _ in range(20):
                    written.append(number := len(written))
                    log.append("t", value(number))
                    log.append("c", value(number), key=b"%d" % (number % 5))
                if number % 400 == 0:
                    edges = log.offsets("t")[0]
                    log.delete_records("t", 0, edges.log_end_offset - 50)
                    log.compact("c")
                    housekeep(log._writer())

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while len(written) < 4_000 and writer.is_alive():
                assert verify_log(path, deep=True).findings == ()
        finally:
            done.set()
            writer.join()
        assert len(written) >= 4_000
    assert verify_log(path, deep=True).findings == ()


def test_no_byte_past_the_published_end_is_judged(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"published")
    (segment,) = partition_of(log).segments()
    with open(segment.path, "ab") as file:
        file.write(b"an append that is being written")
    report = verify_log(log.path)
    assert (report.findings, report.records) == ((), 1)
    os.truncate(segment.path, segment.size)


@pytest.mark.parametrize("clean", [True, False])
def test_bytes_behind_the_last_batch_are_named_until_they_are_cut(path: Path, clean: bool) -> None:
    log = open_log(path)
    log.create_topic("t")
    log.append("t", value(1), flush=True)
    if clean:
        log.close()
    else:
        crash(log)
    (segment,) = segments(path / "t_0")
    end = batches_behind(segment.read_bytes())
    os.truncate(segment, end + 4096)  # zeros, as they are written ahead of appends
    assert verify_log(path).leftovers == ()
    with open(segment, "r+b") as file:
        file.seek(end)
        file.write(b"garbage!" * 8)
    report = verify_log(path)
    (leftover,) = report.leftovers
    assert (leftover.path, leftover.size) == (str(segment), 64)
    assert leftover.what.startswith("after the last batch: an unfinished append")
    assert (report.ok, report.findings, report.records) == (True, (), 1)
    with open_log(path) as log:
        assert [record.value for record in log.read("t")] == [value(1)]
    assert not any(leftover.what.startswith("behind") for leftover in verify_log(path).leftovers)


def test_an_append_that_is_under_way_is_no_leftover(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end has moved by the time that the bytes behind it have been read."""
    log.create_topic("t")
    log.append("t", value(1))
    (segment,) = partition_of(log).segments()
    read = Segment.pread

    def meanwhile(self: Segment, size: int, pos: int) -> bytes:
        data = read(self, size, pos)
        if pos:
            os.truncate(segment.path, segment.size)
            log.append("t", value(2))
        return data

    with open(segment.path, "ab") as file:
        file.write(b"the first bytes of a batch")
    monkeypatch.setattr(Segment, "pread", meanwhile)
    assert verify_log(log.path).leftovers == ()


def test_damage_in_internal_topics_is_told_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With its place and what to do, once, although the work is tried again and again."""
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        for name in ("t", "gone"):
            log.create_topic(name)
        for _ in range(2):
            with log.transaction("writer") as transaction:
                transaction.append("t", b"x")
            with log.consumer("t", group="g") as consumer:
                next(iter(consumer))
                consumer.commit()
    for topic in ("__transaction_state", "__consumer_offsets"):
        (file,) = [each for each in path.glob(f"{topic}_*/*.kafka") if each.stat().st_size > 100]
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    with embedlog.open(path) as log:
        log.delete_topic("gone")
        while not log.health().failing:  # the background tries to end transactions
            threading.Event().wait(0.01)
    assert {record.exc_info for record in caplog.records} == {None}
    lines = caplog.messages
    assert len([line for line in lines if line.startswith("running transactions: ")]) == 1
    assert any("the deleted topic gone are still there: " in line for line in lines)
    for line in lines:
        assert line.endswith(f"embedlog verify {path} --deep tells how much is damaged, and what can be done")


def test_damage_is_told_once_until_it_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    failures = BackgroundFailures()
    for is_damaged in (True, True, False, True):
        with failures.tolerated("cleaning", "t 0", CorruptRecord):
            if is_damaged:
                raise CorruptRecord("bad", path="/logs/data/t_0/0.kafka")
    assert [line.partition(";")[2] for line in caplog.messages] == [
        " embedlog verify /logs/data --deep tells how much is damaged, and what can be done"
    ] * 2
