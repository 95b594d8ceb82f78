"""Fast path for produce requests that repeat: a template of a request, and of its response, for either side.

    request     api, version | correlation id | ... topic ... | index, length, records | the rest
    response    size | correlation id | ... topic ... | index, 0, base offset, time, log start | the rest

A producer sends the same bytes around different records again and again. If a request's other bytes equal
those of an earlier one, its fields do, too, and a successful response differs from the last one by a few
numbers only. So a client writes its requests by a template and reads the responses of those that succeed, and
a broker does the reverse. The encoders make the template, which a broker accepts only if it equals the bytes
received. This module knows nothing of the fields except that a partition's index precedes its records, and
that its numbers in the response are adjacent.

Invariants: `RequestTemplate.records_of` returns what `ProduceRequest.decode` would, or None, and `numbers_of`
what `ProduceResponse.decode` would; `request` and `response` return what the encoders would.
"""

from __future__ import annotations

import struct
from typing import Final

from .apis.produce import (
    PRODUCE,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from .frames import RequestHeader, encode_request, encode_response_chunks
from .messages import Chunk
from .owner_apis import OwnerPartitionProduceResponse, OwnerProduceRequest
from .varints import varint

__all__ = ["RequestTemplate", "template_for", "template_of"]

_FIRST_VERSION: Final = 5  # earlier responses have fewer numbers
_NUMBERS: Final = struct.Struct(">ihqqq")
_MARK: Final = -2  # its bytes occur in no topic name
_API: Final = slice(0, 4)
_AFTER_CORRELATION: Final = 8
_INDEX_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")
_SIZE_BYTES: Final = 4


class RequestTemplate:
    """The bytes that repeated requests, and their responses, share. `template_for` makes one.

    Args:
        version: of the API.
        head: a request's bytes up to the index of its partition, without its size.
        flushes: whether the request asks for durability, which the response confirms (wire/owner_apis.py).
        tail: the request's bytes after the records.
        answer: a response's frame before the numbers, and after them.
    """

    def __init__(
        self, version: int, head: bytes, *, flushes: bool, tail: bytes, answer: tuple[bytes, bytes]
    ) -> None:
        self.version = version
        self.flushes = flushes
        flexible = PRODUCE.is_flexible(version)
        self._api = head[_API]
        self._same = head[_AFTER_CORRELATION:]
        self._flexible = flexible
        self._tail = tail
        # The last byte is of the records, which are never empty, or of a varint length of two bytes.
        fields = struct.Struct(f">4si{len(self._same)}si{'B' if flexible else 'i'}B")
        self._unpack = fields.unpack_from
        self._start = fields.size - 1
        self._answer = answer[0][_AFTER_CORRELATION:], answer[1]
        self._answer_size = len(answer[0]) + _NUMBERS.size + len(answer[1]) - _SIZE_BYTES
        numbers = f"i{len(self._answer[0])}sihqqq{len(answer[1])}s"
        self._pack_answer = struct.Struct(">i" + numbers).pack
        self._unpack_answer = struct.Struct(">" + numbers).unpack
        self._pack_head = struct.Struct(f">i4si{len(self._same)}si").pack

    # -- a client's side ---------------------------------------------------------------------------------

    def request(self, correlation_id: int, index: int, records: Chunk) -> list[Chunk]:
        """The frame, with its size, of a request: the chunks of `encode_request`."""
        size = len(records)
        length = varint(size + 1) if self._flexible else _LENGTH.pack(size)
        rest = len(self._same) + len(length) + size + len(self._tail) + _AFTER_CORRELATION + _INDEX_BYTES
        head = self._pack_head(rest, self._api, correlation_id, self._same, index) + length
        return [head, records, self._tail]

    def numbers_of(self, frame: memoryview) -> tuple[int, int, int, int] | None:
        """The correlation id, partition index, base offset and append time in a response's frame, without
        its size. None unless its append succeeded and it is encoded like the broker's others."""
        try:
            correlation_id, before, index, error, base_offset, time_ms, _, tail = self._unpack_answer(frame)
        except struct.error:
            return None
        if error or (before, tail) != self._answer:
            return None
        return correlation_id, index, base_offset, time_ms

    # -- a broker's side ---------------------------------------------------------------------------------

    def records_of(self, frame: memoryview) -> tuple[int, int, memoryview] | None:
        """The correlation id, partition index and records of a request; None if it does not match.

        `frame` is without its size. The records are a view of it, like those of `ProduceRequest.decode`.
        """
        try:
            api, correlation_id, same, index, length, second = self._unpack(frame)
        except struct.error:
            return None
        if same != self._same or api != self._api:
            return None
        start = self._start
        if self._flexible:
            if length > 0x7F:
                start += 1
                length = length & 0x7F | second << 7
                if second > 0x7F:
                    return None
            length -= 1
        stop = start + length
        if length <= 0 or stop + len(self._tail) != len(frame) or (self._tail and frame[stop:] != self._tail):
            return None
        return correlation_id, index, frame[start:stop]

    def response(
        self,
        correlation_id: int,
        index: int,
        base_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
    ) -> bytes:
        """The frame, with its size, of the response to a successful append."""
        before, tail = self._answer
        return self._pack_answer(
            self._answer_size,
            correlation_id,
            before,
            index,
            0,
            base_offset,
            log_append_time_ms,
            log_start_offset,
            tail,
        )


def template_of(frame: memoryview, header: RequestHeader, request: ProduceRequest) -> RequestTemplate | None:
    """A template of a request that was received; None as from `template_for`, or for an unusual encoding.

    Args:
        frame: the request's bytes, without the size. Header and request are decoded from them.
    """
    template = template_for(request, header.api_version, header.client_id)
    if template is None:
        return None
    (data,) = request.topic_data[0].partition_data
    chunks = template.request(header.correlation_id, data.index, data.records or b"")
    return template if b"".join(chunks)[_SIZE_BYTES:] == frame else None  # type: ignore[arg-type]


def template_for(request: ProduceRequest, version: int, client_id: str | None) -> RequestTemplate | None:
    """A template of requests like this one; None if it is of an old version, has several partitions, or none,
    or no records."""
    if version < _FIRST_VERSION or len(request.topic_data) != 1:
        return None
    (topic,) = request.topic_data
    if len(topic.partition_data) != 1 or not topic.partition_data[0].records:
        return None
    head, records, *tail = encode_request(request, version, 0, client_id)
    length_bytes = len(varint(len(records) + 1)) if PRODUCE.is_flexible(version) else _SIZE_BYTES
    flushes = isinstance(request, OwnerProduceRequest) and request.flush
    answer = _response_around(topic.name, topic.topic_id, version, durable=flushes)
    return RequestTemplate(
        version,
        bytes(head)[_SIZE_BYTES : -length_bytes - _INDEX_BYTES],  # type: ignore[arg-type]
        flushes=flushes,
        tail=b"".join(map(bytes, tail)),  # type: ignore[arg-type]
        answer=answer,
    )


def _response_around(name: str, topic_id: bytes, version: int, *, durable: bool) -> tuple[bytes, bytes]:
    """A successful response for one partition: the bytes before the numbers, and after them."""
    part: PartitionProduceResponse = OwnerPartitionProduceResponse(
        index=_MARK, base_offset=_MARK, log_append_time_ms=_MARK, log_start_offset=_MARK, durable=durable
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
    chunks = encode_response_chunks(ProduceResponse(responses=[topic]), version, 0)
    before, _, tail = b"".join(map(bytes, chunks)).partition(  # type: ignore[arg-type]
        _NUMBERS.pack(_MARK, 0, _MARK, _MARK, _MARK)
    )
    return before, tail
