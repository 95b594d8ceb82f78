"""Counts each key's records with Faust, in a table with a changelog. Runs until it is killed.

python faust_count.py BOOTSTRAP DATA_DIRECTORY
"""

from __future__ import annotations

import sys

import faust

bootstrap, directory = sys.argv[1:]
app = faust.App(
    "faust",
    broker=f"kafka://{bootstrap}",
    datadir=directory,
    topic_partitions=2,
    value_serializer="json",
    web_enabled=False,
    broker_session_timeout=6,
    broker_heartbeat_interval=2,
)
lines = app.topic("faust-lines", key_type=str, value_type=int)
counts = app.topic("faust-counts", key_type=str, value_type=dict)
table = app.Table("counted", default=int)


@app.agent(lines)
async def count(stream: faust.StreamT[int]) -> None:
    async for key, line in stream.items():
        table[key] += 1
        await counts.send(key=key, value={"line": line, "count": table[key]})


sys.argv = ["faust", "worker", "--loglevel", "info", "--without-web"]  # its port is the same for all
app.main()
