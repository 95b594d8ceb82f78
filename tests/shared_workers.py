"""Worker processes on one shared log, told by lines what to do, and what they acknowledged.

A worker prints a line for each fact, in one write, so that lines of a worker and its forked children mix
whole:

    A value partition offset    appended: the call returned
    C partition offset          committed for the group
    E kind                      a call raised
    F                           forked
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from programs import Program

TOPIC = "t"
GROUP = "g"
PARTITIONS = 3

_COMMON = """
import os, random, sys, threading, embedlog
from embedlog.errors import EmbedlogError

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

path, name = sys.argv[1:3]
log = embedlog.open(path, shared=True, segment_bytes=30_000, flush_ms=50)
orders = []

def listen():
    for line in sys.stdin:
        orders.append(line.strip())
    orders.append("close")

threading.Thread(target=listen, daemon=True).start()
say("ready")
"""

APPENDER = (
    _COMMON
    + """
def work(log, name, number, rng, producer):
    def values(count):
        return [f"{name}-{number}-{i}".encode() for i in range(count)]
    try:
        kind = rng.randrange(4)
        if kind == 0:
            given = values(rng.randrange(2, 30))
            found = log.append_many("t", given, partition=rng.randrange(3))
            done = list(zip(given, found))
        elif kind == 1:
            done = [(value, producer.send("t", value)) for value in values(rng.randrange(1, 50))]
            producer.flush()
        else:
            [value] = values(1)
            done = [(value, log.append("t", value, flush=kind == 2))]
    except EmbedlogError as error:
        say("E", type(error).__name__)
        return
    for value, at in done:
        try:
            at = at if isinstance(at, tuple) else at.result()
        except EmbedlogError as error:
            say("E", type(error).__name__)
        else:
            say("A", value.decode(), at.partition, at.offset)

def forked(name):
    os.close(0)
    rng = random.Random(name)
    with log.producer() as producer:
        for number in range(20):
            work(log, name, number, rng, producer)
    if rng.random() < 0.5:
        log.close()
    os._exit(0)

rng = random.Random(name)
producer = log.producer()
number = 0
while True:
    order = orders.pop(0) if orders else None
    if order == "close":
        break
    if order == "fork":
        if os.fork() == 0:
            try:
                forked(f"{name}f{number}")
            except BaseException as error:
                say("E", "child:" + type(error).__name__ + ":" + str(error).replace(" ", "_"))
                os._exit(1)
        say("F")
    work(log, name, number, rng, producer)
    number += 1
log.close()
"""
)

CONSUMER = (
    _COMMON
    + """
while "close" not in orders:
    with log.consumer("t", group="g", auto_commit=False) as consumer:
        try:
            while "close" not in orders:
                if consumer.poll(100):
                    positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
                    consumer.commit()
                    for tp, offset in positions.items():
                        say("C", tp.partition, offset)
        except EmbedlogError as error:
            say("E", type(error).__name__)
log.close()
"""
)


class Workers:
    """Starts workers, collects what they print, and says who owns the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.running: list[Program] = []
        self._appenders: list[Program] = []
        self.appended: dict[str, tuple[int, int]] = {}
        self.committed: dict[int, int] = {}
        self.errors: list[str] = []
        self._started = 0
        self._facts = 0
        self._changed = threading.Condition()  # guards all of the above but the two lists of workers
        self._listeners: list[threading.Thread] = []

    def start(self, code: str) -> None:
        """Start one more; it has the log open on return."""
        name = f"w{self._started}"
        worker = Program(code, self.path, name, errors=self.path.with_name(f"{name}.errors"))
        self._started += 1
        assert worker.line() == "ready"
        self.running.append(worker)
        if code == APPENDER:
            self._appenders.append(worker)
        listener = threading.Thread(target=self._listen, args=[worker])
        listener.start()
        self._listeners.append(listener)

    @property
    def append(self) -> bool:
        """Whether one of them appends: without one, consumers soon have nothing to do."""
        return any(worker in self._appenders for worker in self.running)

    def wait_for(self, facts: int) -> None:
        """Wait until the workers have stated that many more facts."""
        with self._changed:
            wanted = self._facts + facts
            self._changed.wait_for(lambda: self._facts >= wanted)

    def end(self, worker: Program, how: Callable[[Program], object]) -> None:
        """End a worker and reap it. Its forked children go on."""
        self.running.remove(worker)
        how(worker)
        worker.process.wait()
        _close_input(worker)

    def close(self) -> None:
        """Have all close the log, and wait for them and for their children."""
        for worker in self.running:
            worker.say("close")
        for worker in self.running:
            assert worker.process.wait() == 0, worker._said()
        for listener in self._listeners:
            listener.join()

    def kill(self) -> None:
        """End what a failed test has left, and close the pipes."""
        for worker in self.running:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            _close_input(worker)
        for listener in self._listeners:
            listener.join()

    def owner(self) -> Program | None:
        """The worker that owns the directory now, if one of them does."""
        return next((each for each in self.running if owned(each.pid, self.path)), None)

    def _listen(self, worker: Program) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            kind, *words = line.split()
            with self._changed:
                if kind == "A":
                    assert words[0] not in self.appended
                    self.appended[words[0]] = int(words[1]), int(words[2])
                elif kind == "C":
                    partition, offset = map(int, words)
                    self.committed[partition] = max(self.committed.get(partition, 0), offset)
                elif kind == "E":
                    self.errors.append(words[0])
                self._facts += 1
                self._changed.notify_all()
        worker.process.stdout.close()


def _close_input(worker: Program) -> None:
    assert worker.process.stdin is not None
    worker.process.stdin.close()


def owned(pid: int, path: Path) -> str:
    """The writer's state of a directory that a process has mapped for writing: its inode; "" for none.

    Only an owner has one, which it has made. Its child has the same, until it has closed what it inherited.
    """
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # the process has ended
        return ""
    state = os.path.join(path, "writer-state")
    for line in maps.splitlines():
        _, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-s" and name and name[0].startswith(state):
            return inode
    return ""


def _is_ours(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


def owners(path: Path) -> dict[str, int]:
    """The workers and children of workers that own a directory, by what they have made in it; more than one
    only if at the same moment.

    Processes cannot be looked at all at once. So the first is looked at again after the others: if it owns
    the directory before and after another one does, both owned it.
    """
    ours = [int(each) for each in os.listdir("/proc") if each.isdigit() and _is_ours(int(each))]
    found = {pid: inode for pid in ours if (inode := owned(pid, path))}
    return {inode: pid for pid, inode in found.items() if owned(pid, path) == inode}
