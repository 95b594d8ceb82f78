"""Work queues: what waits, is locked, delayed or dead; with --writable, dead letters are sent again."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...backends.remote import RemoteBackend
from ...clients.queue_admin import (
    REDRIVE_GROUP,
    dead_letter_topic,
    describe_queues,
    redrive,
    unfinished_jobs,
)
from ...errors import GroupNotFound, InvalidArgument
from ...log import Log
from ...model import Record
from ..dead_letters import DeadLetter, dead_letter
from ..guard import check_writable, form
from ..rendering import page, see_other
from ..values import preview
from . import broker_queues

logger = logging.getLogger(__name__)

_TOGETHER: Final = 100  # queues, partitions, jobs or dead letters on a page
_LAST: Final = 3  # offsets, some of which may be those of transactions' markers
_MOST_REDRIVEN: Final = 10_000  # by one click


def routes() -> list[BaseRoute]:
    return [
        Route("/queues", queues, name="queues"),
        Route("/queue", queue, name="queue"),
        Route("/queue/redrive", send_again, methods=["POST"]),
    ]


def queues(request: Request) -> Response:
    """All queues."""
    backend = request.app.state.site.log.backend
    if isinstance(backend, RemoteBackend):
        return broker_queues.list_page(request, backend)
    queues = describe_queues(backend)
    return page(request, "queues.html", queues=queues[:_TOGETHER], total=len(queues), together=_TOGETHER)


def queue(request: Request) -> Response:
    """A queue, its first unfinished jobs, its dead letters. Raises GroupNotFound, TopicNotFound."""
    site = request.app.state.site
    topic, group = request.query_params.get("topic", ""), request.query_params.get("group", "")
    if isinstance(site.log.backend, RemoteBackend):
        return broker_queues.queue_page(request, site.log.backend, topic, group)
    (queue_description,) = describe_queues(site.log.backend, topic, group)
    serializer = site.serializers.get(topic)
    jobs = itertools.islice(unfinished_jobs(site.log.backend, topic, group), _TOGETHER)
    letters = itertools.islice(_dead_letters(site, topic), _TOGETHER) if queue_description.dead else iter(())
    return page(
        request,
        "queue.html",
        topic=topic,
        group=group,
        queue=queue_description,
        partitions=queue_description.group.partitions[:_TOGETHER],
        jobs=[(job, preview(job.record.key, None), preview(job.record.value, serializer)) for job in jobs],
        now_ms=time.time_ns() // 1_000_000,
        letters=list(letters),
        last=_last_letter(site.log, topic) if queue_description.dead else None,
        dead_topic=dead_letter_topic(topic),
        most=_MOST_REDRIVEN,
        together=_TOGETHER,
    )


async def send_again(request: Request) -> Response:
    """Send dead letters again: one, or all of them up to a number."""
    check_writable(request)
    fields = await form(request)
    topic, group = fields.get("topic", ""), fields.get("group", "")
    places = None if fields.get("which") == "all" else {_place(fields.get("which", ""))}
    log: Log = request.app.state.site.log

    def work() -> None:
        sent = 0
        for letter in itertools.islice(
            redrive(log.backend, dead_letter_topic(topic), chosen=places), _MOST_REDRIVEN
        ):
            logger.info("dead letter %d:%d of %s was sent again: %s", *letter[:2], topic, letter)
            sent += 1
        if places is not None and not sent:
            raise InvalidArgument(f"there is no dead letter {fields['which']}: it was sent again, or deleted")

    await run_in_threadpool(work)
    return see_other(request, "/queue", topic=topic, group=group)


def _dead_letters(site: Any, topic: str) -> Iterator[DeadLetter]:
    """Those that were not sent again."""
    name = dead_letter_topic(topic)
    records: Iterator[Record]
    try:
        records = (job.record for job in unfinished_jobs(site.log.backend, name, REDRIVE_GROUP))
    except GroupNotFound:  # none was sent again yet
        records = site.log.read(name)
    for record in records:
        yield dead_letter(record, site.serializers.get(topic))


def _last_letter(log: Log, topic: str) -> DeadLetter | None:
    """The youngest of the last letters of each partition, whose error is the queue's last that was kept."""
    name, last = dead_letter_topic(topic), None
    for partition, edges in itertools.islice(log.offsets(name).items(), _TOGETHER):
        start = max(edges.log_start_offset, edges.log_end_offset - _LAST)
        for record in log.read(name, partition, start=start):
            if last is None or record.timestamp_ms >= last.timestamp_ms:
                last = record
    return None if last is None else dead_letter(last, None)


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not all(digits.isascii() and digits.isdigit() and len(digits) < 20 for digits in (partition, offset)):
        raise InvalidArgument("say which dead letter: its partition and its offset")
    return int(partition), int(offset)
