"""Queries of strangers: what is forbidden is refused, what is used is bounded, and none outlives anybody."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from programs import Program, is_alive

import embedlog
from embedlog import EmbedlogError, InvalidArgument, Log
from embedlog.open import open as open_log
from embedlog.sql.sandbox import Busy, Limits, Query, Sandbox

ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"
SECRET = "the secret of the test"
HOSTILE = b'{"name": "<script>", "n": 1}'


@pytest.fixture
def sandbox(path: Path, log: Log) -> Iterator[Callable[..., Sandbox]]:
    """sandbox(**limits): of a log with topics t and u."""
    made = []
    log.create_topic("t")
    log.create_topic("u")
    log.append_many("t", [b'{"name": "%d", "n": %d}' % (number, number) for number in range(1_000)])

    def sandbox(**limits: Any) -> Sandbox:
        made.append(Sandbox(functools.partial(open_log, path, mode="r"), Limits(**limits)))
        return made[-1]

    yield sandbox
    for each in made:
        each.stop()


def test_values_that_do_not_fit_are_counted(log: Log, sandbox: Callable[..., Sandbox]) -> None:
    asking = sandbox()
    values = [b'{"p": %s}' % (b"0.5" if 31_000 <= number < 31_010 else b"1") for number in range(60_000)]
    log.append_many("u", values)
    lines = lines_of(asking.start("SELECT sum(p) FROM u", ["u"]))
    assert [row for line in lines for row in line.get("rows", [])] == [["59990"]]
    notes = [line["note"] for line in lines if "note" in line]
    assert notes == ["u: 10 values of p do not fit BIGINT and are NULL (the first: '0.5')"]


def lines_of(query: Query) -> list[dict[str, Any]]:
    """All that a query writes."""
    found: list[dict[str, Any]] = []
    try:
        while (lines := query.lines(1)) is not None:
            found += lines
    finally:
        query.close()
    return found


def asked(sandbox: Sandbox, query: str, topics: list[str] | None = None) -> list[list[str | None]]:
    """The rows of a query."""
    lines = lines_of(sandbox.start(query, ["t", "u"] if topics is None else topics))
    return [row for line in lines for row in line.get("rows", [])]


def copied(sandbox: Sandbox, query: str, format: str) -> bytes:
    """A result as a file."""
    started = sandbox.start(query, ["t", "u"], format)
    found = b""
    try:
        while (chunk := started.read(1)) is not None:
            found += chunk
    finally:
        started.close()
    return found


def wait_until_gone(pid: int) -> None:
    while is_alive(pid):
        pass


def test_rows_and_types(sandbox: Callable[..., Sandbox], log: Log) -> None:
    log.append("t", HOSTILE, key=b"\xff\x00")
    lines = lines_of(
        sandbox().start('SELECT key, name, n FROM t WHERE "offset" >= 999 ORDER BY "offset"', ["t"])
    )
    assert lines[0] == {
        "columns": [["key", "BLOB", "bytes"], ["name", "VARCHAR", ""], ["n", "BIGINT", "number"]],
        "left_out": 0,
    }
    rows = [row for line in lines for row in line.get("rows", [])]
    assert rows == [[None, "999", "999"], ["\xff\x00", "<script>", "1"]]
    assert {"end": {"rows": 2, "more": False}} in lines
    assert lines[-1] == {"read": 2}


def test_a_spare_process_takes_the_query(sandbox: Callable[..., Sandbox]) -> None:
    warm = sandbox()
    warm.warm()
    assert asked(warm, "SELECT count(*), sum(n) FROM t") == [["1000", "499500"]]
    assert asked(warm, "SELECT 1 AS a, 2 AS a") == [["1", "2"]]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "json", "jsonl", "parquet"])
def test_files(sandbox: Callable[..., Sandbox], tmp_path: Path, format: str) -> None:
    data = copied(sandbox(), "SELECT name, n FROM t ORDER BY n LIMIT 2", format)
    if format == "parquet":
        (tmp_path / "p").write_bytes(data)
        assert pq.read_table(tmp_path / "p").to_pylist() == [{"name": "0", "n": 0}, {"name": "1", "n": 1}]
    else:
        assert (
            data.split()
            == {
                "csv": b"name,n 0,0 1,1",
                "json": b'[ {"name":"0","n":0}, {"name":"1","n":1} ]',
                "jsonl": b'{"name":"0","n":0} {"name":"1","n":1}',
            }[format].split()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["EXPLAIN SELECT 1", "PIVOT t ON n % 2 USING sum(n)", "SUMMARIZE t", "DESCRIBE t"]
)
def test_other_statements_that_ask(sandbox: Callable[..., Sandbox], query: str) -> None:
    rows = asked(sandbox(), query, ["t"])
    if query.startswith("EXPLAIN"):
        assert "Projection" in str(rows)
    assert len(copied(sandbox(), query, "jsonl").splitlines()) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["", pytest.param("csv", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('{file}')",
        "FROM read_blob('{file}')",
        "FROM read_csv('{file}')",
        "FROM sniff_csv('{file}')",
        "FROM read_json('{file}')",
        "FROM read_parquet('{file}')",
        "FROM parquet_metadata('{file}')",
        "FROM glob('{directory}/*')",
        "FROM '{file}'",
        "FROM '{directory}/*.csv'",
        "FROM query('FROM read_text(''{file}'')')",
        "FROM read_text('/proc/self/environ')",
        "FROM read_text('/dev/stdin')",
        "FROM read_csv('http://{host}/x.csv')",
        "FROM 'https://{host}/x.parquet'",
        "FROM 's3://bucket/x.parquet'",
        "SELECT getenv('EMBEDLOG_TEST_SECRET')",
        "FROM which_secret('s3://bucket/x', 's3')",
        "FROM duckdb_secrets()",
        "FROM arrow_scan(1, 1, 1)",
        "FROM pandas_scan(1)",
        "COPY t TO '{written}'",
        "COPY (SELECT 1) TO '{written}' (FORMAT parquet)",
        "COPY u FROM '{file}'",
        "EXPORT DATABASE '{written}'",
        "IMPORT DATABASE '{directory}'",
        "ATTACH '{written}' AS other",
        "ATTACH ':memory:' AS other",
        "USE other",
        "INSTALL httpfs",
        "INSTALL httpfs FROM community",
        "LOAD httpfs",
        "LOAD '{file}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET threads = 64",
        "RESET memory_limit",
        "PRAGMA enable_profiling",
        "PRAGMA version",
        "CALL enable_logging(storage = 'file', storage_path = '{written}')",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "CREATE TABLE x AS SELECT 1",
        "CREATE SECRET s (TYPE s3)",
        "CREATE MACRO m() AS 1",
        "INSERT INTO t VALUES (1)",
        "DELETE FROM t",
        "DROP VIEW t",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY (SELECT 1) TO '{written}'",
        "SELECT count(*) FROM sandbox",
        "SELECT count(*) FROM datasets",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{written}'",
        "WITH x AS (FROM read_text('{file}')) FROM x",
        "SELECT (SELECT content FROM read_text('{file}'))",
        "-- only a comment",
        "'",
        "\0",
    ],
)
def test_what_is_refused(
    sandbox: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, format: str
) -> None:
    """No file is read or written, nobody is connected to, nothing is set; errors tell no other path."""
    monkeypatch.setenv("EMBEDLOG_TEST_SECRET", SECRET)
    (tmp_path / "private.csv").write_text(f"a\n{SECRET}\n")
    before = sorted(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        places = {
            "file": tmp_path / "private.csv",
            "directory": tmp_path,
            "written": tmp_path / "written",
            "host": f"127.0.0.1:{listening.getsockname()[1]}",
        }
        for name, place in places.items():
            query = query.replace(f"{{{name}}}", str(place))
        with pytest.raises(InvalidArgument) as refused:
            copied(sandbox(timeout_s=20), query, format)
        with pytest.raises(BlockingIOError):
            listening.accept()
    said = str(refused.value)
    assert SECRET not in said
    assert os.path.expanduser("~") not in said.replace(str(tmp_path), "")
    assert os.getcwd() not in said.replace(str(tmp_path), "")
    assert "unforeseen" not in said
    assert "longer than" not in said
    assert sorted(tmp_path.iterdir()) == before


def test_it_has_nothing_of_its_parent(
    sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """No environment, no descriptors, no settings of its user; and the kernel's limits."""
    monkeypatch.setenv("EMBEDLOG_TEST_SECRET", SECRET)
    limited = sandbox(timeout_s=100, threads=1, memory_bytes=300_000_000)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        query = limited.start(ENDLESS, [])
        while not (query.lines(1) or [{}])[-1]:  # its columns: the limits are in force
            pass
        proc = Path(f"/proc/{query.pid}")
        if proc.exists():
            assert SECRET.encode() not in (proc / "environ").read_bytes()
            assert b"HOME=" not in (proc / "environ").read_bytes()
            opened = [os.readlink(each) for each in (proc / "fd").iterdir()]
            assert not [each for each in opened if each.startswith("socket:")]
            rows = [line.rsplit(None, 3) for line in (proc / "limits").read_text().splitlines()]
            soft = {row[0].strip(): row[1] for row in rows}
            assert soft["Max file size"] == soft["Max core file size"] == "0"
            assert soft["Max cpu time"] == "101"
            assert int(soft["Max data size"]) >= 800_000_000
            assert (proc / "oom_score_adj").read_text() == "1000\n"
        query.close()
    settings = dict(asked(limited, "SELECT name, value FROM duckdb_settings()"))
    assert settings["enable_external_access"] == "false"
    assert settings["lock_configuration"] == "true"
    assert settings["autoinstall_known_extensions"] == settings["autoload_known_extensions"] == "false"
    assert settings["python_enable_replacements"] == "false"
    assert settings["home_directory"] in ("", None)


def test_only_the_topics_that_are_given(sandbox: Callable[..., Sandbox]) -> None:
    """Who may see some of a log's topics cannot ask for others."""
    limited = sandbox()
    assert asked(limited, "SELECT count(*) FROM t", ["t"]) == [["1000"]]
    with pytest.raises(InvalidArgument, match="t does not exist"):
        asked(limited, "SELECT count(*) FROM t", ["u"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "SELECT count(*) FROM t a, t b, t c, t d WHERE a.n * b.n * c.n * d.n = 7",
        "SELECT max(hash(range)) FROM range(100000000000)",
    ],
)
def test_time_is_limited(sandbox: Callable[..., Sandbox], query: str) -> None:
    with pytest.raises(InvalidArgument, match=r"longer than 2\.0 s"):
        asked(sandbox(timeout_s=2), query)


@pytest.mark.slow
def test_its_own_output_is_nothing_to_read(sandbox: Callable[..., Sandbox]) -> None:
    """The one path that DuckDB may write is that of the result: who reads it waits for himself."""
    with pytest.raises(InvalidArgument, match="longer than"):
        copied(sandbox(timeout_s=3), "FROM read_text('/dev/stdout')", "csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "SELECT length(repeat('x', 3000000000))",
        "SELECT length(string_agg(repeat('x', 1000), '')) FROM range(10000000)",
        "SELECT len(array_agg(repeat('x', 1000))) FROM range(10000000)",
        "WITH RECURSIVE t AS (SELECT 'x' AS x UNION ALL SELECT x || x FROM t) SELECT count(*) FROM t",
        "SELECT repeat('x', 100000000) FROM range(1000) ORDER BY 1",
    ],
)
def test_memory_is_limited(sandbox: Callable[..., Sandbox], query: str) -> None:
    limited = sandbox(memory_bytes=150_000_000)
    with pytest.raises(InvalidArgument, match=r"more memory than 150\.0 MB"):
        asked(limited, query)
    assert asked(limited, "SELECT 1") == [["1"]]


def test_rows_columns_and_cells_are_bounded(sandbox: Callable[..., Sandbox]) -> None:
    limited = sandbox(rows=10, columns=3, cell_characters=20)
    lines = lines_of(limited.start("SELECT *, repeat('y', 1000000) FROM t", ["t"]))
    assert [len(line["columns"]) for line in lines if "columns" in line] == [3]
    assert lines[0]["left_out"] == 6
    assert {"end": {"rows": 10, "more": True}} in lines
    ((cell, blob),) = asked(limited, "SELECT repeat('y', 1000000), repeat('z', 1000000)::BLOB")
    assert (cell, blob) == ("y" * 20, "z" * 20)
    small = sandbox(table_bytes=10_000)
    ends = [line["end"] for line in lines_of(small.start("FROM range(1000000)", [])) if "end" in line]
    assert ends[0]["more"]
    assert ends[0]["rows"] <= 1_000


@pytest.mark.slow
def test_a_file_is_bounded(sandbox: Callable[..., Sandbox]) -> None:
    with pytest.raises(InvalidArgument, match=r"larger than 1\.0 MB"):
        copied(sandbox(copy_bytes=1_000_000), "FROM range(100000000000)", "csv")


def test_cancel_kills(sandbox: Callable[..., Sandbox]) -> None:
    query = sandbox().start(ENDLESS, [])
    assert is_alive(query.pid)
    canceller = threading.Thread(target=query.cancel)
    canceller.start()
    with pytest.raises(EmbedlogError, match="cancelled"):
        lines_of(query)
    canceller.join()
    assert not is_alive(query.pid)


def test_so_many_at_once(sandbox: Callable[..., Sandbox]) -> None:
    limited = sandbox(at_once=2)
    first, second = limited.start(ENDLESS, []), limited.start(ENDLESS, [])
    with pytest.raises(Busy, match="2 queries are running"):
        limited.start("SELECT 1", [])
    first.close()
    assert asked(limited, "SELECT 1") == [["1"]]
    limited.stop()
    with pytest.raises(EmbedlogError, match="cancelled"):
        lines_of(second)


PARENT = """
import functools, sys
from embedlog.open import open
from embedlog.sql.sandbox import Limits, Sandbox
sandbox = Sandbox(functools.partial(open, sys.argv[1], mode="r"), Limits())
query = sandbox.start(sys.argv[2], ["t"])
while not query.lines(1):
    pass
sandbox.warm()
print(query.pid, sandbox._spare.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("query", [ENDLESS, "SELECT repeat('x', 400) FROM range(1000000000000)"])
def test_none_outlives_its_parent(
    sandbox: Callable[..., Sandbox], program: Callable[..., Program], path: Path, query: str
) -> None:
    """Killed by SIGKILL, while a query computes, or has written what nobody reads; nor does a spare one."""
    sandbox()
    parent = program(PARENT, path, query)
    assert parent.process.stdout is not None
    pids = [int(pid) for pid in parent.process.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_bad_arguments(sandbox: Callable[..., Sandbox]) -> None:
    limited = sandbox()
    for query, problem in (("", "no query"), (" \n", "no query"), ("x" * 20_001, "20,000 characters")):
        with pytest.raises(InvalidArgument, match=problem):
            limited.start(query, [])
    with pytest.raises(InvalidArgument, match="csv, json, jsonl, parquet"):
        limited.start("SELECT 1", [], "xlsx")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        asked(limited, "SELECT '\ud800'")
    with pytest.raises(EmbedlogError, match="cannot open this log"):
        Sandbox(lambda: embedlog.open("nowhere")).start("SELECT 1", [])


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    sandbox = Sandbox(functools.partial(open_log, tmp_path / "none", mode="r"))
    with pytest.raises(InvalidArgument, match="the log's operator can see why") as raised:
        asked(sandbox, "SELECT 1")
    assert str(tmp_path) not in str(raised.value)
