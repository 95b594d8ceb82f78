"""`embedlog demo`: the main job on real input, with a real kill -9 in the middle; see embedlog/demo."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from ..demo.run import run as run_demo
from .arguments import Command, arg, directory
from .ui import UI

_NOT_OVER_WIRE: Final = (
    "it kills the writer of a directory, which it makes for that: give a directory, or nothing"
)


_DESCRIPTION: Final = """\
Runs the main job on real input (needs the extra: pip install 'embedlog[demo]'). Makes its own directory and
is the writer of it."""


def commands() -> Iterator[Command]:
    summary = "load 336,776 flights, kill the loader half-way, count them with a group and with Spark"
    yield Command("demo", summary, None, run, _DESCRIPTION).takes(
        directory(
            _NOT_OVER_WIRE,
            nargs="?",
            metavar="directory",
            default="./embedlog-demo",
            help="default: ./embedlog-demo",
        ),
        arg("--seed SEED", "where the loader is killed, for repeating a run", type=int),
        arg("--no-spark", "leave out the last part, for which Java starts"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    return 0 if run_demo(args.directory, args.seed, with_spark=not args.no_spark) else 1
