"""A dict of lists against the log, in any order of appends, rolls, flushes, closes, crashes and deletions.

A crash is what SIGKILL leaves: the files as they are at that moment, copied while the log is open, and
opened in the other place. Nothing that was appended may be missing then, flushed or not: the page cache
outlives a process.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from housekeeping import housekeep
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from programs import crash
from rounds import examples

import embedlog
from embedlog import Log, OffsetOutOfRange, Record, TopicExists, TopicNotFound, UnexpectedOffset

pytestmark = pytest.mark.plain

_SEGMENT_BYTES = 1024
_START_MS = 1_700_000_000_000

_contents = st.tuples(
    st.one_of(st.none(), st.binary(max_size=8)),
    st.one_of(st.none(), st.binary(max_size=300)),
    st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=5))), max_size=2),
    st.integers(_START_MS, _START_MS + 1_000_000),
)
_codecs = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])


class Partition:
    """The expected partition: records[i] has offset i; those before `start` are deleted."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.start = 0


class Model(RuleBasedStateMachine):
    layout = "classic"

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="embedlog-model-"))
        self.crashes = 0
        self.path = self.root / "0"
        self.topics: dict[str, list[Partition]] = {}
        self.log = self.open()

    def open(self) -> Log:
        return embedlog.open(
            self.path, layout=self.layout, segment_bytes=_SEGMENT_BYTES, file_delete_delay_ms=0
        )

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)

    # -- topics ----------------------------------------------------------------------------------------

    @initialize(target=names)
    def begin(self) -> str:
        self.log.create_topic("first", partitions=2)
        self.topics["first"] = [Partition(), Partition()]
        return "first"

    @rule(target=names, name=st.sampled_from(["first", "second", "third-3", "x_0"]), count=st.integers(1, 3))
    def create_topic(self, name: str, count: int) -> str:
        if name in self.topics:
            with pytest.raises(TopicExists):
                self.log.create_topic(name, partitions=count)
        else:
            self.log.create_topic(name, partitions=count)
            self.topics[name] = [Partition() for _ in range(count)]
        return name

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        if name in self.topics:
            self.log.delete_topic(name)
            del self.topics[name]
        else:
            with pytest.raises(TopicNotFound):
                self.log.delete_topic(name)

    @rule(name=names)
    def add_partition(self, name: str) -> None:
        if name in self.topics and len(self.topics[name]) < 4:
            self.log.create_partitions(name, len(self.topics[name]) + 1)
            self.topics[name].append(Partition())

    # -- appending -------------------------------------------------------------------------------------

    @rule(name=names, number=st.integers(0, 3), content=_contents, flush=st.booleans(), guarded=st.booleans())
    def append(self, name: str, number: int, content: tuple, flush: bool, guarded: bool) -> None:
        if name not in self.topics:
            with pytest.raises(TopicNotFound):
                self.log.append(name, b"x")
            return
        number %= len(self.topics[name])
        records = self.topics[name][number].records
        key, value, headers, timestamp_ms = content
        placed = self.log.append(
            name,
            value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=number,
            flush=flush,
            expected_offset=len(records) if guarded else None,
        )
        assert placed == (name, number, len(records), timestamp_ms, flush)
        records.append(Record(name, number, len(records), timestamp_ms, 0, key, value, tuple(headers)))

    @rule(name=names, number=st.integers(0, 3), contents=st.lists(_contents, max_size=12), codec=_codecs)
    def append_many(self, name: str, number: int, contents: list[tuple], codec: str) -> None:
        if name not in self.topics:
            return
        number %= len(self.topics[name])
        records = self.topics[name][number].records
        given = [Record(key=k, value=v, headers=tuple(h), timestamp_ms=t) for k, v, h, t in contents]
        placed = self.log.append_many(name, given, partition=number, compression=codec)
        assert [meta.offset for meta in placed] == [len(records) + i for i in range(len(given))]
        for record in given:
            records.append(record._replace(topic=name, partition=number, offset=len(records)))

    @rule(name=names, off=st.integers(1, 5))
    def append_elsewhere_than_expected(self, name: str, off: int) -> None:
        if name in self.topics:
            end = len(self.topics[name][0].records)
            with pytest.raises(UnexpectedOffset):
                self.log.append(name, b"never", partition=0, expected_offset=end + off)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        for name in self.topics:
            assert all(e.flushed_offset == e.log_end_offset for e in self.log.offsets(name).values())

    @rule(name=names)
    def roll(self, name: str) -> None:
        if name in self.topics:
            for partition in self.log._writer().partitions_of(name):
                partition.roll()

    # -- letting go ------------------------------------------------------------------------------------

    @rule(name=names, part=st.floats(0, 1))
    def delete_records(self, name: str, part: float) -> None:
        if name in self.topics:
            model = self.topics[name][0]
            before = int(part * len(model.records))
            model.start = max(model.start, before)
            assert self.log.delete_records(name, 0, before) == model.start

    @rule(name=names, kept=st.integers(0, 4 * _SEGMENT_BYTES))
    def retention(self, name: str, kept: int) -> None:
        """Whole segments go, oldest first, as long as more than retention_bytes are left without them."""
        if name not in self.topics:
            return
        store = self.log._writer()
        before = [sum(s.size for s in p.segments()) for p in store.partitions_of(name)]
        self.log.alter_topic(name, retention_bytes=kept)
        housekeep(store)
        self.log.alter_topic(name, retention_bytes=None)
        for partition, model, size in zip(store.partitions_of(name), self.topics[name], before, strict=True):
            start = partition.offsets().log_start_offset
            assert model.start <= start <= len(model.records)
            assert sum(s.size for s in partition.segments()) >= min(kept, size)
            model.start = start

    # -- closing and crashing --------------------------------------------------------------------------

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.log = self.open()
        assert self.log.recovery.clean

    @rule()
    def crash_and_reopen(self) -> None:
        """Copy the directory without its writer's knowledge: the background threads go on meanwhile."""
        self.crashes += 1
        crashed = crash(self.path, self.root / str(self.crashes))
        self.log.close()
        shutil.rmtree(self.path)
        self.path = crashed
        self.log = self.open()
        assert self.log.recovery.clean == (not self.topics)
        assert not self.log.recovery.damage
        assert not self.log.recovery.bytes_cut

    # -- reading ---------------------------------------------------------------------------------------

    @rule(name=names, number=st.integers(0, 3), part=st.floats(0, 1), max_bytes=st.integers(1, 3000))
    def read_somewhere(self, name: str, number: int, part: float, max_bytes: int) -> None:
        if name in self.topics:
            number %= len(self.topics[name])
            model = self.topics[name][number]
            start = model.start + int(part * (len(model.records) - model.start))
            found = list(self.log.read(name, number, start=start, max_bytes=max_bytes))
            assert found == model.records[start:]

    @rule(name=names)
    def read_outside(self, name: str) -> None:
        if name in self.topics:
            model = self.topics[name][0]
            with pytest.raises(OffsetOutOfRange):
                self.log.read(name, 0, start=len(model.records) + 1)
            if model.start:
                with pytest.raises(OffsetOutOfRange):
                    self.log.read(name, 0, start=model.start - 1)

    @rule(name=names, time_ms=st.integers(_START_MS - 1, _START_MS + 1_000_001))
    def look_for_a_time(self, name: str, time_ms: int) -> None:
        if name in self.topics:
            for number, model in enumerate(self.topics[name]):
                left = model.records[model.start :]
                wanted = next((r for r in left if r.timestamp_ms >= time_ms), None)
                found = self.log.offset_for_time(name, number, time_ms)
                assert (found and found.offset) == (wanted and wanted.offset)

    @precondition(lambda self: self.topics)
    @rule()
    def read_everything_in_another_handle(self) -> None:
        with embedlog.open(self.path, mode="r") as reader:
            self.compare(reader)

    @invariant()
    def edges_agree(self) -> None:
        assert self.log.topics() == sorted(self.topics)
        for name, models in self.topics.items():
            edges = self.log.offsets(name)
            assert [(e.log_start_offset, e.log_end_offset) for _, e in sorted(edges.items())] == [
                (model.start, len(model.records)) for model in models
            ]
            assert all(e.flushed_offset <= e.log_end_offset for e in edges.values())

    @rule()
    def read_everything(self) -> None:
        self.compare(self.log)

    def compare(self, log: Log) -> None:
        assert log.topics() == sorted(self.topics)
        for name, models in self.topics.items():
            assert list(log.read(name)) == [r for model in models for r in model.records[model.start :]]


class ModelOfKafkasLayout(Model):
    layout = "kafka"


_settings = settings(
    max_examples=examples(30),
    stateful_step_count=35,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestClassic = Model.TestCase
TestClassic.settings = _settings
TestKafka = ModelOfKafkasLayout.TestCase
TestKafka.settings = _settings
TestKafka.pytestmark = pytest.mark.slow
