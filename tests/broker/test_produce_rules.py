"""Apache Kafka's rules for produced batches, at embedlog's broker: the same requests, the same answers.

tests/java/test_produce_judged.py asks Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from produce_cases import CASES, answer, batch, create_topics, record
from wire import Wire, produce

import embedlog
from embedlog.cluster import Broker
from embedlog.wire.error_codes import ErrorCode


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    with Broker() as broker:
        create_topics(broker.bootstrap_servers)
        yield broker


@pytest.mark.parametrize("name", CASES)
def test_answers(strict: Broker, name: str) -> None:
    sent = CASES[name]
    before = strict.log.offsets("plain")[0].log_end_offset
    assert answer(strict, sent) == (sent.code, list(sent.named))
    if sent.code != ErrorCode.NONE:
        assert strict.log.offsets("plain")[0].log_end_offset == before


def test_null_records(broker: Broker, wire: Wire) -> None:
    """Kafka 4.3.1 never answers."""
    broker.log.create_topic("t")
    request = produce("t", b"")
    request.topic_data[0].partition_data[0].records = None
    (refused,) = wire.ask(request, 9).responses[0].partition_responses
    assert refused.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("compression", [0, 1])
def test_a_producer_does_not_say_append_time(broker: Broker, wire: Wire, compression: int) -> None:
    """A reader would see one time for all records, and lose the producer's."""
    broker.log.create_topic("t")
    records = [record(place, time=time_ms) for place, time_ms in enumerate((0, 9, 4))]
    sent = batch(*records, first_ms=1_000, last_ms=1_009, attributes=8 | compression)
    assert wire.produce("t", sent).error_code == 0
    assert [(r.timestamp_type, r.timestamp_ms) for r in broker.log.read("t", 0)] == [
        (0, 1_000),
        (0, 1_009),
        (0, 1_004),
    ]


def test_our_writers_leave_append_time_to_the_broker(broker: Broker) -> None:
    broker.log.create_topic("t", message_timestamp_type="LogAppendTime")
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.append("t", b"1")
        log.append_many("t", [b"2", b"3"])
        with log.producer() as producer:
            producer.send("t", b"4").result(60)
        with log.transaction("x") as tx:
            tx.append("t", b"5")
            tx.append_many("t", [b"6"])
    assert [record.value for record in broker.log.read("t", 0)] == [b"%d" % n for n in range(1, 7)]
