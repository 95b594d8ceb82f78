"""One partition without a store: opened, crashed and reopened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from embedlog.codec import decode, encode_batch, scan
from embedlog.codec.fetch_decoder import Records, decode_chunk
from embedlog.config import TopicSettings
from embedlog.errors import Closed
from embedlog.fast_append import ApproximateCounter
from embedlog.files.descriptors import Descriptors
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import CLASSIC, LOG_START_FILE
from embedlog.index import IndexCache
from embedlog.model import Headers, Record, TopicPartition
from embedlog.partition import Partition
from embedlog.recovery import open_partition
from embedlog.runtime.parallel import run_in_rounds
from embedlog.segment import Files
from embedlog.storage.checkpoints import read_offsets, write_offsets
from embedlog.storage.host import HostedPartition

NAME = TopicPartition("t", 0)
START_MS = 1_700_000_000_000


@dataclass
class Bench:
    """A directory with one partition, and the partition's host. The clock stands still."""

    root: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    fs: FileSystem = field(default_factory=FileSystem)
    time_ms: int = START_MS
    recovery_point: int = 0
    appends: ApproximateCounter = field(default_factory=ApproximateCounter)
    waiting: list[str] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    starts: int = 0

    def open(self) -> Partition:
        """Open the partition; an existing one is recovered as after a crash."""
        directory = os.path.join(self.root, CLASSIC.partition_directory(*NAME))
        os.makedirs(directory, exist_ok=True)
        self.files = Files(self.fs, Descriptors(self.fs, 32), IndexCache(), CLASSIC)
        task = open_partition(
            NAME,
            directory,
            self.files,
            self.settings,
            clean=None,
            recovery_point=self.recovery_point,
            log_start_offset=read_offsets(self.fs, os.path.join(self.root, LOG_START_FILE)).get(NAME),
            may_have_gaps=self.settings.compacts,
            now_ms=self.time_ms,
        )
        ((opened, self.report),) = run_in_rounds([task])
        self.partition = Partition(NAME, directory, self.files, self.settings, self, opened)
        self.partition.may_have_gaps = self.settings.compacts
        return self.partition

    def reopen(self) -> Partition:
        """Open again as after a kill: nothing was closed."""
        self.partition.abandon()
        self.files.descriptors.close()
        self.waiting.clear()
        return self.open()

    def close(self) -> None:
        self.partition.close()
        self.files.descriptors.close()

    def __enter__(self) -> Bench:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the keeper ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.time_ms

    def became_dirty(self, partition: HostedPartition) -> None: ...

    def flushed(self, partition: HostedPartition) -> None: ...

    def rolled(self, partition: HostedPartition, base_offset: int) -> None:
        self.recovery_point = base_offset

    def opened_for_append(self, partition: HostedPartition) -> None: ...

    bounded = True

    def make_room(self, size: int) -> None: ...

    def closed(self, name: TopicPartition) -> Closed:
        return Closed(f"{name} is closed")

    def log_start_moved(self) -> None:
        self.starts += 1
        start = self.partition.offsets().log_start_offset
        write_offsets(self.fs, os.path.join(self.root, LOG_START_FILE), {NAME: start})

    def unlink_later(self, paths: list[str], delay_ms: int) -> None:
        self.waiting += paths
        self.delays.append(delay_ms)

    # -- short ways ------------------------------------------------------------------------------------

    def append(self, *pairs: tuple[bytes | None, bytes | None], headers: Headers = (), codec: int = 0) -> int:
        """Append one batch of (key, value); return its base offset."""
        records = [(key, value, headers, self.time_ms) for key, value in pairs]
        return self.partition.append(encode_batch(records, compression=codec)).base_offset

    def append_marker(self, producer_id: int, *, commit: bool, producer_epoch: int = 0) -> int:
        """End a producer's transaction; return the marker's offset."""
        return self.partition.end_transaction(
            producer_id,
            producer_epoch,
            commit=commit,
            timestamp_ms=self.time_ms,
            transaction_version=1,
        ).base_offset

    def remove_snapshots(self) -> None:
        """Force producer state to be rebuilt from the records."""
        for name in self.names():
            if name.endswith(".snapshot"):
                self.fs.unlink(os.path.join(self.partition.directory, name))

    def unlink_waiting(self) -> None:
        for path in self.waiting:
            if self.fs.exists(path):
                self.fs.unlink(path)
        self.waiting.clear()

    def names(self) -> list[str]:
        return [entry.name for entry in self.fs.list(self.partition.directory)]


def read_all(partition: Partition, *, start: int | None = None, max_bytes: int = 4096) -> list[Record]:
    """All readable records, without control batches, fetched chunk by chunk."""
    return list(_records(partition, start, max_bytes))


def _records(partition: Partition, start: int | None, max_bytes: int) -> Iterator[Record]:
    offset = partition.offsets().log_start_offset if start is None else start
    end = partition.offsets().log_end_offset
    while offset < end:
        fetched = partition.fetch(offset, max_bytes)
        found = scan(fetched.data)
        assert found.error is None and found.headers, f"nothing at {offset} below the end {end}"
        for header in found.headers:
            if not header.is_control:
                yield from (r for r in decode(fetched.data, header, *NAME) if r.offset >= offset)
        offset = found.headers[-1].next_offset


def read_committed(partition: Partition, *, max_bytes: int = 4096) -> list[Record]:
    """All committed records below the last stable offset, as a consumer gets them."""
    offset = partition.offsets().log_start_offset
    records: list[Record] = []
    while True:
        fetched = partition.fetch(offset, max_bytes, read_committed=True)
        if not fetched.data:
            return records
        sink = Records(*NAME)
        decoded = decode_chunk(fetched, *NAME, offset, sink, read_committed=True)
        assert decoded.next_offset > offset
        records += sink.taken
        offset = decoded.next_offset


def last_values(records: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    """Key -> last value, without deleted keys."""
    values = {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in values.items() if value is not None}
