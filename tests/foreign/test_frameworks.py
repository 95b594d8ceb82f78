"""Quix Streams with exactly-once, killed again and again, and FastStream, against `embedlog serve`.

They run in an environment of their own, which `make test-foreign` makes: they pin their clients.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import embedlog
from embedlog import Log

HERE = Path(__file__).parent / "frameworks"
PYTHON = HERE / ".venv" / "bin" / "python"
HANGS_S = 240
KILLS, LINES_AT_ONCE, KEYS = 4, 400, 7


def counts(log: Log) -> list[tuple[str, int]]:
    """What Quix Streams has committed."""
    found = []
    for partition in log.offsets("quix-counts"):
        for record in log.read("quix-counts", partition, isolation_level="read_committed"):
            said = json.loads(record.value or b"")
            found.append((said["line"], said["count"]))
    return found


@pytest.mark.timeout(2 * HANGS_S)
def test_quix_streams_counts_exactly_once(bootstrap: str, tmp_path: Path) -> None:
    dice = random.Random()

    def start() -> subprocess.Popen[bytes]:
        command = [PYTHON, HERE / "quix_count.py", bootstrap, tmp_path / "state"]
        with open(tmp_path / "said", "ab") as said:
            return subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)

    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("quix-lines", partitions=2)
        log.create_topic("quix-counts", partitions=2)
        app = start()
        try:
            fed = 0
            for _ in range(KILLS):
                numbers = range(fed, fed + LINES_AT_ONCE)
                log.append_many("quix-lines", [(b"key %d" % (n % KEYS), b"%d" % n) for n in numbers])
                fed += LINES_AT_ONCE
                time.sleep(dice.uniform(1, 5))  # how far it gets differs, and does not matter
                assert app.poll() is None, (tmp_path / "said").read_text()
                app.kill()
                app.wait()
                app = start()
            while len(counts(log)) < fed:
                assert app.poll() is None, (tmp_path / "said").read_text()
                time.sleep(0.2)
            found = counts(log)
        finally:
            app.kill()
            app.wait()
    assert Counter(line for line, _ in found) == Counter(str(number) for number in range(fed))
    of_key = defaultdict(list)
    for line, count in found:
        of_key[int(line) % KEYS].append(count)
    assert all(sorted(each) == list(range(1, len(each) + 1)) for each in of_key.values()), "state was lost"


def test_faststream(bootstrap: str) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic("faststream-in", partitions=2)
        log.create_topic("faststream-out", partitions=2)
    command = list(map(str, [PYTHON, HERE / "faststream_chain.py", bootstrap, 50]))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert ran.returncode == 0, ran.stderr
    assert str(list(range(1, 51))) in ran.stdout
