"""A WSGI application whose module opens the log: under `gunicorn --preload` in the master, before it forks.

POST {"name": ...} appends. Each worker is a member of a group, and prints what it has processed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import embedlog

log = embedlog.open(os.environ["EVENTS_LOG"], shared=True)
log.create_topic("events", partitions=4, exist_ok=True)


def consume() -> None:
    """This worker's share of the group's work, until the log is closed."""
    while True:
        try:
            with log.consumer("events", group="workers") as consumer:
                for record in consumer:
                    os.write(1, b"%d has processed %s\n" % (os.getpid(), record.value))
        except embedlog.Closed:
            return
        except embedlog.EmbedlogError as error:
            os.write(2, f"begins again: {error!r}\n".encode())


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    name = json.load(environ["wsgi.input"])["name"].encode()
    where = log.append("events", name, key=name, flush=True)
    start_response("201 Created", [("Content-Type", "application/json")])
    return [json.dumps({"partition": where.partition, "offset": where.offset}).encode()]
