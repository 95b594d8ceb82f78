"""Recovery never truncates records that were durable: `writer-state` holds the flushed offset."""

from __future__ import annotations

import errno
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip
from faults import FaultyFileSystem, crash, in_child, open_log, partition_of, values
from programs import Program

import embedlog
from embedlog.errors import CorruptRecord, FlushFailed, PartitionFailed
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import RECOVERY_POINT_FILE, WRITER_STATE_FILE
from embedlog.model import PartitionState, TopicPartition
from embedlog.open import log_over
from embedlog.storage.checkpoints import read_offsets
from embedlog.storage.writer_state import flushed_offsets
from embedlog.store.repair import repair_partition
from embedlog.store.store import Store
from embedlog.store.verify import DAMAGE, TORN_TAIL, verify_log

T0 = TopicPartition("t", 0)
LONG_MS = 3_600_000
DURABLE, APPENDED = 1_000, 1_003


class Rebooted(FileSystem):
    """The machine was started again."""

    def boot_id(self) -> bytes:
        return uuid.uuid4().bytes


# How an application makes durable what it appends, with a background that flushes and saves once an hour.
FLUSHES = {
    "log.flush": "for i in range(1000): log.append('t', b'%d' % i)\nlog.flush()",
    "flush=True": "for i in range(1000): log.append('t', b'%d' % i, flush=i == 999)",
    "flush_messages": "for i in range(1000): log.append('t', b'%d' % i)",
    "group commit": """
import threading
def work(k):
    for i in range(100): log.append('t', b'%d %d' % (k, i), flush=True)
threads = [threading.Thread(target=work, args=(k,)) for k in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
}
WRITER = """
import sys, embedlog
from embedlog.store import flusher
flusher._RECOVERY_POINT_MS = 3_600_000
log = embedlog.open(sys.argv[1], flush_ms=3_600_000)
log.create_topic('t', **eval(sys.argv[2]))
exec(sys.argv[3])
for i in range(3): log.append('t', b'appended only')
print(log.offsets('t')[0].flushed_offset, flush=True)
sys.stdin.read()
"""


def killed(program: Callable[..., Program], path: Path, how: str = "log.flush") -> Path:
    """A log with 1,000 durable records and three that are not, whose writer was killed; its only segment."""
    settings = {"flush_messages": 1_000} if how == "flush_messages" else {}
    writer = program(WRITER, path, repr(settings), FLUSHES[how])
    assert writer.line() == str(DURABLE)
    writer.kill()
    return path / "t_0" / "00000000000.kafka"


def is_damaged(path: Path, fs: FileSystem | None = None) -> None:
    """Opening finds damage, cuts nothing, and gives no offset out."""
    with open_log(path, fs) as log:
        (damage,) = log.recovery.damage
        assert "had been made durable" in damage
        assert partition_of(log).state is PartitionState.DAMAGED
        with pytest.raises(PartitionFailed, match="embedlog repair"):
            log.append("t", b"never")
        with pytest.raises(CorruptRecord):
            values(log)
    assert not list(path.rglob("*.cut"))


@pytest.mark.parametrize("how", FLUSHES)
def test_after_a_kill_invalid_durable_records_are_damage(
    program: Callable[..., Program], path: Path, how: str
) -> None:
    segment = killed(program, path, how)
    assert (
        read_offsets(FileSystem(), str(path / RECOVERY_POINT_FILE)).get(T0, 0) == 0
    )  # what lies before is not read
    flip(segment, 65)
    before = segment.read_bytes()
    with embedlog.open(path, mode="r") as reader, pytest.raises(CorruptRecord):
        list(reader.read("t"))
    (finding,) = verify_log(path).findings
    assert (finding.kind, finding.pos, finding.first_offset) == (DAMAGE, 0, 0)
    is_damaged(path)
    with open_log(path, Rebooted()) as log, pytest.raises(CorruptRecord):  # the recovery point has moved
        values(log)
    assert before.startswith(segment.read_bytes())
    report = repair_partition(path, "t", 0)
    assert (report.offsets_gone, report.log_end_offset) == (((0, 0),), APPENDED)
    with open_log(path) as log:
        assert [offset for offset, _ in values(log)] == list(range(1, APPENDED))
        assert log.append("t", b"after").offset == APPENDED
    assert verify_log(path).ok


def test_unflushed_invalid_records_are_a_torn_tail(program: Callable[..., Program], path: Path) -> None:
    segment = killed(program, path)
    flip(segment, segment.stat().st_size - 1)
    (finding,) = verify_log(path).findings
    assert finding.kind == TORN_TAIL
    with open_log(path) as log:
        assert log.recovery.damage == []
        assert log.recovery.partitions[0].cut_path is not None
        assert log.append("t", b"after").offset == APPENDED - 1


def test_a_file_shorter_than_its_flushed_offset_is_damaged(
    program: Callable[..., Program], path: Path
) -> None:
    segment = killed(program, path)
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    is_damaged(path)


@pytest.mark.parametrize("why", ["reboot", "copy"])
def test_flushed_offsets_of_another_boot_or_a_copy_are_ignored(
    program: Callable[..., Program], path: Path, why: str
) -> None:
    """A reboot may leave anything of it, and a copy may be of another moment than the records."""
    flip(killed(program, path), 65)
    if why == "copy":
        copied = path.with_name("copy")
        shutil.copytree(path, copied, ignore=shutil.ignore_patterns("*.sock"))
        path = copied
    fs = Rebooted() if why == "reboot" else None
    with open_log(path, fs) as log:
        assert log.recovery.damage != [], "valid batches lie behind the one that is cut"
        assert log.recovery.partitions[0].cut_path is not None
        assert values(log) == []


def test_no_flipped_byte_raises_the_flushed_offset(program: Callable[..., Program], path: Path) -> None:
    killed(program, path)
    state = path / WRITER_STATE_FILE
    for pos in range(state.stat().st_size):
        flip(state, pos)
        assert flushed_offsets(FileSystem(), str(state)) in ({}, {T0: DURABLE})
        flip(state, pos)
    assert flushed_offsets(FileSystem(), str(state)) == {T0: DURABLE}


def test_an_open_killed_at_any_step_keeps_the_flushed_offset(path: Path) -> None:
    for step in range(1_000):
        directory = path / str(step)
        log = open_log(directory, flush_ms=LONG_MS)
        log.create_topic("t")
        for i in range(20):
            log.append("t", b"%d" % i + bytes(100))
        log.flush()
        crash(log)
        fs = FaultyFileSystem(directory)

        def opened(directory: Path = directory, fs: FaultyFileSystem = fs, step: int = step) -> None:
            fs.exit_before = step
            open_log(directory, fs)

        status = in_child(opened)
        assert status in (0, 77)
        flip(directory / "t_0" / "00000000000.kafka", 65)
        is_damaged(directory)
        if status == 0:
            break
    assert step > 5


def test_after_a_failed_fsync_no_more_is_published_than_was_synced(path: Path) -> None:
    fs = FaultyFileSystem(path)
    log = open_log(path, fs, flush_ms=LONG_MS)
    log.create_topic("t")
    log.append("t", b"durable", flush=True)
    fs.fail("sync", errno.EIO, path=".kafka")
    with pytest.raises(FlushFailed):
        log.append("t", b"perhaps", flush=True)
    crash(log)
    assert flushed_offsets(fs, str(path / WRITER_STATE_FILE)) == {T0: 1}
    segment = path / "t_0" / "00000000000.kafka"
    flip(segment, segment.stat().st_size - 1)
    with open_log(path) as log:
        assert log.recovery.damage == []
        assert values(log) == [(0, b"durable")]


@pytest.mark.parametrize("how", ["log.flush", "flush=True", "flush_messages"])
def test_the_recovery_point_is_written_soon_after_a_flush_but_not_for_each(path: Path, how: str) -> None:
    """For a power cut: within a second, while the background flushes once an hour."""
    fs, written = FaultyFileSystem(path), threading.Event()
    settings = {"flush_ms": LONG_MS, "flush_messages": 10 if how == "flush_messages" else 1 << 40}
    log = log_over(Store(str(path), fs=fs, topic_settings=settings))
    log.create_topic("t")
    assert log.append("t", b"first").offset == 0
    fs.forget()
    fs.at("sync_dir", lambda: point() >= 31 and written.set(), times=1 << 30)

    def point() -> int:
        return read_offsets(FileSystem(), str(path / RECOVERY_POINT_FILE)).get(T0, 0)

    for i in range(30):
        log.append("t", b"%d" % i, flush=how == "flush=True")
        if how == "log.flush":
            log.flush()
    assert fs.count("sync", "recovery-point") <= 2, "not for each"
    if how == "flush_messages":  # 30 were flushed by the number, one more by what follows
        assert log.offsets("t")[0].flushed_offset == 30
    assert written.wait(60)
    crash(log)
    flip(path / "t_0" / "00000000000.kafka", 65)
    with open_log(path, Rebooted()) as again:
        assert again.recovery.bytes_cut == 0 or again.recovery.partitions[0].cut_reason == "zeros"
        with pytest.raises(CorruptRecord):
            values(again)
        assert again.append("t", b"after").offset == 31
