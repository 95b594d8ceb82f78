"""The demo's loading process: made to be killed at any moment and started again.

The input has an order, and the default partitioner is a function of the key: so the end of each partition
tells how many of its flights are in. Starting again, the loader passes over just those. That is all there
is to "exactly once": no second store of progress that could disagree with the log.

Run as `python -m embedlog.demo.loader DIRECTORY`; reports what it does in JSON lines on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

import embedlog

from ..clients.partitioner import partition_for_key
from . import flights

TOPIC: Final = "flights"
PARTITIONS: Final = 4
_CHUNK: Final = 2_000


def load(directory: str) -> None:
    """Load every flight that is not in the log yet."""
    with embedlog.open(directory) as log:
        if TOPIC not in log.topics():
            log.create_topic(TOPIC, partitions=PARTITIONS, compression_type="zstd")
        else:
            _report(recovery=[partition.as_dict() for partition in log.recovery.partitions])
        ends = [offsets.log_end_offset for _, offsets in sorted(log.offsets(TOPIC).items())]
        loaded_count = sum(ends)
        _report(loaded=loaded_count, bytes=0, seconds=0.0)
        timestamps: dict[str, int] = {}
        chunk: list[embedlog.Record] = []
        appending = 0.0
        size = 0
        for row in flights.rows():
            partition = partition_for_key(flights.key_of(row), PARTITIONS)
            if ends[partition]:
                ends[partition] -= 1
                continue
            chunk.append(flights.as_record(row, timestamps))
            if len(chunk) == _CHUNK:
                appending += _append(log, chunk)
                loaded_count += len(chunk)
                size += sum(len(record.value or b"") for record in chunk)
                chunk.clear()
                _report(loaded=loaded_count, bytes=size, seconds=appending)
        appending += _append(log, chunk)
        size += sum(len(record.value or b"") for record in chunk)
        _report(loaded=loaded_count + len(chunk), bytes=size, seconds=appending)


def _append(log: embedlog.Log, chunk: list[embedlog.Record]) -> float:
    started = time.perf_counter()
    log.append_many(TOPIC, chunk)
    return time.perf_counter() - started


def _report(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    load(sys.argv[1])
