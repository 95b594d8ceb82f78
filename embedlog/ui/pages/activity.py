"""What copies records in and out: mirrors into this log, and tables that are loaded from it.

    a directory    mirrors note themselves there (mirroring/notes.py); positions are in their batches
    brokers        a mirror's positions are the offsets of a group, which name its source's topic id

A mirror or a load that reads this log takes no lock and leaves nothing in it: where a load is, its table
knows, so the page has to be told of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import EmbedlogError
from ...mirroring.copy_sink import next_source_offset
from ...mirroring.notes import NotedMirror, noted_mirrors
from ...spark.load_plan import Status, status
from ...storage.producer_state import FIRST_MIRROR_ID
from ..producers import look
from ..rendering import page

if TYPE_CHECKING:
    from ...clients.group_admin import ConsumerGroupDescription
    from ...log import Log
    from ..sampler import Sample

_TOGETHER: Final = 100  # topics of mirrors, groups or tables on a page
_PARTITIONS: Final = 200  # that are asked for positions of mirrors
# What a mirror commits as metadata: a topic's id, and its map of offsets.
_OF_A_MIRROR: Final = re.compile(r"[A-Za-z0-9_-]{22}( [A-Za-z0-9+/]+)?")


class Position(NamedTuple):
    """How far a source's partition is copied: the next offset to read there, and when records last came; -1
    if that is unknown."""

    partition: int
    next_offset: int
    last_ms: int


class MirrorGroup(NamedTuple):
    """A group whose offsets are a mirror's positions in its source, of one topic of this log."""

    group: str
    topic: str
    positions: tuple[Position, ...]


class Table(NamedTuple):
    """A table that is loaded from this log; problem: why its status cannot be told."""

    path: str
    status: Status | None
    problem: str


def routes() -> list[BaseRoute]:
    return [Route("/activity", activity, name="activity")]


def activity(request: Request) -> Response:
    site = request.app.state.site
    problems: list[str] = []
    mirrors: list[NotedMirror] = []
    if site.store is not None:
        try:
            mirrors = _of_topics(noted_mirrors(site.store.catalog), site.log.topics(internal=True))
        except EmbedlogError as error:
            problems.append(site.message_of(error))
    sample = site.sampler.latest()
    positions, looked_at, partition_count = _positions(site.log, sample, site.message_of)
    noted_topics = {topic.target_topic for mirror in mirrors for topic in mirror.topics}
    groups = [mirror for group in sample.groups.values() for mirror in mirror_groups(group)]
    return page(
        request,
        "activity.html",
        problems=problems,
        mirrors=mirrors[:_TOGETHER],
        positions=positions,
        unknown={topic: places for topic, places in positions.items() if topic not in noted_topics},
        looked_at=looked_at,
        of=partition_count,
        groups=groups[:_TOGETHER],
        tables=[_table(site.log, path) for path in site.tables[:_TOGETHER]],
        most=_TOGETHER,
    )


def _of_topics(mirrors: list[NotedMirror], topics: list[str]) -> list[NotedMirror]:
    """Those that copy into topics that there are, as far as the visitor may see."""
    names = set(topics)
    visible_mirrors = [
        mirror._replace(topics=tuple(topic for topic in mirror.topics if topic.target_topic in names))
        for mirror in mirrors
    ]
    return [
        mirror
        for mirror, whole in zip(visible_mirrors, mirrors, strict=True)
        if mirror.topics or not whole.topics
    ]


def _positions(
    log: Log, sample: Sample, message_of: Callable[[BaseException], str]
) -> tuple[Mapping[str, list[Position]], int, int]:
    """By topic of this log, how far its mirrors' sources are copied; how many partitions were asked."""
    looked = look(log, sample, "", 0, _PARTITIONS, message_of)
    positions: dict[str, list[Position]] = {}
    for tp, producer in looked.producers:
        if producer.producer_id >= FIRST_MIRROR_ID:
            place = Position(tp.partition, next_source_offset(producer), producer.last_timestamp_ms)
            positions.setdefault(tp.topic, []).append(place)
    return positions, looked.partitions, looked.of


def mirror_groups(group: ConsumerGroupDescription) -> list[MirrorGroup]:
    """The topics of a group, if it is a mirror that keeps its positions there; else none."""
    commits = {
        tp: position.committed for tp, position in group.partitions.items() if position.committed is not None
    }
    if group.members or not all(_OF_A_MIRROR.fullmatch(commit.metadata) for commit in commits.values()):
        return []
    topics: dict[str, list[Position]] = {}
    for tp, commit in commits.items():
        place = Position(tp.partition, commit.offset, commit.commit_timestamp_ms)
        topics.setdefault(tp.topic, []).append(place)
    return [MirrorGroup(group.group, topic, tuple(positions)) for topic, positions in topics.items()]


def _table(log: Log, path: str) -> Table:
    try:
        return Table(path, status(log, to=path), "")
    except (EmbedlogError, OSError) as error:
        return Table(path, None, str(error))
