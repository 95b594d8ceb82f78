"""Records as text and JSON, both ways."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.cli.text import (
    formatter,
    in_a_line,
    printable,
    record_as_json,
    record_as_json_line,
    record_from_json,
)
from embedlog.cli.ui import UI, Column, shortened
from embedlog.clients import notebook
from embedlog.errors import InvalidArgument
from embedlog.model import Record
from embedlog.units import counted, day, duration, iso, moment, record_time, size

data = st.none() | st.binary(max_size=30) | st.text(max_size=20).map(str.encode)
records = st.builds(
    Record,
    topic=st.just("t"),
    partition=st.integers(0, 9),
    offset=st.integers(0, 1 << 40),
    timestamp_ms=st.integers(0, 1 << 50),
    timestamp_type=st.integers(0, 1),
    key=data,
    value=data,
    headers=st.lists(st.tuples(st.text(max_size=5), data), max_size=3).map(tuple),
)


@given(records)
def test_json_round_trip(record: Record) -> None:
    line = json.dumps(record_as_json(record), ensure_ascii=False, separators=(",", ":")) + "\n"
    assert record_as_json_line(record) == line
    assert record_from_json(line.encode()) == record._replace(topic="", offset=-1, timestamp_type=0)


def test_json_of_bytes() -> None:
    record = Record("t", 0, 7, 12, 0, b"k", b"\xff\x00", (("h", None),))
    assert record_as_json(record) == {
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "timestamp_ms": 12,
        "timestamp_type": "CreateTime",
        "key": "k",
        "value": {"base64": "/wA="},
        "headers": [["h", None]],
    }


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("{}", Record()),
        ('{"value": "a"}', Record(value=b"a")),
        ('{"value": {"page": "/", "n": [1, 2.5, null]}}', Record(value=b'{"page":"/","n":[1,2.5,null]}')),
        ('{"value": 7, "key": true}', Record(value=b"7", key=b"true")),
        ('{"value": {"base64": "/wA="}}', Record(value=b"\xff\x00")),
        ('{"headers": {"a": "b"}}', Record(headers=(("a", b"b"),))),
        ('{"timestamp": "2024-05-01T00:00:00Z"}', Record(timestamp_ms=1_714_521_600_000)),
        ('{"timestamp": 5, "partition": 2}', Record(timestamp_ms=5, partition=2)),
    ],
)
def test_valid_input_of_append(line: str, record: Record) -> None:
    assert record_from_json(line.encode()) == record


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"partition": "x"}', "partition must be"),
        ('{"partition": -1}', "partition must be"),
        ('{"timestamp": "soon"}', "timestamp must be"),
        ('{"headers": 5}', "headers must be"),
        ('{"headers": [["a"]]}', "a header must be"),
        ('{"value": {"base64": "?"}}', "value is not base64"),
        ('{"value": {"base64": 5}}', "value is not base64"),
        ('{"key": "\\ud800"}', "key is not text"),
        ('{"val": "a"}', "unknown field 'val' \\(did you mean 'value'\\?"),
        ('{"VALUE": "a"}', "unknown field 'VALUE' \\(did you mean 'value'\\?"),
        ('{"value": "a", "timestampMs": 5}', "unknown field 'timestampMs' \\(did you mean 'timestamp_ms'\\?"),
        ('{"value": "a", "kay": "b"}', "unknown field 'kay' \\(did you mean 'key'\\?"),
        ('{"value": "a", "page": "/"}', "unknown field 'page' \\(the fields are value, key, headers, "),
    ],
)
def test_invalid_input_of_append(line: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        record_from_json(line.encode())


def test_formats() -> None:
    record = Record("t", 1, 42, 1_714_521_600_123, 0, b"k\xff", b"v", (("a", b"b"), ("c", None)))
    assert formatter("{value}")(record) == b"v"
    assert formatter(r"{offset:>5}\t{key} {headers}")(record) == b"   42\tk\xff a=b,c="
    assert formatter("{timestamp} {timestamp_ms} {topic}-{partition}")(record) == (
        b"2024-05-01T00:00:00.123Z 1714521600123 t-1"
    )
    assert formatter("{key}|{value}")(Record()) == b"|"


@pytest.mark.parametrize("template", ["{nothing}", "{", "{0}", "{key.x}", "{offset:zz}", "{key!q}"])
def test_formats_that_cannot_be_filled_in(template: str) -> None:
    with pytest.raises(InvalidArgument, match="--format"):
        formatter(template)


def test_control_characters_are_escaped_on_a_terminal() -> None:
    assert printable("a\u202eb\u2066c\ufeff".encode()) == r"a\u202eb\u2066c\ufeff"
    assert in_a_line("a\tb\r\n\u2028".encode()) == r"a\tb\x0d\n\u2028"
    assert printable(b"a\tb\x1b[31m\xff\xc3\xa4\n") == "a\tb\\x1b[31m\\xff\u00e4\n"


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("clicks", 6, "clicks"),
        ("a-long-name", 10, "a-lo…-name"),
        ("a-long-name", 3, "a…e"),
        ("ein-sehr-langer-name", 11, "ein-s…-name"),
        ("話題の名前はとても長い", 11, "話題…も長い"),  # each of them is two wide
    ],
)
def test_long_names_are_elided_in_the_middle(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown


def test_days_are_shown_as_ls_does() -> None:
    now = time.time_ns() // 1_000_000
    today, then = datetime.fromtimestamp(now / 1000), datetime.fromtimestamp(1_699_135_200)
    assert day(now) == f"{today.day:2} {today:%b %H:%M}"
    assert day(1_699_135_200_000) == f"{then.day:2} Nov  2023"
    assert [day(ms) for ms in (-1, 2**62)] == ["-", f"{2**62} ms"]


def test_times_of_records() -> None:
    assert record_time(1_700_000_000_007).endswith(":20.007")
    assert record_time(1_700_000_000_007)[:-4] == moment(1_700_000_000_007)
    assert record_time(-1) == "-"
    assert record_time(1 << 62) == f"{1 << 62} ms"
    assert record_time(-1 << 62) == f"{-1 << 62} ms"


def test_times_before_1970() -> None:
    noon_ms = -7_305 * 86_400_000 + 43_200_007  # so that it is the same day in all time zones but two
    assert moment(noon_ms)[:10] == moment(noon_ms - 1)[:10] == "1950-01-01"
    assert record_time(noon_ms).endswith(".007")
    assert day(noon_ms) == " 1 Jan  1950"
    assert iso(noon_ms) == "1950-01-01T12:00:00.007Z"
    assert iso(-62_135_596_800_000) == "0001-01-01T00:00:00.000Z"
    assert moment(-2)[-2:] == "59"  # -1 is Kafka's for none
    assert (moment(-1), day(-1), iso(-1)) == ("-", "-", "")
    assert notebook.record_time(noon_ms) == "1950-01-01 12:00:00.007"
    assert notebook.record_time(-1) == "-"


def test_names_of_strangers_cannot_break_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    ui = UI()
    ui.table([Column("group"), Column("lag", right=True)], [["a\nb\r\x1b[2J\u202ec\td", 7]])
    ui.note("the group \u2067x\x9b")
    ui.error("no group '\u202e'\n\x07 try again")
    ui.line("\x1b]0;title\x07")
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"{'group':<25}  lag",
        r"a\nb\x0d\x1b[2J\u202ec\td" + "    7",
        r"\x1b]0;title\x07",
    ]
    assert said.err.splitlines() == [r"the group \u2067x\x9b", r"no group '\u202e'", r"\x07 try again"]


def test_units() -> None:
    assert [size(n) for n in (0, 999, 1000, 14_200_000, 2_100_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "14.2 MB",
        "2.1 GB",
    ]
    assert [duration(s) for s in (-1, 0.003, 2.44, 300, 7200, 86_400 * 12, 86_400 * 800)] == [
        "0 ms",
        "3 ms",
        "2.4 s",
        "5 min",
        "2 h",
        "12 days",
        "2 years",
    ]
    assert [counted(1, "entry"), counted(2, "entry"), counted(1200, "batch")] == [
        "1 entry",
        "2 entries",
        "1,200 batches",
    ]
