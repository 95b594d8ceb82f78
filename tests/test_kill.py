"""kill -9 at random points over one directory: all acknowledged records are there, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults import open_log, partition_of

import embedlog
from embedlog.codec import encode_batch
from embedlog.errors import EmbedlogError

pytestmark = pytest.mark.plain

_APPENDER = """
import sys, embedlog
path, flush, start = sys.argv[1], sys.argv[2] == "flush", int(sys.argv[3])
log = embedlog.open(path, segment_bytes=20_000, flush_ms=20, index_interval_bytes=500, compression_type="lz4")
if "t" not in log.topics():
    log.create_topic("t")
number = log.offsets("t")[0].log_end_offset
assert number >= start, f"acknowledged up to {start}, the log ends at {number}"
while True:
    for at in ([log.append("t", b"%d" % number * 20, flush=flush)] if number % 3 else
               log.append_many("t", [b"%d" % n * 20 for n in range(number, number + 5)], flush=flush)):
        assert at.offset == number
        number += 1
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""

_READER = """
import sys, embedlog
path = sys.argv[1]
with embedlog.open(path, mode="r") as log:
    print("reading", flush=True)
    rounds = 0
    while True:
        expected = 0
        for record in log.read("t"):
            assert record.offset == expected, (record.offset, expected)
            assert record.value == b"%d" % expected * 20, record
            expected += 1
        rounds += 1
        print(rounds, expected, flush=True)
"""


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(process: subprocess.Popen[str], acks: int) -> int:
    """Kill it once it has acknowledged so often; the last acknowledgement that came through."""
    assert process.stdout is not None and process.stderr is not None
    last = 0
    for _ in range(acks):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        last = int(line)
    os.kill(process.pid, signal.SIGKILL)
    # The last line may be half: only what ends in a newline was acknowledged.
    whole = [line for line in process.stdout if line.endswith("\n")]
    process.communicate()
    return int(whole[-1]) if whole else last


@pytest.mark.parametrize("flush", ["flush", pytest.param("no flush", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_killed_twenty_times_loses_and_doubles_nothing(tmp_path: Path, flush: str) -> None:
    rng = random.Random(flush)
    path = tmp_path / "log"
    acknowledged = 0
    reader: subprocess.Popen[str] | None = None
    try:
        for round_ in range(20):
            process = run(_APPENDER, str(path), flush, str(acknowledged))
            acknowledged = max(kill_after(process, rng.randrange(1, 60)), acknowledged)
            if round_ == 0:
                reader = run(_READER, str(path))
        assert reader is not None and reader.stdout is not None and reader.stderr is not None
        assert reader.stdout.readline() == "reading\n"
        reader.kill()
        out, err = reader.communicate()
        assert "Traceback" not in err, err
        assert not out or int(out.split()[-1]) >= 0
    finally:
        if reader is not None:
            reader.kill()
            reader.communicate()
    with embedlog.open(path) as log:
        assert not log.recovery.clean
        assert log.recovery.damage == []
        records = list(log.read("t"))
        assert len(records) >= acknowledged > 100
        assert [record.offset for record in records] == list(range(len(records)))
        assert all(record.value == b"%d" % record.offset * 20 for record in records)
        assert log.append("t", b"goes on").offset == len(records)


def test_a_killed_reader_harms_no_other(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        for number in range(100):
            log.append("t", b"%d" % number * 20)
        reader = run(_READER, str(tmp_path / "log"))
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        assert reader.stdout.readline() == "1 100\n"
        reader.kill()
        reader.communicate()
        assert log.append("t", b"%d" % 100 * 20).offset == 100
    with embedlog.open(tmp_path / "log") as log:
        assert log.recovery.clean


def test_idempotent_retries_over_kills_are_no_duplicates(tmp_path: Path) -> None:
    """A producer that does not know whether its last batch landed sends it again."""
    code = """
import sys, embedlog
from embedlog.codec import encode_batch
log = embedlog.open(sys.argv[1], segment_bytes=5_000, flush_ms=5)
if "t" not in log.topics():
    log.create_topic("t")
sequence = int(sys.argv[2])
while True:
    row = (None, b"%d" % sequence, (), 1)
    batch = encode_batch([row], producer_id=9, producer_epoch=0, base_sequence=sequence)
    log.backend.append("t", 0, batch)
    sequence += 1
    sys.stdout.write(f"{sequence}\\n")
    sys.stdout.flush()
"""
    path = tmp_path / "log"
    rng = random.Random(7)
    sequence = 0
    for _ in range(8):
        process = run(code, str(path), str(sequence))
        sequence = max(kill_after(process, rng.randrange(2, 80)), sequence)
    with open_log(path) as log:
        found = [int(record.value or b"") for record in log.read("t")]
        assert found == list(range(len(found)))
        assert len(found) >= sequence
        with pytest.raises(EmbedlogError):
            partition_of(log).append(
                encode_batch(
                    [(None, b"gap", (), 1)], producer_id=9, producer_epoch=0, base_sequence=len(found) + 1
                )
            )
