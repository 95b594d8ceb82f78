"""What a process leaves open that was killed within a transaction is aborted at once, not at its time-out.

The processes are real, and die by SIGKILL. Their transactions may be open for a quarter of an hour: whatever
waits for a time-out fails.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Program

import embedlog
import embedlog.aio
from embedlog import Log, TopicPartition
from embedlog.backends.local import WriterBackend
from embedlog.cluster import Broker
from embedlog.groups import producer_processes
from embedlog.groups.transaction_coordinator import TransactionCoordinator
from embedlog.runtime.processes import Process, parsed, process_of, this_process

LONG_MS = 900_000  # the largest transaction time-out
WAIT_MS = 50_000  # for what comes at once
IN = TopicPartition("in", 0)

# Says where it is, within a transaction: with its offsets, or with its records alone.
LOOP = """
import sys, embedlog
path, shared, what = sys.argv[1], sys.argv[2] == "shared", sys.argv[3]
with embedlog.open(path, shared=shared) as log:
    print("open", flush=True)
    sys.stdin.readline()
    consumer = log.consumer("in", group="g", auto_commit=False) if what == "offsets" else None
    records = consumer.poll(10_000) if consumer else []
    with log.transaction("copier-1", timeout_ms=900_000) as tx:
        tx.append("out", b"half of it")
        if consumer:
            tx.commit_offsets(consumer)
        print(len(records), flush=True)
        sys.stdin.readline()
    print("committed", flush=True)
    sys.stdin.readline()
"""
AIO_LOOP = """
import asyncio, sys, embedlog.aio
path, shared, what = sys.argv[1], sys.argv[2] == "shared", sys.argv[3]
async def main():
    async with embedlog.aio.open(path, shared=shared) as log:
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with log.consumer("in", group="g", auto_commit=False) as consumer:
            records = await consumer.poll(10_000)
            async with log.transaction("copier-1", timeout_ms=900_000) as tx:
                await tx.append("out", b"half of it")
                await tx.commit_offsets(consumer)
                print(len(records), flush=True)
                await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""
OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log:
    print("open", flush=True)
    sys.stdin.readline()
"""

Start = Callable[..., Program]


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start a program on the log, which has two records to copy."""
    with embedlog.open(path, offsets_topic_num_partitions=2) as log:
        log.create_topic("in")
        log.create_topic("out")
        log.append_many("in", [b"1", b"2"])
    running: list[Program] = []

    def begin(code: str, *arguments: str) -> Program:
        program = Program(code, path, *arguments)
        running.append(program)
        assert program.line() == "open"
        return program

    yield begin
    for program in running:
        program.kill()


def enter(program: Program, records: int = 2) -> None:
    """Let it go on into its transaction."""
    program.say()
    assert program.line() == str(records)


def coordinator_of(log: Log) -> TransactionCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.transactions


def check_goes_on(log: Log) -> None:
    """As the how-to's loop does after a restart."""
    with log.consumer("in", group="g", auto_commit=False) as consumer:
        records = consumer.poll(WAIT_MS)
        assert [record.value for record in records] == [b"1", b"2"]
        with log.transaction("copier-1", timeout_ms=LONG_MS) as tx:
            tx.append_many("out", [record.value for record in records])
            tx.commit_offsets(consumer)
        assert consumer.poll(0) == []
        assert consumer.held_back() == {}
    with log.consumer("out", stop_at_end=True) as readers:
        assert [record.value for record in readers] == [b"1", b"2"]


@pytest.mark.parametrize("code", [LOOP, AIO_LOOP], ids=["threads", "tasks"])
@pytest.mark.parametrize("shared", ["alone", "shared"])
def test_an_owner_that_was_killed(start: Start, path: Path, shared: str, code: str) -> None:
    program = start(code, shared, "offsets")
    enter(program)
    program.kill()
    with embedlog.open(path, shared=shared == "shared") as log:
        assert list(log.read("out")) == [], "and nothing waits: the log is read to its end"
        assert log.transactions()[0].state == "CompleteAbort"
        check_goes_on(log)


@pytest.mark.parametrize("code", [LOOP, AIO_LOOP], ids=["threads", "tasks"])
def test_a_client_that_was_killed(start: Start, path: Path, code: str) -> None:
    with embedlog.open(path, shared=True) as log:
        program = start(code, "shared", "offsets")
        enter(program)
        program.kill()
        check_goes_on(log)


def test_a_client_that_was_killed_beside_another(start: Start, path: Path) -> None:
    start(OWNER)
    program = start(LOOP, "shared", "offsets")
    enter(program)
    program.kill()
    with embedlog.open(path, shared=True) as log:
        check_goes_on(log)


def test_a_client_and_then_its_owner_were_killed(start: Start, path: Path) -> None:
    owner = start(OWNER)
    program = start(LOOP, "shared", "offsets")
    enter(program)
    with embedlog.open(path, shared=True) as log:
        program.process.send_signal(signal.SIGKILL)
        owner.kill()
        program.kill()
        check_goes_on(log)


def test_tasks_go_on_after_a_kill(start: Start, path: Path) -> None:
    async def main() -> None:
        async with (
            embedlog.aio.open(path) as log,
            log.consumer("in", group="g", auto_commit=False) as consumer,
        ):
            assert [record.value for record in await consumer.poll(WAIT_MS)] == [b"1", b"2"]

    program = start(LOOP, "alone", "offsets")
    enter(program)
    program.kill()
    asyncio.run(main())


def test_records_alone_hold_up_no_reader(start: Start, path: Path) -> None:
    """A consumer, a queue and a reader that follows, of what is appended after them."""
    with embedlog.open(path, shared=True) as log:
        program = start(LOOP, "shared", "records")
        enter(program, 0)
        log.append("out", b"whole")
        follower = log.read("out", follow=True)
        with log.consumer("out") as consumer, log.queue("out") as queue:
            assert consumer.poll(0) == []
            assert consumer.held_back() == {TopicPartition("out", 0): ["copier-1"]}
            program.kill()
            assert [record.value for record in consumer.poll(WAIT_MS)] == [b"whole"]
            with queue.take(timeout_ms=WAIT_MS) as job:
                assert job.value == b"whole"
            assert next(follower).value == b"whole"


def test_a_live_client_goes_on_with_the_next_owner(start: Start, path: Path) -> None:
    owner = start(OWNER)
    program = start(LOOP, "shared", "offsets")
    enter(program)
    owner.kill()
    with embedlog.open(path, shared=True) as log:
        assert [each.state for each in log.transactions()] == ["Ongoing"]
        program.say()
        assert program.line() == "committed"
        assert [record.value for record in log.read("out")] == [b"half of it"]


def test_a_client_that_stands_still_is_not_dead(start: Start, path: Path) -> None:
    with embedlog.open(path, shared=True) as log:
        program = start(LOOP, "shared", "offsets")
        enter(program)
        program.process.send_signal(signal.SIGSTOP)
        os.waitpid(program.pid, os.WUNTRACED)
        coordinator_of(log).look()
        assert [each.state for each in log.transactions()] == ["Ongoing"]
        program.process.send_signal(signal.SIGCONT)
        program.say()
        assert program.line() == "committed"


@pytest.mark.parametrize("kind", ["owner", "client", "aio"])
def test_poll_returns_in_time_and_says_what_holds_it(start: Start, path: Path, kind: str) -> None:
    """The transaction's process is alive, so that its end is open."""
    if kind == "owner":
        with embedlog.open(path, shared=True) as log:
            program = start(LOOP, "shared", "offsets")
            held_back(program, log)
        return
    start(OWNER)
    program = start(LOOP, "shared", "offsets")
    if kind == "client":
        with embedlog.open(path, shared=True) as log:
            held_back(program, log)
        return

    async def main() -> None:
        async with embedlog.aio.open(path, shared=True) as log:
            enter(program)
            async with log.consumer(group="g", auto_commit=False) as consumer:
                await consumer.assign([IN])
                assert await consumer.poll(300) == []
                assert await consumer.held_back() == {IN: ["copier-1"]}

    asyncio.run(main())


def held_back(program: Program, log: Log) -> None:
    enter(program)
    log.create_topic("more")
    log.append("more", b"of another topic")
    with log.consumer(group="g", auto_commit=False) as consumer:
        consumer.assign([IN])
        assert consumer.poll(300) == []
        assert consumer.held_back() == {IN: ["copier-1"]}
        assert "in 0 waits for the end of 'copier-1'" in repr(consumer)
        consumer.assign([IN, TopicPartition("more", 0)])
        assert [record.value for record in consumer.poll(WAIT_MS)] == [b"of another topic"]
        program.say()
        assert program.line() == "committed"
        assert consumer.poll(0) == []
        assert consumer.held_back() == {}
        assert consumer.position(IN) == 2


def test_a_forked_child_that_ends(path: Path, start: Start) -> None:
    """It has a transaction of its own, as a client of its parent."""
    code = """
import os, sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log:
    print("open", flush=True)
    pid = os.fork()
    if pid == 0:
        tx = log.transaction("child-1", timeout_ms=900_000).__enter__()
        tx.append("out", b"of the child")
        os._exit(0)
    os.waitpid(pid, 0)
    log.append("out", b"of the parent")
    with log.consumer("out") as consumer:
        print(consumer.poll(50_000)[0].value.decode(), flush=True)
    sys.stdin.readline()
"""
    assert start(code).line() == "of the parent"


# -- processes -------------------------------------------------------------------------------------------


def test_processes() -> None:
    me = this_process()
    assert me == process_of(os.getpid()) == parsed(str(me))
    assert not me.has_ended
    assert process_of(0) is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = process_of(child.pid)
        assert process is not None
        assert not process.has_ended
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.has_ended, "it is not reaped yet"
    assert process.has_ended


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_pid_that_another_process_has_now() -> None:
    me = this_process()
    assert me._replace(start="1").has_ended
    assert me._replace(boot="another").has_ended
    assert not me._replace(namespace="pid:[1]", pid=1 << 22).has_ended, "of another container: unknown"
    assert Process("-", "-", me.pid, "-").has_ended is False


@pytest.mark.parametrize("text", ["", "owner", "client 1 2", "owner a b c d", "client a b -1 d", "x" * 1_000])
def test_a_header_of_another_kind(text: str) -> None:
    assert producer_processes.has_ended(text) is False


def test_whose_a_transaction_is(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        with log.transaction("tx") as tx:
            tx.append("t", b"1")
            me = this_process()
            assert coordinator_of(log).describe("tx").process == f"owner {me}"
        other = str(me._replace(pid=me.pid + 1, start="1"))
        assert producer_processes.has_ended(f"owner {other}")
        assert not producer_processes.has_ended(f"owner {me}")
    with embedlog.open(path) as log:
        assert coordinator_of(log).describe("tx").process == f"owner {me}", "it is stored"


def test_brokers_do_not_know_their_clients_processes(start: Start, path: Path) -> None:
    """They are on other machines: their transactions have their time-outs."""
    with (
        Broker(path) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        log.transaction("tx") as tx,
    ):
        tx.append("out", b"1")
        assert coordinator_of(broker.log).describe("tx").process == ""
