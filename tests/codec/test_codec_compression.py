"""The codecs: round trips, other libraries' bytes, truncation, garbage, bombs, threads."""

import threading
import tracemalloc

import aiokafka.codec
import kafka.codec
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from embedlog.codec import compression
from embedlog.codec.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from embedlog.errors import CompressionUnavailable, DecompressedTooLarge, DecompressionError, InvalidArgument

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
PACKED = CODECS[1:]
TEXT = b"".join(b'{"page": "/%d", "user": %d}' % (i % 17, i) for i in range(4000))
MIB = 1 << 20


def zstd_stream(data: bytes, level: int = 3) -> bytes:
    """A frame that does not state its size."""
    packer = zstandard.ZstdCompressor(level=level).compressobj()
    return packer.compress(data) + packer.flush()


def raw_snappy(data: bytes) -> bytes:
    return bytes(aiokafka.codec.snappy_encode(data, xerial_compatible=False))


@given(st.sampled_from(CODECS), st.binary(max_size=5000), st.integers(1, 40))
def test_round_trip(codec: int, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, len(TEXT)])
def test_bounds_are_exact(codec: int, size: int) -> None:
    data = TEXT[:size]
    packed = compress(codec, data)
    assert decompress(codec, packed, size) == data
    if size:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, packed, size - 1)


@pytest.mark.parametrize(
    ("codec", "level"),
    [(GZIP, 0), (GZIP, 1), (GZIP, 9), (LZ4, 0), (LZ4, 9), (ZSTD, -1), (ZSTD, 1), (ZSTD, 19)],
)
def test_levels(codec: int, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level), len(TEXT)) == TEXT


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 10), (GZIP, -2), (LZ4, 17), (ZSTD, 23)])
def test_impossible_levels(codec: int, level: int) -> None:
    with pytest.raises(InvalidArgument, match="level"):
        compress(codec, TEXT, level)


def test_gzip_is_deterministic() -> None:
    assert compress(GZIP, TEXT)[:10].hex() == "1f8b0800000000000003"


@pytest.mark.parametrize("library", [aiokafka.codec, kafka.codec])
@pytest.mark.parametrize("data", [b"x", TEXT], ids=["short", "long"])
def test_kafka_libraries_read_and_write_the_same(library: object, data: bytes) -> None:
    for codec, name in ((GZIP, "gzip"), (SNAPPY, "snappy"), (LZ4, "lz4"), (ZSTD, "zstd")):
        theirs = bytes(getattr(library, f"{name}_encode")(data))
        assert decompress(codec, theirs, len(data)) == data
        assert bytes(getattr(library, f"{name}_decode")(compress(codec, data))) == data


def test_raw_snappy_is_read() -> None:
    assert decompress(SNAPPY, raw_snappy(TEXT), len(TEXT)) == TEXT


def test_snappy_is_framed_in_blocks_of_32_kib() -> None:
    packed = compress(SNAPPY, TEXT)
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    first = int.from_bytes(packed[16:20], "big")
    assert len(decompress(SNAPPY, packed[20 : 20 + first], len(TEXT))) == 32 * 1024


def test_lz4_blocks_are_independent_and_small() -> None:
    info = lz4.frame.get_frame_info(compress(LZ4, TEXT * 10))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert info["content_size"] == 0


def test_frames_of_zstd_without_size_and_in_a_row() -> None:
    assert decompress(ZSTD, zstd_stream(TEXT), len(TEXT)) == TEXT
    assert decompress(ZSTD, zstd_stream(b""), 0) == b""
    assert decompress(ZSTD, compress(ZSTD, TEXT) + zstd_stream(b"end"), len(TEXT) + 3) == TEXT + b"end"
    with pytest.raises(DecompressedTooLarge):
        decompress(ZSTD, zstd_stream(TEXT), len(TEXT) - 1)


def test_members_of_gzip_in_a_row() -> None:
    two = compress(GZIP, b"one") + compress(GZIP, b"two")
    assert decompress(GZIP, two, 6) == b"onetwo"
    with pytest.raises(DecompressedTooLarge):
        decompress(GZIP, two, 5)


PACKERS = {
    "gzip": (GZIP, lambda data: compress(GZIP, data)),
    "snappy": (SNAPPY, lambda data: compress(SNAPPY, data)),
    "raw snappy": (SNAPPY, raw_snappy),
    "lz4": (LZ4, lambda data: compress(LZ4, data)),
    "zstd": (ZSTD, lambda data: compress(ZSTD, data)),
    "zstd stream": (ZSTD, zstd_stream),
}


@pytest.mark.parametrize("name", PACKERS)
def test_truncation_at_every_byte(name: str) -> None:
    codec, pack = PACKERS[name]
    data = TEXT[:700]
    packed = pack(data)
    for cut in range(len(packed)):
        # The xerial frame has no end mark: cut between blocks it is a shorter frame.
        if name == "snappy" and cut == 16:
            assert decompress(codec, packed[:cut], len(data)) == b""
            continue
        with pytest.raises(DecompressionError):
            decompress(codec, packed[:cut], len(data))


@pytest.mark.parametrize("name", PACKERS)
def test_garbage_after_the_end(name: str) -> None:
    codec, pack = PACKERS[name]
    packed = pack(TEXT)
    for garbage in (b"\x00", b"garbage, quite some of it"):
        with pytest.raises(DecompressionError):
            decompress(codec, packed + garbage, 2 * len(TEXT))


@pytest.mark.parametrize("name", PACKERS)
def test_flipped_bytes_end_in_an_error_or_in_bounded_data(name: str) -> None:
    codec, pack = PACKERS[name]
    data = TEXT[:700]
    packed = pack(data)
    for i in range(len(packed)):
        damaged = packed[:i] + bytes([packed[i] ^ 0xFF]) + packed[i + 1 :]
        try:
            assert len(decompress(codec, damaged, 2000)) <= 2000
        except DecompressionError:
            pass


@given(st.sampled_from(PACKED), st.binary(max_size=200))
def test_any_bytes(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 1000)) <= 1000
    except DecompressionError:
        pass


@pytest.mark.parametrize("name", PACKERS)
def test_bombs_are_refused_in_bounded_memory(name: str) -> None:
    codec, pack = PACKERS[name]
    bomb = pack(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB + 2 * len(bomb)


def test_a_zstd_window_larger_than_allowed_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"small") + packer.flush()
    with pytest.raises(DecompressionError):
        decompress(ZSTD, packed, MIB)
    assert decompress(ZSTD, packed, 128 * MIB) == b"small"


def test_a_small_input_costs_no_large_buffer() -> None:
    for codec in PACKED:
        packed = compress(codec, b"small" * 100)
        tracemalloc.start()
        try:
            decompress(codec, packed, 128 * MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MIB


def test_the_wrong_lz4_checksum_of_magic_0() -> None:
    right, wrong = compress(LZ4, TEXT), compress(LZ4, TEXT, broken_lz4_header=True)
    assert right[:6] == wrong[:6] and right[6] != wrong[6] and right[7:] == wrong[7:]
    for packed in (right, wrong):
        assert decompress(LZ4, packed, len(TEXT), broken_lz4_header=True) == TEXT
    with pytest.raises(DecompressionError):
        decompress(LZ4, wrong, len(TEXT))
    neither = wrong[:6] + bytes([wrong[6] ^ right[6] ^ 0x5A]) + wrong[7:]
    with pytest.raises(DecompressionError):
        decompress(LZ4, neither, len(TEXT), broken_lz4_header=True)


@pytest.mark.parametrize("sized", [False, True])
def test_the_header_checksum_is_xxhash32(sized: bool) -> None:
    frame = lz4.frame.compress(TEXT, store_size=sized)
    assert compression._with_lz4_checksum(frame, from_pos=4) == frame
    broken = compression._with_lz4_checksum(frame, from_pos=0)
    assert decompress(LZ4, broken, len(TEXT), broken_lz4_header=True) == TEXT


def test_names_and_numbers() -> None:
    assert [compression.codec_name(i) for i in CODECS] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [compression.codec_number(compression.codec_name(i)) for i in CODECS] == list(CODECS)
    assert compression.codec_number("uncompressed") == NONE
    assert compression.codec_number("ZSTD") == ZSTD
    for unknown in ("brotli", "", 5, -1, 2.0, None):
        with pytest.raises(CompressionUnavailable, match="choose one of none, gzip, snappy, lz4, zstd"):
            compression.codec_number(unknown)  # type: ignore[arg-type]
    with pytest.raises(CompressionUnavailable):
        compress(7, b"")
    with pytest.raises(CompressionUnavailable):
        decompress(7, b"", 1)


def test_many_threads_at_once() -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        data = TEXT[seed * 100 :]
        barrier.wait()
        try:
            for _ in range(25):
                for codec in PACKED:
                    assert decompress(codec, compress(codec, data), len(data)) == data
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
