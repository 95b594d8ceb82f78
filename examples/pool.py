"""Count the words of many files in a pool of processes, each file once.

    python examples/pool.py DIR docs/*.md docs/*/*.md

Each process of the pool opens the log and appends the words of a file itself, durably. So none are lost if
the program ends early: run it again, and it does what is missing. If a process of the pool is killed, the
program does so by itself. It works with each start method, as the processes open the log after their start.
"""

import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import embedlog

PROCESSES, ATTEMPTS = 3, 5

log: embedlog.Log  # of this process of the pool; closed at its exit


def open_log(directory: str) -> None:
    global log
    log = embedlog.open(directory, shared=True)


def count(file: str) -> tuple[str, int]:
    """In the pool: append the words of a file. Returns the file and how many there are."""
    words = Counter(re.findall(r"\w+", Path(file).read_text(errors="replace").lower()))
    log.topic("words", dict, key_type=str).append(words, key=file, flush=True)
    return file, words.total()


def read(directory: str) -> dict[str, Counter[str]]:
    """The words of each file that is in the log."""
    with embedlog.open(directory, shared=True) as log:
        log.create_topic("words", partitions=4, exist_ok=True)
        records = log.topic("words", dict, key_type=str).read()
        return {record.key: Counter(record.value) for record in records if record.key}


if __name__ == "__main__":
    directory, *files = sys.argv[1:]
    for _ in range(ATTEMPTS):
        done = read(directory)
        missing = [file for file in files if file not in done]
        try:
            with ProcessPoolExecutor(PROCESSES, initializer=open_log, initargs=(directory,)) as pool:
                for file, words in pool.map(count, missing):
                    print(f"{words:>9,}  {file}", flush=True)
            break
        except BrokenProcessPool:  # it has ended the others, too
            print("a process was killed; the rest again", flush=True)
    else:
        sys.exit(f"gave up after {ATTEMPTS} attempts")
    total = sum(read(directory).values(), Counter())
    print(", ".join(f"{word} {number:,}" for word, number in total.most_common(10)))
