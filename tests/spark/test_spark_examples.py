"""The pipeline in examples/flights, from events to plot, compared with counts in plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import embedlog

pytestmark = [pytest.mark.jvm, pytest.mark.xdist_group("programs")]

ROOT = Path(__file__).parent.parent.parent
FLIGHTS = ROOT / "examples" / "flights"
DAYS = "12"
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def run(where: Path, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FLIGHTS / program), *arguments],
        cwd=where,
        env={**os.environ, "FLIGHTS_DAYS": DAYS},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(1200)
def test_from_events_to_the_plot(tmp_path: Path) -> None:
    for _ in range(2):  # the second time there is nothing left to do
        said = run(tmp_path, "events.py", "data")
    with embedlog.open(tmp_path / "data", mode="r") as log:
        events = [(r.timestamp_ms, json.loads(r.value or b"")) for r in log.read("flights")]
    assert said == f"{len(events):,} events in data\n"
    assert [at for at, _ in events] != sorted(at for at, _ in events)  # some are late

    run(tmp_path, "hourly.py", "data")
    run(tmp_path, "hourly.py", "data")
    closed_before = max(at for at, _ in events) - DAY_MS
    flights: Counter[tuple[int, str, str]] = Counter()
    bad: Counter[tuple[str, int]] = Counter()
    in_all: Counter[tuple[str, int]] = Counter()
    for at, event in events:
        hour = at - at % HOUR_MS
        if hour + HOUR_MS <= closed_before:
            flights[hour, event["carrier"], event["origin"]] += 1
            cell = event["carrier"], event["local_hour"]
            in_all[cell] += 1
            bad[cell] += event["dep_delay"] is None or event["dep_delay"] >= 30
    with embedlog.open(tmp_path / "data", mode="r") as log:
        hours = [(r.timestamp_ms, json.loads(r.value or b"")) for r in log.read("flights-hourly")]
    assert Counter({(at, h["carrier"], h["origin"]): h["flights"] for at, h in hours}) == flights
    assert len(hours) == len(flights)

    assert run(tmp_path, "nightly.py", "data").startswith(f"load 1: {len(hours):,} rows")
    assert run(tmp_path, "nightly.py", "data").startswith("load 1: 0 rows")
    said = run(tmp_path, "report.py", "data-warehouse/hourly")
    share = bad.total() / in_all.total()
    assert said.startswith(f"{in_all.total():,} flights, of which {share:.0%} left 30 minutes late")
    run(tmp_path, "plot.py", "data-warehouse/hourly", "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
