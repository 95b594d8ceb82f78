"""Workers of a queue over brokers, as processes that are killed.

A worker notes each job twice, with O_APPEND and fsync: "taken VALUE" before its work, "accepted VALUE" when
`accept` has returned.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

WORKER = """
import os, sys, time
import embedlog

address, notes, lock_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, job):
    os.write(file, b"%d %s %s\\n" % (time.monotonic_ns(), what, job.value))

with embedlog.open(address) as log, log.queue("jobs", lock_ms=lock_ms, max_deliveries=8) as queue:
    while (job := queue.take(timeout_ms=3 * lock_ms + 6_000, default=None)) is not None:
        note(b"taken", job)
        time.sleep(0.01)
        job.accept()
        note(b"accepted", job)
"""


def kill_workers(address: str, path: Path, *, kills: int, lock_ms: int, workers: int = 3) -> None:
    """Run workers until no job is left, and kill one of them every now and then, with a job in hand."""
    numbers = iter(range(1_000))

    def started() -> subprocess.Popen[bytes]:
        notes = path / f"notes-{next(numbers)}"
        return subprocess.Popen([sys.executable, "-c", WORKER, address, str(notes), str(lock_ms)])

    processes = [started() for _ in range(workers)]
    try:
        for kill in range(kills):
            before = _size(path)
            while _size(path) < before + 600:
                time.sleep(0.01)
            victim = processes[kill % workers]
            time.sleep(random.random() * 0.02)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            processes[kill % workers] = started()
        for process in processes:
            assert process.wait(timeout=120) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("notes-*"))


def settled_by_workers(path: Path) -> tuple[set[bytes], list[bytes]]:
    """The jobs that were accepted, and those that were taken after that.

    What a worker took last, without a note of its accept, counts as accepted: if it was not, another one took
    it again, and the last of these has a note, or else was killed between its accept and the note.
    """
    notes = []
    last_taken = set()
    for file in path.glob("notes-*"):
        of_worker = [line.split() for line in file.read_bytes().splitlines()]
        notes += [(int(at), what, value) for at, what, value in of_worker]
        if of_worker and of_worker[-1][1] == b"taken":
            last_taken.add(of_worker[-1][2])
    accepted: set[bytes] = set()
    again = []
    for _, what, value in sorted(notes):
        if what == b"accepted":
            accepted.add(value)
        elif value in accepted:
            again.append(value)
    return accepted | last_taken, again
