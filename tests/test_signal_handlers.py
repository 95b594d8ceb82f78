"""Signal handlers and finalizers may call every public method: it works, or raises an error of the tree at
once. Nothing waits for ever, and the log stays sound."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from ctrl_c import interrupt, strike
from programs import Program

import embedlog
from embedlog import Log
from embedlog.errors import Closed, ConcurrentUse, EmbedlogError
from embedlog.fast_append import AppendLock
from embedlog.model import TopicPartition
from embedlog.runtime.locks import Lock, ReentrantLock, _is_in_library, _waiting_for, holds_up_others
from embedlog.store.verify import verify_log

TP = TopicPartition("t", 0)


@embedlog.worker("work")
def handle(job: Any) -> None:
    """Does a job."""


class Clients:
    """A log, and what its program may have of it, each made when it is needed."""

    def __init__(self, log: Log, path: Path) -> None:
        self.log = log
        self.path = path
        self.copies = itertools.count()
        self.topic = log.topic("t")
        self.group = log.group("g")

    def __getattr__(self, name: str) -> Any:
        made = MAKERS[name](self)
        setattr(self, name, made)
        return made

    def made(self, name: str) -> Any:
        return getattr(self, name)


def _consumer(clients: Clients) -> Any:
    consumer = clients.log.consumer("t", group="g", auto_commit=False)
    while not consumer.poll(100):
        pass
    return consumer


def _entered(clients: Clients) -> Any:
    return clients.log.transaction("tx").__enter__()


def _transactional(clients: Clients) -> Any:
    producer = clients.log.producer(transactional_id="p")
    producer.begin_transaction()
    return producer


MAKERS: dict[str, Callable[[Clients], Any]] = {
    "producer": lambda clients: clients.log.producer(),
    "topic_producer": lambda clients: clients.topic.producer(),
    "transactional": _transactional,
    "consumer": _consumer,
    "queue": lambda clients: clients.log.queue("jobs"),
    "job": lambda clients: clients.queue.take(60_000),
    "transaction": _entered,
    "workers": lambda clients: clients.log.run_workers(handle, background=True),
    "mirror": lambda clients: embedlog.Mirror(clients.log.path, clients.path / f"copy{next(clients.copies)}"),
}

Call = Callable[[Clients], object]


def _copy(clients: Clients) -> None:
    clients.log.backup(clients.path / f"backup{next(clients.copies)}")


def _mirror(clients: Clients) -> None:
    clients.mirror = MAKERS["mirror"](clients)  # it runs once
    with clients.mirror:
        clients.mirror.run(until_caught_up=True)


def _close(clients: Clients) -> None:
    if "mirror" in vars(clients):
        clients.mirror.close()
    clients.log.close()


def _exit(name: str) -> Call:
    return lambda clients: clients.made(name).__exit__(None, None, None)


def _all(name: str, count: int) -> Call:
    return lambda clients: [next(clients.made(name)) for _ in range(count)]


# Each public method, called.
CALLS: dict[type, dict[str, Call]] = {
    embedlog.Log: {
        "abort_transaction": lambda c: (c.transaction, c.log.abort_transaction("tx")),
        "alter_topic": lambda c: c.log.alter_topic("t", retention_ms=1_000_000),
        "append": lambda c: c.log.append("t", b"a", flush=True),
        "append_many": lambda c: c.log.append_many("t", (b"%d" % n for n in range(3)), flush=True),
        "backup": _copy,
        "close": lambda c: c.log.close(),
        "compact": lambda c: c.log.compact("keyed"),
        "consumer": lambda c: c.log.consumer("t", group="other"),
        "create_partitions": lambda c: c.log.create_partitions("t", 2),
        "create_topic": lambda c: c.log.create_topic("new"),
        "delete_records": lambda c: c.log.delete_records("t", 0, 1),
        "delete_topic": lambda c: c.log.delete_topic("t"),
        "describe_groups": lambda c: c.log.describe_groups(),
        "describe_topic": lambda c: c.log.describe_topic("t"),
        "flush": lambda c: (c.log.append("t", b"f"), c.log.flush()),
        "group": lambda c: c.log.group("g"),
        "groups": lambda c: c.log.groups(),
        "health": lambda c: c.log.health(),
        "offset_for_time": lambda c: c.log.offset_for_time("t", 0, 0),
        "offsets": lambda c: c.log.offsets("t"),
        "offsets_before": lambda c: c.log.offsets_before("t", 0, -1, 5),
        "producer": lambda c: c.log.producer(),
        "queue": lambda c: c.log.queue("more"),
        "read": lambda c: list(c.log.read("t")),
        "read_arrow": lambda c: list(c.log.read_arrow("t")),
        "read_at": lambda c: c.log.read_at("t", 0, 0),
        "read_values": lambda c: list(c.log.read_values("t")),
        "reopen": lambda c: c.log.reopen("t", 0),
        "run_workers": lambda c: c.log.run_workers(handle, background=True).close(),
        "sql": lambda c: c.log.sql("SELECT count(*) FROM t").fetchall(),
        "to_pandas": lambda c: c.log.to_pandas("t"),
        "to_polars": lambda c: c.log.to_polars("t"),
        "topic": lambda c: c.log.topic("t"),
        "topics": lambda c: c.log.topics(),
        "transaction": lambda c: c.log.transaction("tx"),
        "transactions": lambda c: c.log.transactions(),
        "__enter__": lambda c: c.log.__enter__(),
        "__exit__": lambda c: c.log.__exit__(None, None, None),
    },
    embedlog.Topic: {
        "append": lambda c: c.topic.append(b"a", flush=True),
        "append_many": lambda c: c.topic.append_many([b"a", b"b"], flush=True),
        "consumer": lambda c: c.topic.consumer(),
        "describe": lambda c: c.topic.describe(),
        "offset_for_time": lambda c: c.topic.offset_for_time(0, 0),
        "offsets": lambda c: c.topic.offsets(),
        "producer": lambda c: c.topic.producer(),
        "queue": lambda c: c.topic.queue(),
        "read": lambda c: list(c.topic.read()),
        "read_at": lambda c: c.topic.read_at(0, 0),
    },
    embedlog.Producer: {
        "close": lambda c: c.producer.close(),
        "flush": lambda c: (c.producer.send("t", b"s"), c.producer.flush()),
        "send": lambda c: c.producer.send("t", b"s").result(),
        "__enter__": lambda c: c.producer.__enter__(),
        "__exit__": _exit("producer"),
    },
    embedlog.TransactionalProducer: {
        "abort_transaction": lambda c: (c.transactional.send("t", b"s"), c.transactional.abort_transaction()),
        "begin_transaction": lambda c: (
            c.transactional.abort_transaction(),
            c.transactional.begin_transaction(),
        ),
        "close": lambda c: c.transactional.close(),
        "commit_transaction": lambda c: (
            c.transactional.send("t", b"s"),
            c.transactional.commit_transaction(),
        ),
        "flush": lambda c: (c.transactional.send("t", b"s"), c.transactional.flush()),
        "send": lambda c: c.transactional.send("t", b"s").result(),
        "send_offsets_to_transaction": lambda c: c.transactional.send_offsets_to_transaction(
            None, c.consumer
        ),
        "__enter__": lambda c: c.transactional.__enter__(),
        "__exit__": _exit("transactional"),
    },
    embedlog.TopicProducer: {
        "close": lambda c: c.topic_producer.close(),
        "flush": lambda c: (c.topic_producer.send(b"s"), c.topic_producer.flush()),
        "send": lambda c: c.topic_producer.send(b"s").result(),
        "__enter__": lambda c: c.topic_producer.__enter__(),
        "__exit__": _exit("topic_producer"),
    },
    embedlog.Consumer: {
        "assign": lambda c: c.consumer.assign([TP]),
        "assignment": lambda c: c.consumer.assignment(),
        "close": lambda c: c.consumer.close(),
        "commit": lambda c: c.consumer.commit(),
        "committed": lambda c: c.consumer.committed(TP),
        "estimated_lag": lambda c: c.consumer.estimated_lag(),
        "held_back": lambda c: c.consumer.held_back(),
        "lag": lambda c: c.consumer.lag(),
        "pause": lambda c: c.consumer.pause([TP]),
        "paused": lambda c: c.consumer.paused(),
        "poll": lambda c: c.consumer.poll(20),
        "position": lambda c: c.consumer.position(TP),
        "resume": lambda c: c.consumer.resume([TP]),
        "seek": lambda c: c.consumer.seek(TP, 0),
        "seek_to_beginning": lambda c: c.consumer.seek_to_beginning([TP]),
        "seek_to_committed": lambda c: c.consumer.seek_to_committed([TP]),
        "seek_to_end": lambda c: c.consumer.seek_to_end([TP]),
        "seek_to_time": lambda c: c.consumer.seek_to_time(0, [TP]),
        "wakeup": lambda c: c.consumer.wakeup(),
        "__enter__": lambda c: c.consumer.__enter__(),
        "__exit__": _exit("consumer"),
        "__iter__": lambda c: (c.consumer.seek(TP, 0), next(iter(c.consumer), None)),
        "__next__": lambda c: (c.consumer.seek(TP, 0), next(c.consumer, None)),
    },
    embedlog.Queue: {
        "close": lambda c: c.queue.close(),
        "run": lambda c: (c.queue.send(b"j"), c.queue.run(lambda job: c.queue.stop())),
        "send": lambda c: c.queue.send(b"j"),
        "stop": lambda c: c.queue.stop(),
        "take": lambda c: c.queue.take(20),
        "__enter__": lambda c: c.queue.__enter__(),
        "__exit__": _exit("queue"),
        "__iter__": lambda c: iter(c.queue),
        "__next__": lambda c: (c.queue.send(b"j"), next(c.queue, None)),
    },
    embedlog.Job: {
        "accept": lambda c: c.job.accept(),
        "reject": lambda c: c.job.reject("no"),
        "release": lambda c: c.job.release(),
        "renew": lambda c: c.job.renew(),
        "__enter__": lambda c: c.job.__enter__(),
        "__exit__": _exit("job"),
    },
    embedlog.Transaction: {
        "append": lambda c: c.transaction.append("t", b"x"),
        "append_many": lambda c: c.transaction.append_many("t", [b"x", b"y"]),
        "commit_offsets": lambda c: c.transaction.commit_offsets(c.consumer),
        "__enter__": lambda c: c.log.transaction("tx2").__enter__(),
        "__exit__": lambda c: (c.transaction.append("t", b"x"), c.transaction.__exit__(None, None, None)),
    },
    embedlog.ConsumerGroup: {
        "delete": lambda c: c.group.delete(),
        "delete_offsets": lambda c: c.group.delete_offsets("t"),
        "describe": lambda c: c.group.describe(),
        "members": lambda c: c.group.members(),
        "offsets": lambda c: c.group.offsets(),
        "oldest_unread_ms": lambda c: c.group.oldest_unread_ms(),
        "reset": lambda c: c.group.reset("t", to="earliest"),
    },
    embedlog.Workers: {
        "close": lambda c: c.workers.close(),
        "release": lambda c: c.workers.release(),
        "stop": lambda c: c.workers.stop(),
        "wait": lambda c: (c.workers.stop(), c.workers.wait()),
        "__enter__": lambda c: c.workers.__enter__(),
        "__exit__": _exit("workers"),
    },
    embedlog.Mirror: {
        "close": lambda c: c.mirror.close(),
        "run": _mirror,
        "stop": lambda c: c.mirror.stop(),
        "__enter__": lambda c: c.mirror.__enter__(),
        "__exit__": _exit("mirror"),
    },
}
_SPECIAL = ("__enter__", "__exit__", "__iter__", "__next__")
METHODS = [(kind, name) for kind, calls in CALLS.items() for name in calls]
NAMES = [f"{kind.__name__}.{name}" for kind, name in METHODS]

ACTIONS: dict[str, Callable[[Clients, Call], object]] = {
    "close": lambda clients, call: _close(clients),
    "again": lambda clients, call: call(clients),
    "append": lambda clients, call: clients.log.append("t", b"handler"),
    "durable": lambda clients, call: clients.log.append("t", b"handler", flush=True),
    "flush": lambda clients, call: clients.log.flush(),
}


def test_the_table_has_every_public_method() -> None:
    for kind, calls in CALLS.items():
        public = {
            name
            for name in dir(kind)
            if callable(getattr(kind, name)) and (name in _SPECIAL or not name.startswith("_"))
        }
        assert calls.keys() == public, kind


def in_a_log(path: Path, call: Call, action: str, point: int) -> bool:
    """Interrupt a call at a point of it. False if it has fewer points."""
    log = embedlog.open(path)
    for topic in ("t", "jobs", "keyed"):
        log.create_topic(topic, **({"cleanup_policy": "compact"} if topic == "keyed" else {}))
        log.append(topic, b"first", key=b"k")
    log.append("t", b"second")  # if a handler reads the first, the iteration that it interrupted has one
    clients = Clients(log, path.parent)
    told = []

    def handler() -> None:
        with contextlib.suppress(EmbedlogError, duckdb.Error):
            done = ACTIONS[action](clients, call)
            if action in ("append", "durable"):
                told.append(done)

    with contextlib.suppress(EmbedlogError):
        call(clients)  # what is made at the first use is made
    reached = True
    with contextlib.suppress(EmbedlogError, duckdb.Error):
        reached = interrupt(point, lambda: call(clients), handler)
    _close(clients)
    report = verify_log(path)
    assert report.ok, report
    with embedlog.open(path) as log:
        assert log.recovery.clean, "the close has completed"
        if told and "t" in log.topics():
            offsets = {record.offset: record.value for record in log.read("t")}
            assert offsets[told[0].offset] == b"handler"
    return reached


def _points_of(tmp_path: Path, call: Call) -> int:
    """How many points a call has, about."""
    few, many = 0, 1
    while in_a_log(tmp_path / f"count{many}", call, "flush", many):
        few, many = many, many * 4
    return many if few else 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_handler_interrupts_a_method(tmp_path: Path, method: tuple[type, str]) -> None:
    """At one point; the soak goes through all."""
    chance = random.Random(method[1])
    action = chance.choice(["close", "again"])
    in_a_log(tmp_path / "log", CALLS[method[0]][method[1]], action, int(2 ** chance.uniform(0, 9)))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_handler_interrupts_a_method_at_each_point(
    tmp_path: Path, method: tuple[type, str], action: str
) -> None:
    call = CALLS[method[0]][method[1]]
    for point in itertools.count(0, 1 + _points_of(tmp_path, call) // 500):
        if not in_a_log(tmp_path / str(point), call, action, point):
            break


# -- real signals --------------------------------------------------------------------------------------------

SERVICE = """
import faulthandler, itertools, signal, sys
import embedlog
from embedlog.errors import Closed, QueueEmpty

faulthandler.dump_traceback_later(120, exit=True)
path, work, recipe, mode = sys.argv[1:]
log = embedlog.open(path, shared=mode == "client")
log.create_topic("t", exist_ok=True)
log.append_many("t", [b"%d" % n for n in range(10)])
consumer, producer, queue = log.consumer("t", group="g"), log.producer(), log.queue("jobs")
WORK = {
    "append": lambda: log.append("t", b"a", flush=True),
    "append_many": lambda: log.append_many("t", (b"%d" % n for n in range(3)), flush=True),
    "flush": lambda: (log.append("t", b"f"), log.flush()),
    "delete_records": lambda: log.delete_records("t", 0, log.offsets("t")[0].log_end_offset),
    "poll": lambda: consumer.poll(5),
    "iterate": lambda: next(consumer),
    "send": lambda: (producer.send("t", b"p"), producer.flush()),
    "take": lambda: (queue.send(b"j"), [job.accept() for job in [queue.take(100)] if job]),
    "wait for a job": lambda: queue.take(float("inf")),
    "transaction": lambda: transact(),
}

def transact():
    with log.transaction("x") as tx:
        tx.append("t", b"x")

RECIPES = {
    "close": lambda *_: log.close(),
    "close all": lambda *_: (consumer.close(), producer.close(), queue.close(), log.close()),
    "close and exit": lambda *_: (log.close(), sys.exit()),
    "exit": lambda *_: sys.exit(),
}
signal.signal(signal.SIGTERM, RECIPES[recipe])
print("ready", flush=True)
try:
    with log:
        while not consumer.closed and not producer.closed and not queue.closed:
            if WORK[work]() is None and work.startswith("wait"):
                break
except (Closed, QueueEmpty):
    pass
except StopIteration:
    pass
log.close()
"""
WORKS = re.findall(r'^    "([a-z_ ]+)": lambda: ', SERVICE, re.M)
RECIPES = re.findall(r'^    "([a-z_ ]+)": lambda \*_: ', SERVICE, re.M)


def _stop_a_service(
    program: Callable[..., Program], path: Path, work: str, recipe: str, mode: str, wait_s: float
) -> None:
    service = program(SERVICE, path, work, recipe, mode)
    assert service.line() == "ready"
    with contextlib.suppress(ChildProcessError):
        signal.sigtimedwait([signal.SIGUSR2], wait_s)  # at some moment
    service.process.terminate()
    service.end()
    if mode == "owner":
        assert verify_log(path).ok
        with embedlog.open(path) as log:
            assert log.recovery.clean


@pytest.mark.parametrize("recipe", ["close", "exit"])
@pytest.mark.parametrize("work", ["append", "take"])
def test_a_service_ends_at_sigterm(
    program: Callable[..., Program], path: Path, work: str, recipe: str
) -> None:
    _stop_a_service(program, path, work, recipe, "owner", 0.05)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["owner", "client"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("work", WORKS)
def test_services_end_at_sigterm(
    program: Callable[..., Program], path: Path, work: str, recipe: str, mode: str
) -> None:
    chance = random.Random(f"{work} {recipe}")
    with contextlib.ExitStack() as opened:
        if mode == "client":
            opened.enter_context(embedlog.open(path, shared=True))
        for _ in range(20):
            _stop_a_service(program, path, work, recipe, mode, chance.uniform(0, 0.1))
    assert verify_log(path).ok


# -- finalizers, locks ---------------------------------------------------------------------------------------


class Appends:
    """Appends when it is collected."""

    def __init__(self, log: Log, told: list[object]) -> None:
        self.log, self.told, self.itself = log, told, self

    def __del__(self) -> None:
        try:
            self.told.append(self.log.append("t", b"last", flush=True))
        except ConcurrentUse as error:
            self.told.append(error)


def test_a_finalizer_that_appends_does_not_wait_for_its_thread(path: Path) -> None:
    told: list[object] = []
    for number in range(0, 140, 7):
        with embedlog.open(path) as log:
            log.create_topic("t", exist_ok=True)
            Appends(log, told)
            interrupt(number, lambda log=log: log.append("t", b"a", flush=True), lambda: gc.collect(0))
    assert any(isinstance(each, ConcurrentUse) for each in told)
    assert not all(isinstance(each, ConcurrentUse) for each in told)
    assert verify_log(path).ok


def test_a_child_has_no_waiting_threads_of_its_parent() -> None:
    lock = Lock()
    with lock:
        thread = threading.Thread(target=lambda: lock.__enter__() and lock.release())
        thread.start()
        while not holds_up_others():
            pass
        child = os.fork()
        if child == 0:
            os._exit(holds_up_others())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


@pytest.mark.parametrize(
    ("file_name", "is_library"),
    [
        (threading.__file__, True),
        ("<frozen importlib._bootstrap>", True),
        ("<frozen __main__>", False),  # a frozen program
        ("<f-cell>", False),
        ("<string>", False),
        ("/tmp/ipykernel_1/2.py", False),
        ("queue.py", False),  # a program's own
    ],
)
def test_code_of_pythons_library_is_no_handler(file_name: str, is_library: bool) -> None:
    assert _is_in_library(file_name) is is_library


def test_a_lock_tells_its_thread_from_others() -> None:
    lock, again = Lock(), ReentrantLock()
    with lock:
        assert not lock.if_free(lambda: True)
        with pytest.raises(ConcurrentUse, match="signal handler"), lock:
            pass
    assert lock.if_free(lock._is_owned)
    assert not lock._is_owned()
    with again:
        pass
    assert not again._is_owned()


@pytest.mark.timeout(50)  # less than a handler's take waits
def test_a_handler_does_not_wait_for_a_job_behind_the_wait_that_it_interrupts(path: Path) -> None:
    """That has asked for the job, or is about to, and comes first."""
    outcomes = set()
    with embedlog.open(path) as log, log.queue("jobs") as queue:

        def take(wait_ms: int) -> None:
            job = queue.take(wait_ms, default=None)
            if job is not None:
                job.accept()

        def handler() -> None:
            queue.send(b"j")
            try:
                take(100_000)
            except ConcurrentUse:
                outcomes.add("refused")
            else:
                outcomes.add("taken")

        for number in itertools.count():
            if not interrupt(number, lambda: take(1), handler):
                break
    assert outcomes == {"refused", "taken"}


@pytest.mark.parametrize("kind", [Lock, ReentrantLock, AppendLock])
@pytest.mark.parametrize("waits", [False, True], ids=["", "after another thread"])
def test_ctrl_c_leaves_no_lock_acquired(kind: type[Lock], waits: bool) -> None:
    def enter() -> None:
        with lock:
            pass

    def enter_if_free() -> None:
        lock.if_free(lambda: True)

    def hold() -> None:
        with lock:
            is_held.set()
            while not (_waiting_for or is_over):
                pass

    for work in (enter, enter_if_free):
        for number in itertools.count():
            lock = kind()
            is_over: list[bool] = []
            is_held = threading.Event()
            holder = threading.Thread(target=hold)
            if waits:
                holder.start()
                is_held.wait()
            was_point = strike(number, work)
            is_over.append(True)
            if waits:
                holder.join()
            assert not lock._is_owned()
            assert not _waiting_for
            if not was_point:
                break
        assert number > 1


def test_close_returns_before_it_has_closed_what_is_being_appended_to(path: Path) -> None:
    """The append that it interrupts ends first, and succeeds."""
    outcomes = set()
    for number in range(0, 130, 10):
        log = embedlog.open(path)
        log.create_topic("t", exist_ok=True)
        appended = None
        with contextlib.suppress(Closed):

            def append(log: Log = log) -> None:
                nonlocal appended
                appended = log.append("t", b"a", flush=True)

            interrupt(number, append, log.close)
        outcomes.add(appended is not None)
        log.close()
    assert outcomes == {True, False}
