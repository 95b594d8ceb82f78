r"""Filters of topics: Java's regular expressions, as Python's `re` runs them.

    "clicks, \p{Alpha}+[0-9&&[^13]]"     as a user, or another member of the group, states it
      -> clicks|\p{Alpha}+[0-9&&[^13]]   Kafka's TopicFilter: "," is "|", no spaces, no quotes around it
      -> clicks|[A-Za-z]+[02456789]      the same in Python's syntax, which must match whole names

All members of a group must interpret a filter alike, and Kafka's are Java programs. So an expression either
means the same here as in Java, or it is refused. Topic names use only 65 characters (`files/names.py`), so
character classes are evaluated over these: `&&`, nested classes and `\p{...}` become plain sets.

Refused, besides what Java refuses: {n,m}, which the comma breaks in Kafka too; (?x); look-behind of variable
length; negated classes that contain && or another class, which Java 8 and 9 interpret differently; Unicode
properties that no topic name can have.

Source: Kafka 0.8's TopicFilter; java.util.regex.Pattern.
"""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from typing import Final

from ...errors import InvalidArgument, shown

_NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
_LETTERS: Final = frozenset(string.ascii_letters)
_DIGITS: Final = frozenset(string.digits)
_NONE: Final[frozenset[str]] = frozenset()
_MAX_NESTING: Final = 50

_CLASSES: Final = {
    "d": _DIGITS,
    "w": _LETTERS | _DIGITS | {"_"},
    "s": _NONE,
    "h": _NONE,
    "v": _NONE,
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"A": r"\A", "G": r"\A", "z": r"\Z", "Z": r"\Z", "b": r"\b", "B": r"\B"}

# With (?i) these differ among versions of Java.
_BY_CASE: Final = {
    "Lower": frozenset(string.ascii_lowercase),
    "Upper": frozenset(string.ascii_uppercase),
    "javaLowerCase": frozenset(string.ascii_lowercase),
    "javaUpperCase": frozenset(string.ascii_uppercase),
    "IsLowercase": frozenset(string.ascii_lowercase),
    "IsUppercase": frozenset(string.ascii_uppercase),
}
_PROPERTIES: Final = {
    "Alpha": _LETTERS,
    "Digit": _DIGITS,
    "Alnum": _LETTERS | _DIGITS,
    "Punct": frozenset("._-"),
    "ASCII": _NAME_CHARACTERS,
    "Graph": _NAME_CHARACTERS,
    "Print": _NAME_CHARACTERS,
    "XDigit": frozenset(string.hexdigits),
    "Blank": _NONE,
    "Cntrl": _NONE,
    "Space": _NONE,
    "javaAlphabetic": _LETTERS,
    "javaDigit": _DIGITS,
    "javaLetter": _LETTERS,
    "javaLetterOrDigit": _LETTERS | _DIGITS,
    "javaMirrored": _NONE,
    "javaWhitespace": _NONE,
    "IsAlphabetic": _LETTERS,
    "IsControl": _NONE,
    "IsDigit": _DIGITS,
    "IsLatin": _LETTERS,
    "IsLetter": _LETTERS,
    "IsPunctuation": frozenset("._-"),
    "IsWhite_Space": _NONE,
    "InBasicLatin": _NAME_CHARACTERS,
    "InBasic_Latin": _NAME_CHARACTERS,
}
_CATEGORY: Final = re.compile("L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfons]?")


@functools.lru_cache(maxsize=256)
def compiled(expression: str) -> re.Pattern[str]:
    """A filter's expression as Kafka reads it, for use with `fullmatch`. Raises InvalidArgument."""
    text = expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(_Translation(_unquoted(text)).whole(), re.ASCII)
    except (re.error, OverflowError) as error:
        why = str(error)
    except _Refused as refused:
        why = str(refused)
    raise InvalidArgument(
        f"a filter of topics is a regular expression in Java's syntax that embedlog understands, "
        f"not {shown(expression)}: {why}"
    )


class _Refused(Exception):
    """The expression is rejected, for the reason given."""


def _unquoted(text: str) -> str:
    r"""Replace \Q...\E: escape the text between them character by character."""
    unquoted = []
    pos = 0
    while pos < len(text):
        if text[pos] != "\\":
            unquoted.append(text[pos])
            pos += 1
        elif text[pos + 1 : pos + 2] != "Q":
            unquoted.append(text[pos : pos + 2])
            pos += 2
        else:
            end = text.find(r"\E", pos + 2)
            quoted = text[pos + 2 :] if end < 0 else text[pos + 2 : end]
            unquoted += [char if char in _LETTERS else f"\\x{{{ord(char):x}}}" for char in quoted]
            pos += 2 + len(quoted) + 2
    return "".join(unquoted)


class _Translation:
    """The translation of one expression; `_pos` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._groups = 0
        self._nested = 0
        self._ignores_case = False

    def whole(self) -> str:
        translated = self._alternatives()
        if self._pos < len(self._text):
            raise _Refused("unbalanced )")
        return translated

    # -- reading ---------------------------------------------------------------------------------------

    def _next_is(self, text: str) -> bool:
        """Consume the text if it comes next."""
        matches = self._text.startswith(text, self._pos)
        if matches:
            self._pos += len(text)
        return matches

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _take(self, expected: str) -> str:
        if self._pos == len(self._text):
            raise _Refused(f"it ends where {expected} is expected")
        self._pos += 1
        return self._text[self._pos - 1]

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._pos)
        if stop < 0:
            raise _Refused(f"a {end} is missing")
        text = self._text[self._pos : stop]
        self._pos = stop + len(end)
        return text

    # -- expressions -----------------------------------------------------------------------------------

    def _alternatives(self) -> str:
        """Read to the ) that closes the group, or to the end. Flags set inside end with the group."""
        self._nested += 1
        if self._nested > _MAX_NESTING:
            raise _Refused(f"groups and classes are nested more than {_MAX_NESTING} deep")
        ignored_case, translated = self._ignores_case, []
        while self._pos < len(self._text) and self._peek() != ")":
            if self._next_is("|"):
                translated.append("|")
                continue
            atom = self._atom()
            translated.append(atom + self._quantifier() if atom else "")
        self._ignores_case = ignored_case
        self._nested -= 1
        return "".join(translated)

    def _atom(self) -> str:
        """An element that a quantifier may follow; '' if only flags were set."""
        char = self._take("an expression")
        if char == "(":
            return self._group()
        if char == "[":
            return _written(self._class())
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            raise _Refused(f"{char} has nothing to repeat: write \\{char} for the character")
        if char == "^":
            return r"\A"
        if char == "$":
            return r"\Z"
        return "." if char == "." else _written(self._cases({char}))

    def _quantifier(self) -> str:
        if self._peek() and self._peek() in "*+?":
            quantifier = self._take("")
        elif self._next_is("{"):
            count = self._until("}")
            if not (count.isascii() and count.isdigit()):
                raise _Refused(f"{{{count}}}: only {{n}} is supported, since a comma means | everywhere")
            quantifier = f"{{{count}}}"
        else:
            return ""
        for kind in "?+":
            if self._next_is(kind):
                return quantifier + kind
        return quantifier

    def _group(self) -> str:
        for begin in ("?:", "?=", "?!", "?<=", "?<!", "?>"):
            if self._next_is(begin):
                return self._closed(begin)
        if self._next_is("?<"):
            name = self._until(">")
            if not re.fullmatch("[a-zA-Z][a-zA-Z0-9]*", name):
                raise _Refused(f"{shown(name)} is not a group name")
            self._groups += 1
            return self._closed(f"?P<{name}>")
        if self._next_is("?"):
            return self._flags()
        self._groups += 1
        return self._closed("")

    def _closed(self, begin: str) -> str:
        alternatives = self._alternatives()
        if not self._next_is(")"):
            raise _Refused("a ( is not closed")
        return f"({begin}{alternatives})"

    def _flags(self) -> str:
        """(?i) applies to the end of its group, (?i:...) inside. Other flags do not matter for names."""
        ignored_case, turns_on = self._ignores_case, True
        while (flag := self._take("a flag")) not in "):":
            if flag not in ("idmsuU-" if turns_on else "idmsuU"):
                raise _Refused(f"(?{flag}) is not supported")
            if flag == "i":
                self._ignores_case = turns_on
            turns_on = turns_on and flag != "-"
        if flag == ")":
            return ""
        group = self._closed("?:")
        self._ignores_case = ignored_case
        return group

    def _escape(self) -> str:
        char = self._peek()
        if char in _ANCHORS and char:
            self._pos += 1
            if char == "b" and self._peek() == "{":
                raise _Refused(r"\b{ is not supported")
            return _ANCHORS[char]
        if char == "k":
            self._pos += 1
            if not self._next_is("<"):
                raise _Refused(r"\k is followed by <name>")
            return self._reference(f"(?P={self._until('>')})")
        if char and char in "123456789":
            number = int(self._take(""))
            while (
                self._peek()
                and self._peek() in string.digits
                and number * 10 + int(self._peek()) <= self._groups
            ):
                number = number * 10 + int(self._take(""))
            if number > self._groups:
                raise _Refused(f"there is no group {number} before \\{number}")
            return self._reference(f"\\{number}")
        return _written(self._escaped())

    def _reference(self, group: str) -> str:
        return f"(?i:{group})" if self._ignores_case else f"(?:{group})"

    # -- sets of characters ----------------------------------------------------------------------------

    def _escaped(self) -> frozenset[str]:
        r"""The characters of an escape, inside a class or outside."""
        char = self._take("an escaped character")
        if char.lower() in _CLASSES and char.isascii():
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else _NAME_CHARACTERS - chars
        if char in "pP":
            name = self._until("}") if self._next_is("{") else self._take("a property")
            chars = self._property(name)
            return chars if char == "p" else _NAME_CHARACTERS - chars
        if char == "R":
            return _NONE
        self._pos -= 1
        return self._cases({self._single()})

    def _single(self) -> str:
        """The character of an escape, after its backslash."""
        char = self._take("an escaped character")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "c":
            return chr(ord(self._take("a control character")) ^ 64)
        if char == "0":
            digits = re.compile("[0-3][0-7]{0,2}|[4-7][0-7]?").match(self._text, self._pos)
            return self._numbered(digits, 8)
        if char == "x" and self._next_is("{"):
            number = self._until("}")
            return self._numbered(re.fullmatch("0*[0-9a-fA-F]{1,6}", number), 16, stepped=True)
        if char in "xu":
            length = 2 if char == "x" else 4
            return self._numbered(re.compile(f"[0-9a-fA-F]{{{length}}}").match(self._text, self._pos), 16)
        if char in _LETTERS or char in _DIGITS:
            raise _Refused(f"\\{char} is not supported{' in a class' if char in _ANCHORS else ''}")
        return char

    def _numbered(self, digits: re.Match[str] | None, base: int, *, stepped: bool = False) -> str:
        if digits is None or int(digits[0], base) > 0x10FFFF:
            raise _Refused("invalid character number")
        if not stepped:
            self._pos = digits.end()
        return chr(int(digits[0], base))

    def _property(self, name: str) -> frozenset[str]:
        category = name.removeprefix("general_category=").removeprefix("gc=").removeprefix("Is")
        by_case = name in _BY_CASE or category in ("Lu", "Ll", "Lt")
        if by_case and self._ignores_case:
            raise _Refused(
                f"\\p{{{name}}} with (?i), which versions of Java interpret differently; use \\p{{Alpha}}"
            )
        if name in _BY_CASE:
            return _BY_CASE[name]
        if name in _PROPERTIES:
            return _PROPERTIES[name]
        if _CATEGORY.fullmatch(category):
            return frozenset(c for c in _NAME_CHARACTERS if unicodedata.category(c).startswith(category))
        raise _Refused(f"\\p{{{name}}} is not supported")

    def _cases(self, chars: set[str]) -> frozenset[str]:
        if not self._ignores_case:
            return frozenset(chars)
        ascii_only = {char for char in chars if char.isascii()}
        return frozenset(chars | {c.lower() for c in ascii_only} | {c.upper() for c in ascii_only})

    def _class(self) -> frozenset[str]:
        """Read from after the [ to after its ]."""
        self._nested += 1
        if self._nested > _MAX_NESTING:
            raise _Refused(f"groups and classes are nested more than {_MAX_NESTING} deep")
        negated = self._next_is("^")
        chars, has_no_class = self._operand(first=True)
        operands = 1
        while self._next_is("&&"):
            operand, _ = self._operand(first=False)
            chars &= operand
            operands += 1
        if not self._next_is("]"):
            raise _Refused("a [ is not closed")
        if negated and (operands > 1 or not has_no_class):
            raise _Refused("[^ with && or a class inside, which versions of Java interpret differently")
        self._nested -= 1
        return _NAME_CHARACTERS - chars if negated else chars

    def _operand(self, *, first: bool) -> tuple[frozenset[str], bool]:
        """An operand between [, && and ]: its characters, and whether it contains no class."""
        chars, classes, others = _NONE, 0, 0
        while self._pos < len(self._text):
            if self._text.startswith("&&", self._pos):
                break
            if self._peek() == "]" and (classes or others or not first):
                break
            if self._next_is("["):
                chars |= self._class()
                classes += 1
            else:
                chars |= self._range()
                others += 1
        if not classes and not others:
            raise _Refused("&& with nothing beside it")
        if not first and classes and classes + others > 1:
            raise _Refused(
                "after && there may be one class or other characters, not both: put [ ] around the others"
            )
        return chars, not classes

    def _range(self) -> frozenset[str]:
        """One character, an escape for several, or a range."""
        if self._next_is("\\"):
            if self._peek() and self._peek() in "dDwWsShHvVpPR":
                return self._escaped()
            low = self._single()
        else:
            low = self._take("a character")
        next_char = self._text[self._pos + 1 : self._pos + 2]
        if self._peek() != "-" or next_char in ("]", "[", ""):
            return self._cases({low})
        self._pos += 1
        high = self._single() if self._next_is("\\") else self._take("a character")
        if high < low:
            raise _Refused(f"{low}-{high} is not a range")
        return self._cases({char for char in _NAME_CHARACTERS if low <= char <= high})


def _written(chars: frozenset[str]) -> str:
    """A set in Python's syntax."""
    if not chars:
        return r"[^\x00-\U0010ffff]"  # nothing at all
    if len(chars) == 1:
        return re.escape(next(iter(chars)))
    return f"[{''.join(map(re.escape, sorted(chars)))}]"
