"""How background work shares the interpreter with appends."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from faults import FaultyFileSystem, open_log, partition_of, store_of
from housekeeping import housekeep

from embedlog.runtime.throttle import (
    APPENDS_PER_LONG_SLICE,
    LONG_MS,
    MANY_PER_MS,
    QUIET_AFTER_MS,
    REST_MS,
    SHORT_MS,
    YIELD_MS,
    Pace,
)

_STEP_MS = 0.01


class _World:
    """A machine where a background thread works in steps while others append so much a millisecond."""

    def __init__(self, appends_per_ms: float) -> None:
        self.rate = appends_per_ms
        self.now = self.worked = 0.0
        self.slices: list[float] = []  # milliseconds of work between two rests
        self.rests: list[float] = []  # milliseconds
        self._resting = False
        self.pace = Pace(
            lambda: int(self.now * 1000 * self.rate),
            clock=lambda: self.now,
            worked=lambda: self.worked,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._resting:
            self.rests[-1] += seconds * 1000
        else:
            self.rests.append(seconds * 1000)
            self.slices.append(0.0)
        self._resting = True

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.pace()
            self._resting = False
            self.now += _STEP_MS / 1000
            self.worked += _STEP_MS / 1000
            self.slices[-1] += _STEP_MS


def test_an_idle_log_is_maintained_at_full_speed() -> None:
    world = _World(0)
    world.work(10_000)
    began, worked = world.now, world.worked
    world.work(100_000)
    assert max(world.slices) <= LONG_MS + _STEP_MS * 1.01
    assert world.rests[-1] == pytest.approx(YIELD_MS)
    assert world.worked - worked > 0.95 * (world.now - began)


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0, 20.0, 0.9 * MANY_PER_MS])
def test_beside_appends_maintenance_works_in_short_slices(rate: float) -> None:
    world = _World(rate)
    world.work(20_000)
    assert max(world.slices) <= SHORT_MS + 1.01 * _STEP_MS
    assert max(world.rests) == pytest.approx(REST_MS)


@pytest.mark.parametrize("rate", [1.1 * MANY_PER_MS, 100.0, 300.0])
def test_few_appends_of_many_meet_a_slice(rate: float) -> None:
    world = _World(rate)
    world.work(20_000)
    appends = world.now * 1000 * rate
    assert max(world.slices) <= LONG_MS + 1.01 * _STEP_MS
    assert len(world.slices) < 1.3 * appends / APPENDS_PER_LONG_SLICE + 3
    assert world.worked > 0.02 * world.now


def test_maintenance_slows_down_during_and_after_appends() -> None:
    world = _World(0)
    world.work(100_000)
    world.rate = 1.0
    world.work(2_000)
    assert max(world.slices[-5:]) <= SHORT_MS + 1.01 * _STEP_MS
    world.rate = 0.0
    stopped = world.now
    while world.rests[-1] > YIELD_MS:
        world.work(1)
    assert (world.now - stopped) * 1000 >= QUIET_AFTER_MS


def test_saving_indexes_blocks_no_append(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path / "log")
    log = open_log(tmp_path / "log", fs)
    try:
        log.create_topic("t", index_interval_bytes=100)
        for _ in range(10):
            log.append("t", bytes(100))
        appended: list[int] = []

        def append() -> None:
            assert not partition_of(log).log.append_lock._is_owned()
            appended.append(log.append("t", b"meanwhile").offset)

        fs.at("write", append, path=".index")
        housekeep(store_of(log))
        assert appended == [10]
        housekeep(store_of(log))
        segment = partition_of(log).segments()[-1]
        saved = segment._index_files.load(segment.size, segment.next_offset)
        assert saved == segment.entries()
    finally:
        log.close()


def test_explicit_maintenance_is_not_throttled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the threads in the background keep out of the way of others."""
    slept: list[float] = []
    with open_log(path) as log:
        log.create_topic("t", partitions=30, cleanup_policy="compact")
        log.append("t", b"v", key=b"k")
        monkeypatch.setattr(time, "sleep", slept.append)
        monkeypatch.setattr(time, "thread_time", itertools.count().__next__)  # each step takes a second
        housekeep(store_of(log))
        assert slept == []
        store_of(log).background.start()
        store_of(log).cleaner.pace()()
        assert len(slept) >= 1
