"""What a search finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import InvalidArgument
from embedlog.model import Record
from embedlog.ui.query import Query

VALUE = {
    "user": {"id": 7, "name": "Ann", "tags": ["new", "Paris"]},
    "price": 12.5,
    "paid": True,
    "note": None,
    "a.b": "dotted",
    "items": [{"sku": "x1"}, {"sku": "x2", "n": 3}],
    "key": "inner",
    "quoted": 'say "hi" = all',
    "big": 10**30,
}
RECORD = Record(
    "t", 0, 0, 0, 0, b"user-7", json.dumps(VALUE).encode(), (("trace", b"9F"), ("none", None), ("n", b"41"))
)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "ann",
            "Ann",
            "PARIS OR Paris",
            "user-7",
            "9f",
            "trace",
            '"say \\\\\\"hi"',
            "key:user",
            "key=user-7",
        ),
        *("key=*", "value:price", "header:9f", "header=9F", "header.trace=9F", "header.n>40", "header.n<=41"),
        *("user.id=7", "user.id=7.0", "user.id>6", "user.id>=7", "user.id<8", "user.name=Ann"),
        *("user.name:ann", "user.name>Am", "user.tags.1=Paris", "user.tags.*=new", "user.tags:paris"),
        *("price=12.5", "price<13", "paid=true", "note=null", "note=*", "a.b=dotted", "items.*.sku=x2"),
        *("items.1.n=3", "items.*.n>2", "value.key=inner", "user=*", "user:ann", "big=1" + "0" * 30),
        *("-absent", "user.id!=8", "absent!=1", "ann -bob", "bob OR ann", "bob OR ann user.id=7"),
        *('quoted="say \\"hi\\" = all"', "user.id:7"),
    ],
)
def test_finds(text: str) -> None:
    assert Query(text).matches(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        *("ANN", "bob", "key=user", "key:Use", "header.trace=9f", "header.absent=*", "header.none=x"),
        *("header.trace<1", "user.id=8", "user.id>7", 'user.id="*"', "user.id=ann", "user.name=ann"),
        *("paid=True", "note=none", "items.2.sku=*", "items.²=*", "items.x=*", "absent=*", "price.x=*"),
        *("-ann", "user.id!=7", "ann bob", "user.name.upper=*", "user<1", "key.id=7", "absent<1"),
    ],
)
def test_does_not_find(text: str) -> None:
    assert not Query(text).matches(RECORD)


@pytest.mark.parametrize(
    "text", ['"', 'a "b', 'x="', 'a"b', "OR", "a OR", "OR a", "a OR OR b", "", "x" * 1_001]
)
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Query(text)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"user":' * 5_000,
        b'{"user": 1e999}',
        b'{"user": "\\ud800"}',
        b"7",
    ],
)
def test_hostile_values(value: bytes | None) -> None:
    """They have no such field, whatever they are."""
    record = RECORD._replace(value=value)
    assert not Query("user.id=7").matches(record)
    assert Query("user.id!=7").matches(record)
    assert not Query("user:absent").matches(record)


def test_escapes_are_no_hiding_place() -> None:
    record = RECORD._replace(value=rb'{"\u0075ser": {"id": "\u0037x"}}')
    assert Query("user.id=7x").matches(record)


@given(
    st.text(max_size=60),
    st.recursive(
        st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
    ),
)
def test_anything(text: str, value: Any) -> None:
    """A search is read or refused, and looks at any record without an error."""
    try:
        query = Query(text)
    except InvalidArgument:
        return
    query.matches(RECORD._replace(value=json.dumps(value).encode()))


@given(st.dictionaries(st.text('abc."\\é', min_size=1), st.text('xy"\\é\n'), min_size=1))
def test_every_field_is_found(value: dict[str, str]) -> None:
    """Whether JSON escapes it or not."""
    for ascii_only in (True, False):
        record = RECORD._replace(value=json.dumps(value, ensure_ascii=ascii_only).encode())
        for name, text in value.items():
            if '"' not in name:
                escaped = text.replace("\\", "\\\\").replace('"', '\\"')
                assert Query(f'value.{name}="{escaped}"').matches(record)
