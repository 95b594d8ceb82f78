"""A batch decoded in pieces: same records and errors as at once, in little memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog import codec
from embedlog.codec import batch_pieces, decode_pieces, encode_batch, latest_timestamp, loops
from embedlog.codec.compression import decompress, decompressed
from embedlog.errors import CorruptRecord, DecompressedTooLarge, DecompressionError

MIB = 1 << 20
T = 1_700_000_000_000
CODECS = (codec.NONE, codec.GZIP, codec.SNAPPY, codec.LZ4, codec.ZSTD)
PACKED = CODECS[1:]
SHAPES = {
    "many small": [(None, b"%d" % i, (), T + i % 7) for i in range(20_000)],
    "some large": [(b"k", random.Random(1).randbytes(90_000), (), T) for _ in range(12)],
    "one that is larger than a piece": [(None, bytes(MIB), (), T), (b"k", None, (("h", b"x"),), T)],
    "one": [(None, b"", (), T)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compression", CODECS)
def test_the_same_records_as_at_once(compression: int, shape: str) -> None:
    batch = encode_batch(SHAPES[shape], compression=compression, base_offset=70)
    header = codec.read_header(batch)
    whole = codec.decode(batch, header, "t", 3)
    pieces = list(decode_pieces(batch, header, "t", 3))
    assert [record for piece in pieces for record in piece] == whole
    assert max(map(len, pieces)) <= batch_pieces.PIECE_RECORDS
    assert latest_timestamp(batch, header, 64 * MIB) == max(record.timestamp_ms for record in whole)
    start = whole[len(whole) // 2].offset
    found = [record for piece in decode_pieces(batch, header, "t", 3, start_offset=start) for record in piece]
    assert found == codec.decode(batch, header, "t", 3, start_offset=start)


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.slow
def test_a_bomb_is_never_in_memory(compression: int) -> None:
    batch = encode_batch([(None, bytes(10_000), (), T)] * 6_000, compression=compression)
    header = codec.read_header(batch)
    tracemalloc.start()
    try:
        assert latest_timestamp(batch, header, 64 * MIB) == T
        with pytest.raises(DecompressedTooLarge):
            latest_timestamp(batch, header, 32 * MIB)
        with pytest.raises(DecompressedTooLarge):
            for _ in decode_pieces(batch, header, "t", 0, max_bytes=32 * MIB):
                pass
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB + 4 * len(batch)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=5_000), st.sampled_from(PACKED), st.integers(1, 3_000), st.data())
def test_pieces_of_bytes(data: bytes, compression: int, piece_size: int, draw: st.DataObject) -> None:
    packed = codec.compress(compression, data * 7)
    pieces = list(decompressed(compression, packed, 7 * len(data), piece_size))
    assert b"".join(pieces) == data * 7
    if compression != codec.SNAPPY:
        assert max(map(len, pieces), default=0) <= piece_size + 9  # zstd holds back the end of a piece
    if data:
        with pytest.raises(DecompressedTooLarge):
            b"".join(decompressed(compression, packed, 7 * len(data) - 1, piece_size))
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    for size in (piece_size, 1 << 20):
        try:
            assert data * 7 != b"".join(decompressed(compression, cut, 1 << 20, size)) or not data
        except DecompressionError:
            with pytest.raises(DecompressionError):
                decompress(compression, cut, 1 << 20)


@pytest.mark.parametrize("compression", CODECS)
def test_missing_or_surplus_records(compression: int) -> None:
    rows = SHAPES["many small"]
    batch = encode_batch(rows, compression=compression)
    header = codec.read_header(batch)
    for wrong in (header.record_count - 1, header.record_count + 1):
        changed = header._replace(record_count=wrong, last_offset_delta=wrong + 1)
        with pytest.raises(CorruptRecord):
            latest_timestamp(batch, changed, MIB)
        with pytest.raises(CorruptRecord):
            list(decode_pieces(batch, changed, "t", 0))


@pytest.mark.parametrize("at", [0, 1, batch_pieces.PIECE_RECORDS, 19_999])
def test_decreasing_offsets_are_detected_between_pieces(at: int) -> None:
    """The record at `at` bears the delta of the one before; the first bears that of the second."""
    rows = [(None, b"x", (), T)] * 20_000
    batch = encode_batch(rows)
    header = codec.read_header(batch)
    body = bytes(batch[codec.HEADER_SIZE :])
    start, stop = loops.record_spans(body, len(rows))[at]
    record = bytearray(body[start:stop])
    record[3] ^= 2  # the lowest bit of the delta, zigzag
    wrong = bytes(batch[: codec.HEADER_SIZE]) + body[:start] + record + body[stop:]
    assert latest_timestamp(wrong, header, 64 * MIB) is None
    with pytest.raises(CorruptRecord):
        list(decode_pieces(wrong, header, "t", 0))


@pytest.mark.parametrize("body", [b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x02x\x03"])
def test_an_invalid_length(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        loops.whole_records(body, 0, len(body), 10)


def test_whole_records_of_a_part() -> None:
    body = b"\x04ab\x02c\x80\x01" + bytes(64)
    for end in range(len(body) + 1):
        expected = (3, 71) if end == 71 else (2, 5) if end >= 5 else (1, 3) if end >= 3 else (0, 0)
        assert loops.whole_records(body, 0, end, 10) == expected
        assert loops.whole_records(bytearray(body), 3, end, 1) == ((1, 5) if end >= 5 else (0, 3))
