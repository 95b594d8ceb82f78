"""Logs of many topics: changes go to a journal, and topics.json is not rewritten for each."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from faults import (
    FaultyFileSystem,
    PowerCutFileSystem,
    UnsyncedFileSystem,
    crash,
    in_child,
    open_log,
    values,
)

import embedlog
from embedlog import CorruptCheckpoint, Log, StorageError, TopicNotFound
from embedlog.files.filesystem import FileSystem
from embedlog.store.catalog import JOURNAL_FROM
from embedlog.store.read_only_store import ReadOnlyStore
from embedlog.store.verify import verify_log

LARGE = {"delete_policy": ",".join(["bytes"] * (JOURNAL_FROM // len("bytes,") + 100))}
"""Settings that make the list of topics as long as thousands of topics do."""


def many(path: Path, fs: FileSystem | None = None) -> Log:
    """A log whose list of topics is long, with a journal begun."""
    log = open_log(path, fs or UnsyncedFileSystem())
    log.create_topic("large", **LARGE)
    log.create_topic("there")
    log.append("there", b"x")
    return log


def listed(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / "topics.json").read_text())
    return found


def journals(path: Path) -> list[Path]:
    return sorted(path.glob("topics-*.journal"))


def test_topics_json_is_not_rewritten_for_each_change(path: Path) -> None:
    fs = FaultyFileSystem(path)
    log = many(path, fs)
    written = (path / "topics.json").stat().st_ino
    fs.calls.clear()
    for number in range(20):
        log.create_topic(f"t{number}", partitions=2)
    log.alter_topic("t3", retention_ms=7)
    log.delete_topic("t4")
    log.create_partitions("t5", 3)
    assert (path / "topics.json").stat().st_ino == written
    assert fs.count("rename", "topics.json") == 0
    assert fs.count("sync", ".journal") == 20 + 1 + 2 + 1
    before = {name: log.describe_topic(name) for name in log.topics()}
    crash(log)
    with open_log(path) as log:
        assert {name: log.describe_topic(name) for name in log.topics()} == before
        assert log.describe_topic("t3").settings == {"retention_ms": 7}
        assert log.describe_topic("t5").partitions == 3
        assert "t4" not in before
        assert log.append("t0", b"1", partition=1).offset == 0


def test_a_closed_or_reopened_log_has_no_journal(path: Path) -> None:
    log = many(path)
    log.create_topic("t")
    assert listed(path)["version"] == 2, "an older version of embedlog refuses it"
    assert [listed(path)["journal"]] == [each.name for each in journals(path)]
    shutil.copytree(path, crashed := path.parent / "crashed")
    log.close()
    crash(open_log(crashed))
    for each in (path, crashed):
        assert (listed(each)["version"], journals(each)) == (1, [])
        with open_log(each) as log:
            assert log.topics() == ["large", "t", "there"]


def test_few_topics_have_no_journal(path: Path) -> None:
    with open_log(path) as log:
        for number in range(10):
            log.create_topic(f"t{number}")
            assert (listed(path)["version"], journals(path)) == (1, [])


def test_a_journal_as_long_as_the_list_is_folded_into_it(path: Path) -> None:
    log = many(path)
    (first,) = journals(path)
    log.alter_topic("there", delete_policy=LARGE["delete_policy"])
    assert journals(path) == [first]
    log.alter_topic("there", delete_policy=LARGE["delete_policy"] + ",bytes")
    log.alter_topic("there", delete_policy="bytes")
    log.create_topic("t")
    (second,) = journals(path)
    assert second != first
    crash(log)
    with open_log(path) as log:
        assert log.topics() == ["large", "t", "there"]
        assert log.describe_topic("there").settings == {"delete_policy": "bytes"}


def _change(log: Log) -> None:
    log.create_topic("t", partitions=2)
    log.alter_topic("there", retention_ms=7)
    log.delete_topic("t")
    for more in ("", ",bytes"):  # after these another journal is begun
        log.alter_topic("there", delete_policy=LARGE["delete_policy"] + more)
    log.alter_topic("there", delete_policy=None)


@pytest.mark.slow
@pytest.mark.parametrize("closes", [False, True])
def test_killed_at_any_step(tmp_path: Path, closes: bool) -> None:
    for step in range(1_000):
        path = tmp_path / str(step)
        with many(path):
            pass
        fs = FaultyFileSystem(path)

        def work(path: Path = path, fs: FaultyFileSystem = fs, step: int = step) -> None:
            log = open_log(path, fs)
            fs.exit_before = len(fs.calls) + step
            _change(log)
            if closes:
                log.close()

        status = in_child(work)
        assert status in (0, 77)
        with open_log(path, UnsyncedFileSystem()) as log:
            assert log.recovery.damage == []
            assert values(log, "there") == [(0, b"x")]
            assert set(log.topics()) - {"t"} == {"large", "there"}
            assert {each.name for each in path.iterdir() if each.is_dir()} == {
                f"{name}_{number}"
                for name in log.topics()
                for number in range(log.describe_topic(name).partitions)
            }
            assert journals(path) == []
        if status == 0:
            break
        shutil.rmtree(path)
    else:
        raise AssertionError("no end")


def test_acknowledged_changes_survive_a_power_cut(tmp_path: Path) -> None:
    path, copy = tmp_path / "log", tmp_path / "copy"
    fs = PowerCutFileSystem(path)
    with many(path, fs) as log:
        for number in range(3):
            log.create_topic(f"t{number}")
            log.alter_topic(f"t{number}", retention_ms=number)
            if number:
                log.delete_topic(f"t{number - 1}")
            for image in (fs.image(), fs.lost_data()):
                image.write(copy)
                with open_log(copy) as after:
                    assert after.topics() == ["large", f"t{number}", "there"]
                    assert after.describe_topic(f"t{number}").settings == {"retention_ms": number}


def test_damage_is_refused_and_a_torn_last_line_never_counted(path: Path) -> None:
    log = many(path)
    log.create_topic("a")
    log.create_topic("b")
    crash(log)
    (journal,) = journals(path)
    data = journal.read_bytes()
    last = data[:-1].rindex(b"\n") + 1
    assert (path / "there_0" / "00000000000.kafka").stat().st_size

    def topics(damaged: bytes) -> list[str]:
        journal.write_bytes(damaged)
        follower = ReadOnlyStore(str(path))
        try:
            return follower.topics()
        finally:
            follower.close()

    assert topics(data) == ["a", "b", "large", "there"]
    for pos in range(len(data)):
        flipped = data[:pos] + bytes([data[pos] ^ 4]) + data[pos + 1 :]
        if pos < len(data) - 1:
            with pytest.raises(CorruptCheckpoint) as caught:
                topics(flipped)
            assert caught.value.path == str(journal)
        else:
            assert topics(flipped) == ["a", "large", "there"]
    for end in range(last, len(data)):
        for tail in (b"", bytes(len(data) - end)):
            assert topics(data[:end] + tail) == ["a", "large", "there"]
    journal.unlink()
    for _ in range(2):
        with pytest.raises(CorruptCheckpoint, match="missing"):
            embedlog.open(path)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"topics": [], "deleting": 1}', b"\xff", b"[" * 100_000])
def test_lines_of_something_else_are_refused(path: Path, body: bytes) -> None:
    crash(many(path))
    (journal,) = journals(path)
    crc = listed(path)["crc32"]
    assert isinstance(crc, int)
    journal.write_bytes(b"%08x %s\n" % (crc32(body, crc), body))
    for mode in ("r", "rw"):
        with pytest.raises(CorruptCheckpoint), embedlog.open(path, mode=mode) as log:
            log.topics()
    assert not (path / "clean-shutdown").exists()


def test_a_reader_follows(path: Path) -> None:
    log = many(path)
    follower = ReadOnlyStore(str(path))
    assert follower.topics() == ["large", "there"]
    log.create_topic("t")
    log.append("t", b"1")
    assert follower.topics() == ["large", "t", "there"]
    assert follower.offsets("t")[0].log_end_offset == 1
    log.alter_topic("t", retention_ms=7)
    assert follower.topic("t").settings == {"retention_ms": 7}
    for number in range(3):
        log.alter_topic("there", delete_policy=LARGE["delete_policy"] + ",bytes" * number)
        assert follower.topic("there").settings == log.describe_topic("there").settings
    log.delete_topic("t")
    with pytest.raises(TopicNotFound):
        follower.topic("t")
    assert verify_log(path).findings == ()
    log.close()
    assert follower.topics() == ["large", "there"]
    follower.close()


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
def test_an_unwritable_change_did_not_happen(path: Path, operation: str) -> None:
    fs = FaultyFileSystem(path)
    log = many(path, fs)
    fs.fail("write" if operation == "truncate" else operation, errno.EIO, path=".journal")
    fs.fail(operation, errno.EIO, path=".journal")
    with pytest.raises(StorageError, match="could not be saved"):
        log.create_topic("t")
    assert log.topics() == ["large", "there"]
    log.create_topic("u")
    log.append("u", b"1")
    crash(log)
    with open_log(path) as log:
        assert log.topics() == ["large", "there", "u"]
