"""How the page on processes sets up gunicorn: the application before the fork, what has threads after it."""

from __future__ import annotations

import threading
from typing import Any

preload_app = True


def post_fork(server: Any, worker: Any) -> None:
    import preloaded

    threading.Thread(target=preloaded.consume, daemon=True).start()
