"""The page on a port of its own, since Starlette's test client does not go away."""

from __future__ import annotations

import threading

import httpx2 as httpx
import uvicorn

from embedlog import Log
from embedlog.cluster.network.server import bind
from embedlog.ui import application


class Served:
    """A page of a log, its server in a thread, and a client of it. Options are those of `application`."""

    def __init__(self, log: Log, **options: object) -> None:
        self.app = application(log, **options)  # type: ignore[arg-type]
        listening = bind("127.0.0.1", 0)
        config = uvicorn.Config(self.app, log_level="error", ws="none", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=60)

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join()
