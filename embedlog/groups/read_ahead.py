"""Reads a partition ahead for a share group: what is there to be handed out, and the records themselves.

    partition --fetch--> chunk --decode--> records --offset, key, due time--> SharePartition.scan
                                              |
                                              '--- kept until they are handed out, up to a few MiB

Reading stops as soon as there are as many ready records as wanted, and after some chunks: the coordinator's
lock is held meanwhile, and a million delayed records may come before the next ready one. A record that is
handed out again, or was not kept, is looked up.

A record's header `embedlog.due_ms` has the wall-clock time in milliseconds (decimal) before which it is not
delivered. Records of aborted transactions are not delivered, and none past a transaction that is open; a
group of Kafka's clients may read uncommitted ones (share.isolation.level).

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..codec.fetch_decoder import Records, decode_chunk
from ..model import NO_TIMESTAMP, Record
from ..partition import Partition
from .machines.share_partition import SharePartition
from .topic_records import due_ms, record_of

_FETCH_BYTES: Final = 256 << 10
_KEPT_BYTES: Final = 4 << 20


class ReadAhead:
    """One partition of a topic, as a share group reads it."""

    def __init__(self, partition: Partition, *, read_committed: bool = True) -> None:
        self.partition = partition
        self.read_committed = read_committed
        self.epoch = partition.log.leader_epoch
        self._kept: dict[int, Record] = {}
        self._kept_bytes = 0

    @property
    def is_current(self) -> bool:
        """Whether the log is the one that it was: a crash's repair may have replaced its end."""
        return self.partition.log.leader_epoch == self.epoch

    def fill(self, share: SharePartition, min_ready: int, wall_ms: int, most_chunks: int) -> int:
        """Read on until that many records are ready, or there are no more, or that many chunks are read.

        Returns how many chunks were read. Raises OffsetOutOfRange if records were deleted that are not done;
        CorruptRecord, StorageError.
        """
        log, chunks = self.partition.log, 0
        while (
            chunks < most_chunks
            and share.ready_count < min_ready
            and share.next_fetch_offset < log.high_watermark.offset
            and share.may_scan
            and self._read(share, wall_ms)
        ):
            chunks += 1
        return chunks

    def records(self, offsets: Iterable[int]) -> list[Record | None]:
        """The records at these offsets; None where there is none any more. Raises as `fill`."""
        kept = self._kept
        return [kept.pop(offset, None) or self.record(offset) for offset in offsets]

    def record(self, offset: int) -> Record | None:
        """The record at an offset; None if there is none any more. Raises CorruptRecord, StorageError."""
        return record_of(self.partition, offset)

    def timestamp_ms(self, offset: int) -> int:
        """The timestamp of the record at an offset; -1 if there is none. Raises as `record`."""
        record = self.record(offset)
        return NO_TIMESTAMP if record is None else record.timestamp_ms

    def _read(self, share: SharePartition, wall_ms: int) -> bool:
        """Read one chunk. False if there is nothing to read yet."""
        offset = share.next_fetch_offset
        fetched = self.partition.fetch(offset, _FETCH_BYTES, read_committed=self.read_committed)
        if not fetched.data:
            return False
        sink = Records(*self.partition.name)
        next_offset = decode_chunk(
            fetched, *self.partition.name, offset, sink, read_committed=self.read_committed
        ).next_offset
        records = sink.taken
        is_plain = not share.ordered_by_key and not any(record.headers for record in records)
        if is_plain and records and records[-1].offset + 1 - records[0].offset == len(records):
            share.scan_range(records[0].offset, records[-1].offset, wall_ms)
            share.scan((), next_offset, wall_ms)
        else:
            share.scan(
                [(record.offset, record.key, due_ms(record)) for record in records], next_offset, wall_ms
            )
        self._keep(records, len(fetched.data))
        return True

    def _keep(self, records: Sequence[Record], size: int) -> None:
        self._kept_bytes += size
        if self._kept_bytes > _KEPT_BYTES:
            self._kept, self._kept_bytes = {}, size
        self._kept.update((record.offset, record) for record in records)
