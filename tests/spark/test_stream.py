"""Offset ranges of a streaming query's batches: the source's part, without Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Program, crash
from transactions import Transactions, coordinated

import embedlog
from embedlog import Log
from embedlog.errors import EmbedlogError, InvalidArgument, OffsetOutOfRange, RecordsLost, TopicNotFound
from embedlog.model import TopicPartition
from embedlog.spark.options import read_options
from embedlog.spark.progress import Progress
from embedlog.spark.stream import Stream

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
Make = Callable[..., Stream]


@pytest.fixture
def live(path: Path) -> Iterator[Log]:
    """A log that is flushed when we say so."""
    with embedlog.open(path, flush_ms=10**9) as log:
        log.create_topic("a", partitions=2)
        yield log


@pytest.fixture
def stream(path: Path) -> Make:
    """stream(startingOffsets="latest", ...): from the beginning of the topic a by default."""

    def make(**options: object) -> Stream:
        given = {"path": str(path), "startingOffsets": "earliest"} | options
        if not {"subscribe", "subscribePattern", "assign"} & given.keys():
            given["subscribe"] = "a"
        return Stream(read_options({name: str(value) for name, value in given.items()}, "stream"))

    return make


def offsets(progress: Progress) -> dict[tuple[str, int], int]:
    return {(tp.topic, tp.partition): position.offset for tp, position in progress.positions.items()}


def begun(source: Stream) -> Progress:
    """Behind the first batch, which has nothing where the log is empty."""
    return source.latest(source.initial())


def spans(stream: Stream, start: Progress, end: Progress) -> list[tuple[str, int, int, int]]:
    # Through the checkpoint, as Spark gives them.
    found = stream.spans(again(start), again(end))
    assert not any(span.times for span in found)  # a stream reads all records of its offsets
    return [span[:4] for span in found]


def again(progress: Progress) -> Progress:
    return Progress.of(progress.as_dict())


def fill(log: Log, count: int, partition: int = 0, topic: str = "a", word: str = "v") -> None:
    log.append_many(topic, [f"{word}{n}".encode() for n in range(count)], partition=partition)


# -- never ahead of the log ------------------------------------------------------------------------------


def test_a_query_ends_at_the_durable_end(live: Log, stream: Make) -> None:
    source = stream()
    start = begun(source)
    assert offsets(start) == {A0: 0, A1: 0}
    fill(live, 100)
    assert source.latest(start) is start
    live.flush()
    end = source.latest(start)
    assert offsets(end) == {A0: 100, A1: 0}
    assert spans(source, start, end) == [("a", 0, 0, 100)]
    fill(live, 5)
    assert source.latest(end) is end


def test_an_idle_writers_last_records_become_readable(path: Path, stream: Make) -> None:
    with embedlog.open(path, flush_ms=20) as log:
        log.create_topic("a", partitions=2)
        source = stream()
        start = begun(source)
        fill(log, 10)
        deadline = time.monotonic() + 60
        while (end := source.latest(start)) is start:
            assert time.monotonic() < deadline
        assert offsets(end) == {A0: 10, A1: 0}


def test_a_closed_and_a_copied_log_are_durable_as_they_are(live: Log, path: Path, stream: Make) -> None:
    fill(live, 10)
    copied = crash(path, path.parent / "copy")
    (copied / "writer-state").unlink()
    source = stream(path=copied)
    assert offsets(source.latest(source.initial())) == {A0: 10, A1: 0}
    source = stream()
    start = begun(source)
    assert source.latest(start) is start
    live.close()
    assert offsets(source.latest(start)) == {A0: 10, A1: 0}


_WRITER = """
import sys
import embedlog

log = embedlog.open(sys.argv[1], flush_ms=10**9)
log.append_many("a", [b"kept %d" % n for n in range(100)], partition=0, flush=True)
print(flush=True)
sys.stdin.readline()
log.append_many("a", [b"lost %d" % n for n in range(50)], partition=0)
print(flush=True)
sys.stdin.read()
"""


def test_a_power_cut_leaves_no_query_ahead_of_its_log(
    path: Path, stream: Make, program: Callable[..., Program]
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("a", partitions=2)
    writer = program(_WRITER, path)
    writer.line()
    segment = next(path.glob("a_0/*.kafka"))
    durable = segment.stat().st_size
    writer.say()
    writer.line()
    source = stream()
    start = source.initial()
    end = source.latest(start)
    assert offsets(end) == {A0: 100, A1: 0}
    writer.kill()
    assert segment.stat().st_size > durable
    with segment.open("r+b") as file:
        file.truncate(durable)
    with embedlog.open(path) as log:
        assert source.latest(end) is end
        fill(log, 80, word="new")
        log.flush()
        after = source.latest(end)
        assert offsets(after) == {A0: 180, A1: 0}
        assert spans(source, end, after) == [("a", 0, 100, 180)]
        # ... and of the epoch of the new records
        assert after.positions[A0].leader_epoch > end.positions[A0].leader_epoch


def test_with_read_committed_the_last_stable_offset_is_the_end(live: Log, stream: Make) -> None:
    partition = live.backend.store.partition("a", 0)  # type: ignore[attr-defined]
    producers = Transactions(lambda batch: coordinated(partition, batch).base_offset)
    producers.send(1, b"a", b"b")
    producers.end(1, commit=True)
    producers.send(2, b"c")
    producers.plain(b"d")
    live.flush()
    committed, all_of_it = stream(), stream(isolation_level="read_uncommitted")
    start = committed.initial()
    end = committed.latest(start)
    assert offsets(end) == {A0: 3, A1: 0}
    assert offsets(all_of_it.latest(all_of_it.initial())) == {A0: 5, A1: 0}
    assert committed.latest(end) is end
    producers.end(2, commit=False)
    live.flush()
    assert offsets(committed.latest(end)) == {A0: 6, A1: 0}


# -- where it begins -------------------------------------------------------------------------------------


def test_latest_is_the_durable_end_and_skips_nothing(live: Log, stream: Make) -> None:
    fill(live, 10)
    live.flush()
    fill(live, 5)
    source = stream(startingOffsets="latest")
    start = source.initial()
    assert offsets(start) == {A0: 10, A1: 0}
    live.flush()
    assert spans(source, start, source.latest(start)) == [("a", 0, 10, 15)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"a": {"0": 3, "1": -2}}'}, {A0: 3, A1: 0}),
        ({"startingOffsets": '{"a": {"0": -1, "1": 0}}'}, {A0: 10, A1: 0}),
        ({"startingOffsets": '{"a": {"0": 12, "1": 0}}'}, {A0: 12, A1: 0}),  # in the log, not durable yet
        ({"startingTimestamp": 1_005, "startingOffsetsByTimestampStrategy": "latest"}, {A0: 5, A1: 0}),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 1007}}', "assign": '{"a": [0]}'}, {A0: 7}),
        ({"startingTimestamp": 0, "subscribe": "nothing,b"}, {("b", 0): 0}),
    ],
)
def test_where_a_query_begins(
    live: Log, stream: Make, options: dict[str, object], expected: dict[object, int]
) -> None:
    live.create_topic("b")
    live.create_topic("nothing", partitions=1)
    live.append("b", b"", timestamp_ms=5)
    live.append("nothing", b"", timestamp_ms=5)
    for number in range(10):
        live.append("a", b"", partition=0, timestamp_ms=1_000 + number)
    live.flush()
    fill(live, 3)
    expected = expected | ({("nothing", 0): 0} if "nothing" in str(options) else {})
    assert offsets(stream(**options).initial()) == expected


def test_a_query_that_cannot_begin_says_why(live: Log, stream: Make) -> None:
    fill(live, 5)
    with pytest.raises(TopicNotFound, match="no topic 'b'"):
        stream(subscribe="b").initial()
    with pytest.raises(OffsetOutOfRange, match="startingOffsets is offset 6"):
        stream(startingOffsets='{"a": {"0": 6, "1": 0}}').initial()
    loose = stream(startingOffsets='{"a": {"0": 6, "1": 0}}', failOnDataLoss="false")
    assert offsets(loose.initial()) == {A0: 5, A1: 0}
    with pytest.raises(InvalidArgument, match="no record has a timestamp"):
        stream(startingTimestamp=10**15).initial()


def test_a_repeated_first_batch_keeps_its_start(live: Log, stream: Make) -> None:
    """Spark keeps where batches end, and asks again where the first one began, which is elsewhere by then."""
    fill(live, 10)
    live.flush()
    source = stream(startingOffsets="latest")
    start = source.initial()
    fill(live, 5)
    live.flush()
    end = source.latest(start)
    fill(live, 20)
    fill(live, 20, partition=1)
    live.flush()
    restarted = stream(startingOffsets="latest")
    assert spans(restarted, restarted.initial(), end) == [("a", 0, 10, 15)]
    assert spans(restarted, end, restarted.latest(again(end))) == [("a", 0, 15, 35), ("a", 1, 0, 20)]


# -- how much it takes -----------------------------------------------------------------------------------


def test_a_trigger_respects_its_limit(live: Log, stream: Make) -> None:
    fill(live, 300)
    fill(live, 100, partition=1)
    live.flush()
    source = stream(maxOffsetsPerTrigger=40)
    first = source.latest(source.initial())
    assert offsets(first) == {A0: 30, A1: 10}
    second = source.latest(first)
    assert offsets(second) == {A0: 60, A1: 20}
    assert spans(source, first, second) == [("a", 0, 30, 60), ("a", 1, 10, 20)]
    assert offsets(source.latest(second, unlimited=True)) == {A0: 300, A1: 100}


def test_a_trigger_waits_until_there_is_enough(live: Log, stream: Make) -> None:
    source = stream(minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    fill(live, 1)
    live.flush()
    first = source.latest(source.initial())
    assert offsets(first) == {A0: 1, A1: 0}
    fill(live, 9)
    live.flush()
    assert source.latest(first) is first
    assert offsets(source.latest(first, unlimited=True)) == {A0: 10, A1: 0}
    fill(live, 1, partition=1)
    live.flush()
    assert offsets(source.latest(first)) == {A0: 10, A1: 1}


def test_an_elapsed_delay_is_not_waited_for(live: Log, stream: Make) -> None:
    source = stream(minOffsetsPerTrigger=10, maxTriggerDelay="0s")
    for count in range(1, 4):
        fill(live, 1)
        live.flush()
        assert offsets(source.latest(source.initial())) == {A0: count, A1: 0}


def test_available_now_has_a_fixed_end(live: Log, stream: Make) -> None:
    fill(live, 100)
    live.flush()
    source = stream(subscribePattern="a|b", maxOffsetsPerTrigger=60, minOffsetsPerTrigger=60)
    start = source.initial()
    source.fix_end()
    fill(live, 50)
    fill(live, 50, partition=1)
    live.create_topic("b")
    fill(live, 5, topic="b")
    live.create_partitions("a", 3)
    live.flush()
    first = source.latest(start)
    assert offsets(first) == {A0: 60, A1: 0}
    second = source.latest(first)  # less than the least, and taken nevertheless
    assert offsets(second) == {A0: 100, A1: 0}
    assert source.latest(second) is second
    reported = source.reported()
    assert reported is not None
    assert offsets(reported) == {A0: 150, A1: 50, ("a", 2): 0, ("b", 0): 5}


def test_the_log_end_is_reported(live: Log, stream: Make) -> None:
    fill(live, 100)
    live.flush()
    fill(live, 7)
    source = stream(maxOffsetsPerTrigger=10)
    assert source.reported() is None
    source.latest(source.initial())
    reported = source.reported()
    assert reported is not None and offsets(reported) == {A0: 100, A1: 0}


# -- what is new -----------------------------------------------------------------------------------------


def test_new_partitions_and_topics_are_read_from_their_beginning(live: Log, stream: Make) -> None:
    source = stream(subscribePattern="a|new.*", startingOffsets="latest")
    fill(live, 5)
    live.flush()
    start = source.initial()
    live.create_partitions("a", 3)
    live.create_topic("new-topic")
    live.create_topic("other")
    for topic, partition in (("a", 2), ("new-topic", 0), ("other", 0)):
        fill(live, 4, partition=partition, topic=topic)
    live.flush()
    end = source.latest(start)
    assert spans(source, start, end) == [("a", 2, 0, 4), ("new-topic", 0, 0, 4)]
    assert source.latest(again(end)).positions.keys() == end.positions.keys()
    fill(live, 2, topic="new-topic")
    live.flush()
    assert spans(source, end, source.latest(end)) == [("new-topic", 0, 4, 6)]


def test_an_old_topic_new_to_the_query_is_read_from_its_start(live: Log, stream: Make) -> None:
    live.create_topic("b")
    fill(live, 10, topic="b")
    live.delete_records("b", 0, 6)
    live.flush()
    start = stream().initial()
    both = stream(subscribe="a,b")
    assert spans(both, start, both.latest(start)) == [("b", 0, 6, 10)]


def test_an_empty_topic_and_a_pattern_without_topics_are_waited_for(live: Log, stream: Make) -> None:
    for source in (stream(), stream(subscribePattern="nothing.*")):
        start = begun(source)
        assert source.latest(start) is start
        assert source.latest(again(start)).positions == start.positions


# -- what was lost ---------------------------------------------------------------------------------------


def test_retention_that_overtakes_the_query(
    live: Log, stream: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(live, 100)
    live.flush()
    source = stream(maxOffsetsPerTrigger=20)
    end = source.latest(source.initial())
    live.delete_records("a", 0, 50)
    with pytest.raises(RecordsLost, match=r"a 0: offsets 20 to 49 were deleted .* failOnDataLoss"):
        source.latest(end)
    loose = stream(failOnDataLoss="false")
    after = loose.latest(end)
    assert spans(loose, end, after) == [("a", 0, 50, 100)]
    assert spans(stream(), end, after) == [("a", 0, 50, 100)]  # the checkpoint knows where it began
    assert caplog.text.count("offsets 20 to 49 were deleted") == 1
    loose.latest(end)
    assert caplog.text.count("offsets 20 to 49 were deleted") == 1


def test_retention_that_overtakes_a_repeated_batch(live: Log, stream: Make) -> None:
    fill(live, 100)
    live.flush()
    source = stream()
    start = source.initial()
    end = source.latest(start)
    live.delete_records("a", 0, 30)
    with pytest.raises(RecordsLost, match="offsets 0 to 29 were deleted"):
        spans(source, start, end)
    assert spans(stream(failOnDataLoss="false"), start, end) == [("a", 0, 30, 100)]
    live.delete_records("a", 0, 100)
    assert spans(stream(failOnDataLoss="false"), start, end) == []


def lose_the_tail(path: Path, log: Log, backup: Path) -> Log:
    """A disk that broke its promise: the directory as it was."""
    log.close()
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    return embedlog.open(path, flush_ms=10**9)


def test_a_log_that_lost_its_tail(live: Log, path: Path, stream: Make) -> None:
    fill(live, 60)
    live.flush()
    backup = crash(path, path.parent / "backup")
    fill(live, 40)
    live.flush()
    source, loose = stream(), stream(failOnDataLoss="false")
    start = source.initial()
    end = source.latest(start)
    assert offsets(end) == {A0: 100, A1: 0}
    with lose_the_tail(path, live, backup) as log:
        for more, expected in ((0, []), (70, [("a", 0, 60, 130)])):
            fill(log, more, word="other")
            log.flush()
            with pytest.raises(RecordsLost, match=r"a 0: the log has lost its tail: .* offsets 60 to 99"):
                source.latest(end)
            after = loose.latest(end)
            assert spans(loose, end, after) == expected
            # A batch that is run again gives what is left of it, and what is new belongs to the next one.
            assert spans(loose, start, end) == [("a", 0, 0, 60)]
            with pytest.raises(RecordsLost, match="lost its tail"):
                spans(source, start, end)
            end = end if not more else after
        assert loose.latest(end) is end


def test_a_topic_that_was_deleted(live: Log, stream: Make) -> None:
    live.create_topic("b")
    fill(live, 5, topic="b")
    live.flush()
    source, loose = stream(subscribe="a,b"), stream(subscribe="a,b", failOnDataLoss="false")
    start = source.initial()
    end = source.latest(start)
    live.delete_topic("b")
    with pytest.raises(RecordsLost, match="b 0: the partition is gone"):
        source.latest(end)
    with pytest.raises(RecordsLost, match="offsets 0 to 4 are gone with their topic"):
        spans(source, start, end)
    assert spans(loose, start, end) == []
    after = loose.latest(end)
    assert offsets(after) == {A0: 0, A1: 0}
    assert loose.latest(after) is after
    live.create_topic("b")
    fill(live, 3, topic="b")
    live.flush()
    assert spans(loose, after, loose.latest(after)) == [("b", 0, 0, 3)]


@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_recreated_topic(live: Log, stream: Make, count: int) -> None:
    fill(live, 5)
    live.flush()
    source, loose = stream(), stream(failOnDataLoss="false")
    start = source.initial()
    end = source.latest(start)
    live.delete_topic("a")
    live.create_topic("a", partitions=2)
    fill(live, count, word="another")
    live.flush()
    with pytest.raises(RecordsLost, match="the topic a was deleted, and another one made"):
        source.latest(end)
    with pytest.raises(RecordsLost, match="gone with their topic"):
        spans(source, start, end)
    assert spans(loose, start, end) == []
    after = loose.latest(end)
    assert spans(loose, end, after) == [("a", 0, 0, count)]
    assert loose.latest(after) is after


def test_compaction_is_not_data_loss(path: Path, stream: Make) -> None:
    with embedlog.open(path, flush_ms=10**9) as log:
        log.create_topic("a", cleanup_policy="compact", segment_bytes=1_024)
        for number in range(100):
            log.append("a", b"%d" % number, key=b"k")
        log.flush()
        source = stream(maxOffsetsPerTrigger=30)
        end = source.latest(source.initial())
        assert log.compact("a") > 0
        assert spans(source, end, source.latest(end)) == [("a", 0, 30, 60)]


def test_a_missing_log_is_an_error(stream: Make) -> None:
    with pytest.raises(EmbedlogError):
        stream().initial()
