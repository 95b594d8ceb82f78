"""Python source in the making: what the two compilers share.

A compiled function is built line by line; each line remembers which field it reads or writes, so that an
error, whose traceback has the line's number, can say the field without any cost where nothing is wrong.
Fixed-size fields that follow each other are gathered into one struct.Struct (a run).
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
"""The struct format of what has a fixed size."""


class Source:
    """Lines of one function, with the names it uses."""

    def __init__(self, name: str) -> None:
        self.namespace: dict[str, Any] = {}
        self._name = name
        self._lines: list[str] = []
        self._paths: list[str] = []
        self._indent = 0
        self._path: list[str] = []
        self._made = 0

    def line(self, text: str) -> None:
        """Append a line at the present depth."""
        self._lines.append("    " * self._indent + text)
        self._paths.append(".".join(self._path))

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        """A line ending in a colon, and what is appended meanwhile under it."""
        self.line(text)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        """What is appended meanwhile belongs to this field."""
        self._path.append(name)
        yield
        self._path.pop()

    def fresh(self, stem: str) -> str:
        """A variable's name that nothing else has."""
        self._made += 1
        return f"{stem}{self._made}"

    def constant(self, stem: str, value: object) -> str:
        """A name by which the function knows this value."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = self.fresh(stem)
        self.namespace[name] = value
        return name

    def struct(self, formats: str, method: str) -> tuple[str, int]:
        """A name for the method of a Struct of these big-endian formats, and the Struct's size."""
        name = f"{method}_{formats.replace('?', 'o')}"
        made = struct.Struct(">" + formats)
        self.namespace.setdefault(name, getattr(made, method))
        return name, made.size

    def build(self) -> Callable[..., Any]:
        """Compile what was written: a function called as the source calls it."""
        paths = self._paths

        def where(trace: TracebackType | None) -> str:
            while trace is not None and trace.tb_frame.f_code.co_filename != filename:
                trace = trace.tb_next
            return paths[trace.tb_lineno - 1] if trace is not None else ""

        def failed(error: Exception, pos: int | None) -> ProtocolError:
            at = "" if pos is None else f" at byte {pos}"
            field = where(error.__traceback__)
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
    """The fields that this version of a message has: those in line, and the tagged ones by their number."""
    there = [(name, wire) for name, wire in wire_of(cls) if wire.is_in(version)]
    plain = [each for each in there if each[1].tagged is None]
    tagged = [each for each in there if each[1].tagged is not None]
    return plain, sorted(tagged, key=lambda each: each[1].tagged or 0)
