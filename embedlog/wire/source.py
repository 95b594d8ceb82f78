"""Builds the source of a compiled function, for both compilers.

A function is built line by line, and each line remembers which field it reads or writes. The traceback of an
error has the line's number, so the error names the field; valid input pays nothing for that. Consecutive
fixed-size fields (a run) share one struct.Struct.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from .errors import ProtocolError
from .schema import Wire, wire_of

__all__ = ["FIXED", "Source", "fields_in"]

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The struct formats of the kinds with a fixed size."""


class Source:
    """The lines of one function, and the names that it uses."""

    def __init__(self, name: str) -> None:
        self.namespace: dict[str, Any] = {}
        self._name = name
        self._lines: list[str] = []
        self._paths: list[str] = []
        self._indent = 0
        self._path: list[str] = []
        self._made = 0

    def line(self, text: str) -> None:
        """Appends a line at the current indentation."""
        self._lines.append("    " * self._indent + text)
        self._paths.append(".".join(self._path))

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        """Appends a line that ends in a colon; lines appended within the context are its block."""
        self.line(text)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        """Lines appended within the context belong to this field."""
        self._path.append(name)
        yield
        self._path.pop()

    def fresh(self, stem: str) -> str:
        """A new variable name."""
        self._made += 1
        return f"{stem}{self._made}"

    def constant(self, stem: str, value: object) -> str:
        """A name for this value in the function's globals."""
        for name, constant in self.namespace.items():
            if constant is value:
                return name
        name = self.fresh(stem)
        self.namespace[name] = value
        return name

    def struct(self, formats: str, method: str) -> tuple[str, int]:
        """A name for a method of the Struct with these big-endian formats, and the Struct's size."""
        name = f"{method}_{formats.replace('?', 'o')}"
        layout = struct.Struct(">" + formats)
        self.namespace.setdefault(name, getattr(layout, method))
        return name, layout.size

    def build(self) -> Callable[..., Any]:
        """Compiles the lines and returns the function `compiled` that they define."""
        paths = self._paths

        def field_at(trace: TracebackType | None) -> str:
            while trace is not None and trace.tb_frame.f_code.co_filename != filename:
                trace = trace.tb_next
            return paths[trace.tb_lineno - 1] if trace is not None else ""

        def failed(error: Exception, pos: int | None) -> ProtocolError:
            at = "" if pos is None else f" at byte {pos}"
            field = field_at(error.__traceback__)
            reason = "too short" if isinstance(error, IndexError) else str(error)
            if isinstance(error, struct.error) and pos is not None:
                reason = "too short"
            return ProtocolError(f"{self._name}{', ' + field if field else ''}{at}: {reason}")

        filename = f"<{self._name}>"
        self.namespace["failed"] = failed
        exec(compile("\n".join(self._lines), filename, "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace["compiled"]
        return function


def fields_in(cls: type, version: int) -> tuple[list[tuple[str, Wire]], list[tuple[str, Wire]]]:
    """The fields of one version of a message: the untagged ones in wire order, the tagged ones by tag."""
    fields = [(name, wire) for name, wire in wire_of(cls) if wire.is_in(version)]
    plain = [field for field in fields if field[1].tagged is None]
    tagged = [field for field in fields if field[1].tagged is not None]
    return plain, sorted(tagged, key=lambda field: field[1].tagged or 0)
