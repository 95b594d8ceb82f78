"""Produce requests that are alike: a client's next one, which differs from the one before in a few numbers.

    request     api, version | correlation id | ... topic ... | index, length, records | the rest
    response    size | correlation id | ... topic ... | index, 0, base offset, time, log start | the rest

A producer sends the same bytes again and again, around other records. So what one request said is known of
the next one, too, where its other bytes are the same; and of a response in which nothing is wrong all is
known but a few numbers. What is the same is taken from what the encoders make, and held against the bytes
that came. Of the fields nothing is known here but that a partition's index stands before its records, and its
numbers in a row.

Invariant: what `RequestTemplate.records_of` lets pass is what `ProduceRequest.decode` would read.
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

_FIRST_VERSION: Final = 5  # before it a response has fewer numbers
_NUMBERS: Final = struct.Struct(">ihqqq")
_MARK: Final = -2  # its bytes are in no name
_API: Final = slice(0, 4)
_BEHIND_CORRELATION: Final = 8
_INDEX_BYTES: Final = 4
_SIZE_BYTES: Final = 4


class RequestTemplate:
    """What requests that are alike, and their responses, have in common. `template_of` makes it.

    Args:
        first: a request's bytes up to the index of its partition, without its size.
        flexible: is the length of its records a varint?
        behind: its bytes behind the records.
        answer: a response's frame up to the numbers, and behind them.
    """

    def __init__(self, first: bytes, *, flexible: bool, behind: bytes, answer: tuple[bytes, bytes]) -> None:
        self._api = first[_API]
        self._same = first[_BEHIND_CORRELATION:]
        self._flexible = flexible
        self._behind = behind
        fields = struct.Struct(f">4si{len(self._same)}si{'BB' if flexible else 'i'}")
        self._unpack = fields.unpack_from
        self._start = fields.size - flexible  # of records whose length is one byte, if it is a varint
        self._answer = answer[0][_BEHIND_CORRELATION:], answer[1]
        self._answer_size = len(answer[0]) + _NUMBERS.size + len(answer[1]) - _SIZE_BYTES
        self._pack = struct.Struct(f">ii{len(self._answer[0])}sihqqq{len(answer[1])}s").pack

    def records_of(self, frame: memoryview) -> tuple[int, int, memoryview] | None:
        """The correlation id, the partition's index and the records of a request, if it is alike.

        `frame` is without its size. The records are a view of it, as those of `ProduceRequest.decode`.
        """
        try:
            api, correlation_id, same, index, length, *second = self._unpack(frame)
        except struct.error:
            return None
        if same != self._same or api != self._api:
            return None
        start = self._start
        if self._flexible:
            if length > 0x7F:
                start += 1
                length = length & 0x7F | second[0] << 7
                if second[0] > 0x7F:
                    return None
            length -= 1
        stop = start + length
        if length <= 0 or stop + len(self._behind) != len(frame) or frame[stop:] != self._behind:
            return None
        return correlation_id, index, frame[start:stop]

    def response(self, correlation_id: int, part: PartitionProduceResponse) -> bytes:
        """The frame, its size included, of the response to such a request, in which nothing is wrong: its
        error code, and all that `part` says beside its numbers, are what they are by default."""
        before, behind = self._answer
        return self._pack(
            self._answer_size,
            correlation_id,
            before,
            part.index,
            0,
            part.base_offset,
            part.log_append_time_ms,
            part.log_start_offset,
            behind,
        )


def template_of(frame: memoryview, header: RequestHeader, request: ProduceRequest) -> RequestTemplate | None:
    """What others may have in common with this request; None where that is not known.

    Args:
        frame: its bytes, without the size. Header and request are decoded from them.
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
    first, records, behind = chunks[0], chunks[1], b"".join(chunks[2:])
    length_bytes = len(varint(len(records) + 1)) if flexible else _SIZE_BYTES
    answer = _response_around(topic.name, topic.topic_id, version)
    return RequestTemplate(
        first[_SIZE_BYTES : -length_bytes - _INDEX_BYTES], flexible=flexible, behind=behind, answer=answer
    )


def _response_around(name: str, topic_id: bytes, version: int) -> tuple[bytes, bytes]:
    """A response of one partition without an error, before and behind the numbers."""
    part = PartitionProduceResponse(
        index=_MARK, base_offset=_MARK, log_append_time_ms=_MARK, log_start_offset=_MARK
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
    chunks = encode_response_chunks(ProduceResponse(responses=[topic]), version, 0)
    before, _, behind = b"".join(map(bytes, chunks)).partition(  # type: ignore[arg-type]
        _NUMBERS.pack(_MARK, 0, _MARK, _MARK, _MARK)
    )
    return before, behind
