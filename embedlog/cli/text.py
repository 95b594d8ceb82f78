r"""A record as a line of text or of JSON, and back: `cat --json | append --json` changes nothing.

    {"topic":"clicks","partition":0,"offset":7,"timestamp_ms":1714552867123,"timestamp_type":"CreateTime",
     "key":"user-7","value":"{\"page\": \"/\"}","headers":[["trace","9f"]]}

UTF-8 bytes are a string, other bytes {"base64": "..."}, and no bytes null. `append` takes value (null if
absent), key, headers (pairs or an object), partition and timestamp_ms (or `timestamp`, which may be an ISO
time), and ignores the other fields that `cat` writes. It refuses any other field: a misspelt `value` would
become a null, which deletes its key in a compacted topic. A value or key of another JSON type (a number, an
object, a list) is stored as its JSON text.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
import string
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from ..clients.reader import time_ms
from ..errors import EmbedlogError, InvalidArgument, shown
from ..model import LOG_APPEND_TIME, Headers, Record
from ..units import iso
from ..wording import visible, visible_in_a_line

_TAKEN: Final = ("value", "key", "headers", "partition", "timestamp_ms", "timestamp")
_PASSED_OVER: Final = ("topic", "offset", "timestamp_type")
_TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
_quoted: Final = json.encoder.encode_basestring
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\[tnr0\\]")
# Bytes that are not UTF-8, as "surrogateescape" decodes them.
_LONE: Final = re.compile(r"[\udc80-\udcff]")


def bytes_as_json(data: bytes | None) -> Any:
    """A string, {"base64": ...} or None."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_from_json(value: Any, what: str) -> bytes | None:
    """The bytes that a JSON value stands for. Raises InvalidArgument."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{what} is not text that UTF-8 can hold ({error.reason})") from None
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidArgument(f"{what} is not base64 ({error})") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def record_as_json(record: Record) -> dict[str, Any]:
    """A record as `cat --json` writes it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": _TIMESTAMP_TYPES[record.timestamp_type == LOG_APPEND_TIME],
        "key": bytes_as_json(record.key),
        "value": bytes_as_json(record.value),
        "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
    }


def record_as_json_line(record: Record) -> str:
    """The line of `record_as_json`, without building its objects: several times as fast."""
    topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers = record
    pairs = ",".join([f"[{_quoted(name)},{_json_text(data)}]" for name, data in headers]) if headers else ""
    return (
        f'{{"topic":{_quoted(topic)},"partition":{partition},"offset":{offset},"timestamp_ms":{timestamp_ms},'
        f'"timestamp_type":"{_TIMESTAMP_TYPES[timestamp_type == LOG_APPEND_TIME]}",'
        f'"key":{_json_text(key)},"value":{_json_text(value)},"headers":[{pairs}]}}\n'
    )


def _json_text(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return _quoted(data.decode())
    except UnicodeDecodeError:
        return f'{{"base64":"{base64.b64encode(data).decode()}"}}'


def record_from_json(line: bytes) -> Record:
    """The record that a line of JSON describes; partition -1 where none is given. Raises InvalidArgument."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise InvalidArgument('not a JSON object, such as {"key": "user-7", "value": "text"}')
    for name in fields:
        if name not in _TAKEN and name not in _PASSED_OVER:
            raise InvalidArgument(_unknown(name))
    partition = fields.get("partition")
    if partition is None:
        partition = -1
    elif not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise InvalidArgument(f"partition must be a number from 0 on, not {partition!r}")
    return Record(
        partition=partition,
        timestamp_ms=_timestamp(fields),
        key=bytes_from_json(fields.get("key"), "key"),
        value=bytes_from_json(fields.get("value"), "value"),
        headers=_headers(fields.get("headers")),
    )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _TAKEN, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(_TAKEN)}"
    return f"unknown field {shown(name)} ({hint})"


def _timestamp(fields: dict[str, Any]) -> int:
    timestamp = fields.get("timestamp_ms", fields.get("timestamp"))
    if timestamp is None:
        return -1
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        return timestamp
    if isinstance(timestamp, str):
        try:
            return time_ms(datetime.fromisoformat(timestamp))
        except ValueError:
            pass
    raise InvalidArgument(f"timestamp must be milliseconds since the epoch or an ISO time, not {timestamp!r}")


def _headers(fields: Any) -> Headers:
    if fields is None:
        return ()
    pairs = list(fields.items()) if isinstance(fields, dict) else fields
    if not isinstance(pairs, list):
        raise InvalidArgument(f"headers must be [name, value] pairs or an object, not {fields!r:.80}")
    headers = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidArgument(f"a header must be a [name, value] pair, not {pair!r:.80}")
        headers.append((pair[0], bytes_from_json(pair[1], f"header {pair[0]!r}")))
    return tuple(headers)


# -- text --------------------------------------------------------------------------------------------


def formatter(template: str) -> Callable[[Record], bytes]:
    r"""A function that writes a record by a template such as '{offset:>10}\t{key}'. Bytes stay bytes.

    A null key or value is empty. Raises InvalidArgument for a template that cannot be filled in.
    """
    if template == "{value}":
        return lambda record: record.value or b""
    template = _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], template)
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        unknown = sorted(names.difference(FIELDS))
        if unknown:
            field_names = ", ".join(FIELDS)
            raise InvalidArgument(f"--format has no field {{{unknown[0]}}}; the fields are {field_names}")
        fields = [(name, _FIELDS[name]) for name in names]

        def fill(record: Record) -> bytes:
            filled = template.format_map({name: field(record) for name, field in fields})
            return filled.encode(errors="surrogateescape")

        fill(Record())
    except EmbedlogError:
        raise
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise InvalidArgument(f"--format {template!r}: {error}") from None
    return fill


def kcat_formatter(template: str) -> Callable[[Record], bytes]:
    r"""A function that writes a record by a template of kcat's: KCAT_TOKENS, and \n, \t, \r, \0, \\, \x1f.

    Nothing is added between records. As with kcat, a number ends where its digits do (\x1f, \31, octal \037)
    and its lowest byte counts; a backslash before anything else is left out. Raises InvalidArgument for
    another token.
    """
    parts: list[bytes | Callable[[Record], bytes]] = []
    end = 0
    for token in _KCAT.finditer(template):
        parts.append(template[end : token.start()].encode(errors="surrogateescape"))
        end = token.end()
        text = token[0]
        if text.startswith("\\"):
            parts.append(_kcat_escape(text))
        elif text == "%%":
            parts.append(b"%")
        elif text[1:] in _KCAT_FIELDS:
            parts.append(_KCAT_FIELDS[text[1:]])
        else:
            raise InvalidArgument(f"--kcat-format has no {shown(text)}; the tokens are {KCAT_TOKENS} %%")
    parts.append(template[end:].encode(errors="surrogateescape"))
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


def _kcat_escape(text: str) -> bytes:
    if text in _ESCAPES:
        return _ESCAPES[text].encode()
    digits = text[1:]
    if digits[0] == "x" and len(digits) > 1:
        return bytes([int(digits[1:], 16) & 0xFF])
    if digits[0].isdigit():
        return bytes([int(digits, 8 if digits[0] == "0" else 10) & 0xFF])
    return digits.encode(errors="surrogateescape")


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


_KCAT: Final = re.compile(r"%.?|\\x[0-9a-fA-F]+|\\0[0-7]*|\\[1-9][0-9]*|\\.", re.DOTALL)
_KCAT_FIELDS: Final[dict[str, Callable[[Record], bytes]]] = {
    "s": lambda record: record.value or b"",
    "v": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "h": lambda record: b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
    ),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
}
KCAT_TOKENS: Final = " ".join(f"%{token}" for token in _KCAT_FIELDS)


def _lossless(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="surrogateescape")


_FIELDS: Final[dict[str, Callable[[Record], object]]] = {
    "topic": lambda record: record.topic,
    "partition": lambda record: record.partition,
    "offset": lambda record: record.offset,
    "timestamp": lambda record: iso(record.timestamp_ms),
    "timestamp_ms": lambda record: record.timestamp_ms,
    "key": lambda record: _lossless(record.key),
    "value": lambda record: _lossless(record.value),
    "headers": lambda record: _lossless(
        b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
    ),
}
FIELDS: Final = tuple(_FIELDS)


def printable(data: bytes) -> str:
    r"""Bytes for a terminal: what `visible` escapes, and bytes that are not UTF-8, appear as \x1b."""
    return visible(_LONE.sub(_escaped, data.decode(errors="surrogateescape")))


def in_a_line(data: bytes) -> str:
    r"""As `printable`; tabs and the ends of lines appear as \t and \n."""
    return visible_in_a_line(printable(data))


def _escaped(lone: re.Match[str]) -> str:
    return f"\\x{ord(lone[0]) - 0xDC00:02x}"
