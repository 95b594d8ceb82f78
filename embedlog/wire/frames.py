"""Frames and headers: what surrounds a message on a connection.

    size       int32    of header and body, in bytes
    header
    body                the message

    request header    v0  api_key int16, api_version int16, correlation_id int32
                      v1  the same, client_id nullable string (int16 length)
                      v2  the same, tagged fields
    response header   v0  correlation_id int32
                      v1  the same, tagged fields

Flexible versions of an API have request header v2 and response header v1, all others v1 and v0. ApiVersions
is an exception, because its client does not know the broker yet: its response always has header v0, and a
request in a version that the broker lacks is answered in version 0, with UNSUPPORTED_VERSION and the versions
that the broker has. Only ControlledShutdown v0, between brokers, has request header v0; it is not supported.

Each size is checked against a limit before anything is allocated. The first four bytes of an HTTP request or
of a TLS hello would announce hundreds of megabytes; the error names them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from .apis import APIS
from .apis.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from .error_codes import ErrorCode
from .errors import ProtocolError
from .messages import Chunk, Request, Response
from .owner_apis import LOG
from .schema import Api
from .varints import Readable, read_varint, skip_tagged

__all__ = [
    "RequestHeader",
    "decode_request_header",
    "decode_response_header",
    "encode_request",
    "encode_response_chunks",
    "frame_size",
    "unsupported_api_versions",
]

_SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhih")
_REQUEST_FRAME: Final = struct.Struct(">ihhih")
_RESPONSE_FRAMES: Final = (struct.Struct(">ii"), struct.Struct(">iix"))
_CORRELATION: Final = struct.Struct(">i")
_FLEXIBLE_REQUESTS: Final = frozenset(
    (key, version)
    for key, api in [(LOG.key, LOG), *((key, exchange.api) for key, exchange in APIS.items())]
    for version in range(api.min_version, api.max_version + 1)
    if api.is_flexible(version)
)
_FLEXIBLE_RESPONSES: Final = frozenset(
    (key, version) for key, version in _FLEXIBLE_REQUESTS if key != API_VERSIONS.key
)


class RequestHeader(NamedTuple):
    """The header of a request. `body_pos` is the pos of its message in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


# -- requests ------------------------------------------------------------------------------------------


def decode_request_header(frame: Readable) -> RequestHeader:
    """The header of a request's frame (without its size).

    If the API or its version is unknown, it is read as header v1, which suffices to refuse it. Raises
    ProtocolError.
    """
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes is too short for a header") from None
    pos = _REQUEST.size
    client_id = None
    if length >= 0:
        stop = pos + length
        if stop > len(frame):
            raise ProtocolError(f"request header: a client_id of {length} bytes, {len(frame) - pos} are left")
        try:
            client_id = str(frame[pos:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"request header: client_id is not UTF-8: {error}") from None
        pos = stop
    elif length != -1:
        raise ProtocolError(f"request header: a client_id of {length} bytes")
    if (key, version) in _FLEXIBLE_REQUESTS:
        pos = _skip_tags(frame, pos, "request")
    return RequestHeader(key, version, correlation_id, client_id, pos)


def encode_request(request: Request, version: int, correlation_id: int, client_id: str | None) -> list[Chunk]:
    """A request's frame, with size and header, in the chunks of `Message.encode_chunks`."""
    api = request.api
    client = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(client)
    try:
        prefix = _REQUEST_FRAME.pack(0, api.key, version, correlation_id, length) + client
    except struct.error as error:
        raise ProtocolError(f"request header: {error}") from None
    if api.is_flexible(version):
        prefix += b"\0"
    return _sized(request.encode_chunks(version, prefix))


# -- responses -----------------------------------------------------------------------------------------


def decode_response_header(frame: Readable, api: Api, version: int) -> tuple[int, int]:
    """The correlation id of a response's frame (without its size), and the pos of its message.

    Raises ProtocolError.
    """
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for a header") from None
    pos = _CORRELATION.size
    return correlation_id, (
        _skip_tags(frame, pos, "response") if (api.key, version) in _FLEXIBLE_RESPONSES else pos
    )


def encode_response_chunks(response: Response, version: int, correlation_id: int) -> list[Chunk]:
    """A response's frame, with size and header, in the chunks of `Message.encode_chunks`."""
    has_tags = (response.api.key, version) in _FLEXIBLE_RESPONSES
    prefix = _RESPONSE_FRAMES[has_tags].pack(0, correlation_id)
    return _sized(response.encode_chunks(version, prefix))


def unsupported_api_versions(offered: tuple[int, int]) -> ApiVersionsResponse:
    """The response to ApiVersions in an unknown version, to be encoded in version 0.

    `offered` are the versions of ApiVersions that the broker has: the client asks again in one of them.
    """
    own = ApiVersion(api_key=API_VERSIONS.key, min_version=offered[0], max_version=offered[1])
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def _skip_tags(frame: Readable, pos: int, of: str) -> int:
    try:
        if frame[pos] == 0:  # nearly always
            return pos + 1
        count, pos = read_varint(frame, pos)
        return skip_tagged(frame, pos, count)
    except (IndexError, ProtocolError) as error:
        raise ProtocolError(f"{of} header: tagged fields: {error}") from None


def _sized(chunks: list[Chunk]) -> list[Chunk]:
    """Writes the size into the room that the first chunk has for it."""
    first = chunks[0]
    assert isinstance(first, bytearray)
    size = sum(map(len, chunks)) - _SIZE.size
    try:
        _SIZE.pack_into(first, 0, size)
    except struct.error:
        raise ProtocolError(f"a frame of {size} bytes does not fit its size of four bytes") from None
    return chunks


# -- sizes --------------------------------------------------------------------------------------------


def frame_size(data: Readable, pos: int, limit: int) -> int:
    """The frame size in the four bytes at pos. Raises ProtocolError if it is negative or above the limit."""
    size: int = _SIZE.unpack_from(data, pos)[0]
    if 0 <= size <= limit:
        return size
    start = bytes(data[pos : pos + 4])
    hint = ""
    if start in _HTTP:
        hint = ": this is HTTP; the port speaks Kafka's protocol"
    elif start[:2] == b"\x16\x03":
        hint = ": this is a TLS hello; the port speaks plain text"
    raise ProtocolError(f"a frame of {size} bytes, at most {limit} are allowed{hint}")


_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "})
