"""Whose turn it is among handshakes: a bounded share of the loop's time, in the order of arrival."""

from __future__ import annotations

import time
from collections.abc import Callable

from embedlog.cluster.network.handshakes import HandshakeLimits, Handshakes


class Slow:
    """A handshake whose step computes for 3 ms: longer than a turn's share."""

    def __init__(self, done: list[Slow], host: str = "h") -> None:
        self.host = host
        self.closed = False
        self._done = done

    def open(self) -> None:
        ends = time.perf_counter() + 0.003
        while time.perf_counter() < ends:
            pass
        self._done.append(self)

    def close(self, reason: str | None) -> None:
        self.closed = True


def test_one_turn_has_a_bounded_share() -> None:
    done: list[Slow] = []
    handshakes = Handshakes(HandshakeLimits(10, 10, 60), lambda delay, callback: object())
    slow = [Slow(done) for _ in range(3)]
    for each in slow:
        handshakes.begin(each)
    assert not handshakes.has_work
    for each in reversed(slow):
        handshakes.ready(each)
        handshakes.ready(each)
    for turn in (1, 2, 3):
        assert handshakes.has_work
        handshakes.run()
        assert done == slow[::-1][:turn]
    assert not handshakes.has_work


def test_those_that_end_are_forgotten() -> None:
    done: list[Slow] = []
    handshakes = Handshakes(HandshakeLimits(10, 10, 60), lambda delay, callback: object())
    one, two = Slow(done), Slow(done)
    for each in (one, two):
        handshakes.begin(each)
        handshakes.ready(each)
    handshakes.end(one)
    handshakes.end(one)
    handshakes.run()
    assert done == [two]
    assert len(handshakes) == 1


def test_later_ones_have_a_time_limit_too() -> None:
    """They begin when none is open any more, and nothing is due."""
    due: list[Callable[[], object]] = []

    def call_later(_: float, callback: Callable[[], object]) -> object:
        due.append(callback)
        return callback

    handshakes = Handshakes(HandshakeLimits(10, 10, 0.01), call_later)
    for _ in range(3):
        silent = Slow([])
        handshakes.begin(silent)
        while not silent.closed:
            (check,) = due
            due.clear()
            check()
        assert due == []
        handshakes.end(silent)
