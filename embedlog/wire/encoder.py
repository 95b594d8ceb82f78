"""Compiles the encoder of one version of one message: a Python function of its own.

    compiled(message, out: bytearray, chunks: list)

appends to `out`. If records are not to be copied, each of them becomes a chunk: the encoder moves `out` to
`chunks`, appends the records, and continues with a new bytearray, which it returns at the end. If they are to
be copied, it returns `out`.

A run of fixed-size fields becomes one Struct.pack, together with the length that follows them if that has a
fixed size, too. Fields that the version lacks are not written, whatever their value. A value out of range and
a None that the version does not allow raise ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .errors import ProtocolError
from .schema import NO_UUID, Wire
from .source import FIXED, Source, fields_in
from .varints import SMALL_VARINTS, varint

__all__ = ["compile_encoder"]


def compile_encoder(cls: type, version: int, flexible: bool, *, chunked: bool) -> Callable[..., Any]:
    """The encoder for this version of a message class. `chunked`: records become chunks instead of copies."""
    return _Encoder(cls, version, flexible, chunked).compiled()


class _Encoder:
    """Writes the source of one encoder."""

    def __init__(self, cls: type, version: int, flexible: bool, chunked: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._chunked = chunked
        self._source = Source(f"{cls.__name__} v{version}")
        self._run: list[tuple[str, str]] = []
        """Formats and expressions of the current run of fixed-size fields."""
        self._source.namespace.update(
            varint=varint,
            small=SMALL_VARINTS,
            pack_many=struct.pack,
            caught=(struct.error, TypeError, AttributeError, UnicodeEncodeError, ProtocolError),
        )

    def compiled(self) -> Callable[..., Any]:
        """Writes and compiles the function."""
        source = self._source
        with source.block("def compiled(m, out, chunks):"):
            with source.block("try:"):
                self._message(self._cls, "m")
                self._write_run()
                source.line("return out")
            with source.block("except caught as error:"):
                source.line("raise failed(error, None) from error")
        return source.build()

    # -- messages and their fields ---------------------------------------------------------------------

    def _message(self, cls: type, message: str) -> None:
        """Writes the fields of a message. The last run stays open."""
        plain, tagged = fields_in(cls, self._version)
        for name, wire in plain:
            with self._source.field(name):
                self._value(wire.kind, wire, f"{message}.{name}")
        if self._flexible and not tagged:
            self._run.append(("x", ""))
        elif self._flexible:
            self._tagged_fields(tagged, message)

    def _value(self, kind: str, wire: Wire, expression: str) -> None:
        if kind in FIXED:
            self._run.append((FIXED[kind], expression))
            return
        source = self._source
        variable = source.fresh("v")
        source.line(f"{variable} = {expression}")
        if wire.may_be_null(self._version):
            self._write_run()
            with source.block(f"if {variable} is None:"):
                if kind == "struct":
                    self._run.append(("b", "-1"))
                else:
                    self._length("-1", kind)
                self._write_run()
            with source.block("else:"):
                self._present(kind, wire, variable)
                self._write_run()
        else:
            self._present(kind, wire, variable)

    def _present(self, kind: str, wire: Wire, variable: str) -> None:
        source = self._source
        if kind == "struct":
            if wire.may_be_null(self._version):
                self._run.append(("b", "1"))
            self._message(wire.element, variable)
            return
        if kind == "string":
            source.line(f"{variable} = {variable}.encode()")
        if kind == "array":
            self._length(f"len({variable})", kind)
            self._elements(wire, variable)
            return
        self._length(f"len({variable})", kind)
        self._write_run()
        if kind == "records" and self._chunked:
            with source.block(f"if len({variable}):"):
                source.line("chunks.append(out)")
                source.line(f"chunks.append({variable})")
                source.line("out = bytearray()")
        else:
            source.line(f"out += {variable}")

    def _length(self, expression: str, kind: str) -> None:
        if not self._flexible:
            self._run.append(("h" if kind == "string" else "i", expression))
        elif expression == "-1":
            self._run.append(("x", ""))
        else:
            self._write_run()
            self._varint(f"{expression} + 1")

    def _varint(self, expression: str) -> None:
        source = self._source
        count = source.fresh("n")
        source.line(f"{count} = {expression}")
        source.line(f"out += small[{count}] if {count} < 4096 else varint({count})")

    def _write_run(self) -> None:
        """Writes the current run by one pack."""
        if not self._run:
            return
        formats = "".join(format_character for format_character, _ in self._run)
        values = ", ".join(expression for _, expression in self._run if expression)
        if formats == "x":
            self._source.line("out.append(0)")
        else:
            pack, _ = self._source.struct(formats, "pack")
            self._source.line(f"out += {pack}({values})")
        self._run.clear()

    def _elements(self, wire: Wire, variable: str) -> None:
        source = self._source
        self._write_run()
        if wire.element in FIXED and wire.element != "uuid":
            source.line(f"out += pack_many(f'>{{len({variable})}}{FIXED[wire.element]}', *{variable})")
            return
        element = source.fresh("e")
        with source.block(f"for {element} in {variable}:"):
            if isinstance(wire.element, type):
                self._message(wire.element, element)
            else:
                self._value(wire.element, Wire(wire.element, 0, None, None, None, None, None), element)
            self._write_run()

    # -- tagged fields ---------------------------------------------------------------------------------

    def _tagged_fields(self, tagged: list[tuple[str, Wire]], message: str) -> None:
        """Writes the count of tagged fields, then tag, size and bytes of each."""
        source = self._source
        self._write_run()
        conditions = [self._is_there(wire, f"{message}.{name}") for name, wire in tagged]
        with source.block(f"if {' or '.join(conditions)}:"):
            self._varint(
                " + ".join(f"({condition})" for condition in conditions)
                if len(conditions) > 1
                else f"int({conditions[0]})"
            )
            for (name, wire), condition in zip(tagged, conditions, strict=True):
                outer = source.fresh("outer")
                with source.block(f"if {condition}:"), source.field(name):
                    source.line(f"{outer} = out")
                    source.line("out = bytearray()")
                    self._value(wire.kind, wire, f"{message}.{name}")
                    self._write_run()
                    source.line(f"{outer} += varint({wire.tagged})")
                    source.line(f"{outer} += varint(len(out))")
                    source.line(f"{outer} += out")
                    source.line(f"out = {outer}")
        with source.block("else:"):
            source.line("out.append(0)")

    def _is_there(self, wire: Wire, expression: str) -> str:
        if wire.default is None:
            return f"{expression} is not None"
        if wire.kind == "array":
            return f"len({expression}) > 0"
        if wire.kind == "uuid":
            return f"{expression} != {self._source.constant('NO_UUID', NO_UUID)}"
        return f"{expression} != {wire.default!r}"
