"""`embedlog backup` and `embedlog export`: copy a log, with the same file names or with others."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Final

from ..errors import DirectoryLocked
from ..store.backup import backup
from ..units import counted, duration, size
from .arguments import LOCKS, WRITES, Command, arg, defaults, directory
from .opening import read_only_store, store, through_owner
from .ui import UI

_BACKUP = """\
Copy a log, with its group offsets, into a new directory that is a log of its own. A process that has it open
with shared=True, or serves it, makes the copy itself.

On the same file system, sealed segments are hard links: they take no space as long as the original exists."""
_EXPORT = """\
Copy a log into a new directory with other file names: kafka (topic-0/00000000000000000000.log, as a Kafka
broker names them; a partition's files may be copied into a broker's topic) or classic
(topic_0/00000000000.kafka).

Files are copied whole. A range of records or times is copied by
`embedlog cat DIR TOPIC --from PLACE --to PLACE --json | embedlog append DIR TOPIC --json`."""

_NOT_OVER_WIRE = (
    "it copies files, which brokers do not serve: give the directory; "
    "`embedlog cat --json` copies records over the wire"
)


_DESTINATION: Final = arg("DEST", "a new or empty directory", dest="destination")
_LAYOUT: Final = arg("--layout", "default: kafka", choices=("kafka", "classic"), default="kafka")
_JSON: Final = arg("--json", "print a JSON object: what was copied")
_INSIDE: Final = "log.backup(destination)"


def commands() -> Iterator[Command]:
    yield Command("backup", "copy a log", LOCKS, run, _BACKUP).takes(
        directory(_NOT_OVER_WIRE), _DESTINATION, _JSON, defaults(layout=None, inside=_INSIDE)
    )
    yield Command("export", "copy a log, with Kafka's file names", WRITES, run, _EXPORT).takes(
        directory(_NOT_OVER_WIRE), _DESTINATION, _LAYOUT, _JSON, defaults(inside=_INSIDE)
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    started = time.perf_counter()
    _copy(args, ui)
    with read_only_store(args.destination) as copy:
        partitions = sum(copy.describe_topic(name).partitions for name in copy.topics())
        layout = copy.catalog.layout.name
    files, copied, linked = _measure(args.destination)
    took = time.perf_counter() - started
    shared = f" ({size(linked)} of it hard links)" if linked else ""
    ui.result(
        {
            "destination": os.path.abspath(args.destination),
            "layout": layout,
            "partitions": partitions,
            "files": files,
            "bytes": copied + linked,
            "linked_bytes": linked,
            "seconds": round(took, 6),
        },
        f"{args.destination}: {counted(partitions, 'partition')}, {counted(files, 'file')}, "
        f"{size(copied + linked)}{shared} in {duration(took)}",
    )
    return 0


def _copy(args: argparse.Namespace, ui: UI) -> None:
    try:
        with store(args, ui) as engine, ui.progress() as bars:
            backup(
                engine,
                args.destination,
                layout=args.layout,
                progress=lambda done, total: bars.update("copying", done, total),
            )
    except DirectoryLocked as locked:
        if args.layout is not None:  # owners do not export
            raise
        with through_owner(args.directory, locked) as log:
            log.backup(args.destination)


def _measure(directory: str) -> tuple[int, int, int]:
    """(files, bytes in files of its own, bytes in files that have other names too)."""
    files = copied = shared = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            stat = os.lstat(os.path.join(parent, name))
            files += 1
            if stat.st_nlink > 1:
                shared += stat.st_size
            else:
                copied += stat.st_size
    return files, copied, shared
