"""Streaming queries over brokers, and their offsets in consumer groups, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Program, crash

import embedlog
from embedlog import Log
from embedlog.cluster import Broker
from embedlog.errors import RecordsLost
from embedlog.model import TopicPartition
from embedlog.spark.access import LogLocation, opened
from embedlog.spark.options import read_options
from embedlog.spark.progress import Position, Progress
from embedlog.spark.source import commit_to_group
from embedlog.spark.stream import Stream

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
PROGRESS = Progress({A0: Position(7, 0), A1: Position(0)}, {"a": ""})


@pytest.fixture
def served(path: Path) -> Iterator[Broker]:
    with Broker(path) as broker:
        broker.log.create_topic("a", partitions=2)
        yield broker


def stream_of(broker: Broker, **options: str) -> Stream:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest"} | options
    if not {"subscribePattern", "assign"} & given.keys():
        given["subscribe"] = "a"
    return Stream(read_options(given, "stream"))


def begun(source: Stream) -> Progress:
    """Behind the first batch, which has nothing where the log is empty."""
    return source.latest(source.initial())


def fill(log: Log, count: int, partition: int = 0, topic: str = "a", word: str = "v") -> None:
    log.append_many(topic, [f"{word}{n}".encode() for n in range(count)], partition=partition)


def offsets(progress: Progress) -> dict[TopicPartition, int]:
    return {tp: position.offset for tp, position in progress.positions.items()}


def test_a_broker_is_followed(served: Broker) -> None:
    source = stream_of(served, maxOffsetsPerTrigger="40")
    start = begun(source)
    assert offsets(start) == {A0: 0, A1: 0}
    assert source.latest(start) is start
    fill(served.log, 60)
    fill(served.log, 20, partition=1)
    first = source.latest(start)
    assert first.positions == {A0: Position(30, 0), A1: Position(10, 0)}
    assert [span[:4] for span in source.spans(start, first)] == [("a", 0, 0, 30), ("a", 1, 0, 10)]
    source.fix_end()
    fill(served.log, 20)
    second = source.latest(first)
    assert offsets(second) == {A0: 60, A1: 20}
    assert source.latest(second) is second


def test_a_broker_looks_up_times_and_log_ends(served: Broker) -> None:
    for number in range(10):
        served.log.append("a", b"", partition=0, timestamp_ms=1_000 + number)
    source = stream_of(
        served,
        subscribePattern="a|b",
        startingTimestamp="1004",
        startingOffsetsByTimestampStrategy="latest",
    )
    start = source.initial()
    assert start.positions == {A0: Position(4, 0), A1: Position(0, -1)}
    served.log.create_topic("b")
    fill(served.log, 3, topic="b")
    end = source.latest(start)
    assert [span[:4] for span in source.spans(start, end)] == [("a", 0, 4, 10), ("b", 0, 0, 3)]


def test_retention_at_a_broker(served: Broker) -> None:
    fill(served.log, 100)
    source = stream_of(served)
    start = source.initial()
    served.log.delete_records("a", 0, 30)
    with pytest.raises(RecordsLost, match="a 0: offsets 0 to 29 were deleted"):
        source.latest(start)
    loose = stream_of(served, failOnDataLoss="false")
    assert [span[:4] for span in loose.spans(start, loose.latest(start))] == [("a", 0, 30, 100)]


def test_a_broker_whose_log_lost_its_tail(path: Path) -> None:
    with Broker(path) as broker:
        broker.log.create_topic("a", partitions=2)
        fill(broker.log, 60)
        broker.log.flush()
        backup = crash(path, path.parent / "backup")
        fill(broker.log, 40)
        source = stream_of(broker)
        end = source.latest(source.initial())
        assert offsets(end) == {A0: 100, A1: 0}
    with Broker(backup) as broker:
        for more in (0, 70):
            fill(broker.log, more, word="other")
            with pytest.raises(RecordsLost, match=r"a 0: the log has lost its tail: .* offsets 60 to 99"):
                stream_of(broker).latest(end)
            loose = stream_of(broker, failOnDataLoss="false")
            after = loose.latest(end)
            assert offsets(after) == {A0: 60 + more, A1: 0}
            assert after.positions[A0].begin == 60


def test_with_read_committed_a_broker_tells_the_last_stable_offset(served: Broker) -> None:
    from transactions import Transactions, coordinated

    partition = served.log.backend.store.partition("a", 0)  # type: ignore[attr-defined]
    producers = Transactions(lambda batch: coordinated(partition, batch).base_offset)
    producers.plain(b"d")
    producers.send(1, b"a", b"b")
    source = stream_of(served, isolation_level="read_committed")
    end = source.latest(source.initial())
    assert offsets(end) == {A0: 1, A1: 0}
    producers.end(1, commit=True)
    assert offsets(source.latest(end)) == {A0: 4, A1: 0}


# -- groups ----------------------------------------------------------------------------------------------


def committed(log: Log) -> dict[TopicPartition, tuple[int, int]]:
    coordinator = log.backend.coordinator
    assert coordinator is not None
    return {tp: found[:2] for tp, found in coordinator.committed_offsets("g").items()}


def test_a_broker_keeps_a_querys_offsets_for_a_group(served: Broker) -> None:
    fill(served.log, 10)
    location = read_options(
        {"kafka.bootstrap.servers": served.bootstrap_servers, "subscribe": "a"}, "stream"
    ).location
    commit_to_group(location, "g", PROGRESS)
    assert committed(served.log) == {A0: (7, 0), A1: (0, -1)}
    assert committed(opened(location)) == {A0: (7, 0), A1: (0, -1)}


def test_the_owner_of_a_directory_keeps_them(log: Log, path: Path) -> None:
    log.create_topic("a", partitions=2)
    fill(log, 10)
    commit_to_group(LogLocation(str(path)), "g", PROGRESS)
    assert committed(log) == {A0: (7, 0), A1: (0, -1)}


_OWNER = """
import sys
import embedlog
with embedlog.open(sys.argv[1]) as log:
    log.create_topic("a", partitions=2)
    print(flush=True)
    sys.stdin.readline()
    found = log.backend.coordinator.committed_offsets("g")
    print({str(tp): at.offset for tp, at in found.items()}, flush=True)
"""


def test_another_process_or_the_log_itself_keeps_them(path: Path, program: Callable[..., Program]) -> None:
    owner = program(_OWNER, path)
    owner.line()
    commit_to_group(LogLocation(str(path)), "g", PROGRESS)
    owner.say()
    assert owner.line() == "{'a 0': 7, 'a 1': 0}"
    owner.end()
    further = Progress({A0: Position(9, 0)}, {"a": ""})
    commit_to_group(LogLocation(str(path)), "g", further)
    with embedlog.open(path) as log:
        assert committed(log) == {A0: (9, 0), A1: (0, -1)}


def test_a_failed_commit_is_reported(log: Log, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log.create_topic("a", partitions=2)
    with log.consumer("a", group="g") as consumer:
        consumer.poll(0)
        while not consumer.assignment():
            consumer.poll(0.1)
        commit_to_group(LogLocation(str(path)), "g", PROGRESS)
    assert "offsets were not committed to the group g" in caplog.text
    commit_to_group(LogLocation(str(path.parent / "nowhere")), "g", PROGRESS)
    assert caplog.text.count("offsets were not committed to the group g") == 2
    commit_to_group(LogLocation(address="kafka://127.0.0.1:1"), "g", PROGRESS)
    assert caplog.text.count("offsets were not committed to the group g") == 3
