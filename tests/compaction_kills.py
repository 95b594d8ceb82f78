"""Kills a compacting process at each of its system calls and checks what the next one finds.

    python compaction_kills.py DIRECTORY        prints the number of kills; fails where something was lost

Run by test_compaction.py in a process of its own: it forks, which wants a process without threads.
"""

from __future__ import annotations

import os
import shutil
import sys

from engine import Bench, last_values, read_all, read_committed
from transactions import coordinated

from embedlog.codec import encode_batch
from embedlog.compaction import compact
from embedlog.config import TopicSettings
from embedlog.files.filesystem import FileSystem

KILLED = 9


class Killing(FileSystem):
    """Ends the process before its n-th change to the disk, or halfway through if that is a write."""

    def __init__(self, left: int, *, torn: bool) -> None:
        self.left = left
        self.torn = torn

    def _change(self) -> None:
        if not self.left:
            os._exit(KILLED)
        self.left -= 1

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        self._change()
        return super().open_write(path, create=create, truncate=truncate)

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        if not self.left and self.torn:
            super().pwrite_all(fd, memoryview(data)[: len(data) // 2], pos)
        self._change()
        super().pwrite_all(fd, data, pos)

    def sync(self, fd: int) -> None:
        self._change()
        super().sync(fd)

    def sync_dir(self, path: str) -> None:
        self._change()
        super().sync_dir(path)

    def truncate(self, fd: int, size: int) -> None:
        self._change()
        super().truncate(fd, size)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._change()
        super().set_modified(path, modified_ms)

    def rename(self, source: str, destination: str) -> None:
        self._change()
        super().rename(source, destination)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)


def settings() -> TopicSettings:
    return TopicSettings(cleanup_policy="compact", segment_bytes=1024, delete_retention_ms=1000)


def prepare(bench: Bench) -> None:
    """Several groups of segments, expired tombstones, and an aborted transaction."""
    partition = bench.open()
    for i in range(4):
        bench.append((b"k%d" % (i % 3), b"%d" % i), (b"gone", b"%d" % i))
        partition.roll()
    bench.append((b"gone", None), (b"b", b"b"))
    for number, commit in enumerate((False, True)):
        batch = encode_batch(
            [(b"t", b"%d" % number, (), bench.time_ms)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        coordinated(partition, batch)
        bench.append_marker(7, commit=commit)
    partition.roll()
    for _ in range(2):
        clean(bench, 0)
    for i in range(12):
        bench.append((b"k%d" % (i % 3), b"again %d" % i * 30), (b"u%d" % i, b"x"))
        partition.roll()
    bench.append((b"head", b"1"))
    bench.partition.checkpoint()
    bench.time_ms += 2000


def clean(bench: Bench, first_dirty: int) -> int:
    result = compact(
        bench.partition,
        bench.settings,
        bench.time_ms,
        dedupe_buffer_bytes=1 << 20,
        first_dirty_offset=first_dirty,
    )
    return result.first_dirty_offset


def killed_at(step: int, torn: bool, root: str, original: Bench) -> bool:
    """Compact a copy of the prepared directory in a child. True if the child was killed."""
    shutil.copytree(original.root, root)
    child = os.fork()
    if child == 0:
        bench = Bench(root, settings(), time_ms=original.time_ms, recovery_point=original.recovery_point)
        partition = bench.open()
        # Opening changes the disk too; only what compaction does is counted.
        fs = Killing(step, torn=torn)
        object.__setattr__(partition.files, "fs", fs)
        clean(bench, 0)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, KILLED):
        raise SystemExit(f"the child failed at step {step}")
    return status == KILLED


def main(directory: str) -> None:
    original = Bench(os.path.join(directory, "original"), settings())
    os.mkdir(original.root)
    prepare(original)
    everything = last_values(read_all(original.partition))
    committed = last_values(read_committed(original.partition))
    producers = original.partition.lifecycle.for_cleaning().last_batches
    original.close()
    kills = 0
    for torn in (False, True):
        step = 0
        while True:
            root = os.path.join(directory, f"{step}-{torn}")
            killed = killed_at(step, torn, root, original)
            bench = Bench(root, settings(), time_ms=original.time_ms, recovery_point=original.recovery_point)
            for _ in range(2):
                partition = bench.open() if not hasattr(bench, "partition") else bench.reopen()
                assert bench.report is not None and not bench.report.damage, bench.report
                assert last_values(read_all(partition)) == everything, (step, torn)
                assert last_values(read_committed(partition)) == committed, (step, torn)
                assert partition.lifecycle.for_cleaning().last_batches == producers, (step, torn)
                leftovers = [
                    n for n in bench.names() if n.endswith((".swap", ".cleaned", ".deleted", ".tmp"))
                ]
                assert not leftovers, (step, torn, leftovers)
                clean(bench, 0)
            left = read_all(partition)
            assert len({record.key for record in left}) == len(left), (step, torn)
            assert last_values(left) == everything
            bench.close()
            shutil.rmtree(root)
            if not killed:
                break
            kills += 1
            step += 1
    print(kills)


if __name__ == "__main__":
    main(sys.argv[1])
