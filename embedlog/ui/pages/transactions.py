"""Transactional ids and their last transactions; with --writable, an open one can be aborted. Producers."""

from __future__ import annotations

import logging
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import InvalidArgument, UnsupportedByBackend, shown
from ...storage.producer_state import FIRST_MIRROR_ID
from ..guard import check_writable, form
from ..producers import look
from ..rendering import page, see_other
from .overview import number

logger = logging.getLogger(__name__)

_TOGETHER: Final = 100  # transactional ids or producers on a page
_PARTITIONS: Final = 50  # whose producers are looked at
_OFFERED: Final = 200  # topics, to choose from


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
        problem = site.told(error)
    found.sort(key=lambda each: (not each.is_open, -max(each.last_update_ms, each.start_ms)))
    sample = site.sampler.latest()
    topic = request.query_params.get("topic", "")
    first = number(request.query_params.get("first", "0"), 1 << 30)
    looked = look(site.log, sample, topic, first, _PARTITIONS, site.told)
    # Those with an open transaction first, then those that appended last.
    looked.producers.sort(key=lambda each: (each[1].transaction_start < 0, -each[1].last_timestamp_ms))
    return page(
        request,
        "transactions.html",
        transactions=found[:_TOGETHER],
        found=len(found),
        problem=problem,
        has_updates=any(each.last_update_ms >= 0 for each in found),
        topic=topic,
        topics=[each.name for each in sample.topics.values() if not each.is_internal][:_OFFERED],
        looked=looked,
        first=first,
        together=_PARTITIONS,
        producers=looked.producers[:_TOGETHER],
        ids={each.producer_id: each.transactional_id for each in found},
        first_mirror_id=FIRST_MIRROR_ID,
    )


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
