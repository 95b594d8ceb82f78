"""Message sets of magic 0 and 1: round trips, other libraries, wrappers, cuts, flips, bombs."""

import struct
import tracemalloc

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from encoding import encode_values
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from old_formats import decode_message_set

from embedlog import codec
from embedlog.codec.message_set import encode_message_set, iter_messages
from embedlog.errors import (
    CorruptRecord,
    DecompressedTooLarge,
    DecompressionError,
    InvalidArgument,
    InvalidType,
    UnknownMagic,
)

T = 1_700_000_000_000
RECORDS = [(b"k%d" % i if i % 3 else None, b"v" * i if i % 4 else None, (), T + 10 - i) for i in range(10)]
SHAPES = [(magic, compression) for magic in (0, 1) for compression in range(4)]
# The two libraries read lz4 of magic 0 with a package that is not needed for anything else: golden bytes do.
SHAPES_OF_OTHERS = [shape for shape in SHAPES if shape != (0, codec.LZ4)]
MIB = 1 << 20

some_bytes = st.none() | st.binary(max_size=200)
record_lists = st.lists(
    st.tuples(some_bytes, some_bytes, st.just(()), st.integers(0, 2**63 - 1)), min_size=1, max_size=20
)


def message(
    value: bytes | None, offset: int = 0, magic: int = 1, attributes: int = 0, time: int = T
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", -1 if value is None else len(value)) + (value or b"")
    return struct.pack(">qiI", offset, len(body) + 4, codec.crc32(body)) + body


def expected(records: list, magic: int, base_offset: int = 0) -> list[tuple[object, ...]]:
    return [
        (base_offset + i, key, value, time if magic else -1)
        for i, (key, value, _, time) in enumerate(records)
    ]


def fields(records: list) -> list[tuple[object, ...]]:
    return [(r.offset, r.key, r.value, r.timestamp_ms) for r in records]


@given(record_lists, st.sampled_from(SHAPES), st.integers(1, 2**60))
def test_round_trip(records: list, shape: tuple[int, int], base_offset: int) -> None:
    magic, compression = shape
    made = encode_message_set(records, magic, compression, base_offset=base_offset)
    assert fields(decode_message_set(made)) == expected(records, magic, base_offset)


@given(record_lists, st.sampled_from(SHAPES_OF_OTHERS))
def test_other_libraries_read_our_message_sets(records: list, shape: tuple[int, int]) -> None:
    magic, compression = shape
    made = encode_message_set(records, magic, compression, base_offset=100)
    for library in (KafkaPythonRecords, AiokafkaRecords):
        reader = library(made)
        got = []
        while reader.has_next():
            batch = reader.next_batch()
            assert batch.validate_crc()
            got += [(r.offset, r.key, r.value, r.timestamp if magic else -1) for r in batch]
        assert got == expected(records, magic, 100)


@given(record_lists, st.sampled_from(SHAPES_OF_OTHERS))
def test_message_sets_of_other_libraries_are_read(records: list, shape: tuple[int, int]) -> None:
    magic, compression = shape
    for library in (KafkaPythonBuilder, AiokafkaBuilder):
        builder = library(magic=magic, compression_type=compression, batch_size=1 << 20)
        for i, (key, value, _, time) in enumerate(records):
            builder.append(i, timestamp=time, key=key, value=value)
        assert fields(decode_message_set(bytes(builder.build()))) == expected(records, magic)


@pytest.mark.parametrize(("magic", "compression"), [shape for shape in SHAPES if shape[1]])
def test_the_wrapper(magic: int, compression: int) -> None:
    made = encode_message_set(RECORDS, magic, compression, base_offset=100)
    (wrapper,) = iter_messages(made)
    assert (wrapper.key, wrapper.offset, wrapper.compression, wrapper.size) == (
        None,
        109,
        compression,
        len(made),
    )
    assert wrapper.timestamp_ms == (T + 10 if magic else -1)
    inner = codec.decompress(compression, wrapper.value or b"", MIB, broken_lz4_header=not magic)
    offsets = [each.offset for each in iter_messages(inner)]
    assert offsets == list(range(10)) if magic else list(range(100, 110))


def test_offsets_with_gaps() -> None:
    for magic, compression in SHAPES:
        made = encode_message_set(RECORDS[:3], magic, compression, offsets=[5, 9, 70])
        assert [r.offset for r in decode_message_set(made)] == [5, 9, 70]
        assert [r.offset for r in decode_message_set(made, start_offset=9)] == [9, 70]


def test_append_time_of_a_wrapper_applies_to_all() -> None:
    for compression in (codec.NONE, codec.GZIP):
        made = encode_message_set(RECORDS, 1, compression, timestamp_type=1)
        got = decode_message_set(made)
        assert {r.timestamp_type for r in got} == {1}
        assert {r.timestamp_ms for r in got} == ({T + 10} if compression else {r[3] for r in RECORDS})


def test_a_wrapper_at_offset_0_keeps_inner_offsets() -> None:
    inner = message(b"a", 0) + message(b"b", 1)
    made = message(codec.compress(codec.GZIP, inner), 0, attributes=codec.GZIP)
    assert [r.offset for r in decode_message_set(made)] == [0, 1]


@pytest.mark.parametrize(("magic", "compression"), SHAPES)
def test_a_cut_at_every_byte_leaves_the_last_message_out(magic: int, compression: int) -> None:
    first = encode_message_set(RECORDS, magic, compression)
    second = encode_message_set(RECORDS[:1], magic, base_offset=10)
    for cut in range(len(second)):
        assert fields(decode_message_set(first + second[:cut])) == expected(RECORDS, magic)
    padded = b"??" + first + second
    assert len(decode_message_set(padded, pos=2)) == 11
    assert len(decode_message_set(padded, pos=2, end=len(padded) - 1)) == 10


@pytest.mark.parametrize(("magic", "compression"), SHAPES)
def test_flips_are_detected_or_change_only_the_offset(magic: int, compression: int) -> None:
    good = encode_message_set(RECORDS[:2], magic, compression, base_offset=7)
    records = decode_message_set(good)
    for i in range(len(good)):
        for flip in (1, 16, 128, 255):
            bad = bytearray(good)
            bad[i] ^= flip
            try:
                got = decode_message_set(bad)
            except CorruptRecord as error:
                assert error.pos is not None
                continue
            # Not covered by the CRC: an offset, or a size that grew, which looks like a cut.
            same = [r._replace(offset=0) for r in got] == [r._replace(offset=0) for r in records]
            assert same or fields(got) == fields(records)[: len(got)]


INSIDE = {
    "no value": message(None, attributes=codec.GZIP),
    "nothing inside": message(codec.compress(codec.GZIP, b""), attributes=codec.GZIP),
    "cut off inside": message(codec.compress(codec.GZIP, message(b"x")[:-1]), attributes=codec.GZIP),
    "bytes behind inside": message(codec.compress(codec.GZIP, message(b"x") + b"\0"), attributes=codec.GZIP),
    "wrapper inside": message(
        codec.compress(codec.GZIP, message(codec.compress(codec.GZIP, message(b"x")), attributes=codec.GZIP)),
        attributes=codec.GZIP,
    ),
    "another magic inside": message(
        codec.compress(codec.GZIP, message(b"x", magic=0)), attributes=codec.GZIP
    ),
    "offset too small": message(codec.compress(codec.GZIP, message(b"x", 9)), 3, attributes=codec.GZIP),
    "not compressed": message(b"compressed by nobody", attributes=codec.SNAPPY),
    "zstd": message(codec.compress(codec.ZSTD, message(b"x")), attributes=codec.ZSTD),
    "codec 7": message(b"x", attributes=7),
    "size 5": struct.pack(">qi", 0, 5) + bytes(5),
    "zeros": bytes(100),
    "negative offset": message(b"x", -1),
    "field too long": message(b"x" * 50).replace(struct.pack(">i", 50), struct.pack(">i", 51)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_refused_input(name: str) -> None:
    first = message(b"first")
    with pytest.raises(CorruptRecord) as caught:
        decode_message_set(first + INSIDE[name])
    assert caught.value.pos == len(first)


@pytest.mark.parametrize("length", [-2, 3, 2**31 - 1])
def test_wrong_field_lengths(length: int) -> None:
    for at in (26, 30):
        bad = bytearray(message(b"x"))
        struct.pack_into(">i", bad, at, length)
        struct.pack_into(">I", bad, 12, codec.crc32(bad[16:]))
        with pytest.raises(CorruptRecord, match="field"):
            decode_message_set(bad)


def test_a_record_batch_is_recognized() -> None:
    with pytest.raises(UnknownMagic, match="magic 2") as caught:
        decode_message_set(message(b"x") + encode_values([b"v"], T))
    assert caught.value.pos == len(message(b"x"))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [codec.GZIP, codec.SNAPPY, codec.LZ4])
@pytest.mark.slow
def test_bombs(magic: int, compression: int) -> None:
    inner = message(bytes(64 * MIB), magic=magic)
    packed = codec.compress(compression, inner, broken_lz4_header=not magic)
    bomb = message(packed, magic=magic, attributes=compression)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decode_message_set(bomb, max_bytes=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB + 4 * len(bomb)


def test_magic_1_takes_no_broken_lz4_header() -> None:
    packed = codec.compress(codec.LZ4, message(b"x"), broken_lz4_header=True)
    with pytest.raises(DecompressionError):
        decode_message_set(message(packed, attributes=codec.LZ4))


def test_unwritable_values() -> None:
    with pytest.raises(InvalidArgument, match="no headers"):
        encode_message_set([(None, b"v", (("h", b"x"),), T)], 1)
    with pytest.raises(InvalidArgument, match="zstd"):
        encode_message_set(RECORDS, 1, codec.ZSTD)
    with pytest.raises(InvalidArgument, match="magic 0 or 1"):
        encode_message_set(RECORDS, 2)
    with pytest.raises(InvalidArgument, match="1 offsets for 10 records"):
        encode_message_set(RECORDS, 1, offsets=[0])
    with pytest.raises(InvalidType, match="value must be bytes, not str"):
        encode_message_set([(None, "v", (), T)], 1)  # type: ignore[list-item]
    with pytest.raises(InvalidType, match="timestamp_ms must be"):
        encode_message_set([(None, b"v", (), 2**63)], 1)
    assert encode_message_set([], 0) == b""
    assert decode_message_set(b"") == []


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    try:
        decode_message_set(data)
    except CorruptRecord:
        pass
