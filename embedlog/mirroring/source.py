"""Mirror sources: a log and the optional name that prefixes its topics.

./data                            a directory, read next to its writer
kafka://a:9092,b:9092             one cluster, two of its addresses
kafka://a:9092,kafka://b:9092     two clusters
east=kafka://a:9092               a cluster called east: its topic clicks becomes east.clicks
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..backends.port import Backend
from ..errors import InvalidArgument, InvalidType, shown
from ..files.names import INTERNAL_TOPICS
from ..log import Log
from ..model import TopicDescription
from ..open import open as open_log
from ..validation import as_path

_NAMED: Final = re.compile(r"(?P<name>[a-zA-Z0-9_-]{1,100})=(?P<location>.+)\Z", re.DOTALL)
CLIENT_SETTINGS: Final[Mapping[str, Any]] = {"default_api_timeout_ms": 10_000}
"""A short timeout: the mirror retries itself, and reports meanwhile that it waits."""
_BETWEEN: Final = re.compile(r",(?=(?:[a-zA-Z0-9_-]{1,100}=)?kafka://)")


class Source:
    """A mirrored log. Closes it only if it opened it."""

    def __init__(
        self, location: str | Log, name: str = "", settings: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._opened = not isinstance(location, Log)
        if isinstance(location, Log):
            self.log = location
        else:
            self.log = (
                open_log(location, **{**CLIENT_SETTINGS, **(settings or {})})
                if "://" in location
                else open_log(location, mode="r")
            )

    @property
    def backend(self) -> Backend:
        return self.log.backend

    @property
    def path(self) -> str:
        return self.log.path

    @property
    def key(self) -> str:
        """What the names of groups that a mirror keeps for this source end with."""
        return self.name or self.backend.log_id or self.path

    def target_topic(self, topic: str) -> str:
        """The name of a topic in the target."""
        return f"{self.name}.{topic}" if self.name else topic

    def identity(self, topic: TopicDescription) -> tuple[str, ...]:
        """A topic's permanent identity: unchanged by another address, changed when the topic is recreated.
        Brokers before Kafka 2.8 have no topic ids; the cluster id and topic name are used instead."""
        if topic.topic_id:
            return (self.name, topic.topic_id)
        return (self.name, self.backend.log_id or self.path, topic.name)

    def topics(self, included: re.Pattern[str], excluded: re.Pattern[str] | None) -> list[TopicDescription]:
        """The source's topics whose names match `included` and not `excluded`."""
        topics = []
        for name in self.backend.topics():
            if name in INTERNAL_TOPICS or not included.fullmatch(name):
                continue
            if excluded is not None and excluded.fullmatch(name):
                continue
            description = self.backend.describe_topic(name)
            if not description.internal:
                topics.append(description)
        return topics

    def close(self) -> None:
        if self._opened:
            self.log.close()


def parse_sources(sources: object) -> list[tuple[str, str | Log]]:
    """The (name, location) of each source; one or several are passed. Raises InvalidArgument, InvalidType."""
    listed = [sources] if isinstance(sources, str | Log | os.PathLike) else sources
    if not isinstance(listed, Iterable) or isinstance(listed, bytes | bytearray | memoryview):
        raise InvalidType(f"sources must be addresses, directories or Logs, not {shown(sources)}")
    locations: list[tuple[str, str | Log]] = []
    for source in listed:
        if isinstance(source, Log):
            locations.append(("", source))
        elif isinstance(source, str):
            for part in _BETWEEN.split(source):
                match = _NAMED.match(part)
                locations.append((match["name"], match["location"]) if match else ("", part))
        elif isinstance(source, os.PathLike):
            locations.append(("", as_path(source, "source")))
        else:
            raise InvalidType(f"a source must be an address, a directory or a Log, not {shown(source)}")
    if not locations:
        raise InvalidArgument("a mirror needs at least one source")
    return locations
