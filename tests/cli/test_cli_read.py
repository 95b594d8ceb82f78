"""`embedlog cat` and `embedlog tail`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cli_commands import Run, call, spawn

import embedlog


def numbers(out: str) -> list[int]:
    return [int(line.removeprefix("value ")) for line in out.splitlines()]


def test_cat_reads_partition_by_partition(run: Run, log: Path) -> None:
    expected = [*range(0, 30, 3), *range(1, 30, 3), *range(2, 30, 3)]
    assert numbers(run("cat", "data", "clicks").out) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--partition", "1"], [*range(1, 30, 3)]),
        (["--partition", "1", "--from", "8"], [25, 28]),
        (["--partition", "1", "--from-offset", "8"], [25, 28]),
        (["--partition", "1", "--from", "2", "--to", "4"], [7, 10]),
        (["--partition", "1", "--max-records", "2"], [1, 4]),
        (["--partition", "1", "--max-records", "0"], []),
        (["--partition", "1", "--from", "latest"], []),
        (["--from", "2023-11-14T22:13:45Z"], [27, 25, 28, 26, 29]),
        (["--to", "2023-11-14T22:13:22+00:00"], [0, 1]),
        (["--from", "2099-01-01"], []),
        (["--from", "-2"], [24, 27, 25, 28, 26, 29]),
        (["--from=-1"], [27, 28, 29]),
        (["--from", "-99", "--to", "-9"], [0, 1, 2]),
        (["--from", "-1h"], []),
        (["--to", "-1w", "--from", "-1"], [27, 28, 29]),
    ],
)
def test_from_here_to_there(run: Run, log: Path, arguments: list[str], expected: list[int]) -> None:
    ran = run("cat", "data", "clicks", *arguments)
    assert (ran.code, ran.err) == (0, "")
    assert numbers(ran.out) == expected


def test_json_and_formats(run: Run, log: Path) -> None:
    ran = run("cat", "data", "clicks", "--partition", "2", "--max-records", "1", "--json")
    assert ran.out == (
        '{"topic":"clicks","partition":2,"offset":0,"timestamp_ms":1700000002000,'
        '"timestamp_type":"CreateTime","key":"k2","value":"value 2","headers":[]}\n'
    )
    ran = run(
        "tail", "data", "clicks", "-n", "1", "--format", r"{partition}\t{offset:03}\t{timestamp}\t{key}"
    )
    assert ran.out == "2\t009\t2023-11-14T22:13:49.000Z\tk29\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "7"], "belongs to one partition: add --partition 0..2"),
        (["--to", "7"], "--to 7 is an offset"),
        (["--from", "soon"], "is none of: earliest"),
        (["--partition", "0", "--from", "11"], "clicks: offset 11 is outside 0..10; 'earliest' begins at 0"),
        (["--partition", "3"], "there is no 3"),
        (["--format", "{nothing}"], "--format has no field {nothing}"),
    ],
)
def test_mistakes(run: Run, log: Path, arguments: list[str], words: str) -> None:
    ran = run("cat", "data", "clicks", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_the_last_records_of_all_partitions_by_time(run: Run, log: Path) -> None:
    assert numbers(run("tail", "data", "clicks").out) == [*range(20, 30)]
    assert numbers(run("tail", "data", "clicks", "-n", "4", "--partition", "1").out) == [19, 22, 25, 28]
    assert run("tail", "data", "clicks", "-n", "0").out == ""
    assert numbers(run("tail", "data", "clicks", "-n", "99").out) == [*range(30)]
    assert numbers(run("tail", "data", "clicks", "--from", "8", "--partition", "0").out) == [24, 27]
    assert run("tail", "data", "empty").out == ""
    assert run("tail", "data", "clicks", "--partition", "3").code == 2


def test_tail_across_compaction_gaps(run: Run, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t", cleanup_policy="compact", segment_bytes=1024)
        for number in range(200):
            log.append("t", b"%d" % number, key=b"%d" % (number % 10 if number >= 5 else number + 100))
        log.compact("t")
        offsets = [record.offset for record in log.read("t")]
    ran = run("tail", "data", "t", "-n", str(len(offsets)), "--format", "{offset}")
    assert [int(line) for line in ran.out.splitlines()] == offsets


def test_bytes_pass_through_unchanged(log: Path, tmp_path: Path) -> None:
    value = bytes(range(256)).replace(b"\n", b"")
    with embedlog.open(log) as writer:
        writer.append("empty", value)
    assert call(["cat", "data", "empty"], tmp_path) == (0, value + b"\n", b"")


def test_null_values_are_empty_lines(log: Path, tmp_path: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append_many("empty", [(b"k", None), (b"k", b"1"), (b"k", b""), (b"k", None)])
    for arguments in ([], ["--format", "{value}"], ["--format", "{value:}"]):
        assert call(["cat", "data", "empty", *arguments], tmp_path) == (0, b"\n1\n\n\n", b"")
    assert call(["cat", "data", "empty", "--max-records", "2"], tmp_path) == (0, b"\n1\n", b"")


def test_json_of_many_records(log: Path, tmp_path: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append_many("empty", [b"%d" % number for number in range(1_000)])
    code, out, err = call(["cat", "data", "empty", "--json"], tmp_path)
    assert (code, err) == (0, b"")
    assert [json.loads(line)["value"] for line in out.splitlines()] == [
        str(number) for number in range(1_000)
    ]


def test_records_before_damage_are_printed_first(run: Run, log: Path) -> None:
    path = log / "clicks_1" / "00000000000.kafka"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    ran = run("cat", "data", "clicks", "--partition", "1")
    assert ran.code == 1
    assert numbers(ran.out) == [*range(1, 27, 3)]
    assert ran.err.startswith("DAMAGED  ")
    assert "embedlog verify data" in ran.err


def test_follow_across_processes_until_ctrl_c(log: Path, tmp_path: Path) -> None:
    with spawn(["tail", "-f", "-n", "1", "data", "clicks"], tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"value 29\n"
        with embedlog.open(log) as writer:
            for number in range(30, 36):
                writer.append("clicks", b"value %d" % number, partition=number % 3)
                assert process.stdout.readline() == b"value %d\n" % number
            writer.create_partitions("clicks", 4)
            writer.append("clicks", b"value 36", partition=3)
            assert process.stdout.readline() == b"value 36\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b""


def test_follow_goes_on_in_a_topic_that_is_made_again(log: Path, tmp_path: Path) -> None:
    """From its start: with more partitions and fewer records, and with fewer partitions and more records. It
    would end if it looked while there is none, so it is stopped meanwhile."""
    with spawn(["tail", "-f", "-n", "1", "data", "clicks"], tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"value 29\n"
        with embedlog.open(log) as writer:
            for partitions, count in ((4, 2), (1, 40)) * 3:
                process.send_signal(signal.SIGSTOP)
                writer.delete_topic("clicks")
                writer.create_topic("clicks", partitions)
                process.send_signal(signal.SIGCONT)
                for number in range(count):
                    writer.append("clicks", b"new %d" % number, partition=0)
                for number in range(count):
                    assert process.stdout.readline() == b"new %d\n" % number
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b""


def test_follow_ends_after_max_records(log: Path, tmp_path: Path) -> None:
    arguments = ["tail", "-f", "data", "clicks", "--from", "latest", "--max-records", "2", "--json"]
    with spawn(arguments, tmp_path) as process, embedlog.open(log) as writer:
        assert process.stdout is not None
        # It may not have looked for the end yet: append until it has seen two.
        while process.poll() is None:
            writer.append("clicks", b"x", partition=1)
        assert len(process.stdout.read().splitlines()) == 2
        assert process.returncode == 0


def test_follow_ends_when_its_pipe_is_closed(log: Path, tmp_path: Path) -> None:
    with spawn(["tail", "-f", "data", "clicks"], tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"value 20\n"
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr.read() == b""


def test_a_closed_pipe_ends_cat_quietly(log: Path, tmp_path: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append_many("empty", [b"x" * 1000] * 5000)
    read, write = os.pipe()
    with spawn(["cat", "data", "empty"], tmp_path, stdout=write) as process:
        os.close(write)
        assert os.read(read, 100) == b"x" * 100
        os.close(read)
        assert process.wait() == 0
        assert process.stderr is not None and process.stderr.read() == b""


def test_reading_while_another_process_writes(run: Run, log: Path, tmp_path: Path) -> None:
    with spawn(["append", "data", "empty", "--ack", "--batch", "7"], tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(50):
            process.stdin.write(b"value %d\n" % number)
            process.stdin.flush()
            process.stdout.readline()
            if number % 10 == 9:
                assert numbers(run("cat", "data", "empty").out) == [*range(number + 1)]
        process.stdin.close()
        assert process.wait() == 0


def test_a_pipe_into_append(log: Path, tmp_path: Path) -> None:
    with spawn(["cat", "data", "clicks", "--json"], tmp_path) as cat:
        appended = call(["topics", "create", "other", "clicks", "--partitions", "3"], tmp_path)
        assert appended[0] == 0
        with spawn(["append", "other", "clicks", "--json"], tmp_path, stdin=cat.stdout) as append:
            assert append.stdout is not None
            assert append.stdout.read().startswith(b"clicks: 30 records appended to 3 partitions")


def test_kcat_format(run: Run, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.append("t", b"v", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp_ms=1_000)
        log.append("t", None, timestamp_ms=2_000)
    ran = run("cat", "data", "t", "--kcat-format", r"%t %p %o %T %k/%K %s=%v/%S [%h] 100%%\x41\t|\n")
    assert ran.out == (
        "t 0 0 1000 k/1 v=v/1 [a=1,b=NULL] 100%A\t|\n"  # as kcat
        "t 0 1 2000 /-1 =/-1 [] 100%A\t|\n"
    )
    code, raw, _ = call(["cat", "data", "t", "--kcat-format", "%R"], tmp_path)
    assert (code, raw) == (0, b"\0\0\0\x01\xff\xff\xff\xff")
    ran = run("cat", "data", "t", "--kcat-format", "%k %z")
    assert (ran.code, "'%z'" in ran.err, "%k" in ran.err) == (2, True, True)


def test_a_member_of_a_group_goes_on(run: Run, log: Path) -> None:
    command = ["cat", "data", "clicks", "--group", "billing"]
    first = numbers(run(*command, "--max-records", "7").out)
    assert len(first) == 7
    rest = numbers(run(*command).out)
    assert sorted(first + rest) == [*range(30)]
    assert run(*command).out == ""
    with embedlog.open(log) as opened:
        assert opened.group("billing").describe().lag == 0
        opened.append("clicks", b"value 30")
    with spawn(["tail", "-f", "data", "clicks", "--group", "billing"], log.parent) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"value 30\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


@pytest.mark.parametrize("more", [["--partition", "0"], ["--from", "-1h"], ["--to", "5"]])
def test_a_group_has_its_own_place(run: Run, log: Path, more: list[str]) -> None:
    assert run("cat", "data", "clicks", "--group", "g", *more).code == 2
    assert run("tail", "data", "clicks", "--group", "g").code == 2
