"""Kafka's wire protocol, without I/O: bytes to messages and back, in every version that clients use.

    schema.py      how a message is declared: a dataclass whose fields say their type and versions
    decoder.py     compile a declaration and a version into a Python function; encoder.py the other way round
    messages.py    decode, encode, encode_chunks
    apis.py        all APIs by their keys; the messages in one file a family
    frames.py      sizes and headers
    request_template.py       produce requests that are like the one before
    error_codes.py the numbers that responses carry

    header = decode_request_header(frame)
    exchange = APIS[header.api_key]
    request = exchange.request.decode(frame, header.api_version, header.body_pos)
    ...
    encode_response_chunks(response, header.api_version, header.correlation_id)

Nothing here knows a socket, a file, a thread or a clock, nor the log. The bytes of a peer are never trusted:
decoding costs what they are long, and all that can be wrong with them is a ProtocolError.
"""

from __future__ import annotations

from .apis import APIS
from .error_codes import ErrorCode
from .errors import ProtocolError
from .frames import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response_chunks,
    frame_size,
    unsupported_api_versions,
)
from .messages import Chunk, Exchange, Message, Records, Request, Response
from .request_template import RequestTemplate, template_of
from .schema import NO_UUID, Api

__all__ = [
    "APIS",
    "NO_UUID",
    "Api",
    "Chunk",
    "ErrorCode",
    "Exchange",
    "Message",
    "ProtocolError",
    "Records",
    "Request",
    "RequestHeader",
    "RequestTemplate",
    "Response",
    "decode_request_header",
    "decode_response_header",
    "encode_request",
    "encode_response_chunks",
    "frame_size",
    "template_of",
    "unsupported_api_versions",
]
