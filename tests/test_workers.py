"""Workers: declared functions that are called with jobs, in threads and event loops, and `embedlog work`.

The command runs in real processes, which get real signals.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from cli_commands import spawn

import embedlog
from embedlog import Log
from embedlog.errors import Closed, InvalidArgument, InvalidGroup, InvalidType, LockLost, UnknownSetting
from embedlog.runtime.closing import Closing

Started = Callable[..., subprocess.Popen[bytes]]


def buried(log: Log) -> bytes | None:
    """The value of the first dead letter. It is written in the background."""
    with log.queue("dlq.jobs", dead_letter_topic=None) as letters:
        letter = letters.take(timeout_ms=math.inf)
        return letter.value


def left(log: Log, topic: str = "jobs", **options: Any) -> dict[bytes | None, int]:
    """The jobs that nobody has finished, with the deliveries of each, this one included."""
    found = {}
    with log.queue(topic, **options) as queue:
        while (job := queue.take(default=None)) is not None:
            found[job.value] = job.deliveries
    return found


# -- declaring ---------------------------------------------------------------------------------------------


def test_a_declared_function_stays_what_it_is() -> None:
    def mail(job: str) -> str:
        """Sends it."""
        return f"sent {job}"

    assert embedlog.worker("jobs", concurrency=8)(mail) is mail
    assert mail("1") == "sent 1"
    assert mail.__doc__ == "Sends it."


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": 5}, InvalidType),
        ({"group": ""}, InvalidGroup),
        ({"concurrency": 0}, InvalidArgument),
        ({"concurrency": "8"}, InvalidType),
        ({"lock": 5}, UnknownSetting),
    ],
)
def test_a_declaration_is_checked(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        embedlog.worker(**{"topic": "jobs", **options})


def test_only_a_function_can_be_declared() -> None:
    for other in (b"mail", print):  # a builtin function cannot bear the declaration
        with pytest.raises(InvalidType, match="a worker is a function"):
            embedlog.worker("jobs")(other)  # type: ignore[type-var]


def test_only_declared_functions_run(log: Log) -> None:
    def mail(job: embedlog.Job) -> None:
        raise AssertionError

    for functions in ((mail,), (), ("mail",)):
        with pytest.raises(InvalidArgument):
            log.run_workers(*functions)
    with pytest.raises(UnknownSetting):
        log.run_workers(embedlog.worker("jobs")(mail), thread=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidType):
        log.run_workers(embedlog.worker("jobs")(mail), background=1)  # type: ignore[arg-type]
    assert log.topics() == []


def test_two_workers_of_a_topic_need_two_groups(log: Log) -> None:
    @embedlog.worker("jobs")
    def mail(job: embedlog.Job) -> None: ...

    @embedlog.worker("jobs")
    def count(job: embedlog.Job) -> None: ...

    with pytest.raises(InvalidArgument, match="give each its group"):
        log.run_workers(mail, count)


# -- in this process ---------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(params=["function", "coroutine function"])
def as_worker(request: pytest.FixtureRequest, pool: ThreadPoolExecutor) -> Callable[..., Any]:
    """as_worker(work, topic, **options): declares a worker that calls work(job), in a thread in any case."""

    def declare(work: Callable[[Any], object], *args: Any, **options: Any) -> Any:
        if request.param == "function":

            def function(job: Any) -> None:
                work(job)

            return embedlog.worker(*args, **options)(function)

        async def coroutine(job: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, work, job)

        return embedlog.worker(*args, **options)(coroutine)

    return declare


def test_workers_do_jobs_at_once(log: Log, as_worker: Callable[..., Any]) -> None:
    together = threading.Barrier(9)
    done: list[Any] = []

    def work(job: Any) -> None:
        together.wait()  # eight of them, and the test
        done.append(job.value)

    log.create_topic("jobs")
    log.append_many("jobs", [b"%d" % i for i in range(8)])
    with log.run_workers(as_worker(work, "jobs", concurrency=8), background=True):
        together.wait()
    assert Counter(done) == {b"%d" % i: 1 for i in range(8)}
    assert left(log) == {}


def test_no_more_at_once_than_declared(log: Log, as_worker: Callable[..., Any]) -> None:
    lock, running, most, done = threading.Lock(), 0, 0, threading.Semaphore(0)

    def work(job: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        done.release()

    log.create_topic("jobs")
    log.append_many("jobs", [b"x"] * 200)
    with log.run_workers(as_worker(work, "jobs", concurrency=8), background=True, concurrency=3):
        for _ in range(200):
            done.acquire()
    assert most <= 3
    assert left(log) == {}


def test_each_worker_has_its_topic_its_group_and_its_values(log: Log, as_worker: Callable[..., Any]) -> None:
    got: list[Any] = []
    done = threading.Semaphore(0)

    def work(name: str) -> Callable[[Any], None]:
        def see(job: Any) -> None:
            got.append((name, job.key, job.value))
            done.release()

        return see

    log.queue("texts").send(b"bytes")
    log.topic("orders", dict, key_type=str).queue().send({"total": 5}, key="alice")
    workers = [
        as_worker(work("a"), "texts", str, group="a"),
        as_worker(work("b"), "texts", group="b"),
        as_worker(work("orders"), "orders", dict, key_type=str, max_deliveries=1),
    ]
    with log.run_workers(*workers, background=True):
        for _ in range(3):
            done.acquire()
    assert sorted(got, key=str) == [
        ("a", None, "bytes"),
        ("b", None, b"bytes"),
        ("orders", "alice", {"total": 5}),
    ]


def test_a_failure_is_tried_again_and_then_a_dead_letter(log: Log, as_worker: Callable[..., Any]) -> None:
    counts: Counter[Any] = Counter()
    done = threading.Event()

    def work(job: Any) -> None:
        counts[job.value] += 1
        if job.value == b"last":
            done.set()
        elif job.value == b"poison" or job.deliveries == 1:
            raise ValueError("not now")

    options = {"max_deliveries": 3, "backoff_ms": 0, "ordered_by_key": True}
    with log.run_workers(as_worker(work, "jobs", **options), background=True):
        queue = log.queue("jobs", **options)
        for value in (b"poison", b"flaky", b"last"):
            queue.send(value, key=b"k")
        done.wait()
    assert counts == {b"poison": 3, b"flaky": 2, b"last": 1}
    assert buried(log) == b"poison"
    assert left(log) == {}


def test_closing_waits_for_what_is_in_hand(log: Log, path: Path, as_worker: Callable[..., Any]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(job: Any) -> None:
        begun.set()
        go_on.wait()

    log.queue("jobs").send(b"in hand")
    log.run_workers(as_worker(work, "jobs"), background=True)
    begun.wait()
    closing = threading.Thread(target=log.close)
    closing.start()
    go_on.set()
    closing.join()
    with embedlog.open(path) as again:
        assert left(again) == {}


def test_run_workers_returns_when_the_log_is_closed(log: Log, as_worker: Callable[..., Any]) -> None:
    done = threading.Event()
    log.queue("jobs").send(b"work")
    worker = as_worker(lambda job: done.set(), "jobs")
    running = threading.Thread(target=log.run_workers, args=[worker])
    running.start()
    done.wait()
    log.close()
    running.join()


def test_run_workers_returns_when_the_log_is_closed_before_it_knows_of_them(
    log: Log, as_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clients(WeakSet[Closing]):
        def add(self, item: Closing) -> None:
            log.close()

    worker = as_worker(lambda job: None, "jobs")
    log.create_topic("jobs")
    monkeypatch.setattr(log, "_clients", Clients())
    running = threading.Thread(target=log.run_workers, args=[worker], daemon=True)
    running.start()
    running.join(30)
    assert not running.is_alive()


@pytest.mark.parametrize("refused", ["embedlog-worker-jobs", "embedlog-workers"])
def test_workers_without_a_thread_do_not_hold_up_a_close(
    log: Log, as_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        original(thread)

    original = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    log.queue("jobs").send(b"work")
    with pytest.raises(RuntimeError) as caught:  # which refers to the workers
        log.run_workers(as_worker(lambda job: None, "jobs"))
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive(), caught


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_program_ends_all_workers(
    log: Log, path: Path, ends: type[BaseException]
) -> None:
    def work(job: embedlog.Job) -> None:
        raise ends

    log.queue("jobs").send(b"work")
    with pytest.raises(ends):
        log.run_workers(embedlog.worker("jobs", concurrency=3)(work))
    assert left(log) == {b"work": 1}


def test_release_gives_back_what_is_in_hand(log: Log, as_worker: Callable[..., Any]) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def work(job: Any) -> None:
        begun.release()
        go_on.wait()

    log.create_topic("jobs")
    log.append_many("jobs", [b"1", b"2", b"3"])
    workers = log.run_workers(as_worker(work, "jobs", concurrency=2), background=True)
    for _ in range(2):
        begun.acquire()
    workers.release()
    try:
        assert left(log) == {b"1": 1, b"2": 1, b"3": 1}
    finally:
        go_on.set()
    workers.wait()


def test_a_coroutine_settles_its_job_itself(log: Log) -> None:
    errors: list[Exception] = []
    done = threading.Event()

    @embedlog.worker("jobs")
    async def work(job: embedlog.aio.Job) -> None:
        await job.renew()
        if job.value == b"no":
            await job.reject("said no")
        else:
            await job.accept()
        try:
            await job.accept()
        except LockLost as error:
            errors.append(error)
        if len(errors) == 2:
            done.set()

    queue = log.queue("jobs")
    queue.send(b"yes")
    queue.send(b"no")
    with log.run_workers(work, background=True):
        done.wait()
    assert buried(log) == b"no"
    assert left(log) == {}


def test_an_object_can_be_a_worker(log: Log) -> None:
    class Mailer:
        def __init__(self) -> None:
            self.done = threading.Event()

        def __call__(self, job: embedlog.Job) -> None:
            self.done.set()

    mailer = embedlog.worker("jobs")(Mailer())
    log.queue("jobs").send(b"work")
    with log.run_workers(mailer, background=True):
        mailer.done.wait()
    assert left(log) == {}


def test_a_forked_child_leaves_its_parents_jobs_alone(path: Path) -> None:
    with embedlog.open(path, shared=True) as log, log.queue("jobs") as queue:
        queue.send(b"work")
        job = queue.take(timeout_ms=math.inf)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for refused in (job.accept, job.release, queue.take, lambda: next(queue)):
                    try:
                        refused()
                    except embedlog.ForkedHandle:
                        continue
                    os._exit(2)
                queue.send(b"from the child")
                with log.queue("jobs") as own:
                    again = own.take(timeout_ms=math.inf)
                    assert again.value == b"from the child"
                    again.accept()
                queue.close()
                log.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        job.accept()
        assert queue.take(default=None) is None


# -- the command -------------------------------------------------------------------------------------------

MODULE = """
import asyncio, os, time
import embedlog

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@embedlog.worker("jobs", str, concurrency=2)
def mail(job):
    say("begun", job.value, job.deliveries)
    while os.path.exists("wait"):
        time.sleep(0.01)
    say("done", job.value)

@embedlog.worker("jobs", str, concurrency=2)
async def tasks(job):
    say("begun", job.value, job.deliveries)
    while os.path.exists("wait"):
        await asyncio.sleep(0.01)
    say("done", job.value)

def plain(job): ...
"""


def send(path: Path, *values: bytes) -> None:
    with embedlog.open(path) as log:
        for value in values:
            log.queue("jobs").send(value)


@pytest.fixture
def work(tmp_path: Path, path: Path) -> Iterator[Started]:
    """work(*arguments) starts `embedlog work ... log` in tmp_path."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "mails.py").write_text(MODULE)

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(spawn(["work", *arguments, str(path), "--create"], tmp_path))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    read = process.stdout.readline().decode()
    if not read:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read().decode())
    return read.rstrip("\n")


@pytest.mark.parametrize("function", ["mail", "tasks"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_finish_what_is_in_hand(
    work: Started, tmp_path: Path, path: Path, function: str, how: signal.Signals
) -> None:
    (tmp_path / "wait").touch()
    send(path, b"1", b"2", b"3")
    process = work(f"mails:{function}")
    assert sorted(line(process) for _ in range(3)) == [
        "begun 1 1",
        "begun 2 1",
        f"working     mails:{function} · {path} · process {process.pid}",
    ]
    process.send_signal(how)
    assert line(process).startswith("stopping    ")
    (tmp_path / "wait").unlink()
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert sorted(out.decode().splitlines()) == ["done 1", "done 2", "stopped     nothing in hand"]
    with embedlog.open(path) as log:
        assert left(log) == {b"3": 1}


@pytest.mark.parametrize("function", ["mail", "tasks"])
def test_a_second_signal_gives_it_back(work: Started, tmp_path: Path, path: Path, function: str) -> None:
    (tmp_path / "wait").touch()
    send(path, b"1", b"2", b"3")
    process = work(f"mails:{function}", "--json")
    *begun, working = sorted(line(process) for _ in range(3))
    assert begun == ["begun 1 1", "begun 2 1"]
    assert json.loads(working) == {
        "working": True,
        "functions": [f"mails:{function}"],
        "directory": str(path),
        "pid": process.pid,
    }
    process.send_signal(signal.SIGTERM)
    assert json.loads(line(process)) == {"stopping": True}
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert json.loads(out) == {"stopped": True, "given_back": True}
    with embedlog.open(path) as log:
        assert left(log) == {b"1": 1, b"2": 1, b"3": 1}


def test_the_job_of_a_killed_worker_goes_to_another(work: Started, tmp_path: Path, path: Path) -> None:
    (tmp_path / "wait").touch()
    (tmp_path / "mails.py").write_text(MODULE.replace("concurrency=2", "concurrency=2, lock_ms=500"))
    send(path, b"1")
    killed = work("mails:mail")
    assert sorted(line(killed) for _ in range(2))[0] == "begun 1 1"
    killed.kill()
    killed.wait()
    (tmp_path / "wait").unlink()
    other = work("mails:mail")
    assert sorted(line(other) for _ in range(3))[:2] == ["begun 1 2", "done 1"]
    other.terminate()
    assert other.wait() == 0
    with embedlog.open(path) as log:
        assert left(log) == {}


def test_a_worker_that_stood_still_has_lost_its_job(work: Started, tmp_path: Path, path: Path) -> None:
    (tmp_path / "wait").touch()
    with embedlog.open(path, shared=True) as log, log.queue("jobs") as queue:
        (tmp_path / "mails.py").write_text(MODULE.replace("concurrency=2", "lock_ms=300"))
        process = work("mails:mail")
        line(process)
        queue.send(b"1")
        assert line(process) == "begun 1 1"
        process.send_signal(signal.SIGSTOP)
        job = queue.take(timeout_ms=math.inf)
        assert job.deliveries == 2
        process.send_signal(signal.SIGCONT)
        (tmp_path / "wait").unlink()
        assert line(process) == "done 1"
        process.terminate()
        _, errors = process.communicate()
        assert process.returncode == 0
        assert b"it may be done again" in errors
        job.accept()
        assert queue.take(default=None) is None


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("mails", "names no function"),
        ("nothing:mail", "there is no module 'nothing'"),
        ("mails:nobody", "mails has no 'nobody'"),
        ("mails:plain", "plain is not declared as a worker"),
    ],
)
def test_what_cannot_be_run_is_refused(work: Started, path: Path, function: str, said: str) -> None:
    process = work(function)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert said in errors.decode()
    assert not path.exists()


def test_a_log_that_is_not_there_or_not_shared_is_refused(tmp_path: Path, path: Path, work: Started) -> None:
    process = spawn(["work", "mails:mail", str(path)], tmp_path)
    assert b"does not exist" in process.communicate()[1]
    assert process.returncode == 2
    with embedlog.open(path):
        process = work("mails:mail")
        assert b"Open it with shared=True there" in process.communicate()[1]
        assert process.returncode == 2


def test_closed_log(log: Log) -> None:
    log.close()
    with pytest.raises(Closed):
        log.run_workers(embedlog.worker("jobs")(lambda job: None))
