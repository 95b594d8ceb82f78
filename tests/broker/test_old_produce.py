"""Produce before version 3: message sets of magic 0 and 1 become record batches, or are refused whole."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import pytest
from encoding import encode_values
from hypothesis import given
from hypothesis import strategies as st
from old_requests import T, fetched, message_set, produce
from wire import Wire
from wire import produce as request_of

from embedlog import codec
from embedlog.cluster import Broker
from embedlog.cluster.broker.api_errors import ApiError
from embedlog.cluster.broker.down_conversion import as_batches
from embedlog.codec import decode, scan
from embedlog.codec.message_set import encode_message_set
from embedlog.config import TopicSettings
from embedlog.wire.error_codes import ErrorCode

MIB = 1 << 20
ROWS = [(b"k%d" % i if i % 3 else None, b"v%d" % i * i if i % 4 else None, T + 9 - i) for i in range(10)]
CODECS = (codec.NONE, codec.GZIP, codec.SNAPPY, codec.LZ4)
SETTINGS = TopicSettings()


def made_of(magic: int, rows: list, compression: int = 0) -> bytes:
    """By aiokafka, but for lz4 of magic 0, which it needs another package for."""
    if (magic, compression) == (0, codec.LZ4):
        return encode_message_set([(key, value, (), time) for key, value, time in rows], 0, compression)
    return message_set(magic, rows, compression)


def refusal(made: bytes, settings: TopicSettings = SETTINGS) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        as_batches(made, settings, T, 32 * MIB)
    return caught.value.code


def read(batches: bytes) -> list[tuple[bytes | None, bytes | None, int]]:
    found = scan(batches)
    assert found.error is None
    assert found.end == len(batches)
    return [
        (r.key, r.value, r.timestamp_ms) for header in found.headers for r in decode(batches, header, "t", 0)
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("compression", CODECS)
def test_sent_records_are_read(broker: Broker, version: int, compression: int) -> None:
    magic = 1 if version == 2 else 0
    broker.log.create_topic("t")
    for base in (0, len(ROWS)):
        answer = produce(broker, version, made_of(magic, ROWS, compression))
        assert (answer.error_code, answer.base_offset) == (0, base)
    times = [time if magic else -1 for _, _, time in ROWS]
    got = list(broker.log.read("t", 0))
    assert [(r.offset, r.key, r.value, r.timestamp_ms, r.timestamp_type) for r in got] == [
        (offset, key, value, time, 0)
        for offset, ((key, value, _), time) in enumerate(zip(ROWS * 2, times * 2, strict=True))
    ]
    headers = scan(fetched(broker, 4)).headers
    assert [header.compression for header in headers] == [compression] * 2


@pytest.mark.parametrize("version", [1, 2])
def test_the_time_of_the_append(broker: Broker, version: int) -> None:
    broker.log.create_topic("t", message_timestamp_type="LogAppendTime")
    answer = produce(broker, version, message_set(version - 1, ROWS, codec.GZIP))
    got = list(broker.log.read("t", 0))
    assert {(r.timestamp_type, r.timestamp_ms > T) for r in got} == {(1, True)}
    if version == 2:
        assert {r.timestamp_ms for r in got} == {answer.log_append_time_ms}


def test_several_messages_and_wrappers_in_a_set() -> None:
    parts = [
        message_set(1, ROWS[:2]),
        message_set(1, ROWS[2:5], codec.GZIP),
        message_set(1, ROWS[5:7], codec.GZIP),
        message_set(1, ROWS[7:8], codec.SNAPPY),
        message_set(1, ROWS[8:]),
    ]
    batches = bytes(as_batches(b"".join(parts), SETTINGS, T, 32 * MIB))
    assert read(batches) == ROWS
    counts = [(header.record_count, header.compression) for header in scan(batches).headers]
    assert counts == [(2, 0), (3, codec.GZIP), (2, codec.GZIP), (1, codec.SNAPPY), (2, 0)]


def test_producers_offsets_are_ignored() -> None:
    inner = encode_message_set([(None, b"a", (), T), (None, b"b", (), T)], 1, offsets=[7, 9])
    plain = bytearray(inner)
    struct.pack_into(">q", plain, 0, -1)
    assert [value for _, value, _ in read(bytes(as_batches(bytes(plain), SETTINGS, T, 32 * MIB)))] == [
        b"a",
        b"b",
    ]
    wrapped = bytearray(encode_message_set([(None, gzip.compress(plain), (), T)], 1))
    wrapped[17] |= codec.GZIP
    struct.pack_into(">I", wrapped, 12, zlib.crc32(wrapped[16:]))
    assert [value for _, value, _ in read(bytes(as_batches(bytes(wrapped), SETTINGS, T, 32 * MIB)))] == [
        b"a",
        b"b",
    ]


@pytest.mark.parametrize(("wanted", "number"), [("uncompressed", 0), ("gzip", 1), ("zstd", 4)])
@pytest.mark.parametrize("compression", CODECS)
def test_a_topic_may_want_another_codec(wanted: str, number: int, compression: int) -> None:
    settings = TopicSettings(compression_type=wanted)
    batches = bytes(as_batches(message_set(1, ROWS, compression), settings, T, 32 * MIB))
    assert read(batches) == ROWS
    assert [header.compression for header in scan(batches).headers] == [number]


def test_a_truncated_message_set(broker: Broker) -> None:
    """Nothing is appended: else what is missing would be acknowledged with the rest."""
    broker.log.create_topic("t")
    made = message_set(0, ROWS)
    for cut in (len(made) - 1, len(made) - 20, 5, 0):
        assert produce(broker, 0, made[:cut]).error_code == ErrorCode.CORRUPT_MESSAGE
    assert broker.log.offsets("t")[0].log_end_offset == 0


def test_a_compacted_topic_takes_keys_only() -> None:
    settings = TopicSettings(cleanup_policy="compact")
    for compression in CODECS:
        assert refusal(message_set(1, ROWS, compression), settings) == ErrorCode.INVALID_RECORD
    keyed = [row for row in ROWS if row[0] is not None]
    assert read(bytes(as_batches(message_set(1, keyed), settings, T, 32 * MIB))) == keyed


# -- sizes -------------------------------------------------------------------------------------------------


def test_the_limit_applies_to_a_message_not_a_set(broker: Broker) -> None:
    broker.log.create_topic("t", max_message_bytes=10_000)
    small = message_set(1, [(None, b"x" * 1_000, T)] * 100)
    assert produce(broker, 2, small).error_code == 0
    assert broker.log.offsets("t")[0].log_end_offset == 100
    assert all(header.size <= 10_000 for header in scan(fetched(broker, 4)).headers)
    for compression in CODECS:
        incompressible = b"".join(struct.pack(">I", zlib.crc32(b"%d" % i)) for i in range(2_600))
        large = message_set(1, [(None, b"x", T), (None, incompressible, T)], compression)
        assert produce(broker, 2, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert broker.log.offsets("t")[0].log_end_offset == 100


def test_a_wrapper_of_many_records_becomes_batches_of_a_moderate_size() -> None:
    rows = [(b"key", b"x" * 100, T + i) for i in range(50_000)]
    batches = bytes(as_batches(message_set(1, rows, codec.GZIP), SETTINGS, T, 32 * MIB))
    assert read(batches) == rows
    headers = scan(batches).headers
    assert len(headers) > 4
    assert {header.compression for header in headers} == {codec.GZIP}


def test_bombs() -> None:
    """All wrappers of a set share one bound, and none of them is in memory whole."""
    huge = message_set(1, [(None, bytes(MIB), T)] * 40, codec.GZIP)
    assert len(huge) < 64 << 10
    several = message_set(1, [(None, bytes(MIB), T)] * 20, codec.GZIP) * 2
    for bomb in (huge, several):
        tracemalloc.start()
        try:
            assert refusal(bomb) == ErrorCode.MESSAGE_TOO_LARGE
            assert tracemalloc.get_traced_memory()[1] < 48 * MIB
        finally:
            tracemalloc.stop()


# -- hostile sets ------------------------------------------------------------------------------------------


def wrapper(body: bytes, attributes: int = codec.GZIP) -> bytes:
    made = bytearray(encode_message_set([(None, gzip.compress(body), (), T)], 1))
    made[17] |= attributes
    struct.pack_into(">I", made, 12, zlib.crc32(made[16:]))
    return bytes(made)


ONE = message_set(1, [(None, b"x", T)])
HOSTILE = {
    "a wrong crc": ONE[:-1] + b"y",
    "a wrapper in a wrapper": wrapper(wrapper(ONE)),
    "another magic inside": wrapper(message_set(0, [(None, b"x", T)])),
    "an end that is missing inside": wrapper(ONE[:-1]),
    "nothing inside": wrapper(b""),
    "not compressed": encode_message_set([(None, b"x", (), T)], 1)[:17] + b"\x01" + ONE[18:],
    "no such codec": wrapper(ONE, 4),
    "a size of -1": struct.pack(">qi", 0, -1) + ONE,
    "a size of 2 GB": struct.pack(">qi", 0, 2**31 - 1) + ONE,
    "a size of 0": struct.pack(">qi", 0, 0) + ONE,
    "zeros": bytes(100),
    "a record batch": bytes(encode_values([b"x"], T)),
    "garbage behind": ONE + b"garbage",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_input(broker: Broker, name: str) -> None:
    broker.log.create_topic("t")
    assert produce(broker, 2, ONE).error_code == 0
    assert produce(broker, 2, ONE + HOSTILE[name]).error_code == ErrorCode.CORRUPT_MESSAGE
    assert broker.log.offsets("t")[0].log_end_offset == 1


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    try:
        as_batches(data, SETTINGS, T, 32 * MIB)
    except ApiError:
        pass


@given(st.sampled_from(CODECS), st.integers(0, 1), st.data())
def test_any_flipped_byte_is_detected_or_harmless(compression: int, magic: int, data: st.DataObject) -> None:
    good = made_of(magic, ROWS, compression)
    expected = read(bytes(as_batches(good, SETTINGS, T, 32 * MIB)))
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(as_batches(bytes(bad), SETTINGS, T, 32 * MIB)))
    except ApiError:
        return
    assert found == expected  # an offset


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=50),
            st.none() | st.binary(max_size=2_000),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 1),
    st.sampled_from(CODECS),
    st.sampled_from([200, 3_000, 1 << 20]),
)
def test_records_survive_or_are_refused_for_their_size(
    rows: list, magic: int, compression: int, max_message_bytes: int
) -> None:
    settings = TopicSettings(max_message_bytes=max_message_bytes)
    try:
        batches = bytes(as_batches(made_of(magic, rows, compression), settings, T, 32 * MIB))
    except ApiError as error:
        assert error.code == ErrorCode.MESSAGE_TOO_LARGE
        assert max_message_bytes < 1 << 20
        return
    assert read(batches) == [(key, value, time if magic else -1) for key, value, time in rows]
    assert all(header.size <= max_message_bytes for header in scan(batches).headers)


def test_acks_0_of_a_set_that_is_refused_closes_the_connection(broker: Broker) -> None:
    """There is no other way to tell the client."""
    broker.log.create_topic("t")
    with Wire(broker) as wire:
        wire.send(request_of("t", ONE + b"cut", acks=0), 0)
        assert wire.is_closed_by_peer()
    assert broker.log.offsets("t")[0].log_end_offset == 0
