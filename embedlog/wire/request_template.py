"""Fast path for produce requests that repeat: a template of a client's request, and of its response.

    request     api, version | correlation id | ... topic ... | index, length, records | the rest
    response    size | correlation id | ... topic ... | index, 0, base offset, time, log start | the rest

A producer sends the same bytes around different records again and again. If a request's other bytes equal
those of an earlier one, its fields do, too, and a successful response differs from the last one by a few
numbers only. The encoders make the template, which is accepted only if it equals the bytes received. This
module knows nothing of the fields except that a partition's index precedes its records, and that its numbers
in the response are adjacent.

Invariant: `RequestTemplate.records_of` returns what `ProduceRequest.decode` would, or None.
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
from .varints import varint

__all__ = ["RequestTemplate", "template_of"]

_FIRST_VERSION: Final = 5  # earlier responses have fewer numbers
_NUMBERS: Final = struct.Struct(">ihqqq")
_MARK: Final = -2  # its bytes occur in no topic name
_API: Final = slice(0, 4)
_AFTER_CORRELATION: Final = 8
_INDEX_BYTES: Final = 4
_SIZE_BYTES: Final = 4


class RequestTemplate:
    """The bytes that repeated requests, and their responses, share. `template_of` makes one.

    Args:
        head: a request's bytes up to the index of its partition, without its size.
        flexible: whether the length of its records is a varint.
        tail: the request's bytes after the records.
        answer: a response's frame before the numbers, and after them.
    """

    def __init__(self, head: bytes, *, flexible: bool, tail: bytes, answer: tuple[bytes, bytes]) -> None:
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
        self._pack = struct.Struct(f">ii{len(self._answer[0])}sihqqq{len(answer[1])}s").pack

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
        return self._pack(
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
    """A template of this request; None if it has several partitions, an old version or an unusual encoding.

    Args:
        frame: the request's bytes, without the size. Header and request are decoded from them.
    """
    version = header.api_version
    if version < _FIRST_VERSION or len(request.topic_data) != 1:
        return None
    (topic,) = request.topic_data
    if len(topic.partition_data) != 1:
        return None
    chunks = [
        bytes(chunk)  # type: ignore[arg-type]
        for chunk in encode_request(request, version, header.correlation_id, header.client_id)
    ]
    if len(chunks) < 2 or b"".join(chunks)[_SIZE_BYTES:] != frame:
        return None
    flexible = PRODUCE.is_flexible(version)
    head, records, tail = chunks[0], chunks[1], b"".join(chunks[2:])
    length_bytes = len(varint(len(records) + 1)) if flexible else _SIZE_BYTES
    answer = _response_around(topic.name, topic.topic_id, version)
    return RequestTemplate(
        head[_SIZE_BYTES : -length_bytes - _INDEX_BYTES], flexible=flexible, tail=tail, answer=answer
    )


def _response_around(name: str, topic_id: bytes, version: int) -> tuple[bytes, bytes]:
    """A successful response for one partition: the bytes before the numbers, and after them."""
    part = PartitionProduceResponse(
        index=_MARK, base_offset=_MARK, log_append_time_ms=_MARK, log_start_offset=_MARK
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
    chunks = encode_response_chunks(ProduceResponse(responses=[topic]), version, 0)
    before, _, tail = b"".join(map(bytes, chunks)).partition(  # type: ignore[arg-type]
        _NUMBERS.pack(_MARK, 0, _MARK, _MARK, _MARK)
    )
    return before, tail
