"""Worker processes of one queue on a shared log: threads, tasks, or one thread; told by lines what to do.

What they say is in queue_checks.py. The orders: "send N" jobs, "close" (finish what is in hand), "drop" (give
back what is in hand). `DRAIN` works off what is there, and ends.

Their wall clock is the machine's plus the milliseconds in the file `clock`, in all of them at once. The
monotonic clock is left alone.
"""

from __future__ import annotations

import json
import random
import signal
import struct
import threading
import time
from pathlib import Path

from programs import Program
from queue_checks import Facts, Letter, Rules
from shared_workers import owned

import embedlog

TOPIC = "jobs"
GROUP = "g"
PARTITIONS = 2

_COMMON = """
import asyncio, json, mmap, os, random, struct, sys, threading, time

path, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with open(path + ".clock", "rb") as file:
    clock = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + struct.unpack("<q", clock)[0] / 1000
time.time_ns = lambda: real_time_ns() + struct.unpack("<q", clock)[0] * 1_000_000

import embedlog, embedlog.aio
from embedlog.errors import Closed, EmbedlogError, LockLost

UNKNOWN = {"BrokerUnavailable", "RequestTimedOut"}
ENDS = {"accepted": "ok", "released": "ok", "rejected": "ok", "lost": "LockLost"}
numbers = iter(range(1 << 60)).__next__
asked_to_close = threading.Event()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def now():
    return time.monotonic_ns()

def handed(job):
    at, tag = now(), f"{name}.{numbers()}"
    number = job._held.delivery.delivery_id
    key = (job.key or b"-").decode()
    say("H", tag, job.value.decode(), job.partition, job.offset, key, number, job.deliveries, at)
    return tag

def state(job):
    return repr(job).rsplit(", ", 1)[1].rstrip(">")

def send(queue, count):
    rng = random.Random(f"{name} sends {numbers()}")
    for _ in range(count):
        value = f"{name}-{numbers()}"
        delay = {"delay_ms": rng.randrange(400)} if rng.random() < 0.15 else {}
        try:
            at = queue.send(value.encode(), key=b"k%d" % rng.randrange(20), **delay)
        except EmbedlogError as error:
            say("X", type(error).__name__)
            continue
        say("S", value, at.partition, at.offset)

def listen(queue, stop):
    for line in sys.stdin:
        order, *words = line.split()
        if order == "send":
            send(queue, int(words[0]))
        else:
            break
    else:
        order = "close"
    asked_to_close.set()
    stop()
    if order == "drop":
        queue.close()

class Planned(Exception):
    pass

# What becomes of a job, out of a hundred.
CHOICES = (
    ["accept"] * 45 + ["block"] * 20 + ["fail"] * 7 + ["release"] * 6 + ["uncounted"] * 5 + ["reject"] * 4
    + ["renew"] * 6 + ["hold"] * 5 + ["drop", "renewed"]
)
opened = {
    "group": "g", "lock_ms": options["lock_ms"], "max_deliveries": options["max_deliveries"],
    "ordered_by_key": options["ordered_by_key"], "backoff_ms": 20, "max_backoff_ms": 100, "partitions": 2,
    "prefetch": options["prefetch"], "accept_linger_ms": options["accept_linger_ms"],
}
settings = {"segment_bytes": 50_000, "flush_ms": 50, "shared": options["shared"]}
"""

_THREADED = (
    _COMMON
    + """
def call(tag, action, function):
    while True:
        say("B", tag, action, now())
        try:
            function()
        except EmbedlogError as error:
            say("E", tag, now(), type(error).__name__)
            if type(error).__name__ in UNKNOWN:
                continue
            return False
        say("E", tag, now(), "ok")
        return True

def block(job, tag, fails):
    action = "accept" if not fails else "release" if job.deliveries < options["max_deliveries"] else "reject"
    function = {"accept": job.accept, "release": job.release, "reject": lambda: job.reject("last")}[action]
    say("B", tag, action, now())
    try:
        with job:
            if fails:
                raise Planned("planned")
    except Planned:
        if state(job) in ENDS:
            say("E", tag, now(), ENDS[state(job)])
        else:  # the block has logged that nothing says whether it is released
            say("E", tag, now(), "BrokerUnavailable")
            call(tag, action, function)
    except EmbedlogError as error:
        say("E", tag, now(), type(error).__name__)
        if type(error).__name__ in UNKNOWN:
            call(tag, action, function)
    else:
        if fails or not options["accept_linger_ms"]:  # else nothing says whether it is accepted
            say("E", tag, now(), ENDS[state(job)])

def handle(job, rng):
    tag, choice = handed(job), rng.choice(CHOICES)
    if choice in ("block", "fail"):
        block(job, tag, choice == "fail")
    elif choice == "release":
        # The last one that counts is a rejection.
        counted = "release" if job.deliveries < options["max_deliveries"] else "reject"
        delay_ms = rng.choice([0, 50, 300])
        call(tag, counted, lambda: job.release(delay_ms))
    elif choice == "uncounted":
        call(tag, "uncounted", lambda: job.release(counted=False))
    elif choice == "reject":
        call(tag, "reject", lambda: job.reject("planned"))
    elif choice in ("drop", "renewed"):
        if choice == "renewed":
            call(tag, "renew", job.renew)
        # Its lock runs out.
    else:
        if choice == "renew":
            call(tag, "renew", job.renew)
        if choice == "hold":
            asked_to_close.wait(rng.random() * 1.5 * options["lock_ms"] / 1000)
        call(tag, "accept", job.accept)

def work(queue, number, until):
    rng = random.Random(f"{name}.{number}")
    while not until():
        try:
            job = queue.take(timeout_ms=200, default=None)
            if job is not None:
                handle(job, rng)
        except Closed:
            return
        except EmbedlogError as error:
            say("X", type(error).__name__)

def run(threads, until):
    with embedlog.open(path, **settings) as log:
        with log.queue("jobs", **opened) as queue:
            threading.Thread(target=listen, args=[queue, queue.stop], daemon=True).start()
            say("ready")
            until = until(log)
            working = [threading.Thread(target=work, args=[queue, each, until]) for each in range(threads)]
            for each in working:
                each.start()
            for each in working:
                each.join()
"""
)

THREADS = _THREADED + "\nrun(3, lambda log: asked_to_close.is_set)\n"
PROCESS = _THREADED + "\nrun(1, lambda log: asked_to_close.is_set)\n"
DRAIN = (
    _THREADED
    + """
def finished(log):
    def check():
        described = log.backend.share_coordinator.describe_share_group("g", "jobs").partitions
        return not any(each.waiting or each.locked or each.delayed for each in described)
    return check

run(3, finished)
"""
)
TASKS = (
    _COMMON
    + """
async def call(tag, action, function):
    while True:
        say("B", tag, action, now())
        try:
            await function()
        except EmbedlogError as error:
            say("E", tag, now(), type(error).__name__)
            if type(error).__name__ in UNKNOWN:
                continue
            return False
        say("E", tag, now(), "ok")
        return True

async def block(job, tag, fails):
    action = "accept" if not fails else "release" if job.deliveries < options["max_deliveries"] else "reject"
    function = {"accept": job.accept, "release": job.release, "reject": lambda: job.reject("last")}[action]
    say("B", tag, action, now())
    try:
        async with job:
            if fails:
                raise Planned("planned")
    except Planned:
        if state(job) in ENDS:
            say("E", tag, now(), ENDS[state(job)])
        else:  # the block has logged that nothing says whether it is released
            say("E", tag, now(), "BrokerUnavailable")
            await call(tag, action, function)
    except EmbedlogError as error:
        say("E", tag, now(), type(error).__name__)
        if type(error).__name__ in UNKNOWN:
            await call(tag, action, function)
    else:
        if fails or not options["accept_linger_ms"]:  # else nothing says whether it is accepted
            say("E", tag, now(), ENDS[state(job)])

async def handle(job, rng):
    tag, choice = handed(job), rng.choice(CHOICES)
    if choice in ("block", "fail"):
        await block(job, tag, choice == "fail")
    elif choice == "release":
        counted = "release" if job.deliveries < options["max_deliveries"] else "reject"
        delay_ms = rng.choice([0, 50, 300])
        await call(tag, counted, lambda: job.release(delay_ms))
    elif choice == "uncounted":
        await call(tag, "uncounted", lambda: job.release(counted=False))
    elif choice == "reject":
        await call(tag, "reject", lambda: job.reject("planned"))
    elif choice in ("drop", "renewed"):
        if choice == "renewed":
            await call(tag, "renew", job.renew)
    else:
        if choice == "renew":
            await call(tag, "renew", job.renew)
        if choice == "hold":
            await asyncio.sleep(rng.random() * 1.5 * options["lock_ms"] / 1000)
        await call(tag, "accept", job.accept)

async def work(queue, number):
    rng = random.Random(f"{name}.{number}")
    while not asked_to_close.is_set():
        try:
            job = await queue.take(timeout_ms=200, default=None)
            if job is not None:
                await handle(job, rng)
        except Closed:
            return
        except EmbedlogError as error:
            say("X", type(error).__name__)

async def main():
    loop = asyncio.get_running_loop()
    async with embedlog.aio.open(path, **settings) as log:
        async with log.queue("jobs", **opened) as queue:
            class Blocking:
                def send(self, *given, **named):
                    return asyncio.run_coroutine_threadsafe(queue.send(*given, **named), loop).result()
                def close(self):
                    pass  # tasks end by themselves
            threading.Thread(target=listen, args=[Blocking(), lambda: None], daemon=True).start()
            say("ready")
            await asyncio.gather(*(work(queue, each) for each in range(4)))

asyncio.run(main())
"""
)

KINDS = (THREADS, TASKS, PROCESS)


class Workers:
    """Starts workers, collects what they say, and steps their wall clock."""

    def __init__(
        self, path: Path, rules: Rules, *, prefetch: int, accept_linger_ms: int, shared: bool
    ) -> None:
        self.path = path
        self.facts = Facts()  # guarded by _changed
        self.running: list[Program] = []
        given = {"prefetch": prefetch, "accept_linger_ms": accept_linger_ms, "shared": shared}
        self._options = json.dumps({**rules._asdict(), **given})
        self._names: dict[int, str] = {}  # pid -> name
        self._said = 0
        self._changed = threading.Condition()
        self._listeners: list[threading.Thread] = []
        self._clock = path.with_name(f"{path.name}.clock")
        self._latest_ms = 0
        self.step(0)

    def step(self, wall_ms: int) -> None:
        """Set the wall clock so far from the machine's."""
        self._latest_ms = max(self._latest_ms, wall_ms)
        with open(self._clock, "r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("<q", wall_ms))

    def step_past_all(self) -> None:
        """Set the wall clock later than it ever was, so that what was delayed is due."""
        self.step(self._latest_ms + 3_600_000)

    def start(self, code: str) -> Program:
        """Start one more; it has the queue open on return."""
        name = f"w{len(self._listeners)}"
        errors = self.path.with_name(f"{name}.errors")
        worker = Program(code, self.path, name, self._options, errors=errors)
        self.running.append(worker)
        self._names[worker.pid] = name
        line = worker.line()
        assert line == "ready", line
        listener = threading.Thread(target=self._listen, args=[worker])
        listener.start()
        self._listeners.append(listener)
        return worker

    def wait_for(self, lines: int, most_s: float) -> None:
        """Wait until the workers have said that many more lines, or for so long."""
        with self._changed:
            wanted = self._said + lines
            self._changed.wait_for(lambda: self._said >= wanted, most_s)

    def wait_until_sent(self, jobs: int, most_s: float) -> None:
        """Wait until so many jobs were sent, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.facts.sent) >= jobs, most_s)

    def end(self, worker: Program, how: str) -> None:
        """Kill a worker, or tell it "close" or "drop"; and reap it."""
        self.running.remove(worker)
        with self._changed:
            self.facts.ended[self._names[worker.pid]] = time.monotonic_ns()
        if how == "kill":
            worker.process.send_signal(signal.SIGKILL)
        else:
            worker.say(how)
        assert worker.process.wait() == (-signal.SIGKILL if how == "kill" else 0), worker._said()
        _close_input(worker)

    def drain(self) -> None:
        """Have one worker work off what is there, and collect all that was said."""
        worker = self.start(DRAIN)
        self.running.remove(worker)
        assert worker.process.wait() == 0, worker._said()
        _close_input(worker)
        for listener in self._listeners:
            listener.join()

    def owner(self) -> Program | None:
        """The worker that owns the directory now, if one of them does."""
        return next((each for each in self.running if owned(each.pid, self.path)), None)

    def kill(self) -> None:
        """End what a failed test has left, and close the pipes."""
        for worker in self.running:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            _close_input(worker)
        for listener in self._listeners:
            listener.join()

    def _listen(self, worker: Program) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            with self._changed:
                if line.endswith("\n"):  # one that was killed leaves half a line at most
                    self.facts.add(line.rstrip("\n"))
                self._said += 1
                self._changed.notify_all()
        worker.process.stdout.close()


def _close_input(worker: Program) -> None:
    assert worker.process.stdin is not None
    worker.process.stdin.close()


def letters(log: embedlog.Log) -> list[Letter]:
    """The dead letters of a log."""
    if f"dlq.{TOPIC}" not in log.topics():
        return []
    found = []
    for record in log.read(f"dlq.{TOPIC}"):
        headers = {name: (value or b"").decode() for name, value in record.headers}
        assert headers["embedlog.origin_topic"] == TOPIC
        assert headers["embedlog.group"] == GROUP
        place = int(headers["embedlog.origin_partition"]), int(headers["embedlog.origin_offset"])
        deliveries = int(headers["embedlog.deliveries"])
        value = (record.value or b"").decode()
        found.append(Letter(value, place, deliveries, headers["embedlog.error"]))
    return found


def run(path: Path, seed: object, jobs: int, events: int, processes: int) -> tuple[Workers, Rules]:
    """Random kills, closes, stops and steps of the clock while jobs are sent and worked off.

    processes: that share the log; a single one has it alone.
    """
    rng = random.Random(str(seed))
    rules = Rules(rng.choice([300, 1_000]), rng.choice([2, 5]), rng.random() < 0.5)
    workers = Workers(
        path,
        rules,
        prefetch=rng.choice([1, 10, 100]),
        accept_linger_ms=rng.choice([0, 0, 50]),
        shared=processes > 1,
    )
    try:
        for _ in range(processes):
            workers.start(rng.choice(KINDS))
        for number in range(events):
            each = max(1, jobs // events)
            rng.choice(workers.running).say(f"send {each}")
            workers.wait_for(rng.randrange(each * 4), 2)
            victim = workers.owner() if number % 2 == 0 else None
            _disturb(rng, workers, victim or rng.choice(workers.running), rules.lock_ms)
        while (missing := jobs - len(workers.facts.sent)) > 0:
            workers.running[0].say(f"send {missing}")
            workers.wait_until_sent(jobs, 10)
        workers.step_past_all()
        while workers.running:
            workers.end(workers.running[0], "close")
        workers.drain()
    finally:
        workers.kill()
    return workers, rules


def _disturb(rng: random.Random, workers: Workers, victim: Program, lock_ms: int) -> None:
    action = rng.choice(["kill", "kill", "close", "drop", "stop", "stop", "step", "none"])
    if action in ("kill", "close", "drop"):
        workers.end(victim, action)
        workers.start(rng.choice(KINDS))
    elif action == "stop":
        victim.process.send_signal(signal.SIGSTOP)
        workers.wait_for(1 << 60, rng.choice([0.3, 2]) * lock_ms / 1000)
        victim.process.send_signal(signal.SIGCONT)
    elif action == "step":
        workers.step(rng.choice([-1, 1]) * rng.choice([1_000, 60_000, 86_400_000]))
