"""Lags over time: which partitions are kept, and that memory has a bound."""

from __future__ import annotations

from pathlib import Path

from starlette.testclient import TestClient

import embedlog
from embedlog.clients.group_admin import ConsumerGroupDescription, PartitionLag
from embedlog.model import CommittedOffset, PartitionOffsets, TopicPartition
from embedlog.ui import application
from embedlog.ui.lags import LagHistory


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def group(name: str, lags: dict[int, int]) -> ConsumerGroupDescription:
    """A group that is so far behind in each partition."""
    partitions = {
        tp(number): PartitionLag(CommittedOffset(0), PartitionOffsets(0, lag, lag), None)
        for number, lag in lags.items()
    }
    return ConsumerGroupDescription(name, "Empty", 0, None, (), partitions)


def kept(history: LagHistory, name: str, among: int) -> list[int]:
    return [each.partition for each in history.of_partitions(name, [tp(n) for n in range(among)])]


def test_a_group_and_its_partitions() -> None:
    history = LagHistory()
    history.sample([group("g", {0: 5, 1: 0})], 1_000)
    history.sample([group("g", {0: 7, 1: 1})], 3_000)
    assert history.of_group("g") == ((5 + 0, 7 + 1), 1_000)
    assert history.of_partitions("g", [tp(0), tp(1), tp(2)]) == {
        tp(0): ((5, 7), 1_000),
        tp(1): ((0, 1), 1_000),
    }
    assert history.of_group("other") == ((), -1)
    history.sample([], 5_000)
    assert history.of_group("g") == ((), -1)
    assert kept(history, "g", 2) == []


def test_those_most_behind_are_kept() -> None:
    history = LagHistory()
    history.sample([group("g", dict.fromkeys(range(100), 0) | {50: 9, 60: 8})], 0)
    assert kept(history, "g", 100) == [*range(18), 50, 60]
    # Equals do not drive out those that are there; one that is more behind does.
    history.sample([group("g", dict.fromkeys(range(100), 0) | {99: 1})], 1)
    assert kept(history, "g", 100) == [*range(18), 50, 99]
    assert history.of_partitions("g", [tp(99), tp(50)]) == {tp(99): ((1,), 1), tp(50): ((9, 0), 0)}


def test_a_partition_that_is_looked_at_is_kept() -> None:
    history = LagHistory()
    lags = {number: 1_000 - number for number in range(100)}
    assert history.look_at("g", tp(99)) == ((), -1)
    history.sample([group("g", lags)], 0)
    assert kept(history, "g", 100) == [*range(20), 99]
    assert history.look_at("g", tp(99)) == ((901,), 0)
    history.look_at("g", TopicPartition("gone", 1))
    history.look_at("gone", tp(1))
    history.sample([group("g", lags)], 1)
    assert history.look_at("g", tp(99)) == ((901, 901), 0)


def test_memory_has_a_bound() -> None:
    history = LagHistory()
    several = [group(f"g{n}", dict.fromkeys(range(30), n)) for n in range(150)]
    for number in range(300):
        history.look_at("g0", tp(number))
    history.sample(several, 0)
    found = sum(len(kept(history, each.group, 30)) for each in several)
    assert found <= 2_100
    assert kept(history, "g149", 30) == list(range(20))  # those most behind go first
    assert kept(history, "g1", 30) == []
    for number in range(500):
        history.sample(several[:1], number)
    assert len(history.of_group("g0").values) == 450
    assert history.of_group("g0").since_ms == 50


def test_the_page_of_a_group(path: Path) -> None:
    with embedlog.open(path) as log, TestClient(application(log)) as visitor:
        log.create_topic("t", 150)
        log.append_many("t", [b"x"] * 7, partition=120)
        log.group("g").reset("t", to="earliest")
        assert visitor.get("/group?name=g").status_code == 200
        lags = visitor.app.state.site.sampler.lags  # type: ignore[attr-defined]
        assert len(lags.of_group("g").values) > 0  # the page has begun to sample
        for _ in range(2):
            lags.sample(log.describe_groups(), 0)
        page = visitor.get("/group?name=g").text
        assert "7 now, 7 at most" in page
        assert 'aria-label="records behind of t 120, the last two minutes"' in page
        assert page.index("t 120 over time") < page.index("t 0 over time")  # the most behind first
        assert "1 to 100 of 150" in page
        assert "101 to 150 of 150" in visitor.get("/group?name=g&first=100").text
        shown = visitor.get("/group?name=g&topic=t&partition=149").text
        assert "Of <b>t 149</b>" in shown
        assert "It is sampled from now on" in shown
        for _ in range(2):
            lags.sample(log.describe_groups(), 0)
        assert "0 now, 0 at most" in visitor.get("/group?name=g&topic=t&partition=149").text
        for wrong in ("topic=t&partition=150", "topic=%3Cb%3E&partition=0"):
            assert "Of <b>" not in visitor.get(f"/group?name=g&{wrong}").text
