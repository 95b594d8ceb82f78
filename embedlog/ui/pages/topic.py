"""A topic: how it grew, its settings, its partitions, and the segments of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...config import TopicSettings
from ...errors import EmbedlogError, InvalidTopicName, TopicNotFound
from ...files.names import CLEANER_FILE
from ...model import NO_TIMESTAMP, PartitionOffsets, PartitionState, TopicPartition
from ...units import counted, duration, moment, size
from .. import plots, words
from ..rendering import page
from ..sampler import Sample
from ..times import History, Span, Spans, history, span_of_partition, span_of_segment
from .overview import number, spark

if TYPE_CHECKING:
    from ...log import Log
    from ...segment import Segment
    from ...storage.segment_times import SegmentTimes
    from ...store.read_only_partition import ReadOnlyPartition
    from ...store.read_only_store import ReadOnlyStore

_TOGETHER: Final = 50  # partitions, segments on a page
_RANGES: Final = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000}
_FIRST_MS: Final = -62_135_596_800_000  # of the year 1
_LAST_MS: Final = 253_402_300_799_000  # of the year 9999


class _Partition(NamedTuple):
    """A row of the table of partitions; None and "" for what brokers do not tell."""

    number: int
    edges: PartitionOffsets
    segments: int | None
    bytes: int | None
    span: Span
    leader: int | None
    problem: str


class _Segment(NamedTuple):
    """A row of the table of segments."""

    base_offset: int
    next_offset: int
    bytes: int
    span: Span
    modified_ms: int
    state: str


def routes() -> list[BaseRoute]:
    return [
        Route("/topics/{topic}", topic_page, name="topic"),
        Route("/topics/{topic}/partitions/{number}", segments_page, name="segments"),
    ]


def topic_page(request: Request) -> Response:
    site = request.app.state.site
    name = _existing(site.log, request.path_params["topic"])
    sample = site.sampler.latest()
    edges = site.log.offsets(name)
    preset, from_ms, to_ms, problem = _range(request, _span(site.log, site.store, sample, name, edges))
    draws_plots = from_ms < to_ms and "x-live" not in request.headers  # page.js replaces no plots
    growth = history(site.log, site.store, name, from_ms, to_ms) if draws_plots else None
    first = number(request.query_params.get("first", "0"), len(edges))
    settings, own_settings = site.log.backend.topic_settings(name), site.log.describe_topic(name).settings
    numbers = sorted(edges)[first : first + _TOGETHER]
    return page(
        request,
        "topic.html",
        name=name,
        edges=edges,
        seen=sample.topics.get(name),
        spark=spark,
        records=sum(offsets.log_end_offset - offsets.log_start_offset for offsets in edges.values()),
        kept=words.kept(settings),
        chosen=preset,
        ranges=(*_RANGES, "all"),
        from_ms=from_ms,
        to_ms=to_ms,
        problem=problem,
        plots=_plots(growth, from_ms, to_ms) if growth else [],
        grown=growth,
        partitions=[
            _partition(site.store, sample, TopicPartition(name, partition), edges[partition], site.message_of)
            for partition in numbers
        ],
        first=first,
        together=_TOGETHER,
        settings=[
            (setting, words.setting(setting, getattr(settings, setting)), setting in own_settings)
            for setting in sorted(settings.names(), key=lambda setting: setting not in own_settings)
        ],
        own=len(own_settings),
        compaction=_compaction(site.store, name, numbers, settings),
        groups={
            group: sum(lag.lag or 0 for tp, lag in description.partitions.items() if tp.topic == name)
            for group, description in sample.groups.items()
            if name in description.topics
        },
    )


def segments_page(request: Request) -> Response:
    site = request.app.state.site
    name, partition_text = _existing(site.log, request.path_params["topic"]), request.path_params["number"]
    if site.store is None:
        raise HTTPException(404, "Brokers do not tell their segments")
    count = site.log.describe_topic(name).partitions
    partition = number(partition_text, count)
    if str(partition) != partition_text or partition == count:
        raise HTTPException(404, "There is no such partition")
    read = site.store.partition(name, partition)
    readable = read.readable_segments()
    first = number(request.query_params.get("first", "0"), len(readable))
    cleaned = site.store.writer.checkpoint(CLEANER_FILE, read.name) or 0
    active = readable[-1][0]
    return page(
        request,
        "segments.html",
        name=name,
        partition=partition,
        edges=read.offsets(),
        path=read.directory,
        bytes=sum(size for _, size in readable),
        total=len(readable),
        first=first,
        together=_TOGETHER,
        segments=[
            _segment(read.times, segment, size, cleaned, segment is active)
            for segment, size in readable[::-1][first : first + _TOGETHER]
        ],
    )


def _existing(log: Log, name: str) -> str:
    """A topic's name. Raises HTTPException if there is none of that name."""
    try:
        return log.describe_topic(name).name
    except (InvalidTopicName, TopicNotFound):
        raise HTTPException(404, "There is no such topic") from None


# -- how it grew -------------------------------------------------------------------------------------------


def _span(
    log: Log, store: ReadOnlyStore | None, sample: Sample, name: str, edges: dict[int, PartitionOffsets]
) -> Span:
    """As it was sampled; looked up for a topic that is new, or one of a thousand."""
    topic_sample = sample.topics.get(name)
    if topic_sample is not None and topic_sample.span.last_ms != NO_TIMESTAMP:
        return topic_sample.span
    spans = Spans(log, store)
    names = [TopicPartition(name, partition) for partition in edges]
    spans.look({tp: edges[tp.partition] for tp in names[:_TOGETHER]}, _TOGETHER)
    return spans.of(names)


def _range(request: Request, span: Span) -> tuple[str, int, int, str]:
    """(the preset, "" if there is none; from, to; why these times cannot be)."""
    query = request.query_params
    preset = query.get("range", "")
    now_ms = time.time_ns() // 1_000_000
    if preset in _RANGES:
        return preset, now_ms - _RANGES[preset], now_ms, ""
    all_time = NO_TIMESTAMP, NO_TIMESTAMP
    if span.first_ms != NO_TIMESTAMP:  # brokers before Kafka 3.0 do not tell the last time
        all_time = span.first_ms, (now_ms if span.last_ms == NO_TIMESTAMP else span.last_ms) + 1
    if preset == "all" or not (query.get("from") or query.get("to")):
        return "all", *all_time, ""
    times = []
    for name, otherwise in zip(("from", "to"), all_time, strict=True):
        try:
            text = query.get(name, "")
            times.append(int(datetime.fromisoformat(text).timestamp() * 1000) if text else otherwise)
        except (ValueError, OverflowError, OSError):
            return "all", *all_time, f"“{text[:40]}” is not a time: write one as 2026-05-01T10:41"
    from_ms, to_ms = (min(max(time_ms, _FIRST_MS), _LAST_MS) for time_ms in times)
    if from_ms >= to_ms:
        return "", from_ms, to_ms, "the first time is not before the second"
    return "", from_ms, to_ms, ""


def _plots(growth: History, from_ms: int, to_ms: int) -> list[dict[str, Any]]:
    """Records and bytes over time: a plot and its peak in words for each."""
    period = f"over time, {moment(from_ms)} to {moment(to_ms)}"
    bar_s = growth.step_ms / 1000
    about = "" if growth.is_exact else "about "
    drawn_plots = []
    for unit, values, text_of in (("records", growth.records, _records), ("bytes", growth.bytes, size)):
        if values is None:
            continue
        labels = [
            f"{about if value else ''}{text_of(value)} from {moment(start)}"
            for value, start in zip(values, growth.times, strict=True)
        ]
        most = max(values)
        drawn_plots.append(
            {
                "svg": plots.bars(values, labels, f"{unit} {period}"),
                "what": unit,
                "sum": about + text_of(sum(values)),
                "most": most,
                "peak": f"{text_of(most)} in {duration(bar_s)}",
                "peak_ms": growth.times[values.index(most)],
                "rate": _rate(most, bar_s, text_of),
            }
        )
    return drawn_plots


def _records(count: int) -> str:
    return counted(count, "record")


def _rate(count: int, seconds: float, text_of: Callable[[int], str]) -> str:
    unit, length = next(
        ((unit, length) for unit, length in (("s", 1), ("min", 60)) if count * length >= 10 * seconds),
        ("h", 3_600),
    )
    return f"{text_of(round(count * length / seconds))}/{unit}"


# -- partitions and segments -------------------------------------------------------------------------------


def _partition(
    store: ReadOnlyStore | None,
    sample: Sample,
    name: TopicPartition,
    edges: PartitionOffsets,
    message_of: Callable[[BaseException], str],
) -> _Partition:
    leader = None
    if sample.cluster is not None:
        leaders = sample.cluster.leaders.get(name.topic, ())
        leader = leaders[name.partition] if name.partition < len(leaders) else -1
    if store is None:
        return _Partition(name.partition, edges, None, None, Span(), leader, "")
    try:
        read = store.partition(*name)
        filled = [(segment, size) for segment, size in read.readable_segments() if size]
        span = span_of_partition(read)
        able = read.state in (PartitionState.ONLINE, PartitionState.CLOSED)
        problem = "" if able else f"{read.state.name.lower()}: refuses appends"
        segment_bytes = sum(size for _, size in filled)
        return _Partition(name.partition, edges, len(filled), segment_bytes, span, leader, problem)
    except (EmbedlogError, OSError) as error:
        return _Partition(name.partition, edges, None, None, Span(), leader, message_of(error))


def _segment(times: SegmentTimes, segment: Segment, size: int, cleaned: int, is_active: bool) -> _Segment:
    state = "active" if is_active else "compacted" if segment.next_offset <= cleaned else "sealed"
    try:
        span, modified_ms = span_of_segment(times, segment, size), segment.modified_ms
    except (EmbedlogError, OSError):
        span, modified_ms, state = Span(), -1, "damaged, or gone by now"
    return _Segment(segment.base_offset, segment.next_offset, size, span, modified_ms, state)


def _compaction(store: ReadOnlyStore | None, name: str, numbers: list[int], settings: TopicSettings) -> str:
    """How much of the partitions on the page compaction has left to do."""
    if not settings.compacts or store is None:
        return ""
    clean = dirty = 0
    for partition in numbers:
        done, rest = _cleaned(store, store.partition(name, partition))
        clean, dirty = clean + done, dirty + rest
    ratio = dirty / (clean + dirty) if clean + dirty else 0.0
    return (
        f"{size(clean)} are compacted, {size(dirty)} of sealed segments are not yet "
        f"({ratio:.0%}; compaction begins past {settings.min_cleanable_dirty_ratio:.0%})."
    )


def _cleaned(store: ReadOnlyStore, partition: ReadOnlyPartition) -> tuple[int, int]:
    """Bytes of the sealed segments that are compacted, and of those that are not."""
    until = store.writer.checkpoint(CLEANER_FILE, partition.name) or 0
    sealed = partition.readable_segments()[:-1]
    done = sum(size for segment, size in sealed if segment.next_offset <= until)
    return done, sum(size for _, size in sealed) - done
