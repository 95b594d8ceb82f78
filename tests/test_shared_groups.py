"""Consumer groups of processes that share a log: the membership of a process ends with the process.

Sessions are half an hour long here: what they end does not end within a test.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import Program

import embedlog
from embedlog.backends import shared
from embedlog.backends.shared import SharedBackend

Start = Callable[..., Program]

PARTITIONS = 4
HALF_AN_HOUR_MS = 1_800_000

OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True, group_initial_rebalance_delay_ms=0) as log:
    log.create_topic("t", partitions=4)
    log.append_many("t", [(b"%d" % i, b"%d" % i) for i in range(100)])
    print("ready", flush=True)
    sys.stdin.readline()
"""

MEMBER = """
import sys, embedlog
from embedlog.backends import shared
shared._CLIENT["session_timeout_ms"] = 1_800_000
log = embedlog.open(sys.argv[1], shared=True)
instance = sys.argv[2] if len(sys.argv) > 2 else None
consumer = log.consumer("t", group="g", auto_commit=False, group_instance_id=instance)
print("joining", flush=True)
shown = False
while True:
    if consumer.poll(50):
        consumer.commit()
    if consumer.assignment() and not shown:
        shown = True
        print("member", flush=True)
"""


@pytest.fixture(autouse=True)
def long_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared._CLIENT, "session_timeout_ms", HALF_AN_HOUR_MS)  # type: ignore[arg-type]


@pytest.fixture
def owner(path: Path, program: Start) -> Program:
    started = program(OWNER, path)
    assert started.line() == "ready"
    return started


def committed(log: embedlog.Log) -> dict[int, int]:
    return {tp.partition: each.offset for tp, each in log.group("g").offsets().items()}


@contextmanager
def survivor(path: Path) -> Iterator[tuple[embedlog.Log, embedlog.Consumer]]:
    """A client in this process, whose consumer has all partitions."""
    with embedlog.open(path, shared=True) as log:
        assert isinstance(log.backend, SharedBackend)
        with log.consumer("t", group="g", auto_commit=False) as consumer:
            has(consumer, PARTITIONS)
            yield log, consumer


def has(consumer: embedlog.Consumer, partitions: int) -> None:
    """Poll until it has that many partitions. Commits what it has read."""
    while len(consumer.assignment()) != partitions:
        if consumer.poll(50):
            consumer.commit()


@pytest.mark.slow
def test_the_partitions_of_a_killed_process_go_to_the_others(
    path: Path, owner: Program, program: Start
) -> None:
    with survivor(path) as (log, consumer):
        before = committed(log)
        for _ in range(3):
            member = program(MEMBER, path)
            assert member.line() == "joining"
            has(consumer, PARTITIONS // 2)
            assert member.line() == "member"
            member.kill()
            has(consumer, PARTITIONS)
            after = committed(log)
            assert all(after.get(partition, 0) >= offset for partition, offset in before.items())
            before = after
        assert len(log.group("g").members()) == 1


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_joins_holds_nobody_up(
    path: Path, owner: Program, program: Start
) -> None:
    rng = random.Random(7)
    with survivor(path) as (log, consumer):
        for _ in range(6):
            member = program(MEMBER, path)
            assert member.line() == "joining"
            for _ in range(rng.randrange(4)):
                consumer.poll(rng.randrange(1, 60))
            member.kill()
            while len(log.group("g").members()) > 1:
                consumer.poll(20)
            has(consumer, PARTITIONS)


def test_a_static_member_is_expected_back(path: Path, owner: Program, program: Start) -> None:
    with survivor(path) as (log, consumer):
        static, dynamic = program(MEMBER, path, "instance-1"), program(MEMBER, path)
        assert static.line() == dynamic.line() == "joining"

        def all_are_members() -> bool:
            group = log.group("g").describe()
            return group.state == "Stable" and len(group.members) == 3

        while not all_are_members():  # else the dynamic one may wait for the static one, for five minutes
            consumer.poll(50)
        static.kill()
        dynamic.kill()  # later: its end shows that the owner has seen that of the static one
        while len(log.group("g").members()) > 2:
            consumer.poll(50)
        instances = {member.group_instance_id for member in log.group("g").members()}
        assert instances == {None, "instance-1"}


def test_a_process_that_is_killed_in_a_join_that_waits_leaves(
    path: Path, owner: Program, program: Start
) -> None:
    """It waits for a static member that has been killed, as long as for one that is only slow."""
    with survivor(path) as (log, consumer):
        static = program(MEMBER, path, "instance-1")
        has(consumer, PARTITIONS // 2)
        assert [static.line(), static.line()] == ["joining", "member"]
        static.kill()
        dynamic = program(MEMBER, path)
        while len(log.group("g").members()) < 3:
            consumer.poll(50)
        dynamic.kill()
        while len(log.group("g").members()) > 2:
            consumer.poll(50)


def test_a_process_that_loses_its_connections_joins_again(path: Path, owner: Program) -> None:
    with survivor(path) as (log, consumer):
        [before] = log.group("g").members()
        offsets = committed(log)
        backend = log.backend
        assert isinstance(backend, SharedBackend)
        brokers = backend._remote._brokers
        while [member.member_id for member in log.group("g").members()] in ([], [before.member_id]):
            # One that is made meanwhile keeps the membership: then all once more.
            for connection in [*brokers._busy, *(each for idle in brokers._idle.values() for each in idle)]:
                connection.abort()
            consumer.poll(50)
        has(consumer, PARTITIONS)
        assert all(committed(log).get(each, 0) >= offset for each, offset in offsets.items())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_members_outlive_their_owner(path: Path, owner: Program, program: Start, end: signal.Signals) -> None:
    """Its connections close with it: that is no end of theirs, and one that ends later is noticed."""
    with survivor(path) as (log, consumer):
        member = program(MEMBER, path)
        assert member.line() == "joining"
        has(consumer, PARTITIONS // 2)
        assert member.line() == "member"
        before = committed(log)
        os.kill(owner.pid, end)
        owner.process.wait()
        log.append("t", b"to the next owner", partition=0)
        member.kill()
        has(consumer, PARTITIONS)
        assert all(committed(log).get(each, 0) >= offset for each, offset in before.items())
