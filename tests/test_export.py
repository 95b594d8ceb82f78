"""Backups and exports of a live log: complete, consistent, independent of later changes to the original."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import threading
import warnings
from collections import Counter
from pathlib import Path

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from damage import files
from encoding import encode_values
from faults import Clock, FaultyFileSystem, crash, open_log, partition_of, store_of, values
from housekeeping import housekeep
from transactions import Transactions, coordinated

import embedlog
from embedlog import Log, StorageError
from embedlog.codec import encode_batch, encode_control_batch
from embedlog.errors import DirectoryError, InvalidArgument
from embedlog.security.acl_store import DocumentAcls
from embedlog.security.acls import (
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)
from embedlog.security.scram import credential_of
from embedlog.security.users import DocumentUsers
from embedlog.store.backup import backup
from embedlog.store.store import system_clock_ms
from embedlog.store.verify import verify_log

pytestmark = pytest.mark.plain

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords


def fill(log: Log, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        log.append("t", b"%06d" % number + b"." * 90, key=b"%d" % (number % 10), partition=number % 2)


def contents(path: Path | str, layout: str | None = None) -> dict[int, list[tuple[int, bytes | None]]]:
    """The records of topic t in a directory, opened for writing as after a restore."""
    with embedlog.open(path, layout=layout) as log:
        assert log.recovery.clean
        assert log.recovery.damage == []
        return {number: values(log, "t", number) for number in range(log.describe_topic("t").partitions)}


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "copy"


# -- consistency -------------------------------------------------------------------------------------------


def test_a_backup_during_appends_is_a_consistent_prefix(path: Path, tmp_path: Path) -> None:
    done = threading.Event()
    marks = [threading.Event() for _ in range(5)]
    copies = []
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2, segment_bytes=20_000)
        counts = [0, 0]

        def write(partition: int) -> None:
            while not done.is_set():
                log.append("t", b"%d" % counts[partition], partition=partition)
                counts[partition] += 1
                if partition == 0 and counts[0] % 150 == 0 and counts[0] // 150 <= len(marks):
                    marks[counts[0] // 150 - 1].set()

        writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for writer in writers:
            writer.start()
        try:
            for mark in marks:
                assert mark.wait(60)
                before = list(counts)
                copy = tmp_path / f"copy{len(copies)}"
                log.backup(copy)
                copies.append((copy, before))
        finally:
            done.set()
            for writer in writers:
                writer.join()
        whole = {number: values(log, "t", number) for number in range(2)}
    for copy, before in copies:
        assert verify_log(copy, deep=True).findings == ()
        got = contents(copy)
        for number in range(2):
            assert got[number] == whole[number][: len(got[number])]
            assert len(got[number]) >= before[number]


def test_a_backup_has_no_index_entries_of_records_that_came_later(
    path: Path, destination: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that points past its segment's end is rebuilt with a warning, as if it were damaged."""
    with open_log(path) as log:
        for topic in ("earlier", "t"):
            log.create_topic(topic)
            for _ in range(3):
                log.append_many(topic, [bytes(1_000)] * 3)

        def grow(done: int, total: int) -> None:
            for _ in range(20):
                log.append("t", bytes(1_000))
            partition_of(log).checkpoint()  # saves the indexes, as each flush cycle does

        backup(store_of(log), str(destination), progress=grow)
        (source,) = (path / "t_0").glob("*.index")
    (index,) = (destination / "t_0").glob("*.index")
    assert source.stat().st_size > index.stat().st_size == 8
    assert len(contents(destination)[0]) == 9
    assert not [record for record in caplog.records if "rebuilding" in record.message]
    assert verify_log(destination, deep=True).findings == ()


def test_group_offsets_topics_and_settings_come_along(log: Log, destination: Path) -> None:
    log.create_topic("t", partitions=2, retention_ms=1234)
    fill(log, 100)
    with log.consumer("t", group="g", auto_commit=False) as consumer:
        first = consumer.poll(timeout_ms=1000, max_records=30)
        consumer.commit()
    log.delete_records("t", 1, 5)
    log.backup(destination)
    with embedlog.open(destination) as copy:
        assert copy.describe_topic("t") == log.describe_topic("t")
        assert copy.offsets("t")[1].log_start_offset == log.offsets("t")[1].log_start_offset
        with copy.consumer("t", group="g", stop_at_end=True) as consumer:
            rest = list(consumer)
        seen = {(r.partition, r.offset) for r in first} | {(r.partition, r.offset) for r in rest}
        assert len(first) + len(rest) == len(seen)
        assert {offset for partition, offset in seen if partition == 0} == set(range(50))
    ours, theirs = ((Path(log.path) / "embedlog.json"), destination / "embedlog.json")
    assert ours.read_bytes() != theirs.read_bytes()  # a log of its own


def test_transactions_come_along(log: Log, destination: Path) -> None:
    log.create_topic("t")
    partition = partition_of(log)
    marker = {"producer_id": 5, "producer_epoch": 0, "timestamp_ms": 7}
    for number, commit in enumerate((False, True)):
        batch = encode_batch(
            [(None, b"%d" % number, (), 7)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        coordinated(partition, batch)
        coordinated(partition, encode_control_batch(commit=commit, **marker))
    log.backup(destination)
    with embedlog.open(destination) as copy:
        assert [r.value for r in copy.read("t", isolation_level="read_committed")] == [b"1"]
        again = encode_batch(
            [(None, b"1", (), 7)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=1,
            transactional=True,
        )
        assert partition_of(copy).append(again).base_offset == 2  # the copy knows it for a repetition


@pytest.mark.parametrize("layout", [None, "kafka"])
def test_transactions_open_during_a_backup(tmp_path: Path, destination: Path, layout: str | None) -> None:
    """The copy knows what its producers had done at its end, and nothing of what they did later."""
    fs = FaultyFileSystem(tmp_path)
    log = open_log(tmp_path / "log", fs)
    log.create_topic("t")
    original = Transactions(lambda batch: coordinated(partition_of(log), batch).base_offset)
    original.send(1, b"aborted")
    original.end(1, commit=False)
    original.send(2, b"open")
    original.plain(b"behind")

    def goes_on() -> None:
        for number in range(4):  # so many snapshots that none is left of those there were
            original.end(2, commit=False)
            original.send(2, b"more %d" % number)
            partition_of(log).checkpoint()

    fs.at("make_dir", goes_on, path="copy.unfinished/t")
    backup(store_of(log), str(destination), layout=layout)
    assert len(values(log, isolation_level="read_uncommitted")) == 7
    log.close()
    committed = {"isolation_level": "read_committed"}
    with embedlog.open(destination, mode="r") as reader, embedlog.open(destination) as copy:
        assert copy.recovery.clean and len(values(copy, isolation_level="read_uncommitted")) == 3
        assert values(copy, **committed) == values(reader, **committed) == []
        again = Transactions(lambda batch: coordinated(partition_of(copy), batch).base_offset)
        again.send(2, b"open")
        assert again.open == {2: {2: b"open"}}, "the copy knows it for a repetition"
        for _ in range(10):
            again.send(2, b"more")
        again.end(2, commit=True)
        wanted = [(2, b"open"), (3, b"behind"), *((offset, b"more") for offset in range(4, 14))]
        assert values(copy, **committed) == values(reader, **committed) == wanted
    with embedlog.open(destination) as copy:
        assert values(copy, **committed) == wanted


# -- links -------------------------------------------------------------------------------------------------


def links(directory: Path) -> list[int]:
    return [path.stat().st_nlink for path in sorted(directory.glob("*_0/*.kafka"))]


def test_sealed_segments_are_hard_links_and_the_last_is_a_copy(log: Log, destination: Path) -> None:
    log.create_topic("t", partitions=2, segment_bytes=2_000)
    fill(log, 200)
    log.backup(destination)
    counted = links(destination)
    assert len(counted) > 3
    assert counted == [2] * (len(counted) - 1) + [1]
    for path in (*destination.rglob("*.index"), *destination.rglob("*.timeindex")):
        assert path.stat().st_nlink == 1


def test_appends_to_either_are_not_seen_in_the_other(path: Path, tmp_path: Path) -> None:
    """Also where the last segment that the copy gets is a sealed one of the original."""
    with open_log(path, clock=Clock(system_clock_ms()), segment_bytes=2_000) as log:
        log.create_topic("t", partitions=2)
        fill(log, 40)
        partition = partition_of(log)
        partition.roll()
        checkpoint = partition.checkpoint

        def then_append() -> int:
            at = checkpoint()
            partition.append(encode_values([b"behind the backup's end"], 5))
            return at

        partition.checkpoint = then_append  # type: ignore[method-assign]
        backup(store_of(log), str(tmp_path / "copy"))
        del partition.checkpoint
        before = values(log, "t", 0)
        assert before[-1][1] == b"behind the backup's end"
    original = files(path)
    with embedlog.open(tmp_path / "copy") as copy:
        assert values(copy, "t", 0) == before[:-1]
        for _ in range(50):
            copy.append("t", b"of the copy", partition=0)
    assert {name: data for name, data in files(path).items() if name in original} == original
    copied = files(tmp_path / "copy")
    with embedlog.open(path) as log:
        assert values(log, "t", 0) == before
        fill(log, 100)
    assert files(tmp_path / "copy") == copied
    for each in (path, tmp_path / "copy"):
        assert verify_log(each, deep=True).findings == ()


def test_a_backup_waits_for_the_disk_no_longer_for_more_segments(tmp_path: Path) -> None:
    """Linked files are durable, and indexes are hints."""
    syncs = []
    for count in (2, 20):
        path = tmp_path / str(count)
        fs = FaultyFileSystem(path)
        log = open_log(path, fs)
        log.create_topic("t")
        for i in range(count):
            if i:
                partition_of(log).roll()
            log.append("t", b"%d" % i)
        housekeep(store_of(log))
        fs.calls.clear()
        log.backup(path.with_suffix(".copy"))
        syncs.append(Counter(call.operation for call in fs.calls if call.operation.startswith("sync")))
        log.close()
        with embedlog.open(path.with_suffix(".copy")) as copy:
            assert values(copy) == [(i, b"%d" % i) for i in range(count)]
    assert syncs[0] == syncs[1]


def test_changes_of_the_original_leave_the_backup_alone(path: Path, destination: Path) -> None:
    log = open_log(path, segment_bytes=2_000, file_delete_delay_ms=0)
    log.create_topic("t", partitions=2, cleanup_policy="compact,delete")
    fill(log, 300)
    log.backup(destination)
    before = files(destination)
    expected = {number: values(log, "t", number) for number in range(2)}
    assert log.compact("t") > 0
    log.delete_records("t", 0, 120)
    housekeep(store_of(log))
    fill(log, 50)
    crash(log)
    last = sorted((path / "t_0").glob("*.kafka"))[-1]
    with last.open("ab") as file:
        file.write(b"a torn tail")
    with open_log(path) as log:
        assert not log.recovery.clean
        fill(log, 50)
        log.delete_topic("t")
        housekeep(store_of(log))
    shutil.rmtree(path)
    assert files(destination) == before
    assert contents(destination) == expected


def test_a_crash_of_the_original_cuts_no_byte_of_the_backup(path: Path, destination: Path) -> None:
    """The segment that recovery cuts may be one that the backup links."""
    log = open_log(path)
    log.create_topic("t", partitions=2)
    fill(log, 20)
    log.flush()
    housekeep(store_of(log))
    log.backup(destination)
    os.unlink(destination / "t_0" / "00000000000.kafka")
    os.link(path / "t_0" / "00000000000.kafka", destination / "t_0" / "00000000000.kafka")
    before = files(destination)
    fill(log, 20, start=20)
    grown = files(destination)
    crash(log)
    with open_log(path) as log:
        assert len(values(log, "t", 0)) == 20
    assert files(destination) == grown
    name = os.path.join("t_0", "00000000000.kafka")
    assert grown[name][: len(before[name])] == before[name]


@pytest.mark.parametrize("layout", [None, "kafka"])
def test_a_copy_is_not_more_open_than_its_original(
    tmp_path: Path, destination: Path, layout: str | None
) -> None:
    log = open_log(tmp_path / "log")
    DocumentUsers(log.path).alter("alice", {"SCRAM-SHA-256": credential_of("SCRAM-SHA-256", "secret")})
    binding = Binding(
        Resource(ResourceType.TOPIC, "t", PatternType.LITERAL),
        Rule("User:alice", "*", Operation.READ, Permission.ALLOW),
    )
    DocumentAcls(log.path).add([binding])
    backup(store_of(log), str(destination), layout=layout)
    assert DocumentAcls(str(destination)).bindings(BindingFilter()) == [binding]
    assert (
        DocumentUsers(str(destination))
        .credentials("alice")["SCRAM-SHA-256"]
        .matches("SCRAM-SHA-256", b"secret")
    )
    for name in ("acls.json", "users.json"):
        assert stat.S_IMODE((destination / name).stat().st_mode) == 0o600
    assert not (destination / "quotas.json").exists()


# -- Kafka's layout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafkas_own_readers_read_an_export(log: Log, destination: Path, codec: str) -> None:
    log.create_topic("t", partitions=2, segment_bytes=3_000, compression_type=codec)
    fill(log, 200)
    log.append("t", b"v", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp_ms=77, partition=0)
    backup(store_of(log), str(destination), layout="kafka")
    for number in range(2):
        expected = [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in log.read("t", number)]
        directory = destination / f"t-{number}"
        for library in (AiokafkaRecords, KafkaPythonRecords):
            got = []
            for segment in sorted(directory.glob("*.log")):
                assert len(segment.stem) == 20
                first = len(got)
                reader = library(segment.read_bytes())
                while reader.has_next():
                    batch = reader.next_batch()
                    assert batch.validate_crc()
                    got += [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
                assert got[first][0] == int(segment.stem)
            assert got == expected


def test_an_exports_indexes_are_kafkas(log: Log, destination: Path) -> None:
    log.create_topic("t", partitions=2, segment_bytes=20_000, index_interval_bytes=500)
    fill(log, 400)
    backup(store_of(log), str(destination), layout="kafka")
    for segment in sorted((destination / "t-0").glob("*.log"))[:-1]:
        data = segment.read_bytes()
        entries = list(struct.iter_unpack(">ii", segment.with_suffix(".index").read_bytes()))
        assert len(entries) > 10
        for relative, position in entries:
            (base,) = struct.unpack_from(">q", data, position)
            (delta,) = struct.unpack_from(">i", data, position + 23)
            assert base <= int(segment.stem) + relative <= base + delta
        times = list(struct.iter_unpack(">qi", segment.with_suffix(".timeindex").read_bytes()))
        assert times == sorted(times)
    lines = (destination / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert lines == ["0", "2", "t 0 200", "t 1 200"]
    assert (destination / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_an_export_is_a_log_and_can_be_exported_back(log: Log, tmp_path: Path) -> None:
    log.create_topic("t", partitions=2, segment_bytes=2_000)
    fill(log, 100)
    expected = {number: values(log, "t", number) for number in range(2)}
    backup(store_of(log), str(tmp_path / "kafka"), layout="kafka")
    assert contents(tmp_path / "kafka", layout="kafka") == expected
    with pytest.raises(InvalidArgument, match="has the layout 'kafka'"):
        embedlog.open(tmp_path / "kafka", layout="classic")
    with embedlog.open(tmp_path / "kafka") as other:
        fill(other, 20, start=100)
        grown = {number: values(other, "t", number) for number in range(2)}
        backup(store_of(other), str(tmp_path / "classic"), layout="classic")
    assert contents(tmp_path / "classic", layout="classic") == grown
    assert sorted(path.name for path in (tmp_path / "classic").glob("t_*")) == ["t_0", "t_1"]
    for each in ("kafka", "classic"):
        assert verify_log(tmp_path / each, deep=True).findings == ()


# -- what may go wrong ---------------------------------------------------------------------------------


def test_the_destination_must_be_new(log: Log, destination: Path, tmp_path: Path) -> None:
    log.create_topic("t")
    destination.mkdir()
    log.backup(destination)  # empty: fine
    with pytest.raises(DirectoryError, match="a new directory"):
        log.backup(destination)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DirectoryError, match="a new directory"):
        log.backup(tmp_path / "file")


def test_a_backup_that_fails_leaves_no_directory_and_can_be_made_again(path: Path, destination: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs, segment_bytes=2_000) as log:
        log.create_topic("t", partitions=2)
        fill(log, 60)
        for operation in ("make_dir", "create", "write", "sync", "rename", "sync_dir"):
            fs.forget()
            fs.fail(operation, path="copy.unfinished", skip=1)
            with pytest.raises((StorageError, DirectoryError)):
                log.backup(destination)
            assert not destination.exists()
        fs.forget()
        fs.fail("link", path=".kafka", times=1000)  # another file system: segments are copied then
        log.backup(destination)
        assert set(links(destination)) == {1}
        expected = {number: values(log, "t", number) for number in range(2)}
    assert contents(destination) == expected


def test_a_backup_killed_at_any_step(path: Path, destination: Path) -> None:
    """A backup that was killed has no name of its own; the original goes on as if nothing had been."""
    fs = FaultyFileSystem(path)
    with open_log(path, fs, segment_bytes=2_000) as log:
        log.create_topic("t", partitions=2)
        fill(log, 60)
        expected = {number: values(log, "t", number) for number in range(2)}
        step = 0
        while True:
            fs.forget()

            def stop() -> None:
                raise KeyboardInterrupt

            for operation in ("make_dir", "create", "write", "sync", "link", "rename", "sync_dir"):
                fs.at(operation, stop, skip=step, path="copy")
            try:
                log.backup(destination)
                break
            except KeyboardInterrupt:
                assert not destination.exists() or contents(destination) == expected
            shutil.rmtree(destination, ignore_errors=True)
            step += 1
    assert step > 3
    assert contents(destination) == expected
