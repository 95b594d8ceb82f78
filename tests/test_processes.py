"""What other processes see: readers beside a writer, refused writers, forks, exits, kills.

All of it with real processes. What is compared with time is CPU time, never a clock.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from housekeeping import housekeep
from programs import Program

import embedlog
from embedlog import FileOffsetStore, Log, TopicPartition
from embedlog.errors import DirectoryLocked, ForkedHandle, OffsetOutOfRange, StorageError, TopicNotFound
from embedlog.files.filesystem import FileSystem
from embedlog.open import log_over
from embedlog.store.store import Store

Start = Callable[..., Program]

# Python 3.12 and later warn of every fork of a process with threads: that is what is tested here.
pytestmark = [pytest.mark.plain, pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")]

LAYOUTS = pytest.mark.parametrize("layout", ["classic", "kafka"])

# A writer that does what it is told, a line at a time, and answers each with "done".
WRITER = """
import os, sys, embedlog
from housekeeping import housekeep
log = embedlog.open(sys.argv[1], segment_bytes=1024, file_delete_delay_ms=0, **eval(sys.argv[2]))
print("clean" if log.recovery.clean else "recovered", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
log.close()
"""

FOLLOWER = """
import sys, embedlog
with embedlog.open(sys.argv[1], mode="r") as log:
    print("ready", flush=True)
    for record in log.read(sys.argv[2], follow=True):
        print(record.partition, record.offset, record.value.decode(), flush=True)
"""


def values(log: Log, topic: str = "t") -> list[str]:
    return [(record.value or b"").decode() for record in log.read(topic)]


class Writer:
    """A WRITER, spoken to."""

    def __init__(self, program: Start, path: Path, **settings: object) -> None:
        self.program = program(WRITER, path, repr(settings))
        self.opened = self.program.line()

    def do(self, line: str) -> None:
        self.program.say(line)
        assert self.program.line() == "done"


# -- reading what another process writes ------------------------------------------------------------------


@LAYOUTS
def test_a_reader_sees_appends_at_once(program: Start, path: Path, layout: str) -> None:
    writer = Writer(program, path, layout=layout)
    writer.do("log.create_topic('t', partitions=2)")
    with embedlog.open(path, mode="r") as reader:
        assert values(reader) == []
        for i in range(40):  # rolls several times
            writer.do(f"log.append('t', b'{i}' + bytes(100), partition={i % 2})")
            seen = [v.rstrip("\0") for v in values(reader)]
            assert seen == [str(j) for p in (0, 1) for j in range(i + 1) if j % 2 == p]
            assert sum(e.log_end_offset for e in reader.offsets("t").values()) == i + 1
    with embedlog.open(path, mode="r") as late:
        assert len(values(late)) == 40


def test_a_reader_in_another_process_follows_the_tail(program: Start, log: Log, path: Path) -> None:
    log.create_topic("t", segment_bytes=1024)
    log.append("t", b"before")
    reader = program(FOLLOWER, path, "t")
    assert [reader.line(), reader.line()] == ["ready", "0 0 before"]
    for i in range(1, 60):
        log.append("t", b"%d" % i + b"x" * 90)
        assert reader.line() == f"0 {i} {i}" + "x" * 90


def test_a_waiting_reader_uses_no_cpu(program: Start, path: Path) -> None:
    """A second of waiting, in a reader and in the writer itself, takes hardly any CPU time."""
    waiter = """
import resource, sys, embedlog
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
log = embedlog.open(sys.argv[1], mode=sys.argv[2])
consumer = log.consumer("t")
assert len(consumer.poll(60_000)) == 1
print("ready", flush=True)
before = cpu()
assert consumer.poll(1500) == []
print(cpu() - before, flush=True)
"""
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=8)
        log.append("t", b"1")
        reading = program(waiter, path, "r")
        assert reading.line() == "ready"
        # Other topics' traffic is none of its business.
        log.create_topic("other")
        log.append("other", b"1")
        assert float(reading.line()) < 0.1
    writing = program(waiter, path, "rw")
    assert writing.line() == "ready"
    assert float(writing.line()) < 0.1


def test_a_reader_is_woken_by_the_kernel_not_by_the_clock(
    log: Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the slow look now and then: it would hang here if no event came."""
    if sys.platform != "linux":
        pytest.fail("this test is about inotify")
    monkeypatch.setattr("embedlog.files.directory_watch.FALLBACK_MS", 3_600_000)
    log.create_topic("t", partitions=3)
    with embedlog.open(path, mode="r") as reader, reader.consumer("t") as consumer:
        for i in range(20):
            appending = threading.Thread(
                target=log.append, args=("t", b"%d" % i), kwargs={"partition": i % 3}
            )
            appending.start()
            got = consumer.poll(3_600_000)
            appending.join()
            assert [r.value for r in got] == [b"%d" % i]


def test_a_reader_without_inotify_warns_and_polls(log: Log, path: Path) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    with embedlog.open(path, mode="r") as reader, reader.consumer("t") as consumer:
        assert [r.value for r in consumer.poll(60_000)] == [b"1"]
        assert consumer.poll(0) == []
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(StorageError, match="waiting for records"):
                consumer.poll(1000)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        log.append("t", b"2")
        assert [r.value for r in consumer.poll(60_000)] == [b"2"]


def test_a_wait_ends_when_the_topic_is_deleted(log: Log, path: Path) -> None:
    log.create_topic("t")
    with embedlog.open(path, mode="r") as reader:
        reading = reader.read("t", follow=True)
        deleting = threading.Timer(0, log.delete_topic, ["t"])
        deleting.start()
        with pytest.raises(TopicNotFound):
            next(reading)
        deleting.join()


def test_retention_under_a_reader(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    writer.do("log.create_topic('t')")
    for i in range(20):
        writer.do(f"log.append('t', b'{i}' + bytes(500))")
    with embedlog.open(path, mode="r") as reader:
        reading = reader.read("t", max_bytes=1)
        assert next(reading).offset == 0
        writer.do("log.delete_records('t', 0, 11); housekeep(log._writer())")
        with pytest.raises(OffsetOutOfRange) as caught:
            for record in reading:  # what it had fetched or held open, it may still give
                assert record.offset < 4
        assert caught.value.log_start_offset == 11
        assert reader.offsets("t")[0].log_start_offset == 11
        assert [r.offset for r in reader.read("t")] == list(range(11, 20))
        with reader.consumer("t", stop_at_end=True) as consumer:
            consumer.seek("t", 0, 3)
            assert [r.offset for r in consumer] == list(range(11, 20))


def test_a_reader_below_a_moved_log_start_gets_an_error(program: Start, path: Path) -> None:
    """Whenever the writer moves it: here just before the reader looks at the directory."""

    class Overtaken(FileSystem):
        def names(self, path: str) -> dict[str, int]:
            if path.endswith("t_0") and moves:
                writer.do(f"log.delete_records('t', 0, {moves.pop()}); housekeep(log._writer())")
            return super().names(path)

    moves: list[int] = []
    writer = Writer(program, path)
    writer.do("log.create_topic('t')")
    with embedlog.open(path, mode="r", fs=Overtaken()) as reader:
        for start in range(0, 120, 12):
            for i in range(start, start + 12):
                writer.do(f"log.append('t', b'{i}' + bytes(500))")
            for begin, moved_to in ((start, start + 6), (start + 6, start + 12)):  # some; all there is
                moves.append(moved_to)
                with pytest.raises(OffsetOutOfRange) as caught:
                    next(reader.read("t", start=begin))
                assert caught.value.log_start_offset == moved_to
            assert list(reader.read("t")) == moves == []


def test_compaction_under_a_reader(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    writer.do("log.create_topic('t', cleanup_policy='compact')")
    with embedlog.open(path, mode="r") as reader:
        for turn in range(4):
            for i in range(30):
                writer.do(f"log.append('t', b'{turn}.{i}' + bytes(50), key=b'{i % 4}')")
            before = {r.key: r.value for r in reader.read("t")}
            reading = reader.read("t", max_bytes=200)
            first = next(reading)
            writer.do("log.compact('t'); housekeep(log._writer())")
            rest = [first, *reading]  # across the swap: some old, some new, in order, the last of each key
            assert [r.offset for r in rest] == sorted({r.offset for r in rest})
            assert {r.key: r.value for r in rest} == before
            assert {r.key: r.value for r in reader.read("t")} == before
        assert len(list(reader.read("t"))) < 60


def test_a_reader_learns_that_a_topic_is_compacted_now(program: Start, path: Path) -> None:
    """Gaps are damage in one kind of topic, and the rule in the other."""
    writer = Writer(program, path)
    writer.do("log.create_topic('t')")
    with embedlog.open(path, mode="r") as reader:
        for i in range(30):
            writer.do(f"log.append('t', b'{i}' + bytes(50), key=b'{i % 4}')")
        assert len(values(reader)) == 30
        writer.do("log.alter_topic('t', cleanup_policy='compact'); log.compact('t')")
        assert len(values(reader)) < 30
        assert reader.describe_topic("t").settings == {"cleanup_policy": "compact"}


def test_topics_are_created_and_deleted_under_a_reader(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    with embedlog.open(path, mode="r") as reader:
        assert reader.topics() == []
        for turn in range(12):
            writer.do("log.create_topic('t', partitions=2)")
            assert values(reader) == []
            writer.do(f"log.append('t', b'{turn}', partition=1)")
            assert values(reader) == [str(turn)]
            held = reader.read("t", start=0, partition=1)
            writer.do("log.delete_topic('t'); housekeep(log._writer())")
            assert reader.topics() == []
            with pytest.raises(TopicNotFound):
                reader.read("t")
            with pytest.raises(TopicNotFound):
                next(held)
        # And without a look in between: the new topic's offsets are as the old one's were.
        writer.do("log.create_topic('t'); log.append('t', b'old')")
        assert values(reader) == ["old"]
        writer.do("log.delete_topic('t'); log.create_topic('t'); log.append('t', b'new')")
        assert values(reader) == ["new"]


@pytest.mark.slow
def test_the_writer_may_close_and_reopen(program: Start, path: Path) -> None:
    expected: list[str] = []
    reader: Log | None = None
    for turn in range(4):
        writer = Writer(program, path)
        assert writer.opened == "clean"
        if reader is None:
            writer.do("log.create_topic('t')")
            reader = embedlog.open(path, mode="r")
        for i in range(10):
            writer.do(f"log.append('t', b'{turn}.{i}' + b'x' * 200)")
            expected.append(f"{turn}.{i}" + "x" * 200)
            assert values(reader) == expected
        writer.program.end()
        assert values(reader) == expected
    assert reader is not None
    reader.close()


def test_the_writer_may_be_killed(program: Start, path: Path) -> None:
    """A kill loses nothing that was appended; the reader goes on, before and after the next writer's open."""
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=1024)
    with embedlog.open(path, mode="r") as reader, reader.consumer("t") as consumer:
        count = 0
        for turn in range(4):
            writer = Writer(program, path)
            assert writer.opened == ("recovered" if turn else "clean")
            for _ in range(7):
                writer.do(f"log.append('t', b'{count}')")
                count += 1
            writer.program.kill()
            assert values(reader) == [str(i) for i in range(count)]
            assert [r.offset for r in consumer.poll(60_000)] == list(range(count - 7, count))
        with embedlog.open(path, mode="r") as late:
            assert values(late) == [str(i) for i in range(count)]


@pytest.mark.slow
def test_a_reader_reads_while_the_writer_is_killed_in_the_middle(program: Start, path: Path) -> None:
    """At a random point: the reader's records are a prefix of what recovery keeps."""
    with embedlog.open(path) as log:
        log.create_topic("t", segment_bytes=4096)
    stormy = """
import sys, embedlog
log = embedlog.open(sys.argv[1])
print("ready", flush=True)
i = log.offsets("t")[0].log_end_offset
while True:
    log.append_many("t", [b"%d" % j for j in range(i, i + 5)])
    i += 5
"""
    for kill in range(5):
        writer = program(stormy, path)
        assert writer.line() == "ready"
        with embedlog.open(path, mode="r") as reader:
            following = reader.read("t", follow=True, start="latest")
            first = next(following).offset
            seen = [int(next(following).value or b"") for _ in range(300 + 700 * kill)]
            writer.kill()
            assert seen == list(range(first + 1, first + 1 + len(seen)))
            after = values(reader)
            assert after == [str(i) for i in range(len(after))]
            with embedlog.open(path) as log:
                kept = values(log)
            assert kept[: len(after)] == after
            assert kept == [str(i) for i in range(len(kept))]
            assert values(reader) == kept


def test_a_copy_without_the_writers_state_can_be_read(log: Log, path: Path) -> None:
    log.create_topic("t", partitions=2, segment_bytes=1024)
    for i in range(20):
        log.append("t", b"%d" % i, partition=i % 2)
    log.close()
    (path / "writer-state").unlink()
    with embedlog.open(path, mode="r") as reader:
        assert len(values(reader)) == 20
        assert [e.log_end_offset for e in reader.offsets("t").values()] == [10, 10]
        assert reader.read("t", 0, start=7)
        with (path / "t_1" / "00000000000.kafka").open("ab") as file:
            file.write(b"\0" * 100)  # a tail that is not valid ends the log
        assert len(values(reader)) == 20


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 63, b"ELSTATE1" + b"\xff" * 200, os.urandom(500)],
    ids=["empty", "short", "header", "random"],
)
def test_an_invalid_writer_state_is_ignored(log: Log, path: Path, content: bytes) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    log.close()
    (path / "writer-state").write_bytes(content)
    with embedlog.open(path, mode="r") as reader:
        assert values(reader) == ["1"]
    with embedlog.open(path) as again, embedlog.open(path, mode="r") as reader:
        again.append("t", b"2")
        assert values(reader) == ["1", "2"]


def test_a_reader_changes_no_file(log: Log, path: Path) -> None:
    log.create_topic("t", segment_bytes=1024)
    for i in range(30):
        log.append("t", b"%d" % i + bytes(100))
    log.close()
    for index in path.glob("t_0/*.index"):
        index.unlink()
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")}
    with embedlog.open(path, mode="r") as reader:
        assert len(values(reader)) == 30
        assert reader.offset_for_time("t", 0, 0)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")} == before


# -- a group of a reader process --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_process_keeps_its_groups_offsets_in_a_file(
    program: Start, log: Log, path: Path, tmp_path: Path
) -> None:
    consumer = """
import sys, embedlog
with embedlog.open(sys.argv[1], mode="r") as log:
    store = embedlog.FileOffsetStore(sys.argv[2])
    with log.consumer("t", group="g", offset_store=store, auto_commit=False) as consumer:
        for _ in range(int(sys.argv[3])):
            record = next(consumer)
            consumer.commit()
            print(record.offset, flush=True)
        if sys.argv[4] == "crash":
            next(consumer)
            import os
            os._exit(0)
"""
    store = tmp_path / "offsets.json"
    log.create_topic("t")
    for i in range(12):
        log.append("t", b"%d" % i)
    assert program(consumer, path, store, 4, "close").end() == "0\n1\n2\n3\n"
    assert program(consumer, path, store, 3, "crash").end() == "4\n5\n6\n"
    assert program(consumer, path, store, 5, "close").end() == "7\n8\n9\n10\n11\n"
    kept = FileOffsetStore(store).load("g", [TopicPartition("t", 0)])
    assert kept[TopicPartition("t", 0)].offset == 12
    assert log.topics(internal=True) == ["t"]


# -- one writer -------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_holds_the_lock(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    with pytest.raises(DirectoryLocked) as caught:
        embedlog.open(path)
    assert caught.value.pid == writer.program.pid
    assert caught.value.program
    assert caught.value.since_ms is not None
    assert f"process {writer.program.pid} (" in str(caught.value)
    assert "open it with shared=True in each of them, or run a broker: embedlog serve" in str(caught.value)
    assert 'mode="r"' in str(caught.value)
    writer.program.end()
    with embedlog.open(path), pytest.raises(DirectoryLocked, match="this process, by another handle"):
        embedlog.open(path)


def test_the_lock_files_note_is_only_informative(program: Start, path: Path) -> None:
    writer = Writer(program, path)
    writer.do("log.create_topic('t')")
    for content in (None, b"", b"{}", b"[1]", b'{"pid": "x", "program": 7}', b"\xff" * 100):
        if content is None:
            (path / "writer.json").unlink()
        else:
            (path / "writer.json").write_bytes(content)
        with pytest.raises(DirectoryLocked):
            embedlog.open(path)
    writer.do("log.append('t', b'1')")
    writer.program.end()
    with embedlog.open(path) as log:
        assert values(log) == ["1"]
        assert json.loads((path / "writer.json").read_bytes())["pid"] == os.getpid()


def test_a_killed_writers_lock_is_free_at_once(program: Start, path: Path) -> None:
    for _ in range(3):
        writer = Writer(program, path)
        writer.program.kill()
        embedlog.open(path).close()


@pytest.mark.parametrize("how", ["os.fork()", "forked by multiprocessing", "lost its handle"])
def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(
    program: Start, path: Path, how: str
) -> None:
    parent = program(
        """
import multiprocessing, os, signal, sys, embedlog, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on fork with threads
def child():
    print(os.getpid(), flush=True)
    signal.pause()
if sys.argv[2] == "lost its handle":
    def lose():
        embedlog.open(sys.argv[1]).create_topic("t")
    lose()
else:
    log = embedlog.open(sys.argv[1])
    log.create_topic("t")
    log.append("t", b"1")
if sys.argv[2] == "forked by multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
elif os.fork() == 0:
    child()
    os._exit(0)
os.waitpid(-1, 0)
""",
        path,
        how,
    )
    child = int(parent.line())
    with pytest.raises(DirectoryLocked):
        embedlog.open(path)
    os.kill(parent.pid, signal.SIGKILL)
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    try:
        with embedlog.open(path) as log:
            assert log.topics() == ["t"]
            os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)


# -- forks ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_child() -> Iterator[Callable[[Callable[[], object]], str]]:
    """in_child(f) forks, runs f in the child, and returns what it returned, or the error's type, as text."""

    def run(act: Callable[[], object]) -> str:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(60)  # a deadlock ends, and fails
                try:
                    answer = repr(act())
                except BaseException as error:
                    answer = type(error).__name__
                os.write(writing, answer.encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answers:
            answer = answers.read()
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"the child ended with {status}"
        return answer

    yield run


@pytest.mark.slow
def test_a_childs_handle_refuses_everything(log: Log, path: Path, in_child: Callable[..., str]) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    producer, consumer = log.producer(), log.consumer("t", group="g")
    assert consumer.poll(60_000)
    reading = log.read("t", follow=True)
    next(reading)
    reader = embedlog.open(path, mode="r")
    held = reader.read("t", follow=True)
    next(held)
    for use in (
        lambda: log.append("t", b"x"),
        lambda: log.append_many("t", [b"x"]),
        lambda: log.create_topic("u"),
        lambda: log.delete_topic("t"),
        log.topics,
        lambda: log.read("t"),
        lambda: next(reading),
        log.flush,
        log.health,
        log.producer,
        lambda: log.consumer("t"),
        lambda: log.consumer("t", group="h"),
        lambda: log.delete_records("t", 0, 1),
        lambda: log.compact("t"),
        lambda: producer.send("t", b"x"),
        producer.flush,
        lambda: consumer.poll(0),
        consumer.commit,
        lambda: next(consumer),
        lambda: reader.read("t"),
        lambda: next(held),
        reader.topics,
        lambda: log.backend.coordinator.list_groups(),  # type: ignore[union-attr]
    ):
        assert in_child(use) == ForkedHandle.__name__
    reader.close()
    assert values(log) == ["1"]


def test_a_child_closes_without_unlocking(log: Log, path: Path, in_child: Callable[..., str]) -> None:
    log.create_topic("t")
    producer, consumer = log.producer(linger_ms=3_600_000), log.consumer("t", group="g")
    consumer.poll(0)
    future = producer.send("t", b"the parent's")

    def close_everything() -> bool:
        with log, producer, consumer:
            pass
        log.close()
        del log.backend
        return True

    assert in_child(close_everything) == "True"
    with pytest.raises(DirectoryLocked):
        Store(str(path))
    assert in_child(lambda: embedlog.open(path)) == DirectoryLocked.__name__
    producer.flush()
    assert future.result().offset == 0
    assert [r.value for r in consumer.poll(60_000)] == [b"the parent's"]


def test_a_child_may_read_by_a_handle_of_its_own(log: Log, path: Path, in_child: Callable[..., str]) -> None:
    log.create_topic("t")
    log.append("t", b"1")

    def read() -> list[str]:
        with embedlog.open(path, mode="r") as own:
            return values(own)

    assert in_child(read) == "['1']"
    log.append("t", b"2")
    assert in_child(read) == "['1', '2']"


def test_a_child_may_write_when_its_parent_has_closed(
    log: Log, path: Path, in_child: Callable[..., str]
) -> None:
    log.create_topic("t")
    log.close()

    def write() -> list[str]:
        with embedlog.open(path) as own:
            own.append("t", b"the child's")
            return values(own)

    assert in_child(write) == '["the child\'s"]'
    with embedlog.open(path) as again:
        assert again.recovery.clean
        assert values(again) == ["the child's"]


def test_a_log_that_cannot_be_released_blocks_no_other_child_handler(
    log: Log, tmp_path: Path, in_child: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("half closed")

    log.create_topic("t")
    with embedlog.open(tmp_path / "other") as other, monkeypatch.context() as patched:
        patched.setattr(other.backend, "abandon", fails)
        patched.setattr("embedlog.runtime.closing.open_handles", [other, log])  # in this order
        assert in_child(lambda: log.append("t", b"the child's")) == ForkedHandle.__name__


def test_releasing_a_closed_log_touches_no_other_descriptor(path: Path) -> None:
    log = embedlog.open(path)
    log.create_topic("t")
    log.append("t", b"x")
    assert values(log) == ["x"]
    log.close()
    others = [fd for _ in range(50) for fd in os.pipe()]  # the numbers that were the log's are theirs now
    log._abandon()
    for fd in others:
        os.close(fd)


def test_a_cluster_brokers_directory_is_read_only(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"x")
    (path / "cluster.json").write_text("{}")
    for _ in range(2):  # a refusal holds no lock
        with pytest.raises(embedlog.errors.DirectoryError, match="others lead some of its partitions"):
            embedlog.open(path)
    with embedlog.open(path, mode="r") as reader:
        assert values(reader) == ["x"]


def test_forks_while_other_threads_hold_every_lock(
    log: Log, path: Path, in_child: Callable[..., str]
) -> None:
    """Whatever a thread of the parent was doing: the child waits for none of it."""
    log.create_topic("t", partitions=2, segment_bytes=4096)
    stop = threading.Event()
    producer, consumer = log.producer(), log.consumer("t", group="g", auto_commit_interval_ms=1)
    reader = embedlog.open(path, mode="r")

    def storm(act: Callable[[], object]) -> None:
        while not stop.is_set():
            act()

    threads = [
        threading.Thread(target=storm, args=(act,))
        for act in (
            lambda: log.append("t", b"x", flush=True),
            lambda: producer.send("t", b"y"),
            lambda: consumer.poll(1),
            lambda: [None for _ in reader.read("t", start="latest")],
            log.health,
        )
    ]
    for thread in threads:
        thread.start()

    def use_and_close() -> list[str]:
        found = []
        for act in (
            lambda: log.append("t", b"z"),
            lambda: producer.send("t", b"z"),
            producer.close,
            consumer.close,
            lambda: reader.read("t"),
            reader.close,
            log.close,
            lambda: repr(log),
        ):
            try:
                found.append(type(act()).__name__)
            except Exception as error:
                found.append(type(error).__name__)
        return found

    wanted = ["ForkedHandle", "ForkedHandle", "NoneType", "NoneType", "ForkedHandle", "NoneType"]
    for _ in range(12):
        assert in_child(use_and_close) == repr([*wanted, "NoneType", "str"])
    stop.set()
    for thread in threads:
        thread.join()
    reader.close()
    assert b"z" not in [r.value for r in log.read("t")]


def _work(path: str) -> list[str]:
    with embedlog.open(path, mode="r") as own:
        return values(own)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_read(log: Log, path: Path, method: str) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_work, [str(path)] * 3) == [["1"]] * 3
    log.append("t", b"2")
    assert values(log) == ["1", "2"]


# -- exits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "raise SystemExit", "del log"])
def test_logs_left_open_are_closed_at_exit(program: Start, path: Path, ending: str) -> None:
    program(
        f"""
import sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("t")
producer = log.producer(linger_ms=60_000)
producer.send("t", b"buffered")
consumer = log.consumer("t", group="g")
del producer
{ending}
""",
        path,
    ).end()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert values(log) == ["buffered"]


def test_an_exit_of_a_forked_child_leaves_the_parents_log_alone(program: Start, path: Path) -> None:
    program(
        """
import os, sys, warnings, embedlog
warnings.simplefilter("ignore", DeprecationWarning)
log = embedlog.open(sys.argv[1])
log.create_topic("t")
producer = log.producer(linger_ms=60_000)
producer.send("t", b"once")
if os.fork() == 0:
    sys.exit(0)  # with its atexit functions
assert os.wait()[1] == 0
log.append("t", b"after")
""",
        path,
    ).end()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert sorted(values(log)) == ["after", "once"]


# -- between two steps of the writer ----------------------------------------------------------------------


class Stepwise(FileSystem):
    """Has `look` called before and after each step that changes which files there are."""

    look: Callable[[], None] | None = None

    def rename(self, source: str, destination: str) -> None:
        self._seen()
        super().rename(source, destination)
        self._seen()

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._seen()

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self._seen()

    def _seen(self) -> None:
        if self.look is not None:
            self.look()


@pytest.mark.slow
@LAYOUTS
@pytest.mark.parametrize("published", [True, False])
def test_readers_miss_nothing_at_any_step_of_a_compaction(path: Path, layout: str, published: bool) -> None:
    """Old readers and new ones, with the writer's word on its files and without."""
    fs = Stepwise()
    store = Store(
        str(path),
        layout=layout,
        fs=fs,
        background=False,
        topic_settings={"segment_bytes": 1024, "cleanup_policy": "compact", "file_delete_delay_ms": 0},
    )
    with log_over(store) as log:
        log.create_topic("t")
        for i in range(60):  # all batches of one size, so that positions of one file fit into others
            log.append("t", b"%03d" % i + bytes(60), key=b"%02d" % (i * i % 23))
        log.flush()
        wanted = {r.key: r.value for r in log.read("t")}
        looks = 0
        if not published:
            (path / "writer-state").unlink()
        old, unused = embedlog.open(path, mode="r"), embedlog.open(path, mode="r")
        assert len(list(old.read("t"))) == 60
        unused.offsets("t")
        halfway = old.read("t", max_bytes=100)
        given = [next(halfway) for _ in range(9)]

        def look() -> None:
            nonlocal looks
            looks += 1
            with embedlog.open(path, mode="r") as new:
                for reader in (old, unused, new):
                    found = list(reader.read("t", max_bytes=300))
                    assert [r.offset for r in found] == sorted({r.offset for r in found})
                    assert {r.key: r.value for r in found} == wanted
                    assert reader.offset_for_time("t", 0, 0) is not None
            if looks % 10 == 0:
                given.append(next(halfway))

        fs.look = look
        assert log.compact("t") > 0
        housekeep(store)
        fs.look = None
        assert looks > 20
        given += halfway
        assert [r.offset for r in given] == sorted({r.offset for r in given})
        assert {r.key: r.value for r in given} == wanted
        assert len(list(unused.read("t"))) < 60
        old.close()
        unused.close()


def test_readers_learn_of_deleted_records_at_every_step(path: Path) -> None:
    fs = Stepwise()
    store = Store(
        str(path),
        fs=fs,
        background=False,
        topic_settings={"segment_bytes": 1024, "file_delete_delay_ms": 0},
    )
    with log_over(store) as log:
        log.create_topic("t")
        for i in range(20):
            log.append("t", b"%03d" % i + bytes(400))
        old = embedlog.open(path, mode="r")
        assert len(list(old.read("t"))) == 20

        def look() -> None:
            with embedlog.open(path, mode="r") as new:
                for reader in (old, new):
                    found = [r.offset for r in reader.read("t")]
                    assert found in (list(range(20)), list(range(11, 20)))
                    assert reader.offset_for_time("t", 0, 0) is not None
                    assert reader.offsets_before("t", 0, -2, 1) == found[:1]

        fs.look = look
        log.delete_records("t", 0, 11)
        housekeep(store)
        fs.look = None
        assert [r.offset for r in old.read("t")] == list(range(11, 20))
        old.close()


def test_what_belongs_to_a_process_cannot_be_pickled(log: embedlog.Log) -> None:
    log.create_topic("t")
    queue = log.queue("jobs")
    queue.send(b"j")
    job = queue.take(60_000)
    producer = log.producer()
    for belongs in (
        log,
        log.topic("t"),
        producer,
        producer.send("t", b"x"),
        log.topic("t").producer(),
        log.producer(transactional_id="p"),
        log.consumer("t"),
        log.group("g"),
        log.transaction("x"),
        queue,
        job,
    ):
        with pytest.raises(TypeError, match="belongs to its process"):
            pickle.dumps(belongs)
        assert repr(belongs).startswith("<"), "each shows what it is"
    with pytest.raises(TypeError):
        pickle.dumps(log.read("t"))
