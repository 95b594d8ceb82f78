"""Records that come while a page is open: a live tail, and a search. As server-sent events.

Each is a `step` that works for a moment in a thread, and tells what it found; between two steps the browser
is asked whether it is still there, so neither outlives it. Each event carries the positions as its id: a
browser that was cut off comes back with the last one.

    tail      at most so many rows a step; of a topic that is faster, positions skip ahead, and the page is
              told how many records it was not shown; a topic that is made again is followed from its start
    search    all partitions in turn: forwards a chunk of each, or backwards a block of each, within where
              they ended when it began
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..clients.partition_reader import PartitionReader
from ..codec.fetch_decoder import Records
from ..errors import EmbedlogError, TopicRecreated
from ..units import duration
from ..wording import visible
from .places import Positions, clipped, link
from .query import Query
from .reading import Row, Source, row_of

_EVERY_S: Final = 0.2
_ROWS: Final = 40  # of a tail, in a step
_STEP_S: Final = 0.15  # of a search
_FIRST_SPAN: Final = 100  # offsets, of a search backwards
_LARGEST_SPAN: Final = 1 << 16
_MOST_FOUND: Final = 500
_MOST_STREAMS: Final = 24
_AT_ONCE: Final = 4  # steps


class Step(NamedTuple):
    """What a moment's work brought. facts: for the page's script."""

    rows: list[Row]
    positions: Positions
    facts: dict[str, Any]
    is_last: bool = False


class Tail:
    """The records that are appended, as far as a page can show them."""

    def __init__(self, source: Source, positions: Positions) -> None:
        self._source = source
        self._topic_id = source.backend.describe_topic(source.topic).topic_id
        self._follow(
            {
                number: clipped(positions.get(number, edges.log_end_offset), edges)
                for number, edges in source.edges.items()
            }
        )
        self._each = max(4, 2 * _ROWS // max(len(self._readers), 1))  # of a partition, in a step
        self._ends: deque[tuple[float, int]] = deque(maxlen=int(5 / _EVERY_S))

    def step(self) -> Step:
        """The latest of what came since. Raises what the backend raises."""
        source = self._source
        topic_id = source.backend.describe_topic(source.topic).topic_id
        edges = source.backend.offsets(source.topic)
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._follow({n: edges[n].log_start_offset for n in source.edges if n in edges})
        left_out = 0
        rows: list[Row] = []
        for reader in self._readers:
            if reader.tp.partition not in edges:  # another topic has the name by now
                continue
            start, end, _ = edges[reader.tp.partition]
            first = max(start, end - self._each)
            if reader.position < first:
                left_out += first - reader.position
                reader.mark = first, -1, False
            with contextlib.suppress(TopicRecreated):  # the next step follows the new one
                while records := reader.read():
                    rows += [row_of(record, source.serializer) for record in records[-self._each :]]
                    left_out += max(len(records) - self._each, 0)
        rows.sort(key=lambda row: (row.timestamp_ms, row.partition, row.offset))
        left_out += max(len(rows) - _ROWS, 0)
        self._ends.append((time.monotonic(), sum(offsets.log_end_offset for offsets in edges.values())))
        positions = {reader.tp.partition: reader.position for reader in self._readers}
        return Step(rows[-_ROWS:], positions, {"left_out": left_out, "rate": self._rate()})

    def _follow(self, positions: Positions) -> None:
        """Read on from here, in the topic of this id."""
        self._readers = [
            self._source.reader(number, offset, 1 << 62, self._topic_id)
            for number, offset in positions.items()
        ]

    def _rate(self) -> float:
        then, before = self._ends[0]
        now, end = self._ends[-1]
        return max(end - before, 0) / (now - then) if now > then else 0.0


class Search:
    """The records of a range that match.

    Invariant: of each partition what is left is low..high-1; forwards low moves, backwards high does.
    """

    def __init__(
        self, source: Source, starts: Positions, ends: Positions, query: Query, *, backwards: bool
    ) -> None:
        self._source = source
        self._query = query
        self._backwards = backwards
        self._low = dict(starts)
        self._high = {number: max(ends[number], start) for number, start in starts.items()}
        self._turns = deque(number for number, start in starts.items() if start < ends[number])
        self._readers = {
            number: source.reader(number, starts[number], ends[number]) for number in self._turns
        }
        self._span = _FIRST_SPAN
        self._total = self._left
        self._began = time.monotonic()
        self._found = self._bytes = 0
        self._problems: list[str] = []

    @property
    def _left(self) -> int:
        return sum(high - self._low[number] for number, high in self._high.items())

    def step(self) -> Step:
        """Look at records for a moment."""
        rows: list[Row] = []
        until = time.monotonic() + _STEP_S
        while self._turns and time.monotonic() < until and self._found < _MOST_FOUND:
            number = self._turns.popleft()
            matches = self._block_before(number) if self._backwards else self._chunk_after(number)
            if self._low[number] < self._high[number]:
                self._turns.append(number)
            self._found += len(matches)
            rows += matches
        is_last = not self._turns or self._found >= _MOST_FOUND
        positions = self._high if self._backwards else self._low
        return Step(rows, positions, self._progress(is_last), is_last)

    def _chunk_after(self, number: int) -> list[Row]:
        """What matches in the next chunk of a partition."""
        reader = self._readers[number]
        rows: list[Row] = []
        is_over = not self._read(reader, rows)
        self._low[number] = reader.position
        if len(rows) > (room := _MOST_FOUND - self._found):
            self._low[number] = rows[room].offset
        elif is_over:  # the end, damage, or where a transaction is open
            self._high[number] = reader.position
        return rows[:room]

    def _block_before(self, number: int) -> list[Row]:
        """What matches in the block before those of a partition that were looked at, the newest first.

        Blocks are as large as can be looked at in a part of a step.
        """
        began = time.monotonic()
        first = max(self._low[number], self._high[number] - self._span)
        reader = self._source.reader(number, first, self._high[number])
        rows: list[Row] = []
        room = _MOST_FOUND - self._found
        self._high[number] = first
        while self._read(reader, rows):
            if len(rows) > room:
                del rows[:-room]
                self._high[number] = rows[0].offset
        took = time.monotonic() - began
        if took < _STEP_S / 8:
            self._span = min(self._span * 2, _LARGEST_SPAN)
        elif took > _STEP_S:
            self._span = max(self._span // 2, _FIRST_SPAN)
        return rows[::-1]

    def _read(self, reader: PartitionReader, rows: list[Row]) -> bool:
        """Add what matches in a reader's next chunk. False if there is none."""
        sink = Records(*reader.tp, reader.times)
        try:
            has_more = reader.read_into(sink)
        except EmbedlogError as error:
            self._problems.append(visible(self._source.message_of(error)))
            has_more = False
        for record in sink.taken:
            self._bytes += len(record.value or b"") + len(record.key or b"")
            if self._query.matches(record):
                rows.append(row_of(record, self._source.serializer))
        return has_more

    def _progress(self, is_last: bool) -> dict[str, Any]:
        remaining = self._left
        looked_at = self._total - remaining
        took = time.monotonic() - self._began
        return {
            "found": self._found,
            "looked_at": looked_at,
            "total": self._total,
            "bytes": self._bytes,
            "rate": looked_at / took if took else 0.0,
            "took": duration(took),
            "left": duration(remaining * took / looked_at) if looked_at and remaining else "",
            "problems": self._problems[:5],
            "more": is_last and bool(self._turns),
        }


class Streams:
    """All streams of a site: how many there are, and how many of them work at once."""

    def __init__(self) -> None:
        self.open = 0
        self._is_stopped = False
        self._limiter: anyio.CapacityLimiter | None = None  # made in the event loop

    def stop(self) -> None:
        """End all of them, soon. From any thread."""
        self._is_stopped = True

    def respond(
        self, request: Request, begin: Callable[[], Tail | Search], draw: Callable[[list[Row]], str]
    ) -> Response:
        """The response of a stream.

        Args:
            begin: makes it, in a thread. May raise EmbedlogError.
            draw: rows to HTML.
        """
        return StreamingResponse(self._events(request, begin, draw), media_type="text/event-stream")

    async def _events(
        self, request: Request, begin: Callable[[], Tail | Search], draw: Callable[[list[Row]], str]
    ) -> AsyncIterator[str]:
        if self.open >= _MOST_STREAMS:
            yield _event("failed", {"problem": "too many pages follow this log: close one, then try again"})
            return
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self.open += 1
        try:
            stream = await anyio.to_thread.run_sync(begin, limiter=self._limiter)
            while True:
                step = await anyio.to_thread.run_sync(stream.step, limiter=self._limiter)
                facts = step.facts | {"html": draw(step.rows) if step.rows else "", "end": step.is_last}
                yield _event("step", facts, link(step.positions))
                if step.is_last or self._is_stopped or await request.is_disconnected():
                    return
                await anyio.sleep(_EVERY_S if isinstance(stream, Tail) else 0)
        except EmbedlogError as error:
            yield _event("failed", {"problem": visible(request.app.state.site.message_of(error))})
        finally:
            self.open -= 1


def _event(kind: str, facts: dict[str, Any], number: str = "") -> str:
    identified = f"id: {number}\n" if number else ""
    return f"event: {kind}\n{identified}data: {json.dumps(facts)}\n\n"
