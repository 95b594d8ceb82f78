r"""What a search looks for: a small language.

    error                   in the key, the value or a header
    "two words"             with spaces, quotes (\") or any of = : < > in it
    key:user  key=user-7    the key has it in it, or is it; likewise value:, header:
    header.trace=9f         a header of that name
    user.id=7               a field of the JSON value; also items.0.sku, items.*.sku
    key.id=7                a field of a key that is JSON; value.key=7 of a value's field `key`
    price>10  <  <=  >=     a number, or text, by its order
    user.id=*               there is such a field (or key, value, header)
    a b   a OR b   -a  !=   both; one of them; not

Small letters find capital ones, too; a capital finds itself alone. A value that is no JSON has no fields.
A topic's serializer makes values that have fields likewise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import InvalidArgument
from ..model import Record
from .values import plain

Test: TypeAlias = Callable[["_ParsedRecord"], bool]

_MOST_CHARACTERS: Final = 1_000
_TERM: Final = re.compile(
    r'(?P<no>-?)(?:(?P<name>[^\s"=:<>!]+)(?P<op>!=|<=|>=|[=:<>]))?'
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]*))(?:\s+|$)'
)
_ANYTHING: Final = "*"
_MISSING: Final = object()


class _ParsedRecord:
    """A record that is looked at. Its JSON is parsed once, and only if a term asks for a field."""

    __slots__ = ("_key", "_loads", "_value", "record")

    def __init__(self, record: Record, loads: Callable[[bytes], Any] | None) -> None:
        self.record = record
        self._loads = loads
        self._key: Any = _MISSING
        self._value: Any = _MISSING

    @property
    def is_json(self) -> bool:
        return self._loads is None

    @property
    def key(self) -> Any:
        if self._key is _MISSING:
            self._key = _parsed(self.record.key, json.loads)
        return self._key

    @property
    def value(self) -> Any:
        if self._value is _MISSING:
            self._value = _parsed(self.record.value, self._loads or json.loads)
        return self._value


class Query:
    """A search. Threads may share it."""

    def __init__(self, text: str, loads: Callable[[bytes], Any] | None = None) -> None:
        """Parse a search.

        Args:
            loads: makes a value of bytes, if they are not JSON. It may raise anything.

        Raises InvalidArgument.
        """
        self._either = _parse(text)
        self._loads = loads

    def matches(self, record: Record) -> bool:
        parsed = _ParsedRecord(record, self._loads)
        return any(all(test(parsed) for test in tests) for tests in self._either)


def _parsed(data: bytes | None, loads: Callable[[bytes], Any]) -> Any:
    try:
        return None if data is None else loads(data)
    except Exception:  # also what a serializer raises, and RecursionError
        return None


def _parse(text: str) -> list[list[Test]]:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(f"a search has at most {_MOST_CHARACTERS:,} characters")
    either: list[list[Test]] = [[]]
    at, text = 0, text.strip()
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise InvalidArgument(
                f"the search cannot be read from {text[at : at + 20]!r} on: put text with quotes or spaces "
                'into quotes, as in "two words"'
            )
        at = term.end()
        if term[0].rstrip() == "OR":
            either.append([])
            continue
        test = _term(term)
        either[-1].append(_not(test) if term["no"] else test)
    if not all(either):
        raise InvalidArgument("the search has nothing to look for: OR stands between two terms")
    return either


def _not(test: Test) -> Test:
    return lambda parsed: not test(parsed)


def _term(term: re.Match[str]) -> Test:
    text = term["bare"] if term["quoted"] is None else re.sub(r"\\(.)", r"\1", term["quoted"])
    name, op = term["name"], term["op"]
    if name is None:
        return _anywhere(_Operand(text))
    if op == "!=":
        return _not(_named(name, _Operand(text, "=", term["quoted"] is None)))
    return _named(name, _Operand(text, op, term["quoted"] is None))


class _Operand:
    """What a term compares with."""

    def __init__(self, text: str, op: str = ":", is_bare: bool = True) -> None:
        self.text = text
        self.op = op
        self.is_any = op == "=" and text == _ANYTHING and is_bare
        self.ignores_case = text == text.lower()
        self.data = text.encode(errors="replace")
        self.number = _number(text)

    def is_in(self, data: bytes | None) -> bool:
        if data is None:
            return False
        if self.data in data:
            return True
        return self.ignores_case and (
            self.data in data.lower()
            if self.text.isascii()
            else self.text in data.decode(errors="replace").lower()
        )

    def fits_bytes(self, data: bytes | None) -> bool:
        """Whether a key, a value or a header fits."""
        if data is None:
            return False
        if self.is_any:
            return True
        if self.op == ":":
            return self.is_in(data)
        if self.op == "=":
            return data == self.data
        number = _number(data.decode(errors="replace")) if len(data) < 40 else None
        return self._in_order(data if number is None else number, self.data)

    def fits(self, value: Any) -> bool:
        """Whether a field fits."""
        if self.is_any:
            return True
        if isinstance(value, str):
            return self._fits_text(value)
        if value is None or isinstance(value, bool):
            return self.op in "=:" and self.text == json.dumps(value)
        if isinstance(value, int | float):
            if self.op == ":":
                return self.text in str(value)
            if self.number is None:
                return False
            return value == self.number if self.op == "=" else self._in_order(value, self.text)
        return self.op == ":" and self.is_in(
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")
        )

    def _fits_text(self, value: str) -> bool:
        if self.op == "=":
            return value == self.text
        if self.op == ":":
            return self.text in (value.lower() if self.ignores_case else value)
        return self._in_order(value, self.text)

    def _in_order(self, value: Any, otherwise: Any) -> bool:
        bound = self.number if isinstance(value, int | float) else otherwise
        if bound is None:
            return False
        if self.op[0] == "<":
            return bool(value < bound or (self.op == "<=" and value == bound))
        return bool(value > bound or (self.op == ">=" and value == bound))


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _anywhere(operand: _Operand) -> Test:
    def test(parsed: _ParsedRecord) -> bool:
        _, _, _, _, _, key, value, headers = parsed.record
        return (
            operand.is_in(value)
            or operand.is_in(key)
            or any(operand.is_in(name.encode()) or operand.is_in(data) for name, data in headers)
        )

    return test


def _named(name: str, operand: _Operand) -> Test:
    first, _, rest = name.partition(".")
    if first == "header":
        return lambda parsed: any(
            operand.fits_bytes(data) for header, data in parsed.record.headers if not rest or header == rest
        )
    if name == "key":
        return lambda parsed: operand.fits_bytes(parsed.record.key)
    if name == "value":
        return lambda parsed: operand.fits_bytes(parsed.record.value)
    if first == "key":
        parts = rest.split(".")
        return lambda parsed: any(map(operand.fits, _fields(parsed.key, parts)))
    return _field((rest if first == "value" else name).split("."), operand)


class _Hint(NamedTuple):
    """Bytes that JSON without escapes has in it, if it fits. Far cheaper than to parse it."""

    name: bytes
    text: bytes

    def rules_out(self, data: bytes | None) -> bool:
        return data is None or ((self.name not in data or self.text not in data) and b"\\" not in data)


def _field(parts: Sequence[str], operand: _Operand) -> Test:
    by_text = operand.op == "=" and operand.number is None and not operand.is_any
    hint = _Hint(
        b"" if parts[-1] == _ANYTHING or parts[-1].isdecimal() else parts[-1].encode(),
        operand.data if by_text else b"",
    )

    def test(parsed: _ParsedRecord) -> bool:
        if parsed.is_json and hint.rules_out(parsed.record.value):
            return False
        return any(map(operand.fits, _fields(parsed.value, parts)))

    return test


def _fields(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    """What is at a path; a name may have dots in it."""
    if not parts:
        yield value
    elif isinstance(value, dict):
        if parts[0] in value:
            yield from _fields(value[parts[0]], parts[1:])
        if len(parts) > 1 and (name := ".".join(parts)) in value:
            yield value[name]
    elif isinstance(value, list):
        if parts[0] == _ANYTHING:
            for child in value:
                yield from _fields(child, parts[1:])
        elif parts[0].isdecimal() and int(parts[0]) < len(value):
            yield from _fields(value[int(parts[0])], parts[1:])
    elif isinstance(converted := plain(value), dict | list):  # of a serializer
        yield from _fields(converted, parts)
