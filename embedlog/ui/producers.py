"""The producers that partitions know, for the pages that show them: so many partitions, for so long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ..backends.remote import RemoteBackend
from ..errors import EmbedlogError
from ..model import ProducerDescription, TopicPartition

if TYPE_CHECKING:
    from ..log import Log
    from .sampler import Sample

_LOOK_S: Final = 0.5


class Looked(NamedTuple):
    """The producers of some partitions, and of how many. problems: why others could not be looked at."""

    producers: list[tuple[TopicPartition, ProducerDescription]]
    problems: list[str]
    partitions: int
    of: int


def look(
    log: Log, sample: Sample, topic: str, first: int, most: int, message_of: Callable[[BaseException], str]
) -> Looked:
    """The producers of at most so many partitions: of a topic, from its partition `first` on, or of all
    topics if it is "". message_of: what the visitor may read of an error."""
    problems: list[str] = []
    try:
        if topic:
            counts = {topic: log.describe_topic(topic).partitions}
        else:
            counts = {
                name: len(topic_sample.edges)
                for name, topic_sample in sample.topics.items()
                if not topic_sample.is_internal
            }
    except EmbedlogError as error:
        return Looked([], [message_of(error)], 0, 0)
    partitions = [
        TopicPartition(name, number)
        for name, count in counts.items()
        for number in range(first if topic else 0, count)
    ][:most]
    # Brokers are asked for all at once; files are read topic by topic, as far as they are intact.
    by_topic = itertools.groupby(partitions, key=lambda tp: tp.topic)
    together = (
        [partitions]
        if isinstance(log.backend, RemoteBackend)
        else [list(of_topic) for _, of_topic in by_topic]
    )
    producers: list[tuple[TopicPartition, ProducerDescription]] = []
    looked_at = 0
    deadline = time.monotonic() + _LOOK_S
    for names in together:
        if time.monotonic() > deadline:
            break
        try:
            by_partition = log.backend.producers(names)
        except EmbedlogError as error:  # deleted meanwhile, or damaged
            problems.append(message_of(error))
            continue
        looked_at += len(names)
        producers += [(tp, producer) for tp in by_partition for producer in by_partition[tp]]
    return Looked(producers, problems, looked_at, sum(counts.values()))
