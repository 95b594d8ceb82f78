"""How a message is declared: a dataclass whose fields say their type on the wire and their versions.

    @message
    class FetchPartition:
        partition: int = int32()
        current_leader_epoch: int = int32(since=9, default=-1)
        records: Records | None = records(nullable=0)

The order of the fields is their order on the wire. A field is there in the versions `since` to `until`, both
included; in others it is neither read (it has its default then) nor written (whatever it has). `nullable=N`
allows null from version N on. `tagged=N` makes it a tagged field: behind the others, by number, written only
where it is not the default. A tagged struct is None where it is absent.

To a type checker `int32()` is an int and the class an ordinary dataclass: keyword arguments, each with a
default (0, "", b"", [], sixteen zeros, None for what may always be null). In truth these functions give a
`Wire`, which `message` turns into the field's default and keeps for the compilers (decoder.py, encoder.py).
"""

from __future__ import annotations

import dataclasses
import inspect
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
"""The id that means none."""

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
    """What request and response of an API have in common.

    `flexible_since` is the first version with compact lengths and tagged fields; None where there is none.
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
    """One field on the wire: its kind (int32, string, array ...), its versions, what is in an array."""

    kind: str
    since: int
    until: int | None
    tagged: int | None
    nullable: int | None
    default: Any
    """The value itself, or `list` or a message class to be called for it."""
    element: Any
    """A message class, or the kind of a primitive; None except in arrays and structs."""

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
    """A byte, 0 or 1."""
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


def uuid(*, since: int = 0, until: int | None = None, tagged: int | None = None) -> bytes:
    """Sixteen bytes; all zeros for none."""
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
    """UTF-8 behind its length in bytes."""
    return _wire("string", since, until, tagged, nullable=nullable, default=default)


@overload
def byte_string(*, since: int = 0, until: int | None = None) -> bytes: ...
@overload
def byte_string(*, nullable: int, since: int = 0, until: int | None = None) -> bytes | None: ...
def byte_string(*, nullable: int | None = None, since: int = 0, until: int | None = None) -> Any:
    """Bytes behind their number; decoded to bytes of their own."""
    return _wire("bytes", since, until, None, nullable=nullable)


def records(*, nullable: int | None = None) -> Any:
    """Record batches behind their length in bytes: never copied.

    Decoded, a memoryview of the input; for encoding anything with a length in bytes, see
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
    """A count and as many elements: of a message class, or of a primitive (`array(int32)`)."""
    of = element if isinstance(element, type) else element().kind
    return _wire("array", since, until, tagged, nullable=nullable, default=default, element=of)


@overload
def struct(element: type[_T], *, since: int = 0, until: int | None = None) -> _T: ...
@overload
def struct(element: type[_T], *, nullable: int, since: int = 0, until: int | None = None) -> _T | None: ...
@overload
def struct(element: type[_T], *, tagged: int, since: int = 0, until: int | None = None) -> _T | None: ...
def struct(
    element: type[Any],
    *,
    nullable: int | None = None,
    since: int = 0,
    until: int | None = None,
    tagged: int | None = None,
) -> Any:
    """A message within a message. A nullable one has a byte before it, -1 for null, else 1."""
    default = element if nullable is None and tagged is None else None
    return _wire("struct", since, until, tagged, nullable=nullable, default=default, element=element)


@dataclass_transform(kw_only_default=True)
def message(cls: type[_T]) -> type[_T]:
    """Make a dataclass with slots of a declaration, every field with its default."""
    wires: list[tuple[str, Wire]] = []
    for name in inspect.get_annotations(cls):
        wire = cls.__dict__.get(name)
        if isinstance(wire, Wire):
            wires.append((name, wire))
            if isinstance(wire.default, type):
                setattr(cls, name, dataclasses.field(default_factory=wire.default))
            else:
                setattr(cls, name, wire.default)
    # These three as dataclass writes them would take half of the package's import time.
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls.__repr__ = _repr  # type: ignore[method-assign]
    cls.__eq__ = _equal  # type: ignore[method-assign]
    made_class = dataclasses.dataclass(slots=True, kw_only=True, repr=False, eq=False)(cls)
    made_class._wire = tuple(wires)  # type: ignore[attr-defined]
    return made_class


def _repr(self: object) -> str:
    values = (f"{name}={getattr(self, name)!r}" for name, _ in wire_of(type(self)))
    return f"{type(self).__name__}({', '.join(values)})"


def _equal(self: object, other: object) -> bool:
    return type(other) is type(self) and all(
        getattr(self, name) == getattr(other, name) for name, _ in wire_of(type(self))
    )


def wire_of(cls: type) -> tuple[tuple[str, Wire], ...]:
    """The fields of a message class, in their order on the wire."""
    fields: tuple[tuple[str, Wire], ...] = cls._wire  # type: ignore[attr-defined]
    return fields
