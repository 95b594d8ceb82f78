"""The fast encoder of a single record equals the batch encoder, whose golden bytes are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.codec import TIMESTAMP_TYPE_BIT, encode_batch, loops

TIME_MS = 1_700_000_000_000
MAX64 = 2**63 - 1
EDGES = (0, 1, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 127, 128, 8181, 8182, 8183, 8191, 8192, 1 << 20)

some_bytes = st.none() | st.binary(max_size=300)
some_headers = st.lists(st.tuples(st.text(max_size=20), some_bytes), max_size=3).map(tuple)


@given(some_bytes, some_bytes, st.integers(0, MAX64), st.booleans())
def test_any_record_equals_the_batch_encoder(
    key: bytes | None, value: bytes | None, timestamp_ms: int, append_time: bool
) -> None:
    wanted = encode_batch([(key, value, (), timestamp_ms)], timestamp_type=append_time)
    attributes = TIMESTAMP_TYPE_BIT if append_time else 0
    assert loops.encode_one(key, value, timestamp_ms, attributes, 0, -1) == wanted


@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("key_length", [None, 0, 1, 63, 64])
def test_lengths_around_varint_boundaries(key_length: int | None, length: int) -> None:
    key = None if key_length is None else b"k" * key_length
    for value in (b"v" * length, None):
        wanted = encode_batch([(key, value, (), TIME_MS)])
        assert loops.encode_one(key, value, TIME_MS, 0, 0, -1) == wanted


def test_the_batch_can_be_changed_in_place() -> None:
    assert type(loops.encode_one(b"k", b"v", TIME_MS, 0, 0, -1)) is bytearray
