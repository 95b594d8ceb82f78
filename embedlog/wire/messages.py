"""The base classes of messages: decoding and encoding, in any version.

The first use of a (class, version, direction) compiles its function in about a millisecond and keeps it.
Threads may share messages that none of them changes. Two threads that first use the same function at once
both compile it, which is harmless.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

from .errors import ProtocolError
from .schema import Api
from .varints import Readable

__all__ = ["Chunk", "Exchange", "Message", "Records", "Request", "Response", "compiled"]


class SizedRecords(Protocol):
    """Record batches stored elsewhere, for example in a file. The length is their size in bytes."""

    def __len__(self) -> int: ...


Records: TypeAlias = bytes | bytearray | memoryview | SizedRecords
"""Record batches: decoded, a memoryview of the input; for encoding, anything that has a length."""

Chunk: TypeAlias = bytes | bytearray | memoryview | SizedRecords

_compiled: dict[tuple[type, int, str], Any] = {}


class Message:
    """A request or a response: a dataclass of plain values, one for all versions of its API."""

    __slots__ = ()
    api: ClassVar[Api]

    @classmethod
    def decode(cls, data: Readable, version: int, pos: int = 0) -> Self:
        """The message that begins at pos; bytes after it are ignored.

        The message's `records` are views of `data`: they keep it in memory, and they change if the caller
        overwrites it. All other values are copies. At worst, with millions of empty elements, a message
        takes about forty times its encoded size in memory. Raises ProtocolError if the bytes are not such a
        message, or if the version is unknown.
        """
        message: Self = compiled(cls, version, "decode")(data, pos)[0]
        return message

    def encode(self, version: int, prefix: bytes = b"") -> bytes:
        """The prefix, then the message's bytes, with copies of its records.

        Fields that the version lacks are silently left out. Raises ProtocolError if a value is out of range,
        or if the version is unknown.
        """
        return bytes(compiled(type(self), version, "encode")(self, bytearray(prefix), None))

    def encode_chunks(self, version: int, prefix: bytes = b"") -> list[Chunk]:
        """The message in chunks, to be sent one after the other; the first starts with the prefix.

        Each `records` that is not empty is a chunk, the same object. Only its `len()` is used, its size in
        bytes, so it may stand for bytes that are sent from a file. Raises like `encode`.
        """
        chunks: list[Chunk] = []
        last = compiled(type(self), version, "chunks")(self, bytearray(prefix), chunks)
        if last:
            chunks.append(last)
        return chunks


class Request(Message):
    """A message that a client sends."""

    __slots__ = ()


class Response(Message):
    """A message that a broker sends back."""

    __slots__ = ()


class Exchange(NamedTuple):
    """An API with the class of its request and the class of its response."""

    api: Api
    request: type[Request]
    response: type[Response]


def compiled(cls: type[Message], version: int, action: str) -> Any:
    """The function that does `action` ("decode", "encode" or "chunks") for one version of a message.

    Raises ProtocolError if the version is unknown.
    """
    function = _compiled.get((cls, version, action))
    return function if function is not None else _compile(cls, version, action)


def _compile(cls: type[Message], version: int, action: str) -> Any:
    from .decoder import compile_decoder
    from .encoder import compile_encoder

    api = cls.api
    if not api.knows(version):
        raise ProtocolError(
            f"{cls.__name__} v{version}: known are versions {api.min_version} to {api.max_version}"
        )
    flexible = api.is_flexible(version)
    if action == "decode":
        function = compile_decoder(cls, version, flexible)
    else:
        function = compile_encoder(cls, version, flexible, chunked=action == "chunks")
    _compiled[cls, version, action] = function
    return function
