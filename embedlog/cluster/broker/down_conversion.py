"""Converts between the message sets of old clients and the record batches of the log.

    Produce before version 3    message set, magic 0 or 1  ->  batches        as_batches
    Fetch before version 4      batches  ->  message set, magic 0 or 1        as_message_set

Up: single messages are combined into batches; those of a wrapper keep its codec. A batch has at most
`_BATCH_BYTES`, which bounds the objects that a conversion holds. A producer's offsets are ignored. Magic 0
has no timestamps: -1 is stored, as in Kafka. A truncated set is rejected as a whole: Kafka appends the rest
silently.

Down: offsets stay, with the gaps of compaction. What a message cannot hold (headers, producers, epochs) is
dropped, and so are control batches. A compressed batch becomes wrappers of the same codec, one for each piece
that it is decompressed in. The set is truncated at the bytes that the client requested, usually within a
message: so the client sees that there is more, or, if it is the only message, that it needs more bytes. Old
clients do not know zstd: a response ends before such a batch, and a fetch that begins at one fails. From
Fetch 4 on clients get such batches, as from Kafka 4.

One response converts a bounded amount (`Conversion`), however much the client requests. Conversion ends early
once the client has disconnected or the broker stops, also while it skips records. The response has the
messages converted so far.

Source: Kafka 2.7 implementation, section 5.4 (old message format); KIP-32 (timestamps), KIP-74 (one whole
message at least, from Fetch 3 on), KIP-110 (zstd).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...codec import NONE, ZSTD, BatchHeader, RecordTuple, codec_number, decode_pieces, encode_batch, scan
from ...codec.message_set import ENTRY_OVERHEAD, encode_message_set, inner_messages, iter_messages
from ...config import MIB, TopicSettings
from ...errors import CorruptRecord, DecompressedTooLarge, EmbedlogError
from ...model import Record
from ...storage.reader import ReadablePartition
from ...wire.error_codes import ErrorCode
from .api_errors import ApiError
from .batch_validation import decompresses_to_more

_BATCH_BYTES: Final = MIB
_RECORD_OVERHEAD: Final = 32  # of a record in a batch, at most: its length, deltas, lengths of key and value
_CHUNK_BYTES: Final = MIB
_CONVERTED_BYTES: Final = 4 * MIB  # of decompressed records, for one response
_UNSENT_BYTES: Final = 64 * MIB  # with that much unsent, a response is one piece
_OBJECT_BYTES: Final = 64  # overhead of a record
_LENGTH: Final = struct.Struct(">i")
_LENGTH_POS: Final = 8


# -- up ------------------------------------------------------------------------------------------------


def as_batches(message_set: bytes, settings: TopicSettings, now_ms: int, max_bytes: int) -> bytearray:
    """The batches to append for a producer's set; its wrappers together may decompress to max_bytes.

    Raises ApiError.
    """
    batches = _Batches(settings, now_ms)
    end_pos = 0
    bytes_left = max_bytes
    try:
        for message in iter_messages(message_set, any_offset=True):
            batches.check_size(message.size)
            batches.begin(message.compression)
            for inner in inner_messages(message, max_bytes=bytes_left, any_offset=True):
                if message.compression:
                    bytes_left -= inner.size
                batches.add(inner.key, inner.value, inner.timestamp_ms)
            end_pos = message.pos + message.size
    except DecompressedTooLarge:
        raise decompresses_to_more(max_bytes) from None
    except CorruptRecord as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if end_pos != len(message_set) or not message_set:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the message set is empty, or its last message is cut off")
    return batches.finished()


class _Batches:
    """Builds batches from messages."""

    def __init__(self, settings: TopicSettings, now_ms: int) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._made = bytearray()
        self._rows: list[RecordTuple] = []
        self._bytes = 0
        self._codec = NONE
        self._limit = min(_BATCH_BYTES, settings.max_message_bytes)

    def check_size(self, size: int) -> None:
        """Raises ApiError for a message or batch that is too large."""
        if size > self._settings.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{size:,} bytes: this topic takes {self._settings.max_message_bytes:,} (max.message.bytes)",
            )

    def begin(self, codec: int) -> None:
        """The next messages have this codec."""
        if codec or codec != self._codec:
            self._end()
        self._codec = codec

    def add(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """Add a message."""
        if key is None and self._settings.compacts:
            raise ApiError(ErrorCode.INVALID_RECORD, "a compacted topic takes records with keys only")
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if self._bytes + size > self._limit:
            self._end()
        self._rows.append((key, value, (), self._now_ms if self._settings.append_time else timestamp_ms))
        self._bytes += size

    def finished(self) -> bytearray:
        """All batches."""
        self._end()
        return self._made

    def _end(self) -> None:
        if not self._rows:
            return
        compression_type = self._settings.compression_type
        codec = self._codec if compression_type == "producer" else codec_number(compression_type)
        batch = encode_batch(
            self._rows, compression=codec, timestamp_type=1 if self._settings.append_time else 0
        )
        self.check_size(len(batch))
        self._made += batch
        self._rows = []
        self._bytes = 0


# -- down ----------------------------------------------------------------------------------------------


class Conversion:
    """The progress of one response's conversion, which looks at one piece at least.

    Args:
        unsent_bytes: of other responses, in memory until their clients read them.
        is_over: whether the client has disconnected or the broker is stopping; called between pieces.
    """

    def __init__(self, unsent_bytes: int = 0, is_over: Callable[[], bool] = bool) -> None:
        self._is_over = is_over
        self._room = max(min(_CONVERTED_BYTES, _UNSENT_BYTES - unsent_bytes), 1)
        self._used = 0
        self._has_begun = False

    def convert(self, records: Sequence[Record], header: BatchHeader, magic: int) -> bytes:
        """Records of one batch as messages; as one wrapper if the batch is compressed.

        Without records, which lie before the offset that the client requested, it is a piece all the same.
        """
        self._has_begun = True
        if not records:
            return b""
        self._used += sum(
            _OBJECT_BYTES + len(record.key or b"") + len(record.value or b"") for record in records
        )
        return encode_message_set(
            [(record.key, record.value, (), record.timestamp_ms) for record in records],
            magic,
            header.compression,
            offsets=[record.offset for record in records],
            timestamp_type=header.timestamp_type,
        )

    @property
    def ends(self) -> bool:
        """Whether the response is complete."""
        return self._used >= self._room or (self._has_begun and self._is_over())


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

    With at_least_one the first message is complete, however large. Memory: one batch as in the log, or a
    chunk of small ones, and one piece of its records. Raises ApiError if the first batch is compressed with
    zstd; else as `ReadablePartition.fetch`.
    """
    message_set = bytearray()
    limit = max_bytes
    try:
        for records, header in _pieces(partition, offset, end_offset):
            message_set += conversion.convert(records, header, magic)
            if message_set and at_least_one:
                limit = max(limit, ENTRY_OVERHEAD + _LENGTH.unpack_from(message_set, _LENGTH_POS)[0])
            if len(message_set) >= limit or conversion.ends:
                break
    except EmbedlogError:
        if not message_set:  # otherwise the next fetch begins there
            raise
    return bytes(message_set[:limit])


def _pieces(
    partition: ReadablePartition, offset: int, end_offset: int
) -> Iterator[tuple[list[Record], BatchHeader]]:
    """The records of offset..end_offset in pieces, each with its batch's header; [] for a control batch."""
    for data, header in _batches(partition, offset, end_offset):
        if header.compression == ZSTD:
            raise _no_zstd()
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
        scanned = scan(data)
        for header in scanned.headers:
            if header.base_offset >= end_offset:
                return
            yield data, header
            offset = header.last_offset + 1
        if scanned.error is not None:
            raise scanned.error
        if not scanned.headers:
            return


def _no_zstd() -> ApiError:
    """The error for a client that does not know zstd."""
    return ApiError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        "message sets have no zstd: read this topic with a client that fetches batches",
    )
