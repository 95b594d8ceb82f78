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

from ...clients.group_admin import ConsumerGroup, ConsumerGroupDescription, OffsetReset
from ...clients.places import Place, place
from ...errors import InvalidArgument, shown
from ...model import TopicPartition
from ...units import moment
from .. import plots
from ..guard import check_writable, form
from ..lags import Lags
from ..rendering import page, see_other
from .overview import number

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
    sampler = request.app.state.site.sampler
    sample = sampler.latest()
    search = request.query_params.get("search", "")
    matching = [description for name, description in sample.groups.items() if search.lower() in name.lower()]
    matching.sort(key=lambda description: (-description.lag, description.group))
    return page(
        request,
        "groups.html",
        sample=sample,
        groups=matching[:_TOGETHER],
        total=len(matching),
        search=search,
        spark=lambda description: _spark(sampler.lags.of_group(description.group), description.group),
    )


def group(request: Request) -> Response:
    """One group, and how far it or one of its partitions is behind over time. Raises GroupNotFound and what
    describing it raises."""
    site = request.app.state.site
    name = request.query_params.get("name", "")
    group: ConsumerGroup = site.log.group(name)
    description = group.describe()
    site.sampler.latest()  # so that there are samples from now on
    partition = _partition_of(request, description)
    if partition is None:
        lags = site.sampler.lags.of_group(name)
    else:
        lags = site.sampler.lags.look_at(name, partition)
    first = number(request.query_params.get("first", "0"), len(description.partitions))
    # All of them in order if they fit on a page, else those most behind first.
    partitions = list(description.partitions.items())
    if len(partitions) > _TOGETHER:
        partitions.sort(key=lambda row: -(row[1].lag or 0))
    partitions = partitions[first : first + _TOGETHER]
    lags_by_partition = site.sampler.lags.of_partitions(name, [tp for tp, _ in partitions])
    return page(
        request,
        "group.html",
        name=name,
        group=description,
        members=description.members[:_TOGETHER],
        partitions=partitions,
        first=first,
        oldest_ms=group.oldest_unread_ms(description) if len(description.partitions) <= _TOGETHER else None,
        of=partition,
        plot=_plot(lags, "the group" if partition is None else str(partition)),
        lags=lags,
        sparks={tp: _spark(series, str(tp)) for tp, series in lags_by_partition.items()},
        together=_TOGETHER,
    )


def preview(request: Request) -> Response:
    """What a reset would do. Raises what it raises."""
    site = request.app.state.site
    check_writable(request)
    query = request.query_params
    to = place(query.get("to", ""))
    group: ConsumerGroup = site.log.group(query.get("name", ""))
    changes = _reset(group, query, to, dry_run=True)
    return page(
        request,
        "group_reset.html",
        name=group.name,
        to=to.isoformat(" ", "seconds") if isinstance(to, datetime) else query["to"].strip(),
        topic=query.get("topic", ""),
        partition=query.get("partition", ""),
        changes=list(changes.items())[:_TOGETHER],
        count=len(changes),
    )


async def reset(request: Request) -> Response:
    """Do what the preview has shown."""
    check_writable(request)
    fields = await form(request)

    def work() -> str:
        group: ConsumerGroup = request.app.state.site.log.group(fields.get("name", ""))
        changes = _reset(group, fields, place(fields.get("to", "")), dry_run=False)
        for tp, change in changes.items():
            logger.info("group %s: %s reset from %s to %d", group.name, tp, change.before, change.after)
        return group.name

    name = await run_in_threadpool(work)
    return see_other(request, "/group", name=name)


async def delete(request: Request) -> Response:
    """Delete a group and its offsets."""
    check_writable(request)
    fields = await form(request)
    name = fields.get("name", "")
    if fields.get("confirm") != name:
        raise InvalidArgument(f"write the group's name, {shown(name)}, to delete it with its offsets")
    await run_in_threadpool(request.app.state.site.log.group(name).delete)
    logger.info("group %s was deleted", name)
    return see_other(request, "/groups")


def _reset(
    group: ConsumerGroup, fields: Mapping[str, str], to: Place, *, dry_run: bool
) -> dict[TopicPartition, OffsetReset]:
    topic, partition = fields.get("topic", ""), fields.get("partition", "").strip()
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise InvalidArgument(f"{shown(partition)} is no partition: write a number, or nothing for all")
    return group.reset(
        topic or None, to=to, partitions=int(partition) if partition else None, dry_run=dry_run
    )


def _partition_of(request: Request, description: ConsumerGroupDescription) -> TopicPartition | None:
    """The partition whose lag is to be shown; None: that of the group."""
    query = request.query_params
    tp = TopicPartition(query.get("topic", ""), number(query.get("partition", ""), 1 << 30))
    return tp if tp in description.partitions else None


def _spark(lags: Lags, title: str) -> str:
    if len(lags.values) < 2:
        return ""
    return plots.line(lags.values[-60:], f"records behind of {title}, the last two minutes")


def _plot(lags: Lags, title: str) -> str:
    if len(lags.values) < 2:
        return ""
    return plots.line(lags.values, f"records behind of {title} since {moment(lags.since_ms)}", kind="plot")
