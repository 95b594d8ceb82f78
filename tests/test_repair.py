"""Repair: damage is set aside, everything else is unchanged, and appends work again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from damage import RECORDS, batches, files, flip, make_log, segments, value
from faults import FaultyFileSystem, crash, in_child, open_log, partition_of, store_of
from housekeeping import housekeep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import Log
from embedlog.errors import (
    CorruptRecord,
    DirectoryLocked,
    LogTruncated,
    PartitionFailed,
    PartitionNotFound,
    TopicNotFound,
)
from embedlog.files.filesystem import FileSystem
from embedlog.model import TopicPartition
from embedlog.storage.checkpoints import read_offsets
from embedlog.store.repair import RepairReport, repair_partition
from embedlog.store.verify import TORN_TAIL, verify_log

pytestmark = pytest.mark.plain

T0 = TopicPartition("t", 0)


def repaired(path: Path) -> RepairReport:
    """Repair, and check what must hold after any repair."""
    before = files(path)
    planned = repair_partition(path, "t", 0, dry_run=True)
    assert files(path) == before
    report = repair_partition(path, "t", 0)
    assert report._replace(dry_run=True, segments_rewritten=0, set_aside=()) == planned._replace(set_aside=())
    assert [cut._replace(cut_path="") for cut in report.set_aside] == list(planned.set_aside)
    for cut in report.set_aside:
        was = before[os.path.relpath(cut.segment, path)]
        assert Path(cut.cut_path).read_bytes() == was[cut.pos : cut.pos + cut.size]
    assert verify_log(path, deep=True).findings == ()
    after = files(path)
    assert not repair_partition(path, "t", 0).changed
    assert files(path) == after
    return report


def offsets_of(log: Log) -> list[int]:
    found = []
    for record in log.read("t", 0):
        assert record.value == value(record.offset)
        found.append(record.offset)
    return found


def without(*lost: range) -> list[int]:
    return [offset for offset in range(RECORDS) if not any(offset in span for span in lost)]


# -- damage and what is left -------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [8, 11, 16, 18, 22, 26, 40, 60, 80, -1])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_damaged_batch_is_set_aside(path: Path, number: int, byte: int) -> None:
    directory = make_log(path)
    segment = segments(directory)[number]
    victim = batches(segment)[3]
    flip(segment, victim.pos + byte % victim.size)
    report = repaired(path)
    (cut,) = report.set_aside
    assert (cut.segment, cut.pos, cut.size) == (str(segment), victim.pos, victim.size)
    assert report.offsets_gone == ((victim.base_offset, victim.base_offset),)
    assert (report.log_start_offset, report.log_end_offset, report.segments_rewritten) == (0, RECORDS, 1)
    with embedlog.open(path) as log:
        assert log.health().status == "ok"
        assert offsets_of(log) == without(range(victim.base_offset, victim.base_offset + 1))
        assert log.append("t", value(RECORDS)).offset == RECORDS
        assert offsets_of(log)[-1] == RECORDS
        if number < 4:
            assert (
                log.offset_for_time("t", 0, 1_000_000 + victim.base_offset).offset == victim.base_offset + 1
            )
    assert verify_log(path, deep=True).findings == ()


@pytest.mark.parametrize(("byte", "what"), [(7, "base offset"), (1, "base offset"), (15, "leader epoch")])
def test_a_wrong_base_offset_is_corrected_without_loss(path: Path, byte: int, what: str) -> None:
    directory = make_log(path)
    intact = files(path)
    segment = segments(directory)[1]
    victim = batches(segment)[3]
    flip(segment, victim.pos + byte)
    report = repaired(path)
    (label,) = report.relabelled
    assert (label.pos, label.first_offset, label.last_offset) == (victim.pos, 75, 75)
    assert (report.set_aside, report.offsets_gone) == ((), ())
    assert segment.read_bytes() == intact[os.path.relpath(segment, path)]
    with embedlog.open(path) as log:
        assert offsets_of(log) == without()


@pytest.mark.parametrize("byte", [0, 1, 7])
def test_a_wrong_offset_and_a_wrong_epoch_in_one_partition(path: Path, byte: int) -> None:
    """Whether the epochs contradict the history is asked of a batch too whose offset cannot be there."""
    directory = make_log(path)
    first, second = segments(directory)[:2]
    flip(first, batches(first)[0].pos + byte)
    flip(second, batches(second)[1].pos + 15)
    report = repaired(path)
    assert len(report.relabelled) == 2
    assert report.offsets_gone == ()
    with embedlog.open(path) as log:
        assert offsets_of(log) == without()


def test_a_wrong_epoch_file_is_rebuilt(path: Path) -> None:
    directory = make_log(path)
    history = directory / "leader-epoch-checkpoint"
    for text in (b"0\n1\n3 0\n", b"noise", None):
        if text is None:
            history.unlink()
        else:
            history.write_bytes(text)
        assert not verify_log(path).ok
        repaired(path)
        assert history.read_bytes() == b"0\n1\n0 0\n"


def test_what_is_lost_is_reported_once_if_the_epoch_file_is_wrong_too(path: Path) -> None:
    directory = make_log(path)
    gone = segments(directory)[2]
    first, behind = batches(gone)[0].base_offset, batches(gone)[-1].next_offset
    gone.unlink()
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n1\n3 0\n")
    report = repaired(path)
    assert report.offsets_gone == ((first, behind - 1),)
    assert report.relabelled == ()
    with embedlog.open(path) as log:
        assert offsets_of(log) == without(range(first, behind))


@pytest.mark.parametrize("number", range(5))
def test_a_missing_segment_is_accepted(path: Path, number: int) -> None:
    directory = make_log(path)
    gone = segments(directory)[number]
    first, behind = batches(gone)[0].base_offset, batches(gone)[-1].next_offset
    gone.unlink()
    report = repaired(path)
    assert report.offsets_gone == ((first, behind - 1),)
    assert report.set_aside == ()
    with embedlog.open(path) as log:
        assert offsets_of(log) == without(range(first, behind))
        assert log.offsets("t")[0].log_start_offset == (behind if number == 0 else 0)
        assert log.append("t", b"new").offset == (first if number == 4 else RECORDS)


def test_nothing_left_at_all(path: Path) -> None:
    directory = make_log(path)
    shutil.rmtree(directory)
    report = repaired(path)
    assert report.offsets_gone == ((0, RECORDS - 1),)
    with embedlog.open(path) as log:
        assert offsets_of(log) == []
        assert log.append("t", b"new").offset == RECORDS  # no offset is given twice


def test_a_missing_tail_is_accepted_and_reported_to_readers(path: Path) -> None:
    directory = make_log(path)
    with embedlog.open(path) as log, log.consumer("t", group="g", auto_commit=False) as consumer:
        while len(got := consumer.poll(timeout_ms=1000, max_records=1000)) and got[-1].offset < RECORDS - 1:
            pass
        consumer.commit()
    last = segments(directory)[-1]
    kept = batches(last)[3]
    with last.open("r+b") as file:
        file.truncate(kept.pos + kept.size + 20)
    report = repaired(path)
    assert report.log_end_offset == kept.next_offset
    assert report.offsets_gone == ((kept.next_offset, RECORDS - 1),)
    assert [cut.size for cut in report.set_aside] == [20]
    fs = FileSystem()
    assert read_offsets(fs, str(path / "recovery-point-offset-checkpoint"))[T0] == 288
    with embedlog.open(path) as log:
        for number in range(kept.next_offset, RECORDS + 10):
            assert log.append("t", value(number)).offset == number
        assert offsets_of(log) == list(range(RECORDS + 10))
        with (
            log.consumer("t", group="g", auto_offset_reset="error") as consumer,
            pytest.raises(LogTruncated) as caught,
        ):
            consumer.poll(timeout_ms=1000)
        assert caught.value.surviving_offset == kept.next_offset
        assert partition_of(log).log.leader_epoch == 1


def test_a_good_partition_is_left_alone(path: Path) -> None:
    make_log(path)
    report = repaired(path)
    assert not report.changed
    assert not verify_log(path).leftovers
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert not store_of(log).topic("t").gaps


def test_a_torn_tail_past_the_recovery_point(path: Path) -> None:
    log = open_log(path)
    log.create_topic("t")
    log.append("t", value(0), flush=True)
    housekeep(store_of(log))
    log.append("t", value(1))
    log.append("t", value(2))
    crash(log)
    segment = segments(path / "t_0")[0]
    os.truncate(segment, segment.stat().st_size - 9)
    (finding,) = verify_log(path).findings
    assert finding.kind == TORN_TAIL
    report = repaired(path)
    assert len(report.set_aside) == 1
    assert report.offsets_gone == ()  # they were never durable
    with embedlog.open(path) as log:
        assert offsets_of(log) == [0, 1]
        assert not store_of(log).topic("t").gaps


def test_wrong_indexes_are_rebuilt(path: Path) -> None:
    directory = make_log(path)
    first = segments(directory)[0]
    first.with_suffix(".timeindex").write_bytes(b"\0" * 7 + b"\7" + b"\0\0\0\1")
    first.with_suffix(".index").unlink()
    assert not verify_log(path).ok
    repaired(path)


@pytest.mark.slow
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_can_be_repaired(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("repair") / "log"
    shutil.copytree(_shared(tmp_path_factory), path)
    for _ in range(data.draw(st.integers(1, 4))):
        found = segments(path / "t_0")
        segment = data.draw(st.sampled_from(found))
        size = segment.stat().st_size
        kind = data.draw(st.sampled_from(["flip", "cut", "zeros", "garbage", "unlink"]))
        if kind == "unlink":
            if len(found) > 1:
                segment.unlink()
            continue
        if not size:
            continue
        pos = data.draw(st.integers(0, size - 1))
        length = min(data.draw(st.integers(1, 2_000)), size - pos)
        if kind == "flip":
            flip(segment, pos)
        elif kind == "cut":
            os.truncate(segment, pos)
        else:
            filling = bytes(length) if kind == "zeros" else os.urandom(length)
            whole = bytearray(segment.read_bytes())
            whole[pos : pos + length] = filling
            segment.write_bytes(whole)
    report = repaired(path)
    gone = [range(first, last + 1) for first, last in report.offsets_gone]
    with embedlog.open(path) as log:
        assert offsets_of(log) == without(*gone)
        assert log.append("t", value(0)).offset == report.log_end_offset
    assert verify_log(path, deep=True).findings == ()
    shutil.rmtree(path.parent)


_made: list[Path] = []


def _shared(factory: pytest.TempPathFactory) -> Path:
    if not _made:
        _made.append(factory.mktemp("shared") / "log")
        make_log(_made[0])
    return _made[0]


# -- promises ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_each_step_and_run_again(path: Path, tmp_path: Path) -> None:
    directory = make_log(path)
    for segment in segments(directory)[1:3]:
        flip(segment, batches(segment)[5].pos + 70)
    last = segments(directory)[-1]
    os.truncate(last, last.stat().st_size - 7)
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    shutil.rmtree(path)
    lost = [range(77, 78), range(149, 150), range(299, 300)]
    step = 0
    while True:
        shutil.copytree(damaged, path)
        fs = FaultyFileSystem(path)
        fs.exit_before = step
        status = in_child(lambda fs=fs: repair_partition(path, "t", 0, fs=fs))
        repair_partition(path, "t", 0)
        assert verify_log(path, deep=True).findings == ()
        cuts = sorted((file.name, file.stat().st_size) for file in (path / "t_0").glob("*.cut"))
        assert [size for _, size in cuts] == [275, 275, 268], f"killed before step {step}"
        with embedlog.open(path) as log:
            assert offsets_of(log) == without(*lost)
            assert log.append("t", b"new").offset == 299
        if status == 0:
            break
        assert status == 77
        shutil.rmtree(path)
        step += 1
    assert step > 20


@pytest.mark.slow
def test_killed_and_then_opened(path: Path, tmp_path: Path) -> None:
    """A repair that was killed leaves nothing that an ordinary open would take for something else."""
    directory = make_log(path)
    segment = segments(directory)[1]
    flip(segment, batches(segment)[5].pos + 70)
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    step = 0
    status = 77
    while status == 77:
        shutil.rmtree(path)
        shutil.copytree(damaged, path)
        fs = FaultyFileSystem(path)
        fs.exit_before = step
        status = in_child(lambda fs=fs: repair_partition(path, "t", 0, fs=fs))
        with embedlog.open(path) as log:
            assert log.append("t", value(300)).offset == 300
        repair_partition(path, "t", 0)
        with embedlog.open(path) as log:
            assert offsets_of(log) == [*without(range(77, 78)), 300], f"killed before step {step}"
        step += 1
    assert status == 0


def test_a_backup_keeps_the_damage(path: Path, tmp_path: Path) -> None:
    directory = make_log(path)
    with embedlog.open(path) as log:
        log.backup(tmp_path / "backup")
    segment = segments(directory)[1]
    flip(segment, batches(segment)[5].pos + 70)  # through the link: in both
    before = files(tmp_path / "backup")
    repaired(path)
    assert files(tmp_path / "backup") == before
    assert repaired(tmp_path / "backup").changed


def test_appends_after_a_missing_end_do_not_reach_a_backup(path: Path, tmp_path: Path) -> None:
    directory = make_log(path)
    with embedlog.open(path) as log:
        log.backup(tmp_path / "backup")
    before = files(tmp_path / "backup")
    segments(directory)[-1].unlink()
    assert segments(directory)[-1].stat().st_nlink == 2
    repaired(path)
    with embedlog.open(path) as log:
        log.append("t", b"new")
    assert files(tmp_path / "backup") == before


def test_bytes_set_aside_are_never_overwritten(path: Path) -> None:
    directory = make_log(path)
    segment = segments(directory)[0]
    for _ in range(3):
        flip(segment, batches(segment)[3].pos + 70)
        repaired(path)
    cuts = sorted(directory.glob("*.cut"))
    assert [cut.name for cut in cuts] == [
        "00000000000.825-2.cut",
        "00000000000.825-3.cut",
        "00000000000.825.cut",
    ]
    assert len({cut.read_bytes() for cut in cuts}) == 3


def test_an_interrupted_compaction_is_completed_first(path: Path) -> None:
    directory = make_log(path, cleanup_policy="compact")
    second = segments(directory)[1]
    shutil.copy(second, f"{second}.144.{second.stat().st_size}.swap")
    flip(second, batches(second)[3].pos + 70)
    report = repair_partition(path, "t", 0)
    assert not report.changed
    with embedlog.open(path) as log:
        assert offsets_of(log) == without()


def test_repair_needs_the_lock_and_an_existing_partition(path: Path) -> None:
    make_log(path)
    with embedlog.open(path), pytest.raises(DirectoryLocked):
        repair_partition(path, "t", 0)
    with pytest.raises(TopicNotFound):
        repair_partition(path, "u", 0)
    with pytest.raises(PartitionNotFound):
        repair_partition(path, "t", 1)
    with pytest.raises(PartitionNotFound):
        repair_partition(path, "t", -1)
    with embedlog.open(path) as log:  # the lock is free again
        assert offsets_of(log) == without()


def test_other_partitions_are_unchanged(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2)
        for number in range(20):
            log.append("t", value(number), partition=0)
            log.append("t", value(number), partition=1)
    for number in range(2):
        segment = segments(path / f"t_{number}")[0]
        flip(segment, batches(segment)[3].pos + 70)
    other = files(path / "t_1")
    repair_partition(path, "t", 0)
    assert files(path / "t_1") == other
    assert [finding.partition for finding in verify_log(path).findings] == [1]
    with embedlog.open(path) as log:
        assert len(list(log.read("t", 0))) == 19
        with pytest.raises(CorruptRecord):
            list(log.read("t", 1))


# -- a damaged partition that is opened ----------------------------------------------------------------


def _damaged(path: Path, kind: str) -> tuple[Path, int, int]:
    """Damage that an open finds: (segment, byte, first offset that cannot be read)."""
    directory = make_log(path)
    (path / "clean-shutdown").unlink()  # the machine crashed
    last = segments(directory)[-1]
    found = batches(last)
    if kind == "cut":
        os.truncate(last, found[4].pos + 30)
        return last, found[4].pos, found[4].base_offset
    if kind == "header":
        last.with_suffix(".index").unlink()
        flip(last, found[4].pos + 16)
        return last, found[4].pos, found[4].base_offset
    if kind == "emptied":
        os.truncate(last, 0)
        return last, 0, found[0].base_offset
    last.unlink()
    return last, 0, found[0].base_offset


@pytest.mark.parametrize("kind", ["cut", "header", "emptied", "gone"])
def test_a_damaged_partition_refuses_appends_and_is_read_up_to_the_damage(path: Path, kind: str) -> None:
    segment, pos, offset = _damaged(path, kind)
    before = files(path / "t_0")
    with embedlog.open(path) as log:
        assert not log.recovery.clean
        assert len(log.recovery.damage) == 1
        assert log.health().status == "degraded"
        assert list(log.health().refusing) == [T0]
        with pytest.raises(PartitionFailed, match="embedlog repair") as refused:
            log.append("t", b"new")
        assert "t" in str(refused.value)
        with pytest.raises(PartitionFailed, match="embedlog repair"):
            log.append_many("t", [b"new"])
        assert log.offsets("t")[0].log_end_offset == RECORDS  # they are missed, not forgotten
        got = []
        with pytest.raises(CorruptRecord) as caught:
            got.extend(log.read("t", 0))
        assert [record.offset for record in got] == list(range(offset))
        assert (str(caught.value.path), caught.value.pos, caught.value.offset) == (str(segment), pos, offset)
        for start in range(offset, RECORDS, 5):
            with pytest.raises(CorruptRecord):
                list(log.read("t", 0, start=start))
        with log.consumer() as consumer:
            consumer.assign([T0])
            consumer.seek(T0, offset)
            with pytest.raises(CorruptRecord):
                consumer.poll(timeout_ms=1000)
    assert {name: data for name, data in files(path / "t_0").items() if name.endswith(".kafka")} == {
        name: data for name, data in before.items() if name.endswith(".kafka")
    }
    with embedlog.open(path) as log, pytest.raises(PartitionFailed):  # and still after a clean end
        log.append("t", b"new")
    assert repair_partition(path, "t", 0).changed
    with embedlog.open(path) as log:
        assert offsets_of(log)[:offset] == list(range(offset))
        log.append("t", b"new")
    assert verify_log(path, deep=True).findings == ()


def test_damage_in_the_middle_is_raised_to_its_readers(path: Path) -> None:
    directory = make_log(path)
    segment = segments(directory)[1]
    victim = batches(segment)[5]
    flip(segment, victim.pos + 70)
    with embedlog.open(path) as log:
        got = []
        with pytest.raises(CorruptRecord) as caught:
            got.extend(log.read("t", 0))
        assert [record.offset for record in got] == list(range(77))
        error = caught.value
        assert (str(error.path), error.pos, error.offset) == (str(segment), victim.pos, 77)
        assert [r.offset for r in log.read("t", 0, start=78)] == list(range(78, RECORDS))
    with embedlog.open(path, mode="r") as log, pytest.raises(CorruptRecord):
        list(log.read("t", 0))
