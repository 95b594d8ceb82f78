"""Forks of a process that shares a log, at moments when another of its threads has begun something.

A child is there to stay: whatever it has inherited by mistake would be in the way of those who live on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import embedlog

COMMON = """
import json, os, signal, socket, sys, threading, embedlog
path = sys.argv[1]
log = embedlog.open(path, shared=True)

def is_in_child():
    return os.fork() == 0

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""

# The owner starts to serve its socket, which imports the broker; it is killed as soon as it has a child.
STARTS_TO_SERVE = (
    COMMON
    + """
parent = os.getpid()
threading.Thread(target=embedlog.open, args=[path], kwargs={"shared": True}, daemon=True).start()
while "embedlog.cluster" not in sys.modules:
    pass
if is_in_child():
    while os.getppid() == parent:
        os.sched_yield()
    say(log.append("t", b"child").offset)
    sys.stdin.readline()
    log.close()
    os._exit(0)
os.kill(parent, signal.SIGKILL)
"""
)

# Clients connect to the owner all the time, while it forks.
ACCEPTS = (
    COMMON
    + """
from embedlog.files import unix_sockets
address = os.path.join(path, "embedlog.sock")
stopping = threading.Event()

def connect():
    while not stopping.is_set():
        try:
            unix_sockets.connect(address, 60).close()
        except BlockingIOError:  # more wait to be accepted than may
            pass

def inherited():
    '''How many of the owner's sockets this child has.'''
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as copy:
                found += copy.getsockname() == address
        except OSError:
            pass
    return found

threads = [threading.Thread(target=connect) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
for _ in range(150):
    child = os.fork()
    if child == 0:
        os._exit(min(inherited(), 100))
    children.append(child)
stopping.set()
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
for thread in threads:
    thread.join()
say(sum(status != 0 for status in statuses))
log.close()
"""
)

# A client becomes the owner when its owner has ended. It has taken the lock when it has noted so.
TAKES_OVER = (
    COMMON
    + """
def is_owner():
    with open(os.path.join(path, "writer.json")) as file:
        return json.load(file)["pid"] == os.getpid()

say("ready")
sys.stdin.readline()
threading.Thread(target=log.append, args=("t", b"late"), daemon=True).start()
while not is_owner():
    pass
if is_in_child():
    say("child")
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""
)


def test_a_child_of_an_owner_that_starts_to_serve_can_own_the_log(path: Path, program: Any) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
    started = program(STARTS_TO_SERVE, path)
    assert started.line() == "0"
    with embedlog.open(path, shared=True) as client:
        assert client.append("t", b"beside the child").offset == 1
        started.say()


BUFFERS = """
import multiprocessing, sys
import embedlog

log = embedlog.open(sys.argv[1], shared=True)
log.create_topic("t")

def buffer():
    print(type(log.backend).__name__, flush=True)
    producer = log.producer(linger_ms=3_600_000)
    producer.send("t", b"1")
    producer.send("t", b"2")

child = multiprocessing.get_context("fork").Process(target=buffer)
child.start()
child.join()
print(child.exitcode)
log.close()
"""


def test_a_child_has_no_connection_of_its_parent(path: Path, program: Any) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
    assert program(ACCEPTS, path).end() == "0\n"


def test_a_child_does_not_keep_the_lock_that_its_parent_has_just_taken(path: Path, program: Any) -> None:
    owner = program(
        "import embedlog, sys\nlog = embedlog.open(sys.argv[1], shared=True)\nprint(1, flush=True)\ninput()",
        path,
    )
    owner.line()
    with embedlog.open(path, shared=True) as log:
        log.create_topic("t", partitions=200)
    heir = program(TAKES_OVER, path)
    assert heir.line() == "ready"
    owner.kill()
    heir.say()
    assert heir.line() == "child"
    heir.process.kill()  # its child lives on
    with embedlog.open(path, shared=True) as log:
        log.append("t", b"after", partition=0)
        assert json.loads((path / "writer.json").read_text())["pid"] not in (owner.pid, heir.pid)


def test_a_child_opens_nothing_before_it_uses_the_log(path: Path, program: Any) -> None:
    """What its producer has buffered is in the log all the same when it ends by os._exit."""
    assert program(BUFFERS, path).end() == "Reconnecting\n0\n"
    with embedlog.open(path) as log:
        assert [record.value for record in log.read("t")] == [b"1", b"2"]
