"""`embedlog work`: run functions that `embedlog.worker` has declared, until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..clients.workers import Workers, declared
from ..errors import InvalidArgument
from ..log import Log
from ..open import open as open_log
from ..runtime.locks import calls_out
from .arguments import LOG, Command, arg, defaults, is_over_wire, positive, wire_settings
from .long_running import Stop, Stopped, log_messages, log_options
from .opening import existing, report
from .ui import UI

_DESCRIPTION = """\
Call functions that are declared with @embedlog.worker("topic") with the jobs of their topics, in threads, or
coroutine functions in an event loop. The directory may be in use by other processes that open it with
shared=True, such as the application that sends the jobs, and other workers. Of brokers it takes the jobs of
share groups.

SIGTERM or Ctrl-C: it takes no new jobs, finishes those in hand and exits with 0. A second one: it gives them
back, so that they do not count as failed, and exits with 130."""
_LOCK = (
    "Shares the writer's lock: works while applications have the directory open with shared=True; is refused "
    "(exit 2) while one has it open without. Over brokers there is no lock."
)
_GIVEN_BACK: Final = 130


def commands() -> Iterator[Command]:
    yield Command("work", "run workers of a queue", _LOCK, run, _DESCRIPTION).takes(
        arg(
            "MODULE:FUNCTION",
            "a function that is declared as a worker, such as shop.mails:send",
            dest="functions",
            nargs="+",
        ),
        LOG,
        arg("--concurrency N", "how many jobs each function has at a time (as it declares)", type=positive),
        arg("--app-dir PATH", "where modules are looked for first (here)", default="."),
        arg("--create", "make the directory if it is missing"),
        *log_options("info"),
        arg("--json", "print a JSON object when it works, another when it has stopped"),
        defaults(refused="Open it with shared=True there, or stop that process first."),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    log_messages(args.log_format, args.log_level)
    with Stop() as stop:
        try:
            functions = [_function(text, args.app_dir) for text in args.functions]
            settings = wire_settings(args, args.directory)
            if is_over_wire(args.directory):
                with open_log(args.directory, **settings) as log:
                    return _work(args, ui, log, functions, stop)
            if not args.create:
                existing(args.directory)
            with open_log(args.directory, shared=True) as log:
                report(log.recovery, ui)
                return _work(args, ui, log, functions, stop)
        except Stopped:
            return 0


def _work(
    args: argparse.Namespace, ui: UI, log: Log, functions: list[Callable[..., object]], stop: Stop
) -> int:
    with log.run_workers(*functions, concurrency=args.concurrency, background=True) as workers:
        threading.Thread(target=_signal_end, args=[workers, stop], daemon=True).start()
        stop.is_awaited = True
        _print_state(
            args,
            ui,
            {"working": True, "functions": args.functions, "directory": log.path, "pid": os.getpid()},
        )
        number = stop.next()
        if number:
            workers.stop()
            _print_state(args, ui, {"stopping": True})
            number = stop.next()
        if number:
            workers.release()
            _print_state(args, ui, {"stopped": True, "given_back": True})
            return _GIVEN_BACK
        workers.wait()  # which raises what has ended a worker
    _print_state(args, ui, {"stopped": True, "given_back": False})
    return 0


def _signal_end(workers: Workers, stop: Stop) -> None:
    with contextlib.suppress(BaseException):
        workers.wait()
    with contextlib.suppress(OSError):  # the command has ended
        stop.tell()


def _print_state(args: argparse.Namespace, ui: UI, facts: dict[str, Any]) -> None:
    if args.json:
        ui.json(facts)
    elif "working" in facts:
        ui.line(f"working     {', '.join(args.functions)} · {args.directory} · process {facts['pid']}")
    elif "stopping" in facts:
        ui.line("stopping    finishes the jobs in hand; a second signal gives them back")
    else:
        ui.line(f"stopped     {'jobs in hand were given back' if facts['given_back'] else 'nothing in hand'}")
    ui.flush()


@calls_out  # the module may open logs
def _function(text: str, directory: str) -> Callable[..., object]:
    """The declared function that is named module:function. Raises InvalidArgument; what its module raises."""
    module_name, colon, name = text.partition(":")
    if not (colon and module_name and name):
        raise InvalidArgument(f"{text!r} names no function: write module:function, such as shop.mails:send")
    place = os.path.abspath(directory)
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        member: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another
        raise InvalidArgument(f"there is no module {module_name!r} in {place} or on Python's path") from None
    for part in name.split("."):
        if not hasattr(member, part):
            raise InvalidArgument(f"{module_name} has no {name!r}")
        member = getattr(member, part)
    declared(member)
    function: Callable[..., object] = member
    return function
