"""Clients write in transactions to the partitions of three brokers; whatever of it is killed: their history.

EMBEDLOG_ROUNDS   how many rounds (rounds.py)
EMBEDLOG_SEED     what the faults are drawn from; a failure tells it
"""

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
from brokers import Brokers, cluster
from histories import Found, History, anomalies, told
from rounds import ROUNDS
from transaction_writer import PARTITIONS, TOPIC, stable_offset
from zookeepers import Znodes, eventually

import embedlog

PROGRAM = Path(__file__).with_name("transaction_writer.py")
WRITERS = ("confluent-kafka-0", "kafka-python-0", "aiokafka-0", "embedlog-0", "embedlog-1")
READER = "reader"
FAULTS_IN_A_ROUND = 5
HANGS_S = 15.0
PATIENCE_S = 120.0
SETTINGS = (
    "--set",
    "zookeeper.session.timeout.ms=2000",
    "--set",
    "transaction.state.log.num.partitions=6",
)


class World:
    """The clients and their diaries, and the brokers."""

    def __init__(self, directory: Path, brokers: Brokers, dice: random.Random) -> None:
        self._directory = directory
        self._brokers = brokers
        self._dice = dice
        self.diaries: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lives: Counter[str] = Counter()
        self.done: list[str] = []

    def begin(self, name: str) -> None:
        """A process; what it does is told under a name of its own, since a reader begins anew."""
        self.lives[name] += 1
        diary = self.diaries[f"{name}, life {self.lives[name]}"] = (
            self._directory / f"{name}-{self.lives[name]}"
        )
        command = [
            *(sys.executable, PROGRAM, self._brokers.bootstrap, diary, name, self._dice.randrange(1 << 30)),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(self._directory / f"{name}.log", "ab") as said:
            self.processes[name] = subprocess.Popen(
                list(map(str, command)), stdout=said, stderr=said, env=environment
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def noted(self, name: str) -> int:
        """How much a process has noted in this life."""
        diary = self.diaries[f"{name}, life {self.lives[name]}"]
        return diary.read_bytes().count(b"\n") if diary.exists() else 0

    def wait_for_progress(self) -> None:
        """Until each process has done something more. A client that hangs is begun again: kafka-python's
        waits for ever if a coordinator refuses its connection (docs/reference/compatibility.md). Its id
        must go on."""
        for name in self.processes:
            if not self._goes_on(name, HANGS_S):
                self.kill(name)
                self.begin(name)
                self.done.append(f"{name} has hung")
                assert self._goes_on(name, PATIENCE_S), f"{name} does not go on"

    def _goes_on(self, name: str, patience_s: float) -> bool:
        before = self.noted(name)
        deadline = time.monotonic() + patience_s
        while self.noted(name) <= before + 10:
            assert self.processes[name].poll() is None, f"{name} has ended"
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def fault(self) -> str:
        """Something is killed, and started again."""
        kind = self._dice.choice(["broker", "broker", "brokers", "pause", "client", "client"])
        if kind == "client":
            name = self._dice.choice([*WRITERS, READER])
            self.kill(name)
            self.begin(name)
            return f"kill {name}"
        struck = self._dice.sample(self._brokers.all, 2 if kind == "brokers" else 1)
        if kind == "pause":
            struck[0].pause()
            time.sleep(self._dice.uniform(0, 4))  # its session ends meanwhile, or not
            struck[0].resume()
        else:
            for broker in struck:
                broker.kill()
            time.sleep(self._dice.uniform(0, 1))  # how much happens meanwhile differs, and does not matter
            for broker in struck:
                broker.begin()
            for broker in struck:
                broker.wait()
        return f"{kind} {[broker.number for broker in struck]}"

    def said(self) -> str:
        return "\n".join(
            f"{path.name}:\n{path.read_text()[-3_000:]}" for path in sorted(self._directory.glob("*.log"))
        )

    def history(self) -> History:
        """After the end of all processes."""
        begun = {name: diary for name, diary in self.diaries.items() if diary.exists()}
        history = told(begun)
        with embedlog.open(f"kafka://{self._brokers.bootstrap}") as log:

            def is_over() -> bool:
                for each in log.transactions():
                    if each.is_open:
                        log.abort_transaction(each.transactional_id)
                return all(
                    edges.log_end_offset == stable_offset(log, number, edges.log_end_offset)
                    for number, edges in log.offsets(TOPIC).items()
                )

            eventually(is_over, "no transaction hangs")
            for partition in range(PARTITIONS):
                history.final[partition] = [
                    Found(partition, record.offset, (record.value or b"").decode())
                    for record in log.read(TOPIC, partition, isolation_level="read_committed")
                ]
        return history

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


def check(directory: Path, znodes: Znodes, rounds: int, faults: int = FAULTS_IN_A_ROUND) -> None:
    seed = os.environ.get("EMBEDLOG_SEED", str(time.time_ns() % 1_000_000))
    dice = random.Random(seed)
    with ExitStack() as ends:
        brokers = ends.enter_context(cluster(directory, znodes.connect, 3, *SETTINGS))
        brokers.create(TOPIC, PARTITIONS)
        world = World(directory, brokers, dice)
        done = world.done
        ends.callback(world.close)
        try:
            for name in (*WRITERS, READER):
                world.begin(name)
            for _ in range(rounds):
                world.wait_for_progress()
                for _ in range(faults):
                    time.sleep(dice.uniform(0, 1))  # which step is struck differs, and does not matter
                    done.append(world.fault())
            world.wait_for_progress()
            world.close()
            history = world.history()
            assert anomalies(history) == []
            outcomes = Counter(each.outcome for each in history.transactions)
            print(f"EMBEDLOG_SEED={seed}: {dict(outcomes)}, {sum(world.lives.values())} processes, {done}")
            assert outcomes["committed"] and outcomes["aborted"]
        except BaseException as error:
            error.add_note("\n".join([f"EMBEDLOG_SEED={seed}, rounds: {rounds}", *done, world.said()]))
            raise


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_history_of_a_few_faults_is_correct(zookeeper: Znodes, tmp_path: Path) -> None:
    check(tmp_path, zookeeper, 1, 2)


@pytest.mark.random
@pytest.mark.timeout(120 + 300 * ROUNDS)
@pytest.mark.soak
def test_the_history_is_correct_whatever_is_killed(zookeeper: Znodes, tmp_path: Path) -> None:
    check(tmp_path, zookeeper, ROUNDS)
