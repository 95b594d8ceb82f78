"""The topics journal: one appended line for each change since topics.json was written.

    topics-<8 hex digits>.journal
        5f3a9c01 {"topics": {"clicks": {...}}, "deleting": {}}        created, or altered
        0c77e2b4 {"topics": {"clicks": null}, "deleting": {"clicks": {...}}}

The number is the CRC-32 of the JSON after it, continued from the line before (for the first line, from crc32
in topics.json), so lines of another topics.json, or in another order, are rejected. topics.json names its
journal, which is durable before topics.json is written.

Only the last line may be torn, by a crash during its write; it is then ignored. Any other mismatch is damage.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from zlib import crc32

from ..errors import CorruptCheckpoint
from ..files.filesystem import FileSystem

_NAME: Final = re.compile(r"topics-[0-9a-f]{8}\.journal\Z")
_BODY_AT: Final = 9

T = TypeVar("T")


def is_journal(name: object) -> bool:
    """Whether this is the name of a journal."""
    return isinstance(name, str) and _NAME.match(name) is not None


def apply_changes(data: bytes, crc: int, path: str, topics: dict[str, Any], deleting: dict[str, Any]) -> None:
    """Apply a journal's changes to topics.json's two tables. Raises CorruptCheckpoint.

    Args:
        crc: topics.json's.
        path: the journal's, for the error.
    """
    for change in _changes(data, crc, path):
        for name, table in (("topics", topics), ("deleting", deleting)):
            for topic, entry in change[name].items():
                if entry is None:
                    table.pop(topic, None)
                else:
                    table[topic] = entry


def change_between(
    before: Mapping[str, T], after: Mapping[str, T], entry: Callable[[T], dict[str, Any]]
) -> dict[str, dict[str, Any] | None]:
    """The entries to set, or to remove (None), to turn one table into the other."""
    changes: dict[str, dict[str, Any] | None] = dict.fromkeys(before.keys() - after.keys())
    for name, topic in after.items():
        if before.get(name) is not topic:
            changes[name] = entry(topic)
    return changes


def _changes(data: bytes, crc: int, path: str) -> Iterator[dict[str, Any]]:
    pos = 0
    while pos < len(data):
        end = data.find(b"\n", pos)
        stated, body = data[pos : pos + _BODY_AT], data[pos + _BODY_AT : end]
        crc = crc32(body, crc)
        if end < 0 or stated != b"%08x " % crc:
            if end < 0 or (end + 1 == len(data) and 0 in data[pos:]):
                return  # torn: incomplete, or partly zeros
            reason = "a change of the list of topics is damaged: restore it, with topics.json, from a backup"
            raise CorruptCheckpoint(reason, path=path, pos=pos)
        yield json.loads(body)
        pos = end + 1


class TopicsJournal:
    """A journal, open for appending. Its writer takes turns."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Create an empty journal, durably. Raises OSError."""
        self._fs = fs
        self.name = f"topics-{os.urandom(4).hex()}.journal"
        self._path = os.path.join(directory, self.name)
        self.size = 0
        self.crc = 0
        fs.close(fs.open_write(self._path, create=True, truncate=True))
        fs.sync_dir(directory)

    def append(self, change: Mapping[str, Mapping[str, object]]) -> None:
        """Append a change, durably. After an OSError the change is uncertain, and none may follow it."""
        body = json.dumps(change).encode()
        crc = crc32(body, self.crc)
        line = b"%08x %s\n" % (crc, body)
        fd = self._fs.open_write(self._path)
        try:
            self._fs.pwrite_all(fd, line, self.size)
            self._fs.sync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.truncate(fd, self.size)
            raise
        finally:
            self._fs.close(fd)
        self.size += len(line)
        self.crc = crc
