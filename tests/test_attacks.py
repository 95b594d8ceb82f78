"""Regressions that an attacker found."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from faults import Clock, FaultyFileSystem, crash, open_log, partition_of, store_of

import embedlog
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.files.filesystem import FileSystem


@pytest.mark.parametrize(
    "name", ["topics.json", "t_0/00000000000.kafka", "t_0/00000000000.index", "clean-shutdown"]
)
def test_a_named_pipe_instead_of_a_file_blocks_no_open(path: Path, name: str) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"1")
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(embedlog.EmbedlogError), embedlog.open(path) as log:
        log.append("t", b"2")  # an index is not looked at before


def test_a_missing_topic_list_is_not_an_empty_log(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"1")
    kept = (path / "topics.json").read_bytes()
    (path / "topics.json").unlink()
    for mode in ("rw", "r"):
        with pytest.raises(embedlog.CorruptCheckpoint, match="t_0 holds records"):
            embedlog.open(path, mode=mode).topics()
    (path / "topics.json").write_bytes(kept)
    with embedlog.open(path) as log:
        assert [record.value for record in log.read("t")] == [b"1"]


@pytest.mark.parametrize(
    ("cleanup_policy", "name", "content"),
    [
        ("compact", "00000000000.kafka.50.4.swap", b"junk"),
        ("compact", "00000000000.kafka.50.4.swap", b""),
        ("compact", "00000000000.kafka.50.swap", b""),
        ("compact", "x.swap", b""),
        ("delete", "00000000000.kafka.50.0.swap", b""),
    ],
)
def test_an_invalid_swap_file_replaces_no_records(
    path: Path, cleanup_policy: str, name: str, content: bytes
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", cleanup_policy=cleanup_policy)
        log.append_many("t", [b"1"] * 3)
    (path / "t_0" / name).write_bytes(content)
    if not content and cleanup_policy == "compact":
        with embedlog.open(path, "r") as log:
            assert sum(1 for _ in log.read("t")) == 3
    with embedlog.open(path) as log:
        assert sum(1 for _ in log.read("t")) == 3
    assert (path / "t_0" / f"{name}.cut").read_bytes() == content


def test_a_truncated_swap_file_replaces_no_records(path: Path) -> None:
    """Cut where a batch ends, it is whole batches still."""
    with embedlog.open(path) as log:
        log.create_topic("t", cleanup_policy="compact")
        log.append("t", b"1", key=b"a")
        log.append("t", b"2", key=b"b")
    segment = path / "t_0" / "00000000000.kafka"
    whole = segment.read_bytes()
    swap = path / "t_0" / f"00000000000.kafka.2.{len(whole)}.swap"
    swap.write_bytes(whole[: len(whole) // 2])
    with embedlog.open(path) as log:
        assert [record.value for record in log.read("t")] == [b"1", b"2"]


def test_segments_compacted_to_nothing_are_swapped_after_a_kill(path: Path) -> None:
    """The swap is an empty file then, and right."""
    log = open_log(path, cleanup_policy="compact", segment_bytes=1024)
    log.create_topic("t")
    for _ in range(4):
        log.append("t", bytes(900), key=b"a")
    crash(log)
    fs = FaultyFileSystem(path)
    log = open_log(path, fs, cleanup_policy="compact", segment_bytes=1024)
    fs.fail("rename", path="00000000000.kafka.deleted")
    with pytest.raises(embedlog.StorageError):
        log.compact("t")
    crash(log)
    (swap,) = (path / "t_0").glob("*.swap")
    assert swap.stat().st_size == 0
    with open_log(path) as log:
        assert [record.offset for record in log.read("t")] == [1, 2, 3]
    assert (path / "t_0" / "00000000000.kafka").stat().st_size == 0


def test_a_clock_set_back_does_not_delay_flushes(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock=clock)
    log.create_topic("t")
    log.append("t", b"1")
    clock.now_ms -= 3_600_000
    store_of(log).flusher.run_cycle()
    assert partition_of(log).offsets().flushed_offset == 1
    log.close()


def test_auto_commit_does_not_override_a_manual_commit(log: Log) -> None:
    log.create_topic("t")
    log.append_many("t", [b"1"] * 10)
    tp = TopicPartition("t", 0)
    with log.consumer("t", "g") as consumer:
        consumer.poll(1_000, max_records=1)
        consumer.commit({tp: CommittedOffset(8)})
        consumer.commit({tp: CommittedOffset(3)})
    with log.consumer("t", "g") as consumer:
        found = consumer.committed(tp)
        assert found is not None and found.offset == 3


def test_a_header_name_without_bytes_is_refused(log: Log) -> None:
    log.create_topic("t")
    with pytest.raises(embedlog.InvalidType, match="surrogates"):
        log.append("t", b"1", headers={"\ud800": b""})


def test_a_forked_child_waits_for_no_inherited_topic_lock(log: Log) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store_of(log).topics_lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            log.create_topic("t")
        except embedlog.ForkedHandle:
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done.set()
    holder.join()
    assert code == 0


class _Interrupting(FileSystem):
    """Ctrl-C while the directory of a partition is synced, once."""

    armed = False

    def sync_dir(self, path: str) -> None:
        if self.armed and path.endswith("t_0"):
            self.armed = False
            raise KeyboardInterrupt
        super().sync_dir(path)


def test_an_append_after_an_interrupted_roll_reads_the_files_again(path: Path) -> None:
    fs = _Interrupting()
    log = embedlog.open(path, fs=fs, segment_bytes=1024)
    log.create_topic("t")
    acked = [b"%d" % i * 50 for i in range(7)]
    for value in acked:
        log.append("t", value)
    fs.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.append("t", b"L" * 800)
    for number in range(12):
        acked.append(b"small%d" % number)
        log.append("t", acked[-1], flush=True)
    assert [record.value for record in log.read("t")] == acked
    log.close()
    with embedlog.open(path) as log:
        assert log.recovery.damage == []
        assert [record.value for record in log.read("t")] == acked
        log.append("t", b"then")


def contents(path: Path) -> dict[Path, bytes | None]:
    return {each: each.read_bytes() if each.is_file() else None for each in path.rglob("*")}


def test_another_log_that_takes_the_directorys_name_is_left_alone(path: Path) -> None:
    moved = path.with_name("moved")
    log = embedlog.open(path, flush_ms=10)
    log.create_topic("t", segment_bytes=1_024, retention_bytes=1_024)
    log.append_many("t", [bytes(100)] * 3, flush=True)
    path.rename(moved)
    with embedlog.open(path) as later:
        later.create_topic("t")
        later.append("t", b"later")
    before = contents(path)

    with pytest.raises(embedlog.FlushFailed, match="moved or replaced"):
        log.append("t", bytes(100), flush=True)  # into the file that is open
    with pytest.raises(embedlog.PartitionFailed, match="moved or replaced"):
        log.append("t", bytes(100))
    for change in (
        lambda: log.create_topic("u"),
        lambda: log.delete_topic("t"),
        lambda: log.alter_topic("t", segment_bytes=2_000),
    ):
        with pytest.raises(embedlog.StorageError, match="moved or replaced"):
            change()
    log.close()

    assert contents(path) == before
    with embedlog.open(path) as later:
        assert later.recovery.clean
        assert [record.value for record in later.read("t")] == [b"later"]
    with embedlog.open(moved) as log:
        assert sum(1 for record in log.read("t")) == 4
        assert log.topics() == ["t"]


def test_a_directory_that_was_removed_is_named(path: Path) -> None:
    with embedlog.open(path) as log, embedlog.open(path, mode="r") as reader:
        log.create_topic("t")
        path.rename(path.with_name("moved"))
        for ask in (log.health, reader.health, reader.topics, lambda: next(reader.read("t"))):
            with pytest.raises(embedlog.StorageError, match=re.escape(os.fspath(path))):
                ask()
