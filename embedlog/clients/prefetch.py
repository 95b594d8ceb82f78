"""Prefetching: a thread fetches the next chunk while the reader decodes the current one.

    reader      decode 1 | use 1 | decode 2 | use 2 | ...
    thread      fetch 2          | fetch 3          | ...      each into the free one of two buffers

A fetch waits for the disk or copies from the page cache, and decoding into columns releases the GIL, so with
two processors both take little more than the longer of them. A thread pays off only for large chunks, and
only for a local log: a broker's response is in flight already.

Invariants: a prefetched chunk is used only if a fetch would request exactly that now; its error is dropped,
and raised again by the fetch at that position. Two buffers of `max_bytes`, and one thread while it is needed.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ..model import Fetched
from ..runtime.parallel import processors
from .fetch_decoder import Sink
from .reader import PartitionReader

_LEAST: Final = 1 << 19  # below, the handover costs as much as it saves
_MOST: Final = 16 << 20  # larger chunks are fetched on demand, into memory of their own


class Prefetcher:
    """Reads a partition through its reader, one chunk ahead. A context manager, for one thread."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self._buffers = [bytearray(), bytearray()]
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: tuple[int, int, Future[Fetched]] | None = None
        self._process = os.getpid()

    def __enter__(self) -> Prefetcher:
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
        self._prefetch(fetched)
        return reader.take(fetched, sink)

    def _fetched_ahead(self) -> Fetched | None:
        if self._ahead is None:
            return None
        offset, epoch, future = self._ahead
        self._ahead = None
        if self._process != os.getpid():  # a forked child has no thread
            return None
        with contextlib.suppress(Exception):
            fetched = future.result()
            if fetched.data and (offset, epoch) == (self._reader.position, self._reader.epoch):
                return fetched
        return None

    def _prefetch(self, fetched: Fetched) -> None:
        """Start to fetch the next chunk, if that pays off."""
        reader = self._reader
        offset = fetched.next_offset
        if len(fetched.data) < _LEAST or offset < 0 or offset >= reader.end or processors() < 2:
            return
        buffer = self._buffer()
        if buffer is None:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "embedlog-prefetch")
        with contextlib.suppress(RuntimeError):  # no thread available, or the interpreter is exiting
            future = self._threads.submit(reader.fetching(offset, buffer))
            self._ahead = offset, reader.epoch, future

    def _buffer(self) -> bytearray | None:
        """The buffer not used last; None for large chunks."""
        size = self._reader.fetch_bytes
        if size > _MOST:
            return None
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = bytearray(size)
        return self._buffers[0]
