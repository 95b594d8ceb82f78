"""`embedlog topics` and `embedlog stats`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_commands import Run, spawn

import embedlog
from embedlog.codec import LOOPS_IMPLEMENTATION, checksum_implementation


def test_list(run: Run, log: Path) -> None:
    head, clicks, empty = run("topics", "list", "data").rows()
    assert head == ["topic", "partitions", "offsets", "size", "settings"]
    assert clicks[:3] == ["clicks", "3", "30"]
    assert clicks[-1] == "compression_type=zstd"
    assert empty == ["empty", "1", "0", "0", "B"]
    found = run("topics", "list", "data", "--json").objects
    assert [topic["topic"] for topic in found] == ["clicks", "empty"]
    assert found[0]["settings"] == {"compression_type": "zstd"}
    assert found[0]["offsets"] == 30
    assert found[0]["bytes"] == sum(path.stat().st_size for path in log.glob("clicks_*/00000000000.kafka"))


def test_list_of_a_log_without_topics(run: Run, tmp_path: Path) -> None:
    embedlog.open(tmp_path / "data").close()
    ran = run("topics", "list", "data")
    assert (ran.code, ran.out) == (0, "no topics yet; embedlog topics create data NAME   makes one\n")
    assert run("topics", "list", "data", "--json").out == ""
    assert run("stats", "data").out == "no topics yet\n"


def test_create(run: Run, tmp_path: Path) -> None:
    ran = run(
        "topics", "create", "new", "t", "--partitions", "2", "--config", "retention.ms=86400000",
        "--config", "cleanup_policy=compact, delete", "--layout", "kafka",
    )  # fmt: skip
    assert ran.out == "created t: 2 partitions, retention_ms=86400000 cleanup_policy=compact,delete\n"
    assert (tmp_path / "new" / "t-1" / "00000000000000000000.log").exists()
    with embedlog.open(tmp_path / "new", mode="r") as log:
        assert log.describe_topic("t").settings == {
            "retention_ms": 86_400_000,
            "cleanup_policy": "compact,delete",
        }


def test_create_mistakes(run: Run, log: Path) -> None:
    for arguments, words in (
        (["clicks"], "exists already"),
        (["../x"], "cannot name a topic"),
        (["t", "--config", "retention=5"], "did you mean 'retention_ms'?"),
        (["t", "--config", "retention_ms"], "write name=value"),
        (["t", "--config", "retention_ms=long"], "must be int"),
        (["t", "--partitions", "0"], "at least 1"),
        (["t", "--replication-factor", "0"], "at least 1"),
        (["t", "--replication-factor", "2"], "embedlog keeps one copy"),
        (["t", "--layout", "kafka"], "has the layout 'classic'"),
    ):
        ran = run("topics", "create", "data", *arguments)
        assert ran.code == 2, arguments
        assert words in ran.err
    assert "topic" not in run("topics", "list", "data", "--json").objects[0]["settings"]


def test_topic_changes_are_reported_in_json(run: Run, log: Path) -> None:
    ran = run("topics", "create", "data", "t", "--partitions", "2", "--config", "flush_ms=5", "--json")
    created = ran.objects[0]
    assert len(created.pop("topic_id")) == 22
    assert created == {
        "topic": "t",
        "partitions": 2,
        "replication_factor": 1,
        "settings": {"flush_ms": 5},
        "internal": False,
        "created": True,
    }
    again = run("topics", "create", "data", "t", "--if-not-exists", "--json").objects[0]
    assert (again["partitions"], again["created"]) == (2, False)
    assert (
        run("topics", "create", "data", "t", "--if-not-exists").out
        == "there is t: 2 partitions, flush_ms=5\n"
    )
    altered = run("topics", "alter", "data", "t", "--config", "segment_ms=7", "--partitions", "3", "--json")
    assert altered.objects[0]["settings"] == {"flush_ms": 5, "segment_ms": 7}
    assert altered.objects[0]["partitions"] == 3
    listed = {topic["topic"]: topic for topic in run("topics", "list", "data", "--json").objects}
    deleted = run("topics", "delete", "data", "clicks", "--json").objects
    assert deleted == [{**listed["clicks"], "deleted": True}]
    assert run("topics", "delete", "data", "clicks", "--json").out == ""


def test_describe(run: Run, log: Path) -> None:
    ran = run("topics", "describe", "data", "clicks")
    lines = ran.out.splitlines()
    assert lines[0].startswith("clicks   id ")
    assert lines[2].split() == ["compression_type", "zstd"]
    assert [line.split()[:5] for line in lines[-3:]] == [
        ["0", "0", "10", "0", "1"],
        ["1", "0", "10", "0", "1"],
        ["2", "0", "10", "0", "1"],
    ]
    assert "default" in run("topics", "describe", "data", "clicks", "--all-settings").out
    found = run("topics", "describe", "data", "--json").objects
    assert [topic["topic"] for topic in found] == ["clicks", "empty"]
    assert found[0]["effective_settings"]["flush_ms"] == 1000
    assert found[0]["partitions"][2]["log_end_offset"] == 10
    assert run("topics", "describe", "data", "other").code == 2


def test_alter(run: Run, log: Path) -> None:
    ran = run("topics", "alter", "data", "clicks", "--config", "flush.messages=1", "--partitions", "5")
    assert ran.out == "altered clicks: 5 partitions, compression_type=zstd flush_messages=1\n"
    ran = run(
        "topics", "alter", "data", "clicks", "--default", "compression_type", "--default", "flush.messages"
    )
    assert ran.out == "altered clicks: 5 partitions, all settings have their defaults\n"
    assert "nothing to alter" in run("topics", "alter", "data", "clicks").err
    assert "must be larger" in run("topics", "alter", "data", "clicks", "--partitions", "2").err


def test_delete(run: Run, log: Path) -> None:
    ran = run("topics", "delete", "data", "clicks")
    assert ran.code == 0
    assert ran.out.startswith("deleted clicks: 3 partitions, 30 offsets, ")
    assert [topic["topic"] for topic in run("topics", "list", "data", "--json").objects] == ["empty"]
    assert run("topics", "delete", "data", "clicks").code == 2


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"yes\n", 0)])
def test_delete_asks_for_confirmation_on_a_terminal(
    run: Run, log: Path, tmp_path: Path, answer: bytes, code: int
) -> None:
    """The question goes to standard error: standard output is the answer's."""
    terminal, typed = os.openpty()
    with spawn(
        ["topics", "delete", "data", "clicks", "--json"], tmp_path, stdin=typed, stdout=typed
    ) as asked:
        assert asked.stderr is not None
        assert asked.stderr.read(7) == b"Delete "
        os.write(terminal, answer)
        assert asked.stderr.read().endswith(b"" if code == 0 else b"nothing was deleted\n")
        assert asked.wait() == code
    os.close(typed)
    os.close(terminal)
    left = [topic["topic"] for topic in run("topics", "list", "data", "--json").objects]
    assert left == (["clicks", "empty"] if code else ["empty"])


def test_stats_show_disk_usage_and_its_limit(run: Run, log: Path) -> None:
    assert " on disk · " in run("stats", "data").out
    with embedlog.open(log, max_bytes=10_000_000):
        assert " on disk, of 10.0 MB (max_bytes) · " in run("stats", "data").out


def test_stats(run: Run, log: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append_many("clicks", [b'{"page": "/", "user": "somebody"}'] * 2000, partition=0)
    found = run("stats", "data", "--json").objects
    assert [(each["topic"], each["partition"]) for each in found] == [
        ("clicks", 0),
        ("clicks", 1),
        ("clicks", 2),
        ("empty", 0),
    ]
    assert found[0]["log_end_offset"] == 2010
    assert found[0]["codecs"] == ["zstd"]
    assert found[0]["sampled_raw_bytes"] > 10 * found[0]["sampled_bytes"]
    assert (found[1]["oldest_timestamp_ms"], found[1]["newest_timestamp_ms"]) == (
        1_700_000_001_000,
        1_700_000_028_000,
    )
    assert found[3]["newest_timestamp_ms"] == -1
    rows = run("stats", "data").rows()
    assert rows[0] == ["topic", "partitions", "offsets", "size", "ratio", "oldest", "newest"]
    assert rows[1][:3] == ["clicks", "3", "2,030"]
    assert rows[3][:3] == ["total", "4", "2,030"]
    rows = run("stats", "data", "clicks", "--partitions").rows()
    assert rows[1][:4] == ["clicks", "0", "2,010", "1"]


def test_stats_build(run: Run) -> None:
    facts = run("stats", "--build", "--json").objects[0]
    assert facts["embedlog"] == embedlog.__version__
    assert (facts["loops"], facts["checksum"]) == (LOOPS_IMPLEMENTATION, checksum_implementation())
    assert facts["zstandard"]
    assert "checksum" in run("stats", "--build").out
    assert run("stats").code == 2


LONG = "a-topic.with-a-long-name." + "x" * 60 + ".events.v2"


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_tables_fit_the_terminal(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    run("topics", "create", "data", LONG, "--config", "retention_ms=5", "--config", "compression_type=zstd")
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (
        ["topics", "list", "data"],
        ["stats", "data"],
        ["stats", "data", "--partitions"],
        ["topics", "describe", "data"],
    ):
        out = run(*command).out
        assert max(len(line) for line in out.splitlines() if "   id " not in line) <= columns, out


def test_stats_on_a_narrow_terminal(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a topic: the name loses its middle, and what can be spared is left out."""
    run("topics", "create", "data", LONG)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("stats", "data").out.splitlines()
    assert lines[0].split() == ["topic", "partitions", "offsets", "size", "oldest", "newest"]
    assert [line.split()[0] for line in lines[1:5]] == ["a-topic.wit…x.events.v2", "clicks", "empty", "total"]
    assert lines[2].endswith(2 * "  14 Nov  2023") or lines[2].endswith(2 * "  15 Nov  2023")
    lines = run("stats", "data", "--partitions").out.splitlines()
    assert lines[0].split() == ["topic", "partition", "offsets", "size", "oldest", "newest"]
    assert len(lines) == 9
    monkeypatch.setenv("COLUMNS", "120")
    lines = run("stats", "data").out.splitlines()
    assert lines[0].split() == ["topic", "partitions", "offsets", "size", "ratio", "oldest", "newest"]
    assert lines[1].startswith("a-topic.with-a-long-name.xx…xx")
    monkeypatch.delenv("COLUMNS")
    assert LONG in run("stats", "data").out
