"""Dead letters as the pages of queues show them: where each is, where it was, who rejected it and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..model import Record
from .values import Shown, preview

if TYPE_CHECKING:
    from ..clients.serializers import Serializer

_LONGEST: Final = 500  # bytes of a header


class DeadLetter(NamedTuple):
    """A row of the table. Everything but its place comes from its headers, which anybody may have sent."""

    partition: int
    offset: int
    timestamp_ms: int
    origin: str
    group: str
    deliveries: str
    error: str
    key: Shown
    value: Shown


def dead_letter(record: Record, serializer: Serializer[Any] | None) -> DeadLetter:
    """A record of a topic of dead letters. serializer: of the values of the topic that it comes from."""
    headers = dict(record.headers)

    def text_of(key: str) -> str:
        return (headers.get(f"embedlog.{key}") or b"")[:_LONGEST].decode(errors="replace")

    return DeadLetter(
        record.partition,
        record.offset,
        record.timestamp_ms,
        f"{text_of('origin_topic')} {text_of('origin_partition')}, {text_of('origin_offset')}",
        text_of("group"),
        text_of("deliveries"),
        text_of("error"),
        preview(record.key, None),
        preview(record.value, serializer),
    )
