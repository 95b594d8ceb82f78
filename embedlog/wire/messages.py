"""The base classes of messages: decoding and encoding, in any version.

The first use of a (class, version, direction) compiles its function in about a millisecond and keeps it.
Threads may share messages that none of them changes. Two threads that first use the same function at once
both compile it, which is harmless.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

from .decoder import compile_decoder
from .encoder import compile_encoder
from .errors import ProtocolError
from .schema import Api
from .varints import Readable

__all__ = ["Chunk", "Exchange", "Message", "Records", "Request", "Response"]


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
        decoder = _compiled.get((cls, version, "decode")) or _compile(cls, version, "decode")
        message: Self = decoder(data, pos)[0]
        return message

    def encode(self, version: int, prefix: bytes = b"") -> bytes:
        """The prefix, then the message's bytes, with copies of its records.

        Fields that the version lacks are silently left out. Raises ProtocolError if a value is out of range,
        or if the version is unknown.
        """
        key = (type(self), version, "encode")
        encoder = _compiled.get(key) or _compile(*key)
        return bytes(encoder(self, bytearray(prefix), None))

    def encode_chunks(self, version: int, prefix: bytes = b"") -> list[Chunk]:
        """The message in chunks, to be sent one after the other; the first starts with the prefix.

        Each `records` that is not empty is a chunk, the same object. Only its `len()` is used, its size in
        bytes, so it may stand for bytes that are sent from a file. Raises like `encode`.
        """
        key = (type(self), version, "chunks")
        encoder = _compiled.get(key) or _compile(*key)
        chunks: list[Chunk] = []
        last = encoder(self, bytearray(prefix), chunks)
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


def _compile(cls: type[Message], version: int, what: str) -> Any:
    api = cls.api
    if not api.knows(version):
        raise ProtocolError(
            f"{cls.__name__} v{version}: known are versions {api.min_version} to {api.max_version}"
        )
    flexible = api.is_flexible(version)
    if what == "decode":
        made = compile_decoder(cls, version, flexible)
    else:
        made = compile_encoder(cls, version, flexible, chunked=what == "chunks")
    _compiled[cls, version, what] = made
    return made
