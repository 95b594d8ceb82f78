"""What mirrors into a directory note there for those who look on: mirrors.json.

    {"version": 1, "mirrors": {"east=kafka://a:9092": {"pid": 4711, "at_ms": ..., "running": true,
        "trouble": null or "why it waits", "topics": [{"source": ..., "topic": ..., ...}, ...]}, ...}}

An entry for each source, by its name and address. Mirrors do not read it: their positions are in the mirrored
batches (copy_sink.py). So it is not synced, and a failure to write it is none of the mirror's.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import CorruptCheckpoint, EmbedlogError
from ..files.names import MIRRORS_FILE
from .status import MirroredTopic, MirrorStatus

if TYPE_CHECKING:
    from ..files.filesystem import FileSystem
    from ..store.catalog import Catalog

_VERSION: Final = 1
_EVERY_S: Final = 5.0
_RUNS_WITHIN_MS: Final = 20_000
_MOST_SOURCES: Final = 100
_MOST_TOPICS: Final = 1_000


class NotedMirror(NamedTuple):
    """A mirror of one source ([NAME=]LOG), as it was at at_ms. is_running: it noted so, and did so lately."""

    source: str
    pid: int
    at_ms: int
    is_running: bool
    trouble: str | None
    topics: tuple[MirroredTopic, ...]

    @property
    def behind(self) -> int:
        return sum(topic.behind for topic in self.topics)


class MirrorNotes:
    """Writes the file now and then. For one thread."""

    def __init__(self, fs: FileSystem, catalog: Catalog) -> None:
        self._fs = fs
        self._catalog = catalog
        self._next = 0.0

    def note(self, status: MirrorStatus, *, running: bool) -> None:
        """Note a status, if it is the last one or the last note was a while ago."""
        if running and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        now_ms = time.time_ns() // 1_000_000
        mirrors: dict[str, dict[str, Any]] = {}
        for topic in status.topics[:_MOST_TOPICS]:
            entry = {"pid": os.getpid(), "at_ms": now_ms, "running": running, "trouble": status.trouble}
            mirrors.setdefault(_named(topic), {**entry, "topics": []})["topics"].append(topic._asdict())
        if not mirrors:
            return
        others: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError, EmbedlogError):
            others = {mirror.source: _entry(mirror) for mirror in noted_mirrors(self._catalog)}
        mirrors = dict([*mirrors.items(), *((s, e) for s, e in others.items() if s not in mirrors)])
        body = {"version": _VERSION, "mirrors": dict(list(mirrors.items())[:_MOST_SOURCES])}
        with contextlib.suppress(OSError):
            path = self._catalog.file(MIRRORS_FILE)
            self._fs.write_file(path, json.dumps(body).encode(), durable=False, name_durable=False)


def noted_mirrors(catalog: Catalog) -> list[NotedMirror]:
    """The mirrors of a directory, the latest first; none if there have been none.

    Raises StorageError, CorruptCheckpoint.
    """
    try:
        notes = catalog.read_json(MIRRORS_FILE)
    except FileNotFoundError:
        return []
    now_ms = time.time_ns() // 1_000_000
    try:
        mirrors = [
            NotedMirror(
                str(source),
                int(mirror["pid"]),
                int(mirror["at_ms"]),
                bool(mirror["running"]) and abs(now_ms - int(mirror["at_ms"])) < _RUNS_WITHIN_MS,
                None if mirror["trouble"] is None else str(mirror["trouble"]),
                tuple(_topic(**topic) for topic in mirror["topics"]),
            )
            for source, mirror in notes["mirrors"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptCheckpoint(
            f"not the notes of mirrors ({error})", path=catalog.file(MIRRORS_FILE)
        ) from None
    return sorted(mirrors, key=lambda mirror: -mirror.at_ms)


def _entry(noted: NotedMirror) -> dict[str, Any]:
    topics = [topic._asdict() for topic in noted.topics]
    return {
        "pid": noted.pid,
        "at_ms": noted.at_ms,
        "running": noted.is_running,
        "trouble": noted.trouble,
        "topics": topics,
    }


def _named(topic: MirroredTopic) -> str:
    """The source of a topic, with its name."""
    name = topic.target_topic.removesuffix(topic.topic).removesuffix(".")
    return f"{name}={topic.source}" if name else topic.source


def _topic(
    *, source: str, topic: str, target_topic: str, partitions: int, records: int, bytes: int, behind: int
) -> MirroredTopic:
    counts = map(int, (partitions, records, bytes, behind))
    return MirroredTopic(str(source), str(topic), str(target_topic), *counts)
