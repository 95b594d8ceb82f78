"""What the commands' arguments have in common: declaring a command, settings, places in a log."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from ..errors import InvalidArgument

READS: Final = (
    "Takes no lock, changes nothing: works while an application has the directory open for writing."
)
WRITES: Final = (
    "Needs the writer's lock: while an application has the directory open for writing it is refused "
    "(exit 2), and changes nothing."
)
JSON_NOTE: Final = 'bytes that are not UTF-8 stand as {"base64": "..."}'
PLACES: Final = "earliest, latest, an offset, or an ISO time (2024-05-01, 2024-05-01T10:41+02:00)"

Place = str | int | datetime


def add_command(
    subparsers: Any, name: str, summary: str, *, lock: str, description: str = "", **options: Any
) -> argparse.ArgumentParser:
    """A command's parser: its one line in the list, its description, and the note on the lock."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=description or summary[0].upper() + summary[1:] + ".",
        epilog=lock,
        formatter_class=_Paragraphs,
        **options,
    )
    return parser


class _Paragraphs(argparse.HelpFormatter):
    """Fills each paragraph of a description by itself, to the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            super(_Paragraphs, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the log's directory")


def add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")


def add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)


def place(text: str) -> Place:
    """An argparse type: where to begin or to end."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.replace("_", "").replace(",", "").isdigit():
        return int(text.replace("_", "").replace(",", ""))
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of: {PLACES}") from None


def count(text: str) -> int:
    """An argparse type: a whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def positive(text: str) -> int:
    """An argparse type: a whole number from 1 on."""
    number = count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def settings(given: Iterable[str], flag: str = "--config") -> dict[str, str]:
    """`name=value` pairs; what the names and values may be is the engine's to say. Raises InvalidArgument."""
    parsed = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidArgument(f"{flag} {pair!r}: write name=value, e.g. {flag} retention_ms=86400000")
        parsed[name.strip()] = value.strip()
    return parsed
