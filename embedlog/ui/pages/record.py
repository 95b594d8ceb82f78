"""One record: everything about it, its bytes to download, and how a command or a program gets it."""

from __future__ import annotations

import shlex
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...config import MAX_INT64
from ...errors import EmbedlogError
from ...model import LOG_APPEND_TIME, Record
from ...wording import visible
from ..rendering import page, part
from ..values import forms, view

_WHOLE: Final = 256 << 10  # characters of a value on its page
_UNFOLDED: Final = 16 << 10  # under its row
_MOST_HEADERS: Final = 200
_OF_HEADER: Final = 1_000  # characters of a header's name, and of its value


def routes() -> list[BaseRoute]:
    return [
        Route("/topics/{topic}/record", record, name="record"),
        Route("/topics/{topic}/record/bytes", download, name="bytes"),
    ]


def record(request: Request) -> Response:
    """The page of a record; with `part=yes`, what a row unfolds to."""
    topic, partition, offset = _place(request)
    site = request.app.state.site
    record, problem = None, ""
    try:
        record = site.log.read_at(topic, partition, offset, isolation_level=_isolation_level(request))
        if record is None:
            problem = (
                f"offset {offset:,} has no committed record: compaction removed it, it ended a transaction, "
                "or its transaction was aborted or is open"
            )
    except EmbedlogError as error:
        problem = site.message_of(error)
    facts: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "record": record}
    if record is not None:
        most = _UNFOLDED if request.query_params.get("part") else _WHOLE
        facts |= _facts(request, record, most)
    if request.query_params.get("part"):
        base = request.scope.get("root_path", "")
        return Response(
            part("record_part.html", base=base, problem=problem, is_part=True, **facts),
            media_type="text/html",
        )
    return page(
        request, "record.html", status=404 if record is None else 200, problem=problem, is_part=False, **facts
    )


def _isolation_level(request: Request) -> str:
    return "read_uncommitted" if request.query_params.get("uncommitted") == "yes" else "read_committed"


def download(request: Request) -> Response:
    """A record's value, its key, or the value of one of its headers by their order, byte for byte."""
    topic, partition, offset = _place(request)
    part_name = request.query_params.get("of", "value")
    level = _isolation_level(request)
    record = request.app.state.site.log.read_at(topic, partition, offset, isolation_level=level)
    data = None if record is None else _part_of(record, part_name)
    if data is None:
        raise HTTPException(404, "There is no such part of a record")
    name = "".join(char if (char.isascii() and char.isalnum()) or char in "._-" else "_" for char in topic)
    return Response(
        data,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}-{partition}-{offset}.{part_name}"'},
    )


def _part_of(record: Record, part_name: str) -> bytes | None:
    """which: `key`, `value`, or `header-0`."""
    kind, _, number = part_name.partition("-")
    if kind == "header" and number.isascii() and number.isdigit() and len(number) < 10:
        return next((data for _, data in record.headers[int(number) :]), None)
    return record.key if part_name == "key" else record.value if part_name == "value" else None


def _facts(request: Request, record: Record, most: int) -> dict[str, Any]:
    site = request.app.state.site
    serializer = site.serializers.get(record.topic)
    form_names = forms(record.value, serializer)
    form = request.query_params.get("as", "")
    form = form if form in form_names else next(iter(form_names), "")
    log_and_topic = [site.log.path, record.topic]
    place = ["--partition", str(record.partition), "--from", str(record.offset), "--max-records", "1"]
    return {
        "forms": form_names,
        "form": form,
        "value": view(record.value, form, serializer, most),
        "key": view(record.key, next(iter(forms(record.key, None)), ""), None, most),
        "headers": [
            (
                visible(name[:_OF_HEADER]),
                view(data, next(iter(forms(data, None)), ""), None, _OF_HEADER),
                len(data or b""),
            )
            for name, data in record.headers[:_MOST_HEADERS]
        ],
        "more_headers": max(len(record.headers) - _MOST_HEADERS, 0),
        "set_by": "log" if record.timestamp_type == LOG_APPEND_TIME else "producer",
        "command": shlex.join(["embedlog", "cat", *log_and_topic, *place, "--json"]),
        "program": f"import embedlog\n\nwith embedlog.open({_opened(site.log.path)}) as log:\n"
        f"    record = log.read_at({record.topic!r}, {record.partition}, {record.offset})",
    }


def _opened(path: str) -> str:
    return repr(path) if "://" in path else f'{path!r}, mode="r"'


def _place(request: Request) -> tuple[str, int, int]:
    """Raises HTTPException."""
    texts = [request.query_params.get(name, "") for name in ("partition", "offset")]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in texts):
        raise HTTPException(404, "There is no such record")
    partition, offset = map(int, texts)
    if partition > 1 << 30 or offset > MAX_INT64:
        raise HTTPException(404, "There is no such record")
    return request.path_params["topic"], partition, offset
