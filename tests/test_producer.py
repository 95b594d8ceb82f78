"""The producer: batches, futures, callbacks, bounds, threads, forks, process exit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

import embedlog
from embedlog.clients.batch import ProducerBatch, SendFuture, TopicState
from embedlog.clients.partitioner import partition_for_key
from embedlog.clients.producer import Producer
from embedlog.codec import read_header
from embedlog.errors import (
    BufferExhausted,
    Closed,
    CompressionUnavailable,
    InvalidArgument,
    InvalidType,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
    TransactionAborted,
)
from embedlog.fast_append import RECORD_MEMORY
from embedlog.model import Appended, Record, RecordMetadata

pytestmark = pytest.mark.plain

FOREVER_MS = 10**18
"""A linger that never comes to its end within a test."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with embedlog.open(tmp_path / "data") as opened:
        opened.create_topic("one")
        opened.create_topic("four", partitions=4)
        yield opened


class Gate:
    """The real backend, with a gate before its appends; it notes them, and fails some partitions'."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Event()
        self.failing: dict[int, BaseException] = {}
        self.appends: list[tuple[int, bytes, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def append(self, topic: str, partition: int, batches: bytearray, *, flush: bool = False) -> Appended:
        self.arrived.set()
        self.open.wait()
        if partition in self.failing:
            raise self.failing[partition]
        self.appends.append((partition, bytes(batches), flush))
        return self.backend.append(topic, partition, batches, flush=flush)

    def batch_counts(self) -> list[int]:
        """How many records each batch had."""
        counts = []
        for _, batches, _ in self.appends:
            pos = 0
            while pos < len(batches):
                header = read_header(batches, pos)
                counts.append(header.record_count)
                pos += header.size
        return counts


@pytest.fixture
def gate(log: Any) -> Iterator[Gate]:
    gate = Gate(log.backend)
    yield gate
    gate.open.set()


def everything(log: Any, topic: str) -> list[Record]:
    partitions = log.describe_topic(topic).partitions
    return [record for partition in range(partitions) for record in log.read(topic, partition)]


def values(log: Any, topic: str) -> list[bytes | None]:
    return [record.value for record in everything(log, topic)]


def result(future: Future[RecordMetadata]) -> RecordMetadata:
    return future.result(timeout=60)


# -- sending -----------------------------------------------------------------------------------------


def test_every_field_arrives_and_the_future_has_the_offset(log: Any) -> None:
    with Producer(log.backend) as producer:
        futures = [
            producer.send("one", b"v", key=b"k", headers={"h": b"1", "n": None}, timestamp_ms=5),
            producer.send("one", bytearray(b"v2"), key=memoryview(b"k2"), headers=[("h", b"x")]),
            producer.send("one", None, key=b"k"),
            producer.send("one", None, timestamp_ms=-1),
        ]
        metadata = [result(future) for future in futures]
    records = everything(log, "one")
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"k", b"v", (("h", b"1"), ("n", None))),
        (b"k2", b"v2", (("h", b"x"),)),
        (b"k", None, ()),
        (None, None, ()),
    ]
    assert [(r.topic, r.partition, r.offset, r.timestamp_ms) for r in records] == [m[:4] for m in metadata]
    assert records[0].timestamp_ms == 5
    assert abs(records[3].timestamp_ms - time.time() * 1000) < 600_000


def test_records_carry_the_time_of_their_send(log: Any) -> None:
    clock = itertools.count(999)  # looked at once before the first send
    with Producer(log.backend, linger_ms=FOREVER_MS, clock=lambda: next(clock)) as producer:
        futures = [producer.send("one", b"%d" % n) for n in range(10)]
        producer.flush()
        assert [result(future).timestamp_ms for future in futures] == list(range(1000, 1010))
    assert [r.timestamp_ms for r in everything(log, "one")] == list(range(1000, 1010))


def test_append_time(log: Any) -> None:
    log.create_topic("stamped", message_timestamp_type="LogAppendTime")
    with Producer(log.backend, linger_ms=FOREVER_MS, batch_bytes=300) as producer:
        futures = [producer.send("stamped", b"x" * 100, timestamp_ms=n) for n in range(10)]
        producer.flush()
    records = everything(log, "stamped")
    assert {r.timestamp_type for r in records} == {1}
    assert min(r.timestamp_ms for r in records) > 1_000_000
    assert [r.timestamp_ms for r in records] == [result(future).timestamp_ms for future in futures]


def test_encoders(log: Any) -> None:
    def as_json(value: object) -> bytes:
        return json.dumps(value).encode()

    with Producer(log.backend, encoder=as_json, key_encoder=str.encode) as producer:
        producer.send("one", {"a": 1}, key="k")
        producer.send("one", None, key="k")
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.send("one", object())
    assert [(r.key, r.value) for r in everything(log, "one")] == [(b"k", b'{"a": 1}'), (b"k", None)]
    with Producer(log.backend, encoder=lambda _: "text") as producer, pytest.raises(InvalidType, match="str"):
        producer.send("one", 1)


def test_keyed_records_are_hashed(log: Any) -> None:
    with Producer(log.backend) as producer:
        futures = {b"k%d" % n: producer.send("four", b"v", key=b"k%d" % n) for n in range(100)}
        for key, future in futures.items():
            assert result(future).partition == partition_for_key(key, 4)
        assert result(producer.send("four", b"v", key=b"k", partition=3)).partition == 3


def test_both_paths_send_the_same(log: Any) -> None:
    """No send with an encoder takes the fast path."""
    random = Random(5)
    values = [None, b"", b"v" * 200]
    headers: list[Any] = [(), [], {"n": b"1", "ü": None}, [("n", bytearray(b"1"))], (("n", b"x" * 70),), None]
    times = [0, 5, 1 << 40]
    records = [
        (
            random.choice(values),
            random.randbytes(random.randrange(40)),
            random.choice(headers),
            random.choice(times),
        )
        for n in range(2000)
    ]
    log.create_topic("ordinary", partitions=4)
    with Producer(log.backend) as fast, Producer(log.backend, encoder=bytes) as ordinary:
        for value, key, pairs, timestamp_ms in records:
            for producer, topic in ((fast, "four"), (ordinary, "ordinary")):
                partition = random.choice([None, partition_for_key(key, 4)])
                producer.send(
                    topic, value, key=key, headers=pairs, timestamp_ms=timestamp_ms, partition=partition
                )
    found, expected = (
        [(r.partition, *r[2:]) for r in everything(log, topic)] for topic in ("four", "ordinary")
    )
    assert found == expected
    assert all(record[0] == partition_for_key(record[4], 4) for record in found)


def test_null_keys_stick_to_a_batch_and_then_move_on(log: Any, gate: Gate) -> None:
    with Producer(gate, linger_ms=FOREVER_MS, batch_bytes=2000) as producer:
        futures = [producer.send("four", b"x" * 100) for _ in range(600)]
        producer.flush()
        partitions = [result(future).partition for future in futures]
    runs = [len(list(run)) for _, run in itertools.groupby(partitions)]
    assert set(runs[:-1]) == {(2000 - 61) // 136}, "each batch is filled before another partition is drawn"
    assert set(partitions) == {0, 1, 2, 3}


def test_a_lingering_batch_moves_the_null_keys_on_as_well(log: Any) -> None:
    with Producer(log.backend, linger_ms=0) as producer:
        assert {result(producer.send("four", b"v")).partition for _ in range(200)} == {0, 1, 2, 3}


def test_a_users_partitioner(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Mine:
        answer: Any = 2

        def __call__(self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int:
            return self.answer

        def on_new_batch(self, topic: str, num_partitions: int, previous: int) -> None:
            raise RuntimeError("mine fails")

    mine = Mine()
    with Producer(log.backend, partitioner=mine) as producer:
        assert result(producer.send("four", b"v", key=b"k")).partition == 2
        mine.answer = 4
        with pytest.raises(InvalidArgument, match="chose partition 4"):
            producer.send("four", b"v")
        mine.answer = 1
        assert result(producer.send("four", b"v")).partition == 1
    assert "mine fails" in caplog.text


def test_compression(log: Any, gate: Gate) -> None:
    log.create_topic("zipped", compression_type="lz4")
    for chosen, topic, number in (
        (None, "one", 0),
        (None, "zipped", 3),
        ("zstd", "zipped", 4),
        ("none", "zipped", 0),
    ):
        with Producer(gate, compression=chosen) as producer:
            producer.send(topic, b"x" * 1000)
        assert read_header(gate.appends[-1][1]).compression == number
    assert values(log, "zipped") == [b"x" * 1000] * 3
    with pytest.raises(CompressionUnavailable):
        Producer(gate, compression="bz2")


def test_durable_sends(log: Any, gate: Gate) -> None:
    with Producer(gate, flush=True) as producer:
        assert result(producer.send("one", b"v")).durable
    assert gate.appends[0][2] is True


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": "text"}, InvalidType, "value must be bytes, not str"),
    ({"value": {"a": 1}}, InvalidType, "value must be bytes .* not dict"),
    ({"key": "k"}, InvalidType, "key must be bytes, not str"),
    ({"headers": [("a", "b")]}, InvalidType, "header's value"),
    ({"timestamp_ms": "now"}, InvalidType, "timestamp_ms"),
    ({"timestamp_ms": -7}, InvalidArgument, "timestamp_ms"),
    ({"partition": 1}, PartitionNotFound, "there is no 1"),
    ({"partition": True}, InvalidType, "partition must be int"),
    ({"topic": "none"}, TopicNotFound, "none"),
    ({"topic": b"one"}, InvalidType, "topic must be str"),
    ({"topic": ["one"]}, InvalidType, "topic must be str"),
    ({"value": b"x" * (2 << 20)}, RecordTooLarge, "max_message_bytes"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG)
def test_send_raises_errors_of_its_arguments(
    log: Any, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with Producer(log.backend) as producer:
        with pytest.raises(error, match=message):
            producer.send(**{"topic": "one", "value": b"", **given})
        producer.send("one", b"the next one is fine")
    assert values(log, "one") == [b"the next one is fine"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"linger_ms": -1}, InvalidArgument),
        ({"linger_ms": float("nan")}, InvalidArgument),
        ({"linger_ms": "5"}, InvalidType),
        ({"batch_bytes": 0}, InvalidArgument),
        ({"buffer_bytes": None}, InvalidType),
        ({"max_block_ms": True}, InvalidType),
    ],
)
def test_wrong_settings(log: Any, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(settings))):
        Producer(log.backend, **settings)


# -- when batches go ---------------------------------------------------------------------------------


def test_a_batch_waits_for_linger_ms(log: Any, gate: Gate) -> None:
    with Producer(gate, linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("one", b"%d" % n) for n in range(100)]
        assert not any(future.done() for future in futures)
        assert gate.appends == []
        producer.flush()
        assert all(future.done() for future in futures)
    assert gate.batch_counts() == [100]

    with Producer(gate, linger_ms=1) as producer:
        assert result(producer.send("one", b"on its own")).offset == 100


def test_a_full_batch_goes_at_once(log: Any, gate: Gate) -> None:
    with Producer(gate, linger_ms=FOREVER_MS, batch_bytes=1000) as producer:
        futures = [producer.send("one", b"x" * 264) for _ in range(7)]
        concurrent.futures.wait(futures[:6], timeout=60)
        assert [future.done() for future in futures] == [True] * 6 + [False]
        large = producer.send("one", b"x" * 5000)
        assert result(large).offset == 7, "larger than a batch: alone in one, and behind what came before"
    assert gate.batch_counts() == [3, 3, 1, 1]


def test_records_gathered_meanwhile_take_one_append(log: Any, gate: Gate) -> None:
    gate.open.clear()
    with Producer(gate, linger_ms=FOREVER_MS, batch_bytes=1000) as producer:
        futures = [producer.send("one", b"x" * 264) for _ in range(3)]
        assert gate.arrived.wait(60)
        futures += [producer.send("one", b"x" * 264) for _ in range(30)]
        gate.open.set()
        producer.flush()
    assert [len(batches) > 1000 for _, batches, _ in gate.appends] == [False, True]
    assert [result(future).offset for future in futures] == list(range(33))


def test_flush_waits_for_callbacks_but_not_for_later_sends(log: Any) -> None:
    seen: list[RecordMetadata | None] = []
    with Producer(log.backend, linger_ms=FOREVER_MS, callback=lambda m, e: seen.append(m)) as producer:
        futures = [producer.send("four", b"v", key=b"%d" % n) for n in range(50)]
        producer.flush()
        assert len(seen) == 50
        later = producer.send("one", b"later")
        producer.flush()
        producer.flush()
        assert later.done()
    assert sorted(m for m in seen if m) == sorted([result(f) for f in futures] + [result(later)])


def test_topic_changes_are_seen(log: Any) -> None:
    with Producer(log.backend, linger_ms=FOREVER_MS) as producer:
        producer.send("one", b"v")
        with pytest.raises(PartitionNotFound):
            producer.send("one", b"v", partition=1)
        log.create_partitions("one", 2)
        assert producer.send("one", b"w", partition=1)
        producer.flush()
        log.alter_topic("one", compression_type="zstd", max_message_bytes=500)
        with pytest.raises(RecordTooLarge):
            producer.send("one", b"x" * 600)
        producer.send("one", b"x" * 100, partition=0)
    assert values(log, "one") == [b"v", b"x" * 100, b"w"]


# -- futures and callbacks ---------------------------------------------------------------------------


def test_a_send_future_has_the_interface_of_a_future() -> None:
    topic = TopicState("t", threading.Thread())
    topic.batch_bytes = 1000
    future = SendFuture(ProducerBatch(topic, 0, 0.0), 0, 0)
    assert set(vars(Future())) <= set(dir(future))
    assert future.running()
    assert not future.done()
    assert not future.cancel()
    assert not future.cancelled()
    assert "running" in repr(future)
    with pytest.raises(TimeoutError):
        future.result(timeout=0)


def test_futures_serve_wait_as_completed_and_asyncio(log: Any, gate: Gate) -> None:
    with Producer(gate) as producer:
        gate.open.clear()
        futures = [producer.send("four", b"%d" % n, key=b"%d" % n) for n in range(40)]
        called: list[Future[RecordMetadata]] = []
        for future in futures:
            future.add_done_callback(called.append)
        opener = threading.Thread(target=gate.open.set)
        opener.start()
        done, pending = concurrent.futures.wait(futures, timeout=60)
        opener.join()
        assert (len(done), len(pending)) == (40, 0)
        assert set(concurrent.futures.as_completed(futures, timeout=60)) == set(futures)
        producer.flush()
        assert set(called) == set(futures)
        futures[0].add_done_callback(called.append)
        assert called[-1] is futures[0], "on a future that is done, at once"
        assert futures[0].exception() is None

        async def send() -> list[RecordMetadata]:
            sent = [asyncio.wrap_future(producer.send("one", b"%d" % n)) for n in range(10)]
            return await asyncio.gather(*sent)

        assert [metadata.offset for metadata in asyncio.run(send())] == list(range(10))


def test_waiters_are_woken_by_failures(log: Any, gate: Gate) -> None:
    gate.failing[0] = OSError("disk")
    gate.open.clear()
    with Producer(gate, linger_ms=0) as producer:
        future = producer.send("one", b"v")
        opener = threading.Thread(target=gate.open.set)
        opener.start()
        done, _ = concurrent.futures.wait(
            [future], timeout=60, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        opener.join()
        assert done == {future}
        with pytest.raises(OSError, match="disk"):
            result(future)


def test_callbacks_come_in_order_from_the_sender_thread(log: Any, gate: Gate) -> None:
    seen: list[tuple[RecordMetadata | None, BaseException | None, str]] = []

    def callback(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        seen.append((metadata, error, threading.current_thread().name))

    with Producer(gate, callback=callback) as producer:
        for n in range(20):
            producer.send("one", b"%d" % n)
        producer.flush()
        gate.failing[0] = OSError("disk")
        producer.send("one", b"")
    assert [metadata.offset for metadata, _, _ in seen[:20] if metadata] == list(range(20))
    assert seen[20][:2] == (None, gate.failing[0])
    assert {name for _, _, name in seen} == {"embedlog-producer"}


@pytest.mark.parametrize("raised", [RuntimeError("in the callback"), SystemExit("in the callback")])
def test_an_error_in_a_callback_is_logged(
    log: Any, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise raised

    with Producer(log.backend, callback=fail) as producer, caplog.at_level(logging.ERROR, "embedlog"):
        future = producer.send("one", b"a")
        future.add_done_callback(fail)
        producer.flush()
        assert result(producer.send("one", b"b")).offset == 1
    assert caplog.text.count("in the callback") >= 2


def test_a_callback_may_send_and_may_not_flush(log: Any) -> None:
    refused: list[type[Exception]] = []

    def callback(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if metadata is not None and metadata.topic == "one":
            producer.send("four", b"from the callback")
            try:
                producer.flush()
            except InvalidArgument as wrong:
                refused.append(type(wrong))

    with Producer(log.backend, linger_ms=FOREVER_MS, callback=callback) as producer:
        producer.send("one", b"v")
        producer.flush()
        producer.flush()
    assert refused == [InvalidArgument]
    assert values(log, "four") == [b"from the callback"]


def test_a_callback_may_close(log: Any) -> None:
    with Producer(log.backend, callback=lambda *_: producer.close()) as producer:
        assert result(producer.send("one", b"v")).offset == 0
        producer.flush()
        with pytest.raises(Closed):
            producer.send("one", b"v")


# -- failures ----------------------------------------------------------------------------------------


def test_a_failed_partition_does_not_touch_the_others(log: Any, gate: Gate) -> None:
    gate.failing[2] = OSError("disk")
    with Producer(gate) as producer:
        futures = [producer.send("four", b"%d" % n, partition=n % 4) for n in range(400)]
        producer.flush()
        for n, future in enumerate(futures):
            if n % 4 == 2:
                assert future.exception() is gate.failing[2]
            else:
                assert result(future).partition == n % 4
        gate.failing.clear()
        assert result(producer.send("four", b"again", partition=2)).offset == 0
    assert len(everything(log, "four")) == 301


def test_one_batch_too_large_does_not_fail_those_sent_with_it(log: Any, gate: Gate) -> None:
    real = gate.backend.append

    class Smaller:
        def __getattr__(self, name: str) -> Any:
            return getattr(log.backend, name)

        def append(self, topic: str, partition: int, batches: bytearray, **options: Any) -> Appended:
            if len(batches) > 1000:
                raise RecordTooLarge("smaller now")
            return real(topic, partition, batches, **options)

    with Producer(Smaller(), linger_ms=FOREVER_MS, batch_bytes=900) as producer:
        futures = [producer.send("one", b"x" * size) for size in (800, 800, 5000, 800)]
        producer.flush()
        assert [type(future.exception()) for future in futures] == [type(None)] * 2 + [
            RecordTooLarge,
            type(None),
        ]
    assert [len(value or b"") for value in values(log, "one")] == [800, 800, 800]


def test_a_topic_deleted_meanwhile_fails_the_futures(log: Any) -> None:
    with Producer(log.backend, linger_ms=FOREVER_MS) as producer:
        future = producer.send("four", b"v")
        log.delete_topic("four")
        producer.flush()
        assert isinstance(future.exception(), TopicNotFound)
        with pytest.raises(TopicNotFound):
            producer.send("four", b"v")


def test_a_dying_sender_thread_leaves_no_waiter(
    log: Any, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.failing[0] = SystemExit("out of the backend")
    gate.open.clear()
    producer = Producer(gate, linger_ms=0, batch_bytes=1)
    futures = [producer.send("four", b"%d" % n, partition=n) for n in range(4)]
    gate.open.set()
    for future in futures:
        assert future.exception(timeout=60) in (None, gate.failing[0])
    assert futures[0].exception() is gate.failing[0]
    producer.flush()
    producer.close()
    with pytest.raises(Closed):
        producer.send("one", b"v")
    assert "sender thread died" in caplog.text


# -- memory ------------------------------------------------------------------------------------------


def test_a_send_waits_for_room_and_goes_on(log: Any, gate: Gate) -> None:
    room_for_ten = 10 * (RECORD_MEMORY + 1000 + 36)
    gate.open.clear()
    with Producer(gate, linger_ms=FOREVER_MS, buffer_bytes=room_for_ten) as producer:
        for n in range(10):
            producer.send("one", b"%04d" % n + b"x" * 996)
        assert gate.appends == []
        opener = threading.Timer(0, lambda: (gate.arrived.wait(60), gate.open.set()))
        opener.start()
        for n in range(10, 100):
            producer.send("one", b"%04d" % n + b"x" * 996)
        opener.join()
    assert [int((value or b"")[:4]) for value in values(log, "one")] == list(range(100))


def test_no_room_within_max_block_ms(log: Any, gate: Gate) -> None:
    gate.open.clear()
    with Producer(gate, linger_ms=FOREVER_MS, buffer_bytes=2400, max_block_ms=0) as producer:
        futures = [producer.send("one", b"x" * 100) for _ in range(3)]
        with pytest.raises(BufferExhausted, match="buffer_bytes, max_block_ms"):
            producer.send("one", b"x" * 1000)
        with pytest.raises(RecordTooLarge, match="more than the whole buffer"):
            producer.send("one", b"x" * 3000)
        gate.open.set()
        producer.flush()
        assert [result(future).offset for future in futures] == [0, 1, 2]
        assert result_of(producer, "one", b"room again").offset == 3
    assert len(everything(log, "one")) == 4


def result_of(producer: Producer, topic: str, value: bytes) -> RecordMetadata:
    future = producer.send(topic, value)
    producer.flush()
    return result(future)


def test_a_callback_never_waits_for_room(log: Any, gate: Gate) -> None:
    refused: list[BaseException] = []

    def callback(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        try:
            producer.send("four", b"x" * 2000)
        except BufferExhausted as full:
            refused.append(full)

    with Producer(gate, linger_ms=FOREVER_MS, buffer_bytes=2400, callback=callback) as producer:
        producer.send("one", b"x" * 100)
        producer.flush()
        assert len(refused) == 1


def test_close_wakes_a_send_that_waits(log: Any, gate: Gate) -> None:
    gate.open.clear()
    producer = Producer(gate, linger_ms=FOREVER_MS, buffer_bytes=3000)
    first = producer.send("one", b"x" * 2000)
    caught: list[type[Exception]] = []

    def wait() -> None:
        try:
            producer.send("one", b"x" * 2000)
        except Closed as error:
            caught.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert gate.arrived.wait(60), "the waiting send has made the sender go"
    closing = threading.Thread(target=producer.close)
    closing.start()
    waiting.join(60)
    gate.open.set()
    closing.join(60)
    assert caught == [Closed]
    assert result(first).offset == 0


# -- closing -----------------------------------------------------------------------------------------


def test_close_drains_and_is_final(log: Any) -> None:
    producer = Producer(log.backend, linger_ms=FOREVER_MS)
    futures = [producer.send("four", b"%d" % n) for n in range(1000)]
    assert not producer.closed
    producer.close()
    assert producer.closed
    assert all(future.done() for future in futures)
    with pytest.raises(Closed):
        producer.send("four", b"v")
    producer.close()
    producer.flush()
    assert len(everything(log, "four")) == 1000


def test_with_drains_after_an_error_too(log: Any) -> None:
    with pytest.raises(RuntimeError, match="mine"), Producer(log.backend, linger_ms=FOREVER_MS) as producer:
        producer.send("one", b"sent before")
        raise RuntimeError("mine")
    assert values(log, "one") == [b"sent before"]


def test_close_with_a_timeout_fails_unsent_records(log: Any, gate: Gate) -> None:
    gate.open.clear()
    producer = Producer(gate, linger_ms=FOREVER_MS, batch_bytes=1)
    sending = producer.send("one", b"in the append")
    assert gate.arrived.wait(60)
    unsent = producer.send("one", b"behind it")
    producer.close(timeout=0)
    assert isinstance(unsent.exception(timeout=0), Closed)
    assert not sending.done()
    gate.open.set()
    assert result(sending).offset == 0
    producer.close()
    assert values(log, "one") == [b"in the append"]


def test_no_thread_is_left(log: Any) -> None:
    before = threading.active_count()
    producers = [Producer(log.backend, linger_ms=FOREVER_MS) for _ in range(5)]
    producers[0].send("one", b"v")
    assert threading.active_count() == before + 5
    for producer in producers:
        producer.close()
    assert threading.active_count() == before


# -- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_eight_threads_lose_and_double_nothing_and_keep_their_order(log: Any, linger_ms: int) -> None:
    threads, each = 8, 10_000
    futures: dict[int, list[Future[RecordMetadata]]] = {}
    with Producer(log.backend, linger_ms=linger_ms, buffer_bytes=4 << 20) as producer:

        def work(worker: int) -> None:
            futures[worker] = [
                producer.send("four", b"%d %d" % (worker, n), key=b"worker %d" % worker) for n in range(each)
            ]

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        producer.flush()
    found: dict[int, list[int]] = defaultdict(list)
    places = {}
    for record in everything(log, "four"):
        worker, n = map(int, (record.value or b"").split())
        found[worker].append(n)
        places[worker, n] = (record.partition, record.offset)
    assert found == {worker: list(range(each)) for worker in range(threads)}
    for worker, sent in futures.items():
        for n, future in enumerate(sent):
            metadata = future.result(timeout=0)
            assert (metadata.partition, metadata.offset) == places[worker, n]


def test_sends_on_both_paths_share_batches_and_fill_none_too_far(log: Any, gate: Gate) -> None:
    """A bytearray keeps a send off the fast path."""
    with Producer(gate, linger_ms=FOREVER_MS, batch_bytes=400) as producer:

        def work(kind: type[bytes] | type[bytearray]) -> None:
            for n in range(5000):
                producer.send("one", kind(b"%04d" % n))

        workers = [threading.Thread(target=work, args=(kind,)) for kind in (bytes, bytearray)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            sys.setswitchinterval(interval)
    assert max(gate.batch_counts()) <= (400 - 61) // 40
    assert sorted(values(log, "one")) == sorted(b"%04d" % n for n in range(5000) for _ in range(2))


def test_flushes_and_sends_of_many_threads(log: Any) -> None:
    with Producer(log.backend, linger_ms=FOREVER_MS) as producer:
        failures: list[str] = []

        def work() -> None:
            for n in range(200):
                future = producer.send("four", b"%d" % n)
                producer.flush()
                if not future.done():
                    failures.append(f"{n} is not done after flush")

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert failures == []
    assert len(everything(log, "four")) == 800


# -- the end of the process --------------------------------------------------------------------------


def run(script: str, directory: Path, *, returncode: int = 0) -> subprocess.CompletedProcess[str]:
    """A script of its own process, which finds `log` and `producer` made; nothing lingers to its end."""
    head = f"""
        import os, sys, threading
        import embedlog
        from embedlog.clients.producer import Producer
        log = embedlog.open({str(directory)!r})
        log.create_topic("one")
        producer = log.producer(linger_ms=10**9, batch_bytes=10**6)
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            textwrap.dedent(head) + textwrap.dedent(script),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == returncode, done.stderr
    return done


def survived(directory: Path) -> list[bytes | None]:
    with embedlog.open(directory) as log:
        return values(log, "one")


SENDS = "for n in range(1000): producer.send('one', b'%d' % n)\n"
ENDS: list[tuple[str, str, int]] = [
    ("returning", "", 0),
    ("sys.exit", "sys.exit(3)", 3),
    ("an exception", "raise RuntimeError('mine')", 1),
    ("another thread", "threading.Thread(target=print).start()", 0),
    ("log.close", "log.close()", 0),
]


@pytest.mark.parametrize(("end", "returncode"), [each[1:] for each in ENDS], ids=[each[0] for each in ENDS])
def test_nothing_buffered_is_lost_at_exit(tmp_path: Path, end: str, returncode: int) -> None:
    run(SENDS + end, tmp_path / "data", returncode=returncode)
    assert survived(tmp_path / "data") == [b"%d" % n for n in range(1000)]


def test_a_producer_unknown_to_the_log_is_drained_before_it_closes(tmp_path: Path) -> None:
    script = """
        own = Producer(log.backend, linger_ms=10**9)
        own.send('one', b'v')
    """
    run(script, tmp_path / "data")
    assert survived(tmp_path / "data") == [b"v"]


def test_other_threads_send_until_close(tmp_path: Path) -> None:
    script = """
        def work():
            for n in range(5000):
                producer.send('one', b'%d' % n)
        threading.Thread(target=work).start()
    """
    run(script, tmp_path / "data")
    assert survived(tmp_path / "data") == [b"%d" % n for n in range(5000)]


def test_a_forked_child_refuses_and_leaves_the_parent_alone(tmp_path: Path) -> None:
    script = """
        producer.send('one', b'before')
        # Nothing in the child may wait for a lock that was held at the fork.
        producer._lock.acquire()
        pid = os.fork()
        if pid == 0:
            for refused in (lambda: producer.send('one', b'child'), producer.flush):
                try:
                    refused()
                except embedlog.EmbedlogError as error:
                    print(type(error).__name__, flush=True)
            producer.close()
            with producer:
                pass
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        producer._lock.release()
        producer.send('one', b'after')
    """
    assert run(script, tmp_path / "data").stdout.split() == ["ForkedHandle", "ForkedHandle"]
    assert survived(tmp_path / "data") == [b"before", b"after"]


def test_an_aborted_transaction_keeps_no_batch(log: Any) -> None:
    """What was buffered at the abort is gone; the next transaction begins batches of its own."""
    with log.producer(transactional_id="tx", linger_ms=60_000) as producer:
        for number in range(3):
            producer.begin_transaction()
            dropped = producer.send("one", b"dropped")
            producer.abort_transaction()
            with pytest.raises(TransactionAborted):
                dropped.result()
            producer.begin_transaction()
            producer.send("one", b"%d" % number)
            producer.commit_transaction()
    found = log.read("one", follow=False, isolation_level="read_committed")
    assert [record.value for record in found] == [b"0", b"1", b"2"]


def test_a_callback_that_waits_for_its_own_producer_is_told_so(log: embedlog.Log) -> None:
    log.create_topic("t")
    told: list[object] = []

    def wait(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if not told:
            later = producer.send("t", b"later")
            for waiting in (
                later.result,
                later.exception,
                lambda: concurrent.futures.wait([later]),
                producer.flush,
            ):
                with pytest.raises(InvalidArgument, match="would wait for itself"):
                    waiting()
            told.append(later)

    with log.producer(callback=wait) as producer:
        producer.send("t", b"first")
        producer.flush()
    assert [record.value for record in log.read("t")] == [b"first", b"later"]
    assert told[0].result().offset == 1, "outside a callback, and when it is sent, nothing is refused"


def test_a_producer_shows_what_it_does(log: embedlog.Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=60_000) as producer:
        assert repr(producer) == "<embedlog.Producer to no topic yet: 0 bytes buffered>"
        producer.send("t", b"x")
        assert re.fullmatch(r"<embedlog.Producer to 't': [0-9]+ bytes buffered>", repr(producer))
    assert repr(producer) == "<embedlog.Producer to 't': closed>"
