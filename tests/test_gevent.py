"""Greenlets, of a program that gevent has patched before it imported embedlog. They share one thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import embedlog
from embedlog.cluster import Broker

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


BEGIN = """
from gevent import monkey
monkey.patch_all()
import socket
import sys
import time
import gevent
import embedlog
from embedlog.errors import RequestTimedOut

turns = 0

def counts():
    global turns
    while True:
        turns += 1
        gevent.sleep(0.001)

gevent.spawn(counts)
"""

SILENT = (
    BEGIN
    + """
from embedlog.cluster.classic import EARLIEST_TIME, Producer, ProducerData, SimpleConsumer

with socket.create_server(("127.0.0.1", 0)) as silent:
    host, port = silent.getsockname()
    with (
        SimpleConsumer(host, port, so_timeout_ms=200) as consumer,
        Producer(broker_list=f"{host}:{port}", request_timeout_ms=200) as producer,
    ):
        for request in (
            lambda: consumer.get_offsets_before("t", 0, EARLIEST_TIME, 1),
            lambda: producer.send(ProducerData("t", b"a")),
        ):
            before, began = turns, time.monotonic()
            try:
                request()
            except RequestTimedOut:
                assert time.monotonic() - began > 0.19
                assert turns > before
                print("timed out")
"""
)

CLIENTS = (
    BEGIN
    + """
from embedlog.cluster.classic import FetchRequest, Producer, ProducerData, SimpleConsumer

host, port = sys.argv[1].split(":")

def consumes():
    with SimpleConsumer(host, int(port)) as consumer:
        offset, before = 0, turns
        while offset < 3:
            offset = consumer.fetch(FetchRequest("t", 0, offset), max_wait_ms=5_000).next_offset
        assert turns > before

consumer = gevent.spawn(consumes)
gevent.sleep(0.05)
with Producer(broker_list=sys.argv[1]) as producer:
    producer.send(ProducerData("t", [b"a", b"b"]))
with embedlog.open(f"kafka://{sys.argv[1]}") as log:
    for turn in range(3):  # with one connection, which is idle between them
        assert log.topics() == ["t"]
        gevent.sleep(0.01)
    log.append("t", b"c")
consumer.get()
print("done")
"""
)


def run(program: str, *args: str | Path) -> str:
    """What a program of greenlets prints."""
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_greenlets_take_turns(path: Path) -> None:
    assert run(PROGRAM, path) == "done\n"
    with embedlog.open(path) as log:
        assert len(list(log.read("t"))) == 120
        assert log.queue("jobs").take(default=None) is None


def test_a_client_waits_no_longer_than_its_timeout() -> None:
    assert run(SILENT) == "timed out\n" * 2


def test_clients_of_a_broker_take_turns(path: Path) -> None:
    with Broker(path, port=0) as broker:
        broker.log.create_topic("t")
        assert run(CLIENTS, broker.bootstrap_servers) == "done\n"
