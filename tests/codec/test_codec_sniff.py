"""Formats told apart by their first bytes."""

import struct

import pytest
from codec_golden import BATCHES, MESSAGE_SETS, TRANSACTIONAL
from encoding import encode_values
from hypothesis import given
from hypothesis import strategies as st
from old_formats import encode_messages_07

from embedlog.codec.message_set import encode_message_set
from embedlog.codec.sniff import identify

T = 1_700_000_000_000
NAMES = {"batch-v2", "message-set-v1", "message-set-v0", "0.7", "zeros", "empty", "unknown"}
RECORDS = [(b"key", b"value" * 10, (), T)] * 3


@pytest.mark.parametrize("name", [*BATCHES, *(f"{name} t" for name in TRANSACTIONAL)])
def test_record_batches(name: str) -> None:
    batch = bytes.fromhex(TRANSACTIONAL[name[:-2]] if name.endswith(" t") else BATCHES[name])
    for size in (20, 61, 100, len(batch)):
        assert identify(batch[:size]) == "batch-v2"
    assert identify(batch + b"and more") == "batch-v2"


def test_a_damaged_batch_is_still_a_batch() -> None:
    batch = encode_values([b"v" * 20], T)
    batch[-1] ^= 1
    assert identify(batch) == "batch-v2"


@pytest.mark.parametrize("base_offset", [0, 5, 2**33, 2**48])
def test_offsets_do_not_mislead(base_offset: int) -> None:
    assert identify(encode_values([b"v"] * 50, T, base_offset=base_offset)) == "batch-v2"
    for magic in (0, 1):
        made = encode_message_set(RECORDS, magic, base_offset=base_offset)
        assert identify(made) == f"message-set-v{magic}"


@pytest.mark.parametrize("name", MESSAGE_SETS)
def test_message_sets(name: str) -> None:
    made = bytes.fromhex(MESSAGE_SETS[name])
    magic = name.split()[1]
    for size in (20, 40, len(made)):
        assert identify(made[:size]) == f"message-set-v{magic}"


def test_a_damaged_message_is_unknown() -> None:
    made = bytearray(encode_message_set(RECORDS[:1], 1))
    made[-1] ^= 1
    assert identify(made) == "unknown"


@pytest.mark.parametrize(("magic", "compression"), [(0, 0), (1, 0), (1, 1), (1, 2)])
def test_kafka_07(magic: int, compression: int) -> None:
    made = encode_messages_07([b"hello" * 20] * 3, magic, compression)
    for size in (10, 30, len(made)):
        assert identify(made[:size]) == "0.7"
    # Payloads that would do as another format's header.
    for payload in (encode_values([b"v"], T), encode_message_set(RECORDS, 1), bytes(100)):
        assert identify(encode_messages_07([payload], magic)) == "0.7"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "empty"),
        (b"\0", "zeros"),
        (bytes(4096), "zeros"),
        (b"hello, this is text and surely not a log\n" * 20, "unknown"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "unknown"),
        (b"PK\x03\x04" + bytes(100), "unknown"),
        (b"SQLite format 3\0" + bytes(100), "unknown"),
        (b"\x02" * 100, "unknown"),
        (b"\xff" * 100, "unknown"),
        (struct.pack(">qii", 1, 2, 3), "unknown"),
    ],
    ids=lambda given: f"{given[:8]!r}" if isinstance(given, bytes) else given,
)
def test_unknown_formats(data: bytes, name: str) -> None:
    assert identify(data) == name


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    assert identify(data) in NAMES
