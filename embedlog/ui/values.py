"""What bytes look like on a page: text, JSON, hexadecimal, or what a topic's serializer makes of them.

    preview     one line, shortened, for a table
    view        all of it, within a limit, in one of the forms of `forms`

Records are hostile. Control characters, lone surrogates and what turns the direction of text around are shown
as escapes, nesting and length are bounded, and a number stays as it was written (1e999, 0.10). A serializer
that fails on a record says so, and the bytes are shown instead.
"""

from __future__ import annotations

import codecs
import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup, escape

from ..clients.serializers import name_of
from ..wording import visible
from .json_tree import coloured, tree

if TYPE_CHECKING:
    from ..clients.serializers import Serializer

_PREVIEW: Final = 240  # characters
_MOST_DECODED: Final = 1 << 20  # bytes that a serializer or the JSON parser is given
_MOST_DECODED_IN_A_ROW: Final = 64 << 10
_HEX_ROW: Final = 16


class Shown(NamedTuple):
    """A value as it is shown. kind: null, empty, json, text, bytes, or a serializer's name.

    note: what is missing, or why it is not shown otherwise; "" if it is whole.
    """

    kind: str
    html: Markup
    note: str = ""


def preview(data: bytes | None, serializer: Serializer[Any] | None) -> Shown:
    """A value in a line."""
    if not data:
        return Shown("null" if data is None else "empty", Markup(""))
    kind, text = "", ""
    if serializer is not None and len(data) <= _MOST_DECODED_IN_A_ROW:
        try:
            kind, text = name_of(serializer), _json_of(serializer.loads(data))
        except Exception:
            kind = ""
    if not kind:
        head = data[: _PREVIEW * 4]
        kind, text = _kind_of(head, is_whole=len(head) == len(data)), _lenient(head)
    line = visible(text[: _PREVIEW + 1]).replace("\n", "\\n").replace("\t", "\\t")
    if len(line) > _PREVIEW or len(data) > _PREVIEW * 4:
        line = f"{line[:_PREVIEW]}…"
    return Shown(kind, escape(line) if kind in ("text", "bytes") else coloured(line))


def forms(data: bytes | None, serializer: Serializer[Any] | None) -> list[str]:
    """The forms in which a value can be shown, the best first."""
    if not data:
        return []
    names = [] if serializer is None else [name_of(serializer)]
    kind = _kind_of(data, is_whole=True)
    if kind == "json":
        names.append("json")
    names += ["hex", "text"] if kind == "bytes" else ["text", "hex"]
    return list(dict.fromkeys(names))


def view(data: bytes | None, form: str, serializer: Serializer[Any] | None, most: int) -> Shown:
    """A value in a form, of which at most about `most` characters are shown."""
    if not data:
        return Shown("null" if data is None else "empty", Markup(""))
    if serializer is not None and form == name_of(serializer):
        try:
            return _tree(form, _json_of(serializer.loads(data)), most)
        except Exception as error:
            shown = view(data, forms(data, None)[0], None, most)
            return shown._replace(
                note=f"{form} cannot read it: {visible(str(error))[:300]}. {shown.note}".strip()
            )
    if form == "json":
        return _tree(form, data[: _MOST_DECODED + 1].decode(errors="replace"), most)
    if form == "hex":
        rows = min(-(-len(data) // _HEX_ROW), most // (_HEX_ROW * 4))
        text = "\n".join(_hex_row(data, number * _HEX_ROW) for number in range(rows))
        return Shown("hex", _pre(text), _rest(rows * _HEX_ROW, len(data)))
    return _text(data, most)


def _text(data: bytes, most: int) -> Shown:
    head = data[:most]
    return Shown("text", _pre(visible(_lenient(head))), _rest(len(head), len(data)))


def _tree(kind: str, text: str, most: int) -> Shown:
    if len(text) > _MOST_DECODED:
        return _text(text.encode(errors="replace"), most)._replace(note="too long to be shown as JSON")
    try:
        html, left_out = tree(text, most // 128, visible)
    except (ValueError, RecursionError):
        return _text(text.encode(errors="replace"), most)._replace(note="this is not JSON")
    return Shown(kind, html, "some of it is left out: download it, or look at it as text" if left_out else "")


def _rest(shown: int, size: int) -> str:
    return f"the first {shown:,} of {size:,} bytes: download it to have all" if shown < size else ""


def _pre(text: str) -> Markup:
    return Markup('<pre tabindex="0">{}</pre>').format(text)


def _hex_row(data: bytes, at: int) -> str:
    row = data[at : at + _HEX_ROW]
    letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{at:08x}  {row.hex(' '):<{_HEX_ROW * 3}} {letters}"


def _kind_of(data: bytes, *, is_whole: bool) -> str:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return "bytes"
    if "\0" in text:
        return "bytes"
    return "json" if text.lstrip()[:1] in ("{", "[") else "text"


def _lenient(data: bytes) -> str:
    r"""Text; bytes that are not UTF-8 appear as \xff. A character that is cut off at the end is left out."""
    return codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(data)


def _json_of(value: Any) -> str:
    """What a serializer has made, as JSON: for people, so what JSON does not have becomes text."""
    return json.dumps(plain(value), ensure_ascii=False, default=plain, skipkeys=True)


def plain(value: Any) -> Any:
    """What a serializer has made, as dicts, lists, strings, numbers: one level of it."""
    if value is None or isinstance(value, dict | list | str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return _lenient(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "DESCRIPTOR"):
        library = importlib.import_module("google.protobuf.json_format")
        return library.MessageToDict(value, preserving_proto_field_name=True)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)
