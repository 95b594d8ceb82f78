"""0.7's messages: bytes by the book, byte offsets, wrappers, the wire's framing, damage."""

import gzip
import struct
import zlib

import pytest
from aiokafka.codec import snappy_encode
from hypothesis import given
from hypothesis import strategies as st
from old_formats import (
    decode_fetch_response_07,
    decode_messages_07,
    decode_multifetch_response_07,
    encode_fetch_response_07,
    encode_messages_07,
    encode_multifetch_response_07,
)

from embedlog import codec
from embedlog.codec.message_07 import Message07
from embedlog.errors import CorruptRecord, DecompressedTooLarge, InvalidArgument, InvalidType, UnknownMagic

SHAPES = [(0, codec.NONE), (1, codec.NONE), (1, codec.GZIP), (1, codec.SNAPPY)]
# CRC-32 of "hello" is 3610a686, as any table says.
HELLO_0 = "0000000a003610a68668656c6c6f"
HELLO_1 = "0000000b01003610a68668656c6c6f"


def message(payload: bytes, codec_number: int = 0) -> bytes:
    return struct.pack(">ibbI", len(payload) + 6, 1, codec_number, zlib.crc32(payload)) + payload


def test_bytes_by_the_book() -> None:
    assert encode_messages_07([b"hello"], 0).hex() == HELLO_0
    assert encode_messages_07([b"hello"], 1).hex() == HELLO_1
    both = bytes.fromhex(HELLO_0 + HELLO_1)
    assert decode_messages_07(both) == [Message07(0, 14, 0, b"hello"), Message07(14, 29, 0, b"hello")]


@given(st.lists(st.binary(max_size=300), max_size=20), st.sampled_from(SHAPES), st.integers(0, 2**40))
def test_round_trip(payloads: list[bytes], shape: tuple[int, int], base_offset: int) -> None:
    magic, compression = shape
    made = encode_messages_07(payloads, magic, compression)
    got = decode_messages_07(made, base_offset=base_offset)
    assert [each.payload for each in got] == payloads
    if got:
        assert got[0].offset == base_offset
        assert got[-1].next_offset == base_offset + len(made)


def test_offsets_are_byte_positions() -> None:
    made = encode_messages_07([b"a", b"bb", b"ccc"])
    assert [(m.offset, m.next_offset) for m in decode_messages_07(made)] == [(0, 11), (11, 23), (23, 36)]
    assert decode_messages_07(made, 11, base_offset=1000)[0] == Message07(1011, 1023, 0, b"bb")


@pytest.mark.parametrize("compression", [codec.GZIP, codec.SNAPPY])
def test_inside_a_wrapper_there_are_no_positions(compression: int) -> None:
    first = encode_messages_07([b"plain"])
    made = first + encode_messages_07([b"a", b"b"], 1, compression) + encode_messages_07([b"last"])
    behind = len(made) - len(encode_messages_07([b"last"]))
    assert decode_messages_07(made) == [
        Message07(0, len(first), 0, b"plain"),
        Message07(len(first), behind, 0, b"a"),
        Message07(len(first), behind, 1, b"b"),
        Message07(behind, len(made), 0, b"last"),
    ]


@pytest.mark.parametrize(("number", "pack"), [(1, gzip.compress), (2, snappy_encode)])
def test_wrappers_of_other_compressors(number: int, pack) -> None:
    inner = message(b"one") + message(b"two")
    made = message(bytes(pack(inner)), number)
    assert [each.payload for each in decode_messages_07(made)] == [b"one", b"two"]


@pytest.mark.parametrize(("magic", "compression"), SHAPES)
def test_a_cut_at_every_byte_leaves_the_last_message_out(magic: int, compression: int) -> None:
    first = encode_messages_07([b"one", b"two"], magic, compression)
    second = encode_messages_07([b"three" * 20], magic, compression)
    for cut in range(len(second)):
        assert [m.payload for m in decode_messages_07(first + second[:cut])] == [b"one", b"two"]


@pytest.mark.parametrize(("magic", "compression"), SHAPES)
def test_flips_never_change_a_payload_unseen(magic: int, compression: int) -> None:
    good = encode_messages_07([b"one" * 9, b"two" * 9], magic, compression)
    payloads = [m.payload for m in decode_messages_07(good)]
    layout = set(range(6))  # length, magic and codec of the first: outside the CRC
    for i in set(range(len(good))) - layout:
        for flip in (1, 16, 128, 255):
            bad = bytearray(good)
            bad[i] ^= flip
            try:
                got = [m.payload for m in decode_messages_07(bad)]
            except CorruptRecord as error:
                assert error.pos is not None
                continue
            assert all(payload in payloads or len(payload) in (26, 28) for payload in got)


REFUSED = {
    "length 4": struct.pack(">i", 4) + bytes(4),
    "zeros": bytes(50),
    "negative length": struct.pack(">i", -1),
    "magic 1 of length 5": struct.pack(">ibI", 5, 1, 0),
    "codec 3": message(b"x", 3),
    "wrapper inside": message(gzip.compress(message(gzip.compress(message(b"x")), 1)), 1),
    "cut off inside": message(gzip.compress(message(b"x")[:-1]), 1),
    "not compressed": message(b"compressed by nobody", 1),
    "wrong crc": message(b"x")[:-1] + b"y",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_input(name: str) -> None:
    first = message(b"first")
    with pytest.raises(CorruptRecord) as caught:
        decode_messages_07(first + REFUSED[name])
    assert caught.value.pos == len(first)


def test_another_magic_is_reported() -> None:
    with pytest.raises(UnknownMagic, match="magic 2"):
        decode_messages_07(struct.pack(">ibI", 5, 2, 0))


def test_bombs() -> None:
    for compression in (codec.GZIP, codec.SNAPPY):
        bomb = message(codec.compress(compression, bytes(8 << 20)), compression)
        with pytest.raises(DecompressedTooLarge):
            decode_messages_07(bomb, max_bytes=1 << 20)


def test_unwritable_values() -> None:
    with pytest.raises(InvalidArgument, match="magic 0 and 1"):
        encode_messages_07([b"x"], 2)
    with pytest.raises(InvalidArgument, match="no gzip for magic 0"):
        encode_messages_07([b"x"], 0, codec.GZIP)
    with pytest.raises(InvalidArgument, match="no lz4"):
        encode_messages_07([b"x"], 1, codec.LZ4)
    with pytest.raises(InvalidType, match="payload must be bytes, not str"):
        encode_messages_07(["x"])  # type: ignore[list-item]


def test_the_fetch_response() -> None:
    messages = bytes.fromhex(HELLO_1)
    made = encode_fetch_response_07(0, messages)
    assert made.hex() == "000000110000" + HELLO_1
    assert decode_fetch_response_07(made) == (0, messages)
    assert encode_fetch_response_07(1, b"").hex() == "000000020001"
    assert decode_fetch_response_07(encode_fetch_response_07(-1, b"")) == (-1, b"")


def test_the_multifetch_response() -> None:
    sets = [(0, bytes.fromhex(HELLO_1)), (1, b""), (0, bytes.fromhex(HELLO_0))]
    made = encode_multifetch_response_07(0, sets)
    assert made.hex() == "000000310000000000110000" + HELLO_1 + "000000020001000000100000" + HELLO_0
    assert decode_multifetch_response_07(made) == (0, sets)
    assert decode_multifetch_response_07(encode_multifetch_response_07(2, [])) == (2, [])


@given(
    st.integers(-(2**15), 2**15 - 1),
    st.lists(
        st.tuples(
            st.integers(-(2**15), 2**15 - 1),
            st.lists(st.binary(max_size=50), max_size=5),
            st.sampled_from(SHAPES),
        ),
        max_size=8,
    ),
)
def test_responses_round_trip(error_code: int, sets: list) -> None:
    made = [(error, encode_messages_07(payloads, *shape)) for error, payloads, shape in sets]
    decoded, found = decode_multifetch_response_07(encode_multifetch_response_07(error_code, made))
    assert (decoded, found) == (error_code, made)
    for (error, messages), (_, payloads, _) in zip(found, sets, strict=True):
        assert decode_fetch_response_07(encode_fetch_response_07(error, messages)) == (error, messages)
        assert [message.payload for message in decode_messages_07(messages)] == payloads


def test_responses_with_wrong_lengths() -> None:
    made = encode_multifetch_response_07(0, [(0, bytes.fromhex(HELLO_1))])
    for cut in range(len(made)):
        with pytest.raises(CorruptRecord):
            decode_multifetch_response_07(made[:cut])
    with pytest.raises(CorruptRecord, match="bytes after"):
        decode_fetch_response_07(made + b"\0")
    inner = struct.pack(">ih", 100, 0)
    with pytest.raises(CorruptRecord):
        decode_multifetch_response_07(encode_fetch_response_07(0, inner))
    with pytest.raises(CorruptRecord):
        decode_fetch_response_07(struct.pack(">ih", 1, 0))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    try:
        decode_messages_07(data)
    except CorruptRecord:
        pass
    try:
        decode_multifetch_response_07(data)
    except CorruptRecord:
        pass
