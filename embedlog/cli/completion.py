"""`embedlog completion`: what makes a shell complete commands, options, topics and groups.

argcomplete (extra `completion`) rather than a script made once, as shtab does: only a program that is asked
can say which topics and groups there are. Each Tab starts the command, which reads names, without a lock.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..errors import EmbedlogError
from ..log import Log
from .arguments import Command, arg, is_over_wire
from .opening import reader
from .ui import UI

_DESCRIPTION: Final = """\
Print what a shell needs to complete commands, options, and the topics and groups of a directory:

bash: eval "$(embedlog completion bash)" in ~/.bashrc

zsh: eval "$(embedlog completion zsh)" in ~/.zshrc, after compinit

fish: embedlog completion fish > ~/.config/fish/completions/embedlog.fish"""


def commands() -> Iterator[Command]:
    lock = "Takes no lock: it works on no directory."
    yield Command("completion", "print the completion for a shell", lock, run, _DESCRIPTION).takes(
        arg("SHELL", choices=("bash", "zsh", "fish"), metavar=None)
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    ui.out.write(_argcomplete().shellcode(["embedlog"], shell=args.shell))
    return 0


def words() -> list[str]:
    """The command line that is to be completed, up to the cursor's word."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0") or 0)]
    return line.split()[1:-1] if not line.endswith(" ") else line.split()[1:]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and exit."""
    _find_names(parser)
    _argcomplete().autocomplete(parser, always_complete_options=False)


def _find_names(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if action.metavar == "TOPIC":
            action.completer = _names(Log.topics)  # type: ignore[attr-defined]
        elif action.metavar == "GROUP":
            action.completer = _names(Log.groups)  # type: ignore[attr-defined]
        elif isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _find_names(subparser)


def _names(names_in: Callable[[Log], list[str]]) -> Callable[..., list[str]]:
    def names(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
        directory = getattr(parsed_args, "directory", None)
        if directory is None or is_over_wire(directory):  # a Tab must not wait for a network
            return []
        with contextlib.suppress(EmbedlogError, OSError), reader(parsed_args) as log:
            return names_in(log)
        return []

    return names


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ImportError as error:
        raise EmbedlogError("completion needs argcomplete: pip install 'embedlog[completion]'") from error
    return argcomplete
