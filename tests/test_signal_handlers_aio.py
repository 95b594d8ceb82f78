"""A plain signal handler interrupts each public method of embedlog.aio: what is no coroutine it calls itself,
and it begins tasks for the rest. Nothing waits for ever, and the log stays sound."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import interrupt

import embedlog
from embedlog import aio
from embedlog.errors import EmbedlogError
from embedlog.model import TopicPartition
from embedlog.store.verify import verify_log

TP = TopicPartition("t", 0)


class Clients:
    """A log, and what its program may have of it, each made when it is needed."""

    def __init__(self, log: aio.Log, path: Path) -> None:
        self.log = log
        self.path = path
        self.copies = itertools.count()
        self.topic = log.topic("t")
        self.group = log.group("g")
        self.made: dict[str, Any] = {}

    async def get(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = await MAKERS[name](self)
        return self.made[name]


async def _consumer(clients: Clients) -> Any:
    consumer = clients.log.consumer("t", group="g", auto_commit=False)
    while not await consumer.poll(100):
        pass
    return consumer


async def _job(clients: Clients) -> Any:
    return await (await clients.get("queue")).take(60_000)


async def _entered(clients: Clients) -> Any:
    return await clients.log.transaction("tx").__aenter__()


async def _made(thing: Any) -> Any:
    return thing


MAKERS: dict[str, Callable[[Clients], Awaitable[Any]]] = {
    "producer": lambda clients: _made(clients.log.producer()),
    "topic_producer": lambda clients: _made(clients.topic.producer()),
    "consumer": _consumer,
    "queue": lambda clients: _made(clients.log.queue("jobs")),
    "job": _job,
    "transaction": _entered,
}

Call = Callable[[Clients], Any]


def _of(name: str, *methods: str) -> Call:
    """Calls methods of a client, one after the other, with their ARGUMENTS."""

    async def call(clients: Clients) -> None:
        client = await clients.get(name)
        for method in methods:
            done = getattr(client, method)(*ARGUMENTS.get(f"{name}.{method}", ARGUMENTS.get(method, ())))
            if method != "__aiter__" and inspect.isawaitable(done):
                await done

    return call


async def _all(records: AsyncIterator[Any]) -> list[Any]:
    return [record async for record in records]


async def _run(clients: Clients) -> None:
    queue = await clients.get("queue")

    async def handle(job: Any) -> None:
        queue.stop()

    await queue.send(b"j")
    await queue.run(handle)


async def _commit_offsets(clients: Clients) -> None:
    await (await clients.get("transaction")).commit_offsets(await clients.get("consumer"))


async def _wakeup(clients: Clients) -> None:
    consumer = await clients.get("consumer")
    consumer.wakeup()
    await consumer.poll(1)


_END = (None, None, None)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "__aexit__": _END,
    "assign": ([TP],),
    "committed": (TP,),
    "pause": ([TP],),
    "position": (TP,),
    "resume": ([TP],),
    "seek": (TP, 0),
    "seek_to_beginning": ([TP],),
    "seek_to_committed": ([TP],),
    "seek_to_end": ([TP],),
    "seek_to_time": (0, [TP]),
    "poll": (20,),
    "take": (20,),
    "producer.send": ("t", b"s"),
    "topic_producer.send": (b"s",),
    "queue.send": (b"j",),
    "reject": ("no",),
    "append": ("t", b"x"),
    "append_many": ("t", [b"x", b"y"]),
}

# Each public method, called. What a test for every method leaves out is named with the reason.
CALLS: dict[type, dict[str, Call | str]] = {
    aio.Log: {
        "abort_transaction": lambda c: c.log.abort_transaction("tx"),
        "alter_topic": lambda c: c.log.alter_topic("t", retention_ms=1_000_000),
        "append": lambda c: c.log.append("t", b"a", flush=True),
        "append_many": lambda c: c.log.append_many("t", (b"%d" % n for n in range(3)), flush=True),
        "backup": lambda c: c.log.backup(c.path / f"backup{next(c.copies)}"),
        "clients": lambda c: c.log.clients(),
        "close": lambda c: c.log.close(),
        "compact": lambda c: c.log.compact("keyed"),
        "consumer": lambda c: c.log.consumer("t", group="other"),
        "create_partitions": lambda c: c.log.create_partitions("t", 2),
        "create_topic": lambda c: c.log.create_topic("new"),
        "delete_records": lambda c: c.log.delete_records("t", 0, 1),
        "delete_topic": lambda c: c.log.delete_topic("t"),
        "describe_groups": lambda c: c.log.describe_groups(),
        "describe_topic": lambda c: c.log.describe_topic("t"),
        "flush": lambda c: c.log.flush(),
        "group": lambda c: c.log.group("g"),
        "groups": lambda c: c.log.groups(),
        "health": lambda c: c.log.health(),
        "offset_for_time": lambda c: c.log.offset_for_time("t", 0, 0),
        "offsets": lambda c: c.log.offsets("t"),
        "offsets_before": lambda c: c.log.offsets_before("t", 0, -1, 5),
        "opened": lambda c: c.log.opened(),
        "producer": lambda c: c.log.producer(),
        "queue": lambda c: c.log.queue("more"),
        "read": lambda c: _all(c.log.read("t")),
        "read_arrow": lambda c: _all(c.log.read_arrow("t")),
        "read_at": lambda c: c.log.read_at("t", 0, 0),
        "read_values": lambda c: _all(c.log.read_values("t")),
        "reopen": lambda c: c.log.reopen("t", 0),
        "topic": lambda c: c.log.topic("t"),
        "topics": lambda c: c.log.topics(),
        "traced_classes": "for tracing, before the log is used",
        "transaction": lambda c: c.log.transaction("tx"),
        "transactions": lambda c: c.log.transactions(),
        "__aenter__": lambda c: c.log.__aenter__(),
        "__aexit__": lambda c: c.log.__aexit__(*_END),
    },
    aio.Topic: {
        "append": lambda c: c.topic.append(b"a", flush=True),
        "append_many": lambda c: c.topic.append_many([b"a", b"b"], flush=True),
        "consumer": lambda c: c.topic.consumer(),
        "describe": lambda c: c.topic.describe(),
        "offset_for_time": lambda c: c.topic.offset_for_time(0, 0),
        "offsets": lambda c: c.topic.offsets(),
        "producer": lambda c: c.topic.producer(),
        "queue": lambda c: c.topic.queue(),
        "read": lambda c: _all(c.topic.read()),
        "read_at": lambda c: c.topic.read_at(0, 0),
    },
    aio.Producer: {
        name: _of("producer", *methods)
        for name, *methods in (
            ("close", "close"),
            ("flush", "send", "flush"),
            ("send", "send"),
            ("__aenter__", "__aenter__"),
            ("__aexit__", "__aexit__"),
        )
    },
    aio.TopicProducer: {
        name: _of("topic_producer", *methods)
        for name, *methods in (
            ("close", "close"),
            ("flush", "send", "flush"),
            ("send", "send"),
            ("__aenter__", "__aenter__"),
            ("__aexit__", "__aexit__"),
        )
    },
    aio.Consumer: {
        "in_transaction": "what Transaction.commit_offsets calls",
        "wakeup": _wakeup,
        "__aiter__": _of("consumer", "seek", "__aiter__"),
        "__anext__": _of("consumer", "seek", "__anext__"),
    }
    | {
        name: _of("consumer", name)
        for name in (
            *("__aenter__", "__aexit__", "assign", "assignment", "close", "commit", "committed"),
            *("estimated_lag", "held_back", "lag", "pause", "paused", "poll", "position", "resume", "seek"),
            *("seek_to_beginning", "seek_to_committed", "seek_to_end", "seek_to_time"),
        )
    },
    aio.Queue: {
        "close": _of("queue", "close"),
        "run": _run,
        "send": _of("queue", "send"),
        "stop": _of("queue", "stop"),
        "take": _of("queue", "take"),
        "__aenter__": _of("queue", "__aenter__"),
        "__aexit__": _of("queue", "__aexit__"),
        "__aiter__": _of("queue", "__aiter__"),
        "__anext__": _of("queue", "send", "__anext__"),
    },
    aio.Job: {
        name: _of("job", name) for name in ("accept", "reject", "release", "renew", "__aenter__", "__aexit__")
    },
    aio.Transaction: {
        "append": _of("transaction", "append"),
        "append_many": _of("transaction", "append_many"),
        "commit_offsets": _commit_offsets,
        "opened": _of("transaction", "opened"),
        "__aenter__": lambda c: c.log.transaction("tx2").__aenter__(),
        "__aexit__": _of("transaction", "append", "__aexit__"),
    },
    aio.ConsumerGroup: {
        "delete": lambda c: c.group.delete(),
        "delete_offsets": lambda c: c.group.delete_offsets("t"),
        "describe": lambda c: c.group.describe(),
        "members": lambda c: c.group.members(),
        "offsets": lambda c: c.group.offsets(),
        "oldest_unread_ms": lambda c: c.group.oldest_unread_ms(),
        "opened": lambda c: c.group.opened(),
        "reset": lambda c: c.group.reset("t", to="earliest"),
    },
}
_SPECIAL = ("__aenter__", "__aexit__", "__aiter__", "__anext__")
METHODS = [(kind, name) for kind, calls in CALLS.items() for name, call in calls.items() if callable(call)]
NAMES = [f"{kind.__name__}.{name}" for kind, name in METHODS]

# In the handler: what they return is awaited in a task.
ACTIONS: dict[str, Callable[[Clients, Call, asyncio.Task[Any]], Any]] = {
    "close": lambda clients, call, task: clients.log.close(),
    "again": lambda clients, call, task: call(clients),
    "cancel": lambda clients, call, task: asyncio.get_running_loop().call_soon_threadsafe(task.cancel),
    "stop": lambda clients, call, task: [
        client.wakeup() if name == "consumer" else client.stop()
        for name, client in clients.made.items()
        if name in ("consumer", "queue")
    ],
}


def test_the_table_has_every_public_method() -> None:
    for kind, calls in CALLS.items():
        public = {
            name
            for name in dir(kind)
            if callable(getattr(kind, name)) and (name in _SPECIAL or not name.startswith("_"))
        }
        assert calls.keys() == public, kind


async def _finish(result: Any) -> None:
    with contextlib.suppress(EmbedlogError, StopAsyncIteration, asyncio.CancelledError):
        if inspect.isawaitable(result):
            await result


async def _open(path: Path) -> Clients:
    log = await aio.open(path)
    for topic in ("t", "jobs", "keyed"):
        await log.create_topic(topic, **({"cleanup_policy": "compact"} if topic == "keyed" else {}))
        await log.append(topic, b"first", key=b"k")
    return Clients(log, path.parent)


def in_a_loop(path: Path, call: Call, action: str, point: int) -> bool:
    """Interrupt a call at a point of it. False if it has fewer points."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        clients = runner.run(_open(path))
        runner.run(_finish(_called(call, clients)))  # what is made at the first use is made
        begun: list[asyncio.Task[Any]] = []
        ended = []

        async def work() -> None:
            begun.append(asyncio.current_task())  # type: ignore[arg-type]
            await _finish(_called(call, clients))
            ended.append(True)

        def handler() -> None:
            if not begun or ended:  # asyncio begins or ends
                return
            with contextlib.suppress(EmbedlogError):
                result = ACTIONS[action](clients, call, begun[0])
                if inspect.isawaitable(result):
                    loop.call_soon_threadsafe(lambda: begun.append(loop.create_task(_finish(result))))

        reached = True
        with contextlib.suppress(asyncio.CancelledError):
            reached = interrupt(point, lambda: runner.run(work()), handler)

        async def end() -> None:
            await asyncio.wait(begun)
            await clients.log.close()

        runner.run(end())
    report = verify_log(path)
    assert report.ok, report
    with embedlog.open(path) as log:
        assert log.recovery.clean, "the close has completed"
    return reached


async def _called(call: Call, clients: Clients) -> None:
    result = call(clients)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_handler_interrupts_methods(tmp_path: Path, kind: type) -> None:
    """A few of each class, at a few points; the soak goes through all."""
    chance = random.Random(kind.__name__)
    calls = [call for call in CALLS[kind].values() if callable(call)]
    for number, call in enumerate(chance.sample(calls, 3)):
        action = chance.choice(list(ACTIONS))
        in_a_loop(tmp_path / str(number), call, action, int(2 ** chance.uniform(4, 10)))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_handler_interrupts_a_method_at_each_point(
    tmp_path: Path, method: tuple[type, str], action: str
) -> None:
    call = CALLS[method[0]][method[1]]
    assert callable(call)
    for point in itertools.count(0, 7):
        if not in_a_loop(tmp_path / str(point), call, action, point):
            break
