"""Each worker's share of the visits, from the log to sqlite. visits.py runs `process`.

A worker that is killed may leave visits that are saved, but not committed. The next one sees those again. So
does a client that got no answer post a visit again. sqlite keeps each visit once, by its id.
"""

import asyncio
import logging
import os
import sqlite3
from contextlib import closing

from pydantic import BaseModel

import embedlog
from embedlog.aio import Topic


class Visit(BaseModel):
    id: str
    page: str
    user: str


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ.get("VISITS_DATABASE", "./visits.sqlite"), timeout=30)
    database.executescript("""
        PRAGMA journal_mode = WAL;
        CREATE TABLE IF NOT EXISTS visits (id TEXT PRIMARY KEY, page TEXT, user TEXT, worker INTEGER);
    """)
    return database


def save(visits: list[Visit]) -> None:
    rows = [(visit.id, visit.page, visit.user, os.getpid()) for visit in visits]
    with closing(connect()) as database, database:
        database.executemany("INSERT OR IGNORE INTO visits VALUES (?, ?, ?, ?)", rows)


def count() -> dict[str, int]:
    with closing(connect()) as database:
        return dict(database.execute("SELECT page, count(*) FROM visits GROUP BY page"))


async def process(visits: Topic[Visit, str]) -> None:
    """Consume in group "pages" for as long as the worker lives."""
    while True:
        try:
            async with visits.consumer(group="pages") as consumer:
                while True:
                    records = await consumer.poll(timeout_ms=60_000)  # the visits of the poll before are done
                    await asyncio.to_thread(save, [record.value for record in records if record.value])
        except (embedlog.EmbedlogError, sqlite3.Error):
            logging.exception("begin again, with what is not done")
            await asyncio.sleep(1)
