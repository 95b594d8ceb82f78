"""A program that copies "in" to "out" in transactions, with two threads: it is killed and started again.

    python transaction_copier.py DIRECTORY SEED

Prints a line at each step. Ends when all is copied.
"""

from __future__ import annotations

import random
import sys
import threading

import embedlog
from embedlog import CommitFailed, Log, TopicPartition

GROUP, THREADS = "copiers", 2


class Undone(Exception):
    """The transaction is aborted on purpose."""


def left(log: Log) -> bool:
    """Is something to be copied?"""
    committed = log.group(GROUP).offsets()
    return any(
        edges.log_end_offset > (found.offset if (found := committed.get(TopicPartition("in", number))) else 0)
        for number, edges in log.offsets("in").items()
    )


def copy(log: Log, number: int, dice: random.Random) -> None:
    name = f"copier-{number}"
    flush = dice.random() < 0.2
    with log.consumer("in", group=GROUP, auto_commit=False) as consumer:
        while left(log):
            try:
                with log.transaction(name, flush=flush) as tx:
                    print("begun", flush=True)
                    records = consumer.poll(50, max_records=dice.randrange(1, 20))
                    fate = b"aborted" if dice.random() < 0.2 else b"committed"
                    half = len(records) // 2
                    for record in records[:half]:
                        tx.append("out", record.value, key=record.key, headers={"fate": fate})
                    tx.append_many("out", [r._replace(headers=(("fate", fate),)) for r in records[half:]])
                    print("appended", flush=True)
                    tx.commit_offsets(consumer)
                    print("to commit", flush=True)
                    if fate == b"aborted":
                        raise Undone
                print("committed", flush=True)
            except (Undone, CommitFailed):
                consumer.seek_to_committed()


def main(path: str, seed: str) -> None:
    with embedlog.open(path) as log:
        threads = [
            threading.Thread(target=copy, args=(log, number, random.Random(f"{seed} {number}")))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
