"""Random messages of every class and version, generated from our declarations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from embedlog.wire.apis import APIS
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.messages import Message
from embedlog.wire.schema import Wire, wire_of

EVERY_CLASS = [cls for exchange in APIS.values() for cls in (exchange.request, exchange.response)]


def versions_of(cls: type[Message]) -> range:
    """The versions of a class that embedlog has."""
    return range(cls.api.min_version, cls.api.max_version + 1)


EVERY_MESSAGE = [(cls, version) for cls in EVERY_CLASS for version in versions_of(cls)]

SIGNED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "uuid": st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
    "string": st.text(max_size=8) | st.sampled_from(["x" * 126, "x" * 127, "ä" * 64, "x" * 16_383]),
    "bytes": st.binary(max_size=8) | st.sampled_from([bytes(127), bytes(20_000)]),
    "records": st.binary(max_size=8) | st.sampled_from([bytes(127), bytes(20_000)]),
    **{
        kind: st.integers(-3, 3) | st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        for kind, bits in SIGNED.items()
    },
    "uint16": st.integers(0, (1 << 16) - 1),
    "float64": st.floats(allow_nan=False),
}
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])


def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Messages with values in the fields of this version and defaults in the others."""
    there = {name: _values(name, wire, version) for name, wire in wire_of(cls) if wire.is_in(version)}
    return st.builds(cls, **there)


def _values(name: str, wire: Wire, version: int) -> st.SearchStrategy[Any]:
    if wire.kind == "array":
        return _or_null(wire, version, st.lists(_elements(wire, version), max_size=3))
    if wire.kind == "struct" and wire.tagged is None:
        return _or_null(wire, version, messages(wire.element, version))
    if wire.kind == "struct":
        # One with nothing but defaults is the same as none; only the latter has one encoding.
        return st.none() | messages(wire.element, version).filter(lambda made: made != wire.element())
    if name.endswith("error_code"):
        return _ERROR_CODES
    if name.endswith("_ms") and wire.kind == "int64":
        return st.integers(0, 1 << 42) | st.just(wire.default)
    return _or_null(wire, version, _PRIMITIVES[wire.kind])


def _elements(wire: Wire, version: int) -> st.SearchStrategy[Any]:
    return messages(wire.element, version) if isinstance(wire.element, type) else _PRIMITIVES[wire.element]


def _or_null(wire: Wire, version: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values if wire.may_be_null(version) else values


def name_of(case: tuple[type[Message], int]) -> str:
    """For pytest's list."""
    return f"{case[0].__name__}-{case[1]}"
