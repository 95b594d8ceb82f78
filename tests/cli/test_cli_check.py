"""`embedlog verify`, `repair`, `compact`, `backup` and `export`."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from cli_commands import Run
from encoding import encode_values

import embedlog
from embedlog.codec import HEADER_SIZE, crc32c
from embedlog.codec.record_batch import CRC_POS


@pytest.fixture
def damaged(log: Path) -> Path:
    """The log, with a byte of the sixth batch of clicks 1 flipped."""
    path = log / "clicks_1" / "00000000000.kafka"
    data = bytearray(path.read_bytes())
    with embedlog.open(log, mode="r") as reader:
        size = reader.backend.fetch("clicks", 1, 5, 1).pos
    data[size + 70] ^= 4
    path.write_bytes(data)
    return log


def test_a_healthy_log(run: Run, log: Path) -> None:
    ran = run("verify", "data", "--deep")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("4 segments, ")
    assert ran.out.endswith("no damage found\n")
    (summary,) = run("verify", "data", "clicks", "1", "--json").objects
    assert (summary["ok"], summary["records"], summary["segments"]) == (True, 10, 1)
    assert run("verify", "data", "nope").code == 2
    assert run("verify", "data", "clicks", "3").code == 2


def test_bytes_behind_the_last_batch_are_no_damage(run: Run, log: Path) -> None:
    with open(log / "clicks_1" / "00000000000.kafka", "ab") as file:
        file.write(b"\xff" * 64)
    ran = run("verify", "data", "clicks", "1")
    assert ran.code == 0
    first, *_, last = ran.out.splitlines()
    assert first.startswith("left over  clicks_1/00000000000.kafka: 64 B, after the last batch: ")
    assert last.startswith("no damage found")
    leftover, summary = run("verify", "data", "clicks", "1", "--json").objects
    assert (leftover["kind"], leftover["size"]) == ("leftover", 64)
    assert (summary["ok"], summary["findings"]) == (True, 0)


def test_damage_is_located_and_repaired(run: Run, damaged: Path) -> None:
    ran = run("verify", "data")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0].startswith("DAMAGED  clicks_1/00000000000.kafka at byte ")
    assert lines[1].strip() == "1 record cannot be read: offsets 5-5"
    assert lines[2].strip().startswith("embedlog repair data clicks 1 ")
    found = run("verify", "data", "--json").objects
    assert (found[0]["kind"], found[0]["first_offset"], found[0]["records_lost"]) == ("damage", 5, 1)
    assert found[-1]["ok"] is False

    before = {path: path.read_bytes() for path in damaged.rglob("*.kafka")}
    ran = run("repair", "data", "clicks", "1", "--dry-run")
    assert ran.code == 1
    assert "would be set aside" in ran.out
    assert ran.out.endswith("nothing was changed\n")
    assert {path: path.read_bytes() for path in damaged.rglob("*.kafka")} == before

    ran = run("repair", "data", "clicks", "1")
    assert ran.code == 0
    assert "gone     1 record: offsets 5-5" in ran.out
    assert "set aside in clicks_1/" in ran.out
    assert run("repair", "data", "clicks", "1").out == "clicks 1: nothing to repair\n"
    assert run("repair", "data", "clicks", "1", "--json").objects[0]["changed"] is False
    assert run("verify", "data").code == 0
    out = run("cat", "data", "clicks", "--partition", "1", "--format", "{offset}").out
    assert out.split() == ["0", "1", "2", "3", "4", "6", "7", "8", "9"]


def test_advice_about_undecodable_records_works(run: Run, log: Path) -> None:
    with embedlog.open(log) as opened:
        batch = encode_values([b"a" * 40], 5)
        batch[HEADER_SIZE] = 0x7E  # the record says it is shorter than it is
        struct.pack_into(">I", batch, CRC_POS, crc32c(bytes(batch[CRC_POS + 4 :])))
        opened.backend.append("clicks", 1, batch)
        opened.append("clicks", b"behind it", partition=1)
    read = ("cat", "data", "clicks", "--partition", "1", "--format", "{offset}")
    ran = run(*read)
    assert ran.code == 1
    assert "embedlog verify data --deep   tells how much" in ran.err

    assert run("verify", "data").out.endswith("no damage found; --deep also decodes each record\n")
    ran = run("verify", "data", "--deep")
    assert ran.code == 1
    assert "1 record cannot be read: offsets 10-10\n" in ran.out
    assert "embedlog repair data clicks 1 " in ran.out

    assert "gone     1 record: offsets 10-10" in run("repair", "data", "clicks", "1").out
    assert run("verify", "data", "--deep").code == 0
    assert run(*read).out.split() == [*map(str, range(10)), "11"]


def test_repair_mistakes(run: Run, log: Path) -> None:
    assert run("repair", "data", "nope", "0").code == 2
    assert run("repair", "data", "clicks", "7").code == 2
    assert run("repair", "data", "clicks").code == 2
    assert run("repair", "nowhere", "clicks", "0").code == 2


def test_compact(run: Run, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("kept", segment_bytes=1024)
        log.create_topic("changing", segment_bytes=1024, cleanup_policy="compact")
        for topic in ("kept", "changing"):
            for number in range(200):
                log.append(topic, b"%d" % number, key=b"k%d" % (number % 5))
    ran = run("compact", "data", "kept")
    assert ran.code == 2
    assert "kept has cleanup_policy delete" in ran.err
    assert run("cat", "data", "kept").out.count("\n") == 200
    (freed,) = run("compact", "data", "--json").objects
    assert freed["topic"] == "changing"  # how much depends on what the background had compacted before
    left = run("cat", "data", "changing").out.split()
    assert left[-5:] == ["195", "196", "197", "198", "199"]
    assert len(left) < 50


def test_compact_with_nothing_to_do(run: Run, log: Path) -> None:
    assert run("compact", "data").out == "no topic has cleanup_policy=compact\n"
    assert run("compact", "data", "nope").code == 2


def test_a_backup_is_described_in_json(run: Run, log: Path, tmp_path: Path) -> None:
    with embedlog.open(log, segment_bytes=1024) as writer:
        for _ in range(20):
            writer.append("empty", bytes(200))
    for command, layout in (("backup", "classic"), ("export", "kafka")):
        told = run(command, "data", command, "--json").objects[0]
        files = [path for path in (tmp_path / command).rglob("*") if path.is_file()]
        assert told.pop("seconds") > 0
        assert told == {
            "destination": str(tmp_path / command),
            "layout": layout,
            "partitions": 4,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "linked_bytes": sum(path.stat().st_size for path in files if path.stat().st_nlink > 1),
        }
        assert told["linked_bytes"] > 0
    assert (
        run("backup", "data", "data/inside").err == f"{log}/inside lies in the log: name a place outside it\n"
    )


def test_a_backup_beside_an_application_that_shares_the_log(run: Run, log: Path, tmp_path: Path) -> None:
    with embedlog.open(log, shared=True) as shared:
        shared.append("clicks", b"not flushed yet")
        told = run("backup", "data", "copy", "--json").objects[0]
        assert (told["partitions"], told["layout"]) == (4, "classic")
        assert run("cat", "copy", "clicks", "--json").out == run("cat", "data", "clicks", "--json").out
        assert "a backup needs a new directory" in run("backup", "data", "copy").err
        ran = run("export", "data", "for-kafka")
        assert (ran.code, (tmp_path / "for-kafka").exists()) == (2, False)


def test_backup_and_export(run: Run, log: Path, tmp_path: Path) -> None:
    ran = run("backup", "data", "copy")
    assert ran.code == 0
    assert ran.out.startswith("copy: 4 partitions, ")
    assert run("cat", "copy", "clicks", "--json").out == run("cat", "data", "clicks", "--json").out
    assert run("export", "data", "for-kafka").code == 0
    assert (tmp_path / "for-kafka" / "clicks-2" / "00000000000000000000.log").exists()
    assert run("export", "for-kafka", "back", "--layout", "classic").code == 0
    assert run("cat", "back", "clicks", "--json").out == run("cat", "data", "clicks", "--json").out
    again = run("backup", "data", "copy")
    assert again.code == 2
    assert "a backup needs a new directory" in again.err
