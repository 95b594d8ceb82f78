"""Patterns of subscriptions: which topics match, as topics come and go."""

from __future__ import annotations

import pytest

from embedlog.groups.machines.modern_member import InvalidRegularExpression
from embedlog.groups.machines.patterns import TopicPatterns


def test_topics_come_and_go() -> None:
    patterns = TopicPatterns()
    assert patterns.matching("t.*") == ()
    patterns.update(["u", "t2", "t1"])
    assert patterns.matching("t.*") == ("t1", "t2")
    assert patterns.matching("t") == ()  # the whole name
    patterns.update(["t3", "t1"])
    assert patterns.matching("t.*") == ("t1", "t3")
    patterns.update(["t3", "t1"])
    assert patterns.matching("t.*|u") == ("t1", "t3")
    patterns.update([])
    assert patterns.matching("t.*") == ()


def test_a_pattern_is_forgotten_and_found_again() -> None:
    patterns = TopicPatterns()
    patterns.update(["t7"])
    for _ in range(2):
        assert patterns.matching("t.") == ("t7",)
        patterns.forget("t.")
        patterns.forget("t.")


@pytest.mark.parametrize("pattern", ["(", "(?=t)", r"(t)\1", "t" * 10_001, "\ud800", "((a{100}){100}){100}"])
def test_what_is_refused(pattern: str) -> None:
    patterns = TopicPatterns()
    with pytest.raises(InvalidRegularExpression):
        patterns.check(pattern)
    assert patterns.matching(pattern) is None


def test_a_pattern_that_takes_exponential_time_elsewhere() -> None:
    patterns = TopicPatterns()
    patterns.update(["a" * 200 + "!"])
    assert patterns.matching("(a+)+") == ()
