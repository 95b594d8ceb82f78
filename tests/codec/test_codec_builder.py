"""The batch builder: the bytes of `encode_batch`, record by record, and never more than there is room for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.codec import (
    GZIP,
    HEADER_SIZE,
    NONE,
    ZSTD,
    crc_matches,
    encode_batch,
    loops,
    plain_encoding,
    read_header,
)
from embedlog.errors import InvalidType

T = 1_700_000_000_000
MAX64, MIN64 = 2**63 - 1, -(2**63)
ROOM = 1 << 30

sizes = st.sampled_from([0, 1, 55, 56, 62, 63, 64, 65, 127, 128, 400, 600, 8191, 8192])
some_bytes = st.none() | st.binary(max_size=80) | st.builds(bytes, sizes)
odd_bytes = some_bytes | st.builds(bytearray, sizes) | st.builds(lambda size: memoryview(bytes(size)), sizes)
timestamps = st.sampled_from([T, T, T + 1, T - 64, 0, -1, MAX64, MIN64]) | st.integers(MIN64, MAX64)
names = st.text(max_size=20) | st.sampled_from(["", "é" * 40, "n" * 64])
headers = st.lists(st.tuples(names, odd_bytes), max_size=3).map(tuple)
rows = st.lists(st.tuples(odd_bytes, odd_bytes, headers, timestamps), min_size=1, max_size=70)


def built(given_rows: list[Any], append_time: bool = False) -> Any:
    builder = loops.BatchBuilder(ROOM, append_time)
    for row in given_rows:
        assert builder.add(*row)
    return builder


@given(rows, st.sampled_from([NONE, GZIP, ZSTD]))
def test_the_same_bytes_as_all_at_once(given_rows: list[Any], compression: int) -> None:
    builder = built(given_rows)
    assert builder.count == len(given_rows)
    assert builder.base_timestamp_ms == given_rows[0][3]
    assert builder.max_timestamp_ms == max(row[3] for row in given_rows)
    assert builder.build(compression) == encode_batch(given_rows, compression=compression)
    plain = encode_batch(given_rows)
    assert builder.size == len(plain)
    assert builder.records() == plain[HEADER_SIZE:]
    assert builder.build() == builder.build() == plain


@given(rows, st.integers(0, 10_000), st.integers(0, 70))
def test_extending_is_adding_until_one_does_not_fit(given_rows: list[Any], room: int, start: int) -> None:
    one_by_one, at_once = loops.BatchBuilder(room), loops.BatchBuilder(room)
    added = min(start, len(given_rows))
    while added < len(given_rows) and one_by_one.add(*given_rows[added]):
        added += 1
    assert at_once.extend(given_rows, start) == max(added, start)
    assert at_once.count == one_by_one.count == max(added - start, 0)
    if at_once.count:
        assert at_once.build() == one_by_one.build() == encode_batch(given_rows[start:added])
        assert at_once.max_timestamp_ms == one_by_one.max_timestamp_ms


@given(rows, st.integers(0, 20_000), st.booleans())
def test_no_batch_of_several_records_is_larger_than_its_room(
    given_rows: list[Any], room: int, append_time: bool
) -> None:
    builders = [loops.BatchBuilder(room, append_time)]
    for row in given_rows:
        before = builders[-1].records() if builders[-1].count else b""
        if not builders[-1].add(*row):
            assert builders[-1].records() == before
            builders.append(loops.BatchBuilder(room, append_time))
            assert builders[-1].add(*row)
    plain = [plain_encoding.BatchBuilder(room, append_time)]
    position = 0
    for builder in builders:
        assert builder.count == 1 or builder.size <= room
        position = plain[-1].extend(given_rows, position)
        assert plain[-1].build(NONE, 1 << 30, 5) == builder.build(NONE, 1 << 30, 5)
        plain.append(plain_encoding.BatchBuilder(room, append_time))
    assert position == len(given_rows)


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193, 20_000])
def test_where_an_offset_delta_takes_one_byte_more(count: int) -> None:
    rows = [(None, b"v", (), T)] * count
    builder = loops.BatchBuilder(ROOM)
    assert builder.extend(rows) == count
    assert builder.build() == built(rows).build()
    assert builder.build() == encode_batch(rows)


@given(rows)
def test_append_time_is_that_of_the_build(given_rows: list[Any]) -> None:
    wanted = encode_batch([(*row[:3], T) for row in given_rows], timestamp_type=1)
    assert built(given_rows, append_time=True).build(append_time_ms=T) == wanted


def test_records_enlarged_by_compression_stay_plain() -> None:
    builder = built([(None, b"x", (), T)])
    assert builder.build(GZIP, builder.size) == builder.build()
    compressed = builder.build(GZIP, 1000)
    assert read_header(compressed).compression == GZIP
    assert crc_matches(compressed, read_header(compressed))


def test_a_single_record_may_be_larger_than_the_room() -> None:
    builder = loops.BatchBuilder(100)
    assert builder.add(None, b"x" * 1000, (), T)
    assert not builder.add(None, b"", (), T)
    assert builder.count == 1
    assert loops.BatchBuilder(100).extend([(None, b"x" * 1000, (), T)] * 2) == 1


WRONG: list[tuple[Any, ...]] = [
    (b"k", "text", (), T),
    ("text", b"v", (), T),
    (b"k", b"v", (("name", "text"),), T),
    (b"k", b"v", ((1, b"x"),), T),
    (b"k", b"v", ((),), T),
    (b"k", b"v", [("name", "text")], T),
    (b"k", b"v", (("\ud800", b"x"),), T),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_record_changes_nothing(wrong: tuple[Any, ...]) -> None:
    builder = built([(b"k", b"v", (), T)])
    before = builder.build()
    with pytest.raises((InvalidType, UnicodeError)) as refused:
        builder.add(*wrong)
    with pytest.raises(type(refused.value)) as plain:
        plain_encoding.BatchBuilder(ROOM).add(*wrong)
    assert str(refused.value) == str(plain.value)
    with pytest.raises(type(refused.value)):
        builder.extend([wrong])
    assert builder.build() == before


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=9)), min_size=1),
    st.integers(0, 400),
)
def test_rows_kept_as_columns_give_the_same_batches(
    pairs: list[tuple[bytes | None, bytes | None]], room: int
) -> None:
    rows = [(key, value, (), T) for key, value in pairs]
    columns = plain_encoding.ValueRows(*map(list, zip(*pairs, strict=True)), T)  # type: ignore[arg-type]
    assert list(columns) == rows
    for kind in (loops.BatchBuilder, plain_encoding.BatchBuilder):
        start = 0
        while start < len(rows):
            one, other = kind(room), kind(room)
            stop = one.extend(rows, start)
            assert other.extend(columns, start) == stop
            assert other.build() == one.build()
            start = stop
    values = plain_encoding.ValueRows(None, [value for _, value in pairs], T)
    assert list(values) == [(None, value, (), T) for _, value in pairs]
