"""Transactional ids and their last transactions; with --writable, an open one can be aborted. Producers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import EmbedlogError, InvalidArgument, UnsupportedByBackend, shown
from ...model import ProducerDescription, TopicPartition
from ...storage.producer_state import FIRST_MIRROR_ID
from ..guard import check_writable, form
from ..rendering import page, see_other
from .overview import number

if TYPE_CHECKING:
    from ...log import Log

logger = logging.getLogger(__name__)

_TOGETHER: Final = 100  # transactional ids or producers on a page
_PARTITIONS: Final = 50  # whose producers are looked at
_LOOK_S: Final = 0.5
_OFFERED: Final = 200  # topics, to choose from


class _Looked(NamedTuple):
    """The producers of some partitions, and of how many. problems: why others could not be looked at."""

    producers: list[tuple[TopicPartition, ProducerDescription]]
    problems: list[str]
    partitions: int
    of: int


def routes() -> list[BaseRoute]:
    return [
        Route("/transactions", transactions, name="transactions"),
        Route("/transactions/abort", abort, methods=["POST"]),
    ]


def transactions(request: Request) -> Response:
    """Transactional ids, those that are open first, then the latest; and the producers of a topic, or of the
    first partitions that there are."""
    site = request.app.state.site
    found, problem = [], ""
    try:
        found = site.log.transactions()
    except UnsupportedByBackend as error:
        problem = str(error)
    found.sort(key=lambda each: (not each.is_open, -max(each.last_update_ms, each.start_ms)))
    topic = request.query_params.get("topic", "")
    first = number(request.query_params.get("first", "0"), 1 << 30)
    looked = _look(site.log, topic, first)
    return page(
        request,
        "transactions.html",
        transactions=found[:_TOGETHER],
        found=len(found),
        problem=problem,
        has_updates=any(each.last_update_ms >= 0 for each in found),
        topic=topic,
        topics=site.log.topics()[:_OFFERED],
        looked=looked,
        first=first,
        together=_PARTITIONS,
        producers=looked.producers[:_TOGETHER],
        ids={each.producer_id: each.transactional_id for each in found},
        first_mirror_id=FIRST_MIRROR_ID,
    )


def _look(log: Log, topic: str, first: int) -> _Looked:
    """The producers of a topic's partitions, or of all topics', as far as there is time. Those with an open
    transaction first, then those that appended last."""
    looked = _Looked([], [], 0, 0)
    deadline = time.monotonic() + _LOOK_S
    for name in [topic] if topic else log.topics():
        try:
            count = log.describe_topic(name).partitions
            numbers = range(first if topic else 0, count)[: _PARTITIONS - looked.partitions]
            looked = looked._replace(of=looked.of + count)
            if not numbers or time.monotonic() > deadline:
                continue
            producers = log.backend.producers(name, numbers)
            looked = looked._replace(partitions=looked.partitions + len(numbers))
        except EmbedlogError as error:  # deleted meanwhile, or damaged
            looked.problems.append(str(error))
            continue
        looked.producers.extend(
            (TopicPartition(name, number), each) for number, found in producers.items() for each in found
        )
    looked.producers.sort(key=lambda each: (each[1].transaction_start < 0, -each[1].last_timestamp_ms))
    return looked


async def abort(request: Request) -> Response:
    """Abort an open transaction: its producer gets an error."""
    check_writable(request)
    given = await form(request)
    name = given.get("id", "")
    if given.get("confirm") != name:
        raise InvalidArgument(f"write the transactional id, {shown(name)}, to abort its transaction")
    await run_in_threadpool(request.app.state.site.log.abort_transaction, name)
    logger.info("the transaction of %s was aborted", name)
    return see_other(request, "/transactions")
