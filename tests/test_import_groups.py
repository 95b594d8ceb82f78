"""Import of consumer groups: newest commits, transactions, changed partition counts, repetition."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from cli_commands import call
from kafka_files import Row, message_set, put, record_batch, rows

import embedlog
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.codec import encode_control_batch
from embedlog.errors import CorruptRecord
from embedlog.mirroring.importing import import_files
from embedlog.model import GroupMemberMetadata, GroupMetadata
from embedlog.wire.offsets_topic import (
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    partition_for,
)

FIRST = "00000000000000000000.log"
LATER = "00000000000000000100.log"
COMMITTED_MS = 1_700_000_000_000
NEVER_MS = 4_000_000_000_000
C0, C1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def commit(at: int, group: str, name: TopicPartition, offset: int, epoch: int = 7, metadata: str = "") -> Row:
    """A record of __consumer_offsets at an offset there."""
    value = CommittedOffset(offset, epoch, metadata, COMMITTED_MS)
    return at, encode_offset_key(group, *name), encode_offset_value(value)


def tombstone(at: int, group: str, name: TopicPartition) -> Row:
    return at, encode_offset_key(group, *name), None


def batches(*given: Row) -> bytes:
    """Each record in a batch of its own, as compaction leaves them."""
    return b"".join(record_batch([row]) for row in given)


def marker(at: int, producer: int, *, commit: bool) -> bytes:
    made = encode_control_batch(
        commit=commit, producer_id=producer, producer_epoch=0, timestamp_ms=COMMITTED_MS, base_offset=at
    )
    return bytes(made)


def transactional(producer: int, sequence: int, *given: Row) -> bytes:
    return record_batch(list(given), producer=(producer, 0, sequence), transactional=True)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A data directory with two partitions of clicks."""
    for number in range(2):
        put(tmp_path / "old" / f"clicks-{number}", FIRST, record_batch(rows(0, 100)))
    return tmp_path / "old"


def committed(log: Log, group: str) -> dict[TopicPartition, tuple[int, int, str]]:
    coordinator = log.backend.coordinator
    assert coordinator is not None
    return {name: each[:3] for name, each in coordinator.committed_offsets(group).items()}


def generation(log: Log, group: str) -> int:
    coordinator = log.backend.coordinator
    assert coordinator is not None
    return coordinator.describe_group(group).generation


def test_the_newest_commit_of_each_wins(old: Path, log: Log) -> None:
    """In three partitions, in two segments with gaps, as a compacted topic is; here there are fifty."""
    groups = ("billing", "report")
    assert {partition_for(group, 3) for group in groups} == {1, 2}
    for group in groups:
        directory = old / f"__consumer_offsets-{partition_for(group, 3)}"
        first = batches(
            commit(3, group, C0, 10), commit(4, group, C1, 5), commit(9, group, TopicPartition("gone", 0), 1)
        )
        later = batches(
            commit(100, group, C0, 40, metadata="half"), tombstone(120, group, C1), (121, b"\0\x07?", b"?")
        )
        put(directory, FIRST, first)
        put(directory, LATER, later)
    report = import_files(old, log)
    for group in groups:
        assert committed(log, group) == {C0: (40, 7, "half")}
    assert report.groups is not None
    assert report.groups[:6] == (2, 2, 0, 2, (), 2)
    assert report.problems == report.skipped == ()
    with log.consumer("clicks", group="billing", stop_at_end=True) as consumer:
        assert [r.offset for r in consumer if r.partition == 0] == list(range(40, 100))
    log.close()
    with embedlog.open(log.path) as again:
        assert committed(again, "report") == {C0: (40, 7, "half")}


def test_commits_of_transactions(old: Path, log: Log) -> None:
    """Kept, aborted, never ended; and one whose marker comes after a newer commit outside of it."""
    data = b"".join(
        (
            transactional(1, 0, commit(0, "g", C0, 10)),
            transactional(2, 0, commit(1, "g", C0, 99), commit(2, "g", C1, 99)),
            transactional(3, 0, commit(3, "g", C1, 20)),
            marker(4, 1, commit=True),
            marker(5, 2, commit=False),
            record_batch([commit(6, "g", C1, 30)]),
            marker(7, 3, commit=True),
            transactional(1, 1, commit(8, "g", C0, 11)),
        )
    )
    put(old / "__consumer_offsets-0", FIRST, data)
    import_files(old, log)
    assert committed(log, "g") == {C0: (10, 7, ""), C1: (30, 7, "")}


def test_a_transaction_across_segments(old: Path, log: Log) -> None:
    put(old / "__consumer_offsets-0", FIRST, transactional(1, 0, commit(0, "g", C0, 10)))
    put(old / "__consumer_offsets-0", LATER, marker(100, 1, commit=True))
    import_files(old, log)
    assert committed(log, "g") == {C0: (10, 7, "")}


def test_the_versions_of_older_brokers(old: Path, log: Log) -> None:
    """Values 0 and 1 in messages of 0.10, laid out by hand."""
    key = struct.pack(">hh1sh6si", 1, 1, b"g", 6, b"clicks", 0)
    value = struct.pack(">hqh4sq", 0, 12, 4, b"note", COMMITTED_MS)
    other = struct.pack(">hh1sh6si", 0, 1, b"g", 6, b"clicks", 1)
    expiring = struct.pack(">hqh0sqq", 1, 13, 0, b"", COMMITTED_MS, COMMITTED_MS + 1)
    put(old / "__consumer_offsets-7", FIRST, message_set([(5, key, value), (8, other, expiring)], 1))
    import_files(old, log)
    assert committed(log, "g") == {C0: (12, -1, "note"), C1: (13, -1, "")}


def test_a_repeated_import_only_takes_newer_commits(old: Path, log: Log) -> None:
    offsets = old / "__consumer_offsets-0"
    put(offsets, FIRST, batches(commit(0, "g", C0, 10), commit(1, "g", C1, 10)))
    import_files(old, log)
    coordinator = log.backend.coordinator
    assert coordinator is not None
    coordinator.commit_offsets("g", {C0: CommittedOffset(70)})
    again = import_files(old, log).groups
    assert again is not None
    assert again[:4] == (1, 0, 2, 0)
    newer = CommittedOffset(50, 7, "", NEVER_MS)
    put(offsets, LATER, batches((100, encode_offset_key("g", *C1), encode_offset_value(newer))))
    assert import_files(old, log).groups == again._replace(offsets=1, offsets_present=1)
    assert committed(log, "g") == {C0: (70, -1, ""), C1: (50, 7, "")}


def test_a_group_goes_on_in_its_next_generation(old: Path, log: Log) -> None:
    member = GroupMemberMetadata("m-1", None, "m", "/10.0.0.1", 60_000, 10_000, b"", b"")
    metadata = GroupMetadata("consumer", 41, "range", "m-1", COMMITTED_MS, (member,))
    stored = (1, encode_group_key("g"), encode_group_value(metadata))
    put(old / "__consumer_offsets-0", FIRST, batches(commit(0, "g", C0, 10), stored))
    import_files(old, log)
    assert generation(log, "g") == 41
    with log.consumer("clicks", group="g") as consumer:
        assert consumer.poll(1000)[0].offset in (0, 10)
        assert generation(log, "g") == 42
        taken = import_files(old, log).groups
        assert taken is not None
        assert (taken.offsets, taken.offsets_present) == (0, 1)


def test_a_group_with_members_keeps_its_offsets(old: Path, log: Log) -> None:
    put(old / "__consumer_offsets-0", FIRST, batches(commit(0, "g", C0, 10)))
    log.create_topic("clicks", 2)
    with log.consumer("clicks", group="g", auto_commit=False) as consumer:
        consumer.poll(0)
        while not consumer.assignment():
            consumer.poll(100)
        taken = import_files(old, log).groups
        assert taken is not None
        assert (taken.offsets, taken.in_use) == (0, ("g",))
    assert committed(log, "g") == {}


def test_another_name_and_one_topic_of_several(old: Path, log: Log) -> None:
    put(old / "__consumer_offsets-0", FIRST, batches(commit(0, "g", C0, 10)))
    import_files(old, log, topic="renamed")
    assert committed(log, "g") == {TopicPartition("renamed", 0): (10, 7, "")}
    put(old / "orders-0", FIRST, record_batch(rows(0, 5)))
    taken = import_files(old, log, topic="orders").groups
    assert taken is not None
    assert (taken.groups, taken.offsets_left_out) == (0, 1)


def test_unwanted_and_unknown_groups(old: Path, log: Log) -> None:
    assert import_files(old, log).groups is None
    put(old / "__consumer_offsets-0", FIRST, batches(commit(0, "g", C0, 10)))
    report = import_files(old, log, groups=False)
    assert report.groups is None
    assert [Path(text.split(":")[0]).name for text in report.skipped] == ["__consumer_offsets-0"]
    assert import_files(old / "clicks-0", log).groups is None
    assert log.backend.coordinator is not None
    assert log.backend.coordinator.list_groups() == []


def test_damage_among_the_commits_imports_nothing(old: Path, log: Log) -> None:
    data = bytearray(batches(commit(0, "g", C0, 10), commit(1, "g", C0, 20), commit(2, "g", C1, 30)))
    data[len(data) // 2] ^= 1
    path = put(old / "__consumer_offsets-0", FIRST, bytes(data))
    with pytest.raises(CorruptRecord, match="groups=False leaves groups out") as caught:
        import_files(old, log)
    assert caught.value.path == str(path)
    assert log.topics() == []
    report = import_files(old, log, on_damage="skip")
    assert len(report.problems) == 1
    assert committed(log, "g") == {C0: (10, 7, ""), C1: (30, 7, "")}


@pytest.mark.slow
def test_output_of_the_command(old: Path, tmp_path: Path) -> None:
    gone = TopicPartition("gone", 0)
    put(
        old / "__consumer_offsets-0",
        FIRST,
        batches(commit(0, "g", C0, 10), commit(1, "g", gone, 1), rows(2, 1)[0]),
    )
    code, out, err = call(["import", "data", "old"], tmp_path)
    assert (code, err) == (0, b"")
    assert b"\n1 group, 1 offset committed, 1 skipped (partitions not imported)\n" in out
    assert b"\nleft out  1 record of __consumer_offsets that are neither" in out
    _, out, _ = call(["import", "data", "old", "--json"], tmp_path)
    assert out.splitlines()[-1] == (
        b'{"groups":1,"offsets":0,"offsets_present":1,"offsets_left_out":1,"in_use":[],"not_understood":1,'
        b'"problems":[]}'
    )
    code, out, err = call(["import", "other", "old", "--no-groups"], tmp_path)
    assert (code, err) == (0, b"")
    assert b"group" not in out
    assert call(["groups", "list", "other", "--json"], tmp_path)[1] == b""


def test_an_export_comes_back_with_its_groups(log: Log, path: Path, tmp_path: Path) -> None:
    log.create_topic("clicks", 2)
    log.append_many("clicks", [b"x"] * 20, partition=0)
    with log.consumer("clicks", group="g") as consumer:
        assert len(consumer.poll(1000, max_records=7)) == 7
        consumer.commit()
    before = committed(log, "g")
    log.close()
    assert call(["export", str(path), "for-kafka"], tmp_path)[0] == 0
    with embedlog.open(tmp_path / "again") as again:
        import_files(tmp_path / "for-kafka", again)
        assert committed(again, "g") == before == {C0: (7, 0, "")} | {C1: before[C1]}
