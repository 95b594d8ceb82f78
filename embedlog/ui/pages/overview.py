"""The first page: the log in figures, its health in words, its topics."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .. import plots
from ..rendering import page
from ..sampler import TopicSample

_TOGETHER: Final = 100  # topics on a page
_ORDERS: Final = {
    "name": lambda topic: topic.name,
    "records": lambda topic: -topic.records,
    "size": lambda topic: -(topic.bytes or 0),
    "rate": lambda topic: -topic.rate,
}


def routes() -> list[BaseRoute]:
    return [Route("/", overview, name="overview")]


def overview(request: Request) -> Response:
    site = request.app.state.site
    sample = site.sampler.latest()
    wanted = request.query_params.get("search", "")
    order = request.query_params.get("order", "name")
    internal = request.query_params.get("internal") == "yes"
    found = [
        topic
        for topic in sample.topics.values()
        if wanted.lower() in topic.name.lower() and (internal or not topic.is_internal)
    ]
    found.sort(key=_ORDERS.get(order, _ORDERS["name"]))
    first = _number(request.query_params.get("first", "0"), len(found))
    return page(
        request,
        "overview.html",
        sample=sample,
        topics=found[first : first + _TOGETHER],
        found=len(found),
        first=first,
        together=_TOGETHER,
        search=wanted,
        order=order,
        internal=internal,
        spark=_spark,
        records=sum(topic.records for topic in sample.topics.values() if not topic.is_internal),
        rate=sum(topic.rate for topic in sample.topics.values() if not topic.is_internal),
    )


def _spark(topic: TopicSample) -> str:
    return plots.line(topic.rates[-60:], f"records per second of {topic.name}, the last two minutes")


def _number(text: str, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 10 else 0
