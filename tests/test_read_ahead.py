"""Prefetched chunks: same records, same errors, no thread left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import batches, flip, segments
from faults import crash, in_child, open_log

import embedlog
from embedlog.clients import prefetch as read_ahead
from embedlog.clients.fetch_decoder import Values
from embedlog.clients.prefetch import Prefetcher
from embedlog.clients.reader import PartitionReader
from embedlog.codec import encode_batch
from embedlog.errors import CorruptRecord, ForkedHandle, StorageError
from embedlog.model import Fetched, TopicPartition


@pytest.fixture(autouse=True)
def small_chunks_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_LEAST", 1)
    monkeypatch.setattr(read_ahead, "processors", lambda: 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Values 0 to 599 in batches of ten, of three leader epochs."""
    for epoch in range(3):
        log = open_log(tmp_path / "log")
        if epoch == 0:
            log.create_topic("t", segment_bytes=8000)
        for number in range(epoch * 200, epoch * 200 + 200, 10):
            log.append_many("t", [b"%d" % value for value in range(number, number + 10)])
        log.flush()
        crash(log)
    embedlog.open(tmp_path / "log").close()
    return tmp_path / "log"


class Watched:
    """A backend that tells who fetched what, and may do something else first."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.fetched: list[tuple[int, int]] = []
        self.before: Callable[[int], None] = lambda offset: None

    def fetch(self, topic: str, partition: int, offset: int, *rest: Any, **options: Any) -> Fetched:
        self.fetched.append((threading.get_ident(), offset))
        self.before(offset)
        found: Fetched = self._backend.fetch(topic, partition, offset, *rest, **options)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path) as opened:
        yield opened


def read_all(reader: PartitionReader) -> list[int]:
    found: list[int] = []
    with Prefetcher(reader) as ahead:
        sink = Values()
        while ahead.read_into(sink):
            found += [int(value or b"") for value in sink.taken]
            sink.taken.clear()
    return found


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 600), (123, 456), (599, 600), (600, 600)])
def test_the_same_records(log: embedlog.Log, max_bytes: int, start: int, end: int) -> None:
    backend = Watched(log.backend)
    reader = PartitionReader(backend, TopicPartition("t", 0), start, end=end, max_bytes=max_bytes)
    assert read_all(reader) == list(range(start, end))
    others = [offset for thread, offset in backend.fetched if thread != threading.get_ident()]
    if max_bytes < 1000 and end - start > 10:
        assert others
    # Where the epoch changes, and before it is known, what was fetched ahead may not be used.
    assert len(backend.fetched) - len({offset for _, offset in backend.fetched}) <= 4


def test_damage_is_raised_at_its_position(path: Path) -> None:
    segment = segments(path / "t_0")[1]
    flip(segment, batches(segment)[3].pos + 70)
    with embedlog.open(path, mode="r") as log:
        plain = PartitionReader(log.backend, TopicPartition("t", 0), 0, max_bytes=300)
        before: list[int] = []
        with pytest.raises(CorruptRecord) as met:
            while values := plain.read_values():
                before += [int(value or b"") for value in values]
        reader = PartitionReader(log.backend, TopicPartition("t", 0), 0, max_bytes=300)
        sink = Values()
        with Prefetcher(reader) as ahead, pytest.raises(CorruptRecord) as met_ahead:
            while ahead.read_into(sink):
                pass
        assert [int(value or b"") for value in sink.taken] == before
        assert str(met_ahead.value) == str(met.value)


def test_a_prefetch_error_is_raised_only_if_it_recurs(log: embedlog.Log) -> None:
    backend = Watched(log.backend)
    here = threading.get_ident()

    def fail_elsewhere(offset: int) -> None:
        if threading.get_ident() != here:
            raise StorageError("not now")

    def fail_everywhere(offset: int) -> None:
        if offset > 300:
            raise StorageError("never")

    backend.before = fail_elsewhere
    reader = PartitionReader(backend, TopicPartition("t", 0), 0, end=600, max_bytes=300)
    assert read_all(reader) == list(range(600))
    backend.before = fail_everywhere
    reader = PartitionReader(backend, TopicPartition("t", 0), 0, end=600, max_bytes=300)
    with pytest.raises(StorageError, match="never"):
        read_all(reader)
    assert 200 < reader.position <= 310


def test_an_empty_prefetch_is_repeated(log: embedlog.Log) -> None:
    batch = encode_batch(
        [(None, b"600", (), 5)] * 5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.backend.append("t", 0, batch)
    reader = PartitionReader(
        log.backend, TopicPartition("t", 0), 400, end=605, max_bytes=300, read_committed=True
    )
    assert read_all(reader) == list(range(400, 600))
    assert reader.position == 600


def ahead_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "embedlog-prefetch" in thread.name]


def test_no_thread_is_left(log: embedlog.Log) -> None:
    rows = log.read_arrow("t", max_bytes=300)
    for _ in range(5):
        next(rows)
    assert ahead_threads()
    rows.close()  # type: ignore[attr-defined]
    assert not ahead_threads()
    assert sum(batch.num_rows for batch in log.read_arrow("t", max_bytes=300)) == 600
    assert not ahead_threads()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused(log: embedlog.Log) -> None:
    rows = log.read_arrow("t", max_bytes=300)
    for _ in range(5):
        next(rows)

    def child() -> None:
        with pytest.raises(ForkedHandle):
            next(rows)

    assert in_child(child) == 0
    assert sum(batch.num_rows for batch in rows) > 0


def test_one_processor_needs_no_other_thread(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "processors", lambda: 1)
    backend = Watched(log.backend)
    reader = PartitionReader(backend, TopicPartition("t", 0), 0, end=600, max_bytes=300)
    assert read_all(reader) == list(range(600))
    assert {thread for thread, _ in backend.fetched} == {threading.get_ident()}
