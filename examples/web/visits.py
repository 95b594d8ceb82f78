"""Events in by HTTP, and a consumer group over the workers that processes them: FastAPI, uvicorn, sqlite.

    uvicorn --app-dir examples/web visits:app --workers 4
    curl localhost:8000/visits --json '{"id": "f3a1", "page": "/", "user": "user-7"}'
    curl localhost:8000/pages

Each worker opens the log with shared=True: the first owns the directory, the others reach it through a socket
there. Each worker appends what is posted to it, and processes some of the topic's partitions.

- An answer 201 means that the visit is in the log and durable. A client that gets no answer (its worker was
  killed) posts the visit again: it may be in the log twice, but is counted once, by its id.
- A worker that is killed loses nothing: when its membership has expired, the others get its partitions, and
  begin after what it committed. They may see its last visits once more. The id makes up for that, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel

import embedlog
import embedlog.aio
from embedlog.aio import Topic

DIRECTORY = os.environ.get("VISITS_LOG", "./visits-data")
DATABASE = os.environ.get("VISITS_DATABASE", "./visits.sqlite")
SCHEMA = "CREATE TABLE IF NOT EXISTS visits (id TEXT PRIMARY KEY, page TEXT, user TEXT, worker INTEGER)"


class Visit(BaseModel):
    id: str
    page: str
    user: str


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASE, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(SCHEMA)
    return connection


def save(visits: list[Visit]) -> None:
    connection = database()
    with connection:
        connection.executemany(
            "INSERT OR IGNORE INTO visits VALUES (?, ?, ?, ?)",
            [(visit.id, visit.page, visit.user, os.getpid()) for visit in visits],
        )
    connection.close()


async def process(visits: Topic[Visit, str]) -> None:
    """This worker's share of the group's work, for as long as the worker lives."""
    while True:
        try:
            async with visits.consumer(group="pages") as consumer:
                while True:
                    records = await consumer.poll(timeout_ms=60_000)  # the visits of the poll before are done
                    await asyncio.to_thread(save, [record.value for record in records if record.value])
        except (embedlog.EmbedlogError, sqlite3.Error):
            logging.exception("begin again, with what is not done")
            await asyncio.sleep(1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with embedlog.aio.open(DIRECTORY, shared=True) as log:
        await log.create_topic("visits", partitions=8, exist_ok=True)
        app.state.visits = log.topic("visits", Visit, key_type=str)
        processing = asyncio.create_task(process(app.state.visits))
        yield
        processing.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/visits", status_code=201)
async def visit(visit: Visit) -> dict[str, int]:
    appended = await app.state.visits.append(visit, key=visit.user, flush=True)
    return {"partition": appended.partition, "offset": appended.offset}


@app.get("/pages")
def pages() -> dict[str, int]:
    connection = database()
    counts = dict(connection.execute("SELECT page, count(*) FROM visits GROUP BY page"))
    connection.close()
    return counts
