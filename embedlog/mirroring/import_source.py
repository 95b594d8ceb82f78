"""Finds the segment files of an import's source: a file, a partition's directory, or a directory of those."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import DirectoryError, InvalidArgument, NotALog
from ..files.names import INTERNAL_TOPICS, OFFSETS_TOPIC, check_topic_name
from ..model import TopicPartition

_SEGMENT: Final = re.compile(r"(\d{1,20})\.(?:kafka|log)\Z", re.ASCII)
_PARTITION: Final = re.compile(r"(?P<topic>.+)[-_](?P<number>\d{1,10})\Z", re.ASCII)
_INTERNAL: Final = INTERNAL_TOPICS | {"__cluster_metadata"}


class Found(NamedTuple):
    """The segment files of a source."""

    files: dict[TopicPartition, list[str]]
    """Of each target partition, in order."""
    skipped: Sequence[str] = ()
    """Directories left out, and why."""
    groups: Sequence[list[str]] = ()
    """Of each partition of `__consumer_offsets`."""
    renamed: Mapping[str, str] = MappingProxyType({})
    """Source topic -> name here."""


def find_files(source: str, target: str, topic: str | None, with_groups: bool) -> Found:
    """Find a source's segment files. Raises DirectoryError, NotALog, InvalidArgument."""
    if topic is not None:
        check_topic_name(topic)
    if not os.path.exists(source):
        raise DirectoryError(f"{source} does not exist", path=source)
    if os.path.commonpath([source, target]) == target:
        raise InvalidArgument(f"{source} is (in) the log that is to be imported into")
    if os.path.isfile(source):
        return Found({_target(os.path.dirname(source), topic): [source]})
    files = _segments(source)
    if files:
        return Found({_target(source, topic): files})
    by_source: dict[TopicPartition, list[str]] = {}
    skipped = []
    groups = []
    for entry in sorted(os.listdir(source)):
        directory = os.path.join(source, entry)
        match = _PARTITION.match(entry)
        files = _segments(directory) if match and os.path.isdir(directory) else []
        if match is None or not files:
            continue
        name = TopicPartition(match["topic"], int(match["number"]))
        if name.topic == OFFSETS_TOPIC and with_groups:
            groups.append(files)
        elif name.topic in _INTERNAL:
            skipped.append(f"{directory}: an internal topic of the broker that wrote it")
        elif name in by_source:
            raise InvalidArgument(f"{directory}: another directory beside it is partition {name} as well")
        else:
            by_source[name] = files
    topics = {name.topic for name in by_source}
    if topic is not None and topic in topics:
        only = {name: files for name, files in by_source.items() if name.topic == topic}
        return Found(only, skipped, groups)
    if topic is not None and len(topics) > 1:
        raise InvalidArgument(
            f"{source} has the topics {', '.join(sorted(topics))}, and not {topic!r}: import one partition's "
            "directory at a time to give it another name"
        )
    if not by_source:
        raise NotALog(f"{source} holds no log files: neither <number>.kafka nor <number>.log", path=source)
    renamed = {name.topic: topic or name.topic for name in by_source}
    here = {name._replace(topic=renamed[name.topic]): files for name, files in by_source.items()}
    return Found(here, skipped, groups, renamed)


def _segments(directory: str) -> list[str]:
    """The segment files of a directory, in order of base offset."""
    segments = []
    for entry in os.listdir(directory):
        match = _SEGMENT.match(entry)
        if match is not None and os.path.isfile(os.path.join(directory, entry)):
            segments.append((int(match[1]), os.path.join(directory, entry)))
    return [path for _, path in sorted(segments)]


def _target(directory: str, topic: str | None) -> TopicPartition:
    match = _PARTITION.match(os.path.basename(directory))
    if match is None:
        if topic is None:
            raise InvalidArgument(
                f"the name {directory} does not tell a topic: say which (topic=..., --topic)"
            )
        return TopicPartition(topic, 0)
    return TopicPartition(topic or match["topic"], int(match["number"]))
