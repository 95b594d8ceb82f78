"""Full, short-writing and failing disks: a failed append leaves no trace."""

from __future__ import annotations

import errno
import json
import linecache
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from faults import (
    FOREVER,
    FaultyFileSystem,
    UnsyncedFileSystem,
    crash,
    open_log,
    partition_of,
    store_of,
    values,
)
from housekeeping import housekeep
from programs import may_mount

import embedlog
from embedlog.errors import (
    CorruptRecord,
    DirectoryError,
    DiskFull,
    EmbedlogError,
    FlushFailed,
    PartitionFailed,
    StorageError,
    TopicNotFound,
)
from embedlog.files.filesystem import FileSystem
from embedlog.model import PartitionState
from embedlog.store.catalog import Catalog

pytestmark = pytest.mark.plain

FIRST = "00000000000.kafka"
STEPS = (
    "embedlog/storage/appender.py",
    "embedlog/storage/log_writer.py",
    "embedlog/storage/log_flusher.py",
    "embedlog/storage/log_state.py",
    "embedlog/storage/segment_lifecycle.py",
    "embedlog/fast_append/plain.py",
    "embedlog/partition.py",
    "embedlog/segment.py",
    "embedlog/index.py",
    "embedlog/storage/group_commit.py",
    "embedlog/storage/producer_state_manager.py",
)


# -- appending -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.EIO, StorageError),
    ],
)
def test_a_failed_write_is_undone_and_appends_go_on(
    tmp_path: Path, number: int, expected: type[EmbedlogError]
) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"before")
        size = (tmp_path / "t_0" / FIRST).stat().st_size
        fs.fail("write", number, path=FIRST, times=3)
        for _ in range(3):  # each leaves half of its bytes, and removes them again
            with pytest.raises(expected, match="nothing was appended") as caught:
                log.append("t", b"x" * 500)
            assert isinstance(caught.value.__cause__, OSError)
            assert (tmp_path / "t_0" / FIRST).stat().st_size == size
            assert log.offsets("t")[0].log_end_offset == 1
        assert log.append("t", b"after", flush=True).offset == 1
        assert values(log) == [(0, b"before"), (1, b"after")]
        assert log.health().status == "ok"
    with open_log(tmp_path) as log:
        assert log.recovery.clean
        assert values(log) == [(0, b"before"), (1, b"after")]


def test_a_failed_undo_fails_the_partition_until_reopen(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t", partitions=2)
        log.append("t", b"durable", partition=0, flush=True)
        fs.fail("write", errno.ENOSPC, path="t_0")
        fs.fail("truncate", errno.EIO, path="t_0")
        with pytest.raises(FlushFailed, match="could not be undone"):
            log.append("t", b"x" * 500, partition=0)
        assert partition_of(log).state is PartitionState.FAILED
        with pytest.raises(PartitionFailed):
            log.append("t", b"y", partition=0)
        assert log.append("t", b"others go on", partition=1).offset == 0
        assert values(log) == [(0, b"durable")]
        report = log.reopen("t", 0)
        assert report is not None and report.bytes_cut > 0
        assert log.append("t", b"goes on", partition=0).offset == 1
        assert values(log) == [(0, b"durable"), (1, b"goes on")]


def test_append_many_reports_appended_records_without_room_in_one_partition(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t", partitions=4)
        records = [(b"key %d" % i, b"value") for i in range(100)]
        fs.fail("write", errno.ENOSPC, path="t_2")
        with pytest.raises(embedlog.PartialAppend) as caught:
            log.append_many("t", records)
        assert list(caught.value.failed) == [2]
        assert isinstance(caught.value.failed[2], DiskFull)
        log.append_many("t", [records[i] for i in caught.value.not_landed])
        found = [(r.key, r.value) for r in log.read("t")]
        assert sorted(found) == sorted((bytes(k), v) for k, v in records)


def test_a_file_that_cannot_be_opened_fails_one_append(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs, preallocate=True, segment_bytes=1 << 16) as log:
        log.create_topic("t")
        fs.fail("allocate", errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.append("t", b"x")
        assert log.append("t", b"x").offset == 0


def test_no_room_for_the_first_epoch(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        for operation in ("create", "write", "sync", "rename"):
            fs.fail(operation, errno.ENOSPC, path="leader-epoch")
            with pytest.raises(DiskFull):
                log.append("t", b"x")
        assert log.append("t", b"x").offset == 0


# -- rolling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("create", "1.kafka"),
        ("create", "1.index"),
        ("create", "1.timeindex"),
        ("sync_dir", "t_0"),
    ],
)
def test_no_room_while_rolling(tmp_path: Path, operation: str, path: str) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs, segment_bytes=1024)
    log.create_topic("t")
    log.append("t", b"x" * 700)
    fs.fail(operation, errno.ENOSPC, path=path, times=2)
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.append("t", b"y" * 700)
    assert sorted(p.name for p in (tmp_path / "t_0").glob("*.kafka")) == [FIRST]
    assert log.append("t", b"fits the old segment").offset == 1
    assert log.append("t", b"y" * 700).offset == 2
    assert len(list((tmp_path / "t_0").glob("*.kafka"))) == 2
    before = values(log)
    crash(log)
    with open_log(tmp_path, segment_bytes=1024) as again:
        assert again.recovery.damage == [] and again.recovery.bytes_cut == 0
        assert values(again) == before


def test_a_roll_that_cannot_be_undone_fails_the_partition(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs, segment_bytes=1024)
    log.create_topic("t")
    log.append("t", b"x" * 700)
    fs.fail("sync_dir", errno.EIO, path="t_0")
    fs.fail("unlink", errno.EIO, path="1.kafka")
    with pytest.raises(StorageError):
        log.append("t", b"y" * 700)
    with pytest.raises(PartitionFailed):
        log.append("t", b"would lie behind the name of the next segment")
    log.reopen("t", 0)
    assert log.append("t", b"y" * 700).offset == 1
    crash(log)
    with open_log(tmp_path) as again:
        assert [offset for offset, _ in values(again)] == [0, 1]


def test_roll_makes_the_old_segment_durable_before_the_new_one_takes_records(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs, segment_bytes=1024) as log:
        log.create_topic("t")
        log.append("t", b"x" * 700)
        fs.forget()
        log.append("t", b"y" * 700, flush=True)
        names = ("t_0", f"t_0/{FIRST}", "t_0/00000000001.kafka")
        assert [call for call in fs.calls if call.path in names] == [
            ("sync", f"t_0/{FIRST}"),
            ("create", "t_0/00000000001.kafka"),
            ("sync_dir", "t_0"),
            ("write", "t_0/00000000001.kafka"),
            ("sync", "t_0/00000000001.kafka"),
        ]


# -- what lies beside the records ------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir"])
def test_no_room_for_the_recovery_point(tmp_path: Path, operation: str) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    housekeep(store_of(log))
    log.append("t", b"x")
    path = "." if operation == "sync_dir" else "recovery-point"
    fs.fail(operation, errno.ENOSPC, path=path)
    with pytest.raises(OSError):  # the thread would log it and try again
        housekeep(store_of(log))
    assert log.append("t", b"y").offset == 1
    housekeep(store_of(log))
    assert (tmp_path / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\nt 0 2\n"
    crash(log)
    with open_log(tmp_path) as again:
        assert len(values(again)) == 2


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir", "make_dir"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_no_room_for_a_topic(tmp_path: Path, operation: str, skip: int) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("there")
        log.append("there", b"x")
        fs.fail(operation, errno.ENOSPC, skip=skip)
        try:
            log.create_topic("t", partitions=2)
        except StorageError:
            assert log.topics() == ["there"]
            with pytest.raises(TopicNotFound):
                log.append("t", b"x")
            log.create_topic("t", partitions=2)
        else:
            # Readers that cannot be told of a new topic find it all the same.
            assert all(call.path.startswith("writer-state") for call in fs.failed), fs.failed
            with embedlog.open(tmp_path, mode="r") as reader:
                assert reader.topics() == ["t", "there"]
                assert list(reader.read("t")) == []
            fs.rules.clear()
        assert log.append("t", b"x", partition=1).offset == 0
        assert log.append("there", b"y").offset == 1
    with open_log(tmp_path) as log:
        assert log.topics() == ["t", "there"]
        assert values(log, "t", 1) == [(0, b"x")]


def test_no_room_to_alter_or_delete_a_topic(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append("t", b"x")
        for operation in ("create", "write", "sync", "rename"):
            fs.fail(operation, errno.ENOSPC, path="topics.json", times=4)
            with pytest.raises(StorageError, match="could not be saved"):
                log.alter_topic("t", retention_ms=5)
            with pytest.raises(StorageError, match="could not be saved"):
                log.delete_topic("t")
            assert log.describe_topic("t").settings == {}
            assert values(log) == [(0, b"x")]
            fs.rules.clear()
        fs.fail("rename", errno.EIO, path="-delete")
        log.delete_topic("t")
        assert log.topics() == []
        log.create_topic("t")
        assert values(log) == []


def test_a_close_that_finds_no_room_loses_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    log.append("t", b"x")
    fs.fail("create", errno.ENOSPC, times=FOREVER)
    log.close()
    with open_log(tmp_path) as again:
        assert not again.recovery.clean
        assert values(again) == [(0, b"x")]


def test_unwritable_indexes_fail_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs, segment_bytes=2048, index_interval_bytes=0)
    log.create_topic("t")
    fs.fail("write", errno.ENOSPC, path="index", times=FOREVER)
    for number in range(30):
        log.append("t", b"%d" % number * 100)
        housekeep(store_of(log))
    assert len(values(log)) == 30
    log.close()
    with open_log(tmp_path) as again:
        for number in range(30):
            assert next(again.read("t", 0, start=number)).value == b"%d" % number * 100


# -- reading -------------------------------------------------------------------------------------------


def test_eio_on_read_is_an_error_to_that_reader_and_never_the_end(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        log.append_many("t", [b"%d" % i for i in range(10)])
        fs.fail("pread", errno.EIO, path=FIRST)
        with pytest.raises(StorageError) as caught:
            values(log)
        assert isinstance(caught.value.__cause__, OSError)
        assert len(values(log)) == 10
        fs.fail("pread", errno.EIO, path=FIRST)
        with pytest.raises(EmbedlogError):
            log.offset_for_time("t", 0, 0)
        assert log.append("t", b"appends go on").offset == 10
        assert log.health().status == "ok"


def test_a_file_truncated_by_another_program_is_an_error(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t")
        for number in range(5):
            log.append("t", b"%d" % number)
        os.truncate(tmp_path / "t_0" / FIRST, 150)
        with pytest.raises(CorruptRecord, match=FIRST):
            values(log)


# -- Ctrl-C ----------------------------------------------------------------------------------------------


class _Interrupted:
    """Raises KeyboardInterrupt before the n-th line of the engine that is run.

    Not at a `with`, which is traced when it ends, too, nor at a `try` just within one: there the interpreter
    lets no signal in.
    """

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> None:
        sys.settrace(self.trace)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if event == "line" and path.endswith(STEPS):
            if linecache.getline(path, frame.f_lineno).lstrip().startswith(("with ", "try:")):
                return self.trace
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.parametrize("flush", [False, True], ids=["the fast path", "the ordinary path"])
def test_an_append_interrupted_at_any_line_leaves_a_valid_log(tmp_path: Path, flush: bool) -> None:
    """Ctrl-C may come between any two steps of an append, and of the roll within it."""
    before = [b"%d" % i * 300 for i in range(3)]
    number = 0
    interrupted = True
    while interrupted:
        path = tmp_path / str(number)
        log = open_log(path, UnsyncedFileSystem(), segment_bytes=1024)
        log.create_topic("t")
        for value in before:
            log.append("t", value)
        interrupted = False
        try:
            with _Interrupted(number):
                log.append("t", b"3" * 300, flush=flush)
        except KeyboardInterrupt:
            interrupted = True
        try:
            log.append("t", b"then")
        except StorageError:
            log.reopen("t", 0)
            log.append("t", b"then")
        found = values(log)
        whole = [value for _, value in found]
        assert whole in ([*before, b"then"], [*before, b"3" * 300, b"then"]), number
        assert [offset for offset, _ in found] == list(range(len(found)))
        log.flush()
        log.close() if number % 2 else crash(log)
        with open_log(path) as again:
            assert values(again) == found, number
            assert again.recovery.damage == []
        number += 1
    assert number > (40 if flush else 0)


# -- real disks --------------------------------------------------------------------------------------------

_FILL = """
import json, sys, embedlog
path, tmpfs = sys.argv[1], len(sys.argv) > 2
log = embedlog.open(path)
log.create_topic("t")
offsets, full = [], 0
for round in range(40):
    try:
        offsets.append(log.append("t", bytes([round]) * 40_000, flush=round % 3 == 0).offset)
    except embedlog.DiskFull as error:
        full += 1
        assert "nothing was appended" in str(error), error
        offsets.append(log.append("t", b"small", flush=True).offset)
found = [r.offset for r in log.read("t")]
health = log.health().status
log.close()
again = embedlog.open(path)
print(json.dumps([offsets, found, full, health, again.recovery.clean, [r.offset for r in again.read("t")]]))
"""


def _check_filled(output: str) -> None:
    offsets, found, full, health, clean, again = json.loads(output)
    assert offsets == found == again == list(range(40))
    assert full > 5
    assert (health, clean) == ("ok", True)


def test_a_real_limit_of_the_file_size(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the kernel writes up to the limit (a short write), then fails with EFBIG."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    done = subprocess.run(
        [sys.executable, "-c", _FILL, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _check_filled(done.stdout)


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """A tmpfs of 1 MB, where namespaces may be made; elsewhere the limit of the file size stands for it."""
    if not may_mount():
        test_a_real_limit_of_the_file_size(tmp_path)
        return
    script = tmp_path / "fill.py"
    script.write_text(_FILL)
    mount = tmp_path / "disk"
    mount.mkdir()
    command = f"mount -t tmpfs -o size=1m tmpfs {mount} && exec {sys.executable} {script} {mount}/log tmpfs"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    _check_filled(done.stdout)


def test_threads_that_append_while_writes_fail_use_no_offset_twice(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs, segment_bytes=4096) as log:
        log.create_topic("t")
        for skip in range(0, 200, 7):
            fs.fail("write", errno.ENOSPC, path=".kafka", skip=skip)
        given: list[int] = []

        def append() -> None:
            for _ in range(50):
                try:
                    given.append(log.append("t", b"x" * 50, flush=True).offset)
                except DiskFull:
                    continue

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == list(range(len(given)))
        assert [offset for offset, _ in values(log)] == sorted(given)
        assert 0 < len(given) < 200


@pytest.mark.parametrize("there", ["a file", "nothing"])
def test_an_inaccessible_directory_is_not_called_a_file(tmp_path: Path, there: str) -> None:
    class Unreadable(FileSystem):
        def stat(self, path: str) -> os.stat_result:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    path = tmp_path / "log"
    if there == "a file":
        path.touch()
        with pytest.raises(DirectoryError, match="cannot be read: Input/output error"):
            Catalog(Unreadable(), str(path)).create(None)
        with pytest.raises(DirectoryError, match="is a file"):
            Catalog(FileSystem(), str(path)).create(None)
    else:
        with pytest.raises(DirectoryError, match="cannot be read: Input/output error"):
            Catalog(Unreadable(), str(path)).load(None)
        with pytest.raises(DirectoryError, match="does not exist"):
            Catalog(FileSystem(), str(path)).load(None)
