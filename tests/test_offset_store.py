"""Offsets in a file: durable, atomic, shared between threads and processes, never reset."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.clients.offset_store import FileOffsetStore
from embedlog.errors import CorruptCheckpoint, InvalidType, StorageError
from embedlog.model import CommittedOffset, TopicPartition

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets.json"


def test_saved_offsets_are_loaded_by_another_store(path: Path) -> None:
    FileOffsetStore(path).save("billing", {CLICKS: CommittedOffset(7, 2, "half-way", 1_000)})
    assert FileOffsetStore(path).load("billing", [CLICKS, VIEWS]) == {
        CLICKS: CommittedOffset(7, 2, "half-way", 1_000)
    }


def test_saves_add_up(path: Path) -> None:
    store = FileOffsetStore(path)
    store.save("billing", {CLICKS: CommittedOffset(7)})
    store.save("billing", {VIEWS: CommittedOffset(1)})
    store.save("audit", {CLICKS: CommittedOffset(3)})
    store.save("billing", {CLICKS: CommittedOffset(8)})
    assert {tp: kept.offset for tp, kept in store.load("billing", [CLICKS, VIEWS]).items()} == {
        CLICKS: 8,
        VIEWS: 1,
    }
    assert store.load("audit", [CLICKS])[CLICKS].offset == 3


def test_a_save_records_its_time(path: Path) -> None:
    store = FileOffsetStore(path)
    store.save("billing", {CLICKS: CommittedOffset(7)})
    assert store.load("billing", [CLICKS])[CLICKS].commit_timestamp_ms > 1_700_000_000_000


def test_no_file_before_the_first_save(path: Path) -> None:
    assert FileOffsetStore(path).load("billing", [CLICKS]) == {}
    assert not path.exists()


def test_only_the_file_and_its_lock_remain(path: Path) -> None:
    store = FileOffsetStore(path)
    store.save("billing", {CLICKS: CommittedOffset(7)})
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["offsets.json", "offsets.json.lock"]


def test_a_relative_path_is_resolved_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    store = FileOffsetStore("offsets.json")
    monkeypatch.chdir("/")
    store.save("billing", {CLICKS: CommittedOffset(7)})
    assert path.exists()


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.dictionaries(
            st.builds(TopicPartition, st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), st.integers(0, 99)),
            st.builds(
                CommittedOffset,
                st.integers(0, 2**63 - 1),
                st.integers(-1, 2**31 - 1),
                st.text(),
                st.integers(0, 2**63 - 1),
                st.sampled_from(("", "l7S--x86QoGx5Onftu4grw")),
            ),
        ),
        max_size=3,
    )
)
@pytest.mark.slow
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, groups: dict[str, dict[TopicPartition, CommittedOffset]]
) -> None:
    store = FileOffsetStore(tmp_path_factory.mktemp("store") / "offsets.json")
    for group, offsets in groups.items():
        store.save(group, offsets)
    for group, offsets in groups.items():
        assert store.load(group, list(offsets)) == offsets


GOOD = {"offset": 1, "leader_epoch": 0, "metadata": "", "commit_timestamp_ms": 5}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": 2, "groups": {}}',
        b'{"version": 1, "groups": []}',
        b'{"version": 1, "groups": {"g": {"t": [1]}}}',
        b"[" * 100_000,
        json.dumps({"version": 1, "groups": {"g": {"t": {"zero": GOOD}}}}).encode(),
        json.dumps({"version": 1, "groups": {"g": {"t": {"0": GOOD | {"offset": -5}}}}}).encode(),
        json.dumps({"version": 1, "groups": {"g": {"t": {"0": GOOD | {"offset": "5"}}}}}).encode(),
        json.dumps({"version": 1, "groups": {"g": {"t": {"0": {"offset": 5}}}}}).encode(),
    ],
)
def test_garbage_is_an_error_and_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    store = FileOffsetStore(path)
    with pytest.raises(CorruptCheckpoint) as caught:
        store.load("g", [CLICKS])
    assert caught.value.path == path
    with pytest.raises(CorruptCheckpoint):
        store.save("g", {CLICKS: CommittedOffset(1)})
    assert path.read_bytes() == content


def test_every_truncation_is_an_error(path: Path) -> None:
    store = FileOffsetStore(path)
    store.save("billing", {CLICKS: CommittedOffset(7)})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptCheckpoint):
            store.load("billing", [CLICKS])


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "no" / "offsets.json")
    with pytest.raises(StorageError):
        store.save("billing", {CLICKS: CommittedOffset(7)})
    with pytest.raises(StorageError):
        FileOffsetStore(tmp_path).load("billing", [CLICKS])
    with pytest.raises(InvalidType):
        FileOffsetStore(cast("str", 7))


def test_threads_lose_nothing(path: Path) -> None:
    def save(number: int) -> None:
        FileOffsetStore(path).save(f"group {number}", {CLICKS: CommittedOffset(number)})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(40)))
    store = FileOffsetStore(path)
    assert [store.load(f"group {n}", [CLICKS])[CLICKS].offset for n in range(40)] == list(range(40))


PROCESS = """
import sys
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.clients.offset_store import FileOffsetStore
store = FileOffsetStore(sys.argv[1])
for offset in range(25):
    store.save(sys.argv[2], {TopicPartition("clicks", 0): CommittedOffset(offset)})
"""


def test_processes_lose_nothing(path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(path), f"group {number}"]) for number in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    store = FileOffsetStore(path)
    assert [store.load(f"group {n}", [CLICKS])[CLICKS].offset for n in range(3)] == [24, 24, 24]
