"""Fields that the compiled loops take out of JSON are those that DuckDB finds, whatever the values are."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embedlog.codec import plain_json
from embedlog.codec.columns import BytesColumn
from embedlog.sql.fields import Field

compiled_json = pytest.importorskip("embedlog.codec.compiled_json", reason="built without a compiler")

NAMES = ("a", "bé", "", "a/b~'", "quantity")
TYPES = ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "DECIMAL(18,3)", "TIMESTAMP")
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


def answers(
    connection: Any, module: Any, values: list[bytes | None], kind: str
) -> tuple[list[Any], set[int]]:
    """What SQL gives for fields of a type, and which rows are left."""
    fields = [Field(name, name or "_", kind) for name in NAMES]
    valid, ends, data = pa.array(values, pa.binary()).buffers()
    names, reals = [field.name.encode() for field in fields], [kind == "DOUBLE"] * len(fields)
    columns, bits = module.json_fields(BytesColumn(valid, ends, data or b""), len(values), names, reals)
    left = bits or bytes(len(values))
    table = {"left": strings(len(values), BytesColumn(left, ends, data or b""))}
    for field, column in zip(fields, columns, strict=True):
        assert field.source is not None
        table[field.source] = strings(len(values), column)
    connection.register("read", pa.table(table))
    asked = ", ".join(field.expression for field in fields)
    found = connection.execute(f"SELECT {asked} FROM read AS scanned").fetchall()
    return found, {row for row in range(len(values)) if left[row >> 3] >> (row & 7) & 1}


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
@settings(deadline=None, max_examples=15)
@given(values=st.lists(st.none() | texts(), min_size=1, max_size=20))
def test_they_are_duckdbs(values: list[bytes | None]) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        for kind in TYPES:
            found, left = answers(connection, compiled_json, values, kind)
            expected, all_texts = answers(connection, plain_json, values, kind)
            assert repr(found) == repr(expected), kind  # nan is not nan
            assert left <= all_texts


def test_common_values_are_taken() -> None:
    common: list[dict[str, object]] = [
        {"a": 1, "bé": "Zürich", "quantity": None, "list": [1, {"x": []}], "note": 'say "x"\n'},
        {"a": -12.5, "quantity": True},
        {},
    ]
    values = [json.dumps(value, ensure_ascii=False).encode() for value in common]
    valid, ends, data = pa.array(values, pa.binary()).buffers()
    names = [b"a", "bé".encode(), b"quantity"]
    columns, left = compiled_json.json_fields(BytesColumn(valid, ends, data), 3, names, [True] * 3)
    assert left is None
    assert [strings(3, column).to_pylist() for column in columns] == [
        ["1", "-12.5", None],
        ["Zürich", None, None],
        [None, "true", None],
    ]
