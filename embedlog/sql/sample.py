"""The types of a topic's JSON fields, from a sample of its records.

A topic of up to _RECORDS records in up to _PARTITIONS partitions is read whole. Of a larger one, pieces of
_PIECE records are read, evenly spread over each partition, its first and its last records among them. Of
large records a piece has fewer.

| values | type |
|---|---|
| whole numbers | BIGINT; UBIGINT or HUGEINT if one needs it; JSON beyond 128 bits |
| numbers, some with a fraction or an exponent, or NaN | DOUBLE |
| true, false | BOOLEAN |
| strings | VARCHAR, which nothing but nulls is, too |
| objects, lists, several of these | JSON |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from ..backends.port import Backend
from ..clients.reader import partition_readers

_PARTITIONS: Final = 8
_RECORDS: Final = 5_000
_PIECE: Final = 200
_PIECE_BYTES: Final = 1 << 18
_MOST_FIELDS: Final = 500
_WHOLE: Final = (
    ("BIGINT", -(1 << 63), (1 << 63) - 1),
    ("UBIGINT", 0, (1 << 64) - 1),
    ("HUGEINT", -(1 << 127), (1 << 127) - 1),
)


def types_of_sample(backend: Backend, topic: str, isolation_level: str) -> dict[str, str]:
    """The fields of a topic's JSON objects, by name, with their types in SQL."""
    kinds: dict[str, set[type]] = {}
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for value in _sample(backend, topic, isolation_level):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if not isinstance(parsed, dict):
            continue
        for name, field in parsed.items():
            kind = type(field)
            if name not in kinds:
                if len(kinds) == _MOST_FIELDS or not _is_name(name):
                    continue
                kinds[name] = set()
            kinds[name].add(kind)
            if kind is int:
                least[name] = min(field, least.get(name, field))
                most[name] = max(field, most.get(name, field))
    return {name: _type(types, least.get(name, 0), most.get(name, 0)) for name, types in kinds.items()}


def _type(kinds: set[type], least: int, most: int) -> str:
    """The type of values of these kinds, the whole numbers from `least` to `most`."""
    kinds = kinds - {type(None)}
    if kinds == {int}:
        for type_, bottom, top in _WHOLE:
            if bottom <= least and most <= top:
                return type_
        return "JSON"
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds <= {str}:
        return "VARCHAR"
    return "DOUBLE" if kinds <= {int, float} else "JSON"


def _is_name(name: str) -> bool:
    """Whether SQL can name it: no null character, no lone surrogate."""
    return "\0" not in name and name == name.encode(errors="ignore").decode()


def _sample(backend: Backend, topic: str, isolation_level: str) -> Iterator[bytes]:
    partitions = min(backend.describe_topic(topic).partitions, _PARTITIONS)
    for partition in range(partitions):
        edges = backend.offsets(topic, partition)[partition]
        end = edges.log_end_offset
        for start in _starts(edges.log_start_offset, end, _RECORDS // _PIECE // partitions):
            (reader,) = partition_readers(
                backend, topic, partition, start, min(start + _PIECE, end), isolation_level=isolation_level
            )
            room = _PIECE_BYTES
            while room > 0 and (values := reader.read_values()):
                for value in values:
                    if value is not None:
                        room -= len(value)
                        yield value


def _starts(start: int, end: int, pieces: int) -> list[int]:
    """Where pieces of offsets start that cover a range, or that are evenly spread over it."""
    if end - start <= pieces * _PIECE:
        return list(range(start, end, _PIECE))
    latest = end - _PIECE
    return [start + (latest - start) * number // (pieces - 1) for number in range(pieces)]
