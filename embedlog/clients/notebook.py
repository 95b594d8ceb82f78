"""How logs, topics and consumers look in a notebook: tables, records over time, first and last records.

    offset_for_time(t0) offset_for_time(t1) ... log end offset     of each partition
            |                  |                     |
            +---- bar 0 -------+--- ... -- bar n-1 --+             differences, added over the partitions

Records that came out of order count with those before them, so a bar is about right. Nothing is read but the
first and last batches and what the time index needs. There is a budget of lookups over all topics: topics
past it have no bars, and of a topic with many partitions some are looked at.

Invariants: what a log holds is shortened and escaped, for records may hold HTML; showing a log
never raises because of what it holds, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

from ..backends.port import Backend
from ..errors import EmbedlogError, counted
from ..model import NO_TIMESTAMP, PartitionOffsets, Record, TopicPartition
from .reader import read_records

_MOST_TOPICS: Final = 50
_MOST_PARTITIONS: Final = 8  # looked at, of a topic
_MOST_ROWS: Final = 200  # of a consumer's partitions
_BARS, _LOOKUPS = 24, 1_000  # of a log here: a batch to decode each
_BARS_OVER_WIRE, _LOOKUPS_OVER_WIRE = 12, 120  # a request each
_MOST_CHARACTERS: Final = 80  # of a key or a value
_WIDTH, _HEIGHT = 168, 28  # of the bars, in pixels
_TABLE: Final = "border-collapse:collapse;font-size:90%;margin:0.3em 0"
_CELL: Final = (
    "padding:0.15em 0.7em;border:0;border-bottom:1px solid rgba(128,128,128,0.3);"
    "text-align:left;white-space:nowrap"
)
_COLUMNS: Final = (
    "topic", "partitions", "offsets", "bytes", "first (UTC)", "last (UTC)", "records over time (about)"
)  # fmt: skip


class TopicSummary(NamedTuple):
    """What a notebook shows of a topic. first and last: the earliest and latest of the records looked at."""

    partitions: int
    offsets: int
    bytes: int | None
    first: Record | None
    last: Record | None
    bars: Sequence[int]
    looked_at: int
    lookups: int


def log_html(backend: Backend, title: str) -> str:
    """A log: its topics, each with its records over time, first and last record."""
    try:
        names = [name for name in backend.topics() if not backend.describe_topic(name).internal]
    except EmbedlogError:  # closed, or out of reach
        return f"<pre>{escape(title)}</pre>"
    return _topics_html(backend, names, title)


def topic_html(backend: Backend, name: str, title: str) -> str:
    """A topic, as in the table of its log."""
    return _topics_html(backend, [name], title)


def consumer_html(backend: Backend, positions: Mapping[TopicPartition, int], title: str) -> str:
    """A consumer: its position and its lag in each partition."""
    edges: dict[TopicPartition, PartitionOffsets] = {}
    for topic in {tp.topic for tp in positions}:
        with contextlib.suppress(EmbedlogError):  # deleted, closed, or out of reach
            edges |= {TopicPartition(topic, number): span for number, span in backend.offsets(topic).items()}
    rows = []
    for tp, offset in sorted(positions.items())[:_MOST_ROWS]:
        span = edges.get(tp)
        end_and_lag = ("", "") if span is None else (f"{span.log_end_offset:,}", f"{span.lag_at(offset):,}")
        rows.append((text(tp.topic), str(tp.partition), f"{offset:,}", *end_and_lag))
    hidden = len(positions) - _MOST_ROWS
    footer = f"<div>and {counted(hidden, 'more partition')}</div>" if hidden > 0 else ""
    header = ("topic", "partition", "position", "log end", "lag")
    return f"<div><code>{escape(title)}</code>{table(header, rows)}{footer}</div>"


def _topics_html(backend: Backend, names: Sequence[str], title: str) -> str:
    budget = _LOOKUPS_OVER_WIRE if backend.one_batch_per_append else _LOOKUPS
    rows, records = [], []
    for name in names[:_MOST_TOPICS]:
        try:
            summary = summarize(backend, name, budget)
        except EmbedlogError as error:
            rows.append((text(name), *[""] * 5, text(error)))
            continue
        budget -= summary.lookups
        rows.append((text(name), *_cells(summary)))
        records += _records(summary)
    hidden = len(names) - _MOST_TOPICS
    footer = f"<div>and {counted(hidden, 'more topic')}</div>" if hidden > 0 else ""
    return f"<div><code>{escape(title)}</code>{table(_COLUMNS, rows)}{footer}{_first_and_last(records)}</div>"


def summarize(backend: Backend, topic: str, budget: int) -> TopicSummary:
    """See what a topic holds, with at most `budget` lookups.

    Raises TopicNotFound, StorageError, CorruptRecord, BrokerUnavailable, Closed.
    """
    edges = backend.offsets(topic)
    filled = {number: span for number, span in edges.items() if span.log_end_offset > span.log_start_offset}
    step = -(-len(filled) // _MOST_PARTITIONS) or 1
    chosen = {TopicPartition(topic, number): filled[number] for number in sorted(filled)[::step]}
    first, last, bars, lookups = None, None, [], 2 * len(chosen)
    if lookups <= budget:
        firsts = [record for tp, span in chosen.items() if (record := _first(backend, tp, span))]
        lasts = [record for tp, span in chosen.items() if (record := _last(backend, tp, span))]
        first = min(firsts, key=lambda record: record.timestamp_ms, default=None)
        last = max(lasts, key=lambda record: record.timestamp_ms, default=None)
    if first is not None and last is not None and 0 <= first.timestamp_ms < last.timestamp_ms:
        count = _BARS_OVER_WIRE if backend.one_batch_per_append else _BARS
        if lookups + count * len(chosen) <= budget:
            lookups += count * len(chosen)
            bars = _over_time(backend, chosen, first.timestamp_ms, last.timestamp_ms, count)
    sizes = backend.sizes(topic)
    size = sum(sizes.values()) if sizes else None
    offsets = sum(span.log_end_offset - span.log_start_offset for span in edges.values())
    return TopicSummary(len(edges), offsets, size, first, last, bars, len(chosen), lookups)


def _over_time(
    backend: Backend,
    chosen: dict[TopicPartition, PartitionOffsets],
    start_ms: int,
    end_ms: int,
    count: int,
) -> list[int]:
    """The number of offsets in each of `count` equal spans of time."""
    times = [start_ms + (end_ms - start_ms) * number // count for number in range(1, count)]
    bars = [0] * count
    for tp, edges in chosen.items():
        bar_start, following = edges.log_start_offset, None
        for number, time_ms in enumerate(times):
            # The first record since a time is also the first one since all times up to its own.
            if number == 0 or (following is not None and following.timestamp_ms < time_ms):
                following = backend.offset_for_time(*tp, time_ms)
            bar_end = (
                edges.log_end_offset if following is None else min(following.offset, edges.log_end_offset)
            )
            bars[number] += max(bar_end - bar_start, 0)
            bar_start = max(bar_start, bar_end)
        bars[-1] += edges.log_end_offset - bar_start
    return bars


def _first(backend: Backend, tp: TopicPartition, edges: PartitionOffsets) -> Record | None:
    return next(read_records(backend, *tp, start=edges.log_start_offset, max_bytes=1), None)


def _last(backend: Backend, tp: TopicPartition, edges: PartitionOffsets) -> Record | None:
    """The last record; None if there is none among the last offsets: transactions leave markers there."""
    start = max(edges.log_end_offset - 3, edges.log_start_offset)
    last = None
    for record in read_records(backend, *tp, start=start, end=edges.log_end_offset):
        last = record
    return last


# -- as HTML -----------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML, the header is text."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def text(original: object) -> str:
    """Escaped and short text of a value: bytes as UTF-8 if they are. Control characters become dots."""
    if original is None:
        return '<span style="opacity:0.5">null</span>'
    if isinstance(original, bytes):
        start = original[: 4 * _MOST_CHARACTERS]  # UTF-8 has up to 4 bytes a character
        try:
            shown = start.decode("utf-8", "strict" if len(start) == len(original) else "ignore")
        except UnicodeDecodeError:
            shown = repr(start[:_MOST_CHARACTERS])
        cut = len(shown) > _MOST_CHARACTERS or len(start) < len(original)
    else:
        shown = str(original)
        cut = len(shown) > _MOST_CHARACTERS
    shown = "".join(character if character.isprintable() else "·" for character in shown[:_MOST_CHARACTERS])
    return escape(shown) + ("…" if cut else "")


def moment(timestamp_ms: int) -> str:
    """A time in UTC, to the second; - if there is none."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # past the calendar
        return f"{timestamp_ms} ms"


def record_time(timestamp_ms: int) -> str:
    """A record's time in UTC, to the millisecond; - if there is none."""
    time = moment(timestamp_ms)
    return time if time.endswith((" ms", "-")) else f"{time}.{timestamp_ms % 1000:03}"


def _cells(summary: TopicSummary) -> tuple[str, ...]:
    return (
        f"{summary.partitions:,}",
        f"{summary.offsets:,}",
        "" if summary.bytes is None else f"{summary.bytes:,}",
        *("" if record is None else moment(record.timestamp_ms) for record in (summary.first, summary.last)),
        _svg(summary),
    )


def _svg(summary: TopicSummary) -> str:
    """Bars, in the colour of the text around them."""
    if not summary.bars or summary.first is None or summary.last is None:
        return ""
    highest = max(summary.bars)
    span_ms = (summary.last.timestamp_ms - summary.first.timestamp_ms) / len(summary.bars)
    width = _WIDTH / len(summary.bars)
    bars = []
    for number, count in enumerate(summary.bars):
        height = max(round(count / highest * (_HEIGHT - 1), 1), 1) if count else 0
        since = moment(int(summary.first.timestamp_ms + number * span_ms))
        bars.append(
            f'<rect x="{number * width:g}" y="{_HEIGHT - height:g}" width="{width - 1:g}" '
            f'height="{height:g}"><title>{count:,} from {since}</title></rect>'
        )
    rate = highest / max(span_ms / 1000, 0.001)
    looked_at, partitions = summary.looked_at, summary.partitions
    sampled = f", {looked_at} of {partitions} partitions" if looked_at < partitions else ""
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'fill="currentColor" opacity="0.65" role="img">{"".join(bars)}</svg> '
        f'<span style="opacity:0.65">peak {_rate(rate)}{sampled}</span>'
    )


def _rate(per_second: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.0f}/{unit}"
    return f"{per_second * 86_400:,.2g}/day"


def _records(summary: TopicSummary) -> list[tuple[str, Record]]:
    ends = (("first", summary.first), ("last", summary.last))
    return [(name, record) for name, record in ends if record is not None]


def _first_and_last(records: Sequence[tuple[str, Record]]) -> str:
    if not records:
        return ""
    rows = [
        (
            text(record.topic),
            label,
            str(record.partition),
            f"{record.offset:,}",
            record_time(record.timestamp_ms),
            text(record.key),
            text(record.value),
        )
        for label, record in records
    ]
    header = ("topic", "", "partition", "offset", "time (UTC)", "key", "value")
    return f"<details><summary>first and last records</summary>{table(header, rows)}</details>"
