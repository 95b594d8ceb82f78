"""The work queue's contract: over a log's owner, over a client of it, and by embedlog.aio over both."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from blocking import Loop, blocking
from faults import FaultyFileSystem, open_log

import embedlog
import embedlog.cluster
from embedlog.clients import job_source
from embedlog.clients.job_source import Waiting
from embedlog.errors import (
    Closed,
    DiskFull,
    InvalidArgument,
    InvalidGroup,
    InvalidType,
    LockLost,
    QueueEmpty,
    ReadOnly,
    SerializationError,
    UnknownSetting,
)
from embedlog.model import Acknowledgement, AcknowledgeType, Delivery

LATER = 3_600_000
"""An hour: nothing in this file waits for it."""


@pytest.fixture(params=["owner", "client", "broker", "aio owner", "aio client", "aio broker"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


in_a_directory = pytest.mark.parametrize(
    "kind", ["owner", "client", "aio owner", "aio client"], indirect=True, ids=str
)
"""For what brokers do not give: remote/test_broker_queues.py has how they differ."""


@pytest.fixture
def owner(kind: str, path: Path) -> Iterator[contextlib.ExitStack]:
    """Closes the log's owner, if that is another than the log."""
    with contextlib.ExitStack() as opened:
        if kind.endswith("client"):
            opened.enter_context(embedlog.open(path, shared=True))
        yield opened


@pytest.fixture
def log(kind: str, path: Path, owner: contextlib.ExitStack) -> Iterator[Any]:
    """A log, as its owner, as its client or over a broker; that of tasks behind the interface of threads."""
    with contextlib.ExitStack() as opened:
        address: str | Path = path
        settings: dict[str, Any] = {"shared": True}
        if kind.endswith("broker"):
            broker = opened.enter_context(embedlog.cluster.Broker(path))
            address, settings = f"kafka://127.0.0.1:{broker.port}", {}
        if kind.startswith("aio"):
            loop = Loop()
            opened.callback(loop.close)
            yield opened.enter_context(blocking(loop, address, **settings))
        else:
            yield opened.enter_context(embedlog.open(address, **settings))


def take(queue: Any) -> Any:
    """The next job, however long it takes to come."""
    return queue.take(timeout_ms=math.inf)


def dead(log: Any, topic: str = "dlq.jobs") -> Any:
    """The record of the only dead letter. It is written in the background."""
    with log.queue(topic, dead_letter_topic=None) as letters:
        letter = take(letters)
        assert letters.take(default=None) is None
        return letter.record


def headers(record: embedlog.Record) -> dict[str, bytes | None]:
    return dict(record.headers)


# -- one job -----------------------------------------------------------------------------------------------


def test_a_job_is_handed_out_until_it_is_accepted(log: Any) -> None:
    with log.queue("jobs") as queue:
        assert queue.take(default=None) is None
        sent = queue.send(b"work", key=b"k", headers={"h": b"v"})
        job = queue.take()
        assert (job.topic, job.partition, job.offset) == ("jobs", sent.partition, sent.offset)
        assert (job.key, job.value, job.headers) == (b"k", b"work", (("h", b"v"),))
        assert job.timestamp_ms == sent.timestamp_ms
        assert job.record == log.read_at("jobs", sent.partition, sent.offset)
        assert job.deliveries == 1
        assert queue.take(default=None) is None
        job.accept()
        assert queue.take(default=None) is None
    with log.queue("jobs") as queue:
        assert queue.take(default=None) is None


def test_any_producers_records_are_jobs(log: Any) -> None:
    log.create_topic("jobs", partitions=3)
    log.append_many("jobs", [(b"%d" % i, b"%d" % i) for i in range(30)])
    with log.queue("jobs") as queue:
        got = [take(queue) for _ in range(30)]
        assert Counter(job.value for job in got) == {b"%d" % i: 1 for i in range(30)}
        assert {job.partition for job in got} == {0, 1, 2}


def test_each_group_gets_all_jobs(log: Any) -> None:
    with log.queue("jobs", group="a") as a, log.queue("jobs", group="b") as b:
        a.send(b"1")
        a.send(b"2")
        for queue in (a, b):
            for value in (b"1", b"2"):
                job = take(queue)
                assert job.value == value
                job.accept()
            assert queue.take(default=None) is None


@in_a_directory
def test_released_jobs_come_again_and_count(log: Any) -> None:
    with log.queue("jobs", max_deliveries=3) as queue:
        queue.send(b"work")
        take(queue).release()
        job = take(queue)
        assert job.deliveries == 2
        job.release(counted=False)
        job = take(queue)
        assert job.deliveries == 2
        before = time.time()
        job.release(delay_ms=200)
        job = take(queue)
        assert time.time() - before >= 0.199
        assert job.deliveries == 3
        job.release()  # the last one that counts
        assert queue.take(default=None) is None
        assert dead(log).value == b"work"


def test_rejected_jobs_are_dead_letters(log: Any) -> None:
    with log.queue("jobs") as queue:
        sent = queue.send(b"poison", key=b"k", headers={"h": b"v"})
        take(queue).reject("no such customer")
        assert queue.take(default=None) is None
    letter = dead(log)
    assert (letter.key, letter.value) == (b"k", b"poison")
    said = headers(letter)
    assert said["h"] == b"v"
    assert said["embedlog.error"] == b"no such customer"
    assert said["embedlog.deliveries"] == b"1"
    assert said["embedlog.origin_topic"] == b"jobs"
    assert said["embedlog.origin_partition"] == b"0"
    assert said["embedlog.origin_offset"] == b"%d" % sent.offset


@pytest.mark.parametrize("error", ["x" * 100_000, "file \udcff is missing", ""])
def test_any_text_is_a_reason(log: Any, error: str) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"poison")
        take(queue).reject(error)
    assert headers(dead(log))["embedlog.error"] == error[:4_000].encode(errors="replace")


@in_a_directory
@pytest.mark.parametrize("topic", ["graveyard", None])
def test_the_dead_letters_topic_has_a_name_or_there_is_none(
    path: Path, owner: contextlib.ExitStack, log: Any, topic: str | None
) -> None:
    with log.queue("jobs", dead_letter_topic=topic) as queue:
        queue.send(b"poison")
        take(queue).reject("why")
        assert queue.take(default=None) is None
    if topic is not None:
        assert dead(log, topic).value == b"poison"
    log.close()
    owner.close()
    with embedlog.open(path) as again:  # closing has written all dead letters
        assert again.topics() == sorted(name for name in ("jobs", topic) if name)


def test_a_delivery_that_is_over_raises_lock_lost(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        job = take(queue)
        job.accept()
        for again in (job.accept, job.release, job.renew):
            with pytest.raises(LockLost, match="accepted already"):
                again()
        with pytest.raises(LockLost):
            job.reject("late")


def test_a_late_accept_raises_lock_lost(log: Any) -> None:
    """Another has the job by then."""
    queue = log.queue("jobs")
    queue.send(b"work")
    job = take(queue)
    queue.close()
    with log.queue("jobs") as other:
        again = take(other)
        assert (again.offset, again.deliveries) == (job.offset, 1)
        with pytest.raises(LockLost):
            job.accept()
        again.accept()
        assert other.take(default=None) is None


def test_a_delivery_ends_with_its_topic(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A topic of the same name has other jobs at the same offsets."""
    with log.queue("jobs") as queue:
        queue.send(b"old")
        with take(queue) as job:
            log.delete_topic("jobs")
            with pytest.raises(LockLost, match="jobs 0, offset 0: "):
                job.renew()
        assert "the block has ended after its lock" in caplog.text
        log.create_topic("jobs")
        queue.send(b"other")
        other = take(queue)
        assert (other.offset, other.deliveries) == (job.offset, job.deliveries)
        with pytest.raises(LockLost):
            job.accept()
        other.renew()
        other.accept()


# -- with job: ---------------------------------------------------------------------------------------------


def test_the_end_of_a_block_accepts(log: Any) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        with take(queue) as job:
            assert job.value == b"work"
        with pytest.raises(LockLost):
            job.accept()
    with log.queue("jobs") as queue:
        assert queue.take(default=None) is None


@in_a_directory
def test_an_exception_releases_with_back_off_and_the_last_rejects(
    log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with log.queue("jobs", max_deliveries=3, backoff_ms=100, max_backoff_ms=150) as queue:
        queue.send(b"poison")
        for count in (1, 2, 3):
            job = take(queue)
            assert job.deliveries == count
            before = time.time()
            with pytest.raises(ValueError, match="value"), job:
                raise ValueError("bad\nvalue")
            if count < 3:
                again = take(queue)
                assert again.deliveries == count + 1
                assert time.time() - before >= (0.049, 0.074)[count - 1]  # half of the back-off
                again.release(counted=False)
        assert queue.take(default=None) is None
    letter = dead(log)
    assert headers(letter)["embedlog.error"] == b"ValueError: bad value"
    assert headers(letter)["embedlog.deliveries"] == b"3"
    assert caplog.records == [], "the exception tells of itself"


def test_a_failed_assertion_about_a_job_fails_its_test(log: Any) -> None:
    with log.queue("jobs", backoff_ms=0) as queue:
        queue.send(b"right")
        with pytest.raises(AssertionError), take(queue) as job:
            assert job.value == b"wrong"
        assert take(queue).deliveries == 2


def test_an_error_that_cannot_say_what_it_is(log: Any) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise AttributeError("no such thing")

    with log.queue("jobs", max_deliveries=1) as queue:
        queue.send(b"poison")
        with pytest.raises(Broken), take(queue):
            raise Broken
    assert headers(dead(log))["embedlog.error"] == b"Broken"


@in_a_directory
@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_releases_uncounted(log: Any, ends: type[BaseException]) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        with pytest.raises(ends), take(queue):
            raise ends
        job = take(queue)
        assert job.deliveries == 1


@pytest.mark.parametrize("how", ["accept", "release", "reject"])
def test_a_block_that_settles_its_job_itself(log: Any, how: str, caplog: pytest.LogCaptureFixture) -> None:
    with log.queue("jobs") as queue:
        queue.send(b"work")
        with take(queue) as job:
            job.release() if how == "release" else job.reject("no") if how == "reject" else job.accept()
        if how == "release":
            assert take(queue).deliveries == 2
        else:
            assert queue.take(default=None) is None
        queue.send(b"another")
        with pytest.raises(ValueError, match="after that"), take(queue) as job:
            job.accept()
            raise ValueError("after that")
        assert caplog.records == []
        assert queue.take(default=None) is None


def test_a_block_whose_lock_was_lost_goes_on(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    for error in (None, ValueError("late")):
        queue = log.queue("jobs")
        queue.send(b"work")
        with contextlib.suppress(ValueError), take(queue):
            queue.close()
            with log.queue("jobs") as other:
                take(other).accept()
            if error is not None:
                raise error
        assert "it may be done again" in caplog.text
        caplog.clear()


def test_a_release_that_fails_does_not_hide_what_ended_the_block(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log, log.queue("jobs") as queue:
        queue.send(b"work")
        job = take(queue)
        fs.fail("write", errno.ENOSPC, path="__share_group_state", times=1)
        with pytest.raises(ValueError, match="bad"), job:
            raise ValueError("bad")
        assert "waits until its lock runs out" in caplog.text


# -- none --------------------------------------------------------------------------------------------------


def test_no_job_is_an_error_or_a_default(log: Any) -> None:
    with log.queue("jobs", group="g") as queue:
        for error in (QueueEmpty, Empty):
            with pytest.raises(error, match="no job of 'jobs', group g within 1 ms: "):
                queue.take(timeout_ms=1)
        with pytest.raises(QueueEmpty, match="no job of 'jobs', group g: "), queue.take():
            pass
        assert queue.take(default=None) is None
        assert queue.take(1, default="none") == "none"
        queue.stop()
        with pytest.raises(QueueEmpty, match="was stopped"):
            queue.take(timeout_ms=math.inf)
        assert queue.take(default=None) is None


# -- run ---------------------------------------------------------------------------------------------------


def handler_of(kind: str, function: Any) -> Any:
    """A coroutine function for the queues of tasks."""

    async def awaited(job: Any) -> None:
        function(job)

    return awaited if kind.startswith("aio") else function


@in_a_directory
def test_run_goes_on_after_jobs_that_fail(kind: str, log: Any, caplog: pytest.LogCaptureFixture) -> None:
    with log.queue("jobs", max_deliveries=3, backoff_ms=100, max_backoff_ms=150) as queue:
        seen: list[tuple[bytes, int]] = []
        stop = queue._inner.stop if kind.startswith("aio") else queue.stop

        def handle(job: Any) -> None:
            seen.append((job.value, job.deliveries))
            if job.value == b"last":
                stop()
            elif job.value == b"poison":
                raise ValueError("bad\nvalue")

        queue.send(b"poison")
        queue.send(b"good")
        queue.send(b"last", delay_ms=1_000)
        queue.run(handler_of(kind, handle))
        poison = [deliveries for value, deliveries in seen if value == b"poison"]
        assert (poison, seen.count((b"good", 1)), seen[-1]) == ([1, 2, 3], 1, (b"last", 1))
    letter = dead(log)
    assert headers(letter)["embedlog.error"] == b"ValueError: bad value"
    assert headers(letter)["embedlog.deliveries"] == b"3"
    failures = [record for record in caplog.records if record.exc_info and record.exc_info[0] is ValueError]
    assert [record.levelno for record in failures] == [logging.WARNING, logging.WARNING, logging.ERROR]
    assert re.match(r"jobs 0, offset 0: failed at delivery 1 of 3; again in \d+ ms", failures[0].getMessage())
    with log.queue("jobs") as queue:
        assert queue.take(default=None) is None


@pytest.mark.parametrize("kind", ["owner", "client"])  # for tasks: test_aio_queue.py
@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_run_ends_with_what_ends_a_program(log: Any, ends: type[BaseException]) -> None:
    def handle(job: Any) -> None:
        raise ends

    with log.queue("jobs") as queue:
        queue.send(b"work")
        with pytest.raises(ends):
            queue.run(handle)
        assert take(queue).deliveries == 1


def test_run_calls_only_functions_of_its_kind(kind: str, log: Any) -> None:
    other = "owner" if kind.startswith("aio") else "aio"
    with log.queue("jobs") as queue, pytest.raises(InvalidType, match="coroutine function"):
        queue.run(handler_of(other, print))


# -- later -------------------------------------------------------------------------------------------------


@in_a_directory
def test_a_job_with_a_delay_comes_when_it_is_due(log: Any) -> None:
    with log.queue("jobs") as queue:
        before = time.time()
        queue.send(b"in a moment", delay_ms=300)
        queue.send(b"at a time", at=datetime.now(UTC) + timedelta(milliseconds=600))
        queue.send(b"in an hour", delay_ms=LATER)
        queue.send(b"past", at=datetime(2020, 1, 1))
        queue.send(b"now")
        got = {}
        for _ in range(4):
            job = take(queue)
            got[job.value] = time.time() - before
            job.accept()
        assert [each for each in got if b" " not in each] == [b"past", b"now"]
        assert [each for each in got if b" " in each] == [b"in a moment", b"at a time"]
        assert got[b"in a moment"] >= 0.299
        assert got[b"at a time"] >= 0.599
        assert queue.take(default=None) is None


def test_a_due_time_is_a_header_that_any_producer_can_write(log: Any) -> None:
    with log.queue("jobs") as queue:
        due_ms = int(time.time() * 1000) + 200
        log.append("jobs", b"by hand", headers={"embedlog.due_ms": b"%d" % due_ms})
        assert take(queue).value == b"by hand"
        assert time.time() * 1000 >= due_ms


def test_delays_survive_a_restart(path: Path) -> None:
    with embedlog.open(path) as log, log.queue("jobs") as queue:
        queue.send(b"later", delay_ms=LATER)
        queue.send(b"failed")
        assert queue.take().value == b"failed"
        queue.send(b"soon", delay_ms=200)
        job = take(queue)
        job.release(delay_ms=200)
        before = time.time()
    with embedlog.open(path) as log, log.queue("jobs") as queue:
        got = [take(queue) for _ in range(2)]
        assert time.time() - before >= 0.15
        assert {job.value: job.deliveries for job in got} == {b"failed": 1, b"soon": 2}
        assert queue.take(default=None) is None


# -- values ------------------------------------------------------------------------------------------------


def test_values_of_a_type(log: Any) -> None:
    with log.topic("jobs", dict, key_type=str).queue(group="g") as queue:
        queue.send({"to": "alice"}, key="a")
        job = take(queue)
        assert (job.key, job.value) == ("a", {"to": "alice"})
        assert job.record == embedlog.Record("jobs", 0, 0, job.timestamp_ms, 0, "a", {"to": "alice"})
        job.accept()
        with pytest.raises(SerializationError):
            queue.send({"to": {1, 2}})


def test_a_job_that_does_not_decode_is_a_dead_letter(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    typed = log.topic("jobs", dict)
    with typed.queue() as queue:
        for value in (b'{"n": 1}', b"not JSON", b'{"n": 2}'):
            log.append("jobs", value)
        for number in (1, 2):
            job = take(queue)
            assert job.value == {"n": number}
            job.accept()
        assert queue.take(default=None) is None
    letter = dead(log)
    assert letter.value == b"not JSON"
    error = headers(letter)["embedlog.error"]
    assert error is not None
    assert error.startswith(b"DeserializationError: ")
    assert "rejected" in caplog.text


# -- locks -------------------------------------------------------------------------------------------------


def test_locks_are_renewed_while_a_job_is_in_hand(
    log: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_source, "_RENEWALS", 6_000)  # every 100 ms
    with log.queue("jobs", lock_ms=600_000) as queue, log.queue("jobs", lock_ms=600_000) as other:
        queue.send(b"long")
        job = take(queue)
        seen: set[int] = set()
        while len(seen) < 4:
            with embedlog.open(path, mode="r") as looking:
                [lock] = looking.backend.share_reader().unfinished("default", "jobs")[0]
                seen.add(lock.until_ms // 50)
        assert other.take(default=None) is None
        job.renew()
        job.accept()


def test_a_job_that_is_dropped_comes_again(log: Any) -> None:
    with log.queue("jobs", lock_ms=150) as queue:
        queue.send(b"forgotten")
        job = take(queue)
        del job
        gc.collect()
        assert take(queue).deliveries == 2


@in_a_directory
def test_the_jobs_of_a_key_come_one_after_the_other(log: Any) -> None:
    with log.queue("jobs", ordered_by_key=True) as queue:
        for key, value in ((b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (None, b"4"), (None, b"5")):
            queue.send(value, key=key)
        out = {job.value: job for job in (take(queue) for _ in range(4))}
        assert sorted(out) == [b"1", b"3", b"4", b"5"]
        assert queue.take(default=None) is None
        out[b"1"].release(delay_ms=100)
        job = take(queue)
        assert (job.value, job.deliveries) == (b"1", 2)
        job.accept()
        assert take(queue).value == b"2"


# -- several at once ---------------------------------------------------------------------------------------


def test_many_threads_take_from_one_queue(log: Any) -> None:
    log.create_topic("jobs")
    log.append_many("jobs", [b"%d" % i for i in range(400)])
    done: list[bytes] = []
    all_done = threading.Event()

    def work(queue: Any) -> None:
        for job in queue:
            with job:
                done.append(job.value)
            if len(done) >= 400:
                all_done.set()

    with log.queue("jobs") as one, log.queue("jobs") as two:
        threads = [threading.Thread(target=work, args=[queue]) for queue in (one, two) for _ in range(4)]
        for thread in threads:
            thread.start()
        all_done.wait()
        one.stop()
        two.stop()
        for thread in threads:
            thread.join()
    assert Counter(done) == {b"%d" % i: 1 for i in range(400)}
    with log.queue("jobs") as queue:
        assert queue.take(default=None) is None


def test_a_thread_that_waits_gets_a_job_that_is_sent_later(log: Any) -> None:
    with log.queue("jobs") as queue:
        got: list[Any] = []
        threads = [threading.Thread(target=lambda: got.append(take(queue))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(3):
            queue.send(b"%d" % number)
        for thread in threads:
            thread.join()
        assert sorted(job.value for job in got) == [b"0", b"1", b"2"]


def test_what_was_fetched_ahead_goes_back_uncounted(log: Any) -> None:
    log.create_topic("jobs")
    log.append_many("jobs", [b"%d" % i for i in range(1_000)])
    with log.queue("jobs") as queue:
        for job in itertools.islice(queue, 300):
            job.accept()
        open_job = take(queue)
    with log.queue("jobs") as queue:
        left = [take(queue) for _ in range(700)]
        assert {job.deliveries for job in left} == {1}
        assert {job.offset for job in left} == set(range(300, 1_000))
        assert open_job.offset in {job.offset for job in left}
        assert queue.take(default=None) is None


def test_jobs_do_not_wait_behind_a_long_one(log: Any) -> None:
    log.create_topic("jobs")
    log.append_many("jobs", [b"%d" % i for i in range(1_000)])
    with log.queue("jobs") as queue, log.queue("jobs") as other:
        for job in itertools.islice(queue, 300):
            job.accept()
        long = take(queue)
        rest = [take(other) for _ in range(699)]
        assert {job.offset for job in rest} == set(range(300, 1_000)) - {long.offset}
        assert {job.deliveries for job in rest} == {1}
        long.accept()


# -- accepts that wait for each other ------------------------------------------------------------------------

SLOW = {"accept_linger_ms": LATER, "lock_ms": 10 * LATER, "ordered_by_key": True}


def locked(log: Any) -> int:
    described = log.backend.share_coordinator.describe_share_group("default", "jobs")
    return sum(each.locked for each in described.partitions)


def two_of_a_key(queue: Any) -> Any:
    """The first one's block has ended. As long as it is not accepted, the second one is not handed out."""
    for value in (b"1", b"2"):
        queue.send(value, key=b"k")
    with take(queue) as job:
        assert job.value == b"1"
    return job


@in_a_directory
def test_accepts_go_before_jobs_are_asked_for(log: Any) -> None:
    with log.queue("jobs", **SLOW) as queue:
        two_of_a_key(queue)
        assert locked(log) == 1
        job = take(queue)
        assert job.value == b"2"
        job.accept()
        assert locked(log) == 0


@in_a_directory
@pytest.mark.parametrize("end", ["stop", "close", "its time"])
def test_accepts_do_not_wait_past_the(log: Any, end: str) -> None:
    options = SLOW | ({"accept_linger_ms": 1} if end == "its time" else {})
    with log.queue("jobs", **options) as queue, log.queue("jobs", **options) as other:
        two_of_a_key(queue)
        if end != "its time":
            getattr(queue, end)()
        assert take(other).value == b"2"
        with log.queue("jobs", **options) as third:
            assert third.take(default=None) is None


@in_a_directory
def test_after_a_stop_a_block_accepts_its_job_itself(log: Any) -> None:
    with log.queue("jobs", **SLOW) as queue:
        queue.send(b"1")
        with take(queue):
            queue.stop()
        assert locked(log) == 0


@in_a_directory
def test_an_accept_that_comes_too_late_is_logged(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    with log.queue("jobs", **SLOW) as queue:
        job = two_of_a_key(queue)
        held: Delivery = job._held.delivery
        given = Acknowledgement(*held[:3], AcknowledgeType.RELEASE)
        assert log.backend.share_coordinator.acknowledge("default", "jobs", [given]) == [None]
    assert "offset 0: its accept came too late" in caplog.text
    with log.queue("jobs", **SLOW) as queue:
        assert take(queue).value == b"1"


def test_accepts_that_failed_are_sent_again(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log, log.queue("jobs", **SLOW) as queue:
        two_of_a_key(queue)
        fs.fail("write", errno.ENOSPC, path="__share_group_state", times=1)
        with pytest.raises(DiskFull):
            queue.take()
        assert locked(log) == 1
        assert take(queue).value == b"2"


@in_a_directory
def test_accepts_end_with_their_group(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    with log.queue("jobs", **SLOW) as queue:
        two_of_a_key(queue)
        log.backend.share_coordinator.delete_share_group("default", "jobs")
        assert take(queue).value == b"1"  # the group begins anew
        assert "offset 0: its accept came too late" in caplog.text


# -- the end -----------------------------------------------------------------------------------------------


@in_a_directory
@pytest.mark.parametrize("last", [False, True])
def test_a_handler_that_fails_after_the_close_counts(log: Any, last: bool) -> None:
    options = {"max_deliveries": 1 if last else 2, "backoff_ms": 0}
    with log.queue("jobs", **options) as queue:
        queue.send(b"work")
        with pytest.raises(RuntimeError), take(queue):
            queue.close()
            raise RuntimeError("planned")
    with log.queue("jobs", **options) as queue:
        if last:
            assert queue.take(default=None) is None
            assert dict(dead(log).headers)["embedlog.error"] == b"RuntimeError: planned"
        else:
            assert take(queue).deliveries == 2


@pytest.mark.parametrize("how", ["stop", "close"])
def test_the_end_ends_iterations(log: Any, how: str) -> None:
    queue = log.queue("jobs")
    queue.send(b"first")
    first = threading.Event()
    seen: list[bytes] = []

    def work() -> None:
        for job in queue:
            with job:
                seen.append(job.value)
            first.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    first.wait()
    queue.stop() if how == "stop" else queue.close()
    for thread in threads:
        thread.join()
    assert seen == [b"first"]
    queue.close()
    assert queue.closed
    with pytest.raises(Closed):
        queue.take()


def test_stop_leaves_what_is_in_hand(log: Any) -> None:
    queue = log.queue("jobs")
    queue.send(b"in hand")
    queue.send(b"left")
    job = take(queue)
    queue.stop()
    assert list(queue) == []
    job.accept()
    queue.close()
    with log.queue("jobs") as queue:
        job = take(queue)
        assert (job.value, job.deliveries) == (b"left", 1)


def test_the_log_closes_its_queues(kind: str, log: Any, path: Path) -> None:
    queue = log.queue("jobs")
    queue.send(b"work")
    job = take(queue)
    log.close()
    assert queue.closed
    with pytest.raises(Closed):
        job.accept()
    with pytest.raises(Closed):
        queue.send(b"more")
    with embedlog.open(path, shared=True) as again, again.queue("jobs") as queue:
        assert take(queue).deliveries == 1


# -- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lock_ms": 0}, InvalidArgument),
        ({"lock_ms": "1"}, InvalidType),
        ({"max_deliveries": 0}, InvalidArgument),
        ({"max_deliveries": 40_000}, InvalidArgument),
        ({"backoff_ms": -1}, InvalidArgument),
        ({"max_backoff_ms": 1.5}, InvalidType),
        ({"ordered_by_key": "yes"}, InvalidType),
        ({"dead_letter_topic": "../up"}, InvalidArgument),
        ({"dead_letter_topic": "jobs"}, InvalidArgument),
        ({"dead_letter_topic": 5}, InvalidType),
        ({"prefetch": 0}, InvalidArgument),
        ({"accept_linger_ms": -1}, InvalidArgument),
        ({"flush": 1}, InvalidType),
        ({"partitions": 0}, InvalidArgument),
        ({"group": ""}, InvalidGroup),
        ({"lock": 5}, UnknownSetting),
    ],
)
def test_arguments_are_checked(log: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error), log.queue("jobs", **options):
        pass
    assert log.topics() == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay_ms": 1, "at": datetime(2030, 1, 1)}, InvalidArgument),
        ({"delay_ms": -1}, InvalidArgument),
        ({"delay_ms": 10**15}, InvalidArgument),
        ({"delay_ms": 1.5}, InvalidType),
        ({"at": 5}, InvalidType),
    ],
)
def test_when_is_checked(log: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with log.queue("jobs") as queue:
        with pytest.raises(error):
            queue.send(b"work", **options)
        assert log.offsets("jobs")[0].log_end_offset == 0


def test_a_process_that_only_reads_takes_no_jobs(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
    with embedlog.open(path, "r") as log, pytest.raises(ReadOnly):
        log.queue("jobs")


@in_a_directory
def test_durable_sends(log: Any) -> None:
    with log.queue("jobs", flush=True) as queue:
        assert queue.send(b"work").durable
        take(queue).accept()
    assert json.dumps(log.offsets("jobs")[0]) == "[0, 1, 1]"


@in_a_directory
def test_the_queues_topic(log: Any) -> None:
    log.create_topic("there", partitions=2)
    with log.queue("jobs", partitions=3), log.queue("there"):
        made, there = log.describe_topic("jobs"), log.describe_topic("there")
    assert (made.partitions, made.settings) == (3, {"delete_policy": "finished"})
    assert (there.partitions, there.settings) == (2, {})


def test_a_thread_that_waits_no_more_passes_its_signal_on(tmp_path: Path) -> None:
    """Say it was interrupted as it woke: the job is another one's, which sleeps."""
    with embedlog.open(tmp_path / "log") as log, log.queue("jobs") as queue:
        source = queue._source
        signals = [threading.Event() for _ in range(3)]
        first, second, third = [Waiting(each.set, blocks=False) for each in signals]
        for waiting in (first, second, third):
            source.enter(waiting)
        assert source.ask(first, 600_000)
        queue.send(b"1")
        assert signals[0].wait(60) and signals[1].wait(60), "one for the job, one to ask for others"
        assert not signals[2].is_set()
        source.leave(first)
        source.leave(second)
        assert signals[2].is_set()
        held = source.take()
        assert held is not None
        source.leave(third)
        source.settle(held, AcknowledgeType.ACCEPT)
