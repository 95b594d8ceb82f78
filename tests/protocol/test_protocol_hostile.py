"""Hostile bytes: decoding them yields a message or a ProtocolError, at bounded cost."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_messages import EVERY_CLASS, EVERY_MESSAGE, messages, name_of, versions_of

from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.offset_fetch import OffsetFetchRequest
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.errors import ProtocolError
from embedlog.wire.messages import Message
from embedlog.wire.schema import wire_of

LARGE = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\x80\0\0\0")
"""The largest counts and lengths, in all their encodings, and a negative one."""


# Of each class the last version of either kind; the others have the same fields, or fewer.
LAST = [
    (cls, version)
    for cls, version in EVERY_MESSAGE
    if version in (cls.api.max_version, (cls.api.flexible_since or 0) - 1)
]
EACH = [pytest.param(case, marks=() if case in LAST else pytest.mark.soak) for case in EVERY_MESSAGE]


def decode(cls: type[Message], version: int, data: bytes) -> Message | None:
    """The message, or None for a ProtocolError; nothing else may be raised."""
    try:
        return cls.decode(data, version)
    except ProtocolError as error:
        assert str(error).startswith(f"{cls.__name__} v{version}")
        return None


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that were allocated at most, at one time, while it ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", EACH, ids=name_of)
@settings(max_examples=3)
@given(st.data())
@pytest.mark.slow
def test_cut_off_anywhere(case: tuple[type[Message], int], data: st.DataObject) -> None:
    """No beginning of a message is a message."""
    cls, version = case
    encoded = data.draw(messages(cls, version)).encode(version)
    for size in {*range(min(len(encoded), 50)), *range(max(len(encoded) - 50, 0), len(encoded))}:
        assert decode(cls, version, encoded[:size]) is None


@pytest.mark.parametrize("case", EACH, ids=name_of)
@settings(max_examples=3)
@given(st.data(), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_mutated(case: tuple[type[Message], int], data: st.DataObject, chance: random.Random) -> None:
    """What can still be decoded can be encoded, unless a string in it has become too long for that."""
    cls, version = case
    encoded = data.draw(messages(cls, version)).encode(version)
    for _ in range(20):
        mutated = bytearray(encoded)
        for _ in range(chance.randint(1, 3)):
            pos = chance.randrange(len(mutated) + 1)
            match chance.randrange(4):
                case 0:
                    mutated[pos : pos + 1] = chance.randbytes(1)
                case 1:
                    mutated[pos:pos] = chance.randbytes(chance.randint(1, 4))
                case 2:
                    del mutated[pos : pos + chance.randint(1, 4)]
                case 3:
                    large = chance.choice(LARGE)
                    mutated[pos : pos + len(large)] = large
        message = decode(cls, version, bytes(mutated))
        if message is not None:
            again = cls.decode(message.encode(version), version)
            assert again == message or again.encode(version) == message.encode(version)  # NaN equals nothing


@pytest.mark.parametrize("case", LAST, ids=name_of)
@pytest.mark.slow
def test_a_count_allocates_nothing(case: tuple[type[Message], int]) -> None:
    """The largest count or length at each byte of a message with something in every array."""
    cls, version = case
    encoded = filled(cls, version).encode(version)
    decode(cls, version, encoded)  # compiled before anything is measured
    for pos in range(len(encoded)):
        for large in LARGE:
            hostile = encoded[:pos] + large + encoded[pos + len(large) :]
            peak = peak_of(lambda hostile=hostile: decode(cls, version, hostile))
            assert peak < 30_000, (pos, large)


def filled(cls: type, version: int) -> Any:
    """A message with two elements in each array, one in the other."""
    values: dict[str, Any] = {}
    for name, wire in wire_of(cls):
        if wire.is_in(version) and wire.kind == "array":
            of = wire.element
            values[name] = [filled(of, version)] * 2 if isinstance(of, type) else []
        elif wire.is_in(version) and wire.kind == "struct":
            values[name] = filled(wire.element, version)
    return cls(**values)


@pytest.mark.parametrize("case", EACH, ids=name_of)
@settings(max_examples=10)
@given(st.data())
@pytest.mark.slow
def test_noise(case: tuple[type[Message], int], data: st.DataObject) -> None:
    """Much of it zeros, so that it is not refused at once."""
    cls, version = case
    noise = st.lists(st.just(b"\0") | st.binary(max_size=3) | st.sampled_from(LARGE), max_size=40)
    decode(cls, version, b"".join(data.draw(noise)))


SMALLEST: list[tuple[type[Message], int, bytes, bytes, bytes]] = [
    (MetadataRequest, 9, b"\x81\x80\x01", b"\x01\0", bytes(4)),
    (FetchRequest, 12, bytes(4 + 4 + 4 + 4 + 1 + 4 + 4) + b"\x81\x80\x01", b"\x01\x01\0", b"\x01\x01\0"),
    (FetchRequest, 0, bytes(4 + 4 + 4) + b"\0\0\x40\0", bytes(6), b""),
    (FindCoordinatorRequest, 4, b"\0\x81\x80\x01", b"\x01", b"\0"),
    (OffsetFetchRequest, 8, b"\x81\x80\x01", b"\x01\0\0", bytes(2)),
]


@pytest.mark.parametrize(("cls", "version", "head", "element", "tail"), SMALLEST)
def test_the_smallest_elements_cost_a_bounded_multiple_of_their_bytes(
    cls: type[Message], version: int, head: bytes, element: bytes, tail: bytes
) -> None:
    """16,384 of them, as many as were claimed."""
    decode(cls, version, b"")
    hostile = head + element * (1 << 14) + tail
    kept: list[Message | None] = []
    peak = peak_of(lambda: kept.append(decode(cls, version, hostile)))
    assert kept != [None]
    assert len(hostile) < peak < len(hostile) * 60


# -- one by one ----------------------------------------------------------------------------------------


def refused(cls: type[Message], version: int, data: bytes) -> str:
    """The error's message."""
    with pytest.raises(ProtocolError) as caught:
        cls.decode(data, version)
    return str(caught.value)


def test_an_error_says_which_field_and_where() -> None:
    """A pos is where the run of fields begins that could not be read."""
    request = FetchRequest(
        topics=[FetchTopic(topic="clicks", partitions=[FetchPartition(), FetchPartition()])]
    )
    encoded = request.encode(4)
    assert len(encoded) == 17 + 4 + 8 + 4 + 16 * 2
    assert refused(FetchRequest, 4, encoded[:-1]) == (
        "FetchRequest v4, topics.partitions at byte 33: 2 elements, 31 bytes remain"
    )
    assert refused(FetchRequest, 4, encoded[:20]) == "FetchRequest v4, topics at byte 0: too short"
    assert refused(FetchRequest, 4, encoded[:26]) == (
        "FetchRequest v4, topics at byte 21: 1 elements, 5 bytes remain"
    )
    assert refused(HeartbeatRequest, 0, b"\0\x07billin") == (
        "HeartbeatRequest v0, group_id at byte 2: 7 bytes, 6 remain"
    )


def test_null_in_a_required_field() -> None:
    assert "group_id at byte 2: a length of -1" in refused(HeartbeatRequest, 0, b"\xff\xff" + bytes(20))
    assert "group_id at byte 1: a length of -1" in refused(HeartbeatRequest, 4, bytes(20))
    assert "topics at byte 4: a length of -1" in refused(MetadataRequest, 0, b"\xff" * 4)
    assert MetadataRequest.decode(b"\xff" * 4, 1).topics is None


def test_negative_lengths() -> None:
    assert "a length of -2" in refused(HeartbeatRequest, 0, b"\xff\xfe" + bytes(20))
    assert "a length of -2" in refused(MetadataRequest, 1, b"\xff\xff\xff\xfe")
    records = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData()])]).encode(3)
    assert records.endswith(b"\xff\xff\xff\xff")
    assert "partition_data.records" in refused(ProduceRequest, 3, records[:-1] + b"\xfe")


def test_strings_are_utf_8() -> None:
    message = refused(HeartbeatRequest, 0, b"\0\x02\xc3\x28" + bytes(20))
    assert message.startswith("HeartbeatRequest v0, group_id at byte 2: ")
    assert "utf-8" in message


@pytest.mark.parametrize(
    "varint", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\xff\xff\xff\x01"]
)
def test_long_varints(varint: bytes) -> None:
    """In a length, in the number of tagged fields, as a tag and as its size."""
    assert "a varint of more than 32 bits" in refused(ApiVersionsRequest, 3, varint + bytes(9))
    assert "a varint of more than 32 bits" in refused(ApiVersionsRequest, 3, b"\x01\x01" + varint)
    assert "a varint of more than 32 bits" in refused(ApiVersionsRequest, 3, b"\x01\x01\x01" + varint)
    assert "a varint of more than 32 bits" in refused(ApiVersionsRequest, 3, b"\x01\x01\x01\x05" + varint)


@pytest.mark.parametrize("padded", [b"\x83\x80\x80\x80\x00", b"\x83\x00", b"\x83\x80\x00", b"\x03"])
def test_a_varint_may_be_padded(padded: bytes) -> None:
    assert ApiVersionsRequest.decode(padded + b"me\x01\0", 3).client_software_name == "me"


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_unknown_tagged_fields_are_skipped(cls: type[Message]) -> None:
    """Among them one with a number of three bytes and one of no bytes."""
    unknown = b"\x03" + b"\x63\x03abc" + b"\xff\xff\x7f\x80\x01" + bytes(128) + b"\x64\x00"
    for version in filter(cls.api.is_flexible, versions_of(cls)):
        plain = cls().encode(version)
        assert plain[-1] == 0, version
        assert cls.decode(plain[:-1] + unknown, version) == cls(), version
        assert "bytes, " in refused(cls, version, plain[:-1] + b"\x01\x63\x03ab"), version


def test_a_tagged_field_has_the_size_it_claims() -> None:
    encoded = FetchRequest(cluster_id="abc").encode(12)
    assert encoded.endswith(b"\x01\x00\x04\x04abc")
    head = encoded[: -len(b"\x04\x04abc")]
    assert FetchRequest.decode(head + b"\x04\x04abc", 12).cluster_id == "abc"
    assert "cluster_id" in refused(FetchRequest, 12, head + b"\x05\x04abcd")
    assert "cluster_id" in refused(FetchRequest, 12, head + b"\x03\x04abc")
    assert "remain" in refused(FetchRequest, 12, head + b"\x7f\x04abc")


def test_trailing_bytes_after_a_message_are_ignored() -> None:
    for exchange in APIS.values():
        version = exchange.api.max_version
        encoded = exchange.request().encode(version)
        assert exchange.request.decode(encoded + b"\xff\xff", version) == exchange.request()


def test_unknown_versions() -> None:
    for version in (-1, 19, 32_767):
        known = "known are versions 0 to 18"
        with pytest.raises(ProtocolError, match=known):
            FetchRequest.decode(b"", version)
        with pytest.raises(ProtocolError, match=known):
            FetchRequest().encode(version)
        with pytest.raises(ProtocolError, match=known):
            FetchRequest().encode_chunks(version)


def test_records_are_not_copied() -> None:
    partition = PartitionProduceData(index=1, records=b"batch")
    data = bytearray(ProduceRequest(topic_data=[TopicProduceData(partition_data=[partition])]).encode(9))
    decoded = ProduceRequest.decode(data, 9).topic_data[0].partition_data[0].records
    assert isinstance(decoded, memoryview)
    assert decoded == b"batch"
    data[data.index(b"batch")] = ord("c")
    assert decoded == b"catch"


def test_fields_other_than_records_are_copied() -> None:
    request = JoinGroupRequest(protocols=[JoinGroupRequestProtocol(name="range", metadata=b"topics")])
    data = bytearray(request.encode(4))
    decoded = JoinGroupRequest.decode(memoryview(data), 4)
    data[:] = bytes(len(data))
    assert decoded == request
    assert type(decoded.protocols[0].metadata) is bytes


# -- our own mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "version", "field"),
    [
        (MetadataRequest(topics=None), 0, "topics"),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, "topics.name"),
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), 8, "topics"),
        (FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(partition=1 << 31)])]), 4, "partitions"),
        (FindCoordinatorRequest(coordinator_keys=["a", None]), 4, "coordinator_keys"),  # type: ignore[list-item]
        (HeartbeatRequest(group_id=7), 0, "group_id"),  # type: ignore[arg-type]
    ],
)
def test_unencodable_values(request_: Message, version: int, field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        request_.encode(version)
