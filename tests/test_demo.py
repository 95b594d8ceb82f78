"""The demo on its real input: however often it is killed, no flight is lost or counted twice."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import embedlog
from embedlog.clients.partitioner import partition_for_key
from embedlog.demo import flights
from embedlog.demo.loader import PARTITIONS, TOPIC

KILLS = 20


def start_loader(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "embedlog.demo.loader", str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.jvm
@pytest.mark.timeout(900)
def test_the_demo_counts_by_a_group_and_by_spark(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "embedlog", "demo", str(tmp_path / "log"), "--seed", "7"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "336,776 of 336,776 · 0 lost · 0 doubled" in shown.stdout
    assert re.search(r"Spark +mean arrival delay by month", shown.stdout)
    assert re.search(r"336,776 flights in [0-9.]+ s", shown.stdout)
    # By month, from the data set itself.
    delays: dict[int, list[int]] = {}
    for row in flights.rows():
        if row["carrier"] == "UA" and row["arr_delay"] not in ("", "NA"):
            delays.setdefault(int(row["month"]), []).append(int(float(row["arr_delay"])))
    means = [f"{round(sum(delays[month]) / len(delays[month])):+}" for month in range(1, 13)]
    spark_row = [line.split() for line in shown.stdout.splitlines() if line.split()[:1] == ["UA"]][-1]
    assert spark_row == ["UA", "58,665", *means]


@pytest.mark.slow
@pytest.mark.soak
def test_twenty_kills_at_random_points_lose_and_double_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    dice = random.Random()
    reports = 0
    for _ in range(KILLS):
        step = dice.randint(1, 2 * flights.FLIGHTS // KILLS)
        with start_loader(directory) as loader:
            assert loader.stdout is not None
            begun = None
            for line in loader.stdout:
                facts = json.loads(line)
                reports += "recovery" in facts
                if "loaded" in facts:
                    begun = facts["loaded"] if begun is None else begun
                    if facts["loaded"] >= begun + step:
                        break
            # A moment that has nothing to do with what the loader has just said.
            time.sleep(dice.random() * 0.01)
            loader.kill()
    with start_loader(directory) as loader:
        loader.communicate()
    assert loader.returncode == 0
    assert reports >= KILLS - 1

    expected: list[list[tuple[bytes | None, bytes | None, int]]] = [[] for _ in range(PARTITIONS)]
    timestamps: dict[str, int] = {}
    for row in flights.rows():
        record = flights.as_record(row, timestamps)
        place = partition_for_key(flights.key_of(row), PARTITIONS)
        expected[place].append((record.key, record.value, record.timestamp_ms))
    with embedlog.open(directory) as log:
        assert log.recovery.clean
        for partition in range(PARTITIONS):
            found = [(r.key, r.value, r.timestamp_ms) for r in log.read(TOPIC, partition)]
            assert found == expected[partition]
    assert sum(map(len, expected)) == flights.FLIGHTS
