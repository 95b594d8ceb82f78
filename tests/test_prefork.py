"""Servers that open a shared log and then fork their workers: `gunicorn --preload`, Celery's prefork pool."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import PREFORK, Clients, Started, owner_of, wait_until_committed

import embedlog

Start = Callable[..., Started]

# -- gunicorn ------------------------------------------------------------------------------------------------

BOOTING = r"Booting worker with pid: (\d+)"
WORKERS = 3


def gunicorn(start: Start, path: Path, prefix: str = "") -> tuple[Started, Clients]:
    """gunicorn over a log, with all its workers, and clients that post to it."""
    server = start(
        *("-m", "gunicorn", "--config", PREFORK / "gunicorn_conf.py", "--workers", WORKERS),
        *("--bind", "127.0.0.1:0", "preloaded:app"),
        HOME=path.parent,  # gunicorn has a socket there
        EVENTS_LOG=path,
    )
    port = int(server.find(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])
    server.find(BOOTING, WORKERS)
    return server, Clients(port, "/", lambda name: {"name": prefix + name})


def check_events(path: Path, clients: dict[str, Clients]) -> set[str]:
    """Each event is in the log once, and those that were acknowledged where they were. Returns all.

    clients: by their prefix.
    """
    with embedlog.open(path) as log:
        assert log.recovery.clean
        records = list(log.read("events"))
    there = {(record.value or b"").decode(): (record.partition, record.offset) for record in records}
    assert len(there) == len(records)
    for prefix, each in clients.items():
        for name, where in each.acknowledged.items():
            assert there[prefix + name] == (where["partition"], where["offset"])
    return set(there)


@pytest.mark.slow
def test_gunicorn_preload(path: Path, start: Start) -> None:
    """The master owns the log; its workers append and consume; one is killed; all are reloaded."""
    server, clients = gunicorn(start, path)
    try:
        assert owner_of(path) == server.process.pid
        clients.wait_for_more(100)
        os.kill(int(server.find(BOOTING)[0]), signal.SIGKILL)
        server.find(BOOTING, WORKERS + 1)
        clients.wait_for_more(100)
        server.process.send_signal(signal.SIGHUP)
        server.find(BOOTING, 2 * WORKERS + 1)
        server.find(r"Worker exiting \(pid: (\d+)", WORKERS)
        clients.wait_for_more(100)
        assert owner_of(path) == server.process.pid
    finally:
        clients.stop()
    wait_until_committed(path, "workers", "events")
    server.stop()
    assert set(server.find(r"^\d+ has processed (\S+)$")) == check_events(path, {"": clients})


@pytest.mark.slow
def test_gunicorn_whose_master_is_killed(path: Path, start: Start) -> None:
    """A worker owns the log until the workers notice, and end; each of them may do so while they close."""
    server, clients = gunicorn(start, path)
    try:
        clients.wait_for_more(100)
        server.process.kill()
    finally:
        clients.stop()  # a worker notices when no client waits
    server.reap()
    assert not any("Traceback" in line for line in server.lines), "\n".join(server.lines)
    check_events(path, {"": clients})


# -- Celery --------------------------------------------------------------------------------------------------

SENDER = """
import sys, tasks
for name in sys.argv[2:]:
    tasks.app.send_task(sys.argv[1], [name])
"""


FILES = "filesystem://"
REDIS = "redis-server"


@pytest.fixture(params=[FILES, pytest.param(REDIS, marks=pytest.mark.program(REDIS))])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of Celery's broker. With redis, if it is installed, Celery has another pool (AsynPool)."""
    if request.param == FILES:
        yield FILES
        return
    pytest.importorskip("redis")
    address = tmp_path / "redis.sock"
    with subprocess.Popen(
        [request.param, "--port", "0", "--unixsocket", address, "--save", ""], stdout=subprocess.DEVNULL
    ) as server:
        try:
            while not is_listening(address):
                assert server.poll() is None
            yield f"redis+socket://{address}"
        finally:
            server.kill()


def is_listening(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(os.fspath(address)) == 0


class Celery:
    """A Celery worker over a log, and its tasks."""

    def __init__(self, start: Start, path: Path, queue: Path, broker: str, *options: object) -> None:
        self._start = start
        self._queue = queue
        self._broker = broker
        for folder in ("in", "out", "spool/in", "spool/out"):
            (queue / folder).mkdir(parents=True)
        self.worker = start(
            *("-m", "celery", "--app", "tasks", "worker", "--pool", "prefork", *options),
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
            QUEUE=queue,
            BROKER=broker,
            EVENTS_LOG=path,
        )
        self.worker.find("(ready)")
        self._sent = 0

    def send(self, task: str, names: list[str], *, given_back: int = 0) -> dict[str, int]:
        """Send tasks and wait until they are done. Returns the process that did each.

        given_back: how many the worker gives back, since their processes have died.
        """
        self._start("-c", SENDER, task, *names, QUEUE=self._queue / "spool", BROKER=self._broker).end()
        if self._broker == FILES:
            self._give(self._queue / "spool/out", len(names))
            self._give(self._queue / "out", given_back)
        self._sent += len(names)
        done = (words.split() for words in self.worker.find(r"succeeded in \S+: '(\d+ \S+)'$", self._sent))
        processes = {name: int(pid) for pid, name in done}
        return {name: processes[name] for name in names}

    def _give(self, folder: Path, count: int) -> None:
        """Have the worker take so many tasks from a folder: when they are whole, since it takes any file."""
        while count:
            for file in folder.iterdir():
                if file.stat().st_size:  # written in one step
                    file.rename(self._queue / "in" / file.name)
                    count -= 1


def names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


def values(path: Path, mode: str = "rw") -> Counter[str]:
    with embedlog.open(path, mode) as log:
        assert mode == "r" or log.recovery.clean
        return Counter((record.value or b"").decode() for record in log.read("events"))


@pytest.mark.slow
def test_celery_children_close_their_logs(path: Path, tmp_path: Path, start: Start, broker: str) -> None:
    """They end by os._exit. What they have buffered is in the log all the same."""
    celery = Celery(start, path, tmp_path / "queue", broker, "--concurrency", 2)
    assert owner_of(path) == celery.worker.process.pid
    appended, sent = names("appended", 20), names("sent", 20)
    done = celery.send("append", appended) | celery.send("send", sent)
    assert celery.worker.process.pid not in done.values()
    assert set(values(path, "r")) == set(appended)
    celery.worker.stop()
    assert values(path) == Counter(appended + sent)


@pytest.mark.slow
def test_celery_children_that_are_replaced_close_their_logs(
    path: Path, tmp_path: Path, start: Start, broker: str
) -> None:
    celery = Celery(start, path, tmp_path / "queue", broker, "--concurrency", 1, "--max-tasks-per-child", 5)
    sent = names("sent", 10)
    done = celery.send("send", sent)
    assert len(set(done.values())) == 2
    with embedlog.open(path, "r") as log:
        found = itertools.islice(log.read("events", 0, follow=True), len(sent))
        assert {record.value for record in found} == {name.encode() for name in sent}
    celery.worker.stop()
    assert values(path) == Counter(sent)


@pytest.mark.slow
def test_a_celery_child_is_killed(path: Path, tmp_path: Path, start: Start, broker: str) -> None:
    """Its task is done again. Its buffer is lost, as with any process that is killed; no append is."""
    celery = Celery(start, path, tmp_path / "queue", broker, "--concurrency", 2)
    appended = names("appended", 10)
    celery.send("append", appended)
    buffered = celery.send("send", names("buffered", 20))
    again = celery.send("die", ["died"], given_back=1)
    killed = int((tmp_path / "queue" / "died").read_text())
    assert again["died"] != killed
    celery.worker.stop()
    kept = [name for name, pid in buffered.items() if pid != killed]
    assert values(path) == Counter([*appended, *kept, "died"])
