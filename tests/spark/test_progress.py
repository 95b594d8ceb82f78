"""A streaming query's checkpoint, and the records of a trigger, without Spark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import InvalidArgument
from embedlog.model import TopicPartition
from embedlog.spark.progress import Patience, Position, Progress, limited

OFFSETS = st.integers(0, (1 << 63) - 1)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["clicks", "a.b-c_D", "x"]), st.integers(0, 1200))
POSITIONS = st.builds(Position, OFFSETS, st.integers(-1, (1 << 31) - 1), st.none() | OFFSETS)


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    positions = draw(st.dictionaries(PARTITIONS, POSITIONS, max_size=12))
    topics = {tp.topic for tp in positions}
    return Progress(
        positions, {topic: draw(st.sampled_from(["", "kQ1v_-aaaaaaaaaaaaaaaa"])) for topic in topics}
    )


@given(progresses())
def test_progress_round_trips_through_the_checkpoint(progress: Progress) -> None:
    assert Progress.of(json.loads(json.dumps(progress.as_dict()))) == progress


@given(progresses(), st.randoms())
def test_equal_progress_is_the_same_text(progress: Progress, rng: object) -> None:
    """Spark compares offsets by their text, and a query that stands still must not seem to move."""
    shuffled = list(progress.positions.items())
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Progress(dict(shuffled), progress.topic_ids)
    assert json.dumps(other.as_dict()) == json.dumps(progress.as_dict())


@pytest.mark.parametrize(
    ("given_offsets", "told"),
    [
        ({"clicks": {"0": 17}}, "not embedlog's"),
        (None, "not embedlog's"),
        ([1], "not embedlog's"),
        ({"version": 2, "topics": {}}, "version 2"),
        ({"version": 1}, "not embedlog's"),
        ({"version": 1, "topics": {"t": {"topic_id": "", "partitions": {"zero": {}}}}}, "not embedlog's"),
        (
            {"version": 1, "topics": {"t": {"topic_id": "", "partitions": {"0": {"offset": -1}}}}},
            "not embedlog's",
        ),
        (
            {
                "version": 1,
                "topics": {"t": {"topic_id": "", "partitions": {"0": {"offset": True, "leader_epoch": 0}}}},
            },
            "not embedlog's",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(given_offsets: object, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Progress.of(given_offsets)


def test_a_batch_begins_at_the_end_of_the_previous_one() -> None:
    clicks, views, new = TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("new", 0)
    before = Progress({clicks: Position(10, 0), views: Position(7, 0)}, {"clicks": "i"})
    end = Progress(
        {clicks: Position(15, 0), views: Position(9, 1, 3), new: Position(4, 0, 0)}, {"clicks": "i"}
    )
    assert end.begins(before) == {clicks: 10, views: 3, new: 0}


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    begins = draw(st.dictionaries(PARTITIONS, st.integers(0, 1 << 62), min_size=1, max_size=20))
    return begins, {tp: begin + draw(st.integers(0, 1 << 40)) for tp, begin in begins.items()}


@given(st.integers(1, 1 << 41), backlogs())
def test_a_limit_is_shared_in_proportion_without_starvation(
    most: int, backlog: tuple[dict[TopicPartition, int], dict[TopicPartition, int]]
) -> None:
    begins, ends = backlog
    waiting = {tp: ends[tp] - begins[tp] for tp in begins}
    total = sum(waiting.values())
    taken = {tp: end - begins[tp] for tp, end in limited(most, begins, ends).items()}
    assert taken.keys() == begins.keys()
    if total <= most:
        assert taken == waiting
    for tp, count in taken.items():
        assert min(waiting[tp], 1) <= count <= waiting[tp]
        if total > most and waiting[tp]:
            share = most * waiting[tp] / total
            assert share * (1 - 1e-9) - 1 <= count <= max(share * (1 + 1e-9), 1)
    assert sum(taken.values()) <= most + sum(1 for count in waiting.values() if count)


def test_a_backlog_takes_as_many_triggers_as_needed() -> None:
    ends = {TopicPartition("t", 0): 1000, TopicPartition("t", 1): 10, TopicPartition("t", 2): 0}
    begins, triggers = dict.fromkeys(ends, 0), 0
    while begins != ends:
        begins = limited(100, begins, ends)
        triggers += 1
    assert triggers == 11


def test_triggers_pass_until_enough_waits_or_the_time_is_over() -> None:
    patience = Patience(100, 1000)
    assert not patience.waits(1, 5_000)  # the first does not wait
    assert patience.waits(99, 5_999)
    assert not patience.waits(100, 5_999)
    assert patience.waits(1, 6_900)
    assert not patience.waits(0, 7_500)  # nothing waits: nothing is delayed, and nothing begins
    assert not patience.waits(1, 7_000)
    assert patience.waits(1, 7_999)
    assert not patience.waits(1, 8_000)


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    patience = Patience(100, 1000)
    assert not patience.waits(1, 5_000)
    assert not patience.waits(1, 4_000)
