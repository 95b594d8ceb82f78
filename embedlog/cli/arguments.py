"""Arguments that commands share: declaring a command, the log it works on, settings, places.

A command works on a directory, its first argument, or on the log of brokers: `--bootstrap-server host:port`
instead of the directory, or `kafka://host:port` in its place. Either ends up in `args.directory`; opening.py
opens it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Never

from ..errors import InvalidArgument
from .ui import width_of, wrapped

if TYPE_CHECKING:
    from ..clients.places import Place

REFUSED: Final = 2  # the exit code
READS: Final = (
    "Takes no lock and changes nothing: works while an application has the directory open for writing."
)
WRITES: Final = (
    "Needs the writer's lock: it is refused (exit 2) while an application has the directory open for writing."
)
SHARED_WRITES: Final = (
    "Works while applications have the directory open with shared=True; is refused (exit 2) while one has it "
    "open for itself."
)
LOCKS: Final = f"Takes the writer's lock. {SHARED_WRITES}"
JSON_NOTE: Final = 'bytes that are not UTF-8 appear as {"base64": "..."}'
COMMAND_CONFIG: Final = "--command-config"
COMMAND_CONFIG_VARIABLE: Final = "EMBEDLOG_COMMAND_CONFIG"

_BROKERS: Final = "--bootstrap-server"
_SHORTEST: Final = "--bo"  # what argparse takes for it
_SCHEME: Final = "kafka://"
_ARGUMENT: Final = re.compile(r"[^-]|-?$")
_MINUS: Final = re.compile(r"-\d")
_LONG_OPTION: Final = re.compile(r"--[a-z-]+")


class Parser(argparse.ArgumentParser):
    """Takes `--from -1h`, of which argparse would make two options. Reports an error in one line, and where
    to read more; argparse would print the whole usage first.

    last: an optional argument that may stand after options, where argparse does not look for it before
    Python 3.13.
    """

    last = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        joined: list[str] = []
        for argument in sys.argv[1:] if args is None else args:
            if _MINUS.match(argument) and joined and _LONG_OPTION.fullmatch(joined[-1]):
                joined[-1] += f"={argument}"
            else:
                joined.append(argument)
        known, rest = super().parse_known_args(joined, namespace)
        if self.last and len(rest) == 1 and getattr(known, self.last) is None and _ARGUMENT.match(rest[0]):
            setattr(known, self.last, rest.pop())
        return known, rest

    def error(self, message: str) -> Never:
        misspelt = re.match(r"argument (?:COMMAND|ACTION): invalid choice: ('.*?')", message)
        if misspelt is not None:
            choices = re.findall(r"[\w-]+", message.partition("(choose from")[2])
            hint = did_you_mean(misspelt[1][1:-1], choices)
            message = f"there is no command {misspelt[1]}{hint}"
        said = wrapped(f"{self.prog}: {message}", width_of(sys.stderr))
        self.exit(REFUSED, f"{said}\n{self.prog} --help explains\n")


class WireParser(Parser):
    """For a command line that names brokers: it has no argument for the directory."""


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """A hint for an error: empty if none of the known names is near."""
    import difflib

    near = difflib.get_close_matches(typed, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def names_brokers(arguments: Sequence[str]) -> bool:
    """Whether --bootstrap-server is among the arguments of a command line."""
    for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
        name = argument.partition("=")[0]
        if name.startswith(_SHORTEST) and _BROKERS.startswith(name):
            return True
    return False


def is_over_wire(target: str) -> bool:
    """Whether it is an address rather than a directory."""
    return "://" in target


def add_command(
    subparsers: Any, name: str, summary: str, *, lock: str, description: str = "", **options: Any
) -> argparse.ArgumentParser:
    """A command's parser: its line in the list of commands, its description, and the note on the lock."""
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
    """Wraps each paragraph of a description to the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            super(_Paragraphs, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )


def add_log(
    parser: argparse.ArgumentParser,
    *,
    optional: bool = False,
    metavar: str = "DIR",
    explanation: str = "the log's directory",
) -> None:
    """The log that a command works on, as `args.directory`: a directory or the address of brokers.

    optional: None if neither is given.
    """
    over_wire = isinstance(parser, WireParser)
    parser.add_argument(
        _BROKERS,
        dest="directory",
        type=_address,
        required=over_wire,
        metavar="HOST:PORT[,...]",
        help="use the log of these brokers, instead of a DIR",
    )
    add_command_config(parser)
    if not over_wire:
        parser.add_argument("directory", metavar=metavar, nargs="?" if optional else None, help=explanation)


def add_command_config(
    parser: argparse.ArgumentParser, flag: str = COMMAND_CONFIG, explanation: str = ""
) -> None:
    """The file with a client's settings, of which a password would not be for a command line."""
    parser.add_argument(
        flag,
        metavar="FILE",
        help=explanation
        or "settings of the client, with TLS and SASL: Java's client.properties, or TOML "
        f"(${COMMAND_CONFIG_VARIABLE})",
    )


def wire_settings(args: argparse.Namespace, target: str, flag: str = COMMAND_CONFIG) -> dict[str, Any]:
    """What embedlog.open is given for a target. Raises InvalidArgument for a directory with a file."""
    given = getattr(args, flag.strip("-").replace("-", "_"), None)
    given = given or getattr(args, COMMAND_CONFIG.strip("-").replace("-", "_"), None)
    if is_over_wire(target):
        file = given or os.environ.get(COMMAND_CONFIG_VARIABLE)
        return {"client_config": file} if file else {}
    if given and flag == COMMAND_CONFIG:
        raise InvalidArgument(f"{COMMAND_CONFIG} is for brokers, and {target} is a directory")
    return {}


def config_again(args: argparse.Namespace) -> str:
    """What the next command over the wire needs, too; in the environment it stays."""
    given = getattr(args, "command_config", None)
    return f" {COMMAND_CONFIG} {shlex.quote(given)}" if given else ""


def add_directory(parser: argparse.ArgumentParser, not_over_wire: str, **options: Any) -> None:
    """The directory of a command that cannot work over the wire; `not_over_wire` says why, and what to do."""
    shown = {"metavar": "DIR", "help": "the log's directory"}
    add_here_only(parser, not_over_wire, "directory", **{**shown, **options})


def add_here_only(parser: argparse.ArgumentParser, not_over_wire: str, name: str, **options: Any) -> None:
    """A local path argument that refuses broker addresses."""
    parser.add_argument(_BROKERS, action=_HereOnly, const=not_over_wire, dest=name, help=argparse.SUPPRESS)
    parser.add_argument(name, action=_HereOnly, const=not_over_wire, **options)
    parser.set_defaults(here_only=True)


class _HereOnly(argparse.Action):
    """Accepts a path; for an address it fails with the message in `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if option_string or is_over_wire(str(values)):
            parser.error(str(self.const))
        setattr(namespace, self.dest, values)


def _address(text: str) -> str:
    """An argparse type: addresses of brokers, as embedlog.open takes them."""
    return text if text.startswith(_SCHEME) else _SCHEME + text


def add_own_settings(parser: argparse.ArgumentParser, help: str) -> None:
    """--set NAME=VALUE, any number of times, as `args.own`."""
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="own", help=help)


def add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")


def add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)


def place_argument(text: str) -> Place:
    """An argparse type: the start or end of a range."""
    from ..clients.places import place

    try:
        return place(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """An argparse type: an integer of 0 or more."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def positive(text: str) -> int:
    """An argparse type: an integer of 1 or more."""
    number = count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def settings(given: Iterable[str], flag: str = "--config") -> dict[str, Any]:
    """Parse `name=value` pairs; the engine validates names and values. Raises InvalidArgument."""
    parsed = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidArgument(f"{flag} {pair!r}: write name=value, e.g. {flag} retention_ms=86400000")
        parsed[name.strip()] = value.strip()
    return parsed
