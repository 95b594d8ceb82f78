"""The producers that partitions know, for the pages that show them: so many partitions, for so long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import EmbedlogError
from ..model import ProducerDescription, TopicPartition

if TYPE_CHECKING:
    from ..log import Log

_LOOK_S: Final = 0.5


class Looked(NamedTuple):
    """The producers of some partitions, and of how many. problems: why others could not be looked at."""

    producers: list[tuple[TopicPartition, ProducerDescription]]
    problems: list[str]
    partitions: int
    of: int


def look(log: Log, topic: str, first: int, most: int) -> Looked:
    """The producers of at most so many partitions: of a topic, from its partition `first` on, or of all
    topics if it is ""."""
    looked = Looked([], [], 0, 0)
    deadline = time.monotonic() + _LOOK_S
    for name in [topic] if topic else log.topics():
        try:
            count = log.describe_topic(name).partitions
            numbers = range(first if topic else 0, count)[: most - looked.partitions]
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
    return looked
