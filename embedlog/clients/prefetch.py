"""A reader's chunks, each fetched by another thread while the one before it is decoded.

    this thread      decode 1 | use 1 | decode 2 | use 2 | ...
    the other one    fetch 2          | fetch 3          | ...      each into the buffer that is free

Fetching is waiting for the disk, or copying out of the page cache, and decoding into columns lets go of the
interpreter: so the two cost little more than the longer of them, where there is a processor for each. Only
what is read in large pieces is worth a thread, and only of a log on this machine: what a broker sends is on
its way already.

Invariants: what was fetched ahead is used only where a fetch would be asked for the very same thing now; an
error of it is dropped, and met again by who comes there. Two buffers, of `max_bytes` each, and one thread as
long as it is needed.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ..model import Fetched
from ..scan.parallel_scan import processors
from .fetch_decoder import Sink
from .reader import PartitionReader

_LEAST: Final = 1 << 19  # with smaller chunks, passing them on costs as much as it saves
_MOST: Final = 16 << 20  # larger ones are fetched when they are asked for, into memory of their own


class ReadAhead:
    """Reads a partition as its reader does. A context, for one thread."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self._buffers = [bytearray(), bytearray()]
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: tuple[int, int, Future[Fetched]] | None = None
        self._process = os.getpid()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def read_into(self, sink: Sink) -> bool:
        """As `PartitionReader.read_into`."""
        reader = self._reader
        if reader.position >= reader.end:
            return False
        fetched = self._fetched_ahead()
        if fetched is None:
            fetched = reader.fetching(reader.position, self._buffer())()
        self._go_on(fetched)
        return reader.take(fetched, sink)

    def _fetched_ahead(self) -> Fetched | None:
        if self._ahead is None:
            return None
        offset, epoch, future = self._ahead
        self._ahead = None
        if self._process != os.getpid():  # a forked child: nobody is fetching here
            return None
        with contextlib.suppress(Exception):
            fetched = future.result()
            if fetched.data and (offset, epoch) == (self._reader.position, self._reader.epoch):
                return fetched
        return None

    def _go_on(self, fetched: Fetched) -> None:
        """Have the next chunk fetched, if it is worth it."""
        reader = self._reader
        offset = fetched.next_offset
        if len(fetched.data) < _LEAST or offset < 0 or offset >= reader.end or processors() < 2:
            return
        buffer = self._buffer()
        if buffer is None:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "embedlog-read-ahead")
        with contextlib.suppress(RuntimeError):  # no thread to be had, or Python is ending
            future = self._threads.submit(reader.fetching(offset, buffer))
            self._ahead = offset, reader.epoch, future

    def _buffer(self) -> bytearray | None:
        """The one that has not been used last, for the next fetch."""
        size = self._reader.fetch_bytes
        if size > _MOST:
            return None
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = bytearray(size)
        return self._buffers[0]
