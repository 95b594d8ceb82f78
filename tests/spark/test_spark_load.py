"""Loads through Spark: the table has the log's records once, whatever fails."""

from __future__ import annotations

import json
import threading
import warnings
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from damage import flip
from faults import partition_of
from loads import in_log, in_table, moment, places, records
from pyspark.sql import SparkSession
from transactions import Transactions, coordinated

import embedlog
import embedlog.spark
from embedlog import Log, Record
from embedlog.cluster import Broker
from embedlog.spark import load, warehouse
from embedlog.spark.load_plan import status
from embedlog.spark.table import Table

pytestmark = pytest.mark.jvm

SCHEMA = "n INT, name STRING, at TIMESTAMP"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Paths for tables; Spark takes some of these characters for a pattern."""
    return tmp_path / "ta ble[1]{a}*"


def no_spark() -> SparkSession:
    raise AssertionError("Spark was asked for")


def test_loads_take_new_records_once(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t", partitions=3, compression_type="zstd")
    log.append_many("t", records(40))
    zone = spark.conf.get("spark.sql.session.timeZone")
    told: list[tuple[str, int, int]] = []
    done = load(log, topic="t", to=to, spark=spark, progress=lambda *each: told.append(each))
    assert (done.records, done.bad, done.replaced, done.load) == (40, 0, 0, 1)
    assert done.dates == ("2013-01-01", "2013-01-10")
    assert in_table(spark, to) == in_log(log)
    assert told[-1][0] == "loading" and told[-1][1] == told[-1][2] > 0

    # Nothing new: no Spark is asked for, nothing is written.
    again = load(log, to=to, spark=no_spark)
    assert (again.records, again.files, again.load) == (0, 0, 1)

    log.create_partitions("t", 4)
    log.append_many("t", records(30, first=30))
    done = load(log, to=to, spark=spark)
    assert (done.records, done.load) == (30, 2)
    assert in_table(spark, to) == in_log(log)
    # A reader that knows no manifest sees the same, once the loads are done.
    assert places(to) == dict.fromkeys(((r[0], r[1]) for r in in_log(log)), 1)
    assert spark.conf.get("spark.sql.session.timeZone") == zone

    manifest = Table(to).read()
    assert manifest is not None and manifest.rows == 70
    assert {p: each.offset for p, each in manifest.loaded.items()} == {
        p: o.log_end_offset for p, o in log.offsets("t").items()
    }
    assert status(log, to=to).lag == 0


BAD = {
    b"": "empty",
    b"  ": "empty",
    b"nonsense": "not JSON",
    b'{"n": 1': "not JSON",
    b"[1]": "does not fit the schema",
    b'{"n": "one"}': "does not fit the schema",
    b'{"n": 1.5}': "does not fit the schema",
    b'{"name": "\xff"}': "not UTF-8",
}


def test_records_that_do_not_fit_the_schema(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t", partitions=2)
    expected = {}
    for n in range(30):
        at = moment(n * 6)
        value: bytes | None = json.dumps(
            {"n": n, "name": f"row {n}", "at": at.isoformat(), "more": 1}
        ).encode()
        if n == 7:
            value = None
        elif n == 8:
            value = b"{}"
        where = log.append("t", value, key=b"k%d" % n, timestamp_ms=5 * n)
        row = (n, f"row {n}", at) if n not in (7, 8) else (None, None, None)
        expected[where.partition, where.offset] = (*row, b"k%d" % n, None if row[2] is None else at.date())
    bad = {}
    for n, value in enumerate(BAD):
        where = log.append("t", value, key=b"k%d" % n)
        bad[where.partition, where.offset] = (value, BAD[value])

    def check() -> None:
        rows = warehouse(spark, to).collect()
        found = {
            (r._partition, r._offset): (
                r.n,
                r.name,
                None if r.at is None else r.at.replace(tzinfo=UTC),
                bytes(r._key),
                r.event_date,
            )
            for r in rows
        }
        assert len(rows) == len(found) and found == expected
        side = warehouse(spark, to, bad=True).collect()
        assert len(side) == len(bad)
        assert {(r.partition, r.offset): (bytes(r.value), r.reason) for r in side} == bad

    done = load(log, topic="t", to=to, schema=SCHEMA, date_column="at", spark=spark)
    assert (done.records, done.bad) == (30, len(BAD))
    check()

    # The schema is the table's own from now on.
    with pytest.raises(embedlog.TableError, match="has the schema 'n INT, name STRING, at TIMESTAMP'"):
        load(log, to=to, schema="n INT", spark=spark)
    where = log.append("t", b"worse", timestamp_ms=200)
    bad[where.partition, where.offset] = (b"worse", "not JSON")
    where = log.append("t", b'{"n": -1}', key=b"k", timestamp_ms=200)
    expected[where.partition, where.offset] = (-1, None, None, b"k", None)
    done = load(log, to=to, spark=spark)
    assert (done.records, done.bad) == (1, 1)
    check()

    # Again from a time on, which lies within files, those of the side table among them.
    done = load(log, to=to, from_time=datetime.fromtimestamp(0.1, UTC), spark=spark)
    assert done.replaced == done.records + done.bad > 0
    assert done.records < len(expected)
    check()
    assert places(to, "_") == dict.fromkeys(expected, 1)
    found = status(log, to=to)
    assert found.manifest is not None
    assert (found.manifest.rows, found.manifest.bad_rows) == (len(expected), len(bad))


def test_values_fit_as_in_sql(spark: SparkSession, log: Log, to: Path) -> None:
    """One schema has one answer: what is NULL in SQL, with a warning, is kept beside the table here."""
    written = [
        "1", "-7.0", '"5"', "0.4", '"5.50"', "true", '"007"', "2147483648", "1.10", "1.105", '"2.5"',
        "1000", '"NaN"', "[1]", "0.12", "null", '"true"', "999.99", "1.5000",
    ]  # fmt: skip
    log.create_topic("t")
    log.append_many("t", [b'{"v": %s}' % text.encode() for text in written])
    for kind in ("INT", "DECIMAL(5,2)", "DOUBLE", "BOOLEAN"):
        load(log, topic="t", to=to / kind, schema=f"v {kind}", spark=spark)
        loaded = {row._offset: row.v for row in warehouse(spark, to / kind).collect()}
        bad = {row.offset for row in warehouse(spark, to / kind, bad=True).collect()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedlog.ValuesReadAsNull)
            in_sql = log.sql('SELECT "offset", v FROM t', schemas={"t": f"v {kind}"}).fetchall()
        assert repr(sorted({**loaded, **dict.fromkeys(bad)}.items())) == repr(sorted(in_sql)), kind
        assert bad == {offset for offset, value in in_sql if value is None and written[offset] != "null"}, (
            kind
        )


@pytest.mark.parametrize(
    ("kind", "in_sql", "written"),
    [
        (
            "DATE",
            "DATE",
            '"2026-05-01" "2026-5-1" "2026-05-01T10:00" "2026-05-01_00:00:00" "2026" "20260501" "2026-02-30" '
            '"+2026-05-01" "_2026-05-01" "2026-05-01Z" 20000 "" null "0001-01-01" "1969-12-31"',
        ),
        (
            "TIMESTAMP",
            "TIMESTAMPTZ",
            '"2026-05-01" "2026-05-01T10:00" "2026-05-01T10:00Z" "2026-05-01_10:00:00.123456" '
            '"2026-05-01_10:00:00.1234567" "2026-05-01_10:00:00.1234560" "2026-05-01T10:00:00+02:00" '
            '"2026-05-01T10:00:00.5Z" "2026-05" "2026" "10:00" 1700000000 1.5 "1960-01-01T00:00:00Z" null',
        ),
        (
            "TIMESTAMP_NTZ",
            "TIMESTAMP",
            '"2026-05-01" "2026-05-01T10:00" "2026-05-01_10:00:00.123456" "2026-05-01_10:00:00.1234567" '
            '"2026" "2026-05" 1700000000 null',
        ),
        (
            "DECIMAL(20,2)",
            "DECIMAL(20,2)",
            '1.10 1.105 "1.10" "1.105" 123456789012345678.12 12345678901234567.123 1.100 -7 "abc" '
            "1234567890123456789012 null",
        ),
        ("DOUBLE", "DOUBLE", '1e400 -1e400 "1e400" "Infinity" 1e-400 1.5 null'),
        ("FLOAT", "FLOAT", "1e39 1e400 1.5"),
        ("ARRAY<DOUBLE>", "DOUBLE[]", "[1e400] [1.5,-1e400] [1.5] [] null"),
        (
            "STRUCT<a:DOUBLE,b:MAP<STRING,DOUBLE>>",
            "STRUCT(a DOUBLE, b MAP(VARCHAR,DOUBLE))",
            '{"a":1e400} {"a":1,"b":{"c":1e400}} {"a":1,"b":{"c":2}} null',
        ),
    ],
)
def test_times_and_long_numbers_fit_as_in_sql(
    spark: SparkSession, log: Log, to: Path, kind: str, in_sql: str, written: str
) -> None:
    """Spark alone changes these: 2026 is its first day, 1.105 is 1.11, 1e400 is Infinity."""
    values = [each.replace("_", " ") for each in written.split()]
    log.create_topic("t")
    log.append_many("t", [b'{"v": %s}' % each.encode() for each in values])
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # dates and times are UTC anywhere
    try:
        load(log, topic="t", to=to, schema=f"v {kind}", spark=spark)
        text = (
            "CAST(v AS STRING)"
            if in_sql != "TIMESTAMPTZ"
            else "CAST(to_utc_timestamp(v, 'America/New_York') AS STRING)"
        )
        loaded = {
            row._offset: row
            for row in warehouse(spark, to).selectExpr("_offset", "v", f"{text} AS text").collect()
        }
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    bad = {row.offset for row in warehouse(spark, to, bad=True).collect()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embedlog.ValuesReadAsNull)
        found = dict(log.sql('SELECT "offset", v FROM t', schemas={"t": f"v {in_sql}"}).fetchall())
    assert bad == {at for at, value in found.items() if value is None and values[at] != "null"}
    assert loaded.keys() == found.keys() - bad
    for at, row in loaded.items():
        if in_sql.startswith("TIMESTAMP"):
            same = (
                None
                if found[at] is None
                else found[at].astimezone(UTC).replace(tzinfo=None)
                if found[at].tzinfo
                else found[at]
            )
            assert (None if row.text is None else datetime.fromisoformat(row.text)) == same, values[at]
        elif not in_sql.startswith("STRUCT"):
            assert repr(row.v) == repr(found[at]), values[at]


def test_rows_from_a_time_on_equal_the_log(spark: SparkSession, log: Log, to: Path) -> None:
    """A topic that is compacted after it was loaded: what lies before that time stays as it was."""
    log.create_topic("t", partitions=2, segment_bytes=1_024)
    first = [r._replace(key=b"key-%d" % (n % 9)) for n, r in enumerate(records(60))]
    for n in range(0, 60, 10):
        log.append_many("t", first[n : n + 10])
    load(log, topic="t", to=to, spark=spark)
    before = in_log(log)
    assert in_table(spark, to) == before
    log.alter_topic("t", cleanup_policy="compact")
    log.compact("t")
    assert len(in_log(log)) < len(before)
    done = load(log, to=to, from_time=moment(6 * 30 + 1), spark=spark)
    cuts = {p: start for p, (start, _) in done.offsets.items()}
    now = [r for r in before if r[1] < cuts[r[0]]] + [r for r in in_log(log) if r[1] >= cuts[r[0]]]
    assert in_table(spark, to) == sorted(now)
    assert done.replaced == len(before) - len(now) + done.records
    assert places(to) == dict.fromkeys(((r[0], r[1]) for r in now), 1)
    # And what comes then is loaded as ever.
    log.append_many("t", first[:5])
    assert load(log, to=to, spark=spark).records == 5


def test_retention_gaps_are_skipped_if_allowed(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t")
    log.append_many("t", records(10))
    load(log, topic="t", to=to, spark=spark)
    before = in_log(log)
    log.append_many("t", records(10))
    log.delete_records("t", 0, 15)
    with pytest.raises(embedlog.RecordsLost):
        load(log, to=to, spark=no_spark)
    done = load(log, to=to, allow_data_loss=True, spark=spark)
    assert [(each.start, each.end, each.load) for each in done.lost] == [(10, 15, 2)]
    assert in_table(spark, to) == before + in_log(log)
    found = status(log, to=to)
    assert found.manifest is not None and found.manifest.lost == done.lost


def test_only_committed_transactions(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t")
    transactions = Transactions(lambda batch: coordinated(partition_of(log), batch).base_offset)
    transactions.send(1, b"a", b"b")
    transactions.send(2, b"c")
    transactions.end(2, commit=False)
    transactions.end(1, commit=True)
    transactions.send(3, b"d")
    transactions.plain(b"e")
    load(log, topic="t", to=to, spark=spark)
    assert [(r[1], r[4]) for r in in_table(spark, to)] == transactions.expected() == [(0, b"a"), (1, b"b")]
    transactions.end(3, commit=True)
    load(log, to=to, spark=spark)
    assert [(r[1], r[4]) for r in in_table(spark, to)] == transactions.expected()


def test_from_brokers(spark: SparkSession, path: Path, to: Path) -> None:
    with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", records(20))
        assert load(log, topic="t", to=to, spark=spark).records == 20
        assert in_table(spark, to) == in_log(log)
        log.append_many("t", records(3))
        assert status(log, to=to).lag == 3
        assert load(f"kafka://{broker.bootstrap_servers}", to=to, spark=spark).records == 3
        assert in_table(spark, to) == in_log(log)


def test_damage_is_named_and_nothing_is_loaded(spark: SparkSession, path: Path, to: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append_many("t", records(20))
        load(log, topic="t", to=to, spark=spark)
        for _ in range(3):
            log.append_many("t", records(20))
        expected = in_log(log)
    segment = path / "t_0" / "00000000000.kafka"
    whole = segment.read_bytes()
    flip(segment, len(whole) * 5 // 8)  # within the third batch of four
    with pytest.raises(embedlog.LoadFailed, match=r"00000000000\.kafka.*CRC.*Nothing was loaded"):
        load(path, to=to, spark=spark)
    assert in_table(spark, to) == expected[:20]
    segment.write_bytes(whole)
    assert load(path, to=to, spark=spark).records == 60
    assert in_table(spark, to) == expected


def test_a_wrong_schema_does_not_spoil_the_table(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t")
    log.append("t", b'{"n": 1, "day": "2013-02-03"}')
    for schema, column, reason in (
        ("n WRONG", None, "is not like"),
        ("n INT, N INT", None, "twice"),
        ("event_date DATE", None, "one of the table's own"),
        ("n INT, _offset INT", None, "one of the table's own"),
        ("n INT, day DATE", "n", "must be a DATE or TIMESTAMP of the schema, not 'n'; there are day"),
        (None, "day", "give the schema, too"),
    ):
        with pytest.raises(embedlog.InvalidArgument, match=reason):
            load(log, topic="t", to=to, schema=schema, date_column=column, spark=spark)
    load(log, topic="t", to=to, schema="n INT, day DATE", date_column="day", spark=spark)
    assert [(r.n, r.event_date) for r in warehouse(spark, to).collect()] == [(1, date(2013, 2, 3))]


def test_one_load_at_a_time(spark: SparkSession, log: Log, to: Path) -> None:
    log.create_topic("t")
    log.append("t", b"x")
    with Table(to).locked(), pytest.raises(embedlog.TableLocked):
        load(log, topic="t", to=to, spark=spark)
    # Two that begin at the same moment: one is refused, or finds nothing to do.
    done: list[int | str] = []

    def run() -> None:
        try:
            done.append(load(log, topic="t", to=to, spark=spark).records)
        except embedlog.TableLocked:
            done.append("locked")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, done)) in (["1", "locked"], ["0", "1"])
    assert in_table(spark, to) == in_log(log)


def test_empty_and_missing_tables(spark: SparkSession, log: Log, to: Path) -> None:
    with pytest.raises(embedlog.TableError, match="not a table yet"):
        warehouse(spark, to)
    log.create_topic("t")
    load(log, topic="t", to=to, spark=spark)
    assert in_table(spark, to) == []
    assert warehouse(spark, to, bad=True).collect() == []
    log.append("t", Record(value=b"x").value)
    assert load(log, to=to, spark=spark).records == 1
