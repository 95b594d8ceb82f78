"""What a consumer group has not read yet, to compare a log with its mirror."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import embedlog
from embedlog import CommittedOffset, Log, Mirror, TopicPartition


def opened(place: Any) -> Log:
    """A handle of a directory or an address; a Log is lent."""
    return place if isinstance(place, Log) else embedlog.open(place)


def commit(log: Log, group: str, topic: str, *offsets: int, metadata: str = "") -> None:
    """Commit an offset for each of the first partitions."""
    commits = {
        TopicPartition(topic, number): CommittedOffset(offset, metadata=metadata)
        for number, offset in enumerate(offsets)
    }
    log.backend.coordinator.commit_offsets(group, commits)  # type: ignore[union-attr]


def committed(log: Log, group: str, topic: str = "t") -> list[int]:
    """The committed offsets of the partitions that have one, in order."""
    offsets = log.group(group).offsets()
    return [commit.offset for name, commit in sorted(offsets.items()) if name.topic == topic]


def unread(log: Log, group: str, topic: str = "t") -> list[list[bytes | None]]:
    """The values that the group would read next, of each partition with a committed offset."""
    values = []
    for name, commit in sorted(log.group(group).offsets().items()):
        if name.topic == topic:
            start = max(commit.offset, log.offsets(topic)[name.partition].log_start_offset)
            records = log.read(topic, name.partition, start=start)
            values.append([record.value for record in records])
    return values


def no_lag_below_zero(log: Log, group: str) -> bool:
    return all(
        commit.offset <= log.offsets(name.topic)[name.partition].log_end_offset
        for name, commit in log.group(group).offsets().items()
    )


def carry(source: Any, target: Any, **options: Any) -> embedlog.MirrorStatus:
    """Run a mirror until it has caught up and has carried the groups."""
    options = {"groups": True, "topics": "t|u", **options}
    with Mirror(source, target, **options) as mirror:
        return mirror.run(until_caught_up=True)


def some_transactions(log: Log, topic: str, count: int, aborted: Callable[[int], bool]) -> None:
    """Two records each; those of aborted ones are never to be read."""
    for number in range(count):
        try:
            with log.transaction("unread") as tx:
                for half in (b"a", b"b"):
                    tx.append(topic, b"%d%s" % (number, half), partition=0)
                if aborted(number):
                    raise InterruptedError
        except InterruptedError:
            pass
