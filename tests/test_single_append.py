"""The fast path of a single record writes the same bytes as the path of batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import (
    Clock,
    FaultyFileSystem,
    UnsyncedFileSystem,
    in_child,
    open_log,
    partition_of,
    store_of,
    values,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import Closed, DiskFull, ForkedHandle, Log, TopicNotFound, UnexpectedOffset
from embedlog.codec import encode_batch
from embedlog.model import RecordMetadata
from embedlog.store.read_only_store import ReadOnlyStore

pytestmark = pytest.mark.plain

NOW_MS = 1_700_000_000_000


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.glob("t_0/*"))
        if file.is_file()
    }


def the_ordinary_path(
    log: Log, key: bytes | None, value: bytes | None, timestamp_ms: int
) -> tuple[int, bool]:
    partition = partition_of(log)
    row = (key, value, (), timestamp_ms)
    batch = encode_batch([row], timestamp_type=partition.settings.append_time)
    appended = log.backend.append("t", 0, batch)
    return appended.base_offset, appended.durable


def the_fast_path(log: Log, key: bytes | None, value: bytes | None, timestamp_ms: int) -> tuple[int, bool]:
    topic, number, offset, time_ms, durable = log.backend.appenders("t")[0].append_one(
        key, value, timestamp_ms
    )
    assert (topic, number, time_ms) == ("t", 0, timestamp_ms)
    return offset, durable


def written(path: Path, way: Callable[..., Any], records: list[Any], **settings: Any) -> list[Any]:
    """All that is visible of a log that got these records one by one."""
    seen: list[Any] = []
    with open_log(path, UnsyncedFileSystem(), clock=Clock(NOW_MS), **settings) as log:
        log.create_topic("t")
        follower = ReadOnlyStore(str(path))
        woken: list[None] = []
        partition_of(log).log.add_listener(lambda: woken.append(None))
        for record in records:
            seen.append(way(log, *record))
            seen.append(follower.offsets("t"))
            seen.append(log.offsets("t"))
        seen += [log.offset_for_time("t", 0, NOW_MS + n) for n in range(5)]
        seen += [log.health().bytes, store_of(log).cleaner.appends.number, len(woken)]
        follower.close()
    with open_log(path, UnsyncedFileSystem(), clock=Clock(NOW_MS + 1), **settings) as log:
        assert log.recovery.clean
        seen += list(log.read("t"))
        way(log, None, b"in another epoch", NOW_MS)
    return [*seen, files(path)]


some_bytes = st.none() | st.binary(max_size=200)


@given(
    st.lists(st.tuples(some_bytes, some_bytes, st.integers(NOW_MS, NOW_MS + 4)), max_size=30),
    st.fixed_dictionaries(
        {
            "segment_bytes": st.sampled_from([1024, 1 << 20]),
            "index_interval_bytes": st.sampled_from([0, 300]),
            "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
            "flush_messages": st.sampled_from([1, 3, 1 << 60]),
            "preallocate": st.booleans(),
        }
    ),
)
@hypothesis_settings(deadline=None, max_examples=examples(25))
def test_both_paths_write_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], settings: dict[str, Any]
) -> None:
    here = tmp_path_factory.mktemp("ways")
    short = written(here / "short", the_fast_path, records, **settings)
    assert short == written(here / "general", the_ordinary_path, records, **settings)


def test_a_record_larger_than_a_segment_has_its_own(path: Path) -> None:
    with open_log(path, segment_bytes=1024) as log:
        log.create_topic("t")
        for size in (2000, 10, 800, 2000, 10):
            log.append("t", b"v" * size)
        assert [segment.base_offset for segment in partition_of(log).segments()] == [0, 1, 3, 4]
        assert [len(value or b"") for _, value in values(log)] == [2000, 10, 800, 2000, 10]


def test_a_segment_rolls_before_its_index_overflows(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("t")
        store_of(log).mark_gaps("t")
        log.append("t", b"first")
        batch = encode_batch([(None, b"far", (), NOW_MS)])
        batch[:8] = (2**31 - 2).to_bytes(8, "big")
        partition_of(log).append_as_is(batch)
        for number in range(3):
            log.append("t", b"%d" % number)
        assert [segment.base_offset for segment in partition_of(log).segments()] == [0, 2**31 - 1]
        assert [offset for offset, _ in values(log)] == [0, *range(2**31 - 2, 2**31 + 2)]


def test_an_ordinary_record_takes_the_fast_path(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("t")
    log.append("t", b"0")
    monkeypatch.delattr("embedlog.storage.appender.Appender.append")
    log.append("t", b"1")
    log.append("t", None, key=b"2")
    monkeypatch.undo()
    assert values(log) == [(0, b"0"), (1, b"1"), (2, None)]


def test_expected_offset_is_checked(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"0")
    appender = log.backend.appenders("t")[0]
    with pytest.raises(UnexpectedOffset) as unexpected:
        appender.append_one(None, b"1", NOW_MS, False, 0)
    assert unexpected.value.actual == 1
    assert appender.append_one(None, b"1", NOW_MS, True, 1) == RecordMetadata("t", 0, 1, NOW_MS, True)


def test_a_failed_write_is_undone_and_its_offset_reused(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("t")
        log.append("t", b"0")
        fs.fail("write", 28, path=".kafka")
        with pytest.raises(DiskFull, match="nothing was appended"):
            log.append("t", b"1" * 100)
        size = os.path.getsize(path / "t_0" / "00000000000.kafka")
        assert size == partition_of(log).segments()[0].size
        assert log.append("t", b"2").offset == 1
        assert values(log) == [(0, b"0"), (1, b"2")]


# -- on the way while it is closed ------------------------------------------------------------------------


@pytest.fixture(params=["append_one", "append"])
def late(request: pytest.FixtureRequest, log: Log) -> Iterator[Callable[[], object]]:
    """An append that has found its partition."""
    log.create_topic("t")
    log.append("t", b"0")
    if request.param == "append_one":
        appender = log.backend.appenders("t")[0]
        yield lambda: appender.append_one(None, b"1", NOW_MS)
    else:
        partition = partition_of(log)
        yield lambda: partition.append(encode_batch([(None, b"1", (), NOW_MS)]))


def test_an_append_to_a_deleted_topic_fails(log: Log, late: Callable[[], object]) -> None:
    log.delete_topic("t")
    with pytest.raises(TopicNotFound, match="t 0: the topic was deleted meanwhile"):
        late()
    log.create_topic("t")
    with pytest.raises(TopicNotFound, match="deleted meanwhile"):
        late()
    assert values(log) == []


def test_an_append_to_a_closed_log_fails(log: Log, late: Callable[[], object]) -> None:
    log.close()
    with pytest.raises(Closed):
        late()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_childs_handle_names_its_owner(log: Log, late: Callable[[], object]) -> None:
    def append() -> None:
        with pytest.raises(ForkedHandle):
            late()

    assert in_child(append) == 0
    assert values(log) == [(0, b"0")]


def test_a_reader_cannot_append(log: Log, path: Path) -> None:
    log.create_topic("t")
    with embedlog.open(path, mode="r") as reader, pytest.raises(embedlog.ReadOnly):
        reader.append("t", b"0")


def test_equal_values_hash_alike(tmp_path: Path) -> None:
    """The compiled loops make named tuples by themselves, down to where a tuple keeps its hash."""
    with open_log(tmp_path) as log:
        log.create_topic("t")
        metadata = log.append("t", b"value", key=b"key")
        appended = log.append_many("t", [b"value"]).by_partition[0]
        for made in (metadata, appended, *log.read("t")):
            copied = type(made)(*made)
            assert made == copied
            assert hash(made) == hash(copied)
