"""A disk that is really full, and a log at max_bytes: what transactions, health and clients make of it."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from faults import Clock, FaultyFileSystem, open_log, store_of
from housekeeping import housekeep
from programs import may_mount

from embedlog import DiskFull, ProducerFenced

_COMMON = """
import os, sys, time
from embedlog.errors import *
import embedlog
disk = sys.argv[1]
path = disk + "/log"

def fill():
    "Take all that is free, to the last byte."
    with open(disk + "/ballast", "ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

def make_room():
    os.unlink(disk + "/ballast")

def raises(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")

def append_until_full(log, topic="t"):
    "The last segment's page takes some bytes yet."
    for _ in range(100):
        try:
            log.append(topic, bytes(5000))
        except DiskFull as error:
            return error
    raise AssertionError("not full")
"""


def on_a_small_disk(tmp_path: Path, program: str) -> None:
    """Run a program on a tmpfs of 8 MB of its own."""
    if not may_mount():
        pytest.skip("this user may not mount a file system")
    script, mount = tmp_path / "program.py", tmp_path / "disk"
    script.write_text(_COMMON + program)
    mount.mkdir()
    done = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c"),
            f"mount -t tmpfs -o size=8m tmpfs {mount} && exec {sys.executable} {script} {mount}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("then", ["at once", "abort_transaction", "timed out"])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_transactional_id_goes_on_when_there_is_room(tmp_path: Path, then: str, failing: int) -> None:
    """Without room for: what it begins with (1), its prepared abort (2), that its abort is complete (3)."""
    fs, clock = FaultyFileSystem(tmp_path), Clock()
    with open_log(tmp_path, fs, clock=clock) as log:
        log.create_topic("t")
        with log.transaction("id") as tx:
            tx.append("t", b"before")
        full = fs.fail("write", errno.ENOSPC, path="__transaction_state", skip=failing - 1, times=1 << 30)
        with pytest.raises((KeyError, DiskFull)), log.transaction("id", timeout_ms=1_000) as tx:
            tx.append("t", b"never seen")
            raise KeyError
        with pytest.raises(DiskFull), log.transaction("id") as tx:  # and not ConcurrentTransactions
            tx.append("t", b"never seen either")
        fs.rules.remove(full)
        if then == "abort_transaction":
            log.abort_transaction("id")
        elif then == "timed out":
            clock.now_ms += 2_000
            housekeep(store_of(log))
        with log.transaction("id") as tx:
            tx.append("t", b"after")
        found = [record.value for record in log.read("t", isolation_level="read_committed")]
        assert found == [b"before", b"after"]


def test_another_producer_of_the_id_fences_one_that_had_no_room(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log:
        log.create_topic("t")
        with log.transaction("id"):
            pass
        full = fs.fail("write", errno.ENOSPC, path="__transaction_state", skip=1, times=1 << 30)
        with pytest.raises(KeyError), log.transaction("id") as tx:
            tx.append("t", b"never seen")
            raise KeyError
        fs.rules.remove(full)
        log.backend.transactions.init_producer_id("id", timeout_ms=1_000)
        with pytest.raises(ProducerFenced), log.transaction("id"):
            pass


@pytest.mark.slow
def test_a_transactional_producer_goes_on(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
log = embedlog.open(path)
log.create_topic("t")
producer = log.producer(transactional_id="id")

def fails_to_abort():
    for number in range(60):
        with log.transaction("x" * (number + 1)) as tx:
            tx.append("t", b"seen")
        fill()
        for _ in range(60):
            producer.begin_transaction()
            try:
                producer.send("t", b"never seen").result(60)
            except DiskFull:
                pass
            try:
                producer.abort_transaction()
            except DiskFull:
                return
            except ConcurrentTransactions:
                pass
        make_room()
        while any(each.is_open for each in log.transactions()):  # aborts that the disk had no room for
            time.sleep(0.01)
    raise AssertionError("each was aborted")

fails_to_abort()
raises(DiskFull, producer.abort_transaction)
make_room()
producer.abort_transaction()
fails_to_abort()
producer.close()
make_room()
with log.producer(transactional_id="id") as producer:
    producer.begin_transaction()
    producer.send("t", b"seen")
    producer.commit_transaction()
values = {r.value for r in log.read("t", isolation_level="read_committed")}
assert values == {b"seen"}, values
log.close()
""",
    )


@pytest.mark.slow
def test_groups_and_queues_go_on(tmp_path: Path) -> None:
    """The topics of commits and of share groups, and group commits, on the full disk."""
    on_a_small_disk(
        tmp_path,
        """
log = embedlog.open(path)
log.create_topic("t")
log.append_many("t", [b"%d" % i for i in range(10)])
consumer = log.consumer("t", group="g", auto_commit=False)
records = consumer.poll(5000)
assert records
queue = log.queue("jobs")
queue.send(b"one"); queue.send(b"two")
job = queue.take(10_000)
fill()
for _ in range(100):
    try:
        log.append("t", bytes(5000), flush=True)
    except DiskFull:
        break
else:
    raise AssertionError
for number in range(200):  # the file's last page takes some
    try:
        consumer.commit({embedlog.TopicPartition("t", 0): number % 10})
    except DiskFull:
        break
else:
    raise AssertionError
try:
    job.accept()
    accepted = True
except DiskFull:
    accepted = False
make_room()
consumer.commit()
if not accepted:
    job.accept()
second = queue.take(10_000)
assert second.value == b"two"
second.accept()
assert log.append("t", b"after", flush=True).durable
consumer.close()
queue.close()
log.close()
with embedlog.open(path) as log:
    assert log.recovery.clean
    consumer = log.consumer("t", group="g")
    assert [r.value for r in consumer.poll(5000)][:1] != [b"0"]
""",
    )


def test_health_says_that_the_disk_is_full(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
import json, urllib.request, urllib.error
from embedlog.cluster import Broker
with Broker(path, metrics_port=0) as broker:
    log = broker.log
    log.create_topic("t")
    assert log.health().status == "ok"
    fill()
    several = lambda: raises(DiskFull, log.append_many, "t", [bytes(9000)] * 9)
    for append in (lambda: append_until_full(log), several):
        error = append()
        assert "disk" in str(error)
        health = log.health()
        assert (health.status, health.full[:9]) == ("full", "the disk:"), health
        url = f"http://127.0.0.1:{broker.metrics_port}/health"
        answer = raises(urllib.error.HTTPError, urllib.request.urlopen, url)
        told = json.load(answer)
        assert told["status"] == "full" and "the disk" in told["why"], told
    make_room()
    health = log.health()
    assert health.full == "", health
    log.append("t", bytes(5000))
""",
    )


_CLIENTS = """
import subprocess
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kafka.errors import PolicyViolationError
from embedlog.cluster import Broker

def clients_of(broker):
    "Idempotent and others, which have begun: for a producer id librdkafka waits for ever."
    servers = broker.bootstrap_servers
    options = {"bootstrap.servers": servers, "linger.ms": 0}
    confluent = [Producer({**options, "enable.idempotence": each}) for each in (False, True)]
    python = [KafkaProducer(bootstrap_servers=servers, enable_idempotence=each) for each in (False, True)]
    for producer in confluent:
        producer.produce("t", b"early")
        assert producer.flush(60) == 0
    for producer in python:
        producer.send("t", b"early").get(60)
    return confluent, python

def check(broker, confluent, python, kind, text):
    "Every client fails at once, with the reason; its next record gets through once there is room."
    began = time.monotonic()
    servers = broker.bootstrap_servers
    told = []
    big = bytes(60_000)
    def note(error, message):
        told.append(error and (error.code(), error.retriable()))
    for producer in confluent:
        producer.produce("t", big, on_delivery=note)
        assert producer.flush(60) == 0
    assert told == [(KafkaError.POLICY_VIOLATION, False)] * 2, told
    for producer in python:
        raises(PolicyViolationError, producer.send("t", big).get, 60)
    with embedlog.open(f"kafka://{servers}") as log:
        error = raises(kind, log.append, "t", big)
        assert text in str(error), error
        with log.producer() as producer:
            raises(kind, producer.send("t", big).result, 60)
    command = [sys.executable, "-m", "embedlog", "append", f"kafka://{servers}", "t"]
    done = subprocess.run(command, input="x" * 60_000 + "\\n", capture_output=True, text=True)
    assert done.returncode and text in done.stderr, (done.returncode, done.stderr[:2000])
    assert time.monotonic() - began < 100, "none has retried until its time was over"

def check_again(broker, confluent, python):
    for producer in confluent:
        errors = []
        producer.produce("t", b"fits", on_delivery=lambda error, message: errors.append(error))
        assert producer.flush(60) == 0
        assert errors == [None], errors
    assert python[0].send("t", b"fits").get(60)
    for producer in python:  # kafka-python's idempotent producer accepts nothing after any error
        producer.close(timeout=10)
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.append("t", b"fits")
"""


@pytest.mark.slow
def test_clients_of_a_broker_on_a_full_disk(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        _CLIENTS
        + """
with Broker(path) as broker:
    broker.log.create_topic("t")
    clients = clients_of(broker)
    fill()
    append_until_full(broker.log)
    check(broker, *clients, DiskFull, "the disk is full")
    make_room()
    check_again(broker, *clients)
""",
    )


@pytest.mark.slow
def test_clients_of_a_broker_at_max_bytes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        _COMMON
        + _CLIENTS
        + """
with Broker(path, max_bytes=1_000_000, segment_bytes=100_000) as broker:
    broker.log.create_topic("t")
    clients = clients_of(broker)
    for _ in range(100):
        try:
            broker.log.append("t", bytes(60_000))
        except LogFull:
            break
    assert broker.log.health().full.startswith("max_bytes: "), broker.log.health()
    check(broker, *clients, LogFull, "max_bytes")
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.alter_topic("t", retention_bytes=100_000)
    while broker.log.health().full:
        time.sleep(0.01)
    check_again(broker, *clients)
    broker.log.append("t", bytes(60_000))
    assert broker.log.health().status == "ok"
"""
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
