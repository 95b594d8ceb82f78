"""Transactional ids and their last transactions; with --writable, one that is open can be aborted."""

from __future__ import annotations

import logging
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...errors import InvalidArgument, UnsupportedByBackend, shown
from ..guard import check_writable, form
from ..rendering import page, see_other

logger = logging.getLogger(__name__)

_TOGETHER: Final = 100


def routes() -> list[BaseRoute]:
    return [
        Route("/transactions", transactions, name="transactions"),
        Route("/transactions/abort", abort, methods=["POST"]),
    ]


def transactions(request: Request) -> Response:
    """Those that are open first, then the latest."""
    found, problem = [], ""
    try:
        found = request.app.state.site.log.transactions()
    except UnsupportedByBackend as error:
        problem = str(error)
    found.sort(key=lambda each: (not each.is_open, -each.last_update_ms))
    return page(
        request, "transactions.html", transactions=found[:_TOGETHER], found=len(found), problem=problem
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
