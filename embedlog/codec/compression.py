"""The five codecs of a record batch: none, gzip, snappy, lz4, zstd. Decompression is bounded.

    number  name    bytes                                        level (default)
    0       none    as they are
    1       gzip    RFC 1952, modification time 0                -1, 0..9 (-1: zlib's own, 6)
    2       snappy  xerial framing, blocks of 32 KiB; raw snappy is read too
    3       lz4     LZ4 frame, independent blocks of 64 KiB      0..16 (0, fast)
    4       zstd    RFC 8878                                     -7..22 (3)

Xerial framing: 82 'SNAPPY' 00, version i32 = 1, oldest compatible version i32 = 1, then for each block its
compressed length i32 and raw snappy. Kafka's Java reader refuses linked lz4 blocks, hence independent ones.
Messages of magic 0 have a wrong checksum in the lz4 frame header (it also covers the frame's magic number):
`broken_lz4_header` writes it, or accepts it beside the right one.

`decompress` returns everything at once; `decompressed` yields pieces, for large contents.

Invariants: neither yields more than max_size bytes, nor allocates much more: lengths in the input are checked
first, buffers grow with the actual output, and a zstd window is limited by max_size (8 MiB to 128 MiB).
Truncated input and trailing garbage are errors. All functions are thread-safe; each thread has its own zstd
contexts.

Source: Kafka 2.7 implementation, section 5.3.1 (attributes, bits 0-2); KIP-57 (lz4), KIP-110 (zstd).
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import CompressionUnavailable, DecompressedTooLarge, DecompressionError, InvalidArgument, shown

if TYPE_CHECKING:  # each codec imports its library when it is first used
    import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_NUMBERS = {name: number for number, name in enumerate(_NAMES)} | {"uncompressed": NONE}
_LEVELS = {GZIP: (-1, 9), LZ4: (0, 16), ZSTD: (-7, 22)}

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LENGTH = struct.Struct(">i")

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_FIRST_CHUNK = 64 * 1024
_MIN_WINDOW, _MAX_WINDOW = 8 << 20, 128 << 20
# A frame of nine equal bytes, run-length encoded. Appended to a stream, it decompresses only if the stream is
# complete: the zstd reader itself does not report a missing end.
_SENTINEL = b"\xa5" * 9
_SENTINEL_FRAME = b"\x28\xb5\x2f\xfd\x20\x09\x4b\x00\x00\xa5"

_thread = threading.local()


def codec_number(name_or_number: str | int) -> int:
    """The number of a codec, given its name (any case) or its number. Raises CompressionUnavailable."""
    if isinstance(name_or_number, str):
        number = _NUMBERS.get(name_or_number.lower())
        if number is not None:
            return number
    elif (
        isinstance(name_or_number, int)
        and not isinstance(name_or_number, bool)
        and 0 <= name_or_number < len(_NAMES)
    ):
        return int(name_or_number)
    raise CompressionUnavailable(f"no compression {shown(name_or_number)}: choose one of {', '.join(_NAMES)}")


def codec_name(number: int) -> str:
    """The name of a codec. Raises CompressionUnavailable for an unknown number."""
    return _NAMES[codec_number(number)]


def compress(
    codec: int, data: bytes | bytearray, level: int | None = None, *, broken_lz4_header: bool = False
) -> bytes:
    """`data` compressed by a codec (a number), at `level` or the codec's default (snappy has none).

    Raises CompressionUnavailable for an unknown codec, InvalidArgument for a level outside its range.
    """
    if level is not None and codec in _LEVELS:
        low, high = _LEVELS[codec]
        if not low <= level <= high:
            raise InvalidArgument(f"{codec_name(codec)} level {level} is outside {low}..{high}")
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        import lz4.frame

        framed: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return _with_lz4_checksum(framed, from_pos=0) if broken_lz4_header else framed
    if codec == ZSTD:
        return _zstd_compressor(3 if level is None else level).compress(data)
    raise CompressionUnavailable(f"no compression number {codec}")


def decompress(codec: int, data: bytes, max_size: int, *, broken_lz4_header: bool = False) -> bytes:
    """Decompress `data`, to at most `max_size` bytes.

    Raises DecompressedTooLarge if there are more, DecompressionError if it is damaged, truncated or followed
    by garbage, CompressionUnavailable for an unknown codec.
    """
    if codec == NONE:
        if len(data) > max_size:
            raise _too_large(max_size)
        return bytes(data)
    return b"".join(decompressed(codec, data, max_size, max_size + 1, broken_lz4_header=broken_lz4_header))


def decompressed(
    codec: int, data: bytes, max_size: int, piece_size: int, *, broken_lz4_header: bool = False
) -> Iterator[bytes]:
    """As `decompress`, in pieces of at most `piece_size` bytes; a snappy block is always one piece.

    `codec` must not be NONE. Raises as `decompress`, after the pieces before the error.
    """
    pieces = _DECOMPRESSORS.get(codec)
    if pieces is None:
        raise CompressionUnavailable(f"no compression number {codec}")
    if codec == LZ4 and broken_lz4_header:
        data = _mended_lz4(data)
    return pieces(data, max_size, piece_size)


def _too_large(max_size: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"decompresses to more than {max_size:,} bytes")


# -- gzip --------------------------------------------------------------------------------------------


def _decompress_gzip(data: bytes, max_size: int, piece_size: int) -> Iterator[bytes]:
    bytes_left = max_size
    while True:
        unpacker = zlib.decompressobj(31)
        while not unpacker.eof:
            try:
                part = unpacker.decompress(data, min(piece_size, bytes_left + 1))
            except zlib.error as error:
                raise DecompressionError(f"gzip: {error}") from error
            bytes_left -= len(part)
            if bytes_left < 0:
                raise _too_large(max_size)
            if not part and not unpacker.eof:
                raise DecompressionError("gzip: the data ends too early")
            yield part
            data = unpacker.unconsumed_tail
        data = unpacker.unused_data
        if not data:
            return


# -- snappy ------------------------------------------------------------------------------------------


def _compress_snappy(data: bytes | bytearray) -> bytes:
    import snappy

    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = snappy.compress(data[start : start + _XERIAL_BLOCK])
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, max_size: int, piece_size: int) -> Iterator[bytes]:
    if not data.startswith(XERIAL_MAGIC):
        yield _decompress_raw_snappy(data, max_size)
        return
    if len(data) < len(_XERIAL_HEADER):
        raise DecompressionError("snappy: the header ends too early")
    size = 0
    pos = len(_XERIAL_HEADER)
    while pos < len(data):
        if len(data) - pos < _LENGTH.size:
            raise DecompressionError("snappy: a block's length ends too early")
        (length,) = _LENGTH.unpack_from(data, pos)
        pos += _LENGTH.size
        if not 0 < length <= len(data) - pos:
            raise DecompressionError(f"snappy: a block of {length:,} bytes, {len(data) - pos:,} remain")
        part = _decompress_raw_snappy(data[pos : pos + length], max_size, size)
        yield part
        size += len(part)
        pos += length


def _decompress_raw_snappy(data: bytes, max_size: int, size_before: int = 0) -> bytes:
    import snappy

    declared = 0
    for i, byte in enumerate(data[:5]):
        declared |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            break
    else:
        raise DecompressionError("snappy: the length at the start is not one")
    if size_before + declared > max_size:
        raise _too_large(max_size)
    try:
        unpacked: bytes = snappy.uncompress(data)
    except Exception as error:
        raise DecompressionError(f"snappy: {error.__cause__ or error}") from error
    if len(unpacked) != declared:
        raise DecompressionError(f"snappy: {len(unpacked):,} bytes came out, {declared:,} were declared")
    return unpacked


# -- lz4 ---------------------------------------------------------------------------------------------


def _decompress_lz4(data: bytes, max_size: int, piece_size: int) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    size = 0
    chunk = max(_FIRST_CHUNK, 4 * len(data))
    while not unpacker.eof:
        try:
            part = unpacker.decompress(data, max_length=min(chunk, piece_size, max_size - size + 1))
        except (RuntimeError, ValueError) as error:
            raise DecompressionError(f"lz4: {error}") from error
        size += len(part)
        if size > max_size:
            raise _too_large(max_size)
        if not unpacker.eof and (unpacker.needs_input or not part):
            raise DecompressionError("lz4: the data ends too early")
        yield part
        data = b""
        chunk *= 2
    if unpacker.unused_data:
        raise DecompressionError("lz4: garbage after the frame")


def _lz4_checksum_pos(data: bytes) -> int:
    """The position of the frame header's checksum: after magic, flags, block size and content size."""
    return 14 if data[4] & 0x08 else 6


def _with_lz4_checksum(data: bytes, *, from_pos: int) -> bytes:
    pos = _lz4_checksum_pos(data)
    return data[:pos] + bytes([_xxh32(data[from_pos:pos]) >> 8 & 0xFF]) + data[pos + 1 :]


def _mended_lz4(data: bytes) -> bytes:
    """The frame with the right header checksum, if it has Kafka's wrong one."""
    if len(data) < 7 or not data.startswith(_LZ4_MAGIC) or len(data) <= _lz4_checksum_pos(data):
        return data
    if data == _with_lz4_checksum(data, from_pos=0):
        return _with_lz4_checksum(data, from_pos=4)
    return data


def _xxh32(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes, enough for a frame header."""
    mask = 0xFFFFFFFF
    value = (374761393 + len(data)) & mask
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        value = (value + word * 3266489917) & mask
        value = ((value << 17 | value >> 15) & mask) * 668265263 & mask
    for byte in data[words:]:
        value = (value + byte * 374761393) & mask
        value = ((value << 11 | value >> 21) & mask) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


# -- zstd --------------------------------------------------------------------------------------------


def _zstd_compressor(level: int) -> zstandard.ZstdCompressor:
    # A context shared between threads crashes the process.
    compressors: dict[int, zstandard.ZstdCompressor] | None = getattr(_thread, "compressors", None)
    if compressors is None:
        compressors = _thread.compressors = {}
    if level not in compressors:
        import zstandard

        compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressors[level]


def _zstd_window(max_size: int) -> int:
    return min(_MAX_WINDOW, max(_MIN_WINDOW, 1 << max(max_size - 1, 0).bit_length()))


def _zstd_decompressor(max_size: int) -> zstandard.ZstdDecompressor:
    window = _zstd_window(max_size)
    decompressors: dict[int, zstandard.ZstdDecompressor] | None = getattr(_thread, "decompressors", None)
    if decompressors is None:
        decompressors = _thread.decompressors = {}
    if window not in decompressors:
        import zstandard

        decompressors[window] = zstandard.ZstdDecompressor(max_window_size=window)
    return decompressors[window]


def _decompress_zstd(data: bytes, max_size: int, piece_size: int) -> Iterator[bytes]:
    import zstandard

    try:
        declared = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}") from error
    if declared > max_size:
        raise _too_large(max_size)
    if 0 < declared <= piece_size:
        try:
            yield _zstd_decompressor(max_size).decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            if "unused data" not in str(error):
                raise DecompressionError(f"zstd: {error}") from error
        else:
            return
    if piece_size > max_size:
        unpacker = _zstd_decompressor(max_size)
    else:  # the caller may use this thread's decompressor between two pieces
        unpacker = zstandard.ZstdDecompressor(max_window_size=_zstd_window(max_size))
    yield from _decompress_zstd_stream(unpacker, data, max_size, piece_size)


def _decompress_zstd_stream(
    unpacker: zstandard.ZstdDecompressor, data: bytes, max_size: int, piece_size: int
) -> Iterator[bytes]:
    """For frames that do not state their size, for several in a row, and for pieces."""
    import zstandard

    limit = max_size + len(_SENTINEL)
    chunk = max(_FIRST_CHUNK, 4 * len(data))
    size = 0
    end = b""  # the last bytes so far: the sentinel, if the data is complete
    try:
        with unpacker.stream_reader(data + _SENTINEL_FRAME, read_across_frames=True) as reader:
            while part := reader.read(min(chunk, piece_size, limit - size + 1)):
                size += len(part)
                if size > limit:
                    raise _too_large(max_size)
                if end:
                    part = end + part
                end = part[-len(_SENTINEL) :]
                yield part[: -len(_SENTINEL)]
                chunk *= 2
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}") from error
    if end != _SENTINEL:
        raise DecompressionError("zstd: the data ends too early")


_DECOMPRESSORS: dict[int, Callable[[bytes, int, int], Iterator[bytes]]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
