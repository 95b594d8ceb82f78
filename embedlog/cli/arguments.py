"""The table of commands and their arguments: its rows, those that commands share, and types of arguments.

Each module of a command has `commands()`, its part of the table:

    Command("compact", "keep the last record of each key", LOCKS, run).takes(
        directory(_NOT_OVER_WIRE),
        arg("TOPIC", "default: all that are compacted", dest="topics", nargs="*"),
        arg("--json", "a JSON object a topic"),
    )

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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, TypeAlias

from ..errors import InvalidArgument
from .ui import UI, width_of, wrapped

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
        joined_arguments: list[str] = []
        for argument in sys.argv[1:] if args is None else args:
            if _MINUS.match(argument) and joined_arguments and _LONG_OPTION.fullmatch(joined_arguments[-1]):
                joined_arguments[-1] += f"={argument}"
            else:
                joined_arguments.append(argument)
        parsed, rest = super().parse_known_args(joined_arguments, namespace)
        if self.last and len(rest) == 1 and getattr(parsed, self.last) is None and _ARGUMENT.match(rest[0]):
            setattr(parsed, self.last, rest.pop())
        return parsed, rest

    def error(self, message: str) -> Never:
        misspelt = re.match(r"argument (?:COMMAND|ACTION): invalid choice: ('.*?')", message)
        if misspelt is not None:
            choices = re.findall(r"[\w-]+", message.partition("(choose from")[2])
            hint = did_you_mean(misspelt[1][1:-1], choices)
            message = f"there is no command {misspelt[1]}{hint}"
        explained = wrapped(f"{self.prog}: {message}", width_of(sys.stderr))
        self.exit(REFUSED, f"{explained}\n{self.prog} --help explains\n")


class WireParser(Parser):
    """For a command line that names brokers: it has no argument for the directory."""


def did_you_mean(typed_name: str, names: Iterable[str]) -> str:
    """A hint for an error: empty if none of the known names is near."""
    import difflib

    near = difflib.get_close_matches(typed_name, names, n=1)
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


# -- rows of the table ---------------------------------------------------------------------------------

Argument: TypeAlias = Callable[[Any], object]
"""Adds an argument to a parser, or some that belong together."""


class Command(NamedTuple):
    """A command, or an action of one such as `topics list`.

    lock: which lock it takes, for the end of its help. description: the summary if it is empty.
    """

    name: str
    summary: str
    lock: str | None
    run: Callable[[argparse.Namespace, UI], int] | None = None
    description: str = ""
    arguments: tuple[Argument, ...] = ()
    actions: tuple[Command, ...] = ()

    def takes(self, *arguments: Argument) -> Command:
        """This command with its arguments."""
        return self._replace(arguments=arguments)

    def with_actions(self, *actions: Command) -> Command:
        """This command with its actions."""
        return self._replace(actions=actions)

    def add_to(self, subparsers: Any) -> None:
        """Make the command's parser, which sets `args.run`, and those of its actions."""
        parser = subparsers.add_parser(
            self.name,
            help=self.summary,
            description=self.description or self.summary[0].upper() + self.summary[1:] + ".",
            epilog=self.lock,
            formatter_class=_Paragraphs,
        )
        for add in self.arguments:
            add(parser)
        if self.run is not None:
            parser.set_defaults(run=self.run)
        if self.actions:
            parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
            for action in self.actions:
                action.add_to(parsers)


class _Paragraphs(argparse.HelpFormatter):
    """Wraps each paragraph of a description to the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            super(_Paragraphs, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )


def arg(usage: str, help: str | None = None, **options: Any) -> Argument:
    """An argument by its usage, as ArgumentParser.add_argument takes the rest.

    usage: "--flag", "-q, --quiet", "--option VALUE", "--repeatable VALUE...", "POSITIONAL".
    """
    words = usage.replace(", ", " ").split() if usage.startswith("-") else [usage]
    names = [word for word in words if word.startswith("-")]
    if not names:
        options = {"dest": usage.lower(), "metavar": usage} | options
    elif len(names) < len(words):
        metavar = words[-1].removesuffix("...")
        is_list = {"action": "append", "default": []} if metavar != words[-1] else {}
        options = {"metavar": metavar} | is_list | options
    elif "choices" not in options:
        options = {"action": "store_true"} | options
    return lambda parser: parser.add_argument(*names, help=help, **options)


def trailing(name: str, **options: Any) -> Argument:
    """An optional argument that may stand after options, too; see Parser."""

    def add(parser: Parser) -> None:
        parser.add_argument(name, nargs="?", **options)
        parser.last = name

    return add


def either(*arguments: Argument) -> Argument:
    """Arguments of which a command line has one at most."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_one in arguments:
            add_one(group)

    return add


def defaults(**values: Any) -> Argument:
    """Values that no argument sets. problems.py knows `refused` and `inside`."""
    return lambda parser: parser.set_defaults(**values)


TOPIC: Final = arg("TOPIC")
YES: Final = arg("--yes", "do not ask for confirmation (asked only on a terminal)")


# -- the log -------------------------------------------------------------------------------------------


def log_argument(
    *, optional: bool = False, metavar: str = "DIR", explanation: str = "the log's directory"
) -> Argument:
    """The log that a command works on, as `args.directory`: a directory or the address of brokers.

    optional: None if neither is given.
    """

    def add(parser: argparse.ArgumentParser) -> None:
        over_wire = isinstance(parser, WireParser)
        parser.add_argument(
            _BROKERS,
            dest="directory",
            type=_address,
            required=over_wire,
            metavar="HOST:PORT[,...]",
            help="use the log of these brokers, instead of a DIR",
        )
        command_config()(parser)
        if not over_wire:
            nargs = "?" if optional else None
            parser.add_argument("directory", metavar=metavar, nargs=nargs, help=explanation)

    return add


LOG: Final = log_argument()


def command_config(name: str = COMMAND_CONFIG, help: str = "") -> Argument:
    """The file with a client's settings, of which a password would not be for a command line."""
    of_client = "settings of the client, with TLS and SASL: Java's client.properties, or TOML "
    return arg(f"{name} FILE", help or f"{of_client}(${COMMAND_CONFIG_VARIABLE})")


def wire_settings(args: argparse.Namespace, target: str, flag: str = COMMAND_CONFIG) -> dict[str, Any]:
    """What embedlog.open is given for a target. Raises InvalidArgument for a directory with a file."""
    file = getattr(args, flag.strip("-").replace("-", "_"), None)
    file = file or getattr(args, COMMAND_CONFIG.strip("-").replace("-", "_"), None)
    if is_over_wire(target):
        file = file or os.environ.get(COMMAND_CONFIG_VARIABLE)
        return {"client_config": file} if file else {}
    if file and flag == COMMAND_CONFIG:
        raise InvalidArgument(f"{COMMAND_CONFIG} is for brokers, and {target} is a directory")
    return {}


def config_again(args: argparse.Namespace) -> str:
    """What the next command over the wire needs, too; in the environment it stays."""
    file = getattr(args, "command_config", None)
    return f" {COMMAND_CONFIG} {shlex.quote(file)}" if file else ""


def directory(not_over_wire: str, **options: Any) -> Argument:
    """The directory of a command that cannot work over the wire; `not_over_wire` says why, and what to do."""
    return here_only(
        "directory", not_over_wire, **{"metavar": "DIR", "help": "the log's directory"} | options
    )


def here_only(name: str, not_over_wire: str, **options: Any) -> Argument:
    """A local path argument that refuses broker addresses."""

    def add(parser: argparse.ArgumentParser) -> None:
        shared: dict[str, Any] = {"action": _HereOnly, "const": not_over_wire}
        parser.add_argument(_BROKERS, dest=name, help=argparse.SUPPRESS, **shared)
        parser.add_argument(name, **shared, **options)
        parser.set_defaults(here_only=True)

    return add


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


def own_settings(help: str) -> Argument:
    """--set NAME=VALUE, any number of times, as `args.own`."""
    return arg("--set NAME=VALUE...", help, dest="own")


def replicas() -> Argument:
    """--replication-factor N, for commands that create topics."""
    return arg(
        "--replication-factor N",
        "on how many brokers a new topic's partitions are (the brokers' default); embedlog keeps one copy",
        type=positive,
    )


# -- types and values ----------------------------------------------------------------------------------


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


def settings(pairs: Iterable[str], flag: str = "--config") -> dict[str, Any]:
    """Parse `name=value` pairs; the engine validates names and values. Raises InvalidArgument."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidArgument(f"{flag} {pair!r}: write name=value, e.g. {flag} retention_ms=86400000")
        parsed[name.strip()] = value.strip()
    return parsed
