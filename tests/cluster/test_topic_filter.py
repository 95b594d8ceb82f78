"""Topic filters mean what they mean to Kafka's Java consumers, or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedlog import InvalidArgument
from embedlog.cluster.classic.topic_filter import compiled

CAPTURED = json.loads((Path(__file__).parent / "java-filters.json").read_text())
NAMES: list[str] = CAPTURED["names"]
FILTERS: list[tuple[str, list[str] | None]] = CAPTURED["filters"]

# What Java understands, and embedlog does not.
REFUSED = {
    r"\p{InGreek}": "is not supported",
    r"\X": "is not supported",
    "(?x)a b": "(?x) is not supported",
    "(?ix)a": "(?x) is not supported",
    r"(?i)\p{Lower}+": r"use \p{Alpha}",
    "[^a-c[x]]": "versions of Java interpret differently",
    "[^[a]]": "versions of Java interpret differently",
    "[&&a]": "&& with nothing beside it",
    "[a&&]": "&& with nothing beside it",
    "[a&&[b]c]": "put [ ] around the others",
    "[a&&c[b]]": "put [ ] around the others",
    r"(a)\2": "there is no group 2",
    r"\1(a)": "there is no group 1",
    ".*(?<=b|ab)": "look-behind requires fixed-width pattern",
    ".*(?<=a*)": "look-behind requires fixed-width pattern",
    "{2}": r"write \{ for the character",
    "a{2}{2}": r"write \{ for the character",
    "^*a": "nothing to repeat",
    "$*a": "nothing to repeat",
    r"\b*a": "nothing to repeat",
    r"\G*a": "nothing to repeat",
}


@pytest.mark.parametrize(("expression", "matched"), FILTERS, ids=[each for each, _ in FILTERS])
def test_a_filter_matches_as_in_java(expression: str, matched: list[str] | None) -> None:
    if matched is None or expression in REFUSED:
        with pytest.raises(InvalidArgument, match="regular expression in Java's syntax") as refused:
            compiled(expression)
        assert REFUSED.get(expression, "") in str(refused.value)
    else:
        assert [name for name in NAMES if compiled(expression).fullmatch(name)] == matched


def test_a_comma_in_a_repetition_is_explained() -> None:
    with pytest.raises(InvalidArgument, match=r"\{2\|3\}: only \{n\} is supported, since a comma means"):
        compiled("a{2,3}")


@pytest.mark.parametrize("deep", ["(" * 10_000, "[" * 10_000, "(?:" * 10_000 + ")" * 10_000, "[a" * 99])
def test_deep_nesting_is_refused(deep: str) -> None:
    with pytest.raises(InvalidArgument, match="50 deep"):
        compiled(deep)
