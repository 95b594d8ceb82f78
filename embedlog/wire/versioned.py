"""Messages in records and in members' metadata: their version as an int16, then the message in that version.

They are declared like the messages of the wire, by hand. They come from a log or from another member of a
group, so invalid bytes raise CorruptRecord, and values that cannot be written raise InvalidArgument.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ..errors import CorruptRecord, InvalidArgument
from .errors import ProtocolError
from .messages import Message, compiled

_VERSION: Final = struct.Struct(">h")


def encode(cls: type[Message], value: Any, version: int) -> bytes:
    """The bytes of `value`, which has the fields of `cls`. Raises InvalidArgument.

    Fields that the version lacks are left out.
    """
    api = cls.api
    if not api.knows(version):
        raise InvalidArgument(
            f"{api.name} version {version}: known are {api.min_version} to {api.max_version}"
        )
    try:
        return bytes(compiled(cls, version, "encode")(value, bytearray(_VERSION.pack(version)), None))
    except ProtocolError as error:
        raise InvalidArgument(str(error)) from None


def version_of(data: bytes, name: str) -> int:
    """The version that the bytes state. `name` is for the error: raises CorruptRecord."""
    if len(data) < _VERSION.size:
        raise CorruptRecord(f"{name} of {len(data)} bytes has no version", pos=0)
    return int(_VERSION.unpack_from(data)[0])


def decode(cls: type[Message], data: bytes) -> tuple[int, Any]:
    """The version and the message. Raises CorruptRecord, also for an unknown version or trailing bytes."""
    version = version_of(data, cls.api.name)
    if not cls.api.knows(version):
        raise CorruptRecord(f"unknown version {version} of {cls.api.name}", pos=0)
    message, end = _decode(cls, data, version)
    if end < len(data):
        raise CorruptRecord(f"{cls.api.name} version {version}: {len(data) - end} bytes left over", pos=end)
    return version, message


def decode_newest_known(cls: type[Message], data: bytes) -> Any:
    """The message, of a kind whose newer versions only add fields at the end: these are ignored.

    Raises CorruptRecord, also for a negative version.
    """
    version = version_of(data, cls.api.name)
    if version < 0:
        raise CorruptRecord(f"unknown version {version} of {cls.api.name}", pos=0)
    return _decode(cls, data, min(version, cls.api.max_version))[0]


def _decode(cls: type[Message], data: bytes, version: int) -> tuple[Any, int]:
    try:
        decoded: tuple[Any, int] = compiled(cls, version, "decode")(data, _VERSION.size)
    except ProtocolError as error:
        raise CorruptRecord(str(error)) from None
    return decoded
