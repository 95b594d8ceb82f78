"""The command line's frame: help, exit codes, one-line errors, a locked directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import Run, call, environment, spawn
from rounds import first_is_quick

import embedlog
from embedlog.cli import COMMANDS, main

ALL = list(COMMANDS)


def test_version(run: Run) -> None:
    assert run("--version").out == f"embedlog {embedlog.__version__}\n"


def test_without_a_command_help_is_shown_and_the_exit_code_is_2(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    for name in COMMANDS:
        assert name in ran.err


def test_help_goes_to_standard_output(run: Run) -> None:
    ran = run("--help")
    assert (ran.code, ran.err) == (0, "")
    assert "writer's lock" in ran.out


@pytest.mark.parametrize("name", [name for name in ALL if name != "demo"])
def test_each_command_says_whether_it_needs_the_lock(run: Run, name: str) -> None:
    ran = run(name, "--help")
    assert ran.code == 0
    assert " lock" in " ".join(ran.out.split())


NESTED = ("topics", "groups", "queue", "transactions", "users", "acls", "quotas", "cluster", "demo")
TELLING = [
    *(
        [name] for name in ALL if name not in (*NESTED, "completion", "sql")
    ),  # sql has --format, a shell wants no JSON
    *(["topics", action] for action in ("list", "create", "describe", "alter", "delete")),
    *(["groups", action] for action in ("list", "describe", "reset", "delete")),
    *(["queue", action] for action in ("list", "describe", "peek", "redrive", "delete", "purge")),
    *(["transactions", action] for action in ("list", "describe", "abort")),
    *(["users", action] for action in ("list", "describe", "add", "passwd", "delete")),
    *(["acls", action] for action in ("list", "add", "remove")),
    *(["quotas", action] for action in ("list", "set", "remove")),
    ["cluster", "describe"],
]


@pytest.mark.parametrize("command", TELLING, ids=" ".join)
def test_json_has_the_facts_of_text_output(run: Run, command: list[str]) -> None:
    assert "--json" in run(*command, "--help").out


@pytest.mark.parametrize("arguments", [["appnd"], ["append"], ["topics"], ["topics", "list"], ["cat", "x"]])
def test_a_usage_error_is_one_line_with_a_pointer_to_help(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 2
    assert ran.err.endswith("--help explains\n")


def test_a_missing_path_is_not_created(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ["cat", "nowhere", "t"],
        ["append", "nowhere", "t", "/dev/null"],
        ["compact", "nowhere"],
    ):
        ran = run(*arguments)
        assert ran.code == 2
        assert ran.err == (
            "nowhere does not exist\nembedlog topics create nowhere NAME   makes it, with a topic\n"
        )
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_directory_is_called_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for arguments in (["topics", "list", "bare"], ["append", "bare", "t", "/dev/null"]):
        ran = run(*arguments)
        assert ran.code == 2
        assert ran.err == (
            "bare is empty: it holds no log yet\nembedlog topics create bare NAME   makes it, with a topic\n"
        )
    assert not list((tmp_path / "bare").iterdir())
    assert run("topics", "create", "bare", "t").code == 0


def test_a_file_and_a_foreign_directory_are_refused_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "00000000000.kafka").write_text("x")
    for name, words in (("file", "is a file"), ("foreign", "not an embedlog directory")):
        for command in (["topics", "list", name], ["topics", "create", name, "t"], ["verify", name]):
            ran = run(*command)
            assert ran.code == 2
            assert words in ran.err
            assert "Traceback" not in ran.err
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["00000000000.kafka"]


def test_an_unknown_topic_says_how_to_make_it(run: Run, log: Path) -> None:
    ran = run("append", "data", "clix", "/dev/null")
    assert ran.code == 2
    assert ran.err == (
        f"no topic 'clix' in {log} (topics: clicks, empty): did you mean clicks?\n"
        "embedlog topics create data clix   makes it\n"
    )


def test_other_commands_show_which_topics_there_are(run: Run, log: Path) -> None:
    for command in (["cat"], ["tail"], ["stats"], ["topics", "describe"], ["verify"]):
        ran = run(*command, "data", "clix")
        assert (ran.code, ran.out) == (2, "")
        assert (
            ran.err == f"no topic 'clix' in {log}: did you mean clicks?\n"
            "embedlog topics list data   shows those that there are\n"
        )
    assert run("compact", "data", "clix").err == (
        f"no topic 'clix' in {log} (topics: clicks, empty): did you mean clicks?\n"
    )
    run("topics", "create", "data", "x" * 60)
    assert run("append", "data", "clix", "/dev/null").err == (
        f"no topic 'clix' in {log}: did you mean clicks?\nembedlog topics create data clix   makes it\n"
    )


MISTAKES = [
    (["appnd", "data"], "embedlog: there is no command 'appnd'"),
    (["topics", "lst", "data"], "embedlog topics: there is no command 'lst'"),
    (["topics", "create", "data", "clicks"], "topic 'clicks' exists already"),
    (["topics", "create", "data", "t", "--config", "colour=red"], "unknown setting 'colour'"),
    (["topics", "list", "foreign"], "is not an embedlog directory"),
    (["compact", "data", "clicks"], "clicks has cleanup_policy delete"),
    (["topics", "create", "data", "t", "--layout", "kafka"], "has the layout 'classic'"),
    (["topics", "create", "data", "t", "--config", "delete_policy=x"], "unknown delete_policy 'x'"),
    (["append", "data", "clicks", "--compression", "rar"], "invalid choice: 'rar'"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=lambda given: " ".join(given))
def test_an_error_takes_a_few_short_lines(
    run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) <= 2
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run(*arguments).err
    for line in narrow.splitlines():
        assert len(line) <= 80 or max(map(len, line.split())) > 70  # a path, or a command to be copied
    assert narrow.split() == ran.err.split()  # wrapped, and nothing lost


def test_writing_commands_are_refused_beside_a_writer(run: Run, log: Path) -> None:
    with embedlog.open(log):
        for arguments in (
            ["append", "data", "clicks", "/dev/null"],
            ["topics", "create", "data", "more"],
            ["topics", "alter", "data", "clicks", "--config", "flush_ms=5"],
            ["topics", "delete", "data", "clicks"],
            ["groups", "reset", "data", "g", "--topic", "clicks", "--to", "earliest"],
            ["groups", "delete", "data", "g"],
            ["compact", "data"],
            ["backup", "data", "copy"],
            ["export", "data", "copy"],
            ["import", "data", "data"],
            ["repair", "data", "clicks", "0"],
        ):
            ran = run(*arguments)
            assert ran.code == 2, arguments
            assert ran.out == ""
            first, second = ran.err.splitlines()
            assert first.startswith("data is open for writing in process ")
            assert re.search("embedlog serve data|can be done by|close the log there first", second)


def test_writing_commands_work_beside_a_writer_that_shares_the_log(
    run: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("first\nsecond\n")
    with embedlog.open(log, shared=True) as owner:
        ran = run("append", "data", "clicks", "more.txt", "--partition", "0", "--ack", "--flush")
        assert (ran.code, ran.out, ran.err) == (0, "ACK 0 10\nACK 0 11\n", "")
        assert [record.value for record in owner.read("clicks", 0, start=10)] == [b"first", b"second"]
        assert run("append", "data", "made", "more.txt", "--create", "-q").code == 0
        assert len(list(owner.read("made"))) == 2

        assert run("topics", "create", "data", "keys", "--config", "cleanup_policy=compact").code == 0
        assert run("topics", "alter", "data", "keys", "--partitions", "2").code == 0
        assert run("topics", "alter", "data", "keys", "--config", "segment_bytes=1024").code == 0
        assert owner.describe_topic("keys").settings == {"cleanup_policy": "compact", "segment_bytes": 1024}
        assert [freed["topic"] for freed in run("compact", "data", "--json").objects] == ["keys"]
        assert run("topics", "delete", "data", "keys", "--yes").code == 0
        assert "keys" not in owner.topics()

        for arguments in (
            ["export", "data", "copy"],
            ["import", "data", "data"],
            ["repair", "data", "clicks", "0"],
        ):
            ran = run(*arguments)
            assert (ran.code, ran.out) == (2, "")
            assert ran.err.startswith("data is open for writing in process ")


def test_reading_commands_work_beside_a_writer(run: Run, log: Path) -> None:
    with embedlog.open(log) as writer:
        writer.append("clicks", b"fresh", partition=0)
        assert run("cat", "data", "clicks", "--partition", "0", "--from", "10").out == "fresh\n"
        assert run("tail", "data", "clicks", "-n", "1").out == "fresh\n"
        for arguments in (
            ["topics", "list", "data"],
            ["topics", "describe", "data"],
            ["groups", "list", "data"],
            ["stats", "data"],
            ["verify", "data"],
            ["dump", str(log / "clicks_0" / "00000000000.kafka")],
        ):
            ran = run(*arguments)
            assert (ran.code, ran.err) == (0, ""), arguments


def test_a_writer_in_another_process_is_named(log: Path, tmp_path: Path) -> None:
    with spawn(["append", "data", "clicks", "--ack"], tmp_path) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write(b"one\n")
        holder.stdin.flush()
        assert holder.stdout.readline().startswith(b"ACK ")
        code, out, err = call(["append", "data", "clicks"], tmp_path, b"two\n")
        holder.stdin.close()
        assert holder.wait() == 0
    assert (code, out) == (2, b"")
    assert f"data is open for writing in process {holder.pid} (embedlog, since ".encode() in err


@pytest.mark.parametrize("closed", first_is_quick([">&- 2>&-", ">&-", "2>&-", "<&- >&- 2>&-"]))
def test_closed_streams(log: Path, closed: str) -> None:
    """Nothing that is printed may get into a file of the log, which would have the descriptor."""
    (log.parent / "more.txt").write_text("more\n")
    for command in (
        "cat {log} clicks",
        "topics list {log}",
        "append {log} clicks {log}/../more.txt",
        "stats {log}",
        "groups list {log} --json",
        "sql {log} 'SELECT count(*) FROM clicks' --format csv",
        "no-such-command {log}",
    ):
        line = f"{sys.executable} -m embedlog {command.format(log=log)} {closed}"
        ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
        assert "Traceback" not in ran.stderr, (command, ran.stderr)
        assert ran.returncode == (2 if "no-such" in command else 0), (command, ran.stderr)
    with embedlog.open(log) as opened:
        assert [each.value for each in opened.read("clicks")].count(b"more") == 1
        assert not opened.health().damage
    assert main(["verify", str(log)]) == 0


def test_the_script_and_the_module_are_the_same(tmp_path: Path) -> None:
    assert call(["--version"], tmp_path) == (0, f"embedlog {embedlog.__version__}\n".encode(), b"")


def test_appending_does_not_import_rich(tmp_path: Path, log: Path) -> None:
    (tmp_path / "in").write_text("a\n")
    program = (
        "import sys; from embedlog.cli import main; main(['append', 'data', 'clicks', 'in']); "
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment()).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["topcs", "list", "data"], "topics"),
        (["topics", "lsit", "data"], "list"),
        (["cat", "data", "clciks"], "clicks"),
        (["append", "data", "click", "/dev/null"], "clicks"),
        (["topics", "create", "data", "new", "--config", "retenton_ms=5"], "retention_ms"),
    ],
)
def test_did_you_mean(run: Run, log: Path, arguments: list[str], meant: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert f"did you mean {meant}?" in ran.err.replace("'", "")


def test_nothing_is_near(run: Run, log: Path) -> None:
    assert "did you mean" not in run("xyzzy").err + run("cat", "data", "xyzzy").err
