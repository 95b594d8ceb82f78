"""Processes share a log and write to it in transactions; each of them is killed; their history is checked."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from histories import Found, History, anomalies, told
from rounds import ROUNDS
from transaction_process import PARTITIONS, TOPIC

import embedlog

pytestmark = pytest.mark.random

PROGRAM = Path(__file__).with_name("transaction_process.py")
WRITERS = ("writer-0", "writer-1", "writer-2")
READERS = ("reader", "reader-shared")
KILLS_IN_A_ROUND = 8


class World:
    """The processes and their diaries."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self._directory = directory
        self._dice = dice
        self.path = directory / "log"
        self.diaries: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lives: Counter[str] = Counter()

    def begin(self, name: str) -> None:
        """A process; what it does is told under a name of its own, since a reader begins anew."""
        self.lives[name] += 1
        diary = self.diaries[f"{name}, life {self.lives[name]}"] = (
            self._directory / f"{name}-{self.lives[name]}"
        )
        command = [sys.executable, PROGRAM, self.path, diary, name, self._dice.randrange(1 << 30)]
        with open(self._directory / f"{name}.log", "ab") as said:
            self.processes[name] = subprocess.Popen(list(map(str, command)), stderr=said)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def wait_for_progress(self) -> None:
        """Until each process has done something since it began."""
        for name, process in self.processes.items():
            diary = self.diaries[f"{name}, life {self.lives[name]}"]
            while not (diary.exists() and diary.read_bytes().count(b"\n") > 20):
                assert process.poll() is None, self.said()
                time.sleep(0.01)

    def said(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._directory.glob("*.log")))

    def history(self) -> History:
        """After the end of all processes."""
        history = told(self.diaries)
        with embedlog.open(self.path) as log:
            assert log.recovery.damage == []
            for each in log.transactions():
                if each.is_open:
                    log.abort_transaction(each.transactional_id)
            for partition, edges in log.offsets(TOPIC).items():
                fetched = log.backend.fetch(TOPIC, partition, 0, 1, read_committed=True)
                assert fetched.last_stable_offset == edges.log_end_offset, "a transaction hangs"
                history.final[partition] = [
                    Found(partition, record.offset, (record.value or b"").decode())
                    for record in log.read(TOPIC, partition, isolation_level="read_committed")
                ]
        return history

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


@pytest.mark.parametrize("round_", range(ROUNDS))  # each with a log of its own: readers begin at its start
def test_the_history_is_correct_whatever_is_killed(tmp_path: Path, round_: int) -> None:
    seed = int(os.environ.get("EMBEDLOG_SEED", time.time_ns() % 1_000_000)) + round_
    dice = random.Random(seed)
    world = World(tmp_path, dice)
    with embedlog.open(world.path) as log:
        log.create_topic(TOPIC, PARTITIONS)
    with ExitStack() as ends:
        ends.callback(world.close)
        try:
            for name in (*WRITERS, *READERS):
                world.begin(name)
            for _ in range(KILLS_IN_A_ROUND):
                world.wait_for_progress()
                time.sleep(dice.uniform(0, 0.3))  # which step is struck differs, and does not matter
                for name in dice.sample([*WRITERS, *READERS], dice.randrange(1, 3)):
                    world.kill(name)
                    world.begin(name)
            world.wait_for_progress()
            world.close()
            history = world.history()
            assert anomalies(history) == []
            outcomes = Counter(each.outcome for each in history.transactions)
            print(f"EMBEDLOG_SEED={seed}: {dict(outcomes)}, {sum(world.lives.values())} processes")
            assert outcomes["committed"] and outcomes["aborted"]
        except BaseException as error:
            error.add_note(f"EMBEDLOG_SEED={seed} EMBEDLOG_ROUNDS=1\n{world.said()}")
            raise
