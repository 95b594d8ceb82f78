"""Requests of tools: each is done once, whichever process owns the log, whichever dies."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from encoding import encode_values
from faults import FaultyFileSystem
from housekeeping import housekeep
from programs import Program

import embedlog
from embedlog.backends import tool_requests
from embedlog.backends.remote import maintenance
from embedlog.cluster import Broker
from embedlog.files import unix_sockets
from embedlog.files.names import SOCKET_FILE
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.open import log_over
from embedlog.store.staging import ABANDONED_MS
from embedlog.store.store import Store
from embedlog.wire.owner_apis import LogRequest, LogResponse
from embedlog.wire_client.connection import Connection

Start = Callable[..., Program]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

VALUES = {0: [b"a%d" % i for i in range(5)], 2: [b"c%d" % i for i in range(7)]}
P0 = TopicPartition("t", 0)

OWNER = """
import sys, embedlog
log = embedlog.open(sys.argv[1], shared=sys.argv[2:] == ["shared"])
print("open", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
log.close()
"""

SENDER = """
import sys
from embedlog.backends import tool_requests
from embedlog.model import TopicPartition
print("asking", flush=True)
print(tool_requests.append_staged(sys.argv[1], "query", 3, {TopicPartition("t", 0): "job.0"}), flush=True)
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
    assert tool_requests.append_staged(path, "query", 3, stage(path))
    assert contents(path) == EVERYTHING
    assert not tool_requests.append_staged(path, "query", 3, stage(path))
    assert not tool_requests.append_staged(path, "query", 2, stage(path))
    assert contents(path) == EVERYTHING
    assert os.listdir(path / "staging") == []
    committed = {P0: CommittedOffset(4, 0, "half")}
    for _ in range(2):
        tool_requests.commit_offsets(path, "billing", committed)
    stage(path)
    assert [tool_requests.discard(path, "job") for _ in range(2)] == [2, 0]
    for error, request in (
        (embedlog.TopicNotFound, {TopicPartition("none", 0): "job.0"}),
        (embedlog.PartitionNotFound, {TopicPartition("t", 9): "job.0"}),
        (embedlog.InvalidArgument, {P0: "nothing"}),
    ):
        with pytest.raises(error, match=r"none|partition|no staged file"):
            tool_requests.append_staged(path, "query", 4, request)
    with pytest.raises(embedlog.InvalidCommit):
        tool_requests.commit_offsets(path, "billing", {P0: CommittedOffset(-5)})


def check_committed(path: Path) -> None:
    with embedlog.open(path) as log, log.consumer(group="billing") as consumer:
        found = consumer.committed(P0)
        assert found is not None
        assert (found.offset, found.leader_epoch, found.metadata) == (4, 0, "half")


def test_without_an_owner(path: Path) -> None:
    ask_all(path)
    check_committed(path)
    assert not (path / SOCKET_FILE).exists()


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_another_process_owns_the_log(path: Path, program: Start, how: str) -> None:
    owner = program(OWNER, path, how)
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
            outcomes.append(tool_requests.append_staged(path, f"query-{number}", batch, {P0: name}))

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
    published = log / "published-transactions.json"
    try:
        fs = FaultyFileSystem(log)
        store = Store(str(log), fs=fs)
        owner = log_over(store)
        store.flush()
        housekeep(store)
        fs.exit_before = len(fs.calls) + number
        os.write(ready, b"!")
        until(published.exists)
        owner.close()  # answers first
    finally:
        os._exit(0)


@pytest.mark.slow
def test_the_owner_is_killed_at_each_of_its_calls_and_the_sender_takes_over(
    path: Path, tmp_path: Path
) -> None:
    """Exactly once, each time; after the last call the owner lives, and answers."""
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
        tool_requests.append_staged(log, "query", 3, staged)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert contents(log) == EVERYTHING
        assert not tool_requests.append_staged(log, "query", 3, stage(log))
        assert contents(log) == EVERYTHING
        if code == 0:
            break
    else:
        pytest.fail("the owner never came through")
    assert number > 15


@contextlib.contextmanager
def silent_owner(path: Path) -> Iterator[socket.socket]:
    """Owns the log and listens, but accepts nobody and answers nothing, as one that is stopped."""
    with (
        contextlib.closing(Store(str(path), background=False)),
        unix_sockets.listen(str(path / SOCKET_FILE)) as listening,
    ):
        yield listening


@pytest.mark.slow
def test_shared_owners_are_killed_while_a_tool_asks(path: Path, program: Start) -> None:
    """The tool or the other program is next; what each of them has appended is there once."""
    (path / "staging").mkdir()
    owner, other = program(OWNER, path, "shared"), None
    for number in range(6):
        assert owner.line() == "open"
        other = program(OWNER, path, "shared")
        assert other.line() == "open"
        (path / "staging" / f"job{number}.0").write_bytes(encode_values([b"staged %d" % number], 1_000))
        asking = threading.Thread(
            target=tool_requests.append_staged, args=(path, "query", number, {P0: f"job{number}.0"})
        )
        asking.start()
        other.say(f"log.append('t', b'appended {number}', partition=0)")
        if number % 2:
            until(lambda asking=asking: (path / "publish-intent").exists() or not asking.is_alive())  # type: ignore[misc]
        owner.kill()
        asking.join()
        assert other.line() == "done"
        owner, other = program(OWNER, path, "shared"), other
        other.end()
    assert owner.line() == "open"
    owner.end()
    expected = [b"%s %d" % (kind, number) for kind in (b"appended", b"staged") for number in range(6)]
    assert sorted(value or b"" for value in contents(path)[0]) == sorted(expected)


def test_a_sender_that_is_killed_before_its_owner_answers_leaves_nothing(path: Path, program: Start) -> None:
    """As if it had never asked. It may ask again."""
    stage(path)
    with silent_owner(path) as listening:
        sender = program(SENDER, path)
        assert sender.line() == "asking"
        connection, _ = listening.accept()
        sender.kill()
        connection.close()
    with embedlog.open(path) as log:
        log.flush()
    assert contents(path) == NOTHING
    assert tool_requests.append_staged(path, "query", 3, stage(path))
    assert contents(path) == EVERYTHING


def test_the_next_owner_is_asked_when_one_ends_without_an_answer(path: Path, program: Start) -> None:
    stage(path)
    with silent_owner(path) as listening:
        sender = program(SENDER, path)
        assert sender.line() == "asking"
        connection, _ = listening.accept()
    with embedlog.open(path):  # the sender waits for its answer still
        connection.close()
        assert sender.line() == "True"
        sender.end()
    assert contents(path)[0] == VALUES[0]


def test_an_owner_that_does_not_listen_is_named(path: Path) -> None:
    """As one of a version without a socket; the socket of an earlier owner is still there."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path / SOCKET_FILE))
    holding = Store(str(path), background=False)
    with pytest.raises(embedlog.DirectoryLocked, match=r"not answer for 0 s .*version") as caught:
        tool_requests.append_staged(path, "query", 3, stage(path), answered_within_s=0.05)
    assert caught.value.pid == os.getpid()
    holding.close()
    assert contents(path) == NOTHING
    ask_all(path)


def test_an_owner_that_is_stopped_is_named(path: Path, program: Start) -> None:
    owner = program(OWNER, path)
    assert owner.line() == "open"
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(embedlog.DirectoryLocked, match=r"not answer for 0 s .*in time") as caught:
        tool_requests.append_staged(path, "query", 3, stage(path), answered_within_s=0.2)
    assert caught.value.pid == owner.pid
    os.kill(owner.pid, signal.SIGCONT)
    ask_all(path)
    owner.end()


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all(task.joinpath("stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks)


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_an_owner_that_stops_with_a_request_is_named(
    path: Path, program: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whether it executes the request when it goes on is its business: asked again, it is done once."""
    owner = program(OWNER, path, how)
    assert owner.line() == "open"
    tool_requests.commit_offsets(path, "g", {P0: CommittedOffset(0)})  # it serves its socket

    def stop_first(connection: Connection, request: LogRequest) -> LogResponse:
        os.kill(owner.pid, signal.SIGSTOP)
        until(lambda: is_stopped(owner.pid))
        return exchange(connection, request)

    exchange = maintenance.exchange
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "exchange", stop_first)
        patched.setattr(maintenance, "_LOOK_S", 0.01)
        patched.setattr(maintenance, "_ANSWERS_WITHIN_S", 0.1)
        with pytest.raises(embedlog.RequestTimedOut, match=r"'append_staged'.*SIGSTOP"):
            tool_requests.append_staged(path, "query", 3, stage(path))
    os.kill(owner.pid, signal.SIGCONT)
    tool_requests.append_staged(path, "query", 3, stage(path))
    assert contents(path) == EVERYTHING
    owner.end()


def test_an_owner_that_is_busy_with_a_request_is_waited_for(
    path: Path, program: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = program(OWNER, path)
    assert owner.line() == "open"
    # Before it answers its first request, the owner tidies up under this lock.
    tool_requests.commit_offsets(path, "g", {P0: CommittedOffset(1)}, answered_within_s=240)
    owner.say("log.backend.store.topics_lock.acquire()")
    assert owner.line() == "done"
    looks = []

    def look(connection: Connection, name: str) -> None:
        check_alive(connection, name)
        looks.append(name)
        if len(looks) == 5:
            owner.say("log.backend.store.topics_lock.release()")

    check_alive = maintenance._check_alive
    monkeypatch.setattr(maintenance, "_LOOK_S", 0.01)
    monkeypatch.setattr(maintenance, "_check_alive", look)
    monkeypatch.setattr(maintenance, "_ANSWERS_WITHIN_S", 240.0)  # a busy machine
    assert tool_requests.append_staged(path, "query", 3, stage(path), answered_within_s=240)
    assert len(looks) >= 5
    assert contents(path) == EVERYTHING
    assert owner.line() == "done"
    owner.end()


@pytest.mark.parametrize("is_open", [False, True])
def test_the_directory_of_one_broker_of_a_cluster_is_left_to_the_brokers(path: Path, is_open: bool) -> None:
    staged = stage(path)
    with contextlib.ExitStack() as last:
        if is_open:
            last.enter_context(embedlog.open(path))
        (path / "cluster.json").write_text("{}")
        with pytest.raises(embedlog.errors.DirectoryError, match=r"kafka\.bootstrap\.servers"):
            tool_requests.append_staged(path, "query", 3, staged)
        with pytest.raises(embedlog.errors.DirectoryError, match=r"kafka\.bootstrap\.servers"):
            tool_requests.commit_offsets(path, "g", {P0: CommittedOffset(1)})
    assert contents(path) == {0: [], 1: [], 2: []}


def test_a_log_without_threads_has_no_sockets(path: Path) -> None:
    """One that a test leaves to the garbage collector would fail the test that runs by then."""

    def sockets() -> int:
        return sum(isinstance(each, socket.socket) for each in gc.get_objects())

    gc.collect()
    before = sockets()
    with log_over(Store(str(path), background=False)) as log:
        assert log.topics() == ["t"]
        assert sockets() == before


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


@pytest.mark.parametrize("garbage", [b"", b"\0" * 4, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000])
def test_garbage_on_the_socket_harms_no_request(path: Path, garbage: bytes) -> None:
    with embedlog.open(path):
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as hostile:
                hostile.connect(str(path / SOCKET_FILE))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    hostile.sendall(garbage)
                    hostile.shutdown(socket.SHUT_WR)
                    hostile.recv(1)
        ask_all(path)
    check_committed(path)


def test_a_directory_with_requests_of_an_earlier_version(path: Path) -> None:
    """It asked by files, which are left alone."""
    (path / "requests").mkdir()
    (path / "requests" / "1.request").write_bytes(b"{}")
    with embedlog.open(path):
        ask_all(path)
    ask = tool_requests.append_staged(path, "another", 0, {})
    assert ask
    assert os.listdir(path / "requests") == ["1.request"]


def test_files_that_were_staged_long_ago_go_when_the_log_is_opened(path: Path) -> None:
    stage(path)
    old = time.time() - ABANDONED_MS / 1000 - 60
    os.utime(path / "staging" / "job.0", (old, old))
    os.utime(path / "staging" / "job.2", (old, old))
    (path / "staging" / "new.0").write_bytes(b"")
    with embedlog.open(path):
        until(lambda: os.listdir(path / "staging") == ["new.0"])


def test_a_foreign_directory_is_left_unchanged(tmp_path: Path) -> None:
    with pytest.raises(embedlog.DirectoryError):
        tool_requests.append_staged(tmp_path / "none", "query", 0, {})
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(embedlog.NotALog):
        tool_requests.commit_offsets(tmp_path, "g", {})
    assert os.listdir(tmp_path) == ["file"]


def test_an_owner_that_takes_requests_closes_and_forks_normally(path: Path) -> None:
    others = set(threading.enumerate())
    with embedlog.open(path) as log:
        child = os.fork()
        if child == 0:
            try:
                tool_requests.append_staged(path, "query", 3, stage(path))
            except BaseException:
                os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [record.value for record in log.read("t", 0)] == VALUES[0]
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert not {name for name in names if name.startswith("embedlog-owner")}
    assert not (path / SOCKET_FILE).exists()
