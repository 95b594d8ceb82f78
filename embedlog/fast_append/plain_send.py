"""The fast path of a producer's send in plain Python, and the fields that it shares with the ordinary path.

`compiled_send` is its compiled twin. There one C function writes a record into the batch's buffer and makes
its future.

Theory of operation: the fast path takes only sends that need no decision: a record of the exact types that
clients/record_input.py returns, for the default partitioner, with room in the open batch of its partition for
one more like it. For any other it returns None, with no side effects, and `Producer.send` continues. So it
raises no errors of its own, opens no batch, and never waits.

It takes no lock. The GIL suffices: between finding the open batch and counting the record in no Python code
runs, so no other thread does, and Ctrl-C cannot come between. The ordinary path changes what the fast path
looks at one statement at a time: a batch is in `TopicFields.open` as long as it takes records, and what is
counted on both paths (`Accumulator.buffered`, a batch's size) changes only in methods of these classes. A
Python without the GIL turns it on when it imports the compiled module.

In plain Python there is no fast path, and the producer's lock guards all of this.

Invariant: both twins send the same bytes and return equal futures (tests/test_producer.py runs on both).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from ..codec import HEADER_SIZE, BatchBuilder
from ..model import Headers
from .limits import RECORD_MEMORY

_LARGEST: Final = (1 << 31) - 1

F = TypeVar("F", bound=Callable[..., object])


class FutureFields:
    """The batch of a record, its index there, and its timestamp."""

    __slots__ = ("batch", "index", "timestamp_ms")

    batch: Any
    index: int
    timestamp_ms: int


class BatchFields:
    """The records of a batch.

    `size` is at most how many bytes they take, `limit` at most how many they may take, `memory` what is
    reserved for them; `watched` holds futures by index.
    """

    __slots__ = ("_append_time", "_rows", "limit", "memory", "size", "watched")

    def __init__(self, append_time: bool, limit: int) -> None:
        self._append_time = append_time
        self._rows: list[tuple[bytes | None, bytes | None, Headers, int]] = []
        self.size = HEADER_SIZE
        self.limit = limit
        self.memory = 0
        self.watched: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._rows)

    def build(self, codec: int, limit: int, append_time_ms: int) -> bytearray:
        """See `BatchBuilder.build`."""
        # Encoding by columns is faster than record by record.
        builder = BatchBuilder(_LARGEST, self._append_time)
        builder.extend(self._rows)
        return builder.build(codec, limit, append_time_ms)

    def forget(self) -> None:
        """Release the records."""
        self._rows = []


class TopicFields:
    """What sends look at of their topic: the number of partitions, and the open batches by partition."""

    __slots__ = ("is_fresh", "open", "partitions")

    def __init__(self) -> None:
        self.is_fresh = False
        self.partitions = 0
        self.open: dict[int, Any] = {}


class Accumulator:
    """The open batches of a producer, and the memory of all its records."""

    def __init__(
        self,
        future: Callable[[Any, int, int], Any],
        buffer_bytes: int,
        sticky: dict[str, int] | None,
        watches: bool,
    ) -> None:
        """future: the class of futures. sticky: the partitions of records without a key, of the default
        partitioner; None keeps sends off the fast path. watches: whether batches watch all futures."""
        self._future = future
        self._watches = watches
        self.buffer_bytes = buffer_bytes
        self.buffered = 0
        self.closed = False
        self.topics: dict[str, Any] = {}

    def add(
        self,
        batch: Any,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
    ) -> Any:
        """Add a record of at most `size` bytes to a batch, and return its future: both, or neither if Ctrl-C
        strikes. None, with no side effects, if there is no memory for it or no room in a batch with records.
        """
        memory = size + RECORD_MEMORY
        index = batch.count
        if self.buffered + memory > self.buffer_bytes or (index and batch.size + size > batch.limit):
            return None
        future = self._future(batch, index, timestamp_ms)
        # No calls from here on: Ctrl-C cannot strike between these statements.
        if self._watches:
            batch.watched[index] = future
        batch._rows += ((key, value, headers, timestamp_ms),)
        batch.size += size
        batch.memory += memory
        self.buffered += memory
        return future

    def release(self, memory: int) -> None:
        """Give back the memory of batches."""
        self.buffered -= memory


def send_on_fast_path(ordinary: F) -> F:
    """Decorates `Producer.send`: sends that need no decision take the fast path.

    In plain Python that gains nothing.
    """
    return ordinary
