"""`writer-state`: the small mapped file through which the writer informs reader processes.

    header  64 bytes: "ELSTATE1" | writer id u64 | superseded u32 | slots u32 | names' length u32
            boot id 16 bytes | inode u64 | crc32 of bytes 0 to 15 and 28 to 51 | 4 bytes | crc32
    slots   64 bytes each:
            log start, log end, flushed, last stable offset (i64 each)
            base offset of the last segment i64 | readable bytes in it i64
            leader epoch i32 | state i32 | layout version u32 | crc32 of the 60 bytes before
    names   JSON: {"<topic> <partition>": slot}

The writer updates a slot after it has written the bytes that the slot describes, so a reader that respects
it never sees half an append. If a slot's CRC does not match, the writer was updating it: the reader retries.
When topics are created or deleted, a new file replaces the file, and the old one is marked superseded.

After a kill the file still tells what was durable: the next writer takes the flushed offsets from it,
provided that the machine has not been restarted since, and that the file is not a copy.

Invariants: a flushed offset is stored after its fsync; `layout version` grows with every change of the set
of files (roll, delete, compaction, recovery), so that a reader lists the directory only if it must. After a
crash of the machine the file may contain garbage, so readers check the records, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import stat
import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from ..files.filesystem import TEMPORARY, FileSystem
from ..model import TopicPartition

logger = logging.getLogger(__name__)

_HEADER: Final = struct.Struct("<8sQIII")
_SLOT: Final = struct.Struct("<qqqqqqiiI")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"ELSTATE1"
_SIZE: Final = 64
_SUPERSEDED_AT: Final = 16
_SUPERSEDED: Final = b"\1\0\0\0"
_BOOT: Final = struct.Struct("<16sQ")
_BOOT_AT: Final = _HEADER.size
_BOOT_CRC_AT: Final = _BOOT_AT + _BOOT.size
_TRIES: Final = 1000


class PublishedOffsets(NamedTuple):
    """The slot of one partition."""

    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    last_stable_offset: int
    last_segment: int
    readable_bytes: int
    leader_epoch: int
    state: int
    layout_version: int


class _WriterStateFile:
    """The writer's side: creates the file, and maps it. Callers serialize updates of a slot."""

    def __init__(
        self, fs: FileSystem, path: str, writer_id: int, partitions: Sequence[TopicPartition]
    ) -> None:
        names = json.dumps({str(tp): i for i, tp in enumerate(partitions)}).encode()
        header = _HEADER.pack(_MAGIC, writer_id, 0, len(partitions), len(names))
        body = bytearray((1 + len(partitions)) * _SIZE)
        body[: len(header)] = header
        _CRC.pack_into(body, _SIZE - 4, crc32(names, crc32(header[:16])))
        # Readers may open it at any moment, so it appears complete. It need not survive a power failure.
        temporary = path + TEMPORARY
        with fs.gone_on_error(temporary):
            fd = fs.open_write(temporary, create=True, truncate=True)
            try:
                _BOOT.pack_into(body, _BOOT_AT, fs.boot_id(), os.fstat(fd).st_ino)
                _CRC.pack_into(body, _BOOT_CRC_AT, _boot_crc(body))
                fs.pwrite_all(fd, bytes(body) + names, 0)
                self._map = mmap.mmap(fd, len(body) + len(names))
            finally:
                fs.close(fd)
            fs.rename(temporary, path)
        self._slots = {tp: i for i, tp in enumerate(partitions)}

    def slot(self, partition: TopicPartition) -> tuple[mmap.mmap, int]:
        """The partition's slot: the map, and the position of its 64 bytes. fast_append writes there."""
        return self._map, _SIZE * (self._slots[partition] + 1)

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Clear the slots of other partitions: they are deleted, and new ones may get their names."""
        for name in self._slots.keys() - partitions:
            at = self.slot(name)[1]
            self._map[at : at + _SIZE] = bytes(_SIZE)

    def supersede(self) -> None:
        """Tell readers that there is a newer file. No slot may be updated from now on."""
        self._map[_SUPERSEDED_AT : _SUPERSEDED_AT + 4] = _SUPERSEDED
        self._map.close()

    def close(self) -> None:
        """Close the map. The file remains and tells readers how the writer left the log."""
        self._map.close()

    def abandon(self) -> None:
        """In a forked child: close the map without a change to the file."""
        with contextlib.suppress(BufferError):
            self._map.close()


class PublishedPartition(Protocol):
    """A partition that updates its slot."""

    @property
    def name(self) -> TopicPartition: ...

    def publish_through(self, slot: tuple[mmap.mmap, int] | None) -> None: ...


class WriterState:
    """The writer's current file, replaced when topics are created or deleted. Not thread-safe."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._writer_id = int.from_bytes(os.urandom(8), "little") >> 1
        self._current: _WriterStateFile | None = None

    def take_over(self) -> dict[TopicPartition, int]:
        """The flushed offsets of a killed writer, if they can be trusted.

        Marks its file as superseded, because the log ends in it are about to change. The file stays until it
        is replaced, in case this process is killed during recovery. Raises OSError.
        """
        flushed = flushed_offsets(self._fs, self._path)
        if flushed:
            self._mark_superseded(self._path)
        else:
            with contextlib.suppress(OSError):
                self._mark_superseded(self._path)
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self._path)
        return flushed

    def _mark_superseded(self, path: str) -> None:
        fd = self._fs.open_write(path)
        try:
            self._fs.pwrite_all(fd, _SUPERSEDED, _SUPERSEDED_AT)
        finally:
            self._fs.close(fd)

    def replace(self, partitions: Sequence[PublishedPartition]) -> None:
        """Publish exactly these partitions in a new file. Raises OSError if there is no old file to keep."""
        if self._current is None:  # the file of an earlier writer, which closed it in good order
            with contextlib.suppress(OSError):
                self._mark_superseded(self._path)
        try:
            state = _WriterStateFile(self._fs, self._path, self._writer_id, [p.name for p in partitions])
        except OSError:
            if self._current is None:
                raise
            # The old file still serves its partitions; readers find new ones by their files.
            logger.exception("%s cannot be replaced: readers are not told of a change of topics", self._path)
            self._current.keep_only({partition.name for partition in partitions})
            return
        for partition in partitions:
            partition.publish_through(state.slot(partition.name))
        before, self._current = self._current, state
        if before is not None:
            before.supersede()

    def close(self) -> None:
        """Close the map. The file remains and tells readers how the writer left the log."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def abandon(self) -> None:
        """In a forked child: close the map without a change to the file."""
        if self._current is not None:
            self._current.abandon()


class WriterStateReader:
    """The reader's side: maps the current file."""

    def __init__(self, path: str) -> None:
        """Raises FileNotFoundError, or ValueError if the file is not intact."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
        try:
            file_stat = os.fstat(fd)
            size = file_stat.st_size
            if not stat.S_ISREG(file_stat.st_mode) or size < _SIZE:
                raise ValueError("no file, or too short")
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        boot_id, inode = _BOOT.unpack_from(self._map, _BOOT_AT)
        names_a_boot = any(boot_id) and _CRC.unpack_from(self._map, _BOOT_CRC_AT)[0] == _boot_crc(self._map)
        self._boot_id = boot_id if names_a_boot and inode == file_stat.st_ino else None
        magic, self.writer_id, _, count, length = _HEADER.unpack_from(self._map, 0)
        names = self._map[_SIZE * (1 + count) : _SIZE * (1 + count) + length]
        (stated,) = _CRC.unpack_from(self._map, _SIZE - 4)
        if magic != _MAGIC or len(names) != length or stated != crc32(names, crc32(self._map[:16])):
            raise ValueError("not a writer-state file")
        self.slots: dict[TopicPartition, int] = {}
        for name, slot in json.loads(names).items():
            topic, _, partition = name.rpartition(" ")
            self.slots[TopicPartition(topic, int(partition))] = slot

    @property
    def superseded(self) -> bool:
        return is_superseded(self._map)

    def slot_bytes(self, partition: TopicPartition) -> tuple[mmap.mmap, int, bytes] | None:
        """The map, the position of the partition's slot, and its present bytes; None without a slot."""
        slot = self.slots.get(partition)
        if slot is None:
            return None
        at = _SIZE * (slot + 1)
        return self._map, at, self._map[at : at + _SIZE]

    def load(self, partition: TopicPartition) -> PublishedOffsets | None:
        """The partition's slot; None if there is none, or it is still empty."""
        slot = self.slots.get(partition)
        if slot is None:
            return None
        at = _SIZE * (slot + 1)
        for _ in range(_TRIES):
            data = self._map[at : at + _SIZE]
            if not any(data):
                return None
            if _CRC.unpack_from(data, _SIZE - 4)[0] == crc32(data[: _SIZE - 4]):
                return PublishedOffsets(*_SLOT.unpack_from(data))
        return None

    def contents(self) -> bytes:
        """The header and all slots as they are now, to compare with `changed`."""
        return self._map[: _SIZE * (1 + len(self.slots))]

    def changed(self, partition: TopicPartition, before: bytes, after: bytes) -> bool:
        """Whether the partition's slot differs. True if the partition has none."""
        slot = self.slots.get(partition)
        if slot is None:
            return True
        at = _SIZE * (slot + 1)
        return before[at : at + _SIZE] != after[at : at + _SIZE]

    def flushed(self, partition: TopicPartition, boot_id: bytes) -> int:
        """A partition's flushed offset; 0 if the file is a copy or was written before the last boot."""
        published = self.load(partition) if boot_id == self._boot_id else None
        return published.flushed_offset if published is not None else 0

    def close(self) -> None:
        self._map.close()


def is_superseded(mapped: mmap.mmap) -> bool:
    """Whether there is a newer file than the mapped one."""
    return mapped[_SUPERSEDED_AT] != 0


def _boot_crc(header: bytearray | mmap.mmap) -> int:
    return crc32(header[_BOOT_AT:_BOOT_CRC_AT], crc32(header[:_SUPERSEDED_AT]))


def flushed_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The last writer's flushed offsets, if they can be trusted. Raises OSError."""
    try:
        state = WriterStateReader(path)
    except (FileNotFoundError, ValueError):
        return {}
    try:
        boot_id = fs.boot_id()
        return {name: at for name in state.slots if (at := state.flushed(name, boot_id))}
    finally:
        state.close()


def retract(fs: FileSystem, path: str, partition: TopicPartition) -> None:
    """Clear the slot of a partition, and mark the file as superseded. Raises OSError."""
    try:
        state = WriterStateReader(path)
    except FileNotFoundError:
        return
    except ValueError:
        fs.unlink(path)
        return
    slot = state.slots.get(partition)
    state.close()
    fd = fs.open_write(path)
    try:
        fs.pwrite_all(fd, _SUPERSEDED, _SUPERSEDED_AT)
        if slot is not None:
            fs.pwrite_all(fd, bytes(_SIZE), _SIZE * (slot + 1))
    finally:
        fs.close(fd)
