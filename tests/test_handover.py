"""Requests to a log's owner: each is done once, whichever process has the log open, whichever dies."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from encoding import encode_values
from faults import FaultyFileSystem
from housekeeping import housekeep
from programs import Program

import embedlog
from embedlog.backends import attendant, handover
from embedlog.backends.requests import (
    Answer,
    AppendStaged,
    CommitOffsets,
    Discard,
    Request,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from embedlog.cluster import Broker
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.store.store import Store

Start = Callable[..., Program]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

VALUES = {0: [b"a%d" % i for i in range(5)], 2: [b"c%d" % i for i in range(7)]}
P0 = TopicPartition("t", 0)

OWNER = """
import sys, embedlog
log = embedlog.open(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
log.close()
"""

SENDER = """
import sys
from embedlog.backends import handover
from embedlog.model import TopicPartition
print("asking", flush=True)
print(handover.append_staged(sys.argv[1], "query", 3, {TopicPartition("t", 0): "job.0"}), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=3)
    return tmp_path / "log"


def stage(path: Path) -> dict[TopicPartition, str]:
    (path / "staging").mkdir(exist_ok=True)
    names = {}
    for partition, values in VALUES.items():
        name = names[TopicPartition("t", partition)] = f"job.{partition}"
        (path / "staging" / name).write_bytes(encode_values(values, 1_000))
    return names


def contents(path: Path) -> dict[int, list[bytes | None]]:
    with embedlog.open(path, mode="r") as log:
        return {p: [record.value for record in log.read("t", p)] for p in range(3)}


EVERYTHING = {p: VALUES.get(p, []) for p in range(3)}
NOTHING: dict[int, list[bytes]] = {p: [] for p in range(3)}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def ask_all(path: Path) -> None:
    """Every kind of request, each of them twice."""
    assert handover.append_staged(path, "query", 3, stage(path))
    assert contents(path) == EVERYTHING
    assert not handover.append_staged(path, "query", 3, stage(path))
    assert not handover.append_staged(path, "query", 2, stage(path))
    assert contents(path) == EVERYTHING
    assert os.listdir(path / "staging") == []
    committed = {P0: CommittedOffset(4, 0, "half")}
    for _ in range(2):
        handover.commit_offsets(path, "billing", committed)
    stage(path)
    assert [handover.discard(path, "job") for _ in range(2)] == [2, 0]
    for error, request in (
        (embedlog.TopicNotFound, {TopicPartition("none", 0): "job.0"}),
        (embedlog.PartitionNotFound, {TopicPartition("t", 9): "job.0"}),
        (embedlog.InvalidArgument, {P0: "nothing"}),
    ):
        with pytest.raises(error, match=r"none|partition|no staged file"):
            handover.append_staged(path, "query", 4, request)
    with pytest.raises(embedlog.InvalidCommit):
        handover.commit_offsets(path, "billing", {P0: CommittedOffset(-5)})
    requests = path / "requests"
    until(lambda: not requests.exists() or not os.listdir(requests))  # the owner tidies up after its answer


def check_committed(path: Path) -> None:
    with embedlog.open(path) as log, log.consumer(group="billing") as consumer:
        found = consumer.committed(P0)
        assert found is not None
        assert (found.offset, found.leader_epoch, found.metadata) == (4, 0, "half")


def test_without_an_owner(path: Path) -> None:
    ask_all(path)
    check_committed(path)
    assert not (path / "requests").exists()


def test_another_process_owns_the_log(path: Path, program: Start) -> None:
    owner = program(OWNER, path)
    assert owner.line() == "open"
    ask_all(path)
    owner.say("assert log.append('t', b'x', partition=0).offset == 5")
    assert owner.line() == "done"
    owner.end()
    check_committed(path)


def test_this_process_owns_the_log(path: Path) -> None:
    with embedlog.open(path) as log:
        ask_all(path)
        assert log.append("t", b"x", partition=0).offset == 5
    check_committed(path)


def test_a_broker_owns_the_log(path: Path) -> None:
    with Broker(path) as broker:
        ask_all(path)
        with embedlog.open(f"kafka://{broker.bootstrap_servers}") as client:
            assert [record.value for record in client.read("t", 2)] == VALUES[2]
    check_committed(path)


def test_many_requests_at_once(path: Path) -> None:
    """Some before the log is opened, some while it is open, some when it is closed again."""
    (path / "staging").mkdir()
    outcomes: list[bool] = []

    def send(number: int) -> None:
        for batch in range(4):
            name = f"job{number}.{batch}"
            (path / "staging" / name).write_bytes(encode_values([b"%d-%d" % (number, batch)], 1))
            outcomes.append(handover.append_staged(path, f"query-{number}", batch, {P0: name}))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        with embedlog.open(path) as log:
            seen = len(outcomes)
            until(lambda seen=seen: len(outcomes) > seen or len(outcomes) == 24)  # type: ignore[misc]
            log.append("t", b"mine", partition=1)
    for sender in senders:
        sender.join()
    assert outcomes == [True] * 24
    found = contents(path)[0]
    assert sorted(value or b"" for value in found) == sorted(
        b"%d-%d" % (n, b) for n in range(6) for b in range(4)
    )


def own(log: Path, number: int, ready: int) -> NoReturn:
    """A child's life: open the log, and end in the middle of its call of that number from then on."""
    requests, published = log / "requests", log / "published-transactions.json"
    try:
        fs = FaultyFileSystem(log)
        store = Store(str(log), fs=fs)
        owner = embedlog.Log(store)
        store.flush()
        housekeep(store)
        fs.exit_before = len(fs.calls) + number
        os.write(ready, b"!")
        until(lambda: published.exists() and os.listdir(requests) == [])
        owner.close()
    finally:
        os._exit(0)


@pytest.mark.slow
def test_the_owner_is_killed_at_each_of_its_calls_and_the_sender_takes_over(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly once, each time; after the last call the owner lives, and answers."""
    monkeypatch.setattr(handover, "FALLBACK_MS", 20)
    for number in range(200):
        log = tmp_path / f"{number}"
        with embedlog.open(log) as made:
            made.create_topic("t", partitions=3)
        staged = stage(log)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            own(log, number, writing)
        os.close(writing)
        assert os.read(reading, 1) == b"!"
        os.close(reading)
        handover.append_staged(log, "query", 3, staged)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert contents(log) == EVERYTHING
        assert not handover.append_staged(log, "query", 3, stage(log))
        assert contents(log) == EVERYTHING
        if code == 0:
            break
    else:
        pytest.fail("the owner never came through")
    assert number > 15


def test_a_request_whose_sender_was_killed_is_dropped(path: Path, program: Start) -> None:
    """Before it was taken: as if it had never been made. Its sender may ask again."""
    stage(path)
    holding = Store(str(path), background=False)  # takes no requests
    sender = program(SENDER, path)
    assert sender.line() == "asking"
    until(lambda: (path / "requests").exists() and list((path / "requests").glob("*.request")))
    sender.kill()
    holding.close()
    with embedlog.open(path) as log:
        until(lambda: not list((path / "requests").iterdir()))
        log.flush()
    assert contents(path) == NOTHING
    assert handover.append_staged(path, "query", 3, stage(path))
    assert contents(path) == EVERYTHING


def test_the_next_owner_completes_a_dead_ones_requests(path: Path, program: Start) -> None:
    stage(path)
    holding = Store(str(path), background=False)
    sender = program(SENDER, path)
    until(lambda: (path / "requests").exists() and list((path / "requests").glob("*.request")))
    (request,) = (path / "requests").glob("*.request")
    request.rename(request.with_suffix(".taken"))
    holding.close()
    with embedlog.open(path):
        assert sender.line() == "asking"
        assert sender.line() == "True"
        sender.end()
    assert contents(path)[0] == VALUES[0]


def test_an_owner_that_takes_no_requests_is_named(path: Path) -> None:
    holding = Store(str(path), background=False)
    with pytest.raises(embedlog.DirectoryLocked, match=r"not take the request for 0 s: .*version") as caught:
        handover.append_staged(path, "query", 3, stage(path), taken_within_s=0.05)
    assert caught.value.pid == os.getpid()
    assert os.listdir(path / "requests") == []
    holding.close()
    assert contents(path) == NOTHING


@pytest.mark.parametrize("is_open", [False, True])
def test_the_directory_of_one_broker_of_a_cluster_is_left_to_the_brokers(path: Path, is_open: bool) -> None:
    staged = stage(path)
    with contextlib.ExitStack() as last:
        if is_open:
            last.enter_context(embedlog.open(path))
        (path / "cluster.json").write_text("{}")
        with pytest.raises(embedlog.errors.DirectoryError, match=r"kafka\.bootstrap\.servers"):
            handover.append_staged(path, "query", 3, staged)
        with pytest.raises(embedlog.errors.DirectoryError, match=r"kafka\.bootstrap\.servers"):
            handover.commit_offsets(path, "g", {P0: CommittedOffset(1)})
    assert contents(path) == {0: [], 1: [], 2: []}


def test_an_open_waits_for_a_short_lived_owner(path: Path) -> None:
    passing = Store(str(path), background=False, passing=True)
    opened: list[embedlog.Log] = []
    opening = threading.Thread(target=lambda: opened.append(embedlog.open(path)))
    opening.start()
    opening.join(0.1)
    assert not opened
    passing.close()
    opening.join()
    opened[0].close()
    with embedlog.open(path), pytest.raises(embedlog.DirectoryLocked):
        embedlog.open(path)


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"{", b"[]", b'{"version": 2, "kind": "discard", "set": "x"}', b"[" * 100_000, b"\xff\0"),
        *(b'{"version": 1, "kind": "format the disk"}', b'{"version": 1, "kind": "discard", "set": 7}'),
        b'{"version": 1, "kind": "publish", "transaction_id": 5, "batch_id": 0, "once": 1, "appends": []}',
        b'{"version": 1, "kind": "publish", "transaction_id": "q", "batch_id": -1, "once": 0, "appends": []}',
        b'{"version": 1, "kind": "publish", "transaction_id": "q", "batch_id": 1, "once": false, "appends": '
        b'[{"topic": "t", "partition": 0, "files": ["../embedlog.json"]}]}',
        b'{"version": 1, "kind": "commit_offsets", "group": "", "offsets": []}',
        b'{"version": 1, "kind": "commit_offsets", "group": "g", "offsets": '
        b'[{"topic": "t", "partition": 0, "offset": "5", "leader_epoch": 0, "metadata": ""}]}',
    ],
    ids=range(13),
)
def test_a_malformed_request_is_refused_and_harms_no_other(path: Path, garbage: bytes) -> None:
    with embedlog.open(path):
        (path / "requests").mkdir()
        file = path / "requests" / "0.request"
        temporary = path / "0.tmp"
        temporary.write_bytes(garbage)
        lock = embedlog.files.filesystem.FileSystem().try_lock(str(temporary))
        assert lock is not None
        temporary.rename(file)
        answer = path / "requests" / "0.answer"
        until(answer.exists)
        said = decode_answer(answer.read_bytes())
        assert isinstance(said.error, embedlog.EmbedlogError)
        assert not file.exists()
        os.close(lock)
        answer.unlink()
        ask_all(path)


def test_unfetched_answers_expire(path: Path) -> None:
    (path / "requests").mkdir()
    old = time.time() - attendant._LEFTOVER_MS / 1000 - 60
    for name in ("1.answer", "2.request.tmp", "3.answer"):
        (path / "requests" / name).write_bytes(b"")
        if name != "3.answer":
            os.utime(path / "requests" / name, (old, old))
    with embedlog.open(path):
        until(lambda: os.listdir(path / "requests") == ["3.answer"])


def test_a_foreign_directory_is_left_unchanged(tmp_path: Path) -> None:
    with pytest.raises(embedlog.DirectoryError):
        handover.append_staged(tmp_path / "none", "query", 0, {})
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(embedlog.NotALog):
        handover.commit_offsets(tmp_path, "g", {})
    assert os.listdir(tmp_path) == ["file"]


def test_an_owner_that_takes_requests_closes_and_forks_normally(path: Path) -> None:
    with embedlog.open(path) as log:
        child = os.fork()
        if child == 0:
            try:
                embedlog.backends.handover.append_staged(path, "query", 3, stage(path))
            except BaseException:
                os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [record.value for record in log.read("t", 0)] == VALUES[0]
    names = {thread.name for thread in threading.enumerate()}
    assert "embedlog-attendant" not in names


@pytest.mark.parametrize(
    "request_",
    [
        AppendStaged("query", 7, {P0: ("a", "b"), TopicPartition("ü", 1): ()}, once=True),
        CommitOffsets("g", {P0: CommittedOffset(7, 3, "meta\u0000")}),
        Discard("job"),
    ],
)
def test_requests_round_trip(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (embedlog.TopicNotFound("no topic"), embedlog.TopicNotFound),
        (embedlog.CorruptRecord("half", path="x", pos=7), embedlog.CorruptRecord),
        (embedlog.errors.MemberIdRequired("who", member_id="x"), embedlog.EmbedlogError),
    ],
)
def test_answers_come_back_as_errors_of_the_same_kind(error: Any, kind: type) -> None:
    found = decode_answer(encode_answer(Answer(error=error)))
    assert type(found.error) is kind
    assert str(found.error) == str(error)
    with pytest.raises(kind):
        found.outcome()
    assert decode_answer(encode_answer(Answer(3))).outcome() == 3
    assert json.loads(encode_answer(Answer(3)))["done"] is True
