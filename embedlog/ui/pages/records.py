"""The records of a topic: a page of them, a live tail, a search."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...clients.open_transactions import held_back_at, stable_end
from ...clients.places import Place, place
from ...clients.reader import times_between
from ...codec.time_range import EVER
from ...errors import AuthorizationFailed, EmbedlogError, InvalidArgument
from ...model import PartitionOffsets, TopicPartition
from ...validation import check_partition
from ..places import Positions, clipped, link, offset_at, positions
from ..query import Query
from ..reading import MOST_PARTITIONS, Page, Row, Source, page_after, page_before
from ..rendering import page, part
from ..streaming import Search, Streams, Tail

if TYPE_CHECKING:
    from ...backends.port import Backend

_TOGETHER: Final = 50


def routes() -> list[BaseRoute]:
    return [
        Route("/topics/{topic}/records", records, name="records"),
        Route("/topics/{topic}/records/live", live, name="live"),
        Route("/topics/{topic}/records/search", search, name="search"),
    ]


def records(request: Request) -> Response:
    """A page of records; with `search`, the frame that a search fills."""
    query = request.query_params
    source, problem, records_page = None, "", Page([], {}, {}, [])
    held_back: list[str] = []
    try:
        source = _source(request)
        held_back = _held_back(request, source)
        if query.get("search"):
            _search(request, source)
        else:
            records_page = _page(request, source)
    except EmbedlogError as error:
        problem = request.app.state.site.message_of(error)
    rows = records_page.rows if query.get("order") == "oldest" else records_page.rows[::-1]
    number = query.get("partition", "")
    return page(
        request,
        "records.html",
        status=409 if source is None else 200,
        topic=request.path_params["topic"],
        source=source,
        problem=problem,
        problems=records_page.problems,
        rows=rows,
        order=query.get("order", "newest"),
        partition=number,
        start=query.get("from", ""),
        to=query.get("to", ""),
        text=query.get("search", "") if not problem else "",
        written=query.get("search", ""),
        uncommitted=_shows_uncommitted(request),
        held_back=held_back,
        older=link(records_page.low) if source and _has_older(source, records_page.low) else "",
        newer=link(records_page.high) if source and _has_newer(source, records_page.high) else "",
        begins="" if source is None or _has_newer(source, records_page.high) else link(records_page.high),
        most=MOST_PARTITIONS,
        command=_command(request, records_page),
        query=str(query),
    )


def live(request: Request) -> Response:
    """Records as they come, from `at`, or from the end."""
    position_text = request.headers.get("last-event-id") or request.query_params.get("at", "")

    def begin() -> Tail:
        return Tail(_source(request), positions(position_text) if position_text else {})

    streams: Streams = request.app.state.site.streams
    return streams.respond(request, begin, _drawer(request))


def search(request: Request) -> Response:
    """Records that match `search`, as they are found."""
    streams: Streams = request.app.state.site.streams
    return streams.respond(request, lambda: _search(request, _source(request)), _drawer(request))


def _source(request: Request) -> Source:
    """What is asked for. Raises PartitionNotFound, InvalidArgument, what the backend raises."""
    site, topic = request.app.state.site, request.path_params["topic"]
    number = request.query_params.get("partition", "")
    count = site.log.describe_topic(topic).partitions
    edges = site.log.offsets(topic)
    if number:
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise InvalidArgument(f"{number[:20]!r} is no partition")
        check_partition(topic, int(number), count)
        edges = {int(number): edges[int(number)]}
    elif count > MOST_PARTITIONS:
        filled = [n for n, offsets in edges.items() if offsets.log_end_offset > offsets.log_start_offset]
        edges = {n: edges[n] for n in filled[:MOST_PARTITIONS]}
    committed_only = not _shows_uncommitted(request)
    if committed_only:
        backend = site.log.backend
        edges = {
            number: _committed(backend, TopicPartition(topic, number), edges[number]) for number in edges
        }
    return Source(
        site.log.backend, topic, count, edges, committed_only, site.serializers.get(topic), site.message_of
    )


def _shows_uncommitted(request: Request) -> bool:
    return request.query_params.get("uncommitted") == "yes"


def _committed(backend: Backend, tp: TopicPartition, edges: PartitionOffsets) -> PartitionOffsets:
    """The edges of a partition's committed records. A page that follows goes on where they end."""
    try:
        end = stable_end(backend, tp, edges.log_end_offset)
    except AuthorizationFailed:  # as the page says when it reads
        return edges
    return edges._replace(log_end_offset=max(min(end, edges.log_end_offset), edges.log_start_offset))


def _held_back(request: Request, source: Source) -> list[str]:
    """Where open transactions end the page before the log."""
    ends = request.app.state.site.log.offsets(source.topic)
    sentences = [
        held_back_at(source.backend, TopicPartition(source.topic, number), edges.log_end_offset)
        for number, edges in source.edges.items()
        if number in ends and edges.log_end_offset < ends[number].log_end_offset
    ]
    return [sentence for sentence in sentences if sentence]


def _page(request: Request, source: Source) -> Page:
    query = request.query_params
    if before := query.get("before"):
        return page_before(source, positions(before), _TOGETHER)
    if after := query.get("after"):
        return page_after(source, positions(after), _TOGETHER)
    if start := query.get("from"):
        return page_after(source, _places(source, place(start)), _TOGETHER)
    if query.get("order") == "oldest":
        return page_after(source, _places(source, "earliest"), _TOGETHER)
    return page_before(source, {}, _TOGETHER)


def _search(request: Request, source: Source) -> Search:
    query = request.query_params
    loads = source.serializer.loads if source.serializer is not None else None
    position_text = request.headers.get("last-event-id") or query.get("at", "")
    backwards = query.get("order") != "oldest"
    start, end = place(query.get("from") or "earliest"), place(query.get("to") or "latest")
    times = times_between(source.backend, start, end)
    source = source._replace(times=times)
    starts = _places(source, start)
    # Where times are out of order, a record before the end may follow one after it.
    ends = _places(source, end if times.end_ms == EVER.end_ms else "latest")
    reached = positions(position_text) if position_text else {}
    side = ends if backwards else starts
    side |= {number: clipped(reached[number], source.edges[number]) for number in side.keys() & reached}
    return Search(source, starts, ends, Query(query.get("search", ""), loads), backwards=backwards)


def _places(source: Source, where: Place) -> dict[int, int]:
    if isinstance(where, int) and len(source.edges) > 1:
        raise InvalidArgument(f"{where} is an offset, which belongs to one partition: choose the partition")
    return {
        number: offset_at(source.backend, TopicPartition(source.topic, number), where, edges)
        for number, edges in source.edges.items()
    }


def _drawer(request: Request) -> Callable[[list[Row]], str]:
    base, topic = request.scope.get("root_path", ""), request.path_params["topic"]

    def draw(rows: list[Row]) -> str:
        return part("rows.html", rows=rows, base=base, topic=topic, uncommitted=_shows_uncommitted(request))

    return draw


def _has_older(source: Source, low: Positions) -> bool:
    return any(offset > source.edges[number].log_start_offset for number, offset in low.items())


def _has_newer(source: Source, high: Positions) -> bool:
    return any(offset < source.edges[number].log_end_offset for number, offset in high.items())


def _command(request: Request, records_page: Page) -> str:
    """The command line that prints the page's records, if they are of one partition; else the topic's."""
    site = request.app.state.site
    words = ["embedlog", "cat", site.log.path, request.path_params["topic"]]
    if len(records_page.low) == 1:
        [number] = records_page.low
        words += ["--partition", str(number), "--from", str(records_page.low[number])]
        words += ["--to", str(records_page.high[number])]
    if _shows_uncommitted(request):
        words += ["--isolation-level", "read_uncommitted"]
    return shlex.join([*words, "--json"])
