"""JSON as HTML: coloured, and folded where it nests. Without a script: <details> does the folding.

Invariants: all text is escaped; nesting, and the number of values, are bounded; numbers and doubled names
stay as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from markupsafe import Markup, escape

from ..units import counted

_OPEN_DEPTH: Final = 3
_DEEPEST: Final = 40
_MOST_CHARACTERS: Final = 2_000  # of a string
_TOKEN: Final = re.compile(
    r'(?P<name>"(?:[^"\\]|\\.)*+")(?=\s*:)|(?P<string>"(?:[^"\\]|\\.)*+"?)'
    r"|(?P<digit>-?\d[\d.eE+-]*+)|(?P<word>true|false|null)"
)


class _Object(list[tuple[str, Any]]):
    """The pairs of an object."""


class _Literal(str):
    """A number, as it was written."""


class _Drawn:
    """What a tree has cost so far."""

    def __init__(self, most: int, visible: Callable[[str], str]) -> None:
        self.left = most
        self.visible = visible
        self.is_cut = False


def coloured(text: str) -> Markup:
    """Text that may be JSON, or the beginning of some, in a line."""
    parts, at = [], 0
    for token in _TOKEN.finditer(text):
        parts.append(escape(text[at : token.start()]))
        parts.append(_span(str(token.lastgroup), token[0]))
        at = token.end()
    return Markup("").join([*parts, escape(text[at:])])


def tree(text: str, most: int, visible: Callable[[str], str]) -> tuple[Markup, bool]:
    """JSON to unfold, and whether some was left out.

    Args:
        most: values that are shown.
        visible: what shows a string's control characters.

    Raises ValueError, RecursionError: it is not JSON.
    """
    value = json.loads(
        text,
        object_pairs_hook=_Object,
        parse_int=_Literal,
        parse_float=_Literal,
        parse_constant=_Literal,
    )
    drawn = _Drawn(most, visible)
    return Markup('<div class="json">{}</div>').format(_value(value, 0, drawn)), drawn.is_cut


def _value(value: Any, depth: int, drawn: _Drawn) -> Markup:
    drawn.left -= 1
    if isinstance(value, list):
        return _folded(value, depth, drawn)
    if isinstance(value, _Literal):
        return _span("digit", value[:_MOST_CHARACTERS])
    if isinstance(value, str):
        return _span("string", _quoted(value, drawn))
    return _span("word", {None: "null", True: "true", False: "false"}[value])


def _folded(value: list[Any], depth: int, drawn: _Drawn) -> Markup:
    is_object = isinstance(value, _Object)
    opening, closing = "{}" if is_object else "[]"
    if not value:
        return Markup("{}{}").format(opening, closing)
    if depth >= _DEEPEST:
        drawn.is_cut = True
        return Markup("{}…{}").format(opening, closing)
    lines: list[Markup] = []
    for child in value:
        if drawn.left <= 0:
            drawn.is_cut = True
            lines.append(Markup("<li>… {} more</li>").format(f"{len(value) - len(lines):,}"))
            break
        name = Markup("")
        if is_object:
            name = Markup("{}: ").format(_span("name", _quoted(child[0], drawn)))
        lines.append(
            Markup("<li>{}{}</li>").format(name, _value(child[1] if is_object else child, depth + 1, drawn))
        )
    return Markup("<details{}><summary>{} <small>{}</small></summary><ul>{}</ul>{}</details>").format(
        Markup(" open") if depth < _OPEN_DEPTH else "",
        opening,
        counted(len(value), "field" if is_object else "item"),
        Markup("").join(lines),
        closing,
    )


def _quoted(text: str, drawn: _Drawn) -> str:
    if len(text) > _MOST_CHARACTERS:
        drawn.is_cut = True
        text = f"{text[:_MOST_CHARACTERS]}…"
    return drawn.visible(json.dumps(text, ensure_ascii=False))


def _span(kind: str, text: str) -> Markup:
    return Markup('<span class="{}">{}</span>').format(kind, text)
