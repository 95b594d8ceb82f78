"""A chain of FastStream's handlers: each number comes back as its successor. Prints them.

python faststream_chain.py BOOTSTRAP COUNT
"""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream
from faststream.confluent import KafkaBroker

bootstrap, count = sys.argv[1], int(sys.argv[2])
broker = KafkaBroker(bootstrap)
app = FastStream(broker)
came: list[int] = []


@broker.subscriber("faststream-in", group_id="faststream-1", auto_offset_reset="earliest")
@broker.publisher("faststream-out")
async def successor(number: int) -> int:
    return number + 1


@broker.subscriber("faststream-out", group_id="faststream-2", auto_offset_reset="earliest")
async def collect(number: int) -> None:
    came.append(number)
    if len(came) == count:
        print(sorted(came), flush=True)
        app.exit()


@app.after_startup
async def feed() -> None:
    for number in range(count):
        await broker.publish(number, "faststream-in")


asyncio.run(app.run())
