"""Opening after a crash: what is truncated, kept, reported and rewritten, and what counts as damage."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import batches, segments
from faults import (
    FaultyFileSystem,
    PowerCutFileSystem,
    crash,
    in_child,
    open_log,
    partition_of,
    store_of,
    values,
)
from housekeeping import housekeep
from old_formats import encode_messages_07
from transactions import coordinated

from embedlog import recovery
from embedlog.codec import encode_batch, encode_control_batch, read_header
from embedlog.codec.message_set import encode_message_set
from embedlog.errors import (
    CorruptRecord,
    EmbedlogError,
    LogTruncated,
    NotALog,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionFailed,
)
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import LOG_START_FILE, RECOVERY_POINT_FILE
from embedlog.log import Log
from embedlog.model import AbortedTransaction, PartitionState, TopicPartition
from embedlog.storage.checkpoints import LeaderEpochs, read_offsets, write_offsets
from embedlog.storage.producer_state import encode_aborted
from embedlog.store.repair import repair_partition
from embedlog.store.verify import verify_log

pytestmark = pytest.mark.plain


class WatchedFileSystem(FaultyFileSystem):
    """Notes the segments with records that were without an index file before or after a call."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.bare: list[tuple[str, str]] = []

    def _note(self, operation: str, path: str) -> None:
        super()._note(operation, path)
        for segment in Path(path).parent.glob("*.kafka"):
            indexes = segment.with_suffix(".index"), segment.with_suffix(".timeindex")
            if segment.stat().st_size and not all(map(Path.exists, indexes)):
                self.bare.append((operation, segment.name))


NAME = TopicPartition("t", 0)
FIRST = "00000000000.kafka"


def crashed_log(path: Path, batches: int = 6, *, flushed: int = 0, **settings: Any) -> bytes:
    """A log of batches of three records, killed; `flushed` of them before the recovery point."""
    log = open_log(path, **settings)
    log.create_topic("t")
    for number in range(batches):
        log.append_many("t", [b"%d-%d" % (number, i) for i in range(3)])
        if number + 1 == flushed:
            housekeep(store_of(log))
    crash(log)
    return (path / "t_0" / FIRST).read_bytes()


def batch_ends(data: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + read_header(data, ends[-1]).size)
    return ends


def recovery_point(path: Path) -> int:
    return read_offsets(FileSystem(), str(path / RECOVERY_POINT_FILE)).get(NAME, 0)


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory, but those that an opening rewrites."""
    ours = ("writer.json", "writer-state")
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name not in ours
    }


# -- tails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b"\xffgarbage" * 9, b"x", os.urandom(5000)], ids=["text", "byte", "random"])
def test_a_garbage_tail_is_truncated_kept_and_reported(tmp_path: Path, tail: bytes) -> None:
    data = crashed_log(tmp_path)
    (tmp_path / "t_0" / FIRST).write_bytes(data + tail)
    with open_log(tmp_path) as log:
        (report,) = log.recovery.partitions
        assert not log.recovery.clean
        assert (report.bytes_cut, report.log_end_offset, report.batches_read) == (len(tail), 18, 6)
        assert report.cut_reason
        assert report.cut_path is not None and Path(report.cut_path).read_bytes() == tail
        assert report.damage == []
        assert len(values(log)) == 18
        assert log.append("t", b"goes on").offset == 18
    with open_log(tmp_path) as log:
        assert log.recovery.clean and log.recovery.partitions == []
        assert values(log)[-1] == (18, b"goes on")


def test_a_tail_of_zeros_is_truncated_and_not_kept(tmp_path: Path) -> None:
    data = crashed_log(tmp_path)
    (tmp_path / "t_0" / FIRST).write_bytes(data + bytes(10_000))
    with open_log(tmp_path) as log:
        (report,) = log.recovery.partitions
        assert (report.bytes_cut, report.cut_reason, report.cut_path) == (10_000, "zeros", None)
        assert len(values(log)) == 18


def test_preallocated_zeros_are_not_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, preallocate=True, segment_bytes=1 << 16)
    log.create_topic("t")
    log.append("t", b"a")
    assert (tmp_path / "t_0" / FIRST).stat().st_size == 1 << 16
    crash(log)
    with open_log(tmp_path, preallocate=True, segment_bytes=1 << 16) as again:
        assert again.recovery.partitions[0].cut_reason == "zeros"
        assert values(again) == [(0, b"a")]
        assert again.append("t", b"b").offset == 1
    assert (tmp_path / "t_0" / FIRST).stat().st_size < 1000, "a close gives the room back"
    with open_log(tmp_path) as again:
        assert again.recovery.clean
        assert values(again) == [(0, b"a"), (1, b"b")]


def test_a_torn_last_batch_is_truncated(tmp_path: Path) -> None:
    data = crashed_log(tmp_path)
    (tmp_path / "t_0" / FIRST).write_bytes(data[:-1])
    with open_log(tmp_path) as log:
        (report,) = log.recovery.partitions
        assert report.cut_reason == "the last batch is cut short"
        assert report.log_end_offset == 15
        assert [offset for offset, _ in values(log)] == list(range(15))


class _Measured(FileSystem):
    """Notes the most that was read at once."""

    most = 0

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self.most = max(self.most, size)
        return super().pread(fd, size, pos)

    def pread_into(self, fd: int, buffer: bytearray | memoryview, pos: int) -> int:
        self.most = max(self.most, len(buffer))
        return super().pread_into(fd, buffer, pos)


@pytest.mark.parametrize("length", [100 << 20, 2**31 - 1])
def test_a_length_past_the_end_is_not_read_to_the_end(tmp_path: Path, length: int) -> None:
    data = crashed_log(tmp_path)
    torn = bytearray(encode_batch([(None, b"torn", (), 1000)], base_offset=18, leader_epoch=0))
    torn[8:12] = length.to_bytes(4, "big")
    path = tmp_path / "t_0" / FIRST
    path.write_bytes(data + torn)
    os.truncate(path, 100 << 20)
    fs = _Measured()
    with open_log(tmp_path, fs) as log:
        (report,) = log.recovery.partitions
        assert (report.cut_reason, report.log_end_offset) == ("the last batch is cut short", 18)
        assert len(values(log)) == 18
    assert fs.most <= 16 << 20


def test_many_valid_batches_after_an_invalid_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    one = bytes(encode_batch([(None, b"v" * 30, (), 1000)]))
    partition_of(log).append(bytearray(one * 60_000))
    crash(log)
    path = tmp_path / "t_0" / FIRST
    data = bytearray(path.read_bytes())
    for number in (5, 6, 20_000):
        data[number * len(one) + 70] ^= 1
    path.write_bytes(data)
    with open_log(tmp_path) as again:
        (report,) = again.recovery.partitions
        assert report.log_end_offset == 5
        assert "59,992 valid batches (offsets 7 to 59,999)" in report.damage[0]


def test_valid_batches_after_an_invalid_one_are_reported_and_kept(tmp_path: Path) -> None:
    data = crashed_log(tmp_path)
    ends = batch_ends(data)
    damaged = bytearray(data)
    damaged[ends[2] + 70] ^= 1
    (tmp_path / "t_0" / FIRST).write_bytes(damaged)
    with open_log(tmp_path) as log:
        (report,) = log.recovery.partitions
        assert report.log_end_offset == 6
        assert len(report.damage) == 1
        assert "3 valid batches (offsets 9 to 17)" in report.damage[0]
        assert report.cut_path is not None and Path(report.cut_path).read_bytes() == damaged[ends[2] :]
        assert log.health().status == "degraded"
        assert log.append("t", b"goes on").offset == 6


def test_two_truncations_at_the_same_byte_are_both_kept(tmp_path: Path) -> None:
    data = crashed_log(tmp_path, flushed=6)
    path = tmp_path / "t_0" / FIRST
    for tail in (b"first", b"second"):
        path.write_bytes(data + tail)
        log = open_log(tmp_path)
        assert log.recovery.partitions[0].bytes_cut == len(tail)
        crash(log)
    kept = sorted(p.read_bytes() for p in (tmp_path / "t_0").glob("*.cut"))
    assert kept == [b"first", b"second"]


def test_recovery_reports_progress(tmp_path: Path) -> None:
    data = crashed_log(tmp_path)
    told: list[tuple[Any, int, int]] = []
    import embedlog

    with embedlog.open(tmp_path, progress=lambda *args: told.append(args)) as log:
        assert not log.recovery.clean
    assert told[-1] == (NAME, len(data), len(data))


# -- damage before the recovery point ------------------------------------------------------------------


def test_a_log_shorter_than_its_recovery_point_is_damaged(tmp_path: Path) -> None:
    data = crashed_log(tmp_path, flushed=6)
    path = tmp_path / "t_0" / FIRST
    path.write_bytes(data[:-5])
    before = path.read_bytes()
    for _ in range(3):  # however often it is opened and closed
        with open_log(tmp_path) as log:
            assert partition_of(log).state is PartitionState.DAMAGED
            assert len(log.recovery.damage) == 1 and FIRST in log.recovery.damage[0]
            with pytest.raises(PartitionFailed, match="repair"):
                log.append("t", b"x")
            records = []
            with pytest.raises(CorruptRecord):
                for record in log.read("t"):
                    records.append(record.offset)
            assert records == list(range(15)), "what can be read is"
            housekeep(store_of(log))
        assert path.read_bytes() == before
        assert recovery_point(tmp_path) == 18
    assert not list((tmp_path / "t_0").glob("*.cut"))


def test_bit_rot_in_a_sealed_segment_past_the_recovery_point_is_damage_and_not_a_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1024)
    log.create_topic("t")
    for _ in range(12):
        log.append("t", b"x" * 200)
    crash(log)
    assert len(list((tmp_path / "t_0").glob("*.kafka"))) >= 3
    path = tmp_path / "t_0" / FIRST
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        with open_log(tmp_path) as again:
            assert partition_of(again).state is PartitionState.DAMAGED
            assert path.read_bytes() == damaged


def test_lost_files_are_damage_and_not_an_empty_log(tmp_path: Path) -> None:
    crashed_log(tmp_path, flushed=6)
    for path in (tmp_path / "t_0").iterdir():
        path.unlink()
    for _ in range(2):
        with open_log(tmp_path) as log:
            assert partition_of(log).state is PartitionState.DAMAGED
            assert "up to 17 had been made durable" in log.recovery.damage[0]


def test_a_lost_partition_directory_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    crashed_log(tmp_path)
    shutil.move(tmp_path / "t_0", tmp_path / "elsewhere")
    with pytest.raises(EmbedlogError, match="t_0 is missing"):
        open_log(tmp_path)
    assert not (tmp_path / "t_0").exists()
    shutil.move(tmp_path / "elsewhere", tmp_path / "t_0")
    with open_log(tmp_path) as log:
        assert len(values(log)) == 18


def test_an_unreadable_recovery_point_means_to_check_everything(tmp_path: Path) -> None:
    crashed_log(tmp_path, flushed=4)
    for text in (
        b"",
        b"garbage",
        b"1\n0\n",
        b"0\n1\nt 0 -5\n",
        b"0\n9\nt 0 5\n",
        bytes(30),
        b"0\n1\nt 0 13\n",
    ):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
        (copy / RECOVERY_POINT_FILE).write_bytes(text)
        with open_log(copy) as log:
            assert log.recovery.damage == [], text
            assert len(values(log)) == 18
            assert log.append("t", b"x").offset == 18
        shutil.rmtree(copy)


def test_a_wrong_index_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    """An entry that points past the recovery point would make the batches between look lost."""
    data = crashed_log(tmp_path, batches=40, flushed=30, index_interval_bytes=0)
    ends = batch_ends(data)
    lie = (5).to_bytes(4, "big") + ends[35].to_bytes(4, "big")
    (tmp_path / "t_0" / "00000000000.index").write_bytes(lie)
    with open_log(tmp_path) as log:
        assert log.recovery.bytes_cut == 0
        assert len(values(log)) == 120


# -- foreign files -------------------------------------------------------------------------------------


def foreign_segment(kind: str) -> bytes:
    if kind == "0.7":
        return bytes(encode_messages_07([b"value %d" % i for i in range(20)]))
    rows = [(None, b"value %d" % i, (), 1_000 + i) for i in range(20)]
    return bytes(encode_message_set(rows, magic=int(kind[1])))


@pytest.mark.parametrize("left", ["killed after a flush", "closed", "closed while empty"])
@pytest.mark.parametrize("kind", ["v0", "v1", "0.7"])
def test_a_foreign_segment_is_refused_unchanged(tmp_path: Path, kind: str, left: str) -> None:
    if left == "killed after a flush":
        crashed_log(tmp_path, flushed=4)
    else:
        with open_log(tmp_path) as log:
            log.create_topic("t")
            if left == "closed":
                log.append("t", b"ours")
    (tmp_path / "t_0" / FIRST).write_bytes(foreign_segment(kind))
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(NotALog, match="import"):
            open_log(tmp_path)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["v0", "v1", "0.7"])
def test_a_first_batch_that_was_never_synced_and_looks_foreign_is_a_torn_tail(
    tmp_path: Path, kind: str
) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("other")
        log.append("other", b"kept", flush=True)
    crashed_log(tmp_path)
    torn = foreign_segment(kind)
    (tmp_path / "t_0" / FIRST).write_bytes(torn)
    with open_log(tmp_path) as log:
        (report,) = [report for report in log.recovery.partitions if report.topic == "t"]
        assert (report.bytes_cut, report.log_end_offset, report.damage) == (len(torn), 0, [])
        assert report.cut_path is not None and Path(report.cut_path).read_bytes() == torn
        assert log.append("t", b"goes on").offset == 0
        assert values(log, "other") == [(0, b"kept")]


# -- the tail is rewritten (promise 2) -------------------------------------------------------------------


@pytest.fixture(params=["whole", "split"])
def rewritten(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How: with what precedes the tail in its segment, or without, as if that were long."""
    if request.param == "split":
        monkeypatch.setattr(recovery, "_SHORT_START", 0)
    return str(request.param)


def test_the_tail_is_rewritten_in_the_order_that_survives_power(tmp_path: Path, rewritten: str) -> None:
    data = crashed_log(tmp_path, flushed=4)
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        new = "t_0/00000000012.kafka" if rewritten == "split" else f"t_0/{FIRST}"
        calls = [call for call in fs.calls if call.path in (new, new + ".recovering", "t_0", f"t_0/{FIRST}")]
        order = [(call.operation, os.path.basename(call.path)) for call in calls]
        name = os.path.basename(new)
        steps = [
            ("create", f"{name}.recovering"),
            ("write", f"{name}.recovering"),
            ("sync", f"{name}.recovering"),
            ("rename", name),
            ("sync_dir", "t_0"),
        ]
        cutting = [("truncate", FIRST), ("sync", FIRST)] if rewritten == "split" else []
        assert order[: len(steps + cutting)] == steps + cutting
        start = batch_ends(data)[4] if rewritten == "split" else 0
        assert log.recovery.partitions[0].bytes_rewritten == len(data) - start
        assert len(values(log)) == 18
        assert b"".join(path.read_bytes() for path in segments(tmp_path / "t_0")) == data


def test_only_a_short_start_is_copied(tmp_path: Path) -> None:
    for number, size in enumerate((65_000, 66_000)):
        path = tmp_path / str(number)
        log = open_log(path)
        log.create_topic("t")
        log.append("t", bytes(size))
        housekeep(store_of(log))
        log.append("t", b"tail")
        crash(log)
        with open_log(path) as log:
            assert len(segments(path / "t_0")) == 1 + number
            assert [record.offset for record in log.read("t")] == [0, 1]


@pytest.mark.parametrize("flushed", [0, 3])
def test_a_segment_is_never_without_its_indexes(path: Path, flushed: int, rewritten: str) -> None:
    """Other processes read while a log is recovered."""
    crashed_log(path, flushed=flushed)
    fs = WatchedFileSystem(path)
    with open_log(path, fs=fs) as log:
        assert log.recovery.partitions[0].bytes_rewritten > 0
        assert len(segments(path / "t_0")) == 1 + (flushed > 0 and rewritten == "split")
    assert fs.count("rename") > 0
    assert fs.bare == []


@pytest.mark.usefixtures("rewritten")
def test_a_hard_linked_segment_is_replaced_and_not_cut(tmp_path: Path) -> None:
    for flushed in (0, 4):
        path = tmp_path / f"log{flushed}"
        data = crashed_log(path, flushed=flushed)
        backup = tmp_path / f"backup{flushed}"
        (path / "t_0" / FIRST).write_bytes(data + b"torn")
        os.link(path / "t_0" / FIRST, backup)
        with open_log(path) as log:
            log.append("t", b"more")
            assert len(values(log)) == 19
        assert backup.read_bytes() == data + b"torn"


def test_an_empty_segment_of_an_undone_roll_truncates_nothing(tmp_path: Path) -> None:
    """The name of a roll that failed comes back with the power, in the range of one that grew on."""
    for flushed in (0, 2, 6):
        path = tmp_path / str(flushed)
        crashed_log(path, flushed=flushed)
        (path / "t_0" / "00000000006.kafka").touch()
        with open_log(path) as log:
            assert log.recovery.damage == []
            assert len(values(log)) == 18
            assert log.append("t", b"x").offset == 18
        with open_log(path) as log:
            assert [offset for offset, _ in values(log)] == list(range(19))


# -- killed while recovering -----------------------------------------------------------------------------


def _torn(path: Path) -> None:
    """Two segments past the recovery point, a torn tail, producers, an aborted transaction."""
    log = open_log(path, segment_bytes=1024)
    log.create_topic("t")
    partition = partition_of(log)
    for number in range(9):
        partition.append(
            encode_batch(
                [(None, b"x" * 150, (), 1000 + number)], producer_id=7, producer_epoch=0, base_sequence=number
            )
        )
        if number == 2:
            housekeep(store_of(log))
    coordinated(
        partition,
        encode_batch(
            [(None, b"aborted", (), 2000)],
            producer_id=8,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        ),
    )
    coordinated(
        partition, encode_control_batch(commit=False, producer_id=8, producer_epoch=0, timestamp_ms=2000)
    )
    log.append("t", b"last")
    crash(log)
    last = max((path / "t_0").glob("*.kafka"))
    last.write_bytes(last.read_bytes() + b"torn batch")


def _check_recovered(path: Path) -> None:
    with open_log(path, segment_bytes=1024) as log:
        assert log.recovery.damage == []
        offsets = [offset for offset, _ in values(log, isolation_level="read_uncommitted")]
        assert offsets == [*range(10), 11]
        committed = [offset for offset, _ in values(log, isolation_level="read_committed")]
        assert committed == [*range(9), 11]
        again = encode_batch([(None, b"x" * 150, (), 1008)], producer_id=7, producer_epoch=0, base_sequence=8)
        assert partition_of(log).append(again).base_offset == 8, "a retry is no duplicate"
        kept = [p.read_bytes() for p in (path / "t_0").glob("*.cut")]
        assert kept == [b"torn batch"]
        assert log.append("t", b"goes on").offset == 12
    with open_log(path) as log:
        assert log.recovery.clean
        assert [offset for offset, _ in values(log)] == [*range(9), 11, 12]


def _recover_killed(path: Path, before_call: int) -> int:
    """Open in a child that is killed before its n-th call; its exit status (77: killed)."""

    def recover() -> None:
        fs = FaultyFileSystem(path)
        fs.exit_before = before_call
        crash(open_log(path, fs, segment_bytes=1024))

    return in_child(recover)


@pytest.mark.slow
@pytest.mark.usefixtures("rewritten")
def test_recovery_killed_at_any_call_restarts_and_ends_the_same(tmp_path: Path) -> None:
    source, whole, copy = tmp_path / "source", tmp_path / "whole", tmp_path / "copy"
    _torn(source)
    shutil.copytree(source, whole)
    fs = FaultyFileSystem(whole)
    crash(open_log(whole, fs, segment_bytes=1024))
    assert len(fs.calls) > 20
    for number in range(len(fs.calls)):
        shutil.copytree(source, copy)
        assert _recover_killed(copy, number) == 77
        _check_recovered(copy)
        shutil.rmtree(copy)


def test_recovery_killed_repeatedly(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    _torn(source)
    for first in range(8, 40, 5):
        shutil.copytree(source, copy)
        for number in (first, first // 2, first + 3):
            assert _recover_killed(copy, number) in (0, 77)
        _check_recovered(copy)
        shutil.rmtree(copy)


@pytest.mark.usefixtures("rewritten")
def test_a_power_cut_at_any_call_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    """Appends, rolls, topics, log starts, a close: at each call, with only what had been fsynced."""
    path = tmp_path / "log"
    path.mkdir()
    fs = PowerCutFileSystem(path)
    promised: dict[str, Any] = {"records": [], "start": 0, "may_start": 0, "topics": set()}
    images: list[tuple[Any, dict[str, Any]]] = []

    def remember() -> None:
        state = {**promised, "topics": set(promised["topics"])}
        images.extend((image, state) for image in (fs.image(), fs.lost_data()))

    note = fs._note

    def noting(operation: str, path: str) -> None:
        note(operation, path)
        if (path + operation).find("writer.json") < 0:
            remember()

    log = open_log(path, fs, segment_bytes=1024)
    fs._note = noting  # type: ignore[method-assign]
    log.create_topic("t")
    promised["topics"].add("t")
    for number in range(14):
        value = b"%d" % number * 70
        metadata = log.append("t", value, flush=number % 2 == 1)
        if metadata.durable:
            promised["records"] = [(r.offset, r.value) for r in log.read("t") if r.offset <= metadata.offset]
        if number == 9:
            housekeep(store_of(log))
            promised["may_start"] = 5
            log.delete_records("t", 0, 5)
            promised["start"] = 5
    log.create_topic("u", partitions=2)
    promised["topics"].add("u")
    log.close()
    del fs._note
    assert len(images) > 100
    copy = tmp_path / "copy"
    seen = set()
    for image, state in images:
        key = (tuple(sorted(image.files.items())), str(state))
        if key in seen or "embedlog.json" not in image.files:
            continue
        seen.add(key)
        image.write(copy)
        with open_log(copy, segment_bytes=1024) as again:
            assert again.recovery.damage == []
            assert state["topics"] <= set(again.topics())
            if "t" in again.topics():
                found = values(again)
                start = again.offsets("t")[0].log_start_offset
                assert state["start"] <= start <= state["may_start"]
                wanted = [record for record in state["records"] if record[0] >= start]
                assert found[: len(wanted)] == wanted
                assert [offset for offset, _ in found] == list(range(start, start + len(found)))
                assert again.append("t", b"goes on", flush=True).offset == start + len(found)
    shutil.rmtree(copy)


# -- epochs ----------------------------------------------------------------------------------------------


def _cut_to(path: Path, records: int) -> None:
    """A power cut: the unflushed tail is lost."""
    segment = path / "t_0" / FIRST
    data = segment.read_bytes()
    segment.write_bytes(data[: batch_ends(data)[records]])
    (path / "writer-state").unlink()  # by which the lost records were durable


@pytest.mark.parametrize("between", ["nothing", "a clean close", "new appends", "new appends past it"])
def test_a_consumer_past_the_surviving_records_gets_log_truncated(tmp_path: Path, between: str) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    for number in range(10):
        log.append("t", b"old %d" % number)
    consumer = log.consumer("t", group="g", auto_commit=False, auto_offset_reset="earliest")
    assert len(consumer.poll(60_000)) == 10
    consumer.commit()
    log.flush()  # of the offsets too
    crash(log)
    _cut_to(tmp_path, 6)
    if between == "a clean close":
        open_log(tmp_path).close()
    with open_log(tmp_path) as again:
        for number in range({"nothing": 0, "new appends": 2}.get(between, 8)):
            again.append("t", b"new %d" % number)
        consumer = again.consumer("t", group="g", auto_commit=False, auto_offset_reset="error")
        with pytest.raises(LogTruncated) as caught:
            consumer.poll(1000)
        assert caught.value.surviving_offset == 6
        with pytest.raises(LogTruncated):
            again.backend.fetch("t", 0, 10, 1000, leader_epoch=0)
        assert again.backend.fetch("t", 0, 6, 1000, leader_epoch=0).log_start_offset == 0


@pytest.mark.parametrize("appended", [0, 1, 5])
def test_one_lost_record_is_not_skipped_silently(tmp_path: Path, appended: int) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    for number in range(10):
        log.append("t", b"old %d" % number)
    assert len(values(log)) == 10
    crash(log)
    _cut_to(tmp_path, 9)
    with open_log(tmp_path) as again:
        for number in range(appended):
            again.append("t", b"new %d" % number)
        with pytest.raises(LogTruncated) as caught:
            again.backend.fetch("t", 0, 10, 1000, leader_epoch=0)
        assert caught.value.surviving_offset == 9
        assert again.backend.fetch("t", 0, 9, 1000, leader_epoch=0).log_end_offset == 9 + appended


def test_each_unclean_open_begins_an_epoch_and_a_clean_one_does_not(tmp_path: Path) -> None:
    epochs = []
    for clean in (False, False, True, True, False):
        log = open_log(tmp_path)
        if not epochs:
            log.create_topic("t")
        log.append("t", b"x", flush=True)
        epochs.append(partition_of(log).log.leader_epoch)
        log.close() if clean else crash(log)
    assert epochs == [0, 1, 2, 2, 2]
    found = LeaderEpochs(FileSystem(), str(tmp_path / "t_0"))
    found.load()
    assert found.entries == ((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize("through", ["the directory", "a backup"])
def test_an_epoch_that_nothing_was_appended_in_begins_after_a_clean_close(
    tmp_path: Path, through: str
) -> None:
    """However many partitions there are, closing does not write a file for each of them."""
    path, copy = tmp_path / "log", tmp_path / "copy"
    log = open_log(path)
    log.create_topic("t", partitions=20)
    for number in range(20):
        log.append("t", b"x", partition=number)
    log.flush()
    crash(log)
    fs = FaultyFileSystem(path)
    log = open_log(path, fs)
    log.backup(copy)
    fs.calls.clear()
    log.close()
    assert len([call for call in fs.calls if call.path.startswith("t_")]) == 0
    for turn in range(2):
        with open_log(copy if through == "a backup" else path) as log:
            assert log.recovery.clean and not log.recovery.partitions
            log.append("t", b"y", partition=7)
            assert partition_of(log, "t", 7).log.leader_epoch == 1, turn


@pytest.mark.parametrize(
    "text", [b"", b"garbage", b"0\n1\n", b"0\n2\n1 5\n0 0\n", bytes(20), b"0\n1\n7 0\n", None]
)
@pytest.mark.parametrize("clean", [True, False])
def test_an_unusable_epoch_file_is_rebuilt_from_the_records(
    tmp_path: Path, text: bytes | None, clean: bool
) -> None:
    for _ in range(3):
        log = open_log(tmp_path)
        if not log.topics():
            log.create_topic("t")
        log.append("t", b"x", flush=True)
        crash(log)
    open_log(tmp_path).close() if clean else None
    path = tmp_path / "t_0" / "leader-epoch-checkpoint"
    path.unlink() if text is None else path.write_bytes(text)
    with open_log(tmp_path) as again:
        assert again.recovery.bytes_cut == 0
        if clean and text == b"0\n1\n7 0\n":  # readable, and nothing is read at a clean open
            with pytest.raises(CorruptRecord, match="epoch"):
                values(again)
            return
        assert len(values(again)) == 3
        assert again.append("t", b"y").offset == 3
        assert len(values(again)) == 4


# -- producers and transactions ----------------------------------------------------------------------------


def _batch(
    sequence: int, *, value: bytes = b"v", transactional: bool = False, producer: int = 5
) -> bytearray:
    return encode_batch(
        [(None, value, (), 1000)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )


@pytest.mark.parametrize("housekept", [None, 3, 9])
@pytest.mark.parametrize("opens", [1, 2, 3])
def test_duplicates_are_still_found_after_crashes(tmp_path: Path, housekept: int | None, opens: int) -> None:
    log = open_log(tmp_path, segment_bytes=1024)
    log.create_topic("t")
    for sequence in range(10):
        partition_of(log).append(_batch(sequence, value=b"v" * 200))
        if sequence == housekept:
            housekeep(store_of(log))
    crash(log)
    for _ in range(opens - 1):  # each moves the recovery point to the end
        log = open_log(tmp_path, segment_bytes=1024)
        housekeep(store_of(log))
        crash(log)
    with open_log(tmp_path, segment_bytes=1024) as again:
        partition = partition_of(again)
        assert partition.append(_batch(9, value=b"v" * 200)).base_offset == 9
        assert again.offsets("t")[0].log_end_offset == 10
        for sequence in (11, 4):  # a gap; one that is not remembered any more
            with pytest.raises(OutOfOrderSequence):
                partition.append(_batch(sequence, value=b"v" * 200))
        for sequence in (5, 7, 9):  # a snapshot names the last batch, and the log has the four before it
            assert partition.append(_batch(sequence, value=b"v" * 200)).base_offset == sequence
        assert partition.append(_batch(10)).base_offset == 10


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_with_a_known_first_sequence_and_other_records_is_no_duplicate(
    tmp_path: Path, count: int
) -> None:
    """Answered as a duplicate, the records that the first sending did not have would be lost."""

    def batch(count: int) -> bytearray:
        records = [(None, b"%d of %d" % (i, count), (), 1000) for i in range(count)]
        return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)

    with open_log(tmp_path) as log:
        log.create_topic("t")
        partition = partition_of(log)
        assert partition.append(batch(2)).base_offset == 0
        with pytest.raises(OutOfOrderSequence):
            partition.append(batch(count))
        assert partition.append(batch(2)).base_offset == 0
        assert values(log) == [(0, b"0 of 2"), (1, b"1 of 2")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["flip", "empty", "garbage"])
def test_an_unreadable_snapshot_is_rebuilt_from_the_records(tmp_path: Path, damage: str, clean: bool) -> None:
    log = open_log(tmp_path, segment_bytes=1024)
    log.create_topic("t")
    for sequence in range(10):
        partition_of(log).append(_batch(sequence, value=b"v" * 200))
    housekeep(store_of(log))
    log.close() if clean else crash(log)
    newest = max((tmp_path / "t_0").glob("*.snapshot"))
    data = bytearray(newest.read_bytes())
    data[12] ^= 4
    newest.write_bytes({"flip": bytes(data), "empty": b"", "garbage": b"garbage" * 20}[damage])
    with open_log(tmp_path, segment_bytes=1024) as again:
        assert partition_of(again).append(_batch(9, value=b"v" * 200)).base_offset == 9
        assert partition_of(again).append(_batch(10)).base_offset == 10


@pytest.mark.parametrize("how", ["crash", "flushed crash", "close", "txnindex garbage"])
def test_aborted_transactions_stay_dropped(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path)
    log.create_topic("t")
    partition = partition_of(log)
    log.append("t", b"plain")
    coordinated(partition, _batch(0, value=b"aborted", transactional=True))
    coordinated(partition, _batch(0, value=b"kept", transactional=True, producer=6))
    coordinated(
        partition, encode_control_batch(commit=False, producer_id=5, producer_epoch=0, timestamp_ms=1)
    )
    coordinated(partition, encode_control_batch(commit=True, producer_id=6, producer_epoch=0, timestamp_ms=1))
    coordinated(partition, _batch(1, value=b"open", transactional=True))
    log.append("t", b"behind")
    if how != "crash":
        housekeep(store_of(log))
    log.close() if how == "close" else crash(log)
    index = tmp_path / "t_0" / "00000000000.txnindex"
    if how == "txnindex garbage":
        index.write_bytes(b"garbage" * 10)
    for _ in range(2):
        with open_log(tmp_path) as again:
            committed = values(again, isolation_level="read_committed")
            assert committed == [(0, b"plain"), (2, b"kept")], (
                "and none of an open transaction, nor behind it"
            )
            assert len(values(again, isolation_level="read_uncommitted")) == 5
            with open_log_reader(tmp_path) as reader:
                assert values(reader, isolation_level="read_committed") == committed


def test_a_txnindex_that_found_no_room_is_completed(tmp_path: Path) -> None:
    """Half an entry that a full disk left is written over."""
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        for number in range(3):
            # They begin at offsets of which the last byte looks like the begin of an entry where one is torn.
            log.append_many("t", [b"plain"] * (254 if number else 256))
            coordinated(partition_of(log), _batch(number, value=b"aborted", transactional=True))
            coordinated(
                partition_of(log),
                encode_control_batch(commit=False, producer_id=5, producer_epoch=0, timestamp_ms=1),
            )
            if not number:
                fs.fail("write", errno.ENOSPC, path=".txnindex")
            housekeep(store_of(log))
        assert len(fs.failed) == 1
        with open_log_reader(tmp_path) as reader:
            assert len(values(reader, isolation_level="read_committed")) == 764
    with open_log(tmp_path) as log:
        assert len(values(log, isolation_level="read_committed")) == 764


def test_aborted_transactions_past_the_end_are_forgotten(tmp_path: Path) -> None:
    """Else they would take what is appended there for theirs."""
    with open_log(tmp_path) as log:
        log.create_topic("t")
        coordinated(partition_of(log), _batch(0, transactional=True))
    index = tmp_path / "t_0" / "00000000000.txnindex"
    index.write_bytes(encode_aborted([AbortedTransaction(5, 0, 3, 4)]))
    with open_log(tmp_path) as log, open_log_reader(tmp_path) as reader:
        for sequence in range(1, 6):
            coordinated(partition_of(log), _batch(sequence, transactional=True))
        coordinated(
            partition_of(log),
            encode_control_batch(commit=True, producer_id=5, producer_epoch=0, timestamp_ms=1),
        )
        for each in (log, reader):
            assert len(values(each, isolation_level="read_committed")) == 6


def open_log_reader(path: Path) -> Log:
    import embedlog

    return embedlog.open(path, mode="r")


# -- the log start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["rename", "sync_dir", "unlink", "rename-2"])
def test_the_log_start_survives_a_kill_between_its_checkpoint_and_the_renames(
    tmp_path: Path, call: str
) -> None:
    def work() -> None:
        fs = FaultyFileSystem(tmp_path)
        log = open_log(tmp_path, fs, segment_bytes=1024)
        log.create_topic("t")
        for _ in range(12):
            log.append("t", b"x" * 300)
        operation, _, number = call.partition("-")
        path = ".deleted" if operation in ("rename", "unlink") else "t_0"
        fs.at(operation, lambda: os._exit(77), path=path, skip=int(number or 1) - 1)
        log.alter_topic("t", file_delete_delay_ms=0)
        log.delete_records("t", 0, 8)
        housekeep(store_of(log))
        os._exit(78)

    assert in_child(work) in (77, 78)
    assert read_offsets(FileSystem(), str(tmp_path / LOG_START_FILE)) == {NAME: 8}
    with open_log(tmp_path, segment_bytes=1024) as log:
        assert log.offsets("t")[0].log_start_offset == 8
        assert [offset for offset, _ in values(log)] == [8, 9, 10, 11]
        with pytest.raises(OffsetOutOfRange):
            values(log, start=7)
        log.delete_records("t", 0, 10)
    with open_log(tmp_path, segment_bytes=1024) as log:
        assert [offset for offset, _ in values(log)] == [10, 11]
        assert not [p for p in (tmp_path / "t_0").iterdir() if p.name.startswith(FIRST)]


def test_the_log_start_never_passes_the_records_that_survive_a_power_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    fs = PowerCutFileSystem(path)
    log = open_log(path, fs)
    log.create_topic("t")
    for _ in range(5):
        log.append("t", b"x")
    log.delete_records("t", 0, 4)
    image = fs.image()
    crash(log)
    image.write(tmp_path / "after")
    with open_log(tmp_path / "after") as again:
        assert again.offsets("t")[0][:2] in ((4, 4), (4, 5))
        offset = again.append("t", b"visible").offset
        assert values(again)[-1] == (offset, b"visible")


def test_a_log_start_past_the_end_is_ignored(tmp_path: Path) -> None:
    crashed_log(tmp_path)
    write_offsets(FileSystem(), str(tmp_path / LOG_START_FILE), {NAME: 1000})
    with open_log(tmp_path) as log:
        assert log.append("t", b"visible").offset == 18
        assert len(values(log)) == 19


# -- everything else -----------------------------------------------------------------------------------------


def _work(path: Path, fs: FileSystem) -> None:
    """Make a log and a topic, append, roll, close; then delete the topic."""
    with open_log(path, fs, segment_bytes=1024) as log:
        log.create_topic("t")
        for number in range(8):
            log.append("t", b"%d" % number * 200)
        housekeep(store_of(log))
    with open_log(path, fs, segment_bytes=1024, file_delete_delay_ms=0) as log:
        log.create_topic("u", partitions=2)
        log.delete_topic("u")
        housekeep(store_of(log))


@pytest.mark.slow
def test_killed_at_any_call_of_its_life_a_log_opens_again(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "whole")
    _work(tmp_path / "whole", fs)
    assert len(fs.calls) > 100
    path = tmp_path / "killed"
    for number in range(len(fs.calls)):

        def work(before_call: int = number) -> None:
            faulty = FaultyFileSystem(path)
            faulty.exit_before = before_call
            _work(path, faulty)

        assert in_child(work) == 77
        with open_log(path, segment_bytes=1024) as log:
            assert log.recovery.damage == [], number
            assert set(log.topics()) <= {"t", "u"}
            if "t" in log.topics():
                found = values(log)
                assert found == [(n, b"%d" % n * 200) for n in range(len(found))]
            for topic in ("t", "u"):
                if topic not in log.topics():
                    log.create_topic(topic)
                log.append(topic, b"x", flush=True)
        shutil.rmtree(path)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("left", ["all but the last batch", "nothing", "no file"])
def test_a_lost_end_of_a_compacted_segment_is_damage(path: Path, left: str, closed: bool) -> None:
    """Compaction never takes the end of the last segment."""
    log = open_log(path)
    log.create_topic("t", cleanup_policy="compact")
    for i in range(20):
        log.append("t", b"%d" % i, key=b"%d" % (i % 5))
    log.flush()
    housekeep(store_of(log))
    log.close() if closed else crash(log)
    (segment,) = segments(path / "t_0")
    if left == "no file":
        segment.unlink()
    else:
        with segment.open("r+b") as file:
            file.truncate(0 if left == "nothing" else batches(segment)[-1].pos)
    with open_log(path) as log:
        (damage,) = log.recovery.damage
        assert "made durable" in damage
        with pytest.raises(PartitionFailed):
            log.append("t", b"never", key=b"k")
    gone = (19, 19) if left == "all but the last batch" else (0, 19)
    assert repair_partition(path, "t", 0).offsets_gone == (gone,)
    with open_log(path) as log:
        assert not log.recovery.damage
        log.append("t", b"after", key=b"k")
    assert verify_log(path).ok
