"""Makes golden directories of what came after 16cf1d8: times in segment manifests, and topic ids in commits.

3a09fd6.tar.gz was made by this script with the code of that commit, once:

    git worktree add --detach SOURCE 3a09fd6
    PYTHONPATH=SOURCE:SOURCE/tests python make_newer_directories.py 3a09fd6.tar.gz

make_directories.py, whose helpers it uses, says what is in an archive.
"""

from __future__ import annotations

import sys

from faults import store_of
from housekeeping import housekeep
from make_directories import NEVER_MS, SMALL, T, again, die, main, opened, rows

from embedlog import Log
from embedlog.codec import encode_batch


def timed(path: str, layout: str) -> None:
    """Closed. Times out of order, before 1970 and none, in segments that the manifest has summaries of."""
    with opened(path, layout) as log:
        use_times(log)


def killed_timed(path: str, layout: str) -> None:
    """The same, then kill -9: the last sealed segments have no summary yet."""
    again(path, layout, "use_times_and_die")


def use_times_and_die(path: str, layout: str) -> None:
    log = opened(path, layout, flush_ms=NEVER_MS)
    use_times(log)
    for number in range(20, 26):
        log.backend.append("clicks", 0, out_of_order(number))
    die()


def use_times(log: Log) -> None:
    log.create_topic("clicks", partitions=2, **SMALL)
    for number in range(18):
        log.backend.append("clicks", number % 2, out_of_order(number, compression=(0, 4, 1)[number % 3]))
    log.create_topic("trimmed", **SMALL)
    log.create_topic("latest", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, **SMALL)
    for number in range(12):
        log.backend.append("trimmed", 0, out_of_order(number))
        log.backend.append("latest", 0, out_of_order(number))
    log.delete_records("trimmed", 0, 20)
    log.flush()
    housekeep(store_of(log))


def out_of_order(number: int, compression: int = 0) -> bytearray:
    """A batch that goes back in time; some have no times, some are before 1970, some in the year 2093."""
    shifts_ms = {2: -T - 2, 3: -(1 << 41), 7: 1 << 41}
    times_ms = [T + 1000 * (9 * number - row) + shifts_ms.get(number, 0) for row in range(6)]
    return encode_batch(
        [
            (b"user-%d" % row, b"%d" % number * 30, (), -1 if number == 5 else time_ms)
            for row, time_ms in enumerate(times_ms)
        ],
        compression=compression,
    )


def committed(path: str, layout: str) -> None:
    """Closed. Commits with topic ids, of a group and of a transaction, and a topic that was made again."""
    with opened(path, layout) as log:
        use_commits(log)


def killed_committed(path: str, layout: str) -> None:
    """The same, then kill -9."""
    again(path, layout, "use_commits_and_die")


def use_commits_and_die(path: str, layout: str) -> None:
    use_commits(opened(path, layout, flush_ms=NEVER_MS))
    die()


def use_commits(log: Log) -> None:
    for topic in ("clicks", "sums", "again"):
        log.create_topic(topic, partitions=2)
        log.append_many(topic, rows(5), partition=0)
    with log.consumer(["clicks", "again"], group="report", stop_at_end=True) as consumer:
        assert len(list(consumer)) == 10
    log.delete_topic("again")
    log.create_topic("again")
    log.append_many("again", rows(3), partition=0)
    with log.consumer("clicks", group="summing", auto_offset_reset="earliest", auto_commit=False) as consumer:
        while records := consumer.poll(1000, max_records=2):
            with log.transaction("sums-1") as tx:
                tx.append("sums", b"%d" % len(records), partition=1, timestamp_ms=T + records[0].offset)
                tx.commit_offsets(consumer)


KINDS = (timed, killed_timed, committed, killed_committed)


if __name__ == "__main__":
    main(sys.argv[1], KINDS)
