"""SQL over topics: its answers are Python's, its filters prune, its fields have the types of a sample."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tty
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from faults import UnsyncedFileSystem, open_log
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rounds import examples, first_is_quick

import embedlog
from embedlog import Record
from embedlog.cli import main
from embedlog.sql.dataset import TopicDataset

ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range + b.range = 7"
BASE_MS = 1_700_000_000_000
TOPIC = "orders.eu-1"
TABLE = f'"{TOPIC}"'


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)


objects = st.fixed_dictionaries(
    {}, optional={"n": st.integers(-5, 5), "city": st.sampled_from(["Bern", "Ürün", "a'b"]), "": st.none()}
)
values = (
    objects.map(lambda value: json.dumps(value).encode())
    | st.none()
    | st.sampled_from([b"", b"{", b"\xff{}", b"[1]", b"7", b'{"n": "x"}'])
)
appends = st.lists(
    st.tuples(
        st.sampled_from(["none", "gzip", "zstd", "commit", "abort"]),
        st.integers(0, 2),
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=2), values, st.integers(0, 50)), min_size=1, max_size=9
        ),
    ),
    max_size=6,
)


def filled(log: embedlog.Log, batches: Any, *, compacted: bool) -> list[Record]:
    """Appends; returns what a reader that is read_committed sees."""
    log.create_topic(TOPIC, partitions=3, cleanup_policy="compact" if compacted else "delete")
    for how, partition, records in batches:
        made = [
            Record(TOPIC, partition, 0, BASE_MS + time, 0, key, value, (("h", b"1"),))
            for key, value, time in records
        ]
        if how in ("commit", "abort"):
            with contextlib.suppress(InterruptedError), log.transaction("writer") as transaction:
                transaction.append_many(TOPIC, made, partition=partition)
                if how == "abort":
                    raise InterruptedError
        else:
            log.append_many(TOPIC, made, partition=partition, compression=how)
    if compacted:
        log.compact(TOPIC)
    return list(log.read(TOPIC, isolation_level="read_committed"))


def field(value: bytes | None, name: str) -> Any:
    try:
        parsed = json.loads(value or b"null")
    except ValueError:
        return None
    return parsed.get(name) if isinstance(parsed, dict) else None


@settings(
    deadline=None,
    max_examples=12,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(appends, st.booleans(), st.integers(0, 3), st.integers(-1, 12), st.integers(-1, 51))
@pytest.mark.filterwarnings("ignore::embedlog.ValuesReadAsNull")
@pytest.mark.slow
def test_answers_are_pythons(batches: Any, compacted: bool, partition: int, offset: int, time: int) -> None:
    with tempfile.TemporaryDirectory() as directory, open_log(directory, UnsyncedFileSystem()) as log:
        records = filled(log, batches, compacted=compacted)

        def asked(sql: str, **parameters: Any) -> list[Any]:
            schemas = {TOPIC: "n INT, city VARCHAR"}
            return log.sql(sql, schemas=schemas, **parameters).fetchall()

        rows = asked(f'SELECT partition, "offset", timestamp, key, value, headers FROM {TABLE} ORDER BY 1, 2')
        assert rows == [
            (r.partition, r.offset, at(r.timestamp_ms), r.key, r.value, [{"name": "h", "value": b"1"}])
            for r in records
        ]
        assert asked(f"SELECT count(*) FROM {TABLE}") == [(len(records),)]
        for sql, holds in (
            ("partition = $p", lambda r: r.partition == partition),
            ('partition >= $p AND "offset" < $o', lambda r: r.partition >= partition and r.offset < offset),
            ('"offset" = $o OR partition = $p', lambda r: r.offset == offset or r.partition == partition),
            ('NOT "offset" BETWEEN $o AND 9', lambda r: not offset <= r.offset <= 9),
            ('"offset" IN ($o, 3)', lambda r: r.offset in (offset, 3)),
            ("timestamp >= $t", lambda r: r.timestamp_ms >= BASE_MS + time),
            ("timestamp <= $t AND n > 0", lambda r: r.timestamp_ms <= BASE_MS + time and number(r) > 0),
            (
                "\"offset\" > $o AND city = 'Bern'",
                lambda r: r.offset > offset and field(r.value, "city") == "Bern",
            ),
        ):
            given = {"p": partition, "o": offset, "t": at(BASE_MS + time)}
            used = {name: value for name, value in given.items() if f"${name}" in sql}
            got = asked(f'SELECT partition, "offset" FROM {TABLE} WHERE {sql} ORDER BY ALL', **used)
            assert got == [(r.partition, r.offset) for r in records if holds(r)], sql
        cities = Counter(field(r.value, "city") for r in records)
        assert dict(asked(f"SELECT city, count(*) FROM {TABLE} GROUP BY 1")) == cities


def number(record: Record) -> int:
    found = field(record.value, "n")
    return found if isinstance(found, int) else 0


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with embedlog.open(tmp_path / "log", segment_bytes=1 << 16) as opened:
        yield opened


def test_filters_prune(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=4)
    for partition in range(4):
        for first in range(0, 100_000, 1_000):
            log.append_many(
                "t",
                [Record("t", 0, 0, BASE_MS + n, 0, None, b"v" * 20, ()) for n in range(first, first + 1_000)],
                partition=partition,
            )

    def read(expression: Any) -> tuple[int, int]:
        dataset = TopicDataset(log.backend, "t")
        rows = dataset.scanner(columns=["offset"], filter=expression).to_reader().read_all().num_rows
        return rows, dataset.rows_read

    offset, partition, timestamp = ds.field("offset"), ds.field("partition"), ds.field("timestamp")
    assert read(None) == (400_000, 400_000)
    assert read(partition == 2) == (100_000, 100_000)
    assert read((partition == 2) & (offset >= 40_000) & (offset < 40_010)) == (10, 10)
    assert read((partition == 9) | (offset == 99_999)) == (4, 4)
    assert read(timestamp >= pa.scalar(at(BASE_MS + 99_000), pa.timestamp("us", tz="UTC"))) == (4_000, 4_000)
    assert read(offset < 0) == (0, 0)


def test_fields_have_the_types_of_a_sample(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.create_topic("empty")
    log.append_many(
        "t",
        [
            b'{"Offset": 1, "a": 1, "A": 2.5, "mixed": 1, "o/k~\'\\"": true, "list": [1, 2], "none": null}',
            b'{"Offset": -1, "a": 1, "mixed": "x", "deep": {"x": 1}}',
            b'{"a": "not a number"}',
        ],
    )
    log.append("t", b"broken {")
    schemas = {"t": {"a": "INT", "list": "INT[]"}}
    with pytest.warns(embedlog.ValuesReadAsNull, match="^t: 1 value of a does not fit INTEGER and is NULL"):
        assert log.sql("SELECT a, list FROM t", schemas=schemas).fetchall() == [
            (1, [1, 2]), (1, None), (None, None), (None, None)
        ]  # fmt: skip
    relation = log.sql(
        'SELECT COLUMNS(* EXCLUDE (key, value, headers, "offset", partition, timestamp)) FROM t'
    )
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    assert types == {
        "Offset_1": "BIGINT", "a": "JSON", "A_1": "DOUBLE", "mixed": "JSON", "o/k~'\"": "BOOLEAN",
        "list": "JSON", "none": "VARCHAR", "deep": "JSON",
    }  # fmt: skip
    assert relation.fetchall()[0] == (1, "1", 2.5, "1", True, "[1,2]", None, None)
    assert relation.fetchall()[3] == (None,) * 8
    assert log.sql("SELECT * FROM empty").columns == [
        "key",
        "value",
        "headers",
        "offset",
        "partition",
        "timestamp",
    ]
    assert log.to_pandas("t").shape == log.to_polars("t").shape == (4, 14)


def test_types_are_those_of_all_values_of_a_small_topic(log: embedlog.Log) -> None:
    log.create_topic("t")
    values = [*[b'{"p": 1}'] * 200, *[b'{"p": 0.4}'] * 100, *[b'{"p": 1}'] * 200]
    log.append_many("t", [*values, b'{"id": 9223372036854775808, "late": true}', b'{"id": 1, "nan": NaN}'])
    assert log.sql("SELECT round(sum(p), 6), typeof(any_value(p)) FROM t").fetchall() == [(440, "DOUBLE")]
    found = log.sql(
        "SELECT max(id), any_value(typeof(id)), count(late), any_value(typeof(nan)) FROM t"
    ).fetchall()
    assert found == [(2**63, "UBIGINT", 1, "DOUBLE")]
    assert log.to_pandas("t").id.max() == 2**63
    assert round(log.to_polars("t")["p"].sum(), 6) == 440


def late_fraction(log: embedlog.Log) -> None:
    """A topic `late` in which few values, which a sample misses, have a fraction."""
    log.create_topic("late")
    for value, count in (("1", 31_100), ("0.5", 50), ('"6"', 1), ('"5.50"', 7), ("1", 29_000)):
        log.append_many("late", [b'{"p": %s, "q": null}' % value.encode()] * count)


UNFIT = r"late: 57 values of p do not fit BIGINT and are NULL \(the first: '0.5'\)"


def test_values_that_do_not_fit_are_null_and_counted(log: embedlog.Log) -> None:
    """At every door of the library."""
    late_fraction(log)
    expected = (60_106, 60_158, 60_101)
    for ask in (
        lambda: log.sql("SELECT sum(p), count(*), count(p) FROM late").fetchall()[0],
        lambda: (lambda of: (of.p.sum(), len(of), of.p.count()))(log.to_pandas("late")),
        lambda: (lambda of: (of["p"].sum(), of.height, of["p"].count()))(log.to_polars("late")),
        lambda: (lambda of: (of["p"].sum(), of.height, of["p"].count()))(
            embedlog.scan_polars(log.path, "late").collect()
        ),
        lambda: log.sql(
            "SELECT sum(p), count(*), count(p) FROM late", schemas={"late": "p BIGINT"}
        ).fetchall()[0],
    ):
        with pytest.warns(embedlog.ValuesReadAsNull, match=UNFIT):
            assert ask() == expected
    with pytest.warns(embedlog.ValuesReadAsNull, match=UNFIT):  # a filter drops them, and they are counted
        assert log.sql("SELECT count(*) FROM late WHERE p > 0 AND partition = 0").fetchall() == [(60_101,)]
    with pytest.warns(embedlog.ValuesReadAsNull, match="does not fit BIGINT and is NULL"):
        assert log.sql('SELECT p FROM late WHERE "offset" = 31100').fetchall() == [(None,)]
    assert log.sql('SELECT sum(p) FROM late WHERE "offset" < 31100').fetchall() == [
        (31_100,)
    ]  # without a warning
    assert log.sql("SELECT count(*) FROM late").fetchall() == [(60_158,)]  # p is not read
    assert log.sql("SELECT sum(p) FROM late", schemas={"late": "p DOUBLE"}).fetchall() == [(60_169.5,)]


@pytest.mark.parametrize("schema", [None, "d DOUBLE", "d FLOAT"])
def test_a_number_too_large_for_a_double_is_null_at_every_door(log: embedlog.Log, schema: str | None) -> None:
    log.create_topic("large")
    log.append_many("large", [b'{"d": %s}' % each for each in (b"1e400", b"1.5", b"-1e400", b"1e-400")])
    expected = [None, 1.5, None, 0.0]
    doors = [
        lambda: [
            d for (d,) in log.sql("FROM large SELECT d", schemas=schema and {"large": schema}).fetchall()
        ],
        lambda: log.to_polars("large")["d"].to_list(),
        lambda: embedlog.scan_polars(log.path, "large").collect()["d"].to_list(),
        lambda: [None if d != d else d for d in log.to_pandas("large").d],
    ]
    for door in doors if schema is None else doors[:1]:
        with pytest.warns(embedlog.ValuesReadAsNull, match="2 values of d do not fit"):
            assert door() == expected
    with pytest.warns(embedlog.ValuesReadAsNull, match="1 value of d does not fit"):
        assert log.sql(
            'SELECT d FROM large WHERE "offset" < 2', schemas={"large": "d DOUBLE"}
        ).fetchall() == [(None,), (1.5,)]


def test_the_command_counts_values_that_do_not_fit(
    log: embedlog.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    late_fraction(log)
    assert main(["sql", log.path, "SELECT sum(p) AS sum FROM late"]) == 0
    said = capsys.readouterr()
    assert said.out == "   sum\n60,106\n" and re.match(f"warning: {UNFIT}; give --schema", said.err)


def test_null_in_a_field_of_type_json(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.append_many("t", [b'{"d": null}', b'{"d": {"x": [1, null]}}', b'{"d": "null"}', b"{}"])
    for schemas in (None, {"t": "d JSON"}):
        found = log.sql('SELECT d, d IS NULL FROM t ORDER BY "offset"', schemas=schemas).fetchall()
        assert found == [(None, True), ('{"x":[1,null]}', False), ('"null"', False), (None, True)]


fields = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "7", "x", "true", "1.50"])
    | st.lists(st.integers(-3, 3) | st.text(max_size=2), max_size=2)
    | st.dictionaries(st.sampled_from("xy"), st.integers(-3, 3) | st.none(), max_size=2)
)


@settings(deadline=None, max_examples=examples(15), phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), fields), min_size=1, max_size=12))
def test_a_small_topic_is_what_read_json_makes_of_its_lines(rows: list[dict[str, Any]]) -> None:
    """DuckDB's own reader, told to look at all lines, and to leave nested values and dates alone."""
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory, "lines.json")
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = "sample_size = -1, maximum_depth = 1, dateformat = 'no', timestampformat = 'no'"
        with embedlog.open(Path(directory, "log")) as log, duckdb.connect() as connection:
            log.create_topic("t")
            log.append_many("t", lines.read_bytes().splitlines())
            for name in sorted({name for row in rows for name in row}):
                ours = log.sql(f'SELECT {name} FROM t ORDER BY "offset"')
                theirs = connection.sql(f"SELECT {name} FROM read_json('{lines}', {options})")
                for mine, its, row in zip(ours.fetchall(), theirs.fetchall(), rows, strict=True):
                    assert same(mine[0], its[0], row.get(name)), (str(ours.types), str(theirs.types))


def same(mine: Any, its: Any, written: Any) -> bool:
    """Whether two readers agree on a value; where they do not, ours is the one that is exact."""
    if isinstance(mine, str) and isinstance(its, str) and not isinstance(written, str):
        return bool(json.loads(mine) == json.loads(its))
    return mine in (its, written) or json.loads(mine) == written


def test_duckdb_shows_no_progress_on_standard_output(log: embedlog.Log) -> None:
    assert log.sql("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]


def test_fields_called_as_the_columns_beneath(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.append_many("t", [b'{"left": "l", "text": "x", "a": "\\u0041", "z": [1]}', b'{"left": "m"}'])
    assert log.sql('SELECT "left", text, a, z FROM t ORDER BY "offset"').fetchall() == [
        ("l", "x", "A", "[1]"),
        ("m", None, None, None),
    ]


def test_a_query_ends_where_the_log_ended(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.append("t", b"1")
    relation = log.sql("SELECT count(*) FROM t")
    log.append("t", b"2")
    assert relation.fetchall() == [(1,)]
    assert log.sql("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_only_topics_that_are_named_are_tables(log: embedlog.Log) -> None:
    for name in ("orders", "Orders", "other"):
        log.create_topic(name)
        log.append(name, name.encode())
    assert log.sql("SELECT value FROM Orders").fetchall() == [(b"Orders",)]
    assert log.sql("SELECT value FROM orders").fetchall() == [(b"orders",)]
    with pytest.raises(embedlog.InvalidArgument, match="same name"):
        log.sql("SELECT * FROM orders, Orders")
    with pytest.raises(embedlog.errors.InvalidArgument):
        log.sql("SELECT * FROM " + "missing")
    with pytest.raises(embedlog.TopicNotFound):
        log.sql("SELECT 1", schemas={"missing": "a INT"})
    with pytest.raises(embedlog.InvalidArgument, match="schema must be like"):
        log.sql("SELECT * FROM other", schemas={"other": "a NO SUCH TYPE"})
    with pytest.raises(embedlog.TopicNotFound):
        log.to_pandas("missing")


@pytest.mark.parametrize(
    ("form", "shown"),
    first_is_quick(
        [
            ("table", "city  n\nBern  2\n-     1\n"),
            ("csv", "city,n\nBern,2\n,1\n"),
            ("jsonl", '{"city":"Bern","n":2}\n{"city":null,"n":1}\n'),
        ]
    ),
)
def test_command(log: embedlog.Log, tmp_path: Path, form: str, shown: str) -> None:
    log.create_topic("t")
    log.append_many("t", [b'{"city": "Bern"}', b'{"city": "Bern"}', b"broken"])
    query = "SELECT city, count(*) AS n FROM t GROUP BY 1 ORDER BY 2 DESC"
    command = [sys.executable, "-m", "embedlog", "sql", log.path, "--format", form]
    ran = subprocess.run([*command, "-"], input=query, capture_output=True, text=True, check=True)
    assert ran.stdout == shown
    ran = subprocess.run([*command, "SELECT bad FROM t"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "") and 'column "bad" not found' in ran.stderr
    ran = subprocess.run([*command, ENDLESS, "--timeout", "1"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "") and "longer than 1 s" in ran.stderr


def test_a_query_is_one_statement(
    log: embedlog.Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = f"SELECT 1; COPY (SELECT 2) TO '{tmp_path / 'file'}'"
    with pytest.raises(embedlog.InvalidArgument, match="one statement, and here are 2"):
        log.sql(two)
    assert main(["sql", log.path, two]) == 2
    assert "one statement, and here are 2" in capsys.readouterr().err
    assert not (tmp_path / "file").exists()
    assert log.sql("SELECT 1 ; -- done").fetchall() == [(1,)]


def test_numbers_of_a_table_stand_on_the_right(log: embedlog.Log, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT sum(n) AS total, n::DECIMAL(5, 1) AS price, [n] AS list FROM (VALUES (1), (2000)) AS t(n)"
    assert main(["sql", log.path, f"{query} GROUP BY n ORDER BY n"]) == 0
    assert capsys.readouterr().out == "total   price  list\n    1     1.0  [1]\n2,000  2000.0  [2000]\n"


def test_ctrl_c_ends_a_scan_and_a_join(log: embedlog.Log) -> None:
    log.create_topic("t")
    log.append_many("t", [b'{"n": 1}'] * 100_000)
    for query in ("SELECT max(a.n) FROM t a, t b WHERE a.n + b.n = -1", ENDLESS):
        command = [sys.executable, "-m", "embedlog", "sql", log.path, query]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            while (
                len(os.listdir(f"/proc/{running.pid}/task")) < 3
            ):  # DuckDB's threads, and the one that waits
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            said = running.communicate()
        assert (running.returncode, *said) == (130, b"", b"")


def test_command_appends_to_a_file(log: embedlog.Log, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "embedlog", "sql", log.path, "--format", "csv", "SELECT 7 AS seven"]
    with open(tmp_path / "out", "w+") as file:
        file.write("before\n")
        file.flush()
        subprocess.run(command, stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "before\nseven\n7\n"


def test_command_writes_to_a_device_that_another_process_has_locked(log: embedlog.Log) -> None:
    """As DuckDB's COPY locks what it writes to: two commands could not both write to /dev/null."""
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as read, open(theirs, "r+b", buffering=0) as device:
        tty.setraw(device)
        fcntl.lockf(device, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "embedlog", "sql", log.path, "SELECT 7 AS n", "--format", "csv"]
        ran = subprocess.run(command, stdout=device, stderr=subprocess.PIPE)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert read.read(100) == b"n\n7\n"


def test_command_writes_a_plan_and_a_pivot(log: embedlog.Log, tmp_path: Path) -> None:
    """They are results that DuckDB holds, and no view can have."""
    log.create_topic("t")
    log.append_many("t", [b'{"a": 1}', b'{"a": 2}'])
    for query, shown in (("EXPLAIN SELECT 1", "Projection"), ("PIVOT (SELECT a FROM t) ON a", "1,2")):
        assert main(["sql", log.path, query, "--format", "csv", "--output", str(tmp_path / "file")]) == 0
        assert shown in (tmp_path / "file").read_text()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_command_writes_files(log: embedlog.Log, tmp_path: Path, form: str) -> None:
    log.create_topic("t")
    log.append_many("t", [b'{"city": "Bern"}', b"\xff"], partition=0)
    file = tmp_path / "out"
    query = 'SELECT "offset", city FROM t ORDER BY 1'
    assert main(["sql", log.path, query, "--format", form, "--output", str(file)]) == 0
    read = pa.ipc.open_stream(file.read_bytes()).read_all() if form == "arrow" else pq.read_table(file)
    assert read.to_pylist() == [{"offset": 0, "city": "Bern"}, {"offset": 1, "city": None}]
    assert main(["sql", log.path, query, "--output", str(file)]) == 2


@pytest.mark.slow
def test_over_brokers(tmp_path: Path, start: Callable[..., Any]) -> None:
    broker = start("-m", "embedlog", "serve", tmp_path / "served", "--port", 0, "--json")
    address = f"127.0.0.1:{json.loads(broker.find(r'^({.*})$')[0])['port']}"
    with embedlog.open(f"kafka://{address}") as log:
        log.create_topic("t", 2)
        for partition in range(2):
            log.append_many("t", [b'{"n": %d}' % n for n in range(1_000)], partition=partition)
        assert log.sql("SELECT sum(n) FROM t").fetchall() == [(999_000,)]
        assert log.sql('SELECT n FROM t WHERE "offset" = 7 AND partition = 1').fetchall() == [(7,)]
    scanned = embedlog.scan_polars(f"kafka://{address}", "t").filter(pl.col("offset") >= 998).select("n")
    assert sorted(scanned.collect()["n"].to_list()) == [998, 998, 999, 999]
    query = "SELECT partition, count(*) AS records, max(n) AS most FROM t GROUP BY 1 ORDER BY 1"
    command = [sys.executable, "-m", "embedlog", "sql", "--bootstrap-server", address]
    ran = subprocess.run([*command, query, "--format", "csv"], capture_output=True, text=True, check=True)
    assert ran.stdout == "partition,records,most\n0,1000,999\n1,1000,999\n"
    broker.kill()
    ran = subprocess.run([*command, query], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "") and address in ran.stderr


_BOUNDED = """
import resource, sys, embedlog
from embedlog.sql import connect
def most_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
query = "SELECT city, count(*), max(octet_length(value)) FROM t WHERE \\"offset\\" < {} GROUP BY 1 ORDER BY 1"
with (
    embedlog.open(sys.argv[1], mode="r") as log,
    connect(log.backend, query + " t", settings={"threads": 2}) as connection,
):
    connection.execute(query.format(100)).fetchall()
    before = most_mb()
    found = connection.execute(query.format(1_000_000)).fetchall()
    print(most_mb() - before, found)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A query holds a bounded number of batches of a log that is much larger."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        for number in range(400):
            values = [
                b'{"city": "city-%d", "filling": "%s"}' % (number % 3, b"x" * 1_000) for _ in range(1_000)
            ]
            log.append_many("t", values, partition=number % 2)
    ran = subprocess.run(
        [sys.executable, "-c", _BOUNDED, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    more_mb, _, found = ran.stdout.partition(" ")
    assert found.strip() == "[('city-0', 134000, 1033), ('city-1', 133000, 1033), ('city-2', 133000, 1033)]"
    assert int(more_mb) < 200, "of 414 MB that were read"


@pytest.mark.slow
def test_several_processes_ask_while_one_writes(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=2)
    log.append_many("t", [b'{"n": 1}'] * 20_000)
    code = """
import sys, embedlog
with embedlog.open(sys.argv[1], mode="r") as log:
    found = 0
    while found < 60_000:
        count, total, fewest = log.sql("SELECT count(*), sum(n), min(n) FROM t").fetchall()[0]
        assert count == total >= found and fewest == 1, (count, total, found)
        found = count
"""
    readers = [
        subprocess.Popen([sys.executable, "-c", code, log.path], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for _ in range(400):
        log.append_many("t", [b'{"n": 1}'] * 100)
    for each in readers:
        assert (each.communicate()[1], each.returncode) == ("", 0)
