"""What a connection remembers of its last small produce request, to handle the next one by a template.

The second request in a row that has the same fields but for its records makes the template
(wire/request_template.py): it costs more than decoding one. Records are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...wire.apis.produce import ProduceRequest
from ...wire.frames import RequestHeader
from ...wire.owner_apis import ANY_OFFSET, OwnerPartitionProduceData, OwnerProduceRequest
from ...wire.request_template import RequestTemplate, template_of
from .broker_context import RequestContext

ACKS: Final = frozenset({-1, 0, 1})
"""What `acks` may be."""

_FIRST_WITH_TOPIC_IDS: Final = 13


class LastProduce:
    """A connection's last small produce request. `fields` are all but its partitions and their records.
    `topic` is the name of the first topic; None if the request has ids. `rules` is the number of changes of
    ACLs by which it was allowed."""

    __slots__ = ("context", "fields", "request", "rules", "template", "topic")

    def __init__(
        self, fields: Sequence[object], context: RequestContext, request: ProduceRequest, rules: int
    ) -> None:
        self.fields = fields
        self.rules = rules
        self.context = context
        self.request = request
        self.topic = None if context.version >= _FIRST_WITH_TOPIC_IDS else request.topic_data[0].name
        self.template: RequestTemplate | None = None


def remember(
    frame: memoryview, header: RequestHeader, context: RequestContext, request: ProduceRequest, rules: int
) -> None:
    """Keep a produce request's fields, and make a template if the previous request had the same.

    rules: see `LastProduce`.
    """
    if request.acks not in ACKS or request.transactional_id is not None or not request.topic_data:
        return
    if any(
        isinstance(partition, OwnerPartitionProduceData) and partition.expected_offset != ANY_OFFSET
        for topic in request.topic_data
        for partition in topic.partition_data
    ):
        return
    connection = context.connection
    fields = (
        context.version,
        context.client_id,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        isinstance(request, OwnerProduceRequest) and request.flush,
        [(topic.name, topic.topic_id) for topic in request.topic_data],
    )
    last = connection.application_state
    if isinstance(last, LastProduce) and last.fields == fields:
        last.rules = rules
        if last.template is None:
            last.template = template_of(frame, header, request)
    else:
        connection.application_state = LastProduce(fields, context, request, rules)
    for topic in request.topic_data:
        topic.partition_data.clear()
