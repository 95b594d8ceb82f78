"""Background mail: the application sends jobs and answers; workers deliver them. FastAPI, uvicorn.

    uvicorn --app-dir examples/mail app:app --workers 2
    embedlog work deliver:deliver ./mail-data --app-dir examples/mail --create
    curl localhost:8000/mails --json '{"to": "alice@example.org", "subject": "Welcome", "text": "..."}'
    curl localhost:8000/mails/dead

All processes open the log with shared=True: the first one owns the directory, the others reach it through a
socket there. Start and stop them in any order.

- An answer 202 means that the mail is a job, and durable. "after_s" delivers it so much later.
- A worker that is killed loses nothing: others get its jobs when their locks have run out (LOCK_MS).
- A mail that cannot be delivered is tried again, later each time, and is a dead letter in the end.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from deliver import OPTIONS, Mail
from fastapi import FastAPI

import embedlog.aio

DIRECTORY = os.environ.get("MAIL_LOG", "./mail-data")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with embedlog.aio.open(DIRECTORY, shared=True) as log:
        app.state.log = log
        app.state.mails = log.topic("mails", Mail).queue(flush=True, **OPTIONS)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/mails", status_code=202)
async def send(mail: Mail, after_s: float = 0) -> dict[str, int]:
    sent = await app.state.mails.send(mail, delay_ms=int(after_s * 1000) or None)
    return {"partition": sent.partition, "offset": sent.offset}


@app.get("/mails/dead")
async def dead() -> list[dict[str, Any]]:
    log = app.state.log
    if "dlq.mails" not in await log.topics():
        return []
    found = []
    async for letter in log.read("dlq.mails"):
        why = dict(letter.headers)["embedlog.error"]
        found.append({"mail": Mail.model_validate_json(letter.value), "error": why.decode()})
    return found
