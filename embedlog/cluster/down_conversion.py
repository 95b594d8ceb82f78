"""Between the message sets of old clients and the record batches of the log.

    Produce before version 3    message set, magic 0 or 1  ->  batches        as_batches
    Fetch before version 4      batches  ->  message set, magic 0 or 1        as_message_set
    Fetch before version 10     batches, but none compressed with zstd        size_before_zstd

Up: messages that stand alone are put together, those of a wrapper stay compressed as they were; none of it in
batches of more than `_BATCH_BYTES`, so that a conversion holds no more than that as objects. A producer's
offsets mean nothing. Magic 0 has no timestamps: -1 is kept, as Kafka keeps it. A set whose end is missing is
refused whole: Kafka appends the rest and says nothing.

Down: offsets stay, with the gaps of compaction; what a message cannot say (headers, producers, epochs) is
left out, and so are control batches. A compressed batch becomes wrappers of the same codec, one for each
piece that it is decompressed in. The set is cut off at the bytes that the client asked for, within a message
most often: that is how it learns that there is more, and where nothing else is there, that it has to ask for
more bytes. No old client knows zstd: what stands before such a batch is given, and a fetch that begins at one
fails.

What one answer converts is bounded (`Conversion`), however much the client asks for. Conversion ends early
once the client has disconnected or the broker stops; the answer is what has been converted by then.

Source: Kafka 2.7 implementation, section 5.4 (old message format); KIP-32 (timestamps), KIP-74 (one whole
message at least, from Fetch 3 on), KIP-110 (zstd).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..codec import NONE, ZSTD, BatchHeader, codec_number, decode_pieces, encode_batch, scan
from ..codec.batch_encode import RecordTuple
from ..codec.message_set import ENTRY_OVERHEAD, encode_message_set, inner_messages, iter_messages
from ..codec.record_batch import ATTRIBUTES_POS, CODEC_MASK, LENGTH_OVERHEAD
from ..config import MIB, TopicSettings
from ..errors import CorruptRecord, DecompressedTooLarge, EmbedlogError
from ..model import Record
from ..segment import Segment
from ..storage.reader import ReadablePartition
from ..wire.error_codes import ErrorCode
from .api_errors import ApiError
from .batch_validation import decompresses_to_more

_BATCH_BYTES: Final = MIB
_RECORD_OVERHEAD: Final = 32  # of a record in a batch, at most: its length, deltas, lengths of key and value
_CHUNK_BYTES: Final = MIB
_CONVERTED_BYTES: Final = 4 * MIB  # of decompressed records, for one answer
_UNSENT_BYTES: Final = 64 * MIB  # while that much is unsent, an answer is one piece
_OBJECT_BYTES: Final = 64  # overhead of a record: many small ones cost more than few large ones
_WINDOW_BYTES: Final = 64 << 10
_LENGTH: Final = struct.Struct(">i")
_LENGTH_POS: Final = 8
_ATTRIBUTES: Final = struct.Struct(">h")
_TO_ATTRIBUTES: Final = ATTRIBUTES_POS + _ATTRIBUTES.size


# -- up ------------------------------------------------------------------------------------------------


def as_batches(message_set: bytes, settings: TopicSettings, now_ms: int, max_bytes: int) -> bytearray:
    """The batches that a producer's set is appended as; its wrappers together may decompress to max_bytes.

    Raises ApiError.
    """
    made = _Batches(settings, now_ms)
    stop = 0
    room = max_bytes
    try:
        for message in iter_messages(message_set, any_offset=True):
            made.check_size(message.size)
            made.begin(message.compression)
            for inner in inner_messages(message, max_bytes=room, any_offset=True):
                if message.compression:
                    room -= inner.size
                made.add(inner.key, inner.value, inner.timestamp_ms)
            stop = message.pos + message.size
    except DecompressedTooLarge:
        raise decompresses_to_more(max_bytes) from None
    except CorruptRecord as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if stop != len(message_set) or not message_set:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the message set is empty, or its last message is cut off")
    return made.finished()


class _Batches:
    """Batches being made of messages, one after the other."""

    def __init__(self, settings: TopicSettings, now_ms: int) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._made = bytearray()
        self._rows: list[RecordTuple] = []
        self._bytes = 0
        self._codec = NONE
        self._limit = min(_BATCH_BYTES, settings.max_message_bytes)

    def check_size(self, size: int) -> None:
        """May a message or a batch be so large?"""
        if size > self._settings.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{size:,} bytes: this topic takes {self._settings.max_message_bytes:,} (max.message.bytes)",
            )

    def begin(self, codec: int) -> None:
        """The next messages come under this codec."""
        if codec or codec != self._codec:
            self._end()
        self._codec = codec

    def add(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """One more message."""
        if key is None and self._settings.compacts:
            raise ApiError(ErrorCode.INVALID_RECORD, "a compacted topic takes records with keys only")
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if self._bytes + size > self._limit:
            self._end()
        self._rows.append((key, value, (), self._now_ms if self._settings.append_time else timestamp_ms))
        self._bytes += size

    def finished(self) -> bytearray:
        """All of them."""
        self._end()
        return self._made

    def _end(self) -> None:
        if not self._rows:
            return
        wanted = self._settings.compression_type
        codec = self._codec if wanted == "producer" else codec_number(wanted)
        batch = encode_batch(
            self._rows, compression=codec, timestamp_type=1 if self._settings.append_time else 0
        )
        self.check_size(len(batch))
        self._made += batch
        self._rows = []
        self._bytes = 0


# -- down ----------------------------------------------------------------------------------------------


class Conversion:
    """The conversion for one answer: how much is done, and whether to go on. It is at least one piece.

    Args:
        unsent_bytes: of other answers, held in memory until their clients read them.
        is_over: has the client disconnected, or is the broker stopping? Asked between two pieces.
    """

    def __init__(self, unsent_bytes: int = 0, is_over: Callable[[], bool] = bool) -> None:
        self._is_over = is_over
        self._room = max(min(_CONVERTED_BYTES, _UNSENT_BYTES - unsent_bytes), 1)
        self._used = 0

    def convert(self, records: Sequence[Record], header: BatchHeader, magic: int) -> bytes:
        """Records of one batch as messages: one wrapper, if the batch is compressed."""
        self._used += sum(_OBJECT_BYTES + len(r.key or b"") + len(r.value or b"") for r in records)
        return encode_message_set(
            [(r.key, r.value, (), r.timestamp_ms) for r in records],
            magic,
            header.compression,
            offsets=[record.offset for record in records],
            timestamp_type=header.timestamp_type,
        )

    @property
    def ends(self) -> bool:
        """Is what has been converted so far the answer?"""
        return self._used >= self._room or (self._used > 0 and self._is_over())


def as_message_set(
    partition: ReadablePartition,
    offset: int,
    end_offset: int,
    magic: int,
    max_bytes: int,
    conversion: Conversion,
    *,
    at_least_one: bool,
) -> bytes:
    """The records of offset..end_offset as messages, cut off at max_bytes, or fewer if `conversion` ends.

    With at_least_one the first message is whole, however large. Memory: one batch as it is in the log, or a
    chunk of small ones, and one piece of its records. Raises ApiError if the first batch is compressed with
    zstd; else as `ReadablePartition.fetch`.
    """
    made = bytearray()
    limit = max_bytes
    try:
        for records, header in _pieces(partition, offset, end_offset):
            if records:
                made += conversion.convert(records, header, magic)
            if made and at_least_one:
                limit = max(limit, ENTRY_OVERHEAD + _LENGTH.unpack_from(made, _LENGTH_POS)[0])
            if len(made) >= limit or conversion.ends:
                break
    except EmbedlogError:
        if not made:  # else the next fetch begins there
            raise
    return bytes(made[:limit])


def _pieces(
    partition: ReadablePartition, offset: int, end_offset: int
) -> Iterator[tuple[list[Record], BatchHeader]]:
    """The records of offset..end_offset in pieces, each with its batch's header; [] for a control batch."""
    for data, header in _batches(partition, offset, end_offset):
        if header.compression == ZSTD:
            raise no_zstd()
        if header.is_control:
            yield [], header
            continue
        for records in decode_pieces(data, header, *partition.name, start_offset=offset):
            yield records, header


def _batches(
    partition: ReadablePartition, offset: int, end_offset: int
) -> Iterator[tuple[bytes | memoryview, BatchHeader]]:
    """The batches of offset..end_offset, their CRCs checked."""
    while offset < end_offset:
        data = partition.fetch(offset, _CHUNK_BYTES).data
        found = scan(data)
        for header in found.headers:
            if header.base_offset >= end_offset:
                return
            yield data, header
            offset = header.last_offset + 1
        if found.error is not None:
            raise found.error
        if not found.headers:
            return


def size_before_zstd(segment: Segment, pos: int, size: int) -> int:
    """How many of these bytes stand before the first batch that is compressed with zstd.

    Raises ApiError where it is the very first; OSError.
    """
    at = pos
    window, window_pos = b"", pos
    while pos + size - at >= _TO_ATTRIBUTES:
        if at + _TO_ATTRIBUTES > window_pos + len(window):
            window, window_pos = segment.pread(min(_WINDOW_BYTES, pos + size - at), at), at
            if len(window) < _TO_ATTRIBUTES:
                break
        (attributes,) = _ATTRIBUTES.unpack_from(window, at - window_pos + ATTRIBUTES_POS)
        if attributes & CODEC_MASK == ZSTD:
            if at == pos:
                raise no_zstd()
            return at - pos
        (length,) = _LENGTH.unpack_from(window, at - window_pos + _LENGTH_POS)
        at += max(length, 0) + LENGTH_OVERHEAD
    return size


def no_zstd() -> ApiError:
    """What a client is told that cannot know zstd."""
    return ApiError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        "zstd needs version 10 of Fetch: read this topic with a newer client",
    )
