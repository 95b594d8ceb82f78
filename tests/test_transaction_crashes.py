"""Transactions against a model: what is committed, aborted and open, at any time and after any crash.

A model says what each step means. Before changes of the disk a copy is taken of what a killed process
would leave, and of what a power cut would leave at worst. Each is recovered, and must be the log as some step
left it: a kill loses nothing that was appended, a power cut nothing that was durable.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import Clock, PowerCutFileSystem, crash, open_log, partition_of, store_of, values
from housekeeping import housekeep
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import Log
from embedlog.codec import encode_batch
from embedlog.errors import InvalidProducerEpoch, InvalidTxnState
from embedlog.model import AbortedTransaction
from embedlog.partition import Partition

pytestmark = pytest.mark.plain

T = 1_700_000_000_000
VERSIONS = {1: 1, 2: 2, 3: 2}
"""Producer id -> transaction version."""


class Step(NamedTuple):
    """What is done: send (so many records), end, late, plain, flush or roll."""

    kind: str
    producer: int
    count: int
    commit: bool


class Producer:
    """What its coordinator knows."""

    def __init__(self) -> None:
        self.epoch = 0
        self.sequence = 0


class Model:
    """What a log has once some steps were done."""

    def __init__(self) -> None:
        self.end = 0
        self.committed: dict[int, bytes] = {}
        self.open: dict[int, tuple[int, dict[int, bytes]]] = {}  # producer -> epoch, records; oldest first
        self.epochs: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []

    def send(self, producer: int, epoch: int, values: list[bytes]) -> None:
        records = dict(enumerate(values, self.end))
        self.epochs[producer] = epoch
        self.open.setdefault(producer, (epoch, {}))[1].update(records)
        self.end += len(values)

    def finish(self, producer: int, epoch: int, *, commit: bool) -> None:
        self.epochs[producer] = epoch
        _, records = self.open.pop(producer, (0, {}))
        if commit:
            self.committed.update(records)
        self.end += 1
        if records and not commit:
            marker = self.end - 1
            self.aborted.append(AbortedTransaction(producer, min(records), marker, self.stable))

    def plain(self, value: bytes) -> None:
        self.committed[self.end] = value
        self.end += 1

    @property
    def stable(self) -> int:
        return min((min(records) for _, records in self.open.values()), default=self.end)

    def readable(self) -> list[tuple[int, bytes]]:
        return [each for each in sorted(self.committed.items()) if each[0] < self.stable]

    def copy(self) -> Model:
        copied = Model()
        copied.end, copied.committed, copied.aborted = self.end, dict(self.committed), list(self.aborted)
        copied.open = {producer: (epoch, dict(each)) for producer, (epoch, each) in self.open.items()}
        copied.epochs = dict(self.epochs)
        return copied

    def check(self, log: Log) -> None:
        partition = partition_of(log)
        assert partition.log.high_watermark.offset == self.end
        assert partition.log.last_stable_offset == self.stable
        opened = [(each.producer_id, *each[1:3]) for each in partition.open_transactions()]
        assert opened == [(number, epoch, min(rows)) for number, (epoch, rows) in self.open.items()]
        assert list(partition.log.producers.aborted) == self.aborted
        known = {number: each.epoch for number, each in partition.log.known_producers().items()}
        assert known == self.epochs
        self.check_reader(log)

    def check_reader(self, log: Log) -> None:
        assert values(log, isolation_level="read_committed") == self.readable()


class Left(NamedTuple):
    """What a crash left: a directory, and which models it may agree with."""

    path: Path
    least: int
    most: int


class Crashes(PowerCutFileSystem):
    """Copies the directory before some of the calls that change it."""

    def __init__(self, root: Path, copies: Path, at: set[int]) -> None:
        super().__init__(root)
        self.copies = copies
        self.at = at
        self.count = 0
        self.models: list[Model] = []
        self.log: Log | None = None
        self.left: list[Left] = []

    def _note(self, operation: str, path: str) -> None:
        super()._note(operation, path)
        if self.log is None:
            return
        self.count += 1
        if self.count in self.at:
            killed = self.copies / f"killed {self.count}"
            shutil.copytree(self._root, killed, ignore=shutil.ignore_patterns("writer.json", "*.sock"))
            done = len(self.models) - 1
            self.left.append(Left(killed, done, done + 1))
            flushed = partition_of(self.log).log.flushed.offset
            durable = max(n for n, model in enumerate(self.models) if model.end <= flushed)
            for kind, image in (("cut", self.image()), ("names kept", self.lost_data())):
                at = self.copies / f"{kind} {self.count}"
                image.write(at)
                (at / "writer.json").unlink(missing_ok=True)
                self.left.append(Left(at, durable, done + 1))


class Run:
    """A log, its producers and their coordinator."""

    def __init__(self, log: Log, models: list[Model]) -> None:
        self.log = log
        self.models = models
        self.producers = {number: Producer() for number in VERSIONS}
        self.stable = 0
        self.number = 0

    @property
    def partition(self) -> Partition:
        return partition_of(self.log)

    def do(self, step: Step) -> None:
        model = self.models[-1].copy()
        self._do(step, model)
        self.models.append(model)
        model.check(self.log)
        stable = self.partition.log.last_stable_offset
        assert stable >= self.stable, "the last stable offset went back"
        self.stable = stable

    def _do(self, step: Step, model: Model) -> None:
        if step.kind == "plain":
            self.number += 1
            value = b"plain %d" % self.number
            self.log.append("t", value)
            model.plain(value)
        elif step.kind == "flush":
            housekeep(store_of(self.log))
        elif step.kind == "roll":
            self.partition.roll()
        elif step.kind == "send":
            self._send(step, model)
        elif step.kind == "end":
            self._end(step, model)
        else:
            self._late(step, model)

    def _send(self, step: Step, model: Model) -> None:
        producer = self.producers[step.producer]
        self.number += 1
        rows = [b"%d of %d" % (n, self.number) for n in range(step.count)]
        self.partition.allow_transaction(
            step.producer, producer.epoch, transaction_version=VERSIONS[step.producer]
        )
        self.partition.append(self._batch(step.producer, producer.epoch, producer.sequence, rows))
        producer.sequence += len(rows)
        model.send(step.producer, producer.epoch, rows)

    def _end(self, step: Step, model: Model) -> None:
        producer, version = self.producers[step.producer], VERSIONS[step.producer]
        if version >= 2:
            producer.epoch += 1
            producer.sequence = 0
        self.partition.end_transaction(
            step.producer,
            producer.epoch,
            commit=step.commit,
            timestamp_ms=T,
            transaction_version=version,
        )
        model.finish(step.producer, producer.epoch, commit=step.commit)

    def _late(self, step: Step, model: Model) -> None:
        """A batch of the transaction before."""
        if step.producer in model.open:
            return
        epoch = self.producers[step.producer].epoch - (VERSIONS[step.producer] >= 2)
        sequence = self.producers[step.producer].sequence
        if epoch >= 0:
            with pytest.raises((InvalidTxnState, InvalidProducerEpoch)):
                self.partition.append(self._batch(step.producer, epoch, sequence, [b"late"]))

    def _batch(self, producer: int, epoch: int, sequence: int, rows: list[bytes]) -> bytearray:
        return encode_batch(
            [(None, row, (), T) for row in rows],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )


def recovered(left: Left, models: list[Model]) -> None:
    """What readers and the next writer find in what a crash left."""
    with embedlog.open(left.path, mode="r") as reader:
        seen = values(reader, isolation_level="read_committed") if "t" in reader.topics() else []
        log = open_log(left.path, clock=Clock())
        partition = partition_of(log)
        end = partition.log.high_watermark.offset
        found = [n for n, each in enumerate(models) if each.end == end and left.least <= n <= left.most]
        assert found, f"{left}: the log ends at {end}, between two steps"
        model = models[found[-1]].copy()
        assert seen == model.readable(), left
        model.check(log)
        assert values(reader, isolation_level="read_committed") == model.readable()
        # The coordinator is back and ends what it finds.
        for transaction in partition.open_transactions():
            producer, epoch = transaction.producer_id, transaction.producer_epoch + 1
            partition.end_transaction(producer, epoch, commit=False, timestamp_ms=T)
            model.finish(producer, epoch, commit=False)
        model.check(log)
        assert values(reader, isolation_level="read_committed") == model.readable()
        crash(log)
    with open_log(left.path, clock=Clock()) as log:
        model.check(log)


KINDS = ["send", "send", "send", "end", "end", "late", "plain", "flush", "roll"]
STEPS = st.tuples(st.sampled_from(KINDS), st.sampled_from([*VERSIONS]), st.integers(1, 3), st.booleans())


def run(steps: list[Step], crashes: set[int]) -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made).resolve()
        models = [Model()]
        fs = Crashes(directory / "log", directory / "copies", crashes)
        with open_log(directory / "log", fs, clock=Clock(), segment_bytes=1024) as log:
            log.create_topic("t")
            log.flush()
            (directory / "copies").mkdir()
            fs.models, fs.log = models, log
            going = Run(log, models)
            with embedlog.open(directory / "log", mode="r") as reader:
                for step in steps:
                    going.do(step)
                    models[-1].check_reader(reader)
            fs.log = None
        for left in fs.left:
            recovered(left, models)
        with open_log(directory / "log", clock=Clock()) as log:
            models[-1].check(log)


@pytest.mark.slow
@hypothesis_settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(STEPS.map(lambda drawn: Step(*drawn)), min_size=1, max_size=25),
    st.sets(st.integers(1, 60), max_size=4),
)
def test_any_steps_and_any_crash(steps: list[Step], crashes: set[int]) -> None:
    run(steps, crashes)
