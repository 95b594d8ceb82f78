"""Varints: their bytes, their bounds, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.codec import varint
from embedlog.errors import CorruptRecord, InvalidArgument

KNOWN = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-2, "03"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
KNOWN_LONG = [
    *KNOWN,
    (2**31, "8080808010"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("number", "text"), KNOWN)
def test_known_varints(number: int, text: str) -> None:
    assert varint.encode_varint(number).hex() == text
    assert varint.decode_varint(bytes.fromhex(text)) == (number, len(text) // 2)


@pytest.mark.parametrize(("number", "text"), KNOWN_LONG)
def test_known_varlongs(number: int, text: str) -> None:
    assert varint.encode_varlong(number).hex() == text
    assert varint.decode_varlong(b"\xff" + bytes.fromhex(text) + b"\x00", 1) == (number, 1 + len(text) // 2)


@given(st.integers(varint.MIN_INT32, varint.MAX_INT32))
def test_varint_round_trip(number: int) -> None:
    made = varint.encode_varint(number)
    assert varint.decode_varint(made) == (number, len(made))
    assert varint.varint_size(number) == len(made) <= varint.MAX_VARINT_BYTES


@given(st.integers(varint.MIN_INT64, varint.MAX_INT64))
def test_varlong_round_trip(number: int) -> None:
    made = varint.encode_varlong(number)
    assert varint.decode_varlong(made) == (number, len(made))
    assert len(made) <= varint.MAX_VARLONG_BYTES


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63, -(2**70)])
def test_varint_refuses_overflow(number: int) -> None:
    with pytest.raises(InvalidArgument):
        varint.encode_varint(number)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64])
def test_varlong_refuses_overflow(number: int) -> None:
    with pytest.raises(InvalidArgument):
        varint.encode_varlong(number)


@pytest.mark.parametrize("text", ["", "80", "ffff", "ffffffff1f", "8080808080", "808080808000"])
def test_damaged_varints(text: str) -> None:
    with pytest.raises(CorruptRecord) as caught:
        varint.decode_varint(bytes.fromhex(text))
    assert caught.value.pos == 0


@pytest.mark.parametrize("text", ["", "ff" * 9, "ff" * 10, "ff" * 9 + "03", "80" * 10 + "00"])
def test_damaged_varlongs(text: str) -> None:
    with pytest.raises(CorruptRecord):
        varint.decode_varlong(bytes.fromhex(text))


def test_reading_stops_at_the_given_end() -> None:
    with pytest.raises(CorruptRecord, match="past the end"):
        varint.decode_varint(b"\x80\x01", 0, 1)
