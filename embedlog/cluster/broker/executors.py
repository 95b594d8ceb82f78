"""The threads of a broker for what a processor must not do itself."""

from __future__ import annotations

from ...runtime.closing import Closing
from ...runtime.worker_pool import WorkerPool

_NAMES = ("embedlog-io", "embedlog-large", "embedlog-converter")


class Executors(Closing):
    """Three pools, whose threads start as they are needed. Thread-safe.

    io: runs work that blocks or computes for long; a processor never blocks.
    large: has one thread, for requests so large that they would keep a processor from its other connections.
        Several at a time would do the same by holding the GIL.
    converter: has one thread, which converts responses for old clients: no other request waits for it, and
        only one conversion is in memory at a time.
    """

    def __init__(self, io_threads: int, names: tuple[str, str, str] = _NAMES) -> None:
        self.io = WorkerPool(io_threads, names[0])
        self.large = WorkerPool(1, names[1])
        self.converter = WorkerPool(1, names[2])

    def close(self) -> None:
        """Finish what has begun; work that has not begun is cancelled."""
        for executor in (self.converter, self.large, self.io):
            executor.shutdown(cancel_futures=True)
