"""The history checker finds each anomaly when it is planted, and nothing in a history that has none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from histories import Diary, Found, History, Mark, Read, Sent, Transaction, anomalies, told


def sound() -> History:
    """Three transactions of two processes over two partitions, one reader; the third one was aborted."""
    first = Transaction("a", 1.0, [Sent(0, "a1", 0), Sent(1, "a2", 0)], 2.0, 3.0, "committed")
    second = Transaction("b", 4.0, [Sent(0, "b1", 2), Sent(0, "b2", 3)], 5.0, 6.0, "committed")
    third = Transaction("a", 7.0, [Sent(1, "a3", 2)], 8.0, 9.0, "aborted")
    fourth = Transaction("b", 7.5, [Sent(1, "b3"), Sent(0, "b4")], 8.5, outcome="unknown")
    return History(
        [first, second, third, fourth],
        {"r": [Read(3.5, (Found(0, 0, "a1"), Found(1, 0, "a2"))), Read(6.5, (Found(0, 2, "b1"),))]},
        [Mark(1.0, "g", 1), Mark(2.0, "g", 1), Mark(3.0, "g", 4), Mark(2.5, "h", 0)],
        {0: [Found(0, 0, "a1"), Found(0, 2, "b1"), Found(0, 3, "b2")], 1: [Found(1, 0, "a2")]},
    )


def test_nothing_is_found_in_a_sound_history() -> None:
    assert anomalies(sound()) == []


def lose(history: History) -> None:
    history.final[0].pop()
    history.transactions[1].sent.pop(0)
    del history.final[0][1]


def double(history: History) -> None:
    history.final[1].append(Found(1, 9, "b2"))


def tear(history: History) -> None:
    history.final[0].append(Found(0, 6, "b4"))


def show_aborted(history: History) -> None:
    history.readers["r"].append(Read(10.0, (Found(1, 2, "a3"),)))


def keep_aborted(history: History) -> None:
    history.final[1].append(Found(1, 2, "a3"))


def show_too_early(history: History) -> None:
    history.readers["s"] = [Read(1.5, (Found(0, 0, "a1"),))]


def show_another(history: History) -> None:
    history.readers["s"] = [Read(9.0, (Found(0, 0, "x"),))]


def reorder_sends(history: History) -> None:
    history.transactions[1].sent.reverse()


def reorder_polls(history: History) -> None:
    history.readers["r"].append(Read(9.0, (Found(0, 0, "a1"),)))


def skip(history: History) -> None:
    history.readers["s"] = [Read(9.0, (Found(0, 0, "a1"), Found(0, 3, "b2")))]


def turn_time(history: History) -> None:
    history.transactions[0].began, history.transactions[0].ended = 6.1, 6.2
    history.transactions[0].asked = 6.15
    history.readers.clear()


def go_back(history: History) -> None:
    history.marks.append(Mark(4.0, "g", 3))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose, "lost write"),
        (double, "duplicate"),
        (tear, "torn transaction"),
        (show_aborted, "aborted read"),
        (keep_aborted, "aborted read"),
        (show_too_early, "uncommitted read"),
        (show_another, "two values"),
        (reorder_sends, "reordered send"),
        (reorder_polls, "reordered poll"),
        (skip, "skipped"),
        (turn_time, "real-time order"),
        (go_back, "lost offsets"),
    ],
)
def test_what_is_planted_is_found(plant: Callable[[History], None], kind: str) -> None:
    history = copy.deepcopy(sound())
    plant(history)
    assert kind in {found.kind for found in anomalies(history)}


def test_diaries_of_killed_processes(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "a")
    diary.begin()
    diary.sent([(0, "1", None)])
    diary.sent([(0, "1", 5)])
    diary.ask()
    diary.ended("committed")
    diary.begin()
    diary.sent([(0, "2", None)])
    diary.ask()
    diary.read([(0, 5, "1")])
    diary.mark("g", 7)
    diary.begin()
    with (tmp_path / "a").open("ab") as file:
        file.write(b'["ask", 1')  # killed within it
    history = told({"a": tmp_path / "a"})
    assert [(each.outcome, each.sent) for each in history.transactions] == [
        ("committed", [Sent(0, "1", 5)]),
        ("unknown", [Sent(0, "2", None)]),
        ("aborted", []),
    ]
    assert history.readers["a"][0].found == (Found(0, 5, "1"),)
    assert [(mark.name, mark.offset) for mark in history.marks] == [("g", 7)]
