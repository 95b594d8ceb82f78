"""`embedlog demo`: the main job on real input, with a real kill -9 in the middle; see embedlog/demo."""

from __future__ import annotations

import argparse
from typing import Any, Final

from ..demo.run import run as run_demo
from .arguments import add_directory
from .ui import UI

_NOT_OVER_WIRE: Final = (
    "it kills the writer of a directory, which it makes for that: give a directory, or nothing"
)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help="load 336,776 flights, kill the loader half-way, count them with a group and with Spark",
        description="Runs the main job on real input (needs the extra: pip install 'embedlog[demo]'). "
        "Makes its own directory and is the writer of it.",
    )
    add_directory(
        parser,
        _NOT_OVER_WIRE,
        nargs="?",
        metavar="directory",
        default="./embedlog-demo",
        help="default: ./embedlog-demo",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="where the loader is killed, for repeating a run"
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="leave out the last part, for which Java starts"
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    return 0 if run_demo(args.directory, args.seed, with_spark=not args.no_spark) else 1
