"""Damaged batches: every flip, every truncation, wrong headers and records, bombs, and resynchronization."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import examples

from embedlog import codec
from embedlog.codec import record_batch
from embedlog.codec.varint import encode_varint
from embedlog.errors import (
    CorruptRecord,
    DecompressedTooLarge,
    DecompressionError,
    EmbedlogError,
    UnknownMagic,
)

T = 1_700_000_000_000
RECORDS = [(b"k%d" % i, b"v" * (i * 7), (("h", b"x"),), T + i) for i in range(12)]
MIB = 1 << 20
# What the CRC leaves out: the log compares these with the batch before.
NOT_COVERED = {*range(8), *range(12, 16)}
LENGTH_BYTES = range(8, 12)


def batch_of(compression: int = 0, base_offset: int = 1000) -> bytes:
    return bytes(codec.encode_batch(RECORDS, compression=compression, base_offset=base_offset))


def resealed(batch: bytes) -> bytes:
    """The batch with length and CRC put right again, so that only what is inside is wrong."""
    length = struct.pack(">i", len(batch) - 12)
    return batch[:8] + length + batch[12:17] + struct.pack(">I", codec.crc32c(batch[21:])) + batch[21:]


def with_body(body: bytes, count: int, compression: int = 0, last_offset_delta: int | None = None) -> bytes:
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    tail = record_batch.TAIL.pack(compression, delta, T, T, -1, -1, -1, count)
    return resealed(record_batch.HEAD.pack(0, 0, -1, 2, 0) + tail + body)


def record(
    offset_delta: int = 0,
    key: bytes = b"\x01",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
    timestamp_delta: bytes = b"\x00",
    length: int | None = None,
) -> bytes:
    rest = b"\x00" + timestamp_delta + encode_varint(offset_delta) + key + value + headers
    return encode_varint(len(rest) if length is None else length) + rest


@pytest.mark.parametrize("compression", range(5))
def test_every_flip_is_detected_or_harmless_by_design(compression: int) -> None:
    good = batch_of(compression)
    before = codec.scan(good).headers[0]
    records = codec.decode(good, before, "t", 0)
    for i in range(len(good)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            bad = bytearray(good)
            bad[i] ^= flip
            headers, end, error = codec.scan(bad)
            if i in NOT_COVERED:
                for header in headers:
                    got = codec.decode(bad, header, "t", 0)
                    assert [r._replace(offset=0) for r in got] == [r._replace(offset=0) for r in records]
                    assert header.base_offset != 1000 or header.leader_epoch != before.leader_epoch
                continue
            assert headers == [] and end == 0
            if error is None:
                # A length that grew says that the rest is missing, as a torn tail does.
                assert i in LENGTH_BYTES
                assert codec.read_header(bad).size > len(bad)
            else:
                assert error.pos == 0


@pytest.mark.parametrize("compression", range(5))
def test_a_cut_at_every_byte_is_incomplete(compression: int) -> None:
    first, second = batch_of(compression), batch_of(compression, base_offset=1012)
    for cut in range(len(second)):
        headers, end, error = codec.scan(first + second[:cut])
        assert [header.base_offset for header in headers] == [1000]
        assert (end, error) == (len(first), None)
    header = codec.read_header(first)
    for cut in range(codec.HEADER_SIZE, len(first)):
        with pytest.raises(CorruptRecord, match="missing"):
            codec.decode(first[:cut], header, "t", 0)


def test_scanning_between_positions() -> None:
    batches = [batch_of(base_offset=1000 + 12 * i) for i in range(3)]
    size = len(batches[0])
    data = b"".join(batches)
    assert [h.pos for h in codec.scan(data, size).headers] == [size, 2 * size]
    headers, end, error = codec.scan(data, size, 2 * size + 100)
    assert ([h.pos for h in headers], end, error) == ([size], 2 * size, None)
    assert codec.scan(data, 3 * size) == ([], 3 * size, None)
    assert codec.scan(b"") == ([], 0, None)
    assert codec.scan(data, 0, 10**9).end == 3 * size


def test_scanning_stops_at_damage_and_says_where() -> None:
    first, second = batch_of(), batch_of(base_offset=1012)
    bad = bytearray(first + second)
    bad[-1] ^= 1
    headers, end, error = codec.scan(bad)
    assert ([h.pos for h in headers], end) == ([0], len(first))
    assert error is not None
    assert (error.pos, error.offset, error.last_offset) == (len(first), 1012, 1023)
    assert "CRC" in error.reason
    assert len(codec.scan(bad, check_crc=False).headers) == 2


@pytest.mark.parametrize("size", [61, 100, 4096])
def test_zeros_are_reported(size: int) -> None:
    good = batch_of()
    headers, end, error = codec.scan(good + bytes(size))
    assert (len(headers), end) == (1, len(good))
    assert error is not None and "zeros" in error.reason and not isinstance(error, UnknownMagic)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_magics_are_reported(magic: int) -> None:
    bad = bytearray(batch_of())
    struct.pack_into(">b", bad, 16, magic)
    with pytest.raises(UnknownMagic, match=f"magic {magic}") as caught:
        codec.read_header(b"??" + bad, 2)
    assert caught.value.pos == 2


IMPOSSIBLE = [
    ("length", 8, ">i", 48, "batch length of 48"),
    ("negative length", 8, ">i", -1, "batch length of -1"),
    ("base offset", 0, ">q", -1, "impossible offsets"),
    ("last offset delta", 23, ">i", -1, "impossible offsets"),
    ("overflowing offsets", 0, ">q", 2**63 - 1, "impossible offsets"),
    ("negative count", 57, ">i", -1, "record count of -1"),
    ("too large a count", 57, ">i", 13, "record count of 13 for 12 offsets"),
    ("codec", 21, ">h", 5, "compression number 5"),
    ("leader epoch", 12, ">i", -2, "impossible numbers"),
    ("producer id", 43, ">q", -2, "impossible numbers"),
    ("producer epoch", 51, ">h", -2, "impossible numbers"),
    ("base sequence", 53, ">i", -2, "impossible numbers"),
]


@pytest.mark.parametrize(
    ("name", "at", "form", "value", "text"), IMPOSSIBLE, ids=[row[0] for row in IMPOSSIBLE]
)
def test_impossible_headers(name: str, at: int, form: str, value: int, text: str) -> None:
    bad = bytearray(batch_of())
    struct.pack_into(form, bad, at, value)
    with pytest.raises(CorruptRecord, match=text) as caught:
        codec.read_header(bad)
    assert caught.value.pos == 0


def test_a_count_that_cannot_fit() -> None:
    bad = bytearray(batch_of())
    struct.pack_into(">i", bad, 23, 2**31 - 2)
    struct.pack_into(">i", bad, 57, 2**31 - 1)
    with pytest.raises(CorruptRecord, match="records cannot fit"):
        codec.read_header(bad)


def test_a_header_needs_its_bytes() -> None:
    for size in range(codec.HEADER_SIZE):
        with pytest.raises(CorruptRecord, match=f"^at byte 0: {size} bytes remain"):
            codec.read_header(batch_of()[:size])
    with pytest.raises(CorruptRecord):
        codec.read_header(batch_of(), 10**6)


def test_the_helpers_record_is_valid() -> None:
    batch = with_body(record() + record(1), 2)
    assert codec.decode_values(batch, codec.scan(batch).headers[0]) == [b"v", b"v"]


OVERLONG = b"\xff" * 10
LIES = {
    "length too long": record(length=50),
    "length too short": record(length=5),
    "length negative": record(length=-3),
    "length unending": b"\x80" * 20,
    "bytes behind": record() + b"\x00",
    "zeros": bytes(20),
    "offset delta past the last": record(1),
    "offset delta negative": record(-1),
    "offset delta unending": b"\x28\x00\x00" + OVERLONG + bytes(20),
    "timestamp delta unending": record(timestamp_delta=OVERLONG + b"\x01"),
    "key length past the end": record(key=encode_varint(1000)),
    "key length huge": record(key=encode_varint(2**31 - 1)),
    "key length -2": record(key=encode_varint(-2)),
    "key length unending": record(key=OVERLONG),
    "value length past the end": record(value=encode_varint(1000)),
    "value length huge": record(value=encode_varint(2**31 - 1)),
    "value length -2": record(value=encode_varint(-2)),
    "value length unending": record(value=OVERLONG),
    "header count huge": record(headers=encode_varint(2**31 - 1)),
    "header count negative": record(headers=encode_varint(-1)),
    "header count too large": record(headers=encode_varint(2) + b"\x02h\x02x"),
    "header name null": record(headers=b"\x02\x01\x02x\x00"),
    "header name past the end": record(headers=b"\x02\x20h\x02x"),
    "header value -2": record(headers=b"\x02\x02h\x03x"),
    "header value past the end": record(headers=b"\x02\x02h\x20x"),
    "cut off": record()[:-1],
    "no headers": record()[:-2] + b"\x04",
}


@pytest.mark.parametrize("compression", [codec.NONE, codec.ZSTD])
@pytest.mark.parametrize("name", LIES)
def test_records_with_wrong_lengths(name: str, compression: int) -> None:
    batch = with_body(codec.compress(compression, LIES[name].ljust(7, b"\x00")), 1, compression)
    (header,) = codec.scan(batch).headers
    for read in (
        lambda: codec.decode(batch, header, "t", 0),
        lambda: codec.decode_values(batch, header),
        lambda: codec.filter_batch(batch, header, lambda record: True),
    ):
        with pytest.raises(CorruptRecord) as caught:
            read()
        assert (caught.value.pos, caught.value.offset) == (0, 0)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (2, 1), (0, 3)])
def test_offsets_that_do_not_increase(deltas: tuple[int, int]) -> None:
    batch = with_body(b"".join(map(record, deltas)), 2, last_offset_delta=2)
    (header,) = codec.scan(batch).headers
    for read in (lambda: codec.decode(batch, header, "t", 0), lambda: codec.decode_values(batch, header)):
        with pytest.raises(CorruptRecord, match=r"record 2 of 2: its offset delta|record 1 of 2"):
            read()


@pytest.mark.parametrize("wrong", [36, 99, 101, 164, 228])
def test_a_wrong_offset_among_records_of_one_shape(wrong: int) -> None:
    """Some of these have a byte in common with the right one."""
    body = b"".join(record(wrong if i == 100 else i) for i in range(300))
    batch = with_body(body, 300)
    header = codec.read_header(batch)
    for decode in (lambda: codec.decode(batch, header, "t", 0), lambda: codec.decode_values(batch, header)):
        with pytest.raises(CorruptRecord, match=r"record 10[12] of 300: .*offset delta"):
            decode()


def test_compaction_gaps_are_valid() -> None:
    batch = with_body(record(3) + record(70), 2, last_offset_delta=99)
    assert [r.offset for r in codec.decode(batch, codec.read_header(batch), "t", 0)] == [3, 70]


def test_a_count_too_small_or_too_large() -> None:
    three = record() + record(1) + record(2)
    for count in (2, 4):
        batch = with_body(codec.compress(codec.GZIP, three), count, codec.GZIP, last_offset_delta=5)
        header = codec.read_header(batch)
        with pytest.raises(CorruptRecord):
            codec.decode(batch, header, "t", 0)
        with pytest.raises(CorruptRecord):
            codec.decode_values(batch, header)


def test_header_names_that_are_not_utf8_are_read() -> None:
    batch = with_body(record(headers=b"\x02\x04\xff\xfe\x02x"), 1)
    (got,) = codec.decode(batch, codec.read_header(batch), "t", 0)
    assert got.headers == (("\ufffd\ufffd", b"x"),)
    assert codec.filter_batch(batch, codec.read_header(batch), [True]) == batch


@settings(max_examples=examples(500))
@given(st.binary(max_size=120), st.integers(0, 5), st.integers(0, 4))
def test_any_bytes_inside_a_sealed_batch(body: bytes, count: int, compression: int) -> None:
    batch = with_body(body, count, compression, last_offset_delta=10)
    for header in codec.scan(batch).headers:
        try:
            got = codec.decode(batch, header, "t", 0, max_bytes=10_000)
            values = codec.decode_values(batch, header, max_bytes=10_000)
        except CorruptRecord:
            continue
        assert [r.value for r in got] == values
        assert len(values) == count


@settings(max_examples=examples(300))
@given(st.data())
def test_any_change_inside_a_sealed_batch(data: st.DataObject) -> None:
    bad = bytearray(batch_of())
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(21, len(bad) - 1))] = data.draw(st.integers(0, 255))
    batch = resealed(bytes(bad))
    for header in codec.scan(batch).headers:
        try:
            got = codec.decode(batch, header, "t", 0, max_bytes=10_000)
        except CorruptRecord:
            with pytest.raises(CorruptRecord):
                codec.decode_values(batch, header, max_bytes=10_000)
            continue
        assert [r.value for r in got] == codec.decode_values(batch, header, max_bytes=10_000)
        assert all(header.base_offset <= r.offset <= header.last_offset for r in got)


@settings(max_examples=examples(300))
@given(st.binary(max_size=300))
def test_any_bytes_scanned(data: bytes) -> None:
    headers, end, _ = codec.scan(data)
    assert sum(header.size for header in headers) == end <= len(data)
    codec.find_batch(data, 0, len(data), 0)


@pytest.mark.parametrize("compression", range(1, 5))
def test_bombs(compression: int) -> None:
    batch = with_body(codec.compress(compression, bytes(64 * MIB)), 1, compression)
    (header,) = codec.scan(batch).headers
    tracemalloc.start()
    try:
        for read in (
            lambda: codec.decode(batch, header, "t", 0, max_bytes=MIB),
            lambda: codec.decode_values(batch, header, max_bytes=MIB),
            lambda: codec.filter_batch(batch, header, [True], max_bytes=MIB),
        ):
            with pytest.raises(DecompressedTooLarge, match="more than 1,048,576 bytes") as caught:
                read()
            assert caught.value.pos == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB + 3 * len(batch)


@pytest.mark.parametrize("compression", range(1, 5))
def test_corrupt_compressed_data(compression: int) -> None:
    batch = with_body(b"this was compressed by nobody", 1, compression)
    with pytest.raises(DecompressionError) as caught:
        codec.decode(batch, codec.read_header(batch), "t", 0)
    assert (caught.value.pos, caught.value.offset) == (0, 0)
    assert isinstance(caught.value, EmbedlogError)


def test_a_batch_after_damage_is_found() -> None:
    first, second = batch_of(), batch_of(base_offset=1012)
    for gap in (b"", b"\x02" * 500, bytes(500), b"garbage" * 100, first[:-1]):
        data = b"lead" + gap + second + b"trail"
        found = codec.find_batch(data, 4, len(data), 1000)
        assert found is not None
        assert (found.pos, found.base_offset) == (4 + len(gap), 1012)
        for kind in (bytearray, memoryview):
            assert codec.find_batch(kind(data), 4, len(data), 1000) == found
    data = first + second
    assert codec.find_batch(data, 0, len(data), 1000) == codec.read_header(first)
    assert codec.find_batch(data, 0, len(data), 1001) == codec.read_header(data, len(first))
    assert codec.find_batch(data, 1, len(data), 0) == codec.read_header(data, len(first))


def test_garbage_contains_no_batch() -> None:
    first = batch_of()
    assert codec.find_batch(first, 0, len(first), 5000) is None
    assert codec.find_batch(first, 0, len(first) - 1, 0) is None
    assert codec.find_batch(first, 1, len(first), 0) is None
    assert codec.find_batch(b"", 0, 0, 0) is None
    assert codec.find_batch(bytes(10_000), 0, 10_000, 0) is None
    damaged = bytearray(first)
    damaged[-1] ^= 1
    assert codec.find_batch(damaged, 0, len(damaged), 0) is None


def test_the_search_for_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Headers in a row, each of which claims all that follows: quadratic, if all CRCs were computed.
    head = bytearray(batch_of()[: codec.HEADER_SIZE])
    count = 300
    data = bytearray()
    for i in range(count):
        struct.pack_into(">i", head, 8, (count - i) * len(head) - 12)
        data += head
    covered = 0

    def counting(chunk: bytes, crc: int = 0) -> int:
        nonlocal covered
        covered += len(chunk)
        return codec.crc32c(chunk, crc)

    monkeypatch.setattr(record_batch, "crc32c", counting)
    assert codec.find_batch(bytes(data), 0, len(data), 0) is None
    assert 0 < covered <= 4 * len(data)
