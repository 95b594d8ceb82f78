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
    descriptions, problem = [], ""
    try:
        descriptions = site.log.transactions()
    except UnsupportedByBackend as error:
        problem = site.message_of(error)
    descriptions.sort(key=lambda tx: (not tx.is_open, -max(tx.last_update_ms, tx.start_ms)))
    sample = site.sampler.latest()
    topic = request.query_params.get("topic", "")
    first = number(request.query_params.get("first", "0"), 1 << 30)
    looked = look(site.log, sample, topic, first, _PARTITIONS, site.message_of)
    # Those with an open transaction first, then those that appended last.
    looked.producers.sort(key=lambda pair: (pair[1].transaction_start < 0, -pair[1].last_timestamp_ms))
    return page(
        request,
        "transactions.html",
        transactions=descriptions[:_TOGETHER],
        total=len(descriptions),
        problem=problem,
        has_updates=any(tx.last_update_ms >= 0 for tx in descriptions),
        topic=topic,
        topics=[topic_sample.name for topic_sample in sample.topics.values() if not topic_sample.is_internal][
            :_OFFERED
        ],
        looked=looked,
        first=first,
        together=_PARTITIONS,
        producers=looked.producers[:_TOGETHER],
        ids={tx.producer_id: tx.transactional_id for tx in descriptions},
        first_mirror_id=FIRST_MIRROR_ID,
    )


async def abort(request: Request) -> Response:
    """Abort an open transaction: its producer gets an error."""
    check_writable(request)
    fields = await form(request)
    name = fields.get("id", "")
    if fields.get("confirm") != name:
        raise InvalidArgument(f"write the transactional id, {shown(name)}, to abort its transaction")
    await run_in_threadpool(request.app.state.site.log.abort_transaction, name)
    logger.info("the transaction of %s was aborted", name)
    return see_other(request, "/transactions")
