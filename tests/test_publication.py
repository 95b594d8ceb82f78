"""Several partitions get their records together or not at all, whatever is killed or fails on the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from faults import FaultyFileSystem

import embedlog
from embedlog.codec import encode_values
from embedlog.model import TopicPartition
from embedlog.publication import last_published, publish, staging_directory
from embedlog.store import Store

BEFORE = [b"before"]
STAGED = {0: [b"a%d" % i for i in range(5)], 2: [b"c%d" % i for i in range(7)]}


def stage(store: Store) -> dict[TopicPartition, str]:
    """Two batches for partition 0, three for partition 2."""
    directory = staging_directory(store)
    names = {}
    for partition, values in STAGED.items():
        name = f"task-{partition}"
        with open(os.path.join(directory, name), "wb") as file:
            for start in range(0, len(values), 3):
                file.write(encode_values(values[start : start + 3], 1_000))
        names[TopicPartition("t", partition)] = name
    return names


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


def test_published_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    assert publish(store, "query", 4, stage(store))
    assert not publish(store, "query", 4, stage(store))
    assert not publish(store, "query", 3, stage(store))
    assert last_published(store, "query") == 4
    assert last_published(store, "another") == -1
    assert os.listdir(staging_directory(store)) == []
    assert {p: o.flushed_offset for p, o in store.offsets("t").items()} == {0: 6, 1: 1, 2: 8}
    store.close()
    assert contents(tmp_path) == EVERYTHING


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
                publish(store, "query", 0, staged)
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
        assert publish(store, "query", 0, stage(store)) == (not outcomes[-1])
        store.close()
        assert contents(path) == EVERYTHING
        if code == 0:
            break
    else:
        pytest.fail("publishing never came to its end")
    assert outcomes == sorted(outcomes)
    assert not outcomes[0] and outcomes[-1]


def test_after_a_failure_past_the_intent_nobody_appends_and_the_next_open_carries_on(tmp_path: Path) -> None:
    make(tmp_path)
    fs = FaultyFileSystem(tmp_path)
    store = Store(str(tmp_path), fs=fs, background=False)
    staged = stage(store)
    fs.fail("write", errno.ENOSPC, path="t_2")
    with pytest.raises(embedlog.DiskFull):
        publish(store, "query", 0, staged)
    for partition in (0, 2):
        with pytest.raises(embedlog.PartitionFailed, match="open it again"):
            store.partition("t", partition).append(encode_values([b"x"], 1))
        with pytest.raises(embedlog.PartitionFailed, match="open it again"):
            store.reopen("t", partition)
    store.partition("t", 1).append(encode_values([b"x"], 1))
    store.close()
    assert contents(tmp_path) == {**EVERYTHING, 1: [*BEFORE, b"x"]}


def test_other_appenders_wait_until_it_is_done(tmp_path: Path) -> None:
    make(tmp_path)
    with embedlog.open(tmp_path) as log:
        store = log._writer()
        publish(store, "query", 0, stage(store))
        assert log.append("t", b"after", partition=0).offset == 6


@pytest.mark.parametrize("name", ["../escape", "", ".", "..", "a/b", "x" * 201])
def test_a_staged_name_cannot_leave_the_staging_directory(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    with pytest.raises(embedlog.InvalidArgument, match="cannot name a staged file"):
        publish(store, "query", 0, {TopicPartition("t", 0): name})
    store.close()


def test_a_staged_file_that_is_not_whole_batches_is_refused_before_anything_happens(tmp_path: Path) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    path = os.path.join(staging_directory(store), "task-2")
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 1)
    with pytest.raises(embedlog.CorruptRecord, match="whole record batches"):
        publish(store, "query", 0, staged)
    store.close()
    assert contents(tmp_path) == NOTHING


@pytest.mark.parametrize("garbage", [b"{", b"[]", b'{"version": 2}', b'{"version": 1, "appends": []}'])
def test_an_intent_that_cannot_be_understood_is_an_error_and_changes_nothing(
    tmp_path: Path, garbage: bytes
) -> None:
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
def test_published_transactions_that_cannot_be_understood(tmp_path: Path, text: str) -> None:
    """Whether something was published cannot be told any more: nothing is, and what was staged stays."""
    make(tmp_path)
    transactions = tmp_path / "published-transactions.json"
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    transactions.write_text(text)
    with pytest.raises(embedlog.CorruptCheckpoint, match=r"published-transactions\.json"):
        publish(store, "query", 4, staged)
    assert sorted(os.listdir(staging_directory(store))) == sorted(staged.values())
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
def test_a_publication_under_an_impossible_name(
    tmp_path: Path, transaction_id: object, batch_id: object
) -> None:
    make(tmp_path)
    store = Store(str(tmp_path), background=False)
    staged = stage(store)
    with pytest.raises(embedlog.EmbedlogError, match=r"transaction_id|batch_id"):
        publish(store, transaction_id, batch_id, staged)  # type: ignore[arg-type]
    assert publish(store, "query", 0, staged)
    store.close()
