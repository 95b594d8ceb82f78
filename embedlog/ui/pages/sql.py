"""Questions in SQL: a box for them, the topics with their columns, the result, downloads.

The page never runs a query itself: sql/sandbox.py does, in a process that ends with the browser's request.

    POST /sql/run       lines of JSON, for sql.js: "head" and "html", "read", "end", "note", or "problem"
    POST /sql/columns   the topics of the page with their columns, as HTML
    POST /sql/download  a file
    POST /sql/notes     what a download has said, once it has ended: of values that were read as NULL
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from ...backends.port import Backend
from ...errors import EmbedlogError, InvalidArgument
from ...sql.copies import FORMATS
from ...sql.sandbox import Busy, Query, Sandbox
from ...sql.tables import named_in
from ...wording import visible
from ..guard import form
from ..rendering import page, part
from ..values import Shown, preview

_PATIENCE_S: Final = 0.25  # how soon a browser that has gone away is noticed
_TOGETHER: Final = 12  # topics beside the box
_NOTES_KEPT: Final = 100
_LONGEST_TICKET: Final = 40
_MEDIA_TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}
# A name as SQL needs it; DuckDB knows its own words. No macro: a query is one statement.
_QUOTED: Final = """
CASE WHEN regexp_full_match({0}, '[a-z_][a-z0-9_]*') AND {0} NOT IN (
  SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function'))
THEN {0} ELSE '"' || replace({0}, '"', '""') || '"' END"""
_COLUMNS: Final = f"""
SELECT table_name, {_QUOTED.format("table_name")}, {_QUOTED.format("column_name")}, data_type
FROM duckdb_columns() WHERE table_name IN (%s) ORDER BY column_index, table_name"""
_FIXED: Final = 6  # columns before the fields of JSON values


class Notes:
    """What the last downloads have said, by the tickets of their pages. For the event loop alone."""

    def __init__(self) -> None:
        self._of: dict[str, list[str] | None] = {}  # None: it has not ended

    def put(self, ticket: str, notes: list[str] | None) -> None:
        self._of.pop(ticket, None)
        self._of[ticket] = notes
        for oldest in list(self._of)[:-_NOTES_KEPT]:
            del self._of[oldest]

    def of(self, ticket: str) -> list[str] | None:
        return self._of.get(ticket)


class TopicTable(NamedTuple):
    """A topic beside the box. quoted: its name in SQL. columns: as SQL has them, with their types."""

    name: str
    quoted: str = ""
    columns: Sequence[tuple[str, str]] = ()

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Questions, each with what it asks."""
        table = self.quoted
        fields = self.columns[_FIXED:]
        texts = [name for name, kind in fields if kind == "VARCHAR"]
        numbers = [name for name, kind in fields if kind in ("BIGINT", "DOUBLE")]
        mean = f", round(avg({numbers[0]}), 1) AS mean" if numbers else ""
        grouped = texts[0] if texts else "TRY(decode(key)) AS key"
        return [
            ("the last hour", f"SELECT * FROM {table}\nWHERE timestamp > now() - INTERVAL 1 HOUR LIMIT 100"),
            (
                "partitions",
                f"SELECT partition, count(*) AS records, min(timestamp) AS first, max(timestamp) AS last\n"
                f"FROM {table} GROUP BY 1 ORDER BY 1",
            ),
            (
                "by day",
                f"SELECT date_trunc('day', timestamp) AS day, count(*) AS records\n"
                f"FROM {table} GROUP BY 1 ORDER BY 1",
            ),
            (
                f"by {texts[0] if texts else 'key'}",
                f"SELECT {grouped}, count(*) AS records{mean}\n"
                f"FROM {table} GROUP BY 1 ORDER BY 2 DESC LIMIT 20",
            ),
        ]


def routes() -> list[BaseRoute]:
    return [
        Route("/sql", sql, name="sql"),
        Route("/sql/run", run, methods=["POST"]),
        Route("/sql/columns", columns, methods=["POST"]),
        Route("/sql/download", download, methods=["POST"]),
        Route("/sql/notes", notes, methods=["POST"]),
    ]


def sql(request: Request) -> Response:
    """The box. `topic` is the one to begin with, `find` a part of the names of those beside it."""
    sandbox = request.app.state.site.sandbox
    topics, matches = _topics(request)
    problem = ""
    try:
        sandbox.warm()
    except EmbedlogError as error:
        problem = request.app.state.site.message_of(error)
    return page(
        request,
        "sql.html",
        topics=[TopicTable(name) for name in topics],
        total=matches,
        find=request.query_params.get("find", ""),
        query=request.query_params.get("query", ""),
        formats=FORMATS,
        limits=sandbox.limits,
        problem=problem,
    )


async def run(request: Request) -> Response:
    """Run a query: its rows as they come, as lines of JSON."""
    fields = await form(request)
    try:
        query = await run_in_threadpool(_start, request, fields.get("query", ""))
    except EmbedlogError as error:
        return _refusal(request, error)
    return StreamingResponse(_events(request, query), media_type="application/jsonl")


async def columns(request: Request) -> Response:
    """The topics of the page, each with its first columns and with examples."""
    await form(request)
    names, _ = await run_in_threadpool(_topics, request)
    rows: list[list[str]] = []
    try:
        names = list({name.lower(): name for name in names}.values())  # in SQL others are the same
        statement = _COLUMNS % ", ".join(f"'{name}'" for name in names)
        query = await run_in_threadpool(_start, request, statement)
        try:
            async for line in _written(request, query.lines):
                rows += line.get("rows", [])
        finally:
            query.close()
        await run_in_threadpool(request.app.state.site.sandbox.warm)
    except EmbedlogError as error:
        return _refusal(request, error)
    topics = [
        TopicTable(
            name,
            topic_rows[0][1] if topic_rows else "",
            [(column, kind) for _, _, column, kind in topic_rows],
        )
        for name in names
        for topic_rows in [[row for row in rows if row[0] == name]]
    ]
    return HTMLResponse(part("sql_topics.html", topics=topics))


async def download(request: Request) -> Response:
    """The whole result of a query, as a file. Raises what `Sandbox.start` raises."""
    fields = await form(request)
    format = fields.get("format", "")
    if format not in FORMATS:
        raise InvalidArgument(f"a format is one of {', '.join(FORMATS)}")
    query = await run_in_threadpool(_start, request, fields.get("query", ""), format)
    chunks = _written(request, query.read)
    downloads, ticket = request.app.state.site.downloads, fields.get("ticket", "")[:_LONGEST_TICKET]
    downloads.put(ticket, None)

    def end() -> None:
        query.close()
        downloads.put(ticket, query.notes)

    try:
        first = await anext(chunks, b"")  # what fails before it becomes a page that says so
    except BaseException:
        end()
        raise

    async def content() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            end()

    return StreamingResponse(
        content(),
        media_type=_MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="query.{format}"'},
    )


async def notes(request: Request) -> Response:
    """What the download of a ticket has said; null while it goes on, or if it has not begun."""
    fields = await form(request)
    texts = request.app.state.site.downloads.of(fields.get("ticket", "")[:_LONGEST_TICKET])
    return JSONResponse({"notes": texts and [visible(note) for note in texts]})


def _topics(request: Request) -> tuple[list[str], int]:
    """The topics beside the box, and how many there are by the part of a name that is asked for."""
    backend = request.app.state.site.log.backend
    find, first = request.query_params.get("find", ""), request.query_params.get("topic", "")
    names = [name for name in backend.topics() if not backend.describe_topic(name).internal]
    matching = sorted(
        (name for name in names if find.lower() in name.lower()), key=lambda name: (name != first, name)
    )
    return matching[:_TOGETHER], len(matching)


def _start(request: Request, query: str, format: str = "") -> Query:
    """Raises what `Sandbox.start` raises."""
    site = request.app.state.site
    backend, sandbox = site.log.backend, cast(Sandbox, site.sandbox)
    topics = [name for name in named_in(query, backend.topics()) if _may_read(backend, name)]
    return sandbox.start(query, topics, format)


def _may_read(backend: Backend, topic: str) -> bool:
    """The query's process has the whole log: what the visitor may see of it is known only here."""
    try:
        backend.may_have_data(topic, 0, 0, read_committed=True)
    except EmbedlogError:
        return False
    return True


def _refusal(request: Request, error: EmbedlogError) -> Response:
    problem = visible(request.app.state.site.message_of(error))
    return JSONResponse({"problem": problem}, 503 if isinstance(error, Busy) else 409)


# -- a query that runs ---------------------------------------------------------------------------------------


async def _written(request: Request, step: Callable[[float], bytes | list[Any] | None]) -> AsyncIterator[Any]:
    """What a query writes, until its end, or until the browser is gone. Raises as `Query.read`.

    step: its `read`, whose chunks come one by one, or its `lines`.
    """
    while (output := await run_in_threadpool(step, _PATIENCE_S)) is not None:
        if isinstance(output, bytes):
            if output:
                yield output
        else:
            for line in output:
                yield line
        if await request.is_disconnected():
            return


async def _events(request: Request, query: Query) -> AsyncIterator[str]:
    drawn = _Drawn(query)
    try:
        async for line in _written(request, drawn.lines):
            yield line
    except EmbedlogError as error:
        yield json.dumps({"problem": visible(request.app.state.site.message_of(error))}) + "\n"
    finally:
        query.close()
    await run_in_threadpool(request.app.state.site.sandbox.warm)


class _Drawn:
    """What a query writes, for the page's script: its rows are HTML."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._columns: list[list[str]] = []

    def lines(self, patience_s: float) -> list[str] | None:
        """As `Query.lines`. Raises likewise."""
        lines = self._query.lines(patience_s)
        return None if lines is None else [json.dumps(self._drawn(line)) + "\n" for line in lines]

    def _drawn(self, line: dict[str, Any]) -> dict[str, Any]:
        if "columns" in line:
            self._columns = line["columns"]
            return {"head": part("sql_head.html", columns=self._columns), "left_out": line["left_out"]}
        if "rows" in line:
            rows = [list(map(_shown, row, self._columns)) for row in line["rows"]]
            roles = [role for _, _, role in self._columns]
            return {"html": part("sql_rows.html", rows=rows, roles=roles)}
        if "note" in line:
            return {"note": visible(line["note"])}
        return line


def _shown(cell: str | None, column: list[str]) -> Shown:
    name, _, role = column
    if cell is not None and name == "explain_value":
        return Shown("text", Markup("<pre>{}</pre>").format(visible(cell)))
    if cell is not None and role == "number":
        return Shown("text", escape(cell))
    return preview(None if cell is None else cell.encode("latin-1" if role == "bytes" else "utf-8"), None)
