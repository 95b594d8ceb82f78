"""`embedlog import`."""

from __future__ import annotations

from pathlib import Path

from cli_commands import Run
from old_formats import encode_messages_07

from embedlog.codec.message_set import encode_message_set


def test_a_directory_of_0_7(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "old" / "my_topic-0"
    source.mkdir(parents=True)
    (source / "00000000000000000000.kafka").write_bytes(encode_messages_07([b"one", b"two", b"three"]))
    ran = run("import", "data", "old")
    assert (ran.code, ran.err) == (0, "")
    assert ran.rows()[1] == ["my_topic", "0", "1", "41", "B", "3", "0", "0-2"]
    assert "3 records imported and durable in " in ran.out
    assert "byte positions" in ran.out
    assert run("cat", "data", "my_topic").out == "one\ntwo\nthree\n"
    again = run("import", "data", "old", "--json").objects
    assert [(each["records"], each["records_present"]) for each in again] == [(0, 3)]


def test_a_file_of_0_10_under_another_name(run: Run, tmp_path: Path) -> None:
    rows = [(b"k%d" % n, b"v%d" % n, (), 1_700_000_000_000 + n) for n in range(5)]
    (tmp_path / "00000000000000000000.log").write_bytes(encode_message_set(rows, 1))
    ran = run("import", "data", "00000000000000000000.log", "--topic", "renamed", "--compression", "zstd")
    assert ran.code == 0
    assert run("cat", "data", "renamed", "--format", "{key}={value}").out.split() == [
        f"k{n}=v{n}" for n in range(5)
    ]


def test_an_empty_partition_has_no_offsets(run: Run, tmp_path: Path) -> None:
    for name, held in (("t-0", encode_message_set([(None, b"v", (), 0)], 1)), ("t-1", b"")):
        (tmp_path / "old" / name).mkdir(parents=True)
        (tmp_path / "old" / name / "00000000000000000000.log").write_bytes(held)
    rows = run("import", "data", "old").rows()
    assert [(row[1], row[-1]) for row in rows[1:3]] == [("0", "0-0"), ("1", "-")]


def test_an_export_comes_back(run: Run, log: Path) -> None:
    assert run("export", "data", "for-kafka").code == 0
    assert run("import", "again", "for-kafka").code == 0
    assert run("cat", "again", "clicks", "--json").out == run("cat", "data", "clicks", "--json").out


def test_mistakes(run: Run, log: Path, tmp_path: Path) -> None:
    assert run("import", "new", "nothing").err == "nothing does not exist\n"
    assert not (tmp_path / "new").exists()
    (tmp_path / "foreign").mkdir()
    for arguments, words in (
        (["data", "foreign"], "holds no log files"),
        (["data", "data"], "is (in) the log"),
    ):
        ran = run("import", *arguments)
        assert ran.code == 2, arguments
        assert words in ran.err
        assert "Traceback" not in ran.err
