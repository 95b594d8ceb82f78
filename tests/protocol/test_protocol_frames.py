"""Frame sizes, request headers and the first exchange of a connection, compared with kio's."""

from __future__ import annotations

import io
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponseHeader0
from kio.schema.response_header.v1.header import ResponseHeader as KioResponseHeader1
from kio.serial import entity_writer
from protocol_messages import versions_of

from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from embedlog.wire.apis.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.errors import ProtocolError
from embedlog.wire.frames import (
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response_chunks,
    frame_size,
    unsupported_api_versions,
)
from embedlog.wire.messages import Message, Request, Response


def joined(chunks: list[object]) -> bytes:
    """The bytes of chunks that are bytes."""
    return b"".join(map(bytes, chunks))  # type: ignore[arg-type]


def as_kio(header: object) -> bytes:
    """kio's bytes of one of its headers."""
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)  # type: ignore[type-var]
    return buffer.getvalue()


@pytest.mark.parametrize(
    "cls", [exchange.request for exchange in APIS.values()], ids=lambda cls: cls.__name__
)
def test_request_frames(cls: type[Request]) -> None:
    for version, client_id in itertools.product(versions_of(cls), (None, "", "vögel")):
        check_request_frame(cls, version, client_id)


def check_request_frame(cls: type[Request], version: int, client_id: str | None) -> None:
    frame = joined(encode_request(cls(), version, 77, client_id))
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    kio_header = KioHeader2 if cls.api.is_flexible(version) else KioHeader1
    expected = kio_header(
        request_api_key=cls.api.key, request_api_version=version, correlation_id=77, client_id=client_id
    )
    body = as_kio(expected)
    assert frame[4:] == body + cls().encode(version)

    header = decode_request_header(memoryview(frame)[4:])
    assert header == (cls.api.key, version, 77, client_id, len(body))
    assert cls.decode(memoryview(frame)[4:], version, header.body_pos) == cls()


@pytest.mark.parametrize(
    "cls", [exchange.response for exchange in APIS.values()], ids=lambda cls: cls.__name__
)
def test_response_frames(cls: type[Response]) -> None:
    for version in versions_of(cls):
        check_response_frame(cls, version)


def check_response_frame(cls: type[Response], version: int) -> None:
    frame = joined(encode_response_chunks(cls(), version, -5))
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    with_tags = cls.api.is_flexible(version) and cls is not ApiVersionsResponse
    header = as_kio((KioResponseHeader1 if with_tags else KioResponseHeader0)(correlation_id=-5))
    assert frame[4:] == header + cls().encode(version)
    assert decode_response_header(frame[4:], cls.api, version) == (-5, len(header))
    assert cls.decode(frame[4:], version, len(header)) == cls()


def test_unknown_tags_of_headers_are_skipped() -> None:
    tags = b"\x01\x63\x02ab"
    request = struct.pack(">hhih", 1, 12, 77, -1) + tags
    assert decode_request_header(request).body_pos == len(request)
    assert decode_response_header(b"\0\0\0\x05" + tags, FetchResponse.api, 12) == (5, 4 + len(tags))


def test_a_request_of_an_unknown_api_or_version_has_a_header() -> None:
    """Enough to know what to answer, and under which id."""
    unknown_api = struct.pack(">hhih", 999, 3, 77, 2) + b"me" + b"\xff\xff"
    assert decode_request_header(unknown_api) == (999, 3, 77, "me", 12)
    unknown_version = struct.pack(">hhih", ApiVersionsRequest.api.key, 99, 77, 2) + b"me" + b"\xff\xff"
    assert decode_request_header(unknown_version) == (18, 99, 77, "me", 12)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(9),
        struct.pack(">hhih", 1, 4, 7, 1),
        struct.pack(">hhih", 1, 4, 7, -2),
        struct.pack(">hhih", 1, 4, 7, 32_767) + bytes(32_766),
        struct.pack(">hhih", 1, 4, 7, 2) + b"\xc3\x28",
        struct.pack(">hhih", 1, 12, 7, -1),
        struct.pack(">hhih", 1, 12, 7, -1) + b"\x01\x00\x05abcd",
        struct.pack(">hhih", 1, 12, 7, -1) + b"\xff\xff\xff\xff\x7f",
        struct.pack(">hhih", 1, 12, 7, -1) + b"\xff\xff\xff\xff\x0f\0\0",
    ],
)
def test_bad_request_headers(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="header"):
        decode_request_header(frame)


@pytest.mark.parametrize("frame", [b"", bytes(3), bytes(4), bytes(4) + b"\x01\x00\x05abcd"])
def test_bad_response_headers(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="header"):
        decode_response_header(frame, FetchResponse.api, 12)


@given(st.binary(max_size=30))
def test_noise_instead_of_headers(noise: bytes) -> None:
    try:
        decode_request_header(noise)
        decode_response_header(noise, FetchResponse.api, 12)
    except ProtocolError:
        pass


def test_the_answer_to_an_unknown_version_of_api_versions() -> None:
    frame = joined(encode_response_chunks(unsupported_api_versions((0, 4)), 0, 7))
    assert frame == struct.pack(">iihihhh", 16, 7, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4)


# -- chunks --------------------------------------------------------------------------------------------


class Region:
    """Bytes of a file, as a server has them: a length and nothing to be read here."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


@pytest.mark.parametrize("version", range(19))
def test_records_are_separate_chunks(version: int) -> None:
    region, view = Region(1 << 30), memoryview(b"in memory")
    found = [region, b"", None, view]
    partitions = [PartitionData(partition_index=n, records=each) for n, each in enumerate(found)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="clicks", partitions=partitions)])
    chunks = encode_response_chunks(response, version, 7)
    assert [chunk for chunk in chunks if not isinstance(chunk, bytearray)] == [region, view]
    assert chunks[1] is region
    (size,) = struct.unpack_from(">i", bytes(chunks[0]))  # type: ignore[arg-type]
    assert size == sum(map(len, chunks)) - 4
    with pytest.raises(ProtocolError, match=r"responses\.partitions\.records"):
        response.encode(version)

    partitions[0].records = b"from a file"
    in_memory = joined(encode_response_chunks(response, version, 7))
    _, pos = decode_response_header(in_memory[4:], FetchResponse.api, version)
    decoded = FetchResponse.decode(in_memory[4:], version, pos)
    assert [each.records for each in decoded.responses[0].partitions] == [b"from a file", b"", None, view]
    assert in_memory[4 + pos :] == response.encode(version)


def test_a_frame_may_have_2_gib_less_one() -> None:
    def response(size: int) -> Message:
        partition = PartitionData(records=Region(size))
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])

    largest = (1 << 31) - 1 - sum(map(len, encode_response_chunks(response(1), 4, 7))) + 5
    assert sum(map(len, encode_response_chunks(response(largest), 4, 7))) == (1 << 31) - 1 + 4
    with pytest.raises(ProtocolError, match="does not fit"):
        encode_response_chunks(response(largest + 1), 4, 7)


# -- sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes, at most 1000 are allowed$"),
        (b"\0\0\x03\xe9", "a frame of 1001 bytes"),
        (b"GET ", "this is HTTP"),
        (b"POST", "this is HTTP"),
        (b"\x16\x03\x01\x02", "this is a TLS hello"),
    ],
)
def test_sizes_that_are_refused(start: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        frame_size(b"ab" + start, 2, 1000)


def test_the_limit_itself_is_allowed() -> None:
    assert frame_size(b"\0\0\x03\xe8", 0, 1000) == 1000


def test_a_pipeline_of_requests() -> None:
    """As a broker takes them: split, header, message."""
    sent: list[Request] = [ApiVersionsRequest(client_software_name="me"), HeartbeatRequest(), FetchRequest()]
    stream = b"".join(
        joined(encode_request(request, request.api.max_version, n, "me")) for n, request in enumerate(sent)
    )
    for n in range(len(sent)):
        stop = 4 + frame_size(stream, 0, 1 << 20)
        frame, stream = stream[4:stop], stream[stop:]
        header = decode_request_header(frame)
        assert header.correlation_id == n
        cls = APIS[header.api_key].request
        assert cls.decode(frame, header.api_version, header.body_pos) == sent[n]
    assert not stream
