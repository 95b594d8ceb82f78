"""Imports what will be needed in a hurry, in a thread, while there is time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from .forking import no_fork


def preload(imports: Callable[[], object]) -> None:
    """Call a function that imports modules, and do not wait for it. A fork does."""

    def run() -> None:
        with no_fork:
            imports()

    with contextlib.suppress(RuntimeError):  # no thread can be started: imported when needed
        threading.Thread(target=run, name="embedlog-preload", daemon=True).start()
