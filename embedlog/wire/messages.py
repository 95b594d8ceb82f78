"""What every request and response can do: be decoded and encoded, in any of its versions.

Each (class, version, direction) is compiled when it is first used, about a millisecond, and kept. Threads may
share messages that nobody changes; two threads that compile the same function at once do it twice, no more.
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
    """Record batches that are elsewhere: in a file, say. Its length is their number of bytes."""

    def __len__(self) -> int: ...


Records: TypeAlias = bytes | bytearray | memoryview | SizedRecords
"""Record batches: of a decoded message a memoryview of its input; to be encoded, anything with a length."""

Chunk: TypeAlias = bytes | bytearray | memoryview | SizedRecords

_compiled: dict[tuple[type, int, str], Any] = {}


class Message:
    """A request or a response: a dataclass of plain values, for all versions of its API."""

    __slots__ = ()
    api: ClassVar[Api]

    @classmethod
    def decode(cls, data: Readable, version: int, pos: int = 0) -> Self:
        """The message that begins at pos and ends with the data; more bytes behind it are ignored.

        `records` of the message are views of `data`: they hold it in memory, and they change where the
        caller writes into it anew. All else is copied. At worst, with millions of empty elements, a message
        takes some forty times its bytes in memory. Raises ProtocolError where the bytes are not such a
        message, or where the version is not known.
        """
        decoder = _compiled.get((cls, version, "decode")) or _compile(cls, version, "decode")
        message: Self = decoder(data, pos)[0]
        return message

    def encode(self, version: int, prefix: bytes = b"") -> bytes:
        """The message's bytes, behind the prefix. Records are copied into them.

        Fields that the version does not have are left out silently. Raises ProtocolError where a value does
        not fit, or where the version is not known.
        """
        key = (type(self), version, "encode")
        encoder = _compiled.get(key) or _compile(*key)
        return bytes(encoder(self, bytearray(prefix), None))

    def encode_chunks(self, version: int, prefix: bytes = b"") -> list[Chunk]:
        """The message in pieces that are to be sent one behind the other; the prefix begins the first.

        Each `records` that is not empty is a piece of its own, the very object: of it only `len()`, its size
        in bytes, is asked, so that it may stand for bytes that are sent from elsewhere. Raises as encode
        does.
        """
        key = (type(self), version, "chunks")
        encoder = _compiled.get(key) or _compile(*key)
        chunks: list[Chunk] = []
        last = encoder(self, bytearray(prefix), chunks)
        if last:
            chunks.append(last)
        return chunks


class Request(Message):
    """What a client sends."""

    __slots__ = ()


class Response(Message):
    """What a broker answers."""

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
