"""The language of declarations: a dataclass whose fields state their wire type and their versions.

    @message
    class FetchPartition:
        partition: int = int32()
        current_leader_epoch: int = int32(since=9, default=-1)
        records: Records | None = records(nullable=0)

Fields are declared in wire order. Versions `since` to `until`, both included, have the field; in other
versions it is not written, and reading gives its default. `nullable=N` allows null from version N on.
`tagged=N` makes it a tagged field: after the others, ordered by tag, written only if it differs from its
default. A tagged struct that is absent is None.

To a type checker `int32()` is an int and the class an ordinary dataclass: keyword arguments, each with a
default (0, "", b"", [], sixteen zeros, None if every version allows null). At run time these functions
return a `Wire`. `message` replaces it by the field's default and keeps it for the compilers.
"""

from __future__ import annotations

import dataclasses
import inspect
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, dataclass_transform, overload

__all__ = [
    "NO_UUID",
    "Api",
    "Wire",
    "array",
    "boolean",
    "byte_string",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "message",
    "records",
    "string",
    "struct",
    "uint16",
    "uuid",
    "wire_of",
]

NO_UUID: Final = bytes(16)
"""Kafka's null uuid."""

_T = TypeVar("_T")
_Required: Final[Any] = object()
_EMPTY: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": NO_UUID,
}


class Api(NamedTuple):
    """What the request and the response of an API share.

    `flexible_since` is the first version with compact lengths and tagged fields; None if there is none.
    """

    name: str
    key: int
    max_version: int
    flexible_since: int | None
    min_version: int = 0

    def knows(self, version: int) -> bool:
        """Whether messages of this version can be decoded and encoded."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


class Wire(NamedTuple):
    """One declared field: its kind (int32, string, array ...), its versions, the elements of an array."""

    kind: str
    since: int
    until: int | None
    tagged: int | None
    nullable: int | None
    default: Any
    """The value, or `list` or a message class, which returns one when called."""
    element: Any
    """Of arrays and structs: a message class, or the kind of a primitive. Otherwise None."""

    def is_in(self, version: int) -> bool:
        """Whether messages of this version have the field."""
        return version >= self.since and (self.until is None or version <= self.until)

    def may_be_null(self, version: int) -> bool:
        """Whether null is allowed in this version."""
        return self.nullable is not None and version >= self.nullable


def _wire(
    kind: str,
    since: int,
    until: int | None,
    tagged: int | None,
    *,
    nullable: int | None = None,
    default: Any = _Required,
    element: Any = None,
) -> Any:
    if default is _Required:
        default = None if nullable is not None and nullable <= since else _EMPTY.get(kind, 0)
    return Wire(kind, since, until, tagged, nullable, default, element)


def boolean(
    *, since: int = 0, until: int | None = None, tagged: int | None = None, default: bool = False
) -> bool:
    """One byte, 0 or 1."""
    return _wire("bool", since, until, tagged, default=default)  # type: ignore[no-any-return]


def int8(*, since: int = 0, until: int | None = None, tagged: int | None = None, default: int = 0) -> int:
    """One byte, signed."""
    return _wire("int8", since, until, tagged, default=default)  # type: ignore[no-any-return]


def int16(*, since: int = 0, until: int | None = None, tagged: int | None = None, default: int = 0) -> int:
    """Two bytes, signed, big-endian."""
    return _wire("int16", since, until, tagged, default=default)  # type: ignore[no-any-return]


def uint16(*, since: int = 0, until: int | None = None, tagged: int | None = None, default: int = 0) -> int:
    """Two bytes, unsigned, big-endian."""
    return _wire("uint16", since, until, tagged, default=default)  # type: ignore[no-any-return]


def int32(*, since: int = 0, until: int | None = None, tagged: int | None = None, default: int = 0) -> int:
    """Four bytes, signed, big-endian."""
    return _wire("int32", since, until, tagged, default=default)  # type: ignore[no-any-return]


def int64(*, since: int = 0, until: int | None = None, tagged: int | None = None, default: int = 0) -> int:
    """Eight bytes, signed, big-endian."""
    return _wire("int64", since, until, tagged, default=default)  # type: ignore[no-any-return]


def float64(
    *, since: int = 0, until: int | None = None, tagged: int | None = None, default: float = 0.0
) -> float:
    """Eight bytes, big-endian."""
    return _wire("float64", since, until, tagged, default=default)  # type: ignore[no-any-return]


def as_uuid(text: str) -> bytes:
    """A topic's id as on the wire; all zeros for ""."""
    return urlsafe_b64decode(text + "==") if text else NO_UUID


def id_text(data: bytes) -> str:
    """A topic's id as Kafka writes it, 22 characters of URL-safe base64; "" for all zeros."""
    return "" if data == NO_UUID else urlsafe_b64encode(data)[:22].decode()


def uuid(*, since: int = 0, until: int | None = None, tagged: int | None = None) -> bytes:
    """Sixteen bytes; all zeros for null."""
    return _wire("uuid", since, until, tagged)  # type: ignore[no-any-return]


@overload
def string(
    *, since: int = 0, until: int | None = None, tagged: int | None = None, default: str = ""
) -> str: ...
@overload
def string(
    *, nullable: int, since: int = 0, until: int | None = None, tagged: int | None = None
) -> str | None: ...
def string(
    *,
    nullable: int | None = None,
    since: int = 0,
    until: int | None = None,
    tagged: int | None = None,
    default: Any = _Required,
) -> Any:
    """A length in bytes, then UTF-8."""
    return _wire("string", since, until, tagged, nullable=nullable, default=default)


@overload
def byte_string(*, since: int = 0, until: int | None = None) -> bytes: ...
@overload
def byte_string(*, nullable: int, since: int = 0, until: int | None = None) -> bytes | None: ...
def byte_string(*, nullable: int | None = None, since: int = 0, until: int | None = None) -> Any:
    """A length, then bytes. The decoder copies them."""
    return _wire("bytes", since, until, None, nullable=nullable)


def records(*, nullable: int | None = None) -> Any:
    """A length in bytes, then record batches. They are never copied.

    The decoder returns a memoryview of its input. The encoder takes anything that has a length in bytes; see
    `Message.encode_chunks`.
    """
    return _wire("records", 0, None, None, nullable=nullable)


@overload
def array(
    element: Callable[..., _T], *, since: int = 0, until: int | None = None, tagged: int | None = None
) -> list[_T]: ...
@overload
def array(
    element: Callable[..., _T],
    *,
    nullable: int,
    since: int = 0,
    until: int | None = None,
    tagged: int | None = None,
    default: None = ...,
) -> list[_T] | None: ...
def array(
    element: Callable[..., Any],
    *,
    nullable: int | None = None,
    since: int = 0,
    until: int | None = None,
    tagged: int | None = None,
    default: Any = list,
) -> Any:
    """A count, then elements of a message class or of a primitive type (`array(int32)`)."""
    of = element if isinstance(element, type) else element().kind
    return _wire("array", since, until, tagged, nullable=nullable, default=default, element=of)


@overload
def struct(element: type[_T], *, since: int = 0, until: int | None = None) -> _T: ...
@overload
def struct(element: type[_T], *, nullable: int, since: int = 0, until: int | None = None) -> _T | None: ...
@overload
def struct(
    element: type[_T], *, tagged: int, nullable: int | None = None, since: int = 0, until: int | None = None
) -> _T | None: ...
def struct(
    element: type[Any],
    *,
    nullable: int | None = None,
    since: int = 0,
    until: int | None = None,
    tagged: int | None = None,
) -> Any:
    """A message within a message. If it may be null, a byte precedes it: -1 for null, else 1."""
    default = element if nullable is None and tagged is None else None
    return _wire("struct", since, until, tagged, nullable=nullable, default=default, element=element)


@dataclass_transform(kw_only_default=True)
def message(cls: type[_T]) -> type[_T]:
    """Turns a declaration into a dataclass with slots and a default for each field.

    A subclass of a message has its fields, may declare some of them differently, and adds its own.
    """
    wires: dict[str, Wire] = dict(getattr(cls, "_wire", ()))
    for name in inspect.get_annotations(cls):
        wire = cls.__dict__.get(name)
        if isinstance(wire, Wire):
            wires[name] = wire
            if isinstance(wire.default, type):
                setattr(cls, name, dataclasses.field(default_factory=wire.default))
            else:
                setattr(cls, name, wire.default)
    # dataclass would compile these for each class, which takes a third of the package's import time.
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls.__repr__ = _repr  # type: ignore[method-assign]
    cls.__eq__ = _equal  # type: ignore[method-assign]
    made_class = dataclasses.dataclass(slots=True, kw_only=True, repr=False, eq=False)(cls)
    made_class._wire = tuple(wires.items())  # type: ignore[attr-defined]
    return made_class


def _repr(self: object) -> str:
    values = (f"{name}={getattr(self, name)!r}" for name, _ in wire_of(type(self)))
    return f"{type(self).__name__}({', '.join(values)})"


def _equal(self: object, other: object) -> bool:
    return type(other) is type(self) and all(
        getattr(self, name) == getattr(other, name) for name, _ in wire_of(type(self))
    )


def wire_of(cls: type) -> tuple[tuple[str, Wire], ...]:
    """The fields of a message class, in wire order."""
    fields: tuple[tuple[str, Wire], ...] = cls._wire  # type: ignore[attr-defined]
    return fields
