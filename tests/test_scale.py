"""A thousand partitions under a limit of 1,024 descriptors, no descriptor that is not given back, and an
opening that costs the same however long the log is."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FaultyFileSystem, open_log, partition_of, store_of
from housekeeping import housekeep
from programs import Program

import embedlog
from embedlog import segment
from embedlog.backends.read_only import ReaderBackend
from embedlog.clients.consumer import Consumer
from embedlog.clients.reader import read_records
from embedlog.codec import scan
from embedlog.errors import StorageError
from embedlog.files.filesystem import Entry, FileSystem
from embedlog.model import TopicPartition
from embedlog.store.read_only_store import ReadOnlyStore
from embedlog.store.store import Store

_A_THOUSAND = """
import resource, sys, threading, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

def opened():
    import os
    return len(os.listdir("/dev/fd"))

COUNT = 1000
with embedlog.open(sys.argv[1], segment_bytes=1024) as log:
    log.create_topic("t", partitions=COUNT)
    for turn in range(3):  # with a roll in each partition
        for number in range(COUNT):
            log.append("t", b"%d.%d" % (turn, number) + bytes(500), partition=number)
    assert opened() < 940, opened()
    log.flush()
    assert all(e.flushed_offset == 3 for e in log.offsets("t").values())
    assert sum(1 for _ in log.read("t")) == 3 * COUNT
    assert opened() < 940, opened()

    def append_to_all():
        for number in range(COUNT):
            log.append("t", b"x", partition=number, flush=number % 100 == 0)

    threads = [threading.Thread(target=append_to_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with embedlog.open(sys.argv[1], mode="r") as reader:
        assert sum(1 for _ in reader.read("t")) == 7 * COUNT
        with reader.consumer("t", stop_at_end=True) as consumer:
            assert sum(1 for _ in consumer) == 7 * COUNT
    assert log.health().partitions == COUNT
    assert opened() < 1000, opened()
    print(opened(), flush=True)
with embedlog.open(sys.argv[1]) as log:
    assert log.recovery.clean
    for number in range(COUNT):
        records = list(log.read("t", number))
        assert [r.offset for r in records] == list(range(7))
        assert records[1].value == b"1.%d" % number + bytes(500)
        assert log.append("t", b"again", partition=number).offset == 7
assert opened() < 30, opened()
"""


@pytest.mark.slow
def test_a_thousand_partitions_under_an_ordinary_limit(program: Callable[..., Program], path: Path) -> None:
    program(_A_THOUSAND, path).end()


@pytest.mark.slow
def test_a_thousand_partitions_after_a_crash(program: Callable[..., Program], path: Path) -> None:
    writer = program(
        """
import sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("t", partitions=1000)
for number in range(1000):
    log.append("t", b"%d" % number, partition=number)
print("done", flush=True)
sys.stdin.readline()
""",
        path,
    )
    assert writer.line() == "done"
    writer.kill()
    program(
        """
import resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with embedlog.open(sys.argv[1]) as log:
    assert [found.partition for found in log.recovery.partitions] == list(range(1000))
    assert not log.recovery.damage
    assert [r.value for r in log.read("t")] == [b"%d" % n for n in range(1000)]
    log.append_many("t", [b"%d" % n for n in range(5000)])
""",
        path,
    ).end()


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.slow
def test_no_descriptor_leaks(path: Path, mode: str) -> None:
    """After any use, and after opens that fail."""
    with embedlog.open(path, segment_bytes=1024) as log:
        log.create_topic("t", partitions=5)
        for i in range(50):
            log.append("t", bytes(300), partition=i % 5)
    (path.parent / "other").mkdir()
    (path.parent / "other" / "file").touch()
    gc.collect()
    before = _descriptors()
    for _ in range(5):
        with embedlog.open(path, mode) as log:
            assert len(list(log.read("t"))) >= 50
            reading = log.read("t", follow=True)
            next(reading)
            with log.consumer("t") as consumer:
                consumer.poll(10)
                consumer.poll(1)
            assert log.offset_for_time("t", 0, 0) is not None
            if mode == "rw":
                log.create_topic("u", cleanup_policy="compact")
                for i in range(20):
                    log.append("u", bytes(300), key=b"%d" % (i % 3))
                log.compact("u")
                log.delete_topic("u")
                with log.producer() as producer:
                    producer.send("t", b"x")
                with pytest.raises(embedlog.DirectoryLocked):
                    embedlog.open(path)
        with pytest.raises(embedlog.NotALog):
            embedlog.open(path.parent / "other", mode)
        with pytest.raises(embedlog.InvalidArgument):
            embedlog.open(path, mode, "kafka")
        with pytest.raises(embedlog.Closed):
            list(reading)
    gc.collect()
    left = {name: where for name, where in _descriptors().items() if before.get(name) != where}
    assert [where for where in left.values() if str(path) in where] == []
    assert len(_descriptors()) <= len(before)


def test_no_descriptor_leaks_from_threads_that_read_during_close(path: Path) -> None:
    with embedlog.open(path, segment_bytes=1024) as log:
        log.create_topic("t", partitions=4)
        for i in range(80):
            log.append("t", bytes(300), partition=i % 4)
    for mode in ("rw", "r"):
        for _ in range(5):
            log = embedlog.open(path, mode)
            begun = threading.Barrier(4)

            def read(log: embedlog.Log = log, begun: threading.Barrier = begun) -> None:
                begun.wait()
                try:
                    while True:
                        for _ in log.read("t", max_bytes=100):
                            pass
                except embedlog.Closed:
                    pass

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            log.close()
            for thread in threads:
                thread.join()
    gc.collect()
    assert [where for where in _descriptors().values() if str(path) in where] == []


class _Asking(FileSystem):
    """Notes what is asked of the file system about files, by operation and kind of file."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()

    def _note(self, operation: str, path: str) -> None:
        self.asked[operation, os.path.splitext(path)[1] or os.path.basename(path)] += 1

    def open_read(self, path: str) -> int:
        self._note("open", path)
        return super().open_read(path)

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        self._note("open", path)
        return super().open_write(path, create=create, truncate=truncate)

    def stat(self, path: str) -> os.stat_result:
        self._note("stat", path)
        return super().stat(path)

    def size(self, path: str) -> int:
        self._note("stat", path)
        return super().size(path)

    def names(self, path: str) -> dict[str, int]:
        self._note("list", "partition" if os.path.basename(path).startswith("t_") else "root")
        return super().names(path)

    def list(self, path: str) -> list[Entry]:
        entries = super().list(path)
        for entry in entries:
            self._note("stat", entry.name)
        return entries


def _with_segments(path: Path, count: int, partitions: int = 3) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=partitions)
        for number in range(partitions):
            for i in range(count):
                if i:
                    partition_of(log, "t", number).roll()
                log.append("t", b"%d" % i, partition=number)


def test_a_clean_open_reads_only_the_last_segment_and_no_index(tmp_path: Path) -> None:
    costs = []
    for count in (2, 20):
        _with_segments(tmp_path / str(count), count)
        fs = _Asking()
        store = Store(str(tmp_path / str(count)), fs=fs, background=False)
        try:
            assert store.recovery.clean
            costs.append(fs.asked)
        finally:
            store.close()
    few, many = costs
    assert few["stat", ".kafka"] == 3  # is the last one as it was left?
    assert few["open", "leader-epoch-checkpoint"] == few["list", "partition"] == 3
    assert not any(operation == "open" and kind in (".kafka", ".index") for operation, kind in few)
    assert many == few


def test_a_read_only_open_reads_only_the_last_segment(tmp_path: Path) -> None:
    costs = []
    for count in (2, 20):
        path = tmp_path / str(count)
        _with_segments(path, count)
        fs = _Asking()
        follower = ReadOnlyStore(str(path), fs=fs)
        try:
            assert [edges.log_end_offset for edges in follower.offsets("t").values()] == 3 * [count]
            costs.append(fs.asked)
        finally:
            follower.close()
    few, many = costs
    assert few["stat", ".kafka"] <= 3
    assert many == few


def test_reading_one_partition_opens_no_other(tmp_path: Path) -> None:
    _with_segments(tmp_path / "log", 2, partitions=20)
    fs = _Asking()
    follower = ReadOnlyStore(str(tmp_path / "log"), fs=fs)
    try:
        backend = ReaderBackend(follower)
        assert [record.offset for record in read_records(backend, "t", 7)] == [0, 1]
        assert [record.offset for record in read_records(backend, "t", 7, start=1)] == [1]
        with Consumer(backend, (), auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 7)])
            assert [record.offset for record in consumer.poll()] == [0, 1]
            assert consumer.lag() == {TopicPartition("t", 7): 0}
        assert fs.asked["list", "partition"] == 2, "once, and once more to see that it is whole"
    finally:
        follower.close()


def test_a_reader_process_reloads_a_changed_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_CHECK_INDEX_S", 0.0)
    fs = _Asking()
    with open_log(tmp_path / "log", index_interval_bytes=100) as log:
        log.create_topic("t")
        log.append_many("t", [b"%d" % i for i in range(100)], partition=0)
        follower = ReadOnlyStore(str(tmp_path / "log"), fs=fs)
        try:
            for turn in (1, 2, 3):
                for i in range(50):
                    log.append("t", b"x" * i, partition=0)
                housekeep(store_of(log))  # which saves them
                fs.asked.clear()
                partition = follower.partition("t", 0)
                for offset in range(100, 100 + 50 * turn, 7):
                    assert scan(partition.fetch(offset, 1).data).headers[0].base_offset == offset
                assert fs.asked["open", ".index"] == 1
        finally:
            follower.close()


def test_size_in_bytes_is_always_exact(tmp_path: Path) -> None:
    """Opening does not count them, but what is deleted before the first query must be counted."""
    _with_segments(tmp_path / "log", 5)

    def on_disk(log: embedlog.Log) -> int:
        return sum(os.path.getsize(path) for path in Path(log.path).glob("t_*/*.kafka"))

    with embedlog.open(tmp_path / "log") as log:
        assert log.health().bytes == on_disk(log) > 0
    with embedlog.open(tmp_path / "log") as log:
        log.alter_topic("t", retention_bytes=0)
        housekeep(store_of(log))
        assert all(edges.log_start_offset == 4 for edges in log.offsets("t").values())
        assert log.health().bytes == on_disk(log) > 0
        log.append("t", b"one more", partition=0)
    with embedlog.open(tmp_path / "log") as log:
        log.append("t", b"and one", partition=1)
        assert log.health().bytes == on_disk(log) > 0
    with embedlog.open(tmp_path / "log") as log:
        log.delete_topic("t")
        assert log.health().bytes == 0


def test_a_first_append_that_cannot_read_the_index_appends_nothing(tmp_path: Path) -> None:
    _with_segments(tmp_path / "log", 2, partitions=1)
    fs = FaultyFileSystem(tmp_path / "log")
    log = open_log(tmp_path / "log", fs)
    try:
        fs.fail("pread", path=".index")
        with pytest.raises(StorageError, match="nothing was appended"):
            log.append("t", b"x")
        assert log.append("t", b"y").offset == 2
        assert [record.value for record in log.read("t", 0)] == [b"0", b"1", b"y"]
    finally:
        log.close()
