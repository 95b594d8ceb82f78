"""Visits in by HTTP; a consumer group over the workers counts them, by pages.py. FastAPI, uvicorn, sqlite.

    uvicorn --app-dir examples/web visits:app --workers 4
    curl localhost:8000/visits --json '{"id": "f3a1", "page": "/", "user": "user-7"}'
    curl localhost:8000/pages

The first worker owns the directory of the log, the others reach it through a socket there.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pages import Visit, count, process

import embedlog.aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with embedlog.aio.open(os.environ.get("VISITS_LOG", "./visits-data"), shared=True) as log:
        await log.create_topic("visits", partitions=8, exist_ok=True)
        app.state.visits = log.topic("visits", Visit, key_type=str)
        processing = asyncio.create_task(process(app.state.visits))
        yield
        processing.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/visits", status_code=201)
async def visit(visit: Visit) -> dict[str, int]:
    """Append a visit. It is durable before the answer."""
    appended = await app.state.visits.append(visit, key=visit.user, flush=True)
    return {"partition": appended.partition, "offset": appended.offset}


@app.get("/pages")
def pages() -> dict[str, int]:
    """The number of visits to each page."""
    return count()
