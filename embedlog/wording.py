"""Values, numbers and texts as messages, terminals and pages show them: whatever they are."""

from __future__ import annotations

import re
import reprlib
from typing import Final

_SHOWN_CHARACTERS: Final = 80
_SHOWN_BITS: Final = 128
# Control characters but tab and newline, what has no width, what turns text around, lone surrogates.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def shown(argument: object) -> str:
    """A value as a message shows it: shortened, and without raising, whatever the value is."""
    if type(argument) is int:
        bits = argument.bit_length()
        return f"{argument:,}" if bits <= _SHOWN_BITS else f"a number of {bits:,} bits"
    return _shortened.repr(argument)


def visible(text: str) -> str:
    r"""Text that shows what it has, but for tabs and the ends of lines: \u202e instead of what that does."""
    return text if text.isascii() and text.isprintable() else _HIDDEN.sub(_escape_of, text)


def visible_in_a_line(text: str) -> str:
    r"""As `visible`; tabs and the ends of lines appear as \t and \n."""
    return visible(text).replace("\t", r"\t").replace("\n", r"\n")


def _escape_of(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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

    def repr_bytes(self, raw: bytes, level: int) -> str:
        cut = raw[:_SHOWN_CHARACTERS]
        return repr(cut) + ("..." if len(cut) < len(raw) else "")

    repr_bytearray = repr_bytes

    def repr_int(self, number: int, level: int) -> str:
        return shown(number)


_shortened = _Shortened()
