"""`embedlog dump`: prints single files without opening the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_commands import Run
from old_formats import encode_messages_07

import embedlog
from embedlog.codec import encode_batch, encode_control_batch
from embedlog.codec.message_set import encode_message_set
from embedlog.index import OFFSET_ENTRY


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment of five batches of ten records, with its index."""
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t", index_interval_bytes=0)
        for first in range(0, 50, 10):
            log.append_many("t", [b"value %d" % number for number in range(first, first + 10)])
    return tmp_path / "data" / "t_0" / "00000000000.kafka"


def test_batches(run: Run, segment: Path) -> None:
    ran = run("dump", str(segment))
    assert ran.code == 0
    rows = ran.rows()
    assert rows[0] == ["byte", "offsets", "records", "size", "codec", "newest", "record", "epoch"]
    assert [row[1:3] for row in rows[1:6]] == [[f"{n}-{n + 9}", "10"] for n in range(0, 50, 10)]
    assert ran.out.endswith(f"5 batches · {segment.stat().st_size:,} bytes · next offset 50\n")
    found = run("dump", str(segment), "--json").objects
    assert [batch["base_offset"] for batch in found] == [0, 10, 20, 30, 40]
    assert found[1]["pos"] == found[0]["size"]
    assert (found[0]["magic"], found[0]["codec"], found[0]["producer_id"]) == (2, "none", -1)


def test_dump_of_a_single_batch(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000.kafka"
    path.write_bytes(encode_batch([(None, b"x", (), 0)]) + b"?")
    ran = run("dump", str(path))
    assert ran.out.splitlines()[-2].endswith(" 1 byte: DAMAGED: a batch is cut short")
    assert ran.out.endswith("1 batch · 70 bytes · next offset 1 · 1 damaged\n")


def test_records(run: Run, segment: Path) -> None:
    out = run("dump", str(segment), "--records").out
    assert out.count("null  value ") == 50
    found = run("dump", str(segment), "--records", "--json").objects
    assert [(each["offset"], each["value"]) for each in found] == [(n, f"value {n}") for n in range(50)]


def test_control_batches_and_odd_bytes(run: Run, tmp_path: Path) -> None:
    rows = [(b"\xff\x1b", b"x" * 100, (("h", b"v"),), 5)]
    batch = encode_batch(rows, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    marker = encode_control_batch(commit=True, producer_id=7, producer_epoch=1, timestamp_ms=6)
    (tmp_path / "00000000000.log").write_bytes(bytes(batch) + bytes(marker))
    ran = run("dump", "00000000000.log", "--records")
    assert ran.code == 0
    assert "producer 7:1 sequence 3 · transactional" in ran.out
    assert "\\xff\\x1b  " + "x" * 60 + "… (100 bytes)  h=v" in ran.out
    assert "control: " in ran.out


def test_dump_continues_after_damage(run: Run, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    found = run("dump", str(segment), "--json").objects
    data[found[1]["pos"] + 80] ^= 1
    segment.write_bytes(data)
    ran = run("dump", str(segment))
    assert ran.code == 1
    assert f"{found[1]['pos']:>12,}  {found[1]['size']:,} bytes: DAMAGED: the CRC does not match" in ran.out
    assert ran.out.endswith("4 batches · " + f"{len(data):,} bytes · next offset 50 · 1 damaged\n")
    after = run("dump", str(segment), "--json").objects
    assert after[1] == {
        "pos": found[1]["pos"],
        "size": found[1]["size"],
        "problem": "DAMAGED: the CRC does not match the bytes",
    }
    assert [each["base_offset"] for each in after[2:]] == [20, 30, 40]


def test_a_torn_and_a_zeroed_tail(run: Run, segment: Path) -> None:
    data = segment.read_bytes()
    segment.write_bytes(data[:-5])
    ran = run("dump", str(segment))
    assert ran.code == 1
    assert "DAMAGED: a batch is cut short" in ran.out
    segment.write_bytes(data + bytes(5000))
    ran = run("dump", str(segment))
    assert ran.code == 0
    assert "5,000 bytes: zeros to the end" in ran.out


def test_index_entries_are_checked_against_the_segment(run: Run, segment: Path) -> None:
    index = segment.with_suffix(".index")
    ran = run("dump", str(index))
    assert ran.code == 0
    assert ran.rows()[0] == ["offset", "byte"]
    assert ran.out.endswith("4 entries\n")
    found = run("dump", str(index), "--json").objects
    assert [each["offset"] for each in found] == [19, 29, 39, 49]
    assert all(each["problem"] is None for each in found)
    index.write_bytes(index.read_bytes() + OFFSET_ENTRY.pack(60, 7) + OFFSET_ENTRY.pack(0, 0))
    ran = run("dump", str(index))
    assert ran.code == 1
    assert "no batch begins there" in ran.out
    assert "5 entries · 1 wrong" in ran.out
    segment.unlink()
    assert "no segment beside it" in run("dump", str(index)).out


def test_time_index_and_producer_snapshots(run: Run, segment: Path, log: Path) -> None:
    ran = run("dump", str(segment.with_suffix(".timeindex")), "--json")
    assert ran.code == 0
    assert all(each["timestamp_ms"] > 0 for each in ran.objects)
    assert "largest timestamp so far" in run("dump", str(segment.with_suffix(".timeindex"))).out
    snapshot = segment.parent / "00000000050.snapshot"
    from embedlog.storage.producer_state import ProducerState

    snapshot.write_bytes(ProducerState().encode())
    assert run("dump", str(snapshot)).out.endswith("0 producers\n")
    snapshot.write_bytes(b"nonsense")
    ran = run("dump", str(snapshot))
    assert (ran.code, ran.out) == (1, "")
    (segment.parent / "x.txnindex").write_bytes(b"")
    assert run("dump", str(segment.parent / "x.txnindex")).out.endswith("0 aborted transactions\n")


def test_older_formats(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(encode_message_set([(b"k", b"v", (), 5)], 1))
    ran = run("dump", "a.log", "--records")
    assert ran.code == 0
    assert "before Kafka 0.11" in ran.out
    assert "k  v" in ran.out
    assert run("dump", "a.log", "--json").objects[0]["magic"] == 1
    (tmp_path / "b.kafka").write_bytes(encode_messages_07([b"one", b"two"]))
    assert "Kafka 0.7" in run("dump", "b.kafka").out
    assert [each["value"] for each in run("dump", "b.kafka", "--json").objects] == ["one", "two"]


def test_dump_refuses_foreign_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else, and long enough to be looked at " * 10)
    (tmp_path / "empty.kafka").write_bytes(b"")
    (tmp_path / "zeros.kafka").write_bytes(bytes(100))
    assert run("dump", "text").code == 2
    assert "no format that is known" in run("dump", "text").err
    assert run("dump", "nothing").err == "nothing cannot be read: No such file or directory\n"
    assert run("dump", ".").code == 2
    assert (run("dump", "empty.kafka").code, run("dump", "zeros.kafka").code) == (0, 0)
