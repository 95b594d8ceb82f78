"""Atomic appends: several partitions get their records together or not at all, whatever fails."""

from __future__ import annotations

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from encoding import encode_values
from faults import FaultyFileSystem

import embedlog
from embedlog.codec import encode_control_batch, scan
from embedlog.config import LogSettings
from embedlog.files.filesystem import FileSystem
from embedlog.model import TopicPartition
from embedlog.store import atomic_append
from embedlog.store import staging as staged_module
from embedlog.store.atomic_append import append_atomically, discard, tidy
from embedlog.store.store import Store

pytestmark = pytest.mark.plain

BEFORE = [b"before"]
STAGED = {0: [b"a%d" % i for i in range(5)], 2: [b"c%d" % i for i in range(7)]}


Staged = dict[TopicPartition, tuple[str, ...]]


def stage(store: Store) -> Staged:
    """For partition 0 two files of a batch each, for partition 2 one file of three."""
    return {
        TopicPartition("t", 0): (
            put(store, "job.task-0", STAGED[0][:3]),
            put(store, "job.task-1", STAGED[0][3:]),
        ),
        TopicPartition("t", 2): (put(store, "job.task-2", STAGED[2]),),
    }


def put(store: Store, name: str, values: list[bytes], **options: Any) -> str:
    """Stage batches of three records."""
    with open(os.path.join(staging_directory(store), name), "wb") as file:
        for start in range(0, len(values), 3):
            file.write(encode_values(values[start : start + 3], 1_000, **options))
    return name


def staging_directory(store: Store) -> str:
    path = os.path.join(store.path, "staging")
    os.makedirs(path, exist_ok=True)
    return path


def staged_files(path: Path) -> list[str]:
    return sorted(os.listdir(path / "staging"))


def make(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=3)
        for partition in range(3):
            log.append_many("t", BEFORE, partition=partition)


def contents(path: Path) -> dict[int, list[bytes | None]]:
    with embedlog.open(path) as log:
        return {p: [record.value for record in log.read("t", p)] for p in range(3)}


NOTHING = dict.fromkeys(range(3), BEFORE)
EVERYTHING = {p: [*BEFORE, *STAGED.get(p, [])] for p in range(3)}


def test_a_repeated_atomic_append_is_applied_once(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    assert append_atomically(store, "query", 4, stage(store))
    assert not append_atomically(store, "query", 4, stage(store))
    assert not append_atomically(store, "query", 3, stage(store))
    assert json.loads((tmp_path / "published-transactions.json").read_text())["transactions"] == {"query": 4}
    assert os.listdir(staging_directory(store)) == []
    assert {p: o.flushed_offset for p, o in store.offsets("t").items()} == {0: 6, 1: 1, 2: 8}
    store.close()
    assert contents(tmp_path) == EVERYTHING


@pytest.mark.slow
def test_killed_at_each_system_call_it_is_all_or_nothing(tmp_path: Path) -> None:
    outcomes = []
    for number in range(200):
        path = tmp_path / str(number)
        make(path)
        child = os.fork()
        if child == 0:
            try:
                fs = FaultyFileSystem(path)
                store = Store(str(path), fs=fs, background=False)
                staged = stage(store)
                fs.exit_before = len(fs.calls) + number
                append_atomically(store, "query", 0, staged)
            except BaseException:
                os._exit(2)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code != 2
        found = contents(path)
        assert found in (NOTHING, EVERYTHING)
        outcomes.append(found == EVERYTHING)
        # The same batch again: a retry after the crash, which must not double anything.
        store = Store(str(path), background=False)
        assert append_atomically(store, "query", 0, stage(store)) == (not outcomes[-1])
        store.close()
        assert contents(path) == EVERYTHING
        if code == 0:
            break
    else:
        pytest.fail("publishing never came to its end")
    assert outcomes == sorted(outcomes)
    assert not outcomes[0] and outcomes[-1]


def test_after_a_failure_past_the_intent_appends_are_refused_until_recovery(tmp_path: Path) -> None:
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    store = Store(str(tmp_path), fs=fs, background=False)
    staged = stage(store)
    fs.fail("write", errno.ENOSPC, path="t_2")
    with pytest.raises(embedlog.DiskFull):
        append_atomically(store, "query", 0, staged)
    for partition in (0, 2):
        with pytest.raises(embedlog.PartitionFailed, match="open it again"):
            store.partition("t", partition).append(encode_values([b"x"], 1))
        with pytest.raises(embedlog.PartitionFailed, match="open it again"):
            store.reopen("t", partition)
    store.partition("t", 1).append(encode_values([b"x"], 1))
    store.close()
    assert contents(tmp_path) == {**EVERYTHING, 1: [*BEFORE, b"x"]}


def test_other_appenders_wait(tmp_path: Path) -> None:
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        store = log._writer()
        append_atomically(store, "query", 0, stage(store))
        assert log.append("t", b"after", partition=0).offset == 6


@pytest.mark.parametrize("name", ["../escape", "", ".", "..", "a/b", "x" * 201])
def test_a_staged_name_cannot_leave_the_staging_directory(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    with pytest.raises(embedlog.InvalidArgument, match="cannot name a staged file"):
        append_atomically(store, "query", 0, {TopicPartition("t", 0): name})
    store.close()


def test_a_staged_file_with_a_partial_batch_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    path = os.path.join(staging_directory(store), "job.task-2")
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 1)
    with pytest.raises(embedlog.CorruptRecord, match="complete record batches"):
        append_atomically(store, "query", 0, staged)
    store.close()
    assert contents(tmp_path) == NOTHING


@pytest.mark.parametrize("garbage", [b"{", b"[]", b'{"version": 2}', b'{"version": 1, "appends": []}'])
def test_an_undecodable_intent_is_an_error_and_changes_nothing(tmp_path: Path, garbage: bytes) -> None:
    make(tmp_path)
    intent = tmp_path / "publish-intent"
    intent.write_bytes(garbage)
    with pytest.raises(embedlog.CorruptCheckpoint, match="publish-intent"):
        embedlog.open(tmp_path)
    assert intent.read_bytes() == garbage
    intent.unlink()
    assert contents(tmp_path) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        *('{"transactions": []}', '{"transactions": {"query": "4"}}', '{"transactions": {"query": null}}'),
        *(
            '{"transactions": {"query": true}}',
            '{"transactions": {"query": 1e400}}',
            "{}",
            "[]",
            "[" * 100_000,
        ),
        *('{"transactions": {"another": [4]}}', "\0", ""),
    ],
    ids=range(11),
)
def test_undecodable_published_transactions(tmp_path: Path, text: str) -> None:
    """Whether something was published cannot be told any more: nothing is, and what was staged stays."""
    make(tmp_path)
    transactions = tmp_path / "published-transactions.json"
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    transactions.write_text(text)
    with pytest.raises(embedlog.CorruptCheckpoint, match=r"published-transactions\.json"):
        append_atomically(store, "query", 4, staged)
    assert staged_files(tmp_path) == sorted(name for names in staged.values() for name in names)
    store.close()
    (tmp_path / "publish-intent").write_text(
        '{"version": 1, "transaction_id": "query", "batch_id": 4, "appends": []}'
    )
    for _ in range(2):
        with pytest.raises(embedlog.CorruptCheckpoint, match=r"published-transactions\.json"):
            embedlog.open(tmp_path)
    transactions.unlink()
    assert contents(tmp_path) == NOTHING


@pytest.mark.parametrize(
    ("transaction_id", "batch_id"),
    [
        (None, 1),
        (5, 1),
        ("\ud800", 1),
        ("query", "1"),
        ("query", 1.5),
        ("query", None),
        ("query", True),
        ("query", -1),
    ],
)
def test_an_impossible_transaction_name(tmp_path: Path, transaction_id: object, batch_id: object) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    with pytest.raises(embedlog.EmbedlogError, match=r"transaction_id|batch_id"):
        append_atomically(store, transaction_id, batch_id, staged)  # type: ignore[arg-type]
    assert append_atomically(store, "query", 0, staged)
    store.close()


def test_concurrent_atomic_appends_are_serialized(tmp_path: Path) -> None:
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        store = log._writer()

        def one(number: int) -> bool:
            name = put(store, f"job{number}.a", [b"%d" % number] * 4)
            return append_atomically(store, f"query-{number}", 0, {TopicPartition("t", number % 3): name})

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(one, range(24)))
        for partition in range(3):
            values = [record.value for record in log.read("t", partition)][1:]
            runs = [values[i : i + 4] for i in range(0, len(values), 4)]
            assert sorted(run[0] or b"" for run in runs) == sorted(b"%d" % n for n in range(partition, 24, 3))
            assert all(len(set(run)) == 1 for run in runs)


def test_readers_see_whole_batches_in_order_meanwhile(tmp_path: Path) -> None:
    """From another view of the directory, at every call that the publication makes."""
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    seen: list[tuple[int, ...]] = []
    with embedlog.open(tmp_path, fs=fs) as log, embedlog.open(tmp_path, mode="r") as reader:
        store = log._writer()
        staged = stage(store)

        def look() -> None:
            found = {p: [record.value for record in reader.read("t", p)] for p in range(3)}
            for partition, values in found.items():
                assert values == EVERYTHING[partition][: len(values)]
            seen.append(tuple(len(values) for values in found.values()))

        for operation in ("create", "write", "sync", "rename", "unlink"):
            fs.at(operation, look, times=1000)
        assert append_atomically(store, "query", 0, staged)
        fs.forget()
        look()
    assert seen[0] == (1, 1, 1) and seen[-1] == (6, 1, 8)
    assert seen == sorted(seen)  # what was once there stays


def test_without_room_nothing_is_appended_and_the_log_works_on(tmp_path: Path) -> None:
    class Nearly(FaultyFileSystem):
        def free_bytes(self, path: str) -> int:
            return 100

    make(tmp_path)
    store = Store(str(tmp_path), fs=Nearly(tmp_path), background=False)
    staged = stage(store)
    with pytest.raises(embedlog.DiskFull, match="nothing was appended"):
        append_atomically(store, "query", 0, staged)
    assert len(staged_files(tmp_path)) == 3
    store.partition("t", 0).append(encode_values([b"x"], 1))
    store.close()
    store = Store(str(tmp_path), background=False)
    assert append_atomically(store, "query", 0, staged)
    store.close()


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_an_unwritable_intent_changes_nothing(tmp_path: Path, operation: str) -> None:
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    store = Store(str(tmp_path), fs=fs, background=False)
    staged = stage(store)
    fs.fail(operation, errno.ENOSPC, path="publish-intent")
    with pytest.raises(OSError, match="No space"):
        append_atomically(store, "query", 0, staged)
    assert fs.failed
    store.partition("t", 0).append(encode_values([b"x"], 1))
    assert append_atomically(store, "query", 0, staged)
    store.close()
    assert contents(tmp_path) == {**EVERYTHING, 0: [*BEFORE, b"x", *STAGED[0]]}


def test_max_bytes_applies_to_atomic_appends(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False, settings=LogSettings(max_bytes=300))
    with pytest.raises(embedlog.LogFull):
        append_atomically(store, "query", 0, stage(store))
    store.close()
    assert contents(tmp_path) == NOTHING


def test_an_interrupted_atomic_append_blocks_others(tmp_path: Path) -> None:
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    store = Store(str(tmp_path), fs=fs, background=False)
    staged = stage(store)
    fs.fail("write", errno.ENOSPC, path="t_2")
    with pytest.raises(embedlog.DiskFull):
        append_atomically(store, "query", 0, staged)
    other = {TopicPartition("t", 1): put(store, "other.a", [b"b"])}
    with pytest.raises(embedlog.StorageError, match="open it again to complete it"):
        append_atomically(store, "other", 0, other)
    # Its files are needed yet, whatever their job says of them, and however long it takes.
    assert discard(store, "job") == 0
    assert discard(store, "other") == 1
    for name in staged_files(tmp_path):
        os.utime(tmp_path / "staging" / name, (1, 1))
    assert tidy(store) == 0
    store.close()
    assert contents(tmp_path) == EVERYTHING


def test_an_intent_with_missing_files_is_an_error(tmp_path: Path) -> None:
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    store = Store(str(tmp_path), fs=fs, background=False)
    staged = stage(store)
    fs.fail("write", errno.ENOSPC, path="t_0")
    with pytest.raises(embedlog.DiskFull):
        append_atomically(store, "query", 0, staged)
    store.close()
    file = tmp_path / "staging" / "job.task-1"
    data = file.read_bytes()
    file.unlink()
    for _ in range(2):
        with pytest.raises(embedlog.CorruptCheckpoint, match=r"names 'job\.task-1'"):
            embedlog.open(tmp_path)
    file.write_bytes(data)
    assert contents(tmp_path) == EVERYTHING
    assert staged_files(tmp_path) == []


def test_transaction_ids_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_append, "REMEMBERED", 3)
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    assert append_atomically(store, "stream", 7, {})
    for number in range(9):
        assert append_atomically(store, f"load-{number}", 0, stage(store), once=True)
        assert not append_atomically(store, f"load-{number}", 0, stage(store), once=True)
        assert not append_atomically(store, f"load-{max(number - 2, 0)}", 0, stage(store), once=True)
    store.close()
    kept = json.loads((tmp_path / "published-transactions.json").read_text())
    assert kept == {"version": 1, "transactions": {"stream": 7}, "once": ["load-6", "load-7", "load-8"]}
    with embedlog.open(tmp_path) as log:
        assert len(list(log.read("t", 0))) == 1 + 9 * len(STAGED[0])


def test_unsuitable_staged_batches_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        log.alter_topic("t", max_message_bytes=200)
        store = log._writer()
        sequenced = put(store, "a", [b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
        control = put(store, "b", [b"x"])
        (tmp_path / "staging" / control).write_bytes(
            encode_control_batch(commit=True, producer_id=7, producer_epoch=0, timestamp_ms=1)
        )
        large = put(store, "c", [b"x" * 70] * 3)
        small = put(store, "d", [b"x"])
        for name, error, why in (
            (sequenced, embedlog.InvalidArgument, "has a producer id or gaps"),
            (control, embedlog.InvalidArgument, "has a producer id or gaps"),
            (large, embedlog.RecordTooLarge, r"c: the batch of record 0 has .* takes 200"),
            ("e", embedlog.InvalidArgument, "no staged file 'e'"),
            ((small, small), embedlog.InvalidArgument, "named twice"),
        ):
            with pytest.raises(error, match=why):
                append_atomically(store, "query", 0, {TopicPartition("t", 0): name})
        for partition, error in ((3, embedlog.PartitionNotFound), (0, embedlog.TopicNotFound)):
            topic = "t" if partition else "none"
            with pytest.raises(error):
                append_atomically(store, "query", 0, {TopicPartition(topic, partition): small})
    assert contents(tmp_path) == NOTHING


@pytest.mark.parametrize("size", [1, 61, 100, 150, 1 << 20])
def test_staged_files_are_read_in_pieces(tmp_path: Path, size: int) -> None:
    """A batch larger than a piece comes alone; nothing is read at once that need not be."""
    make(tmp_path)
    largest = 0

    class Counting(FileSystem):
        def pread(self, fd: int, size: int, pos: int) -> bytes:
            nonlocal largest
            largest = max(largest, size)
            return super().pread(fd, size, pos)

    store = Store(str(tmp_path), background=False)
    values = [b"%03d" % i * 10 for i in range(50)]
    name = put(store, "a", values)
    store.close()
    path = tmp_path / "staging" / name
    batches = scan(path.read_bytes()).headers
    found = list(staged_module.pieces(Counting(), str(path), size))
    assert sum(header.record_count for _, headers in found for header in headers) == len(values)
    assert sum(len(headers) for _, headers in found) == len(batches)
    assert largest <= max(size, 61, *(header.size for header in batches))


@pytest.mark.parametrize("limit", ["message_timestamp_before_max_ms", "message_timestamp_after_max_ms"])
def test_the_topics_limits_of_time(tmp_path: Path, limit: str) -> None:
    """They count for each record of every file, wherever a file's first piece ends."""
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        log.alter_topic("t", **{limit: 60_000})
        store = log._writer()
        now_ms = time.time_ns() // 1_000_000
        wrong_ms = now_ms + (-120_000 if "before" in limit else 120_000)
        path = os.path.join(staging_directory(store), "b")
        with open(path, "wb") as file:
            for time_ms in (now_ms, now_ms, wrong_ms):
                file.write(encode_values([b"x" * 100] * 2, time_ms))
        right = os.path.join(staging_directory(store), "a")
        Path(right).write_bytes(bytes(encode_values([b"right"], now_ms)))
        staged = {TopicPartition("t", 0): "a", TopicPartition("t", 2): "b"}
        for piece in (1 << 20, 200):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(staged_module, "PIECE", piece)
                with pytest.raises(embedlog.InvalidTimestamp, match=f"2 of 6 records.*{limit}") as refused:
                    append_atomically(store, "query", 0, staged)
                assert refused.value.records == [(4, wrong_ms), (5, wrong_ms)]
        assert append_atomically(store, "query", 0, {TopicPartition("t", 0): "a"})
    assert contents(tmp_path) == NOTHING | {0: [*BEFORE, b"right"]}


def test_an_atomic_append_sets_append_time(tmp_path: Path) -> None:
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        log.alter_topic("t", message_timestamp_type="LogAppendTime", segment_bytes=1024)
        store = log._writer()
        values = [b"%d" % i + bytes(200) for i in range(30)]
        append_atomically(store, "query", 0, {TopicPartition("t", 0): put(store, "a", values)})
        records = list(log.read("t", 0))[1:]
        assert [record.value for record in records] == values
        assert {record.timestamp_type for record in records} == {1}
        assert min(record.timestamp_ms for record in records) > 1_000
        assert len(store.partition("t", 0).segments()) > 3  # no piece is larger than a segment may be


def test_staged_files_of_dead_jobs_expire_after_a_week(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    for name in ("dead.0", "dead.1", "live.0", "live.1", "new.0"):
        put(store, name, [b"x"])
    old = time.time() - staged_module.ABANDONED_MS / 1000 - 60
    for name in ("dead.0", "dead.1", "live.0"):
        os.utime(tmp_path / "staging" / name, (old, old))
    assert tidy(store) == 2
    assert staged_files(tmp_path) == ["live.0", "live.1", "new.0"]
    assert discard(store, "live") == 2
    assert discard(store, "nobody") == 0
    assert staged_files(tmp_path) == ["new.0"]
    with pytest.raises(embedlog.InvalidArgument):
        discard(store, "../t_0")
    store.close()
