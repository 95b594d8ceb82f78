"""A broker killed under load loses no acknowledged record and duplicates no idempotent one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from optional_programs import find
from producers import CLIENTS
from programs import Program

import embedlog

RECORDS = 2_000
KILLS = 4
PRODUCERS = Path(__file__).with_name("producers.py")

SERVE = """
import sys
from embedlog.cluster import Broker
path, port = sys.argv[1:]
with Broker(path, port=int(port), num_partitions=3):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Crashing:
    """A broker in a process of its own, always on the same port."""

    def __init__(self, path: Path, program: Callable[..., Program], port: int) -> None:
        self._path = path
        self._program = program
        self.port = port
        self.bootstrap = f"127.0.0.1:{port}"
        self._start()

    def _start(self) -> None:
        self.running = self._program(SERVE, self._path, self.port)
        self.running.line()

    def kill_and_restart(self) -> None:
        self.running.kill()
        self._start()


@pytest.fixture
def crashing(tmp_path: Path, program: Callable[..., Program]) -> Iterator[Crashing]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    yield Crashing(tmp_path / "log", program, port)


@pytest.mark.timeout(600)
@pytest.mark.program("kcat", required=False)
@pytest.mark.parametrize("kind", ["idempotent", pytest.param("plain", marks=pytest.mark.slow)])
def test_killed_while_all_clients_produce(crashing: Crashing, tmp_path: Path, kind: str) -> None:
    clients = [client for client in CLIENTS if client != "kcat" or find("kcat")]
    running = {}
    for client in clients:
        command = [sys.executable, PRODUCERS, client, crashing.bootstrap, client, kind, RECORDS]
        running[client] = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    for process in running.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    for _ in range(KILLS):
        time.sleep(0.3)  # some of the load; how much differs, and does not matter
        crashing.kill_and_restart()
    acked = {client: process.communicate()[0].split() for client, process in running.items()}
    assert {client: process.returncode for client, process in running.items()} == dict.fromkeys(clients, 0)
    crashing.running.kill()
    with embedlog.open(tmp_path / "log") as log:
        for client in clients:
            found = Counter(
                int(record.value)
                for partition in range(3)
                for record in log.read(client, partition, follow=False)
            )
            assert set(map(int, acked[client])) == set(range(RECORDS))
            lost = set(range(RECORDS)) - set(found)
            assert not lost, f"{client}: {len(lost)} lost"
            if kind == "idempotent":
                doubled = {number: times for number, times in found.items() if times > 1}
                assert not doubled, f"{client}: {len(doubled)} doubled"
