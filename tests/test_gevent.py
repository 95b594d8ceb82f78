"""Greenlets, of a program that gevent has patched before it imported embedlog. They share one thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import embedlog

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
import embedlog

def works(number):
    queue = log.queue("jobs")
    for _ in range(20):
        queue.send(b"job")
    for _ in range(20):
        with queue.take(60_000):
            gevent.sleep(0)

def appends(number):
    with log.producer() as producer, log.transaction(f"t{number}") as transaction:
        for n in range(20):
            log.append("t", b"%d" % n, flush=n % 5 == 0)
            producer.send("t", b"sent").result()
            transaction.append("t", b"in a transaction")
            gevent.sleep(0)

def consumes(number):
    with log.consumer("t", group=f"g{number}", isolation_level="read_uncommitted") as consumer:
        count = 0
        while count < 120:
            count += len(consumer.poll(1_000))
            gevent.sleep(0)

with embedlog.open(sys.argv[1]) as log:
    log.create_topic("t")
    greenlets = [gevent.spawn(run, number) for run in (works, appends, consumes) for number in range(2)]
    gevent.joinall(greenlets, raise_error=True)
print("done")
"""


def test_greenlets_take_turns(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
    with embedlog.open(path) as log:
        assert len(list(log.read("t"))) == 120
        assert log.queue("jobs").take(default=None) is None
