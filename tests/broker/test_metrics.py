"""Metrics and health of a broker in this process: counters, gauges and failures."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from wire import Wire, batch_of, produce
from zookeepers import eventually

from embedlog import LogFull
from embedlog.cluster import Broker
from embedlog.cluster.broker.meter import error_code_finder
from embedlog.wire.apis import APIS
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.apis.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

TIMEOUT_S = 60

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One with a metrics port."""
    with Broker(metrics_port=0) as broker:
        yield broker


def get(broker: Broker, path: str) -> tuple[int, str]:
    try:
        url = f"http://127.0.0.1:{broker.metrics_port}{path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(broker: Broker) -> Samples:
    """Every sample: (name, label values in the order of their names) -> value."""
    status, text = get(broker, "/metrics")
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_gauges(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events", 2)
    before = scraped(broker)
    batch = batch_of(b"a", b"b", b"c")
    wire.produce("events", batch)
    wire.produce("events", batch, partition=1)
    wire.produce("none", batch)
    fetched = wire.fetch("events", 0)
    wire.fetch("events", 99)
    after = scraped(broker)

    assert after["embedlog_requests_total", "Produce", "NONE"] == 2
    assert after["embedlog_requests_total", "Produce", "UNKNOWN_TOPIC_OR_PARTITION"] == 1
    assert after["embedlog_requests_total", "Fetch", "NONE"] == 1
    assert after["embedlog_requests_total", "Fetch", "OFFSET_OUT_OF_RANGE"] == 1
    assert after["embedlog_request_duration_seconds_count", "Produce"] == 3
    assert after["embedlog_request_duration_seconds_bucket", "Produce", "+Inf"] == 3
    assert after["embedlog_request_duration_seconds_sum", "Produce"] > 0
    assert after["embedlog_produced_batches_total",] == 2
    assert after["embedlog_produced_records_total",] == 6
    assert after["embedlog_produced_bytes_total",] == 2 * len(batch)
    assert after["embedlog_fetched_bytes_total",] == len(fetched.records) == len(batch)
    assert after["embedlog_log_end_offset", "0", "events"] == 3
    assert after["embedlog_log_end_offset", "1", "events"] == 3
    assert after["embedlog_log_start_offset", "0", "events"] == 0
    assert after["embedlog_log_size_bytes", "0", "events"] == len(batch)
    assert after["embedlog_connections",] == 1
    assert after["embedlog_connections_accepted_total",] == 1
    assert after["embedlog_connections_rejected_total",] == 0
    received = after["embedlog_received_bytes_total",] - before["embedlog_received_bytes_total",]
    assert received > 3 * len(batch)
    assert after["embedlog_sent_bytes_total",] - before["embedlog_sent_bytes_total",] > len(batch)
    assert after["embedlog_failed_partitions",] == 0
    assert after["embedlog_leader_partitions",] == 2
    assert after["embedlog_offline_partitions",] == 0
    for name in ("active_brokers", "active_controller", "lease_valid"):
        assert after[f"embedlog_{name}",] == 1


def test_work_queues(broker: Broker) -> None:
    with broker.log.queue("jobs", group="mailers") as queue:
        queue.send(b"now")
        queue.send(b"later", delay_ms=3_600_000)
        job = queue.take()
        found = scraped(broker)
        counts = [
            found[f"embedlog_queue_{name}", "mailers", "0", "jobs"]
            for name in ("waiting", "locked", "delayed")
        ]
        assert counts == [0, 1, 1]
        job.reject("why")
        eventually(lambda: scraped(broker).get(("embedlog_queue_dead", "jobs")) == 1)


def test_large_requests_are_received_in_full(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events", max_message_bytes=4 << 20)
    before = scraped(broker)["embedlog_received_bytes_total",]
    batch = batch_of(b"x" * (3 << 20))
    assert wire.produce("events", batch).error_code == 0
    assert scraped(broker)["embedlog_received_bytes_total",] - before > len(batch)


def test_acks_0_is_counted(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events")
    wire.send(produce("events", batch_of(b"a"), acks=0), 9)
    wire.ask(MetadataRequest(topics=None), 5)  # answered after it
    samples = scraped(broker)
    assert samples["embedlog_requests_total", "Produce", "NONE"] == 1
    assert samples["embedlog_produced_records_total",] == 1


def test_unflushed_records_are_counted() -> None:
    with Broker(metrics_port=0, flush_ms=3_600_000) as broker:
        broker.log.create_topic("events")
        assert scraped(broker)["embedlog_unflushed_age_seconds",] == 0
        broker.log.append("events", b"value")
        while not scraped(broker)["embedlog_unflushed_age_seconds",]:
            pass
        assert scraped(broker)["embedlog_flushed_offset", "0", "events"] == 0
        broker.log.flush()
        assert scraped(broker)["embedlog_flushed_offset", "0", "events"] == 1


def test_health(broker: Broker) -> None:
    broker.log.create_topic("events")
    assert get(broker, "/health") == (200, '{"status": "ok", "partitions": 1}\n')
    assert get(broker, "/healthy")[0] == 404
    broker.context.store.partition("events", 0).log.fail("the disk is gone")
    status, text = get(broker, "/health")
    told = json.loads(text)
    assert (status, told["status"]) == (503, "failing")
    assert "the disk is gone" in told["partitions"]["events 0"]
    assert scraped(broker)["embedlog_failed_partitions",] == 1
    broker.log.reopen("events", 0)
    assert get(broker, "/health")[0] == 200


def test_a_full_log_is_reported() -> None:
    with Broker(metrics_port=0, max_bytes=1 << 20, segment_bytes=100_000) as broker:
        broker.log.create_topic("events")
        samples = scraped(broker)
        assert 0 < samples["embedlog_disk_usage_bytes",] < samples["embedlog_max_bytes",] == 1 << 20
        with pytest.raises(LogFull):
            while True:
                broker.log.append("events", bytes(40_000))
        status, text = get(broker, "/health")
        told = json.loads(text)
        assert (status, told["status"], told["max_bytes"]) == (503, "full", 1 << 20)

        def disk_bytes() -> int:  # checkpoints are written meanwhile
            found: int = json.loads(get(broker, "/health")[1])["disk_bytes"]
            return found

        assert told["disk_bytes"] > 900_000
        eventually(
            lambda: disk_bytes() == scraped(broker)["embedlog_disk_usage_bytes",], "both tell the same"
        )
        broker.log.delete_records("events", 0, 10)
        assert get(broker, "/health")[0] == 200


def test_background_failures_are_reported() -> None:
    with Broker(metrics_port=0) as broker:
        failures = broker.context.store.background.failures
        with failures.tolerated("trying", "something", OSError):
            raise OSError(28, "No space left on device")
        status, text = get(broker, "/health")
        assert (status, json.loads(text)["status"]) == (503, "failing")
        assert "No space left" in json.loads(text)["background"][0]
        assert scraped(broker)["embedlog_failing_background_tasks",] == 1
        with failures.tolerated("trying", "something", OSError):
            pass
        assert get(broker, "/health")[0] == 200


def test_the_port_is_closed_with_the_broker() -> None:
    with Broker(metrics_port=0) as broker:
        port = broker.metrics_port
        assert port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def test_silent_clients_do_not_block_scrapes(broker: Broker) -> None:
    assert broker.metrics_port is not None
    silent = [socket.create_connection(("127.0.0.1", broker.metrics_port), TIMEOUT_S) for _ in range(8)]
    assert get(broker, "/health")[0] == 200
    for each in silent:
        each.close()


def test_the_first_error_of_an_answer_is_found() -> None:
    find = error_code_finder(ProduceResponse)
    good, bad = PartitionProduceResponse(), PartitionProduceResponse(error_code=6)
    topics = [
        TopicProduceResponse(name="a", partition_responses=[good]),
        TopicProduceResponse(name="b", partition_responses=[good, bad]),
    ]
    assert find(ProduceResponse(responses=topics)) == 6
    assert find(ProduceResponse(responses=topics[:1])) == 0
    assert find(ProduceResponse()) == 0


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: APIS[key].api.name)
def test_errors_are_found_in_every_response(key: int) -> None:
    response = APIS[key].response
    assert error_code_finder(response)(response()) == 0
