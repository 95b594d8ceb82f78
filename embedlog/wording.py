"""Values and numbers as the messages of errors word them: short, whatever the value is."""

from __future__ import annotations

import reprlib
from typing import Final

_SHOWN_CHARACTERS: Final = 80
_SHOWN_BITS: Final = 128


def shown(given: object) -> str:
    """A value as a message shows it: shortened, and without raising, whatever the value is."""
    if type(given) is int:
        bits = given.bit_length()
        return f"{given:,}" if bits <= _SHOWN_BITS else f"a number of {bits:,} bits"
    return _shortened.repr(given)


def counted(count: int, noun: str) -> str:
    """A number with its noun, singular or plural: 1 record, 1,200 records, 2 entries."""
    if count == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("ry") else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {plural}"


class _Shortened(reprlib.Repr):
    """Shows the beginning of long values, and survives values whose repr raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _SHOWN_CHARACTERS

    def repr_bytes(self, given: bytes, level: int) -> str:
        cut = given[:_SHOWN_CHARACTERS]
        return repr(cut) + ("..." if len(cut) < len(given) else "")

    repr_bytearray = repr_bytes

    def repr_int(self, given: int, level: int) -> str:
        return shown(given)


_shortened = _Shortened()
