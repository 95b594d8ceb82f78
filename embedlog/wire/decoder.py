"""Compiles the decoder of one version of one message: a Python function of its own.

    compiled(data, pos) -> (message, the pos after it)

`data` is bytes, bytearray or memoryview and ends with the message. The function neither recurses nor looks up
types at run time: nested arrays become nested loops, and a run of fixed-size fields becomes one
Struct.unpack_from, together with the length that follows them (or its first byte, if lengths are varints).

Hostile bytes: unpack_from and indexing never read past the end. Each length is checked against the remaining
bytes before anything is allocated; so is each count times the smallest size of an element, which is never 0.
The cost of a message is therefore bounded by its own length. Any violation raises ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .errors import ProtocolError
from .schema import Wire, wire_of
from .source import FIXED, Source, fields_in
from .varints import read_varint, rest_of_varint, skip_tagged

__all__ = ["compile_decoder"]


def compile_decoder(cls: type, version: int, flexible: bool) -> Callable[..., Any]:
    """The decoder for this version of a message class."""
    return _Decoder(cls, version, flexible).compiled()


class _Decoder:
    """Writes the source of one decoder."""

    def __init__(self, cls: type, version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = Source(f"{cls.__name__} v{version}")
        self._run: list[tuple[str, str]] = []
        """Formats and targets of the current run of fixed-size fields."""
        self._source.namespace.update(
            new=object.__new__,
            rest_of_varint=rest_of_varint,
            read_varint=read_varint,
            skip_tagged=skip_tagged,
            ProtocolError=ProtocolError,
            caught=(struct.error, IndexError, UnicodeDecodeError, ProtocolError),
            unpack_many=struct.unpack_from,
        )

    def compiled(self) -> Callable[..., Any]:
        """Writes and compiles the function."""
        source = self._source
        with source.block("def compiled(data, pos):"):
            source.line("end = len(data)")
            with source.block("try:"):
                message = self._message(self._cls)
                source.line(f"return {message}, pos")
            with source.block("except caught as error:"):
                source.line("raise failed(error, pos) from None")
        return source.build()

    # -- messages and their fields ---------------------------------------------------------------------

    def _message(self, cls: type) -> str:
        """Reads a message of this class, after the current run. Returns the variable that holds it."""
        source = self._source
        message = source.fresh("m")
        source.line(f"{message} = new({source.constant('C', cls)})")
        plain, tagged = fields_in(cls, self._version)
        self._defaults(cls, message)
        for name, wire in plain:
            with source.field(name):
                self._value(wire.kind, wire, f"{message}.{name}")
        if self._flexible:
            self._tagged_fields(tagged, message)
        self._read_run()
        return message

    def _defaults(self, cls: type, message: str) -> None:
        """Sets the fields that this version lacks or may leave out."""
        for name, wire in wire_of(cls):
            if wire.tagged is not None or not wire.is_in(self._version):
                default = repr(wire.default)
                if isinstance(wire.default, type):
                    default = (
                        "[]" if wire.default is list else f"{self._source.constant('C', wire.default)}()"
                    )
                self._source.line(f"{message}.{name} = {default}")

    def _value(self, kind: str, wire: Wire, target: str) -> None:
        if kind in FIXED:
            self._run.append((FIXED[kind], target))
            return
        if kind == "struct":
            self._struct(wire, target)
            return
        count = self._length({"string": "h"}.get(kind, "i"))
        null_allowed = wire.may_be_null(self._version)
        with self._source.block(f"if {count} >= 0:"):
            if kind == "array":
                self._elements(wire, count, target)
            else:
                self._slice(kind, count, target)
        with self._source.block(f"elif {count} == -1:" if null_allowed else "else:"):
            if null_allowed:
                self._source.line(f"{target} = None")
            else:
                self._source.line(f"raise ProtocolError(f'a length of {{{count}}}')")
        if null_allowed:
            with self._source.block("else:"):
                self._source.line(f"raise ProtocolError(f'a length of {{{count}}}')")

    def _struct(self, wire: Wire, target: str) -> None:
        source = self._source
        if not wire.may_be_null(self._version):
            source.line(f"{target} = {self._message(wire.element)}")
            return
        marker = source.fresh("n")
        self._run.append(("b", marker))
        self._read_run()
        with source.block(f"if {marker} < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f"{target} = {self._message(wire.element)}")

    def _length(self, classic: str) -> str:
        """Reads a length or count. Returns the variable that holds it, -1 for null."""
        source = self._source
        count = source.fresh("n")
        if not self._flexible:
            self._run.append((classic, count))
            self._read_run()
            return count
        self._varint(count)
        source.line(f"{count} -= 1")
        return count

    def _varint(self, target: str) -> None:
        self._run.append(("B", target))
        self._read_run()
        with self._source.block(f"if {target} > 127:"):
            self._source.line(f"{target}, pos = rest_of_varint(data, pos, {target})")

    def _read_run(self) -> None:
        """Reads the current run by one unpack_from."""
        if not self._run:
            return
        formats = "".join(format_character for format_character, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        source = self._source
        if formats == "B":
            source.line(f"{targets} = data[pos]")
            source.line("pos += 1")
        else:
            unpack, size = source.struct(formats, "unpack_from")
            source.line(f"{targets}{',' * (len(self._run) == 1)} = {unpack}(data, pos)")
            source.line(f"pos += {size}")
        self._run.clear()

    def _slice(self, kind: str, count: str, target: str) -> None:
        source = self._source
        source.line(f"stop = pos + {count}")
        with source.block("if stop > end:"):
            source.line(f"raise ProtocolError(f'{{{count}}} bytes, {{end - pos}} remain')")
        expression = {
            "string": "str(data[pos:stop], 'utf-8')",
            "bytes": "bytes(data[pos:stop])",
            "records": "memoryview(data)[pos:stop]",
        }[kind]
        source.line(f"{target} = {expression}")
        source.line("pos = stop")

    def _elements(self, wire: Wire, count: str, target: str) -> None:
        source = self._source
        smallest = self._smallest_element(wire.element)
        with source.block(f"if {count} > (end - pos) // {smallest}:"):
            source.line(f"raise ProtocolError(f'{{{count}}} elements, {{end - pos}} bytes remain')")
        if wire.element in FIXED and wire.element != "uuid":
            format_character = FIXED[wire.element]
            source.line(f"{target} = list(unpack_many(f'>{{{count}}}{format_character}', data, pos))")
            source.line(f"pos += {count} * {smallest}")
            return
        items = source.fresh("items")
        source.line(f"{target} = {items} = []")
        with source.block(f"for _ in range({count}):"):
            if isinstance(wire.element, type):
                element = self._message(wire.element)
            else:
                element = source.fresh("e")
                self._value(wire.element, Wire(wire.element, 0, None, None, None, None, None), element)
                self._read_run()
            source.line(f"{items}.append({element})")

    # -- tagged fields ---------------------------------------------------------------------------------

    def _tagged_fields(self, tagged: list[tuple[str, Wire]], message: str) -> None:
        source = self._source
        count = source.fresh("n")
        self._run.append(("B", count))
        self._read_run()
        with source.block(f"if {count}:"):
            with source.block(f"if {count} > 127:"):
                source.line(f"{count}, pos = rest_of_varint(data, pos, {count})")
            if not tagged:
                source.line(f"pos = skip_tagged(data, pos, {count})")
                return
            tag, size, stop = source.fresh("tag"), source.fresh("size"), source.fresh("stop")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, pos = read_varint(data, pos)")
                source.line(f"{size}, pos = read_varint(data, pos)")
                source.line(f"{stop} = pos + {size}")
                with source.block(f"if {stop} > end:"):
                    source.line(f"raise ProtocolError(f'{{{size}}} bytes, {{end - pos}} remain')")
                word = "if"
                for name, wire in tagged:
                    with source.block(f"{word} {tag} == {wire.tagged}:"), source.field(name):
                        self._value(wire.kind, wire, f"{message}.{name}")
                        self._read_run()
                        with source.block(f"if pos != {stop}:"):
                            source.line(f"raise ProtocolError(f'not the {{{size}}} bytes it claims')")
                    word = "elif"
                source.line(f"pos = {stop}")

    # -- sizes -----------------------------------------------------------------------------------------

    def _smallest_element(self, element: Any) -> int:
        if not isinstance(element, type):
            return self._smallest(element)
        plain, _ = fields_in(element, self._version)
        smallest = int(self._flexible)
        for _, wire in plain:
            if wire.kind == "struct" and not wire.may_be_null(self._version):
                smallest += self._smallest_element(wire.element)
            else:
                smallest += self._smallest(wire.kind)
        assert smallest > 0, f"elements of {element.__name__} without a byte"
        return smallest

    def _smallest(self, kind: str) -> int:
        """The size of a primitive; for kinds with a length, the size of the length."""
        if kind in FIXED:
            return struct.calcsize(">" + FIXED[kind])
        return 1 if self._flexible or kind == "struct" else 2 if kind == "string" else 4
