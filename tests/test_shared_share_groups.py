"""Share groups of a shared log: by requests to its owner, who may end at any time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log
from embedlog.backends.port.coordinators import ShareCoordinator
from embedlog.backends.shared import SharedBackend
from embedlog.errors import (
    Closed,
    EmbedlogError,
    GroupNotFound,
    InvalidArgument,
    LockLost,
    ReadOnly,
    TopicNotFound,
)
from embedlog.model import Acknowledgement, AcknowledgeType, Delivery, ShareGroupOptions

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
OPTIONS = ShareGroupOptions(lock_ms=600_000, dead_letter_topic="dlq.jobs")

OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log:
    log.create_topic("jobs", exist_ok=True)
    print("ready", flush=True)
    for line in sys.stdin:
        log.append("jobs", line.rstrip("\\n").encode())
        print("sent", flush=True)
"""

CLIENT = """
import sys, embedlog
from embedlog.model import ShareGroupOptions
with embedlog.open(sys.argv[1], shared=True) as log:
    options = ShareGroupOptions(lock_ms=600_000)
    future = log.backend.share_coordinator.acquire(
        "g", "jobs", "client", max_records=1, max_wait_ms=600_000, options=options)
    print("waiting", flush=True)
    print(*future.result(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def owner(path: Path, program: Any) -> Any:
    """Another process, which owns the log and appends the lines that it is told."""
    started = program(OWNER, path)
    assert started.line() == "ready"
    return started


@pytest.fixture
def client(path: Path, owner: Any) -> Iterator[Log]:
    with embedlog.open(path, shared=True) as log:
        assert isinstance(log.backend, SharedBackend)
        yield log


def shares(log: Log) -> ShareCoordinator:
    return log.backend.share_coordinator


def begin(log: Log, member: str = "m", *, most: int = 100, wait_ms: int = 600_000) -> Future[list[Delivery]]:
    return shares(log).acquire("g", "jobs", member, max_records=most, max_wait_ms=wait_ms, options=OPTIONS)


def said(kind: AcknowledgeType, delivery: Delivery, **given: Any) -> Acknowledgement:
    return Acknowledgement(*delivery[:3], kind, **given)


def acknowledge(log: Log, *given: Acknowledgement) -> list[type]:
    return [type(each) for each in shares(log).acknowledge("g", "jobs", given)]


DONE = type(None)


def test_a_client_does_all_that_the_owner_can(client: Log) -> None:
    for job in range(5):
        client.append("jobs", b"%d" % job)
    deliveries = begin(client).result(60)
    assert [each[:2] + each[3:] for each in deliveries] == [(0, offset, 1, None) for offset in range(5)]
    records = [client.read_at("jobs", each.partition, each.offset) for each in deliveries]
    assert [record.value for record in records] == [b"%d" % job for job in range(5)]
    assert begin(client, wait_ms=0).result(60) == []
    kinds = (ACCEPT, RELEASE, REJECT, RENEW, RELEASE)
    given = [said(kind, delivery) for kind, delivery in zip(kinds, deliveries, strict=True)]
    given[4] = given[4]._replace(delay_ms=600_000)
    for _ in range(2):
        assert acknowledge(client, *given) == [DONE] * 5
    assert acknowledge(client, said(ACCEPT, deliveries[2])) == [LockLost]
    [again] = begin(client).result(60)
    assert (again.offset, again.delivery_count) == (1, 2)
    shares(client).release_member("g", "jobs", "m")
    coordinator = shares(client)
    assert coordinator.list_share_groups() == [("g", "jobs")]
    [described] = coordinator.describe_share_group("g", "jobs").partitions
    assert described.end_offset == 5
    assert described.delayed == 1
    assert [each.offset for each in begin(client).result(60)] == [1, 3]
    coordinator.delete_share_group("g", "jobs")
    with pytest.raises(GroupNotFound):
        coordinator.describe_share_group("g", "jobs")


def test_errors_come_from_the_owner(client: Log) -> None:
    given: dict[str, Any] = {"max_records": 1, "max_wait_ms": 0, "options": OPTIONS}
    unknown = shares(client).acquire("g", "unknown", "m", **given)
    assert isinstance(unknown.exception(60), TopicNotFound)
    wrong = shares(client).acquire("g", "jobs", "m", **(given | {"options": OPTIONS._replace(lock_ms=0)}))
    assert isinstance(wrong.exception(60), InvalidArgument)
    begin(client, wait_ms=0).result(60)
    with pytest.raises(InvalidArgument):
        acknowledge(client, Acknowledgement(0, 0, 1, 9))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        acknowledge(client, Acknowledgement(0, 0, 1, RELEASE, delay_ms=-1))


def test_threads_whose_accepts_go_together_get_their_own_results(client: Log) -> None:
    client.append_many("jobs", [b"%d" % job for job in range(400)])
    deliveries = begin(client, most=400).result(60)
    late = {each.offset for each in deliveries if each.offset % 3 == 0}
    begun = threading.Barrier(8)
    found: dict[int, list[type]] = {}

    def accept(thread: int) -> None:
        begun.wait()
        for each in deliveries[thread::8]:
            delivery_id = each.delivery_id + (each.offset in late)
            found[each.offset] = acknowledge(client, said(ACCEPT, each._replace(delivery_id=delivery_id)))

    threads = [threading.Thread(target=accept, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {each: [LockLost] if each in late else [DONE] for each in range(400)}


def test_threads_whose_accepts_go_together_get_their_errors(client: Log) -> None:
    client.append_many("jobs", [b"%d" % job for job in range(80)])
    deliveries = begin(client, most=80).result(60)
    shares(client).delete_share_group("g", "jobs")
    raised: list[EmbedlogError] = []

    def accept(thread: int) -> None:
        for each in deliveries[thread::8]:
            with pytest.raises(GroupNotFound) as error:
                acknowledge(client, said(ACCEPT, each))
            raised.append(error.value)

    threads = [threading.Thread(target=accept, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, raised))) == 80


def test_many_wait_without_a_thread_of_the_owner(client: Log, owner: Any) -> None:
    waiting = [begin(client, str(number), most=1) for number in range(40)]
    for number in range(40):
        client.append("jobs", b"%d" % number)
    offsets = sorted(delivery.offset for future in waiting for delivery in future.result(60))
    assert offsets == list(range(40))


def test_a_client_that_was_killed_takes_no_jobs(client: Log, owner: Any, path: Path, program: Any) -> None:
    killed = program(CLIENT, path)
    assert killed.line() == "waiting"
    assert begin(client, wait_ms=300).result(60) == []  # by now the other one waits, too
    killed.kill()
    waiting = begin(client)
    owner.say("job")
    assert [each.offset for each in waiting.result(60)] == [0]


def test_a_cancelled_acquire_gives_its_jobs_back(client: Log, owner: Any) -> None:
    waiting = begin(client)
    assert waiting.cancel()
    owner.say("job")
    assert owner.line() == "sent"
    [delivery] = begin(client).result(60)
    assert (delivery.offset, delivery.delivery_count) == (0, 1)


def test_the_next_owner_goes_on(client: Log, owner: Any) -> None:
    for job in (b"1", b"2", b"3"):
        client.append("jobs", job)
    deliveries = begin(client, most=2).result(60)
    assert acknowledge(client, said(ACCEPT, deliveries[0])) == [DONE]
    owner.kill()
    assert acknowledge(client, *(said(ACCEPT, each) for each in deliveries)) == [DONE, DONE]
    assert [each.offset for each in begin(client, "other").result(60)] == [2]


def test_an_acquire_waits_on_with_the_next_owner(client: Log, owner: Any) -> None:
    first = begin(client, most=1)
    client.append("jobs", b"1")
    assert len(first.result(60)) == 1
    waiting = begin(client)
    owner.kill()
    client.append("jobs", b"2")
    assert [each.offset for each in waiting.result(60)] == [1]


def test_closing_ends_a_wait(client: Log) -> None:
    waiting = begin(client)
    client.close()
    assert isinstance(waiting.exception(60), Closed)


def test_an_owner_that_closes_hands_its_waits_over(path: Path) -> None:
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(embedlog.open(path, shared=True))
        log.create_topic("jobs")
        other = opened.enter_context(embedlog.open(path, shared=True))
        assert isinstance(other.backend, SharedBackend)
        waiting = begin(other)
        log.close()
        other.append("jobs", b"1")
        assert [each.offset for each in waiting.result(60)] == [0]


def test_a_reader_has_no_share_groups(path: Path, owner: Any) -> None:
    with embedlog.open(path, mode="r") as reader, pytest.raises(ReadOnly):
        shares(reader)
