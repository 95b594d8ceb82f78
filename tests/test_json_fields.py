"""Fields that the compiled loops take out of JSON are those that DuckDB finds, whatever the values are, and
only values that fit their types are taken."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from rounds import examples

from embedlog.codec import loops, plain_json
from embedlog.codec.columns import NUMBERS, REALS, TEXTS, BytesColumn, JsonField
from embedlog.sql.fields import Field
from embedlog.sql.fields import declared as declared_fields
from embedlog.sql.json_columns import JsonColumns

compiled_json = pytest.importorskip(
    "embedlog.codec.compiled_json", reason="built without a compiler", exc_type=ImportError
)

NAMES = ("a", "bé", "", "a/b~'", "quantity")
TYPES = ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "DECIMAL(18,3)", "TIMESTAMP", "JSON", "BIGINT[]")
numbers = st.integers() | st.floats() | st.sampled_from([10**30, -(10**25), 1e300, 5e-324, 0.1, -0.0])
leaves = (
    st.none()
    | st.booleans()
    | numbers
    | st.text(max_size=12)
    | st.sampled_from(["7", "1.5", "true", "2026-01-02 03:04:05", "é" * 9, 'say "x"', "\\", "\x7f", "\0"])
)
anything = st.recursive(
    leaves,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text(max_size=3), deeper, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(
    st.sampled_from([*NAMES, "other", "qu\\", "QUANTITY"]) | st.text(max_size=3), anything
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Mostly JSON."""
    text = json.dumps(
        draw(objects | anything),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1, "\t"])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", " : ")])),
    ).encode(errors="surrogatepass")
    if draw(st.integers(0, 3)):
        return text
    at = draw(st.integers(0, len(text)))
    end = at + draw(st.integers(0, 2))
    put = draw(st.sampled_from([b"", b"\xff", b"\xc3", b"\x00", b"{", b"}", b",", b" ", b'"', b"1"]))
    return text[:at] + put + text[end:]


def answers(connection: Any, module: Any, values: list[bytes | None], kind: str) -> tuple[list[Any], str]:
    """What SQL gives for fields of a type, and what is said of values that do not fit it."""
    fields = [Field(name, name or "_", kind) for name in NAMES]
    with mock.patch.object(loops, "json_fields", module.json_fields):
        columns = JsonColumns(fields)
        connection.register("read", pa.table(columns.read(pa.array(values, pa.binary()))))
        unfit = columns.close()
    asked = ", ".join(field.expression for field in fields)
    return connection.execute(f"SELECT {asked} FROM read AS scanned").fetchall(), unfit


def _compared(found: tuple[list[Any], str]) -> str:
    """nan is not nan, and the rows that are left are checked before the others: another field or value may be
    the first."""
    counts = re.sub(r" .the first: .*?.(?=; [0-9]+ values? |$)", "", found[1], flags=re.DOTALL)
    return f"{found[0]} {sorted(counts.split('; '))}"


def strings(rows: int, column: BytesColumn) -> pa.Array:
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    made = pa.StringArray.from_buffers(rows, pa.py_buffer(column.ends), pa.py_buffer(column.data), valid)
    made.validate(full=True)
    return made


@example(
    values=[
        b'{"a": 1, "a": 2}',
        b'{"\\u0061": 1}',
        b'{"a": "\\ud800"}',
        b'{"a": 1e400, "quantity": NaN}',
        None,
    ]
)
@example(
    values=[
        b'{"a":1} ',
        b'{"a":1}x',
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":-}',
        b'{"a":1.}',
        b'{"a":.5}',
        b'{"a":-0}',
    ]
)
@example(
    values=[
        b"",
        b"{",
        b"{}",
        b'{"',
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":tru}',
        b'{"a":[1,2',
        b"\xff",
        b" {} ",
    ]
)
@example(
    values=[
        b'{"a": "\xc0\xaf"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"x": "\xf4\x90\x80\x80", "a": 1}',
        b'{"a": 1} \xff',
    ]
)
@example(values=[b"[" * 5000, b'{"x":' + b"[" * 70 + b"]" * 70 + b', "a": 1}', b'{"a": ' + b"9" * 90 + b"}"])
@settings(deadline=None, max_examples=examples(10), phases=[Phase.explicit, Phase.generate])
@given(values=st.lists(st.none() | texts(), min_size=1, max_size=20))
def test_they_are_duckdbs(values: list[bytes | None]) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        for kind in TYPES:
            found = answers(connection, compiled_json, values, kind)
            expected = answers(connection, plain_json, values, kind)
            assert _compared(found) == _compared(expected), kind


def test_common_values_are_taken() -> None:
    common: list[dict[str, object]] = [
        {"a": 1, "bé": "Zürich", "quantity": None, "list": [1, {"x": []}], "note": 'say "x"\n'},
        {"a": -12.5, "quantity": True},
        {},
    ]
    values = [json.dumps(value, ensure_ascii=False).encode() for value in common]
    valid, ends, data = pa.array(values, pa.binary()).buffers()
    fields = [JsonField(b"a", REALS), JsonField("bé".encode(), TEXTS), JsonField(b"quantity", TEXTS)]
    columns, left = compiled_json.json_fields(BytesColumn(valid, ends, data), 3, fields)
    assert left is None
    assert [strings(3, column).to_pylist() for column in columns] == [
        ["1", "-12.5", None],
        ["Zürich", None, None],
        [None, "true", None],
    ]


def test_escapes_are_taken() -> None:
    texts = ['"\\/\b\f\n\r\tZürich\u20ac', "\x7f\x01", "plain"]
    values = [json.dumps({"a": text}).encode() for text in texts] + [
        b'{"a": "\\/"}',
        b'{"a": "\\ud83d\\ude00"}',
    ]
    valid, ends, data = pa.array(values, pa.binary()).buffers()
    (column,), left = compiled_json.json_fields(BytesColumn(valid, ends, data), 5, [JsonField(b"a", TEXTS)])
    assert strings(5, column).to_pylist() == [*texts, "/", None]
    assert left is not None and left[0] == 1 << 4  # a surrogate


@pytest.mark.parametrize(
    ("field", "taken", "left"),
    [
        (
            JsonField(b"a", NUMBERS, 3, 0),
            ["-999", "999", "0"],
            ["1000", "5.0", "1e2", '"5"', "true", "-0", "[]"],
        ),
        (JsonField(b"a", NUMBERS, 2, 0, False), ["99"], ["-1"]),
        (JsonField(b"a", NUMBERS, 0, 2), ["0.12", "-0.5", "0"], ["1", "0.123"]),
        (JsonField(b"a", REALS), ["1e99", "-0.5", "7"], ["1e999", '"1"', "true"]),
    ],
)
def test_a_form_takes_what_surely_fits(field: JsonField, taken: list[str], left: list[str]) -> None:
    values = [b'{"a": %s}' % text.encode() for text in (*taken, *left)]
    valid, ends, data = pa.array(values, pa.binary()).buffers()
    (column,), bits = compiled_json.json_fields(BytesColumn(valid, ends, data), len(values), [field])
    assert strings(len(values), column).to_pylist() == [*taken, *(None for _ in left)]
    assert bits is not None
    assert [bits[row >> 3] >> (row & 7) & 1 for row in range(len(values))] == [0] * len(taken) + [1] * len(
        left
    )


@pytest.mark.parametrize("module", [compiled_json, plain_json], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    ("kind", "fit", "unfit"),
    [
        (
            "BIGINT",
            {"5": 5, "-9223372036854775808": -(2**63), '"5"': 5, "5.0": 5, '"-7.00"': -7},
            [
                "0.4",
                '"5.50"',
                "9223372036854775808",
                "1e3",
                "true",
                '"007"',
                '"0x10"',
                '" 5"',
                '""',
                "[5]",
                "{}",
            ],
        ),
        ("TINYINT", {"127": 127, "-128": -128}, ["128", "-129", "0.5"]),
        ("UBIGINT", {str(2**64 - 1): 2**64 - 1}, ["-1", str(2**64)]),
        ("HUGEINT", {str(2**127 - 1): 2**127 - 1, "-3": -3}, [str(2**127), "1.5"]),
        (
            "DECIMAL(5,2)",
            {
                "1.10": Decimal("1.10"),
                '"2.5"': Decimal("2.50"),
                "999.99": Decimal("999.99"),
                "1.500": Decimal("1.50"),
            },
            ["1.105", "1000", "1e2", '"x"', "false"],
        ),
        (
            "DECIMAL(38,20)",
            {"0.12345678901234567890": Decimal("0.12345678901234567890")},
            ["0.123456789012345678901"],
        ),
        (
            "DOUBLE",
            {"1": 1.0, "1e3": 1000.0, '"2.5"': 2.5, '"Infinity"': float("inf")},
            ["1e400", "true", '"x"', '"inf"'],
        ),
        ("FLOAT", {"0.5": 0.5}, ["1e39", '"1e39"']),
        ("BOOLEAN", {"true": True, '"false"': False}, ["1", "0", '"yes"', '"t"']),
        ("DATE", {'"2026-01-02"': None}, ['"2026-01-02 10:00:00"', "20260102"]),
        (
            "TIMESTAMP",
            {'"2026-01-02T03:04:05.123456"': None, '"2026-01-02"': None},
            ['"2026-01-02 03:04:05.1234567"', "7"],
        ),
        ("TIMESTAMP_S", {'"2026-01-02 03:04:05"': None}, ['"2026-01-02 03:04:05.5"']),
        ("UUID", {'"7b3d1a52-6a3c-4a3e-9c55-7cbd1f8f3d11"': None}, ['"x"', "1"]),
        ("VARCHAR", {"1.10": "1.10", "1e3": "1e3", "true": "true", '""': "", "[1, 2]": "[1,2]"}, []),
        ("JSON", {"1": "1", '"x"': '"x"', "[1, {}]": "[1,{}]"}, []),
        ("INTEGER[]", {"[1, null]": [1, None], "[]": []}, ["[1, 0.4]", "1", '["x"]', '{"a": 1}']),
        ("STRUCT(a INTEGER)", {'{"a": 1, "b": 2}': {"a": 1}, "{}": {"a": None}}, ['{"a": 0.4}', "[1]"]),
        ("MAP(VARCHAR, INTEGER)", {'{"a": 1}': {"a": 1}}, ['{"a": 0.4}']),
    ],
)
def test_values_that_fit(module: Any, kind: str, fit: dict[str, Any], unfit: list[str]) -> None:
    """As they are written, or NULL, and counted: never changed."""
    (field,) = declared_fields({"a": kind})
    values = [b'{"a": %s}' % text.encode() for text in (*fit, *unfit, "null")] + [b"{}", b"no", None, b"\xff"]
    with duckdb.connect() as connection, mock.patch.object(loops, "json_fields", module.json_fields):
        columns = JsonColumns([field])
        connection.register("read", pa.table(columns.read(pa.array(values, pa.binary()))))
        found = [
            row[0] for row in connection.execute(f"SELECT {field.expression} FROM read AS scanned").fetchall()
        ]
        said = columns.close()
    for value, expected in zip(found, fit.values(), strict=False):
        assert value is not None and expected in (None, value)
    assert found[len(fit) :] == [None] * (len(unfit) + 5)
    verbs = "values of a do not fit {} and are" if len(unfit) > 1 else "value of a does not fit {} and is"
    assert said.startswith(f"{len(unfit)} {verbs.format(field.type)} NULL" if unfit else "") and bool(
        said
    ) == bool(unfit)
