"""read_committed in reader processes equals the writer's view, at any time and after any crash.

The writer is a real one, in a process of its own where it is to die; its records are real transactional
batches, as Kafka's clients write them.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import UnsyncedFileSystem, crash, open_log, partition_of, store_of, values
from housekeeping import housekeep
from programs import Program
from transactions import Transactions, coordinated

import embedlog
from embedlog import Log
from embedlog.errors import CorruptRecord, OffsetOutOfRange
from embedlog.files.filesystem import FileSystem

pytestmark = pytest.mark.plain

Start = Callable[..., Program]

# Appends the batches that it is told, in hexadecimal, and does what else it is told; answers with the result.
WRITER = """
import sys, embedlog
from faults import partition_of
from housekeeping import housekeep
from transactions import coordinated
log = embedlog.open(sys.argv[1], **eval(sys.argv[2]))
if not log.topics():
    log.create_topic("t")
print("open", flush=True)
def append(batch):
    return coordinated(partition_of(log), bytearray.fromhex(batch)).base_offset
for line in sys.stdin:
    print(eval(line), flush=True)
"""
NEVER_MS = 3_600_000


class Writer(Transactions):
    """A WRITER, spoken to. It flushes when it is told to, or rolls."""

    def __init__(self, program: Start, path: Path, **settings: object) -> None:
        settings = {"flush_ms": NEVER_MS, "segment_bytes": 2_000, "file_delete_delay_ms": 0, **settings}
        self._start = lambda: program(WRITER, path, repr(settings))
        self.restart()
        super().__init__(lambda batch: int(self.do(f"append({batch.hex()!r})")))

    def restart(self) -> None:
        self._program = self._start()
        assert self._program.line() == "open"

    def do(self, expression: str) -> str:
        self._program.say(expression)
        return self._program.line()

    def housekeep(self) -> None:
        self.do("housekeep(log._writer())")

    def kill(self) -> None:
        """SIGKILL."""
        self._program.kill()

    def close(self) -> None:
        self._program.end()


def committed(log: Log, **options: int) -> list[tuple[int, bytes | None]]:
    return values(log, isolation_level="read_committed", **options)


def committed_in(path: Path) -> list[tuple[int, bytes | None]]:
    """As a reader finds it that has not looked before."""
    with embedlog.open(path, mode="r") as reader:
        return committed(reader)


def copy_of(path: Path, *without: str) -> Path:
    """A copy of a log's directory, but for some of its files."""
    copy = path.with_name(f"copy without {len(without)}")
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(path, copy, ignore=shutil.ignore_patterns("writer.json", "*.sock", *without))


# -- the three ways in which what the writer published is not enough -----------------------------------------


ALL_BUT_RECORDS = ("writer-state", "*.txnindex", "*.snapshot", "*checkpoint", "clean-shutdown")


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("ending", ["copied", "killed", "closed"])
@pytest.mark.parametrize("lost", [(), ("writer-state",), ALL_BUT_RECORDS])
def test_a_copy(program: Start, path: Path, flushed: bool, ending: str, lost: tuple[str, ...]) -> None:
    writer = Writer(program, path)
    writer.plain(b"plain")
    writer.send(1, b"aborted")
    writer.send(2, b"kept")
    if flushed:
        writer.housekeep()
    writer.end(1, commit=False)
    writer.end(2, commit=True)
    writer.send(1, b"open")
    if flushed:
        writer.housekeep()
    writer.plain(b"behind")
    if ending == "killed":
        writer.kill()
    elif ending == "closed":
        writer.close()
    copy = copy_of(path, *lost)
    wanted = [(0, b"plain"), (2, b"kept")]
    assert writer.expected() == wanted
    assert committed_in(copy) == wanted
    with embedlog.open(copy) as log:
        assert committed(log) == wanted
        assert committed_in(copy) == wanted
    assert committed_in(copy) == wanted


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("behind", [True, False])
def test_a_writer_killed_right_after_a_marker(program: Start, path: Path, commit: bool, behind: bool) -> None:
    writer = Writer(program, path)
    writer.plain(b"0")
    with embedlog.open(path, mode="r") as before:
        writer.send(1, b"1", b"2")
        assert committed(before) == [(0, b"0")]
        writer.end(1, commit=commit)
        if behind:
            writer.plain(b"4")
        writer.kill()
        wanted = [0, *([1, 2] if commit else []), *([4] if behind else [])]
        for found in (committed(before), committed_in(path)):
            assert found == [(offset, b"%d" % offset) for offset in wanted]


def test_the_end_of_a_transaction_is_seen_at_once(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    writer.send(1, b"0")
    with embedlog.open(path, mode="r") as reader:
        for commit in (False, True, False, False, True):
            writer.plain(b"plain")
            assert committed(reader) == writer.expected() == committed_in(path)
            writer.end(1, commit=commit)
            assert committed(reader) == writer.expected() == committed_in(path)
            writer.send(1, b"more")


FOLLOWER = """
import sys, embedlog
with embedlog.open(sys.argv[1], mode="r") as log:
    for record in log.read("t", follow=True, isolation_level="read_committed"):
        print(record.offset, record.value.decode(), flush=True)
"""


def test_a_waiting_reader_is_woken_by_the_end_of_a_transaction(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    writer.plain(b"begins")
    follower = program(FOLLOWER, path)
    assert follower.line() == "0 begins"
    for number in range(20):
        offset = 1 + number * 5
        writer.send(1, b"one")
        writer.send(2, b"two")
        writer.plain(b"three")
        writer.end(1, commit=number % 3 == 0)
        writer.end(2, commit=number % 2 == 0)
        wanted = [(offset, "one")] if number % 3 == 0 else []
        wanted += [(offset + 1, "two")] if number % 2 == 0 else []
        for at, value in [*wanted, (offset + 2, "three")]:
            assert follower.line() == f"{at} {value}"


# -- any transactions, any end -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_readers_and_a_writer_of_a_copy_agree(program: Start, path: Path, seed: int) -> None:
    """Random transactions, rolls and flushes; looked at while it goes on, copied, killed and gone on with."""
    rng = random.Random(seed)
    writer = Writer(program, path, segment_bytes=rng.choice([1_024, 3_000, 100_000]))
    writer.plain(b"first")
    number = 0
    with embedlog.open(path, mode="r") as early, embedlog.open(path, mode="r") as now_and_then:
        for _ in range(3):
            for _ in range(rng.randrange(5, 80)):
                number += 1
                writer.step(rng, number)
                if rng.random() < 0.15:
                    rng.choice(
                        [writer.housekeep, lambda: writer.do("log._writer().partition('t', 0).roll()")]
                    )()
                assert committed(early, max_bytes=rng.choice([1, 300, 1 << 20])) == writer.expected()
                if rng.random() < 0.05:
                    assert committed(now_and_then) == writer.expected() == committed_in(path)
            writer.kill()
            assert committed(early) == committed(now_and_then) == writer.expected() == committed_in(path)
            for lost in ((), ("writer-state",), ALL_BUT_RECORDS):
                copy = copy_of(path, *lost)
                assert committed_in(copy) == writer.expected(), lost
                with embedlog.open(copy) as log:
                    assert committed(log) == writer.expected(), lost
            writer.restart()
            assert committed(early) == writer.expected() == committed_in(path)


# As many steps as it is told, as fast as they come. The values say which transactions will be committed.
BUSY_WRITER = """
import random, sys, embedlog
from embedlog.codec import encode_batch, encode_control_batch
from faults import partition_of
from transactions import coordinated
rng = random.Random(sys.argv[2])
log = embedlog.open(sys.argv[1], flush_ms=3, segment_bytes=50_000, file_delete_delay_ms=0)
if not log.topics():
    log.create_topic("t")
def append(batch):
    coordinated(partition_of(log), batch)
def end(producer, commit):
    append(encode_control_batch(commit=commit, producer_id=producer, producer_epoch=0, timestamp_ms=1))
counts = {producer: 0 for producer in range(4)}  # of records that were committed
for producer in (1, 2, 3):  # what a killed one has left open
    end(producer, False)
for record in log.read("t", isolation_level="read_committed"):
    counts[int(record.key)] += 1
fates = {}
def step():
    producer = rng.randrange(4)
    if producer in fates and rng.random() < 0.4:
        commit, sent = fates.pop(producer)
        end(producer, commit)
        counts[producer] += commit * sent
        return
    commit, sent = fates.get(producer, (not producer or rng.random() < 0.6, 0))
    value = b"%d" % (counts[producer] + sent) if commit else b"aborted"
    row = (b"%d" % producer, value, (), 1)
    if producer:
        append(encode_batch([row], producer_id=producer, producer_epoch=0, transactional=True))
        fates[producer] = commit, sent + 1
    else:
        append(encode_batch([row]))
        counts[producer] += 1
print("open", flush=True)
for steps in sys.stdin:
    for _ in range(int(steps)):
        step()
"""


@pytest.mark.slow
def test_a_consumer_beside_repeatedly_killed_writers(program: Start, path: Path) -> None:
    """It gets nothing that was aborted and everything that was committed, each once and in order."""
    rng = random.Random(3)
    counts = dict.fromkeys(range(4), 0)
    got = 0

    def go_on(up_to: int) -> None:
        nonlocal got
        while got < up_to:
            for record in consumer.poll(60_000):
                producer = int(record.key or b"")
                assert record.value == b"%d" % counts[producer], record
                counts[producer] += 1
                got += 1

    def start(round_: int) -> Program:
        writer = program(BUSY_WRITER, path, round_)
        assert writer.line() == "open"
        writer.say(3_000)
        return writer

    writer = start(0)
    with (
        embedlog.open(path, mode="r") as reader,
        reader.consumer("t", isolation_level="read_committed") as consumer,
    ):
        for round_ in range(1, 7):
            for _ in range(rng.randrange(1, 4)):
                go_on(got + rng.randrange(1, 100))
            writer.kill()
            published, without = copy_of(path), copy_of(path, "writer-state")
            with embedlog.open(published, mode="r") as old, embedlog.open(without, mode="r") as new:
                some, everything = committed(old), committed(new)
            assert some == everything[: len(some)] and got <= len(some)
            with embedlog.open(without) as log:
                assert committed(log) == everything
            writer = start(round_)
        writer.kill()
        with embedlog.open(path) as log:
            everything = committed(log)
            go_on(len(everything))
            assert committed(reader) == everything
        assert got > 500


# -- between two steps of a reader -------------------------------------------------------------------------


class Interrupted(FileSystem):
    """Counts what a reader asks of the system, and has something happen before one of these calls."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.calls_left = 0
        self.happens: Callable[[], object] | None = None

    def _call(self) -> None:
        self.calls_left -= 1
        if self.happens is not None and self.calls_left < 0:
            happens, self.happens = self.happens, None
            happens()

    def names(self, path: str) -> dict[str, int]:
        self._call()
        return super().names(path)

    def open_read(self, path: str) -> int:
        self._call()
        return super().open_read(path)

    def stat(self, path: str) -> os.stat_result:
        self._call()
        return super().stat(path)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self._call()
        data = super().pread(fd, size, pos)
        self.bytes_read += len(data)
        return data


class Halting(UnsyncedFileSystem):
    """A writer's, which stops where compacted segments get their name: theirs are gone, nothing is told."""

    def __init__(self) -> None:
        self.halts = False
        self.halted = threading.Event()
        self.goes_on = threading.Event()

    def rename(self, source: str, destination: str) -> None:
        if self.halts and source.endswith(".swap"):
            self.halted.set()
            self.goes_on.wait()
        super().rename(source, destination)


class Scene:
    """A writer in this process that does nothing by itself, with transactions, and a reader beside it."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.settings = {"segment_bytes": 1_024, "file_delete_delay_ms": 0, **settings}
        self.halting = Halting()
        self.log = open_log(path, self.halting, **self.settings)
        self.log.create_topic("t")
        self.transactions = Transactions(lambda batch: coordinated(partition_of(self.log), batch).base_offset)
        self.fs = Interrupted()
        self.reader = embedlog.open(path, mode="r", fs=self.fs)

    def fill(self) -> None:
        """Segments with ended transactions of all kinds; some of the ends are not flushed."""
        for number in range(3):
            self.some(number)
            housekeep(store_of(self.log))
        self.some(3)

    def some(self, number: int) -> None:
        go = self.transactions
        go.send(1, b"aborted %d" % number + bytes(90))
        go.send(2, b"kept %d" % number + bytes(90))
        go.plain(b"plain %d" % number + bytes(90))
        go.send(1, b"aborted too %d" % number)
        go.end(1, commit=False)
        go.send(3, b"aborted three %d" % number)
        go.end(2, commit=True)
        go.end(3, commit=False)

    def housekeep(self) -> None:
        housekeep(store_of(self.log))

    def delete(self) -> None:
        self.log.delete_records("t", 0, partition_of(self.log).segments()[2].base_offset)
        self.housekeep()

    def go_on(self) -> None:
        """Several snapshots, each of which takes the place of an older one."""
        for number in range(4, 7):
            self.some(number)
            self.housekeep()

    def take_over(self) -> None:
        """The writer is killed, and another one recovers the log."""
        crash(self.log)
        self.log = open_log(self.path, UnsyncedFileSystem(), **self.settings)
        self.some(9)

    def compact(self) -> None:
        """Twice: the first time the aborted records go, the second time what remembers them."""
        for _ in range(2):
            self.log.compact("t")
            self.housekeep()

    def compact_half(self) -> None:
        self.halting.halts = True
        self.compacting = threading.Thread(target=self.log.compact, args=("t",))
        self.compacting.start()
        self.halting.halted.wait()

    def close(self) -> None:
        if self.halting.halted.is_set():
            self.halting.goes_on.set()
            self.compacting.join()
        self.reader.close()
        self.log.close()


EVENTS = ["housekeep", "delete", "compact", "compact_half", "go_on", "take_over"]


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("before", ["nothing", "uncommitted", "committed", "unpublished"])
@pytest.mark.soak
def test_concurrent_changes_while_a_reader_looks(tmp_path: Path, event: str, before: str) -> None:
    """At each of its calls; whether it has looked before, and has files open, or has not."""
    for calls in itertools.count(len(before) % 2, 2):
        scene = Scene(tmp_path / str(calls))
        scene.fill()
        if "compact" in event:
            topic = {"cleanup_policy": "compact", "delete_retention_ms": 0, "segment_bytes": 100_000}
            scene.log.alter_topic("t", **topic)
        if before == "unpublished":
            (scene.path / "writer-state").unlink()
        elif before != "nothing":
            assert values(scene.reader, isolation_level=f"read_{before}")
            scene.some(8)
        old = scene.transactions.expected()
        scene.fs.calls_left, scene.fs.happens = calls, getattr(scene, event)
        found: list[tuple[int, bytes | None]] = []
        try:
            for record in scene.reader.read("t", 0, isolation_level="read_committed"):
                found.append((record.offset, record.value))
        except OffsetOutOfRange:
            assert event == "delete"
        done, scene.fs.happens = scene.fs.happens is not None, None
        start = scene.log.offsets("t")[0].log_start_offset
        new = scene.transactions.expected(start)
        if event == "delete":  # it began before or after that, and may have been told in the middle
            told = found == old[: len(found)] and all(offset < start for offset, _ in found)
            assert told or found in (old, new), calls
        else:
            assert found == new[: len(found)] and len(found) >= len(old), calls
        assert committed(scene.reader) == new
        scene.close()
        shutil.rmtree(scene.path)
        if done:
            break


def test_threads_that_share_a_reader(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "log")
    ended = threading.Event()
    found: list[list[tuple[int, bytes | None]]] = []

    def read() -> None:
        while not ended.is_set():
            found.append(committed(scene.reader))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(40):
        scene.some(number)
        if number % 8 == 0:
            scene.housekeep()
    ended.set()
    for thread in threads:
        thread.join()
    wanted = scene.transactions.expected()
    assert all(each == wanted[: len(each)] for each in found)
    assert committed(scene.reader) == wanted
    scene.close()


# -- what it costs -----------------------------------------------------------------------------------------


def test_read_uncommitted_costs_nothing_extra(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "log")
    scene.fill()
    asked: list[str] = []

    class Noting(FileSystem):
        def open_read(self, path: str) -> int:
            asked.append(path)
            return super().open_read(path)

    reader = embedlog.open(scene.path, mode="r", fs=Noting())
    asks = {"isolation_level": "read_uncommitted"}
    assert len(values(reader, **asks)) > len(scene.transactions.expected())
    scene.some(7)
    values(reader, **asks)
    assert not [path for path in asked if path.endswith((".txnindex", ".snapshot"))]
    assert committed(reader) == scene.transactions.expected()
    assert [path for path in asked if path.endswith(".txnindex")]
    reader.close()
    scene.close()


def test_each_batch_is_indexed_once(tmp_path: Path) -> None:
    """A reader at an open transaction reads what is new, and nothing if nothing is."""
    scene = Scene(tmp_path / "log", segment_bytes=100_000_000)
    for number in range(50):
        scene.some(number)
    scene.housekeep()
    scene.transactions.send(1, b"open")
    partition = scene.reader.backend._engine.partition("t", 0)
    end = scene.log.offsets("t")[0].log_end_offset - 1
    assert not partition.has_data(end, read_committed=True)
    for number in range(100):
        scene.transactions.send(2, bytes(500))
        if number % 10 == 0:
            scene.housekeep()
        before = scene.fs.bytes_read
        assert not partition.has_data(end, read_committed=True)
        assert not partition.fetch(end, 1 << 20, read_committed=True).data
        # Its header, and the batch itself to check it.
        assert scene.fs.bytes_read - before < 2_500, number
        before = scene.fs.bytes_read
        assert not partition.has_data(end, read_committed=True)
        assert scene.fs.bytes_read == before
    scene.close()


def test_a_new_reader_begins_at_the_latest_snapshot(tmp_path: Path) -> None:
    """However many records follow the oldest open transaction."""
    scene = Scene(tmp_path / "log", segment_bytes=1_000_000)
    scene.transactions.send(1, b"open")
    for _ in range(300):
        scene.transactions.plain(bytes(10_000))
    scene.transactions.send(2, b"open, too")
    scene.housekeep()
    scene.transactions.plain(b"new")
    scene.transactions.end(1, commit=False)
    crash(scene.log)
    for lost in ((), ("writer-state",)):
        fs = Interrupted()
        reader = embedlog.open(copy_of(scene.path, *lost), mode="r", fs=fs)
        partition = reader.backend._engine.partition("t", 0)
        assert partition.fetch(301, 1 << 20, read_committed=True).last_stable_offset == 301
        assert fs.bytes_read < 40_000
        assert committed(reader) == scene.transactions.expected()
        reader.close()
    scene.reader.close()


# -- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [(), ("writer-state",)])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("suffix", [".snapshot", ".txnindex"])
def test_undecodable_small_files(tmp_path: Path, lost: tuple[str, ...], warm: bool, suffix: str) -> None:
    """Then the records tell, all of them; in a log that is being written, too."""
    scene = Scene(tmp_path / "log")
    scene.fill()
    scene.transactions.send(1, b"open")
    scene.housekeep()
    if lost:
        (scene.path / "writer-state").unlink()
    if warm:
        assert committed(scene.reader) == scene.transactions.expected()
    for file in (scene.path / "t_0").glob(f"*{suffix}"):
        file.write_bytes(b"garbage" * 100)
    for number in range(8, 11):
        scene.some(number)
        assert committed(scene.reader) == scene.transactions.expected()
        scene.housekeep()
        assert committed(scene.reader) == scene.transactions.expected()
    scene.close()


@pytest.mark.slow
def test_each_flip_of_a_snapshot(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "log")
    scene.fill()
    scene.transactions.send(2, b"open")
    scene.housekeep()
    scene.transactions.end(2, commit=False)
    scene.transactions.send(1, b"open, too")
    scene.transactions.plain(b"behind")
    crash(scene.log)
    scene.reader.close()
    wanted = scene.transactions.expected()
    copy = copy_of(scene.path, "writer-state")
    snapshot = max((copy / "t_0").glob("*.snapshot"))
    data = snapshot.read_bytes()
    for pos in range(len(data)):
        snapshot.write_bytes(data[:pos] + bytes([data[pos] ^ 0x21]) + data[pos + 1 :])
        assert committed_in(copy) == wanted, pos


@pytest.mark.parametrize("lost", [(), ("writer-state",)])
def test_damage_is_an_error_and_never_an_end(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """Also where it keeps from being known what is committed."""
    scene = Scene(tmp_path / "log")
    for number in range(4):
        scene.some(number)
    scene.transactions.send(1, b"aborted")
    scene.transactions.end(1, commit=False)
    crash(scene.log)
    scene.reader.close()
    wanted = scene.transactions.expected()
    copy = copy_of(scene.path, *lost)
    sealed = sorted((copy / "t_0").glob("*.kafka"))[1]
    data = sealed.read_bytes()
    for pos in range(0, len(data), 5):
        sealed.write_bytes(data[:pos] + bytes([data[pos] ^ 0x21]) + data[pos + 1 :])
        found = []
        with embedlog.open(copy, mode="r") as reader, pytest.raises(CorruptRecord):
            for record in reader.read("t", 0, isolation_level="read_committed"):
                found.append((record.offset, record.value))
        assert found == wanted[: len(found)], pos
        assert len(found) >= int(sealed.stem) // 8
