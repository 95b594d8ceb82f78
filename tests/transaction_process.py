"""One of several processes with transactions in a shared log, and a diary of them; killed at any time.

    python transaction_process.py DIRECTORY DIARY NAME SEED

NAME is its transactional id. A name that begins with "reader" reads what is committed instead.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path

from histories import Diary, Outcome

import embedlog
from embedlog.errors import EmbedlogError, TransactionAborted

TOPIC, PARTITIONS = "t", 3


class Undone(Exception):
    """The transaction is aborted on purpose."""


def write(path: Path, diary: Diary, name: str, seed: str) -> None:
    dice = random.Random(seed)
    number = 0
    with embedlog.open(path, shared=True) as log:
        while True:
            diary.begin()
            outcome: Outcome | None = None
            try:
                with log.transaction(name, timeout_ms=10_000) as tx:
                    for _ in range(dice.randrange(1, 5)):
                        partition = dice.randrange(PARTITIONS)
                        values = [f"{name} {seed} {number + n}" for n in range(dice.randrange(1, 4))]
                        number += len(values)
                        diary.sent([(partition, value, None) for value in values])
                        appended = tx.append_many(
                            TOPIC, [value.encode() for value in values], partition=partition
                        )
                        places = zip(values, appended, strict=True)
                        diary.sent((partition, value, place.offset) for value, place in places)
                    if dice.random() < 0.2:
                        raise Undone
                    diary.ask()
                outcome = "committed"
            except (Undone, TransactionAborted):
                outcome = "aborted"
            except EmbedlogError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if outcome is not None:
                diary.ended(outcome)


def read(path: Path, diary: Diary, name: str) -> None:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    shared = name.endswith("shared")
    # Of a read that ends at an open transaction, as most do here, the log tells.
    logging.getLogger("embedlog.clients.open_transactions").setLevel(logging.ERROR)
    with embedlog.open(path, shared=True) if shared else embedlog.open(path, mode="r") as log:
        while True:
            for partition, start in offsets.items():
                records = list(log.read(TOPIC, partition, start=start, isolation_level="read_committed"))
                diary.read((partition, each.offset, (each.value or b"").decode()) for each in records)
                if records:
                    offsets[partition] = records[-1].offset + 1
                # Asked for from the log end on, so that it is no lower bound (store/txn_index.py).
                end = log.offsets(TOPIC)[partition].log_end_offset
                fetched = log.backend.fetch(TOPIC, partition, end, 1, read_committed=True)
                diary.mark(f"{name}, the stable offset of {partition}", fetched.last_stable_offset)
            time.sleep(0.005)  # the others need the processors, too


if __name__ == "__main__":
    directory, where, who, what_seed = sys.argv[1:]
    into = Diary(where)
    if who.startswith("reader"):
        read(Path(directory), into, who)
    else:
        write(Path(directory), into, who, what_seed)
