"""Opens the log that a command was given: a directory, or the address of brokers.

Only commands that create something create a directory: a misspelt path must not become a log.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from ..backends.port import Backend
from ..errors import DirectoryLocked
from ..log import Log
from ..model import RecoveryReport, TopicPartition
from ..open import open as open_log
from ..recovery import Progress
from ..store.read_only_store import ReadOnlyStore
from ..store.store import Store
from ..units import counted, duration, size
from .arguments import is_over_wire, wire_settings
from .ui import UI

Viewed: TypeAlias = ReadOnlyStore | Backend
"""What a command can inspect: a directory with its segments, or brokers."""


@contextlib.contextmanager
def viewed(args: argparse.Namespace) -> Iterator[Viewed]:
    """Opens without a lock: a directory as an engine, whose segments can be inspected, or brokers."""
    target, settings = args.directory, wire_settings(args, args.directory)
    if is_over_wire(target):
        with open_log(target, **settings) as log:
            yield log.backend
    else:
        with read_only_store(target) as engine:
            yield engine


@contextlib.contextmanager
def read_only_store(directory: str) -> Iterator[ReadOnlyStore]:
    """The engine beneath a directory for reading."""
    with contextlib.closing(ReadOnlyStore(existing(directory))) as engine:
        yield engine


def shown_topics(engine: Viewed, *, internal: bool = False) -> list[str]:
    """The names of the topics; internal ones only if asked for."""
    return [name for name in engine.topics() if internal or not engine.describe_topic(name).internal]


@contextlib.contextmanager
def reader(args: argparse.Namespace, **settings: Any) -> Iterator[Log]:
    """The log, for reading, without a lock."""
    target, of_client = args.directory, wire_settings(args, args.directory)
    with open_log(target, mode="rw" if is_over_wire(target) else "r", **settings, **of_client) as log:
        yield log


@contextlib.contextmanager
def writer(
    args: argparse.Namespace, ui: UI, *, create: bool = False, ask_owner: bool = True, **settings: Any
) -> Iterator[Log]:
    """The log, with the writer's lock; reports a recovery on standard error. Brokers have neither.

    ask_owner: if a process that shares the log has the lock, reach it through its socket.

    Raises DirectoryLocked, and what opening raises.
    """
    of_client = wire_settings(args, args.directory)
    if is_over_wire(args.directory):
        with open_log(args.directory, **settings, **of_client) as log:
            yield log
        return
    if not create:
        existing(args.directory)
    try:
        with _recovering(ui) as progress:
            log = open_log(args.directory, progress=progress, **settings)
    except DirectoryLocked as locked:
        if not ask_owner:
            raise
        log = through_owner(args.directory, locked, **settings)
    else:
        report(log.recovery, ui)
    with log:
        yield log


def through_owner(directory: str, locked: DirectoryLocked, **settings: Any) -> Log:
    """The log, through the socket of the process that shares it. Raises `locked` if none does."""
    try:
        return open_log(directory, shared=True, **settings)
    except DirectoryLocked:
        raise locked from None  # which says what can be done instead


@contextlib.contextmanager
def store(args: argparse.Namespace, ui: UI) -> Iterator[Store]:
    """The engine beneath a log for writing. Raises as `writer` does."""
    directory = existing(args.directory)
    with _recovering(ui) as progress:
        engine = Store(directory, progress=progress)
    with contextlib.closing(engine):
        report(engine.recovery, ui)
        yield engine


def existing(directory: str) -> str:
    """The absolute path of a log. Raises what `embedlog.open` raises."""
    with open_log(directory, mode="r") as log:
        return log.path


@contextlib.contextmanager
def _recovering(ui: UI) -> Iterator[Progress]:
    with ui.progress() as bars:

        def progress(partition: TopicPartition, done: int, total: int) -> None:
            bars.update(f"checking {partition}", done, total)

        yield progress


def report(recovery: RecoveryReport, ui: UI) -> None:
    """Report a recovery that truncated anything."""
    if not recovery.bytes_cut:
        return  # damage is logged by the engine as it finds it
    read = sum(partition.bytes_read for partition in recovery.partitions)
    ui.note(
        f"recovery  {counted(len(recovery.partitions), 'partition')} · {size(read)} read in "
        f"{duration(recovery.duration_ms / 1000)}"
    )
    for partition in recovery.partitions:
        if partition.bytes_cut:
            kept = f", kept in {partition.cut_path}" if partition.cut_path else ""
            ui.note(
                f"          {partition.topic} {partition.partition}: {size(partition.bytes_cut)} cut at "
                f"offset {partition.log_end_offset:,} ({partition.cut_reason}){kept}"
            )
