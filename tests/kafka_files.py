"""Log files as old brokers wrote them, encoded by kafka-python and aiokafka."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaSet
from old_formats import encode_messages_07

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBatch
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonSet

T = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None]  # offset, key, value


def rows(first: int, count: int, what: bytes = b"value") -> list[Row]:
    """Rows of records; the timestamp is T + offset."""
    return [
        (offset, b"key-%d" % (offset % 7) if offset % 3 else None, b"%s %d" % (what, offset))
        for offset in range(first, first + count)
    ]


def message_set(
    given: list[Row], magic: int, compression: int = 0, *, library: str = "kafka-python"
) -> bytes:
    """A message set with these offsets, as in a broker's file."""
    builder = (KafkaPythonSet if library == "kafka-python" else AiokafkaSet)(
        magic=magic, compression_type=compression, batch_size=1 << 24
    )
    for number, (offset, key, value) in enumerate(given):
        relative = number if magic and compression else offset
        builder.append(relative, timestamp=T + offset, key=key, value=value)
    made = bytearray(builder.build())
    if compression:  # a broker gives the wrapper the last offset in it
        struct.pack_into(">q", made, 0, given[-1][0])
    return bytes(made)


def record_batch(
    given: list[Row],
    compression: int = 0,
    *,
    library: str = "kafka-python",
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    leader_epoch: int = 7,
) -> bytes:
    """A record batch of rows without gaps, as in a broker's file."""
    producer_id, producer_epoch, sequence = producer
    builder = (KafkaPythonBatch if library == "kafka-python" else AiokafkaBatch)(
        magic=2,
        compression_type=compression,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        batch_size=1 << 24,
    )
    for number, (offset, key, value) in enumerate(given):
        builder.append(number, T + offset, key, value, [("n", b"%d" % offset)])
    made = bytearray(builder.build())
    struct.pack_into(">q", made, 0, given[0][0])
    struct.pack_into(">i", made, 12, leader_epoch)
    return bytes(made)


def file_07(payloads: list[bytes], magic: int = 1, compression: int = 0) -> bytes:
    """Messages of 0.7. No current library writes them; test_codec_message_07.py pins the bytes."""
    return encode_messages_07(payloads, magic, compression)


def put(directory: Path, name: str, *parts: bytes) -> Path:
    """Write a file, creating its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(b"".join(parts))
    return path


def fingerprint(root: Path) -> dict[str, tuple[bytes, int]]:
    """Each file below a directory: bytes and modification time."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
