"""A log that several processes share: who owns it, who takes over, and what a fork leaves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rounds import first_is_quick

import embedlog
from embedlog.backends import shared
from embedlog.backends.local import WriterBackend
from embedlog.backends.shared import SharedBackend
from embedlog.cluster import Broker
from embedlog.errors import (
    Closed,
    DirectoryError,
    DirectoryLocked,
    DiskFull,
    ForkedHandle,
    InvalidArgument,
    StorageError,
    UnexpectedOffset,
)
from embedlog.files import unix_sockets

OWNER = """
import sys, time, embedlog
with embedlog.open(sys.argv[1], shared=True, **eval(sys.argv[2])) as log:
    log.create_topic("t", partitions=2, exist_ok=True)
    log.append("t", b"owner", partition=0)
    print("ready", flush=True)
    sys.stdin.readline()
"""

FEW_DESCRIPTORS = """
import resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with embedlog.open(sys.argv[1], shared=True) as log:
    print("ready", flush=True)
    sys.stdin.readline()
    log.create_topic("t", 60)
    for partition in range(60):
        log.append("t", b"", partition=partition, flush=True)
    assert sum(1 for _ in log.read("t")) == 60
    print("appended", flush=True)
"""


FULL_DISK = """
import resource, sys, embedlog
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
with embedlog.open(sys.argv[1], shared=True) as log:
    log.create_topic("t")
    print("ready", flush=True)
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
    print("full", flush=True)
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    print("free", flush=True)
    sys.stdin.readline()
"""


MAIN_THREAD_ENDS = """
import sys, threading, embedlog
log = embedlog.open(sys.argv[1], shared=True)

def work():
    threading.main_thread().join()
    print("ended", flush=True)
    sys.stdin.readline()
    log.append("t", b"by a thread")
    print("appended", flush=True)
    sys.stdin.readline()

threading.Thread(target=work).start()
"""


def values(log: embedlog.Log, partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in log.read("t", partition)]


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does this; 0 if it did."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def owner(path: Path, program: Any) -> Any:
    """Another process that owns the log at `path`."""
    started = program(OWNER, path, {})
    assert started.line() == "ready"
    return started


# -- who owns it -------------------------------------------------------------------------------------------


def test_the_first_owns_it_and_the_others_are_its_clients(path: Path, owner: Any) -> None:
    with embedlog.open(path, shared=True) as log:
        assert isinstance(log.backend, SharedBackend)
        assert log.append("t", b"client", partition=0, flush=True).durable
        assert values(log) == [b"owner", b"client"]
        with pytest.raises(UnexpectedOffset):
            log.append("t", b"", partition=0, expected_offset=1)
        assert log.append("t", b"", partition=0, expected_offset=2).offset == 2
        log.flush()
        assert log.health().status == "ok"
        assert log.recovery.clean


@pytest.mark.parametrize("end", first_is_quick([signal.SIGKILL, signal.SIGTERM, "close"]))
def test_a_client_takes_over(path: Path, owner: Any, end: str | int) -> None:
    with embedlog.open(path, shared=True) as log, embedlog.open(path, shared=True) as other:
        producer = log.producer()
        futures = [producer.send("t", b"%d" % i, partition=1) for i in range(100)]
        producer.flush()
        if end == "close":
            owner.process.stdin.close()
        else:
            owner.process.send_signal(end)
        owner.process.wait()
        futures += [producer.send("t", b"%d" % i, partition=1) for i in range(100, 200)]
        assert other.append("t", b"other", partition=0, flush=True).offset == 1
        producer.close()
        assert [future.result().offset for future in futures] == list(range(200))
        assert values(other, 1) == [b"%d" % i for i in range(200)]
        with pytest.raises(DirectoryLocked):  # one of the two has it
            embedlog.open(path)
    with embedlog.open(path) as log:
        assert log.recovery.clean


def test_a_group_goes_on_after_a_takeover(path: Path, owner: Any) -> None:
    with embedlog.open(path, shared=True) as log:
        log.append_many("t", [b"%d" % i for i in range(10)], partition=1)
        with log.consumer("t", group="g", auto_commit=False) as consumer:
            seen = []
            while len(seen) < 11:
                seen += consumer.poll(1_000)
            consumer.commit()
            owner.kill()
            log.append("t", b"late", partition=1)
            while len(seen) < 12:
                seen += consumer.poll(1_000)
            assert seen[-1].value == b"late"
            while True:  # its membership may have ended with the owner
                try:
                    consumer.commit()
                    break
                except embedlog.EmbedlogError:
                    consumer.poll(100)
        committed = log.group("g").offsets()
        assert {tp.partition: each.offset for tp, each in committed.items()} == {0: 1, 1: 11}


def test_an_owner_that_does_not_share_says_so(path: Path) -> None:
    with embedlog.open(path), pytest.raises(DirectoryLocked, match="shared=True"):
        embedlog.open(path, shared=True)
    with pytest.raises(InvalidArgument, match="shared"):
        embedlog.open(path, "r", shared=True)


def test_a_broker_shares_its_directory(path: Path) -> None:
    with Broker(path) as broker, embedlog.open(path, shared=True) as log:
        log.create_topic("t")
        assert log.append("t", b"beside").offset == 0
        with embedlog.open(f"kafka://{broker.bootstrap_servers}") as remote:
            assert remote.append("t", b"over the wire").offset == 1
        assert values(log) == [b"beside", b"over the wire"]


def test_a_stale_socket_is_no_obstacle(path: Path, owner: Any) -> None:
    owner.kill()
    assert (path / "embedlog.sock").is_socket()
    with embedlog.open(path, shared=True) as log:
        assert isinstance(log.backend, WriterBackend)
        with embedlog.open(path, shared=True) as client:
            assert client.append("t", b"x", partition=0).offset == 1
    assert not (path / "embedlog.sock").exists()


@pytest.mark.parametrize("kind", ["file", "fifo", "link", "directory"])
def test_what_is_in_the_sockets_place_is_named_and_kept(path: Path, kind: str) -> None:
    embedlog.open(path).close()
    there, elsewhere = path / "embedlog.sock", path.with_name("elsewhere")
    elsewhere.write_bytes(b"kept")
    {
        "file": lambda: there.write_bytes(b"kept"),
        "fifo": lambda: os.mkfifo(there),
        "link": lambda: there.symlink_to(elsewhere),
        "directory": there.mkdir,
    }[kind]()
    before = there.lstat()
    with pytest.raises(StorageError, match=r"embedlog\.sock .*not a socket.*remove what is there"):
        embedlog.open(path, shared=True)
    with embedlog.open(path) as log:  # which works, though no tool can ask it
        log.create_topic("t")
    assert there.lstat() == before
    assert elsewhere.read_bytes() == b"kept"


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_directory_that_is_refused_is_released(path: Path, is_shared: bool) -> None:
    """At once, not when nobody has the error any more."""
    embedlog.open(path).close()
    membership = path / "cluster.json"
    membership.write_text('{"version": 1, "cluster_id": "c", "broker": 1}')
    with pytest.raises(DirectoryError, match="one broker of a cluster") as refused:
        embedlog.open(path, shared=is_shared)
    membership.unlink()
    with embedlog.open(path, shared=is_shared) as log:
        assert isinstance(log.backend, WriterBackend), refused
    assert not (path / "embedlog.sock").exists()


@pytest.mark.parametrize("has_clients", [False, True])
@pytest.mark.slow
def test_a_socket_that_was_removed_is_made_again(path: Path, owner: Any, has_clients: bool) -> None:
    with contextlib.ExitStack() as closing:
        clients = [closing.enter_context(embedlog.open(path, shared=True)) for _ in range(has_clients)]
        (path / "embedlog.sock").unlink()
        clients.append(closing.enter_context(embedlog.open(path, shared=True)))
        for number, log in enumerate(clients, 1):
            assert isinstance(log.backend, SharedBackend)
            assert log.append("t", b"client", partition=0).offset == number
        owner.process.stdin.close()
        assert owner.process.wait() == 0
        assert not (path / "embedlog.sock").exists()
        assert log.append("t", b"then", partition=0).offset == len(clients) + 1


def test_an_owner_that_does_not_answer_is_named(
    path: Path, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_OPEN_WITHIN_S", 0)
    owner.process.send_signal(signal.SIGSTOP)
    (path / "embedlog.sock").unlink()
    with pytest.raises(
        DirectoryLocked, match=r"does not answer .*embedlog\.sock.*end that process"
    ) as raised:
        embedlog.open(path, shared=True)
    assert raised.value.pid == owner.pid
    owner.kill()
    embedlog.open(path, shared=True).close()


def test_an_owner_removes_no_other_owners_socket(path: Path) -> None:
    with embedlog.open(path, shared=True):
        path.rename(path.with_name("moved"))
        later = embedlog.open(path, shared=True)
        identity = unix_sockets.identity(os.fspath(path / "embedlog.sock"))
    # Its owner would make it again, two seconds later.
    assert unix_sockets.identity(os.fspath(path / "embedlog.sock")) == identity
    with later, embedlog.open(path, shared=True) as client:
        assert isinstance(client.backend, SharedBackend)


def test_connections_leave_the_owner_descriptors_for_the_log(path: Path, program: Any) -> None:
    owner = program(FEW_DESCRIPTORS, path)
    assert owner.line() == "ready"
    with contextlib.ExitStack() as closing:
        for _ in range(300):
            connected = closing.enter_context(unix_sockets.connect(os.fspath(path / "embedlog.sock"), 60))
        assert connected.recv(1) == b""  # the owner has come to the last one, and refuses it
        owner.say("append")
        assert owner.line() == "appended"


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_client_appends_values_as_large_as_the_topic_allows(
    path: Path, owner: Any, compression: str
) -> None:
    value = bytes(105_000_000)
    with embedlog.open(path, shared=True) as log:
        log.create_topic("large", compression_type=compression, max_message_bytes=110_000_000)
        assert log.append("large", value).offset == 0
        assert log.read_at("large", 0, 0).value == value


def test_a_long_directory_has_its_socket(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["directory-with-a-long-name"] * 8)
    path.mkdir(parents=True)
    with embedlog.open(path, shared=True) as log, embedlog.open(path, shared=True) as client:
        log.create_topic("t")
        assert client.append("t", b"x").offset == 0
        assert (path / "embedlog.sock").is_socket()


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o777])
def test_the_socket_has_the_permissions_of_the_directory(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    with embedlog.open(path, shared=True):
        assert stat.S_IMODE((path / "embedlog.sock").stat().st_mode) == mode & 0o666


def test_a_closed_client_is_closed_and_takes_nothing_over(path: Path, owner: Any) -> None:
    log = embedlog.open(path, shared=True)
    assert isinstance(log.backend, SharedBackend)
    log.close()
    owner.kill()
    with pytest.raises(Closed):
        log.append("t", b"")
    log.backend._stand_for_owner()  # a request of another thread that was under way
    assert log.backend.owned is None
    embedlog.open(path).close()


def test_a_client_that_waits_wakes_up(path: Path, owner: Any) -> None:
    with embedlog.open(path, shared=True) as log, embedlog.open(path, shared=True) as other:
        following = log.read("t", 0, start="latest", follow=True)
        late = threading.Timer(0.2, other.append, ["t", b"late"], {"partition": 0})
        late.start()
        assert next(following).value == b"late"
        late.join()


def test_a_full_disk_is_named_at_once(path: Path, program: Any) -> None:
    """The owner may make no file larger than it is, which counts as a full disk."""
    owner = program(FULL_DISK, path)
    assert owner.line() == "ready"
    with embedlog.open(path, shared=True) as log:
        log.create_topic("others")
        with log.transaction("id") as transaction:
            transaction.append("others", b"before")
        owner.say("fill")
        assert owner.line() == "full"
        with pytest.raises(DiskFull), log.transaction("id") as transaction:
            transaction.append("others", b"never seen")
        for change in (
            lambda: log.append("t", b""),  # its first append asks for a producer id
            lambda: log.create_topic("new"),
            lambda: log.alter_topic("t", flush_messages=7),
            lambda: log.delete_topic("t"),
        ):
            with pytest.raises(DiskFull):
                change()
        owner.say("free")
        assert owner.line() == "free"
        log.create_topic("new")
        assert log.append("t", b"").offset == 0


@pytest.mark.slow
@pytest.mark.parametrize("takes_over", [False, True])
def test_an_owner_whose_main_thread_has_ended_serves(
    path: Path, owner: Any, program: Any, takes_over: bool
) -> None:
    """As long as another thread of its program goes on."""
    if not takes_over:
        owner.kill()
    ending = program(MAIN_THREAD_ENDS, path)
    assert ending.line() == "ended"
    with embedlog.open(path, shared=True) as log:
        assert isinstance(log.backend, SharedBackend)
        if takes_over:
            owner.kill()
        ending.say("append")
        assert ending.line() == "appended"
        log.create_topic("new")
        with log.consumer("t", group="g") as consumer:
            while not consumer.poll(100):
                pass
            consumer.commit()
        with pytest.raises(DirectoryLocked) as raised:
            embedlog.open(path)
        assert raised.value.pid == ending.pid
        ending.say("end")
        ending.end()
        assert log.append("new", b"").offset == 0


# -- forks -------------------------------------------------------------------------------------------------


def test_a_forked_child_is_a_client(path: Path) -> None:
    with embedlog.open(path, shared=True) as log:
        log.create_topic("t")
        producer, consumer = log.producer(), log.consumer("t")

        def child() -> None:
            for inherited in (lambda: producer.send("t", b""), consumer.poll):
                with contextlib.suppress(ForkedHandle):
                    inherited()
                    raise AssertionError("an inherited client works on")
            assert log.append("t", b"child").offset == 0
            assert isinstance(log.backend, SharedBackend)
            with log.producer() as own:
                assert own.send("t", b"again").result().offset == 1
            log.close()

        assert in_child(child) == 0
        assert values(log) == [b"child", b"again"]
        assert isinstance(log.backend, WriterBackend)


def test_a_child_takes_over_from_its_parent(path: Path, program: Any) -> None:
    """The inherited copies of lock and sockets keep neither."""
    parent = program(
        """
import os, sys, time, embedlog
log = embedlog.open(sys.argv[1], shared=True)
log.create_topic("t")
second = embedlog.open(sys.argv[1], shared=True)
second.append("t", b"before")  # a connection that the child inherits
if os.fork() == 0:
    while os.getppid() != 1 and os.getppid() == int(sys.argv[2] if len(sys.argv) > 2 else os.getppid()):
        time.sleep(0.01)
    print(os.getpid(), log.append("t", b"child").offset, flush=True)
    sys.stdin.readline()
    log.close()
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
""",
        path,
    )
    assert parent.line() == "forked"
    with embedlog.open(path, shared=True) as log:
        assert log.append("t", b"client").offset == 1
        parent.process.kill()
        assert log.append("t", b"after", flush=True).offset >= 2
        assert values(log)[:2] == [b"before", b"client"]


def _work(path: str, number: int) -> list[int]:
    with embedlog.open(path, shared=True) as log:
        return [log.append("t", b"%d-%d" % (number, i)).offset for i in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes(path: Path, method: str) -> None:
    with embedlog.open(path, shared=True) as log:
        log.create_topic("t")
        with multiprocessing.get_context(method).Pool(3) as pool:
            offsets = pool.starmap(_work, [(str(path), number) for number in range(6)])
        assert sorted(offset for each in offsets for offset in each) == list(range(120))
        assert len(set(values(log))) == 120


def _leave_open(path: str) -> None:
    log = embedlog.open(path, shared=True)
    log.producer(linger_ms=60_000).send("t", b"buffered")


@pytest.mark.slow
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.parametrize("owner_is_parent", [False, True])
def test_a_process_of_multiprocessing_closes_its_log(path: Path, method: str, owner_is_parent: bool) -> None:
    """A forked one ends without the functions of atexit."""
    log = embedlog.open(path, shared=True)
    log.create_topic("t")
    if not owner_is_parent:
        log.close()
    process = multiprocessing.get_context(method).Process(target=_leave_open, args=(str(path),))
    process.start()
    process.join()
    assert process.exitcode == 0
    log.close()
    with embedlog.open(path) as log:
        assert log.recovery.clean
        assert values(log) == [b"buffered"]
