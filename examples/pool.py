"""A pool of processes that shares a log: count the words of many files, each file once.

    python examples/pool.py DIR docs/*.md docs/decisions/*.md

Each process of the pool opens the log with shared=True and appends the result of a file itself, so results do
not pass through the parent, and none is lost if the program ends early. Run it again: it does what is
missing. If a process of the pool is killed, the program does so by itself.

It works with every start method (--start fork, spawn or forkserver): the processes open the log after they
have started.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import embedlog

TOPIC = "words"
ATTEMPTS = 5

log: embedlog.Log  # of each process of the pool; closed at its exit


def open_log(directory: str) -> None:
    global log
    log = embedlog.open(directory, shared=True)


def count(file: str) -> tuple[str, int]:
    """In the pool: append the words of a file, durably. Returns the file and how many there are."""
    words = Counter(re.findall(r"\w+", Path(file).read_text(errors="replace").lower()))
    log.append(
        TOPIC,
        json.dumps(words).encode(),
        key=file.encode(),
        headers={"process": b"%d" % os.getpid()},
        flush=True,
    )
    return file, words.total()


def counted(directory: str) -> set[str]:
    """The files whose words are in the log."""
    with embedlog.open(directory, shared=True) as log:
        log.create_topic(TOPIC, partitions=4, exist_ok=True)
        return {record.key.decode() for record in log.read(TOPIC)}


def run(directory: str, files: list[str], processes: int | None, start: str | None) -> None:
    context = multiprocessing.get_context(start)
    for _ in range(ATTEMPTS):
        done = counted(directory)
        missing = [file for file in files if file not in done]
        try:
            with ProcessPoolExecutor(processes, context, open_log, (directory,)) as pool:
                for file, words in pool.map(count, missing):
                    print(f"{words:>9,}  {file}", flush=True)
            return
        except BrokenProcessPool:  # it has ended the others, too
            print("a process was killed; the rest again", flush=True)
    raise SystemExit(f"gave up after {ATTEMPTS} attempts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="the log's directory")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--processes", type=int, help="by default one for each processor")
    parser.add_argument("--start", choices=multiprocessing.get_all_start_methods())
    args = parser.parse_args()
    run(args.directory, args.files, args.processes, args.start)
    with embedlog.open(args.directory, "r") as log:
        words: Counter[str] = Counter()
        for record in log.read(TOPIC):
            words.update(json.loads(record.value))
    print(", ".join(f"{word} {number:,}" for word, number in words.most_common(10)))


if __name__ == "__main__":
    main()
