"""What the writer tells reader processes: one small mapped file, `writer-state`.

    header  64 bytes: "ELSTATE1" | writer id u64 | superseded u32 | slots u32 | names' length u32 | crc32
    slots   64 bytes each:
            log start, log end, flushed, last stable offset (i64 each)
            base offset of the last segment i64 | readable bytes in it i64
            leader epoch i32 | state i32 | layout version u32 | crc32 of the 60 bytes before
    names   JSON: {"<topic> <partition>": slot}

The writer stores a slot after the bytes it speaks of are written, so a reader that keeps to it never
sees half an append. The slot's own CRC tells a reader that it looked while the writer wrote: it looks
again. When topics come or go the file is replaced by a new one and the old one marked superseded.

Invariants: `layout version` grows with every change of the set of files (roll, delete, compaction,
recovery), so a reader lists the directory only when it has to. After a crash of the machine the file
may hold anything: readers check the records themselves as well.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from .fs import TEMPORARY, FileSystem
from .model import TopicPartition

_HEADER: Final = struct.Struct("<8sQIII")
_SLOT: Final = struct.Struct("<qqqqqqiiI")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"ELSTATE1"
_SIZE: Final = 64
_SUPERSEDED_AT: Final = 16
_TRIES: Final = 1000


class State(IntEnum):
    """What a partition can do."""

    ONLINE = 0
    FAILED = 1  # a write or fsync failed: no appends, reads up to the flushed offset
    DAMAGED = 2  # records before the recovery point are missing or broken: no appends before `repair`
    CLOSED = 3


class Edges(NamedTuple):
    """One partition as published."""

    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    last_stable_offset: int
    last_segment: int
    readable_bytes: int
    leader_epoch: int
    state: int
    layout_version: int


class StateWriter:
    """The writer's side: makes the file, then stores slots into the map. Callers serialise by slot."""

    def __init__(
        self, fs: FileSystem, path: str, writer_id: int, partitions: Sequence[TopicPartition]
    ) -> None:
        names = json.dumps({str(tp): i for i, tp in enumerate(partitions)}).encode()
        header = _HEADER.pack(_MAGIC, writer_id, 0, len(partitions), len(names))
        body = bytearray((1 + len(partitions)) * _SIZE)
        body[: len(header)] = header
        _CRC.pack_into(body, _SIZE - 4, crc32(names, crc32(header[:16])))
        # Readers may open it at any moment: it appears whole. It need not survive the machine.
        temporary = path + TEMPORARY
        with fs.gone_on_error(temporary):
            fd = fs.open_write(temporary, create=True, truncate=True)
            try:
                fs.pwrite_all(fd, bytes(body) + names, 0)
                self._map = mmap.mmap(fd, len(body) + len(names))
            finally:
                fs.close(fd)
            fs.rename(temporary, path)
        self._slots = {tp: i for i, tp in enumerate(partitions)}

    def slot(self, partition: TopicPartition) -> tuple[mmap.mmap, int]:
        """Where the partition stores its edges (short_way.py): the map, and the first of 64 bytes in it."""
        return self._map, _SIZE * (self._slots[partition] + 1)

    def supersede(self) -> None:
        """Tell readers that a newer file stands under the name. Nobody may store any more."""
        self._map[_SUPERSEDED_AT : _SUPERSEDED_AT + 4] = b"\1\0\0\0"
        self._map.close()

    def close(self) -> None:
        """Let go; the file stays, and tells readers how the writer left the log."""
        self._map.close()

    def abandon(self) -> None:
        """In a forked child: let go of the map without touching what the parent publishes."""
        with contextlib.suppress(BufferError):
            self._map.close()


class StateReader:
    """A reader's side: maps the file that stands under the name now."""

    def __init__(self, path: str) -> None:
        """Raises FileNotFoundError, or ValueError where the file is not (any longer) intact."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would keep us waiting
        try:
            opened = os.fstat(fd)
            size = opened.st_size
            if not stat.S_ISREG(opened.st_mode) or size < _SIZE:
                raise ValueError("no file, or too short")
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        magic, self.writer_id, _, count, length = _HEADER.unpack_from(self._map, 0)
        names = self._map[_SIZE * (1 + count) : _SIZE * (1 + count) + length]
        (stated,) = _CRC.unpack_from(self._map, _SIZE - 4)
        if magic != _MAGIC or len(names) != length or stated != crc32(names, crc32(self._map[:16])):
            raise ValueError("not a writer's state")
        self.slots: dict[TopicPartition, int] = {}
        for name, slot in json.loads(names).items():
            topic, _, partition = name.rpartition(" ")
            self.slots[TopicPartition(topic, int(partition))] = slot

    @property
    def superseded(self) -> bool:
        return self._map[_SUPERSEDED_AT] != 0

    def load(self, partition: TopicPartition) -> Edges | None:
        """The partition's slot; None where the file does not know it or has not been told yet."""
        slot = self.slots.get(partition)
        if slot is None:
            return None
        at = _SIZE * (slot + 1)
        for _ in range(_TRIES):
            data = self._map[at : at + _SIZE]
            if not any(data):
                return None
            if _CRC.unpack_from(data, _SIZE - 4)[0] == crc32(data[: _SIZE - 4]):
                return Edges(*_SLOT.unpack_from(data))
        return None

    def close(self) -> None:
        self._map.close()
