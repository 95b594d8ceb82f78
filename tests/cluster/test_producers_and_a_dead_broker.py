"""Producers over kafka:// while one of three brokers is killed or stopped: only its own records wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import Brokers, cluster
from zookeepers import WAIT_S, Znodes, eventually

import embedlog
import embedlog.aio
from embedlog import BrokerUnavailable, Log, PartialAppend

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

PARTITIONS = 6
DELIVERY_MS = 6_000
DEAD = 1  # the broker that a test kills or stops


@pytest.fixture
def brokers(zookeeper: Znodes, tmp_path: Path) -> Iterator[Brokers]:
    short = ("--set", "zookeeper.session.timeout.ms=3000")
    with cluster(tmp_path, zookeeper.connect, 3, *short) as started:
        started.create("t", PARTITIONS)
        yield started


@pytest.fixture
def log(brokers: Brokers) -> Iterator[Log]:
    with embedlog.open(f"kafka://{brokers.bootstrap}", delivery_timeout_ms=DELIVERY_MS) as opened:
        yield opened


def led(brokers: Brokers, topic: str = "t") -> tuple[list[int], list[int]]:
    """The partitions of the living brokers, and those of the dead one."""
    leaders = brokers.leaders(topic)
    dead = [partition for partition, leader in leaders.items() if leader == DEAD]
    return [partition for partition in leaders if partition not in dead], dead


def values(log: Log, partition: int, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in log.read(topic, partition)]


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_a_producer_sends_to_living_leaders(brokers: Brokers, log: Log, end: str) -> None:
    living, dead = led(brokers)
    host = brokers[DEAD].host
    with log.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send("t", b"before", partition=partition).result(WAIT_S)
        getattr(brokers[DEAD], end)()
        sent_dead = [producer.send("t", b"dead", partition=partition) for partition in dead]
        for number in range(50):
            sent = [producer.send("t", b"%d" % number, partition=partition) for partition in living]
            for future in sent:
                future.result(DELIVERY_MS / 1000 / 2)
        assert not any(future.done() for future in sent_dead)
        began = time.monotonic()
        for partition, future in zip(dead, sent_dead, strict=True):
            with pytest.raises(BrokerUnavailable, match=rf"^t {partition}\b.*({host}|no leader)"):
                future.result(DELIVERY_MS / 1000 + 5)
        assert time.monotonic() - began < DELIVERY_MS / 1000 + 2
        assert producer.buffered_bytes == 0
    for partition in living:
        assert values(log, partition) == [b"before", *(b"%d" % number for number in range(50))]


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_what_waited_is_sent_once_and_in_order_when_the_broker_is_back(
    brokers: Brokers, log: Log, end: str
) -> None:
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    with embedlog.open(f"kafka://{brokers.bootstrap}") as patient, patient.producer(linger_ms=1) as producer:
        sent = []
        for number in range(300):
            if number == 50:
                getattr(brokers[DEAD], end)()
            if number == 250:
                brokers[DEAD].start() if end == "kill" else brokers[DEAD].resume()
            for partition in range(PARTITIONS):
                value = b"%d" % number
                sent.append(producer.send("t", value, partition=partition))
                expected[partition].append(value)
            time.sleep(0.01)
        producer.flush()
        for future in sent:
            future.result(0)
    for partition in range(PARTITIONS):
        assert values(log, partition) == expected[partition]


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_a_full_buffer_blocks_no_longer_than_the_dead_records(brokers: Brokers, log: Log, end: str) -> None:
    living, dead = led(brokers)
    with log.producer(buffer_bytes=100_000, max_block_ms=300) as producer:
        for partition in range(PARTITIONS):
            producer.send("t", b"before", partition=partition).result(WAIT_S)
        getattr(brokers[DEAD], end)()
        with pytest.raises(embedlog.BufferExhausted):
            while True:
                producer.send("t", b"x" * 5_000, partition=dead[0])
        eventually(lambda: producer.buffered_bytes == 0, "the dead records have failed")
        producer.send("t", b"after", partition=living[0]).result(WAIT_S)


def test_records_without_a_key_go_to_led_partitions(brokers: Brokers, log: Log) -> None:
    living, _ = led(brokers)
    for _ in range(10):
        log.append("t", b"before")
    brokers[DEAD].kill()
    with log.producer() as producer:
        for number in range(30):
            assert log.append("t", b"%d" % number).partition in living
            assert log.append_many("t", [b"a", b"b"])[0].partition in living
            future = producer.send("t", b"%d" % number)
            producer.flush()
            assert future.result(0).partition in living


def test_an_append_to_a_dead_broker_holds_up_no_other(brokers: Brokers, log: Log) -> None:
    living, dead = led(brokers)
    log.append("t", b"before", partition=dead[0])
    brokers[DEAD].kill()
    outcome: list[BaseException] = []

    def append() -> None:
        try:
            log.append("t", b"dead", partition=dead[0])
        except BaseException as error:
            outcome.append(error)

    began = time.monotonic()
    waiting = threading.Thread(target=append)
    waiting.start()
    for number in range(100):
        log.append("t", b"%d" % number, partition=living[number % len(living)])
    assert not outcome
    waiting.join(DELIVERY_MS / 1000 + 5)
    assert time.monotonic() - began < DELIVERY_MS / 1000 + 2
    [error] = outcome
    assert isinstance(error, BrokerUnavailable)
    assert f"t {dead[0]}" in str(error)


def test_many_appends_to_living_and_dead_brokers_wait_once(brokers: Brokers, log: Log) -> None:
    _, dead = led(brokers)
    records = [(b"k%d" % number, b"") for number in range(100)]
    log.append_many("t", records)
    brokers[DEAD].kill()
    began = time.monotonic()
    with pytest.raises(PartialAppend) as partial:
        log.append_many("t", records)
    assert time.monotonic() - began < DELIVERY_MS / 1000 * 1.5
    assert set(partial.value.failed) == set(dead)
    assert len(partial.value.landed) + len(partial.value.not_landed) == len(records)


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_appends_of_tasks_to_a_dead_broker_hold_up_no_others(brokers: Brokers, end: str) -> None:
    living, dead = led(brokers)

    async def tick(gaps: list[float]) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - before)

    async def run() -> None:
        address = f"kafka://{brokers.bootstrap}"
        log = await embedlog.aio.open(address, delivery_timeout_ms=DELIVERY_MS)
        async with log, log.producer() as producer:
            for partition in range(PARTITIONS):
                await log.append("t", b"before", partition=partition)
                await (await producer.send("t", b"sent before", partition=partition))
            getattr(brokers[DEAD], end)()
            gaps: list[float] = []
            ticking = asyncio.ensure_future(tick(gaps))
            began = time.monotonic()
            waiting = [
                asyncio.ensure_future(log.append("t", b"dead", partition=partition)) for partition in dead
            ]
            sent = [await producer.send("t", b"dead", partition=partition) for partition in dead]
            for number in range(50):
                async with asyncio.timeout(DELIVERY_MS / 1000 / 2):
                    for partition in living:
                        await log.append("t", b"%d" % number, partition=partition)
                        await (await producer.send("t", b"sent", partition=partition))
            assert not any(task.done() for task in waiting)
            assert not any(future.done() for future in sent)
            for outcome in await asyncio.gather(*waiting, *sent, return_exceptions=True):
                assert isinstance(outcome, BrokerUnavailable)
            assert time.monotonic() - began < DELIVERY_MS / 1000 * 2 + 2
            keyless = [await log.append("t", b"no key") for _ in range(30)]
            keyless += [await (await producer.send("t", b"no key")) for _ in range(30)]
            assert {metadata.partition for metadata in keyless} <= set(living)
            ticking.cancel()
            assert max(gaps) < 1  # nothing has waited for a broker in the loop

    asyncio.run(run())
