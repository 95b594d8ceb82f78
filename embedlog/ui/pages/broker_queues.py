"""Work queues of brokers: what is told of share groups over the wire, and dead letters as records."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...backends.remote import RemoteBackend
from ...backends.remote.share_admin import RemoteShareGroup, SharePosition
from ...clients.queue_admin import REDRIVE_GROUP, dead_letter_topic
from ...errors import EmbedlogError, GroupNotFound, TopicNotFound, shown
from ...log import Log
from ...model import PartitionOffsets, Record
from ..dead_letters import dead_letter
from ..rendering import page

_TOGETHER: Final = 100  # queues, partitions, members or dead letters on a page


class BrokerQueue(NamedTuple):
    """A share group of a topic. Brokers do not tell which records are locked, delayed or delivered before.

    unfinished: None if the brokers do not tell; at_most: the offsets from where the group is to the log's
    end. dead: the dead letters that were not sent again, of all groups; None if it has no such topic.
    """

    topic: str
    group: RemoteShareGroup
    partitions: dict[int, SharePosition]
    edges: dict[int, PartitionOffsets]
    dead: int | None

    @property
    def unfinished(self) -> int | None:
        counts = [position.unfinished for position in self.partitions.values()]
        return None if min(counts, default=0) < 0 else sum(counts)

    @property
    def at_most(self) -> int:
        return sum(
            self.edges[number].lag_at(position.start_offset)
            for number, position in self.partitions.items()
            if number in self.edges
        )


def list_page(request: Request, backend: RemoteBackend) -> Response:
    """All queues of brokers. An error of asking them stands on the page."""
    queues, count, problem = [], 0, ""
    try:
        groups = backend.share_groups.describe_all()
        names = sorted(
            (topic, group.group)
            for group in groups
            if group.group != REDRIVE_GROUP
            for topic in _topics(group)
        )
        group_of = {group.group: group for group in groups}
        log, count = request.app.state.site.log, len(names)
        for topic, name in names[:_TOGETHER]:
            with contextlib.suppress(TopicNotFound):  # deleted, the group's offsets are not yet
                queues.append(_queue(log, groups, group_of[name], topic))
    except EmbedlogError as error:
        problem = request.app.state.site.message_of(error)
    return page(
        request, "broker_queues.html", queues=queues, total=count, problem=problem, together=_TOGETHER
    )


def queue_page(request: Request, backend: RemoteBackend, topic: str, name: str) -> Response:
    """A queue of brokers. Raises GroupNotFound, TopicNotFound and what asking the brokers raises."""
    site = request.app.state.site
    groups = backend.share_groups.describe_all()
    group = next((group for group in groups if group.group == name and topic in _topics(group)), None)
    if group is None:
        raise GroupNotFound(f"no share group {shown(name)} of topic {shown(topic)}")
    queue = _queue(site.log, groups, group, topic)
    letters = itertools.islice(_dead_letters(site.log, groups, topic), _TOGETHER) if queue.dead else iter(())
    return page(
        request,
        "broker_queue.html",
        topic=topic,
        group=name,
        queue=queue,
        members=group.members[:_TOGETHER],
        partitions=sorted(queue.partitions.items())[:_TOGETHER],
        letters=[dead_letter(record, site.serializers.get(topic)) for record in letters],
        dead_topic=dead_letter_topic(topic),
        together=_TOGETHER,
    )


def _topics(group: RemoteShareGroup) -> list[str]:
    """The topics that a group has begun, or that its members subscribe to."""
    subscriptions = (topic for member in group.members for topic in member.topics)
    return sorted({*subscriptions, *(tp.topic for tp in group.partitions)})


def _queue(log: Log, groups: Sequence[RemoteShareGroup], group: RemoteShareGroup, topic: str) -> BrokerQueue:
    partitions = {tp.partition: position for tp, position in group.partitions.items() if tp.topic == topic}
    letters = dead_letter_topic(topic)
    dead = None
    if letters in log.topics():
        redriven = _redriven(groups, letters)
        dead = sum(
            redriven[number].unfinished
            if number in redriven and redriven[number].unfinished >= 0
            else edges.log_end_offset - edges.log_start_offset
            for number, edges in log.offsets(letters).items()
        )
    return BrokerQueue(topic, group, partitions, log.offsets(topic), dead)


def _redriven(groups: Sequence[RemoteShareGroup], letters: str) -> dict[int, SharePosition]:
    """How far dead letters have been sent again."""
    return {
        tp.partition: position
        for group in groups
        if group.group == REDRIVE_GROUP
        for tp, position in group.partitions.items()
        if tp.topic == letters
    }


def _dead_letters(log: Log, groups: Sequence[RemoteShareGroup], topic: str) -> Iterator[Record]:
    """The dead letters from where redriving is in each partition."""
    letters = dead_letter_topic(topic)
    redriven = _redriven(groups, letters)
    for number, edges in log.offsets(letters).items():
        start = max(edges.log_start_offset, redriven[number].start_offset if number in redriven else 0)
        yield from log.read(letters, partition=number, start=start)
