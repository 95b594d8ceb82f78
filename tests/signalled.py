"""Services that get SIGTERM at some moment, whatever they do.

They are processes, forked from one that has imported embedlog, since starts take longest.

    service  opens a log, works, and closes or calls what its handler says; it tells what was acknowledged
    peer     a process of its own beside it: the owner of its log, its broker, or a client that is busy
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import itertools
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import embedlog
import embedlog.aio
from embedlog.cluster import Broker
from embedlog.errors import Closed, ConcurrentUse, EmbedlogError, QueueEmpty

_LONGEST_S: Final = 100  # then its threads are printed

TOPIC = "t"


class Service:
    """An open log and what a service does with it."""

    def __init__(self, log: embedlog.Log, name: str, told: int, over_the_wire: bool) -> None:
        self.log, self.over_the_wire = log, over_the_wire
        self.flush_each = not over_the_wire  # brokers flush as they are told to by settings
        self._name, self._told = name, told
        self._numbers = itertools.count()
        log.create_topic(TOPIC, exist_ok=True)
        log.create_topic("short", exist_ok=True)
        self.producer = log.producer()
        self.transactional = log.producer(transactional_id=f"p{name}")
        self.consumer = log.consumer(TOPIC, group=name, auto_commit=False)
        self.queue: Any = None if over_the_wire else log.queue("jobs")
        self.clients = [each for each in (self.consumer, self.producer, self.queue) if each is not None]

    def values(self, count: int = 1) -> list[bytes]:
        return [b"%s %d" % (self._name.encode(), next(self._numbers)) for _ in range(count)]

    def acknowledged(self, *values: bytes) -> None:
        os.write(self._told, b"".join(value + b"\n" for value in values))

    def append(self) -> None:
        (value,) = self.values()
        self.log.append(TOPIC, value, flush=self.flush_each)
        self.acknowledged(value)

    def append_many(self) -> None:
        values = self.values(5)
        self.log.append_many(TOPIC, iter(values), flush=self.flush_each)
        self.acknowledged(*values)

    def flush(self) -> None:
        (value,) = self.values()
        self.log.append(TOPIC, value)
        if self.flush_each:
            self.log.flush()
        self.acknowledged(value)

    def send(self) -> None:
        (value,) = self.values()
        sent = self.producer.send(TOPIC, value)
        self.producer.flush()
        sent.result()
        self.acknowledged(value)

    def transaction(self) -> None:
        (value,) = self.values()
        with self.log.transaction(f"x{self._name}") as tx:
            tx.append(TOPIC, value)
        self.acknowledged(value)

    def producer_transaction(self) -> None:
        (value,) = self.values()
        self.transactional.begin_transaction()
        self.transactional.send(TOPIC, value)
        self.transactional.commit_transaction()
        self.acknowledged(value)

    def poll(self) -> None:
        self.append()
        self.consumer.poll(5)

    def commit(self) -> None:
        self.poll()
        self.consumer.commit()

    def delete_records(self) -> None:
        end = self.log.append("short", b"short").offset
        self.log.delete_records("short", 0, end)

    def read(self) -> None:
        for _ in self.log.read(TOPIC):
            pass

    def take(self) -> None:
        if self.queue is None:
            self.commit()
            return
        self.queue.send(b"job")
        job = self.queue.take(200, default=None)
        if job is not None:
            job.accept()

    def close_all(self) -> None:
        for client in self.clients:
            client.close()
        self.log.close()

    def close_and_exit(self) -> None:
        self.log.close()
        sys.exit()

    def exit(self) -> None:
        sys.exit()

    def close(self) -> None:
        self.log.close()


Call = Callable[[Service], None]

WORKS: Final[dict[str, Call]] = {
    call.__name__: call
    for call in (
        Service.append,
        Service.append_many,
        Service.flush,
        Service.send,
        Service.transaction,
        Service.producer_transaction,
        Service.poll,
        Service.commit,
        Service.delete_records,
        Service.read,
        Service.take,
    )
}
STOPS: Final[dict[str, Call]] = {
    call.__name__: call for call in (Service.close, Service.close_all, Service.close_and_exit, Service.exit)
}
HANDLERS: Final[dict[str, Call]] = {**STOPS, **WORKS}


def _work(service: Service, work: Call, handler: Call, ready: Callable[[], None]) -> None:
    """Until a signal has come."""
    got: list[int] = []

    def handle(number: int, frame: object) -> None:
        got.append(number)
        with contextlib.suppress(EmbedlogError):
            handler(service)

    work(service)  # what it needs is imported
    signal.signal(signal.SIGTERM, handle)
    ready()
    with contextlib.suppress(Closed, ConcurrentUse, QueueEmpty), service.log:
        while not got:
            work(service)


async def _work_in_asyncio(
    where: str, service: Service, work: str, handler: Call, ready: Callable[[], None]
) -> None:
    """The same in tasks; a plain handler, or one of the loop, which closes, or calls the log beneath."""
    loop = asyncio.get_running_loop()
    log = (
        await embedlog.aio.open(where)
        if service.over_the_wire
        else await embedlog.aio.open(where, shared=True)
    )
    consumer = log.consumer(TOPIC, group=f"aio{os.getpid()}", auto_commit=False)
    got: list[int] = []
    closing: list[asyncio.Task[None]] = []

    async def once() -> None:
        (value,) = service.values()
        if work in ("poll", "commit", "read", "take"):
            await consumer.poll(5)
            await consumer.commit()
        if work in ("transaction", "producer_transaction"):
            async with log.transaction(f"aio{os.getpid()}") as tx:
                await tx.append(TOPIC, value)
        else:
            await asyncio.gather(*(log.append(TOPIC, value, flush=service.flush_each) for _ in range(5)))
        service.acknowledged(value)

    def handle(*_: object) -> None:
        got.append(1)
        if handler in STOPS.values():  # which must not raise SystemExit here
            closing.append(loop.create_task(log.close()))
        else:
            with contextlib.suppress(EmbedlogError):
                handler(service)

    await once()
    if random.random() < 0.5:
        signal.signal(signal.SIGTERM, handle)
    else:
        loop.add_signal_handler(signal.SIGTERM, handle)
    ready()
    with contextlib.suppress(Closed, ConcurrentUse):
        while not got:
            await once()
            WORKS[work](service)
    await asyncio.gather(*closing)
    await log.close()


def _serve(where: str, name: str, told: int, work: str, handler: Call, ready: Callable[[], None]) -> None:
    """A program with a broker, which its handler closes while clients are busy, then or before its log."""
    with embedlog.open(where) as log, Broker(log) as broker:
        service = Service(log, name, told, over_the_wire=False)
        ended: list[bool] = []

        def be_busy(number: int) -> None:
            with (
                contextlib.suppress(EmbedlogError),
                embedlog.open(f"kafka://{broker.bootstrap_servers}") as client,
            ):
                while not ended:
                    value = b"%s client %d %d" % (name.encode(), number, time.monotonic_ns())
                    client.append(TOPIC, value)
                    service.acknowledged(value)

        for number in range(3):
            threading.Thread(target=be_busy, args=[number], daemon=True).start()

        def close_broker(service: Service) -> None:
            broker.close()
            handler(service)

        _work(service, WORKS[work], close_broker, ready)
        ended.append(True)


def _run(
    mode: str, where: str, work: str, handler: str, name: str, told: int, ready: Callable[[], None]
) -> None:
    """A service, in its process."""
    if mode == "broker":
        _serve(where, name, told, work, HANDLERS[handler], ready)
        return
    wire = where.startswith("kafka://")
    log = embedlog.open(where) if wire or mode == "alone" else embedlog.open(where, shared=True)
    service = Service(log, name, told, wire)
    if mode.startswith("asyncio"):
        asyncio.run(_work_in_asyncio(where, service, work, HANDLERS[handler], ready))
        log.close()
    else:
        _work(service, WORKS[work], HANDLERS[handler], ready)


@contextlib.contextmanager
def _peer(where: str) -> Iterator[None]:
    """A client of a shared log that appends all the time, and takes it over when its owner ends."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException), embedlog.open(where, shared=True) as log:
            while True:
                log.append("peers", b"peer")
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _in_child(run: Callable[[], None]) -> NoReturn:
    """Run it as a program, to the end of the process."""
    faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
    code = 0
    try:
        run()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code)


def stop(mode: str, where: str, work: str, handler: str, wait_s: float, name: str, told: int) -> int:
    """Start a service, send it SIGTERM and wait for its end. Returns its exit status."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _in_child(lambda: _run(mode, where, work, handler, name, told, lambda: _say(writing)))
    os.close(writing)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, reading)
        if os.read(reading, 1):
            if mode == "owner":
                opened.enter_context(_peer(where))
            with contextlib.suppress(TimeoutError):
                signal.sigtimedwait([signal.SIGUSR2], wait_s)  # at some moment
            os.kill(pid, signal.SIGTERM)
        return os.waitpid(pid, 0)[1]


def _say(ready: int) -> None:
    os.write(ready, b"r")


def main() -> None:
    """Arguments: a mode, a log, works and handlers with commas between them, how many services, the file that
    gets what is acknowledged. Exits with the number of those that failed."""
    mode, where, works, handlers, count, acknowledged = sys.argv[1:]
    chance = random.Random(f"{mode} {works}")
    told = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    failed = 0
    for number in range(int(count)):
        work, handler = chance.choice(works.split(",")), chance.choice(handlers.split(","))
        wait_s = chance.choice((0.005, 0.03, 0.1)) * chance.random()
        name = f"{mode.replace(' ', '-')}{os.getpid()}-{number}"
        if status := stop(mode, where, work, handler, wait_s, name, told):
            print(f"{work}, {handler} in the handler: status {status}", file=sys.stderr)
            failed += 1
    sys.exit(failed)
