"""Rounds of a work queue: owners and workers are killed, stopped and closed, and the wall clock is stepped.

Seen from outside, by what the workers say (queue_checks.py): no job is lost, accepted twice, with two workers
at once, or delivered too often; the jobs of a key stay in order where that was asked for; each dead letter is
there once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from queue_checks import faults
from queue_workers import GROUP, TOPIC, letters, run
from rounds import ROUNDS

import embedlog

_JOBS = 4_000  # 100,000 in the 25 rounds of `make soak`
_UNKNOWN = {"BrokerUnavailable", "RequestTimedOut"}


def check(path: Path, seed: object, jobs: int, events: int, processes: int) -> None:
    workers, rules = run(path, seed, jobs, events, processes)
    facts = workers.facts
    with embedlog.open(path) as log:
        assert log.recovery.damage == []
        dead = letters(log)
        described = log.backend.share_coordinator.describe_share_group(GROUP, TOPIC)
        assert [each.start_offset for each in described.partitions] == [
            edges.log_end_offset for _, edges in sorted(log.offsets(TOPIC).items())
        ]
    accepted = sum(each.did("accept") for each in facts.deliveries.values())
    print(
        f"{rules}: {len(facts.sent)} jobs, {len(facts.deliveries)} deliveries, {accepted} accepted, ", end=""
    )
    print(f"{len(dead)} dead, {len(facts.ended)} workers ended, {dict(facts.errors)}")
    assert faults(facts, dead, rules) == []
    assert set(facts.errors) <= _UNKNOWN, facts.errors
    results = {call.result for each in facts.deliveries.values() for call in each.calls}
    assert results <= {"ok", "LockLost", None, *_UNKNOWN}
    assert len(facts.sent) >= jobs
    assert accepted > jobs / 2
    assert dead


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_killed_and_stopped_a_few_times(path: Path, processes: int) -> None:
    check(path, "few", 300, 6, processes)


@pytest.mark.random
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.soak
def test_rounds(path: Path, round_: int) -> None:
    seed = random.random()
    print(f"seed {seed}: ", end="")
    check(path, seed, _JOBS, 25, processes=1 if round_ % 4 == 3 else 3)
