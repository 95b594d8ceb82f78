"""Prometheus metrics of embedded logs: what a real registry exposes, beside what the log says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import embedlog
import embedlog.aio
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.cluster import Broker
from embedlog.metrics import LogCollector
from embedlog.model import Acknowledgement, AcknowledgeType, Delivery, ShareGroupOptions

ROOT = Path(__file__).parent.parent
Samples = dict[tuple[str, ...], float]
T0, T1 = TopicPartition("events", 0), TopicPartition("events", 1)


def scraped(registry: CollectorRegistry) -> Samples:
    return samples_of(generate_latest(registry))


def samples_of(text: bytes) -> Samples:
    """Every sample: (name, label values in the order of their names) -> value; none occurs twice."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            where = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert where not in samples
            samples[where] = sample.value
    return samples


def registered(*arguments: object, **options: object) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LogCollector(*arguments, **options))  # type: ignore[arg-type]
    return registry


@pytest.fixture
def events(path: Path) -> Iterator[Log]:
    with embedlog.open(path, offsets_topic_num_partitions=1, flush_ms=3_600_000) as log:
        log.create_topic("events", 2)
        yield log


def test_partitions(events: Log, path: Path) -> None:
    registry = registered(events)
    events.append_many("events", [b"value"] * 10, partition=0)
    events.flush()
    events.append("events", b"value", partition=0)
    events.append("events", b"value", partition=1)
    events.delete_records("events", 0, 3)
    found = scraped(registry)
    assert found["embedlog_available",] == 1
    assert found["embedlog_log_start_offset", "0", "events"] == 3
    assert found["embedlog_log_end_offset", "0", "events"] == 11
    assert found["embedlog_flushed_offset", "0", "events"] == 10
    assert found["embedlog_log_end_offset", "1", "events"] == 1
    sizes = [found["embedlog_log_size_bytes", str(number), "events"] for number in range(2)]
    assert sum(sizes) == events.health().bytes > sizes[1] > 0
    assert found["embedlog_failed_partitions",] == 0
    assert found["embedlog_failing_background_tasks",] == 0
    with embedlog.open(path, mode="r") as reader:
        read = scraped(registered(reader))
        for name in ("log_start_offset", "log_end_offset", "flushed_offset", "log_size_bytes"):
            for number in "01":
                where = (f"embedlog_{name}", number, "events")
                assert read[where] == found[where]
        assert "embedlog_failed_partitions" not in {name for name, *_ in read}


def test_the_names_are_those_of_the_broker(path: Path) -> None:
    with Broker(path, metrics_port=0) as broker:
        broker.log.create_topic("events")
        broker.log.append("events", b"value")
        own = scraped(registered(broker.log))
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as answer:
            theirs = samples_of(answer.read())
        for name in ("log_start_offset", "log_end_offset", "log_size_bytes"):
            where = (f"embedlog_{name}", "0", "events")
            assert own[where] == theirs[where]
        names = {name for name, *_ in own} - {name for name, *_ in theirs}
        assert names == {
            f"embedlog_{each}" for each in ("available", "producers", "consumers", "producer_buffer_bytes")
        }
        with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
            wire = scraped(registered(log))
        assert wire["embedlog_log_end_offset", "0", "events"] == 1
        assert wire["embedlog_log_size_bytes", "0", "events"] == own["embedlog_log_size_bytes", "0", "events"]
        assert "embedlog_flushed_offset" not in {name for name, *_ in wire}


def test_groups_and_consumers(events: Log) -> None:
    registry = registered(events)
    for number in range(2):
        events.append_many("events", [b"value"] * 10, partition=number)
    events.group("batch").reset("events", to=4, partitions=1)
    with events.consumer("events", group="live", auto_commit=False) as consumer:
        assert len(consumer.poll(10_000, max_records=3)) == 3
        consumer.commit({next(iter(consumer.assignment())): CommittedOffset(1)})
        lag = consumer.lag()
        assert consumer.estimated_lag() == lag and sum(lag.values()) == 17
        found = scraped(registry)
        for tp, each in lag.items():
            assert found["embedlog_consumer_lag", "live", str(tp.partition), "events"] == each
        assert found["embedlog_group_members", "live"] == 1
        assert found["embedlog_group_members", "batch"] == 0
        assert found["embedlog_group_committed_offset", "batch", "1", "events"] == 4
        assert found["embedlog_group_lag", "batch", "1", "events"] == 6
        assert ("embedlog_group_lag", "batch", "0", "events") not in found
        assert found["embedlog_consumers",] == 1
        alone = [events.consumer("events"), events.consumer("events")]
        alone[0].poll(10_000)
        found = scraped(registry)
        assert found["embedlog_consumers",] == 3
        assert {name for name in found if name[:2] == ("embedlog_consumer_lag", "")}
        without = scraped(registered(events, groups=False))
        assert not {name for name, *_ in without if name.startswith("embedlog_group")}
        events.delete_topic("events")
        assert scraped(registry)["embedlog_available",] == 1
    alone[0].close()
    assert scraped(registry)["embedlog_consumers",] == 1


def test_producers(events: Log) -> None:
    registry = registered(events)
    with events.producer(linger_ms=3_600_000) as producer:
        assert scraped(registry)["embedlog_producer_buffer_bytes",] == 0
        producer.send("events", b"x" * 1000)
        found = scraped(registry)
        assert found["embedlog_producers",] == 1
        assert found["embedlog_producer_buffer_bytes",] == producer.buffered_bytes > 1000
        producer.flush()
        assert scraped(registry)["embedlog_producer_buffer_bytes",] == 0
    assert scraped(registry)["embedlog_producers",] == 0


def test_several_logs_in_one_registry(events: Log, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "other", max_bytes=1 << 20) as other:
        other.create_topic("events")
        other.append("events", b"value")
        found = scraped(registered({"mine": events, "other": other}))
    assert found["embedlog_log_end_offset", "mine", "0", "events"] == 0
    assert found["embedlog_log_end_offset", "other", "0", "events"] == 1
    assert found["embedlog_max_bytes", "other"] == 1 << 20
    assert ("embedlog_max_bytes", "mine") not in found
    assert found["embedlog_available", "mine"] == found["embedlog_available", "other"] == 1


def test_a_scrape_never_fails(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = embedlog.open(path)
    log.create_topic("events")
    registry = registered(log)
    log.close()
    assert scraped(registry) == {("embedlog_available",): 0}
    assert not caplog.records
    with Broker(path) as broker:
        remote = embedlog.open(f"kafka://{broker.bootstrap_servers}", default_api_timeout_ms=2_000)
        registry = registered(remote)
        assert scraped(registry)["embedlog_log_end_offset", "0", "events"] == 0
    assert scraped(registry)["embedlog_available",] == 0
    assert "metrics of kafka://" in caplog.text
    remote.close()


def test_a_failed_partition_is_reported(events: Log) -> None:
    registry = registered(events)
    events._writer().partition("events", 1).log.fail("the disk is gone")
    assert scraped(registry)["embedlog_failed_partitions",] == 1


def test_a_forked_child_reports_nothing_and_does_not_fail(events: Log) -> None:
    registry = registered(events)
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if scraped(registry) == {("embedlog_available",): 0} else 1
        except BaseException:
            code = 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert scraped(registry)["embedlog_available",] == 1


def test_scrapes_beside_polls_and_new_clients(events: Log) -> None:
    """Nothing that another thread does makes a scrape fail, or the other way round."""
    registry = registered(events)
    events.append_many("events", [b"value"] * 20_000)
    ended = threading.Event()
    failures: list[BaseException] = []

    def scrape() -> None:
        try:
            while not ended.is_set():
                assert scraped(registry)["embedlog_available",] == 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with events.consumer("events", stop_at_end=True, max_poll_records=7) as consumer:
                for _ in range(50):
                    consumer.poll(0)
                assert sum(1 for _ in consumer) > 0
            events.producer().close()
    finally:
        ended.set()
        thread.join()
    assert not failures


@pytest.mark.parametrize("over", ["directory", "wire"])
def test_the_clients_of_tasks_are_counted(over: str, path: Path) -> None:
    async def use(address: str) -> None:
        async with embedlog.aio.open(address) as log:
            registry = registered(log)
            await log.create_topic("events")
            await log.append("events", b"value")
            async with log.producer(linger_ms=3_600_000) as producer:
                await producer.send("events", b"x" * 1000)
                consumer = log.consumer("events", group="live")
                while not await consumer.poll(10_000):
                    pass
                await log.append("events", b"value")
                # Over the wire a scrape waits for the broker: not in the loop.
                found = await asyncio.to_thread(scraped, registry)
                assert found["embedlog_available",] == 1
                assert found["embedlog_log_end_offset", "0", "events"] == 2
                assert found["embedlog_producers",] == 1
                assert found["embedlog_producer_buffer_bytes",] == producer.buffered_bytes > 1000
                assert found["embedlog_consumers",] == 1
                assert found["embedlog_consumer_lag", "live", "0", "events"] == 1
                assert found["embedlog_group_members", "live"] == 1
                await consumer.close()
            found = await asyncio.to_thread(scraped, registry)
            assert found["embedlog_producers",] == found["embedlog_consumers",] == 0
            assert found["embedlog_log_end_offset", "0", "events"] == 3
            both = await asyncio.to_thread(scraped, registered({"a": log, "b": log.opened()}))
            assert both["embedlog_log_end_offset", "a", "0", "events"] == 3
            assert both["embedlog_log_end_offset", "b", "0", "events"] == 3
        assert scraped(registry) == {("embedlog_available",): 0}

    if over == "directory":
        asyncio.run(use(str(path)))
    else:
        with Broker(path) as broker:
            asyncio.run(use(f"kafka://{broker.bootstrap_servers}"))


@pytest.mark.parametrize("logs", [None, 5, "log", [], {"a": 1}, {1: None}])
def test_what_is_no_log_is_refused(logs: object) -> None:
    with pytest.raises(embedlog.InvalidType, match="logs must be a log"):
        LogCollector(logs)  # type: ignore[arg-type]


def test_the_process_that_owns_a_shared_log_reports_its_condition(path: Path) -> None:
    owner = embedlog.open(path, shared=True)
    owner.create_topic("events")
    with embedlog.open(path, shared=True) as other:
        other.append("events", b"value")
        first, second = registered(owner), registered(other)
        found = scraped(second)
        assert found["embedlog_log_end_offset", "0", "events"] == 1
        assert found["embedlog_available",] == scraped(first)["embedlog_available",] == 1
        assert scraped(first)["embedlog_failed_partitions",] == 0
        assert ("embedlog_failed_partitions",) not in found
        owner.close()
        other.append("events", b"value")  # takes the log over
        found = scraped(second)
        assert found["embedlog_failed_partitions",] == 0
        assert found["embedlog_log_end_offset", "0", "events"] == 2


def test_without_prometheus_client() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import embedlog.metrics"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith("metrics need prometheus-client: pip install 'embedlog[metrics]'")


def test_queues(path: Path) -> None:
    """In the owner's process from its coordinator, in a reader's from what is stored: the same."""
    options = ShareGroupOptions(lock_ms=600_000, dead_letter_topic="dlq.jobs")
    with embedlog.open(path) as log:
        registry = registered(log)
        log.create_topic("jobs")
        assert not any("queue" in name for name, *_ in scraped(registry))
        for number in range(10):
            log.append("jobs", b"job", timestamp_ms=time.time_ns() // 1_000_000 - 60_000 + number)
        coordinator = log.backend.share_coordinator

        def acquire(count: int) -> list[Delivery]:
            return coordinator.acquire(
                "mailers", "jobs", "m", max_records=count, max_wait_ms=0, options=options
            ).result(10)

        def say(delivery: Delivery, kind: AcknowledgeType, delay_ms: int = 0) -> None:
            given = Acknowledgement(delivery.partition, delivery.offset, delivery.delivery_id, kind, delay_ms)
            assert coordinator.acknowledge("mailers", "jobs", [given]) == [None]

        first, second, third, *_ = acquire(6)
        say(first, AcknowledgeType.ACCEPT)
        say(second, AcknowledgeType.REJECT)
        say(third, AcknowledgeType.RELEASE, 3_600_000)
        while coordinator.describe_share_group("mailers", "jobs").partitions[0].start_offset < 2:
            time.sleep(0.005)  # the dead letter is written in the background
        with embedlog.open(path, mode="r") as looking:
            for each in (registry, registered(looking)):
                found = scraped(each)
                of = ("mailers", "0", "jobs")
                counts = [found[f"embedlog_queue_{name}", *of] for name in ("waiting", "locked", "delayed")]
                assert counts == [4, 3, 1]
                assert found["embedlog_queue_dead", "jobs"] == 1
                assert 59 < found["embedlog_queue_oldest_age_seconds", *of] < 3_600
                assert found["embedlog_available",] == 1
            assert not any("queue" in name for name, *_ in scraped(registered(log, groups=False)))
