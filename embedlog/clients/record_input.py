"""Validates and normalizes record input.

`append` and `producer` accept bytes-like objects, headers as pairs or as a dict, and timestamps as numbers or
None. After these functions there are only bytes, tuples and ints.

Invariants: the caller cannot change what they return (bytearrays and memoryviews are copied); an error names
the argument, its type, and what would do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ..codec import NONE, codec_number
from ..codec.plain_encoding import not_bytes
from ..config import MAX_INT64, TopicSettings
from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..model import NO_TIMESTAMP, Header, Headers

Bytes: TypeAlias = bytes | bytearray | memoryview
HeadersInput: TypeAlias = Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None]


def now_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def as_bytes(given: object, what: str) -> bytes | None:
    """A key, a value or a header's value as bytes, copied if mutable; or None.

    Raises InvalidType for anything else; `what` names it in the message.
    """
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        try:
            return bytes(given)
        except ValueError as error:  # a released memoryview
            raise InvalidArgument(f"{what} cannot be read: {error}") from None
    raise not_bytes(what, given)


def as_headers(given: HeadersInput | None) -> Headers:
    """Headers as a tuple of (name, value) pairs, from an iterable of pairs or a dict.

    Raises InvalidType if a name is not a str, or a value neither bytes-like nor None.
    """
    if not given:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    headers: list[Header] = []
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise InvalidType(f"a header's name must be str, not {type(name).__name__} ({shown(name)})")
            name.encode()  # a lone surrogate has no bytes
            headers.append((name, as_bytes(value, "a header's value")))
    except (TypeError, ValueError) as error:
        if isinstance(error, EmbedlogError):
            raise
        raise InvalidType(
            f"headers must be (name, value) pairs or a dict, not {shown(given)}: {error}"
        ) from error
    return tuple(headers)


def as_timestamp(given: int | None, now: int) -> int:
    """Milliseconds since the epoch; `now` for None and -1. Raises InvalidType or InvalidArgument."""
    if given is None:
        return now
    if type(given) is not int and (isinstance(given, bool) or not isinstance(given, int)):
        raise InvalidType(
            f"timestamp_ms must be int, milliseconds since the epoch, not {type(given).__name__}"
            " (of a datetime: int(when.timestamp() * 1000))"
        )
    if 0 <= given <= MAX_INT64:
        return given
    if given == NO_TIMESTAMP:
        return now
    raise InvalidArgument(
        f"timestamp_ms must be milliseconds since the epoch (or -1: now), not {shown(given)}"
    )


def compression_number(given: str | int | None, settings: TopicSettings) -> int:
    """The codec to write with: the one given, else the topic's. "producer" without one means none."""
    chosen = settings.compression_type if given is None else given
    return NONE if chosen == "producer" else codec_number(chosen)
