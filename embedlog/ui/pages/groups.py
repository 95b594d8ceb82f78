"""Consumer groups: who reads what, how far behind; with --writable, where they go on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...clients.group_admin import ConsumerGroup, OffsetReset
from ...clients.places import Place, place
from ...errors import InvalidArgument, shown
from ...model import TopicPartition
from .. import plots
from ..guard import check_writable, form
from ..rendering import page, see_other
from ..sampler import GroupSample

logger = logging.getLogger(__name__)

_TOGETHER: Final = 100  # groups, members or partitions on a page


def routes() -> list[BaseRoute]:
    return [
        Route("/groups", groups, name="groups"),
        Route("/group", group, name="group"),
        Route("/group/reset", preview, name="reset"),
        Route("/group/reset", reset, methods=["POST"]),
        Route("/group/delete", delete, methods=["POST"]),
    ]


def groups(request: Request) -> Response:
    """All groups, those that are most behind first."""
    sample = request.app.state.site.sampler.latest()
    wanted = request.query_params.get("search", "")
    found = [each for name, each in sample.groups.items() if wanted.lower() in name.lower()]
    found.sort(key=lambda each: (-each.described.lag, each.described.group))
    return page(
        request,
        "groups.html",
        sample=sample,
        groups=found[:_TOGETHER],
        found=len(found),
        search=wanted,
        spark=_spark,
    )


def group(request: Request) -> Response:
    """One group. Raises GroupNotFound and what describing it raises."""
    site = request.app.state.site
    name = request.query_params.get("name", "")
    chosen: ConsumerGroup = site.log.group(name)
    described = chosen.describe()
    sampled = site.sampler.latest().groups.get(name)
    return page(
        request,
        "group.html",
        name=name,
        group=described,
        members=described.members[:_TOGETHER],
        partitions=list(described.partitions.items())[:_TOGETHER],
        oldest_ms=chosen.oldest_unread_ms(described) if len(described.partitions) <= _TOGETHER else None,
        lags=_lags(sampled),
        together=_TOGETHER,
    )


def preview(request: Request) -> Response:
    """What a reset would do. Raises what it raises."""
    site = request.app.state.site
    check_writable(request)
    given = request.query_params
    to = place(given.get("to", ""))
    chosen: ConsumerGroup = site.log.group(given.get("name", ""))
    changes = _reset(chosen, given, to, dry_run=True)
    return page(
        request,
        "group_reset.html",
        name=chosen.name,
        to=to.isoformat(" ", "seconds") if isinstance(to, datetime) else given["to"].strip(),
        topic=given.get("topic", ""),
        partition=given.get("partition", ""),
        changes=list(changes.items())[:_TOGETHER],
        count=len(changes),
    )


async def reset(request: Request) -> Response:
    """Do what the preview has shown."""
    check_writable(request)
    given = await form(request)

    def work() -> str:
        chosen: ConsumerGroup = request.app.state.site.log.group(given.get("name", ""))
        changes = _reset(chosen, given, place(given.get("to", "")), dry_run=False)
        for tp, change in changes.items():
            logger.info("group %s: %s reset from %s to %d", chosen.name, tp, change.before, change.after)
        return chosen.name

    name = await run_in_threadpool(work)
    return see_other(request, "/group", name=name)


async def delete(request: Request) -> Response:
    """Delete a group and its offsets."""
    check_writable(request)
    given = await form(request)
    name = given.get("name", "")
    if given.get("confirm") != name:
        raise InvalidArgument(f"write the group's name, {shown(name)}, to delete it with its offsets")
    await run_in_threadpool(request.app.state.site.log.group(name).delete)
    logger.info("group %s was deleted", name)
    return see_other(request, "/groups")


def _reset(
    chosen: ConsumerGroup, given: Mapping[str, str], to: Place, *, dry_run: bool
) -> dict[TopicPartition, OffsetReset]:
    topic, partition = given.get("topic", ""), given.get("partition", "").strip()
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise InvalidArgument(f"{shown(partition)} is no partition: write a number, or nothing for all")
    return chosen.reset(
        topic or None, to=to, partitions=int(partition) if partition else None, dry_run=dry_run
    )


def _spark(each: GroupSample) -> str:
    return plots.line(each.lags[-60:], "records behind, the last two minutes")


def _lags(sampled: GroupSample | None) -> str:
    if sampled is None or len(sampled.lags) < 2:
        return ""
    title = "records behind, since this page began, for up to a quarter of an hour"
    return plots.line(sampled.lags, title, kind="plot")
