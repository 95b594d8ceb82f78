"""`embedlog append`: lines in, records and acknowledgements out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import ROOT, Run, call, spawn

import embedlog


def values(log: Path, topic: str = "clicks") -> list[bytes | None]:
    with embedlog.open(log, mode="r") as reader:
        return [record.value for record in reader.read(topic)]


def test_lines_of_a_file(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\n\ntw\xffo\r\nlast")
    ran = run("append", "data", "empty", "in")
    assert ran.code == 0
    assert ran.out.startswith("empty: 4 records appended to 1 partition · 12 B in ")
    assert values(log, "empty") == [b"one", b"", b"tw\xffo\r", b"last"]


def test_lines_of_standard_input(log: Path, tmp_path: Path) -> None:
    code, out, err = call(["append", "data", "empty", "-q"], tmp_path, b"a\nb\n")
    assert (code, out, err) == (0, b"", b"")
    assert values(log, "empty") == [b"a", b"b"]


def test_empty_input_appends_nothing(log: Path, tmp_path: Path) -> None:
    assert call(["append", "data", "empty"], tmp_path) == (0, b"", b"")


def test_keys(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a::1\nb::2::3\n")
    assert run("append", "data", "empty", "in", "--key-separator", "::").code == 0
    with embedlog.open(log, mode="r") as reader:
        assert [(r.key, r.value) for r in reader.read("empty")] == [(b"a", b"1"), (b"b", b"2::3")]


def test_an_invalid_line_stops_the_append_and_reports_what_was_appended(
    run: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("a:1\nb\nc:3\n")
    ran = run("append", "data", "empty", "in", "--key-separator", ":")
    assert ran.code == 2
    assert ran.err == "line 2: there is no ':' between key and value; 1 record before it was appended\n"
    assert values(log, "empty") == [b"1"]


def test_a_misspelt_field_names_its_line_and_the_line_is_not_appended(
    run: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text('{"value":"a"}\n{"key":"k","val":"b"}\n{"value":"c"}\n')
    ran = run("append", "data", "empty", "in", "--json")
    assert ran.code == 2
    assert ran.err == "line 2: unknown field 'val' (did you mean 'value'?); 1 record before it was appended\n"
    assert values(log, "empty") == [b"a"]


def test_cat_json_and_append_json_are_inverse(run: Run, log: Path, tmp_path: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append("clicks", None, key=b"\xff", partition=1, headers=[("h", b"\xfe"), ("n", None)])
    lines = run("cat", "data", "clicks", "--json").out
    (tmp_path / "in").write_text(lines)
    assert run("append", "copy", "clicks", "in", "--json", "--create").code == 2  # one partition only
    assert run("topics", "create", "copy", "twice", "--partitions", "3").code == 0
    assert run("append", "copy", "twice", "in", "--json").code == 0
    copied = run("cat", "copy", "twice", "--json").out
    assert copied == lines.replace('"topic":"clicks"', '"topic":"twice"')


def test_a_chosen_partition_and_codec(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"value":"x","partition":0}\n{"value":"y"}\n')
    ran = run(
        "append", "data", "clicks", "in", "--json", "--partition", "2", "--compression", "gzip", "--ack"
    )
    assert (ran.code, ran.out) == (0, "ACK 2 10\nACK 2 11\n")
    dumped = run("dump", str(log / "clicks_2" / "00000000000.kafka"), "--json").objects
    assert dumped[-1]["codec"] == "gzip"


def test_create_makes_directory_and_topic_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("x\n")
    assert run("append", "new", "t", "in", "--create").code == 0
    assert run("append", "new", "t", "in", "--create", "--flush").code == 0
    assert values(tmp_path / "new", "t") == [b"x", b"x"]


def test_batches_respect_the_requested_size(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{n}\n" for n in range(25)))
    assert run("append", "data", "empty", "in", "--batch", "10").code == 0
    dumped = run("dump", str(log / "empty_0" / "00000000000.kafka"), "--json").objects
    assert [batch["records"] for batch in dumped] == [10, 10, 5]


@pytest.mark.parametrize("newline", [b"\n", b""])
def test_a_line_too_long_for_a_record(run: Run, log: Path, tmp_path: Path, newline: bytes) -> None:
    (tmp_path / "in").write_bytes(b"short\n" + b"x" * 3_000_000 + newline)
    ran = run("append", "data", "empty", "in")
    assert ran.code == 2
    assert "max_message_bytes" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.txt"], "nothing.txt cannot be read: No such file"),
        (["in", "--partition", "9"], "there is no 9"),
        (["in", "--key-separator", ""], "must not be empty"),
        (["in", "--compression", "best"], "invalid choice"),
        (["in", "--batch", "0"], "must be at least 1"),
        (["in", "--json", "--key-separator", ":"], "not allowed with"),
    ],
)
def test_mistakes(run: Run, log: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "in").write_text("x\n")
    ran = run("append", "data", "clicks", *arguments)
    assert ran.code == 2
    assert words in ran.err
    assert len(values(log)) == 30


def test_each_acknowledged_line_is_durable(log: Path, tmp_path: Path) -> None:
    with spawn(["append", "data", "empty", "--flush", "--ack"], tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(20):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            assert process.stdout.readline() == b"ACK 0 %d\n" % number
            with embedlog.open(log, mode="r") as reader:
                assert reader.offsets("empty")[0].flushed_offset == number + 1
        process.kill()
    with embedlog.open(log) as reopened:
        assert not reopened.recovery.clean
        assert [r.value for r in reopened.read("empty")] == [b"line %d" % n for n in range(20)]


def test_many_lines_at_once_are_acknowledged_in_order(log: Path, tmp_path: Path) -> None:
    given = b"".join(b"%d\n" % number for number in range(5000))
    code, out, err = call(["append", "data", "empty", "--flush", "--ack"], tmp_path, given)
    assert (code, err) == (0, b"")
    assert out.splitlines() == [b"ACK 0 %d" % number for number in range(5000)]


def test_ctrl_c_closes_the_log_cleanly(log: Path, tmp_path: Path) -> None:
    with spawn(["append", "data", "empty", "--ack"], tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr is not None and process.stderr.read() == b""
    with embedlog.open(log) as reopened:
        assert reopened.recovery.clean
        assert reopened.offsets("empty")[0].log_end_offset == 1


def test_ctrl_c_reaches_a_background_process() -> None:
    """A shell starts `make test &` with SIGINT ignored, which whatever the tests start would inherit."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}], check=True)"
    shown = [
        subprocess.run(
            ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", f"{first}; {start}"],
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first in ("pass", "import conftest")
    ]
    assert shown == ["False\n", "True\n"]


def test_recovery_is_reported(run: Run, log: Path, tmp_path: Path) -> None:
    with spawn(["append", "data", "empty", "--ack"], tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.readline()
        process.kill()
    with open(log / "empty_0" / "00000000000.kafka", "ab") as file:
        file.write(b"torn tail of a batch")
    (tmp_path / "in").write_text("y\n")
    ran = run("append", "data", "empty", "in")
    assert ran.code == 0
    assert "recovery  " in ran.err
    assert "empty 0: 20 B cut at offset 1 (" in ran.err
    assert values(log, "empty") == [b"x", b"y"]


def test_json_lines_name_their_partition(run: Run, log: Path, tmp_path: Path) -> None:
    lines = [{"value": str(n), "partition": n % 3} for n in range(9)] + [{"value": "free", "key": "k"}]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("append", "data", "clicks", "in", "--json").code == 0
    with embedlog.open(log, mode="r") as reader:
        for number in range(3):
            found = [r.value for r in reader.read("clicks", number, start=10)]
            assert found[:3] == [b"%d" % n for n in range(number, 9, 3)]
