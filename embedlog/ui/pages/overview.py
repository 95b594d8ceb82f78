"""The first page: the log in figures, its health in words, its topics."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...backends.port import Backend
from ...backends.remote import RemoteBackend
from ...clients.queue_admin import dead_letter_topic, dead_letters
from ...errors import EmbedlogError
from ...files.names import CLEAN_SHUTDOWN_FILE, WRITER_FILE
from .. import plots, words
from ..rendering import page
from ..sampler import Sample, TopicSample

if TYPE_CHECKING:
    from ...log import Log
    from ...store.read_only_store import ReadOnlyStore

_TOGETHER: Final = 100  # topics on a page
_ORDERS: Final[dict[str, Callable[[TopicSample], Any]]] = {
    "name": lambda topic: topic.name,
    "records": lambda topic: -topic.records,
    "size": lambda topic: -(topic.bytes or 0),
    "rate": lambda topic: -topic.rate,
    "last": lambda topic: -topic.span.last_ms,
}


def routes() -> list[BaseRoute]:
    return [Route("/", overview, name="overview")]


def overview(request: Request) -> Response:
    site = request.app.state.site
    sample = site.sampler.latest()
    search = request.query_params.get("search", "")
    order = request.query_params.get("order", "name")
    internal = request.query_params.get("internal") == "yes"
    matching = [
        topic
        for topic in sample.topics.values()
        if search.lower() in topic.name.lower() and (internal or not topic.is_internal)
    ]
    lags = _lags(sample)
    orders = {
        **_ORDERS,
        "lag": lambda topic: -lags.get(topic.name, -1),
        "dead": lambda topic: -_letters(sample, topic.name),
    }
    matching.sort(key=orders.get(order, _ORDERS["name"]))
    first = number(request.query_params.get("first", "0"), len(matching))
    writer = _writer(site.store)
    max_bytes = writer.get("max_bytes")
    return page(
        request,
        "overview.html",
        sample=sample,
        topics=matching[first : first + _TOGETHER],
        total=len(matching),
        first=first,
        together=_TOGETHER,
        search=search,
        order=order,
        internal=internal,
        spark=spark,
        lags=lags,
        dead=_dead(site.log.backend, sample, matching[first : first + _TOGETHER]),
        kept={topic.name: _kept(site.log, topic.name) for topic in matching[first : first + _TOGETHER]},
        max_bytes=max_bytes if isinstance(max_bytes, int) else None,
        troubles=words.health(sample.health) if sample.health else [],
        last_opened=_last_opened(site.log, site.store, writer),
        brokers=_brokers(sample),
        records=sum(topic.records for topic in sample.topics.values() if not topic.is_internal),
        rate=sum(topic.rate for topic in sample.topics.values() if not topic.is_internal),
    )


def _lags(sample: Sample) -> dict[str, int]:
    """How far the group that is most behind is behind, for each topic that groups read."""
    lags: dict[str, int] = {}
    for group in sample.groups.values():
        lag_of = Counter[str]()
        for tp, position in group.partitions.items():
            lag_of[tp.topic] += position.lag or 0
        for topic, lag in lag_of.items():
            lags[topic] = max(lag, lags.get(topic, 0))
    return lags


def _letters(sample: Sample, topic: str) -> int:
    """How many dead letters a topic's queues have, those that were sent again among them; -1: no topic."""
    letters = sample.topics.get(dead_letter_topic(topic))
    return -1 if letters is None else letters.records


def _dead(backend: Backend, sample: Sample, topics: Sequence[TopicSample]) -> dict[str, int]:
    """The dead letters of topics that have had some; over the wire those that were sent again among them."""
    dead = {}
    for topic in topics:
        if (count := _letters(sample, topic.name)) >= 0:
            if count and not isinstance(backend, RemoteBackend):
                with contextlib.suppress(EmbedlogError):
                    count = dead_letters(backend, topic.name)
            dead[topic.name] = count
    return dead


def spark(topic: TopicSample) -> str:
    return plots.line(topic.rates[-60:], f"records per second of {topic.name}, the last two minutes")


def number(text: str, most: int) -> int:
    """A number of a query, at most `most`; 0 if it is none."""
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _kept(log: Log, topic: str) -> str:
    with contextlib.suppress(EmbedlogError):
        return words.kept(log.backend.topic_settings(topic))
    return ""


def _writer(store: ReadOnlyStore | None) -> dict[str, Any]:
    """What the directory's last writer noted."""
    if store is not None:
        with contextlib.suppress(OSError, EmbedlogError):
            return store.catalog.read_json(WRITER_FILE)
    return {}


def _last_opened(log: Log, store: ReadOnlyStore | None, writer: dict[str, Any]) -> str:
    """The last recovery; a process that only reads knows who writes."""
    with contextlib.suppress(EmbedlogError):
        return words.recovery(log.recovery)
    if store is None:
        return ""
    return words.writer(writer, store.fs.exists(store.catalog.file(CLEAN_SHUTDOWN_FILE)))


def _brokers(sample: Sample) -> list[tuple[int, str, int, bool]]:
    """(number, address, how many partitions it leads, whether it is the controller) of each broker."""
    if sample.cluster is None:
        return []
    leads = Counter(leader for leaders in sample.cluster.leaders.values() for leader in leaders)
    return [
        (node, f"{host}:{port}", leads[node], node == sample.cluster.controller)
        for node, (host, port) in sorted(sample.cluster.brokers.items())
    ]
