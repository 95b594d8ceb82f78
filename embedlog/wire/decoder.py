"""Compiles the decoder of one message in one version: a Python function made for it alone.

    compiled(data, pos) -> (message, pos behind it)

`data` is bytes, bytearray or memoryview and ends with the message. No recursion, no look-up of types at
run time: nested arrays become nested loops, and a run of fixed-size fields, with the length of what follows
them (or its first byte where lengths are varints), one Struct.unpack_from.

Hostile bytes: unpack_from and indexing do not go past the end; each length and count is held against the
bytes that are left before anything is made of it, a count times the smallest size that an element can have
(never 0). So what a message costs is bounded by its own length. Whatever is wrong is a ProtocolError.
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
    """The decoder of this version of a message class."""
    return _Decoder(cls, version, flexible).compiled()


class _Decoder:
    """Writes the source."""

    def __init__(self, cls: type, version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = Source(f"{cls.__name__} v{version}")
        self._run: list[tuple[str, str]] = []
        """Formats and targets of the fixed-size fields gathered so far."""
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
        """The function."""
        source = self._source
        with source.block("def compiled(data, pos):"):
            source.line("end = len(data)")
            with source.block("try:"):
                made = self._message(self._cls)
                source.line(f"return {made}, pos")
            with source.block("except caught as error:"):
                source.line("raise failed(error, pos) from None")
        return source.build()

    # -- messages and their fields ---------------------------------------------------------------------

    def _message(self, cls: type) -> str:
        """Read a message of this class; the variable that has it. What is due to be read is read first."""
        source = self._source
        made = source.fresh("m")
        source.line(f"{made} = new({source.constant('C', cls)})")
        plain, tagged = fields_in(cls, self._version)
        self._defaults(cls, made)
        for name, wire in plain:
            with source.field(name):
                self._value(wire.kind, wire, f"{made}.{name}")
        if self._flexible:
            self._tagged_fields(tagged, made)
        self._read_run()
        return made

    def _defaults(self, cls: type, made: str) -> None:
        """What this version does not have, and what may be left out."""
        for name, wire in wire_of(cls):
            if wire.tagged is not None or not wire.is_in(self._version):
                default = repr(wire.default)
                if isinstance(wire.default, type):
                    default = (
                        "[]" if wire.default is list else f"{self._source.constant('C', wire.default)}()"
                    )
                self._source.line(f"{made}.{name} = {default}")

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
        """Read a length or count: the variable that has it, -1 for null."""
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
        """One unpack_from for the fields gathered."""
        if not self._run:
            return
        formats = "".join(each for each, _ in self._run)
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
            source.line(f"raise ProtocolError(f'{{{count}}} bytes where {{end - pos}} are left')")
        value = {
            "string": "str(data[pos:stop], 'utf-8')",
            "bytes": "bytes(data[pos:stop])",
            "records": "memoryview(data)[pos:stop]",
        }[kind]
        source.line(f"{target} = {value}")
        source.line("pos = stop")

    def _elements(self, wire: Wire, count: str, target: str) -> None:
        source = self._source
        smallest = self._smallest_element(wire.element)
        with source.block(f"if {count} > (end - pos) // {smallest}:"):
            source.line(f"raise ProtocolError(f'{{{count}}} elements where {{end - pos}} bytes are left')")
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

    def _tagged_fields(self, tagged: list[tuple[str, Wire]], made: str) -> None:
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
            tag, size, behind = source.fresh("tag"), source.fresh("size"), source.fresh("behind")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, pos = read_varint(data, pos)")
                source.line(f"{size}, pos = read_varint(data, pos)")
                source.line(f"{behind} = pos + {size}")
                with source.block(f"if {behind} > end:"):
                    source.line(f"raise ProtocolError(f'{{{size}}} bytes where {{end - pos}} are left')")
                word = "if"
                for name, wire in tagged:
                    with source.block(f"{word} {tag} == {wire.tagged}:"), source.field(name):
                        self._value(wire.kind, wire, f"{made}.{name}")
                        self._read_run()
                        with source.block(f"if pos != {behind}:"):
                            source.line(f"raise ProtocolError(f'not the {{{size}}} bytes it claims')")
                    word = "elif"
                source.line(f"pos = {behind}")

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
        """Bytes of a primitive; of what has a length, those of the length."""
        if kind in FIXED:
            return struct.calcsize(">" + FIXED[kind])
        return 1 if self._flexible or kind == "struct" else 2 if kind == "string" else 4
