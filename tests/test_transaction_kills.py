"""Consume, transform, produce in transactions, killed with kill -9 at random steps: each input counts once.

A reader in another process looks on: what it sees as committed is a prefix of what is committed in the end.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from rounds import ROUNDS
from transaction_copier import GROUP

import embedlog
from embedlog import Record

PROGRAM = Path(__file__).parent / "transaction_copier.py"
PARTITIONS, KEYS = 4, 9


def copied(path: Path) -> dict[int, list[Record]]:
    """The committed output of each partition, as another process sees it."""
    with embedlog.open(path, mode="r") as log:
        return {
            number: list(log.read("out", number, isolation_level="read_committed"))
            for number in range(PARTITIONS)
        }


def copy_until_killed(path: Path, seed: str, lines: int) -> bool:
    """Run the program, and kill it when it has printed so many lines. Whether it came to its end before."""
    command = [sys.executable, str(PROGRAM), str(path), seed]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        line = ""
        for _ in range(lines):
            line = program.stdout.readline()
            if line in ("done\n", ""):
                break
        program.kill()
    if line == "":
        raise AssertionError("the program failed")
    return line == "done\n"


def check(path: Path, seed: str, records: int) -> None:
    dice = random.Random(seed)
    with embedlog.open(path, offsets_topic_num_partitions=2) as log:
        log.create_topic("in", PARTITIONS)
        log.create_topic("out", PARTITIONS)
        log.append_many("in", [(b"%d" % (n % KEYS), b"%d" % n) for n in range(records)])
    seen: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
    kills = 0
    while not copy_until_killed(path, f"{seed} {kills}", dice.randrange(1, 120)):
        kills += 1
        now = copied(path)
        for number, before in seen.items():
            assert now[number][: len(before)] == before, "what was committed has changed"
        seen = now
    output = copied(path)
    assert sorted(int(r.value or b"") for each in output.values() for r in each) == list(range(records))
    assert {r.headers for each in output.values() for r in each} == {(("fate", b"committed"),)}
    of_key = defaultdict(list)
    for each in output.values():
        for record in each:
            of_key[record.key].append(int(record.value or b""))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
    with embedlog.open(path) as log:
        assert log.recovery.damage == []
        assert log.group(GROUP).describe().lag == 0
        for number, edges in log.offsets("out").items():  # nothing hangs
            end = log.backend.fetch("out", number, 0, 1, read_committed=True).last_stable_offset
            assert end == edges.log_end_offset
    print(f"{kills} kills, {len(of_key)} keys")
    assert kills


@pytest.mark.slow
def test_killed_a_few_times(path: Path) -> None:
    check(path, "few", 1_000)


@pytest.mark.random
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.soak
def test_rounds(path: Path, round_: int) -> None:
    seed = str(random.random())
    print(f"seed {seed}: ", end="")
    check(path, seed, 5_000)
