"""The command line: `embedlog <command> DIR ...`, which is also `python -m embedlog`.

    main             finds the command's module, parses, runs, turns errors into one line and an exit code
    arguments.py     the rows of the table of commands and arguments, and those that commands share
    opening.py       opens the directory, or the brokers' log
    ui.py            everything that is printed: lines, tables, JSON, progress
    text.py          a record as text and as JSON, and back
    long_running.py  signals, ports and log lines of commands that run until they are stopped
    problems.py      an error as a line that says what to do, and its exit code
    <command>.py     a family of commands: commands(), its part of the table, and what runs them

Exit codes: 0 done; 1 damage found, or the system failed; 2 wrong usage, or refused (a locked directory, for
example); 130 interrupted by Ctrl-C. If the reader closes the pipe, the command ends quietly with 0.

Commands start fast: only the module of the given command is imported, and `rich` only to draw a table or a
progress bar.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from ..errors import EmbedlogError
from .arguments import REFUSED, Parser, WireParser, names_brokers
from .problems import exit_code, explain
from .ui import UI

# Command -> its module; the order is that of the help.
COMMANDS: Final = {
    "topics": "topics",
    "append": "append",
    "cat": "read",
    "tail": "read",
    "groups": "groups",
    "queue": "queue",
    "transactions": "transactions",
    "sql": "sql",
    "stats": "stats",
    "top": "top",
    "dump": "dump",
    "verify": "check",
    "repair": "check",
    "compact": "compact",
    "backup": "copies",
    "export": "copies",
    "import": "importing",
    "mirror": "mirror",
    "move": "move",
    "load": "load",
    "work": "work",
    "serve": "serve",
    "ui": "page",
    "users": "users",
    "acls": "acls",
    "quotas": "quotas",
    "cluster": "cluster",
    "zookeeper": "zookeeper",
    "demo": "demo",
    "completion": "completion",
}

_STANDARD_STREAMS: Final = 3
FAILED: Final = 1
INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    ui = UI()
    try:
        if "_ARGCOMPLETE" in os.environ:
            from .completion import complete, words

            complete(_parser(words()))
        args = _parser(arguments).parse_args(arguments)
        if args.command is None:
            _parser([]).print_help(sys.stderr)
            return REFUSED
        ui.for_machines = getattr(args, "json", False)
        code = _run(args, ui)
        ui.flush()
        return code
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else REFUSED
    except BrokenPipeError:
        _let_go_of_stdout()
        return 0
    except KeyboardInterrupt:
        with contextlib.suppress(BrokenPipeError):
            ui.flush()
        return INTERRUPTED


def _run(args: argparse.Namespace, ui: UI) -> int:
    try:
        return int(args.run(args, ui))
    except EmbedlogError as error:
        ui.flush()
        ui.error(explain(error, args))
        return exit_code(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        cause = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
        ui.error(f"the system refused: {cause}")
        return FAILED


def _parser(arguments: Sequence[str]) -> Parser:
    """The parser with the given command; with all commands for help and for a misspelt one."""
    from .. import __version__

    parser = Parser(
        prog="embedlog",
        description="Kafka without the server: a durable, replayable, partitioned log in a directory.",
        epilog="embedlog COMMAND --help explains a command and says whether it needs the writer's lock.",
    )
    parser.add_argument("--version", action="version", version=f"embedlog {__version__}")
    kind = WireParser if names_brokers(arguments) else Parser
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=kind)
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if command in COMMANDS:
        names = [COMMANDS[command]]
    else:  # `--version` needs no command
        names = [] if "--version" in arguments else list(dict.fromkeys(COMMANDS.values()))
    for name in names:
        for row in importlib.import_module(f".{name}", __name__).commands():
            row.add_to(subparsers)
    return parser


def _open_closed_streams() -> None:
    """Where standard input, output or error is closed (`>&-`), /dev/null takes its place.

    Else a file of the log would get its descriptor, and what is printed would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _STANDARD_STREAMS:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _let_go_of_stdout() -> None:
    """The pipe is closed: what is still buffered must not fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
