"""The small text files that remember offsets: Kafka's checkpoint formats, written atomically.

    recovery-point-offset-checkpoint, log-start-offset-checkpoint, cleaner-offset-checkpoint
        0                        version
        2                        number of lines
        clicks 0 4711            topic partition offset
        clicks 1 12

    leader-epoch-checkpoint (one in each partition's directory)
        0
        2
        0 0                      epoch, its first offset
        3 4711

Every write is a new file, fsynced, renamed over the old one, and the directory fsynced: a reader sees
the old or the new one, never half.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping

from ..config import MAX_INT32, MAX_INT64
from ..errors import CorruptCheckpoint
from ..files.filesystem import FileSystem
from ..files.names import LEADER_EPOCH_FILE
from ..model import TopicPartition

_VERSION = "0"


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """A checkpoint's offsets; empty if there is no file. Raises CorruptCheckpoint."""
    offsets: dict[TopicPartition, int] = {}
    for line in _read_lines(fs, path):
        parts = line.split(" ")
        if len(parts) != 3 or not _is_number(parts[1]) or not _is_number(parts[2]):
            raise CorruptCheckpoint(f"{line[:80]!r} is not `topic partition offset`", path=path)
        offsets[TopicPartition(parts[0], int(parts[1]))] = int(parts[2])
    return offsets


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint, durably. Raises OSError."""
    _write_lines(fs, path, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


class LeaderEpochs:
    """A partition's history: which epoch began at which offset. Immutable pairs, replaced as a whole.

    An epoch begins with the first append after the partition was made or opened unclean. So the end of
    an epoch tells how far the records of that history go, and a position past it was lost in a crash.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = os.path.join(directory, LEADER_EPOCH_FILE)
        self.entries: tuple[tuple[int, int], ...] = ()

    def load(self) -> None:
        """Read the file. Raises CorruptCheckpoint."""
        entries = []
        for line in _read_lines(self._fs, self._path):
            epoch, _, start = line.partition(" ")
            if not _is_number(epoch) or not _is_number(start) or int(epoch) > MAX_INT32:
                raise CorruptCheckpoint(f"{line[:80]!r} is not `epoch offset`", path=self._path)
            entries.append((int(epoch), int(start)))
        if sorted(set(entries)) != entries:
            raise CorruptCheckpoint("epochs are not in order", path=self._path)
        self.entries = tuple(entries)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 before the first append."""
        return self.entries[-1][0] if self.entries else -1

    def start(self, epoch: int, offset: int) -> None:
        """A new epoch begins at an offset; durable on return. Raises OSError, and nothing has changed.

        Epochs that began at or past the offset lost all their records, and go.
        """
        self._replace((*(entry for entry in self.entries if entry[1] < offset), (epoch, offset)))

    def replace(self, entries: tuple[tuple[int, int], ...]) -> None:
        """Take over a history from elsewhere (import)."""
        self._replace(entries)

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at an offset; -1 if it precedes the history."""
        return self.epoch_span(offset)[0]

    def epoch_span(self, offset: int) -> tuple[int, int]:
        """`epoch_at`, and the offset up to which the answer is the same."""
        i = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        epoch = self.entries[i - 1][0] if i else -1
        return epoch, self.entries[i][1] if i < len(self.entries) else MAX_INT64

    def end_of(self, epoch: int, log_end_offset: int) -> int:
        """Where the records of an epoch (and of those before it) end."""
        for later, start in self.entries:
            if later > epoch:
                return start
        return log_end_offset

    def _replace(self, entries: tuple[tuple[int, int], ...]) -> None:
        _write_lines(self._fs, self._path, [f"{epoch} {start}" for epoch, start in entries])
        self.entries = entries


def _read_lines(fs: FileSystem, path: str) -> list[str]:
    """The lines after version and count; none if there is no file."""
    try:
        text = fs.read_file(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CorruptCheckpoint("not text", path=path) from None
    lines = text.split("\n")
    if lines[0] != _VERSION:
        raise CorruptCheckpoint(f"unknown version {lines[0][:20]!r}", path=path)
    if len(lines) < 2 or not _is_number(lines[1]) or len(lines) != int(lines[1]) + 3 or lines[-1]:
        raise CorruptCheckpoint("the number of lines is not the one it states", path=path)
    return lines[2:-1]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_INT64


def _write_lines(fs: FileSystem, path: str, lines: list[str]) -> None:
    fs.write_file(path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode())
