"""The segment manifest: a missing segment is detected despite offset gaps, and a crash is not damage."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damage import batches, files, flip
from encoding import encode_values
from faults import (
    FaultyFileSystem,
    Image,
    PowerCutFileSystem,
    UnsyncedFileSystem,
    crash,
    in_child,
    open_log,
    partition_of,
    store_of,
)
from housekeeping import housekeep

import embedlog
from embedlog import Log
from embedlog.codec import assign_all
from embedlog.errors import CorruptCheckpoint, CorruptRecord, PartitionFailed
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import RECOVERY_POINT_FILE
from embedlog.model import TopicPartition
from embedlog.storage.checkpoints import read_offsets
from embedlog.storage.segment_manifest import SegmentManifest, Summary
from embedlog.store.repair import repair_partition
from embedlog.store.verify import CHECKPOINT, DAMAGE, verify_log

MANIFEST = "segment-manifest"
SETTINGS = {"segment_bytes": 1024, "file_delete_delay_ms": 0}
Work = Callable[[Log], None]


def fill(log: Log, first: int, end: int) -> None:
    for i in range(first, end):
        log.append("t", b"v%d" % i * 20, key=b"k%d" % (i % 5))


def compact(log: Log) -> None:
    cleaner = store_of(log).cleaner
    cleaner.compact_partition(partition_of(log), None, cleaner.pace(), force=True)


def plain(log: Log) -> None:
    log.create_topic("t", **SETTINGS)
    fill(log, 0, 60)


def compacted(log: Log) -> None:
    """Gaps everywhere, also where segments meet."""
    log.create_topic("t", cleanup_policy="compact", **SETTINGS)
    for first in range(0, 60, 20):
        for i in range(first, first + 20):
            log.append("t", b"v%d" % i * 20, key=b"%d k%d" % (first, i % 12))
        partition_of(log).roll()
        compact(log)
    fill(log, 60, 64)


def trimmed(log: Log) -> None:
    plain(log)
    log.delete_records("t", 0, 25)


def imported(log: Log) -> None:
    """Begins past 0, with gaps."""
    log.create_topic("t", **SETTINGS)
    store_of(log).mark_gaps("t")
    for offset in range(100, 400, 5):
        partition_of(log).append_as_is(batch(offset))


def batch(offset: int, value: bytes = b"imported" * 20) -> bytearray:
    made = bytearray(encode_values([value], timestamp_ms=1))
    assign_all(made, offset, 0)
    return made


MAKERS: list[Work] = [plain, compacted, trimmed, imported]


def make(path: Path, maker: Work, *, closed: bool = True) -> Path:
    """A log of several summarized segments; its partition's directory."""
    log = open_log(path)
    maker(log)
    log.flush()
    housekeep(store_of(log))
    log.close() if closed else crash(log)
    return path / "t_0"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.kafka"))


def listed(directory: Path) -> SegmentManifest:
    manifest = SegmentManifest(FileSystem(), str(directory))
    manifest.load()
    return manifest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


# -- what is listed --------------------------------------------------------------------------------------


def test_one_segment_needs_no_manifest(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("t", partitions=3)
        log.append("t", b"one", partition=0)
    assert not list(path.rglob(MANIFEST))


def test_an_append_never_writes_the_manifest(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        plain(log)
        housekeep(store_of(log))
        fs.calls.clear()
        fill(log, 60, 62)
        log.flush()
        assert not fs.count("rename", MANIFEST)
        partition_of(log).roll()
        assert not fs.count("rename", MANIFEST)
        housekeep(store_of(log))
        assert fs.count("rename", MANIFEST) == 2  # with the segment, and with what it holds


@pytest.mark.parametrize("maker", MAKERS)
def test_the_manifest_lists_the_sealed_segments(maker: Work, path: Path) -> None:
    directory = make(path, maker)
    *sealed, active = segments(directory)
    manifest = listed(directory)
    assert manifest.missing([], 0)[-1].base_offset == int(active.stem)
    assert sorted(manifest.summaries) == [int(each.stem) for each in sealed]
    for segment in sealed:
        found = batches(segment) if segment.stat().st_size else []
        summary = manifest.summaries[int(segment.stem)]
        assert summary[:2] == (segment.stat().st_size, len(found))
        assert summary.records == sum(header.record_count for header in found)
    report = verify_log(path, deep=True)
    assert report.findings == ()
    assert report.segments == len(sealed) + 1


def test_a_backup_has_its_own_manifest(path: Path, tmp_path: Path) -> None:
    make(path, compacted)
    with open_log(path) as log:
        log.backup(tmp_path / "copy")
    directory = tmp_path / "copy" / "t_0"
    assert listed(directory).summaries == listed(path / "t_0").summaries
    segments(directory)[1].unlink()
    (finding,) = verify_log(tmp_path / "copy").findings
    assert finding.kind == DAMAGE


# -- missing segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("number", [0, 1, -2, -1], ids=["first", "middle", "last", "active"])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.slow
def test_a_missing_segment_is_detected(maker: Work, number: int, closed: bool, path: Path) -> None:
    directory = make(path, maker, closed=closed)
    gone = segments(directory)[number]
    base = int(gone.stem)
    end = int(segments(directory)[number + 1].stem) if number != -1 else None
    for file in directory.glob(gone.stem + ".*"):
        file.unlink()
    (finding,) = verify_log(path).findings
    assert (finding.kind, finding.path, finding.first_offset) == (DAMAGE, str(gone), base)
    assert "the segment is missing" in finding.reason
    assert end is None or finding.last_offset == end - 1
    assert number == -1 or " bytes" in finding.reason
    with embedlog.open(path, mode="r") as log:
        refused(log, gone, base, end)
    before = files(directory)
    for _ in range(2):  # it stays so
        with open_log(path) as log:
            assert gone.name in log.recovery.damage[0]
            assert log.health().status == "degraded"
            with pytest.raises(PartitionFailed, match="embedlog repair"):
                log.append("t", b"new")
            refused(log, gone, base, end)
            housekeep(store_of(log))
    assert files(directory) == before

    assert [each[0] for each in repair_partition(path, "t", 0, dry_run=True).relisted] == [str(gone)]
    assert files(directory) == before
    report = repair_partition(path, "t", 0)
    assert [each[0] for each in report.relisted] == [str(gone)]
    assert report.changed
    assert report.offsets_gone or number == -1
    assert not repair_partition(path, "t", 0).changed
    with open_log(path) as log:
        assert not log.recovery.damage
        list(log.read("t", 0))
        fill(log, 100, 110)
        housekeep(store_of(log))
    assert verify_log(path).findings == ()


def test_a_missing_segment_leaves_the_recovery_point_where_it_was(path: Path) -> None:
    """What was appended since is not validated as long as it is missing, so it may end anywhere still."""

    def recovery_point() -> int:
        return read_offsets(FileSystem(), str(path / RECOVERY_POINT_FILE))[TopicPartition("t", 0)]

    log = open_log(path)
    plain(log)
    log.flush()
    housekeep(store_of(log))
    fill(log, 60, 63)
    crash(log)
    gone = segments(path / "t_0")[1]
    content = gone.read_bytes()
    gone.unlink()
    for _ in range(2):
        with open_log(path) as log:
            assert gone.name in log.recovery.damage[0]
            assert log.offsets("t")[0].log_end_offset == 63
        assert recovery_point() == 60
    gone.write_bytes(content)
    active = segments(path / "t_0")[-1]
    active.write_bytes(active.read_bytes()[:-1])
    with open_log(path) as log:
        assert log.recovery.damage == []
        assert log.append("t", b"new").offset == 62


def refused(log: Log, gone: Path, base: int, end: int | None) -> None:
    """Reading stops at the missing segment; past it, it works."""
    got = []
    with pytest.raises(CorruptRecord, match="the segment is missing") as caught:
        got.extend(record.offset for record in log.read("t", 0))
    assert caught.value.path == str(gone)
    assert all(offset < base for offset in got)
    offsets = log.offsets("t")[0]
    assert end is None or offsets.log_start_offset < end
    if end is not None:
        behind = [record.offset for record in log.read("t", 0, start=end)]
        assert behind
        assert min(behind) >= end


def test_a_missing_segment_of_commits_is_detected(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("t")
        fill(log, 0, 10)
        with log.consumer("t", group="g", auto_commit=False) as consumer:
            consumer.poll()
            consumer.commit()
        kept = next(
            partition
            for partition in store_of(log).partitions_of("__consumer_offsets")
            if partition.offsets().log_end_offset
        )
        kept.roll()
        directory = Path(kept.directory)
    segments(directory)[0].unlink()
    assert not verify_log(path).ok
    with open_log(path) as log:
        assert log.recovery.damage
        assert log.health().status == "degraded"


def test_all_segments_missing(path: Path) -> None:
    directory = make(path, compacted)
    for segment in segments(directory):
        segment.unlink()
    with open_log(path) as log:
        assert "also missing: " in log.recovery.damage[0]
        with pytest.raises(CorruptRecord):
            list(log.read("t", 0))
    repair_partition(path, "t", 0)
    with open_log(path) as log:
        assert not log.recovery.damage
        fill(log, 0, 1)


# -- other contents --------------------------------------------------------------------------------------


def test_a_base_offset_moved_within_a_gap_is_found(path: Path) -> None:
    directory = make(path, imported)
    segment = segments(directory)[1]
    victim = batches(segment)[2]
    with segment.open("r+b") as file:
        file.seek(victim.pos)
        file.write(struct.pack(">q", victim.base_offset + 2))
    differs(path, segment)


def test_an_older_version_of_a_batch_is_found(path: Path) -> None:
    directory = make(path, imported)
    segment = segments(directory)[1]
    victim = batches(segment)[2]
    older = batch(victim.base_offset, b"IMPORTED" * 20)
    assert len(older) == victim.size
    with segment.open("r+b") as file:
        file.seek(victim.pos)
        file.write(older)
    differs(path, segment)


def test_a_segment_that_lost_its_last_batch_in_a_gap_is_found(path: Path) -> None:
    directory = make(path, imported)
    segment = segments(directory)[1]
    with segment.open("r+b") as file:
        file.truncate(batches(segment)[-1].pos)
    with open_log(path) as log:
        partition_of(log).segments()[1].rebuild_indexes()
    differs(path, segment)


def differs(path: Path, segment: Path) -> None:
    (finding,) = verify_log(path, deep=True).findings
    assert (finding.kind, finding.path) == (DAMAGE, str(segment))
    assert "sealed with" in finding.reason or "when it was sealed" in finding.reason
    report = repair_partition(path, "t", 0)
    assert report.relisted == ((str(segment), finding.reason),)
    assert not report.set_aside
    with open_log(path) as log:
        assert not log.recovery.damage
        housekeep(store_of(log))
    assert verify_log(path, deep=True).findings == ()
    assert not repair_partition(path, "t", 0).changed


def test_a_damaged_segment_is_not_listed(path: Path) -> None:
    with open_log(path) as log:
        compacted(log)
        partition = partition_of(log)
        victim = Path(partition.segments()[0].path)
        flip(victim, batches(victim)[1].pos + 70)
        for _ in range(2):
            housekeep(store_of(log))
        assert partition.segments()[0].base_offset not in partition.log.manifest.summaries
        assert len(partition.log.manifest.summaries) == len(partition.segments()) - 2


# -- the file --------------------------------------------------------------------------------------------


def test_any_flip_in_the_manifest_is_detected_and_repaired(path: Path) -> None:
    directory = make(path, compacted)
    file = directory / MANIFEST
    whole = file.read_bytes()
    for pos in range(len(whole)):
        flip(file, pos, 1 << pos % 8)
        with pytest.raises(CorruptCheckpoint):
            listed(directory)
        flip(file, pos, 1 << pos % 8)
    for damage in (b"", whole[:-1], whole[:30], whole + b"\n", whole.replace(b"0\n", b"1\n", 1)):
        file.write_bytes(damage)
        (finding,) = verify_log(path).findings
        assert (finding.kind, finding.path) == (CHECKPOINT, str(file))
        with open_log(path) as log:
            assert not log.recovery.damage
        assert verify_log(path).findings == ()


@pytest.mark.parametrize(
    "lines",
    [
        [b"-5"],
        [b"%d" % (1 << 63)],
        [b"9" * 5000],
        [b"5 - - - -", b"3 - - - -", b"9"],
        [b"3 - - - -", b"3 - - - -", b"9"],
        [b"9 - - - -", b"9"],
        [b"0 %d 1 1 0" % (1 << 63), b"9"],
        [b"0 -1 1 1 0", b"9"],
    ],
)
def test_an_impossible_manifest_is_rebuilt(lines: list[bytes], path: Path) -> None:
    directory = make(path, compacted)
    text = b"\n".join([b"0", b"%d" % len(lines), *lines, b""])
    (directory / MANIFEST).write_bytes(text + b"crc32 %08x\n" % zlib.crc32(text))
    (finding,) = verify_log(path).findings
    assert finding.kind == CHECKPOINT
    with open_log(path) as log:
        assert not log.recovery.damage
    assert verify_log(path).findings == ()


def test_a_manifest_of_an_older_version_is_rebuilt(path: Path) -> None:
    directory = make(path, compacted)
    older = (directory / MANIFEST).read_bytes()
    with open_log(path) as log:
        fill(log, 100, 130)
        partition_of(log).roll()
        compact(log)
    (directory / MANIFEST).write_bytes(older)  # that version knew nothing of it
    writer = json.loads((path / "writer.json").read_bytes())
    del writer["segment_manifests"]
    (path / "writer.json").write_text(json.dumps(writer))
    assert verify_log(path).findings == ()
    with embedlog.open(path, mode="r") as log:
        expected = list(log.read("t", 0))
    fs = FaultyFileSystem(path)
    fs.exit_before = 5  # killed while it opens: nothing is trusted yet
    assert in_child(lambda: open_log(path, fs)) == 77
    with open_log(path) as log:
        assert not log.recovery.damage
        assert list(log.read("t", 0)) == expected
        housekeep(store_of(log))
    assert [int(each.stem) for each in segments(directory)[:-1]] == sorted(listed(directory).summaries)
    segments(directory)[0].unlink()
    assert not verify_log(path).ok


def as_version_0(directory: Path) -> None:
    """Summaries with the CRC-32 of the file, as they were first."""
    *sealed, active = segments(directory)
    summaries = listed(directory).summaries
    lines = [
        f"{int(each.stem)} {noted.size} {noted.batches} {noted.records} {zlib.crc32(each.read_bytes()):08x}"
        for each in sealed
        for noted in (summaries[int(each.stem)],)
    ]
    text = "\n".join(["0", str(len(lines) + 1), *lines, str(int(active.stem)), ""]).encode()
    (directory / MANIFEST).write_bytes(text + b"crc32 %08x\n" % zlib.crc32(text))


def test_a_manifest_with_the_crcs_of_files_is_kept(path: Path) -> None:
    directory = make(path, compacted)
    as_version_0(directory)
    before = listed(directory).summaries
    assert before
    assert all(each.of_file for each in before.values())
    assert verify_log(path).findings == ()
    with open_log(path) as log:
        fill(log, 100, 130)
        partition_of(log).roll()
        housekeep(store_of(log))
    after = listed(directory).summaries
    assert after[0]._replace(times=None) == before[0]
    assert not all(each.of_file for each in after.values())
    assert verify_log(path).findings == ()


def test_a_wrong_digest_of_either_kind_is_found(path: Path) -> None:
    """The batches are valid, but not those that were sealed."""
    directory = make(path, compacted)
    good = (directory / MANIFEST).read_bytes()
    as_version_0(directory)
    for text in (good, (directory / MANIFEST).read_bytes()):
        version, count, first, *others, _ = text.decode().removesuffix("\n").split("\n")
        parts = first.split(" ")
        parts[4] = f"{int(parts[4], 16) ^ 1:08x}"
        first = " ".join(parts)
        changed = "\n".join([version, count, first, *others, ""]).encode()
        (directory / MANIFEST).write_bytes(changed + b"crc32 %08x\n" % zlib.crc32(changed))
        (finding,) = verify_log(path).findings
        assert finding.kind == DAMAGE
        assert "not those that it was sealed with" in finding.reason
        (directory / MANIFEST).write_bytes(text)
        assert verify_log(path).findings == ()


def test_a_directory_without_a_manifest_gets_one(path: Path) -> None:
    directory = make(path, compacted)
    (directory / MANIFEST).unlink()
    assert verify_log(path).findings == ()
    with embedlog.open(path, mode="r") as log:
        list(log.read("t", 0))
    open_log(path).close()
    assert listed(directory).summaries == {}
    with open_log(path) as log:
        housekeep(store_of(log))
    assert all(isinstance(each, Summary) for each in listed(directory).summaries.values())
    assert len(listed(directory).summaries) == len(segments(directory)) - 1


def test_an_unwritable_manifest_does_not_refuse_appends(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("t", **SETTINGS)
        fs.fail("create", 28, path=MANIFEST, times=1 << 30)
        fill(log, 0, 30)
        log.delete_records("t", 0, 10)
        assert not list((path / "t_0").glob(MANIFEST))
        fs.forget()
        partition_of(log).roll()
    directory = path / "t_0"
    assert listed(directory).missing([int(each.stem) for each in segments(directory)], 0) == []
    assert verify_log(path).findings == ()


# -- kills -----------------------------------------------------------------------------------------------


def rolls(log: Log) -> None:
    fill(log, 200, 212)
    partition_of(log).roll()


def deletes(log: Log) -> None:
    log.delete_records("t", 0, 33)
    housekeep(store_of(log))


def compacts(log: Log) -> None:
    fill(log, 200, 206)
    partition_of(log).roll()
    compact(log)
    housekeep(store_of(log))


def reopens(log: Log) -> None:
    """A flush fails: the appended records are rewritten."""
    partition = partition_of(log)
    fill(log, 200, 203)
    partition.log.fail("a test says so")
    log.reopen("t", 0)


WORKS = [
    (trimmed, rolls),
    (trimmed, deletes),
    (compacted, rolls),
    (compacted, deletes),
    (compacted, compacts),
]
WORKS += [(compacted, reopens)]


class Photographing(PowerCutFileSystem):
    """Keeps what a power cut before each call would leave."""

    noting: list[tuple[str, str, Image]] | None = None

    def _note(self, operation: str, path: str) -> None:
        if self.noting is not None:
            self.noting.append((operation, path, self.image()))
        super()._note(operation, path)


@contextlib.contextmanager
def at_work(path: Path, fs: FileSystem) -> Iterator[Log]:
    log = open_log(path, fs)
    yield log
    crash(log)


def looks_healthy(path: Path) -> None:
    report = verify_log(path)
    assert report.ok, report.findings
    with open_log(path, UnsyncedFileSystem()) as log:
        assert not log.recovery.damage
        list(log.read("t", 0))
    report = verify_log(path)
    assert report.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "work"), WORKS)
def test_a_kill_at_any_step_is_not_damage(maker: Work, work: Work, tmp_path: Path) -> None:
    made, copy = tmp_path / "made", tmp_path / "copy"
    make(made, maker)
    kills = 0
    while True:
        shutil.copytree(made, copy)

        def until_killed(kills: int = kills) -> None:
            fs = FaultyFileSystem(copy)
            with at_work(copy, fs) as log:
                fs.calls.clear()
                fs.exit_before = kills
                work(log)

        status = in_child(until_killed)
        assert status in (0, 77)
        looks_healthy(copy)
        shutil.rmtree(copy)
        if status == 0:
            break
        kills += 1
    assert kills > 5


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "work"), WORKS)
def test_a_power_cut_at_any_step_is_not_damage(maker: Work, work: Work, tmp_path: Path) -> None:
    made, fs = tmp_path / "made", Photographing(tmp_path / "made")
    log = open_log(made, fs)
    maker(log)
    log.flush()
    housekeep(store_of(log))
    log.close()
    images: list[tuple[str, str, Image]] = []
    with at_work(made, fs) as log:
        fs.noting = images
        work(log)
    assert len(images) > 5
    for number, (operation, name, image) in enumerate(images):
        image.write(tmp_path / "cut")
        with open_log(tmp_path / "cut", UnsyncedFileSystem()) as log:
            assert not log.recovery.damage, (number, operation, name)
            list(log.read("t", 0))
        assert verify_log(tmp_path / "cut").findings == (), (number, operation, name)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_repair_that_is_killed_ends_the_same(number: int, tmp_path: Path) -> None:
    made, copy = tmp_path / "made", tmp_path / "copy"
    directory = make(made, compacted)
    segments(directory)[number].unlink()
    victim = segments(directory)[0]
    flip(victim, batches(victim)[1].pos + 70)
    kills = 0
    while True:
        shutil.copytree(made, copy)

        def until_killed(kills: int = kills) -> None:
            fs = FaultyFileSystem(copy)
            fs.exit_before = kills
            repair_partition(copy, "t", 0, fs=fs)

        status = in_child(until_killed)
        assert status in (0, 77)
        repair_partition(copy, "t", 0)
        looks_healthy(copy)
        shutil.rmtree(copy)
        if status == 0:
            break
        kills += 1
    assert kills > 5
