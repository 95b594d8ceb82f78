"""embedlog for asyncio: the same log, awaited.

    async with embedlog.aio.open("./data") as log:
        await log.append("clicks", b"...", flush=True)
        async with log.consumer("clicks", group="billing") as consumer:
            async for record in consumer: ...

`Log`, `Producer`, `Consumer`, `Transaction`, `Queue` and `Job` have the methods, arguments and errors of the
classes of the same names in `embedlog`; methods that may wait are coroutines. They work with asyncio's own
event loop and with uvloop, over a directory and over brokers.

    call that only touches memory and the page cache    in the event loop        a local append, a poll
    call that may wait for a disk or a broker           in a pool of threads     threads.py
    durable appends of many tasks                       gathered: one fsync      appends.py
    waiting for records                                 listeners, or one thread for all consumers  waiting.py

A log belongs to the event loop in which it was opened; its objects are for the tasks of that loop.
"""

from ..clients.job import AsyncJob as Job
from .consumer import Consumer
from .group import ConsumerGroup
from .log import Log
from .opening import open
from .producer import Producer
from .queue import Queue
from .topic import Topic, TopicProducer
from .transaction import Transaction

__all__ = [
    "Consumer",
    "ConsumerGroup",
    "Job",
    "Log",
    "Producer",
    "Queue",
    "Topic",
    "TopicProducer",
    "Transaction",
    "open",
]
