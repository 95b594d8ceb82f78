"""Topic directories when creation or deletion is killed or finds no room."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults import (
    FOREVER,
    FaultyFileSystem,
    UnsyncedFileSystem,
    crash,
    in_child,
    open_log,
    partition_of,
    store_of,
    values,
)
from housekeeping import housekeep

import embedlog
from embedlog import Log, StorageError, TopicNotFound
from embedlog.backends.local import WriterBackend
from embedlog.codec.time_range import TimeRange
from embedlog.errors import EmbedlogError
from embedlog.files.filesystem import FileSystem
from embedlog.partition import Partition


def names(path: Path) -> set[str]:
    """The topics' directories, and what is not whole."""
    return {entry.name for entry in path.iterdir() if entry.is_dir() or entry.name.endswith(".tmp")}


def kill_at_every_step(
    tmp_path: Path,
    before: Callable[[Log], object],
    act: Callable[[Log], object],
    check: Callable[[Log], object],
) -> int:
    """Kill a process before each change on disk that `act` makes, and look what the next open finds.

    Returns how many there were.
    """
    for step in range(1_000):
        path = tmp_path / str(step)
        with open_log(path, UnsyncedFileSystem()) as log:
            before(log)
        fs = FaultyFileSystem(path)

        def work(path: Path = path, fs: FaultyFileSystem = fs, step: int = step) -> None:
            log = open_log(path, fs)
            fs.exit_before = len(fs.calls) + step
            act(log)

        status = in_child(work)
        assert status in (0, 77)
        with open_log(path, UnsyncedFileSystem()) as log:
            assert log.recovery.damage == []
            check(log)
            claimed = {f"{t}_{n}" for t in log.topics() for n in range(log.describe_topic(t).partitions)}
            assert names(path) == claimed, step
            assert "deleting" not in json.loads((path / "topics.json").read_text())
        if status == 0:
            return step
    raise AssertionError("no end")


def test_names_that_collide_in_kafka(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with embedlog.open(tmp_path / "log") as log:
        for name in ("a.b_c", "a.bc", "x-y", "plain", "._._._._._._._."):
            log.create_topic(name)
        assert not caplog.records
        log.create_topic("a_b.c")
        (warned,) = caplog.messages
        assert "a_b.c and a.b_c differ only in . and _" in warned
        assert "a_b.c" in log.topics()


@pytest.mark.slow
def test_creating_a_topic_killed_at_any_step(tmp_path: Path) -> None:
    def check(log: Log) -> None:
        assert values(log, "there") == [(0, b"x")]
        log.create_topic("t", partitions=2, exist_ok=True)
        assert log.append("t", b"y", partition=1).offset == 0

    steps = kill_at_every_step(
        tmp_path,
        lambda log: log.create_topic("there") and log.append("there", b"x"),
        lambda log: log.create_topic("t", partitions=2),
        check,
    )
    assert steps > 10


def test_creating_the_first_topic_killed_at_any_step(tmp_path: Path) -> None:
    kill_at_every_step(
        tmp_path,
        lambda log: log.topics(),
        lambda log: log.create_topic("t"),
        lambda log: log.create_topic("u"),
    )


@pytest.mark.slow
def test_adding_partitions_killed_at_any_step(tmp_path: Path) -> None:
    def check(log: Log) -> None:
        assert values(log) == [(0, b"x")]
        assert log.describe_topic("t").partitions in (1, 3)

    kill_at_every_step(
        tmp_path,
        lambda log: log.create_topic("t") and log.append("t", b"x"),
        lambda log: log.create_partitions("t", 3),
        check,
    )


@pytest.mark.slow
def test_deleting_the_only_topic_killed_at_any_step(tmp_path: Path) -> None:
    """It leaves directories with records that no topic claims: that is no lost list of topics."""

    def before(log: Log) -> None:
        log.create_topic("t", partitions=2)
        for number in range(2):
            log.append("t", b"x", partition=number)

    gone = []

    def check(log: Log) -> None:
        gone.append("t" not in log.topics())
        if not gone[-1]:
            assert [values(log, "t", number) for number in range(2)] == [[(0, b"x")]] * 2

    steps = kill_at_every_step(tmp_path, before, lambda log: log.delete_topic("t"), check)
    assert gone == sorted(gone)
    assert 0 < sum(gone) < steps


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_dir", "make_dir"])
def test_no_room_for_a_topic_leaves_nothing_of_it(tmp_path: Path, operation: str) -> None:
    for skip in range(100):
        path = tmp_path / str(skip)
        fs = FaultyFileSystem(path)
        with open_log(path, fs) as log:
            log.create_topic("there")
            fs.fail(operation, errno.ENOSPC, skip=skip)
            try:
                log.create_topic("t", partitions=2)
            except StorageError:
                assert names(path) == {"there_0"}, skip
            else:  # where readers could not be told, or nothing failed any more
                assert names(path) == {"there_0", "t_0", "t_1"}
            if not fs.failed:
                return
    raise AssertionError("no end")


def test_a_topic_list_replaced_but_not_synced_is_restored(tmp_path: Path) -> None:
    """The deletion fails, and the next open must not complete it: records were appended since."""
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    log.append("t", b"before")
    fs.fail("sync_dir", path=".")
    with pytest.raises(StorageError, match="could not be saved"):
        log.delete_topic("t")
    log.append("t", b"behind", flush=True)
    crash(log)
    with open_log(tmp_path) as log:
        assert values(log) == [(0, b"before"), (1, b"behind")]


def test_a_deleted_topic_whose_directory_keeps_its_name(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path, fs)
    log.create_topic("t")
    log.append("t", b"old")
    fs.fail("rename", errno.EIO, path="-delete", times=FOREVER)
    log.delete_topic("t")
    assert log.topics() == []
    with pytest.raises(StorageError, match="cannot be renamed yet"):
        log.create_topic("t")
    log.create_topic("other")
    log.close()
    with embedlog.open(tmp_path, "r") as reader:
        assert reader.topics() == ["other"]
    with open_log(tmp_path) as log:
        assert names(tmp_path) == {"other_0"}
        log.create_topic("t")
        assert values(log) == []


def test_records_that_appear_under_a_new_topics_name_are_kept(tmp_path: Path) -> None:
    with open_log(tmp_path / "other") as log:
        log.create_topic("t")
        log.append("t", b"of another log")
    with open_log(tmp_path / "log") as log:
        os.rename(tmp_path / "other" / "t_0", tmp_path / "log" / "t_0")
        log.create_topic("t")
        assert values(log) == []
        (found,) = (tmp_path / "log").glob("*-found")
        assert (found / "00000000000.kafka").stat().st_size > 0
    with open_log(tmp_path / "log"):
        assert found.exists()


def test_an_open_removes_only_temporary_files(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t")
    ours = ["topics.json.tmp", "writer-state.tmp", "embedlog.json.4711.tmp", "publish-intent.tmp"]
    for name in [*ours, "mine.tmp"]:
        (tmp_path / name).write_bytes(b"x")
    for name in ("notes_2024", "t_0-copy", "t_7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("x")
    for name in ("a_file_1", "a-delete"):
        (tmp_path / name).write_text("x")
    with open_log(tmp_path):
        pass
    assert names(tmp_path) == {"t_0", "mine.tmp", "notes_2024", "t_0-copy", "t_7"}
    assert (tmp_path / "a_file_1").exists() and (tmp_path / "a-delete").exists()


class _Watching(FileSystem):
    """Something happens just before a directory is listed, once."""

    def __init__(self, directory: Path, happens: Callable[[], object]) -> None:
        self.directory, self.happens = str(directory), happens
        self.happened = False

    def names(self, path: str) -> dict[str, int]:
        if path == self.directory and not self.happened:
            self.happened = True
            self.happens()
        return super().names(path)


def test_a_reader_beside_a_topic_creation(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:

        def make() -> None:
            log.create_topic("t")
            log.append("t", b"x")

        with embedlog.open(tmp_path, "r", fs=_Watching(tmp_path, make)) as reader:
            assert reader.topics() == ["t"]
            assert [record.value for record in reader.read("t")] == [b"x"]


def test_a_backup_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path / "log", fs) as log:
        log.create_topic("t")
        log.append("t", b"x")
        fs.fail("write", errno.ENOSPC, path="copy")
        with pytest.raises(EmbedlogError):
            log.backup(tmp_path / "copy")
        assert [entry.name for entry in tmp_path.iterdir()] == ["log"]
        log.backup(tmp_path / "copy")
    with open_log(tmp_path / "copy") as log:
        assert values(log) == [(0, b"x")]


class _NotingReads(UnsyncedFileSystem):
    def __init__(self) -> None:
        self.read: list[str] = []

    def read_file(self, path: str, limit: int = 1 << 26) -> bytes:
        self.read.append(os.path.basename(path))
        return super().read_file(path, limit)


def test_creating_a_topic_reads_no_other_topic(path: Path) -> None:
    fs = _NotingReads()
    with open_log(path, fs) as log:
        log.create_topic("first")
        log.append("first", b"1")
        housekeep(store_of(log))
        fs.read.clear()
        for number in range(5):
            log.create_topic(f"t{number}")
        assert set(fs.read) == {"leader-epoch-checkpoint"}


def test_a_recreated_topic_starts_at_0_despite_old_checkpoints(path: Path) -> None:
    with open_log(path, UnsyncedFileSystem()) as log:
        for _ in range(2):
            log.create_topic("t")
            log.append_many("t", [b"1", b"2", b"3"])
            log.flush()
            log.delete_records("t", 0, 2)
            housekeep(store_of(log))
            log.delete_topic("t")
        log.create_topic("t")
        crash(log)
    with open_log(path, UnsyncedFileSystem()) as log:
        assert log.offsets("t")[0][:2] == (0, 0)
        assert log.append("t", b"new").offset == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_during_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """No file of the old topic gets into the new one's directory, and nothing has failed."""
    with open_log(tmp_path) as log:
        log.create_topic("t")
        with log.transaction("id") as tx:
            tx.append("t", b"value")
        partition = store_of(log).partition("t", 0)
        flush = partition.flush

        def delete_between(offset: int) -> None:
            partition.flush = flush
            flush(offset)
            log.delete_topic("t")
            if again:
                log.create_topic("t")

        partition.flush = delete_between
        housekeep(store_of(log))
        assert partition.flush is flush
        assert log.health().failing == []
        assert [entry.name for entry in tmp_path.glob("t_0/*.snapshot")] == []
    assert not caplog.records


@pytest.fixture
def overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], Log]]:
    """A log whose topic is deleted once a read has found the partition; then perhaps it is made again."""
    with ExitStack() as ends:

        def opened(is_made_again: bool) -> Log:
            with open_log(tmp_path / "log") as log:
                log.create_topic("t", file_delete_delay_ms=0)
                log.append("t", b"0", timestamp_ms=5)
                partition_of(log).roll()
                log.append("t", b"1", timestamp_ms=6)
            log = ends.enter_context(open_log(tmp_path / "log"))
            store = store_of(log)
            find = store.partition

            def partition(topic: str, number: int) -> Partition:
                found = find(topic, number)
                monkeypatch.undo()
                log.delete_topic("t")
                housekeep(store)
                if is_made_again:
                    log.create_topic("t")
                return found

            monkeypatch.setattr(store, "partition", partition)
            return log

        yield opened


@pytest.mark.parametrize(
    "read",
    [
        lambda backend: backend.fetch("t", 0, 1, 1_000),
        lambda backend: backend.offset_for_time("t", 0, 6),
        lambda backend: backend.offsets_in_time("t", 0, 1, TimeRange(6, 7)),
        lambda backend: backend.split("t", 0, 0, 2, 1, None),
        lambda backend: backend.next_valid_offset("t", 0, 1, f"{backend.path}/t_0/{1:011}.kafka", 0),
    ],
    ids=["fetch", "offset_for_time", "offsets_in_time", "split", "next_valid_offset"],
)
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_read_whose_topic_is_deleted_meanwhile(
    overtaken: Callable[[bool], Log], read: Callable[[WriterBackend], object], is_made_again: bool
) -> None:
    """What cannot be read then is no failure of the disk."""
    log = overtaken(is_made_again)
    assert isinstance(log.backend, WriterBackend)
    with pytest.raises(TopicNotFound):
        read(log.backend)
