"""`embedlog.open`: from a path or an address to a Log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from .config import LogSettings, TopicSettings, sorted_settings
from .errors import InvalidArgument, InvalidType, UnsupportedByBackend, shown
from .files.filesystem import FileSystem
from .files.names import LAYOUTS
from .log import Log
from .recovery import Progress
from .store.catalog import Catalog
from .store.read_only_store import ReadOnlyStore
from .store.store import Store
from .validation import as_path, check_choice


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    layout: str | None = None,
    *,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    **settings: Any,
) -> Log:
    """Open a log directory, creating it where it is not there (mode "rw"); or a log that brokers keep.

    Args:
        path: the directory; a relative path is resolved now. Or brokers: "kafka://host:9092,host2:9092", of
            which one must answer; any that speak Kafka's protocol will do. Then mode is "rw", the next three
            are a directory's, and the settings are those of cluster.remote.settings.RemoteSettings (e.g.
            request_timeout_ms).
        mode: "rw" to be its one writer, "r" to read what some process writes (no lock, any number).
        layout: "classic" (the design documents' names) or "kafka" (Kafka's), for a new directory;
            by default what is there, and classic for a new one.
        progress: called as (partition, bytes done, bytes in all) while tails are checked after a crash.
        fs: the system calls; for tests that make them fail.
        settings: of the whole log (config.LogSettings, e.g. max_bytes), and defaults for its topics
            (config.TopicSettings, e.g. flush_messages=1), in Kafka's names.

    Raises:
        DirectoryLocked: somebody else writes it. NotALog, UnsupportedFormat: it is left unchanged.
        DirectoryError: also for the directory of one broker of a cluster: others lead some of its partitions.
        ReadOnly, CorruptCheckpoint, StorageError, InvalidSetting, UnknownSetting, InvalidArgument,
        InvalidType. Of brokers: BrokerUnavailable, UnsupportedByBackend.
    """
    if isinstance(path, str) and ("://" in path or path.startswith("kafka:")):
        check_choice("mode", mode, ("rw", "r"))
        given = {"layout": layout, "progress": progress, "fs": fs, "mode": None if mode == "rw" else mode}
        return _open_remote(path, given, settings)
    directory = as_path(path)
    check_choice("mode", mode, ("rw", "r"))
    if layout is not None:
        check_choice("layout", layout, LAYOUTS)
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress must be callable, not {type(progress).__name__}")
    if fs is not None and not isinstance(fs, FileSystem):
        raise InvalidType(f"fs must be an embedlog.files.filesystem.FileSystem, not {type(fs).__name__}")
    if mode == "r":
        _, of_topics = sorted_settings(settings, LogSettings, TopicSettings)
        return Log(ReadOnlyStore(directory, layout=layout, topic_settings=of_topics, fs=fs))
    log = open_directory(directory, layout, progress=progress, fs=fs, **settings)
    with contextlib.ExitStack() as undo:
        undo.callback(log.close)
        Catalog(fs or FileSystem(), directory).check_whole()
        undo.pop_all()
    return log


def open_directory(
    path: str,
    layout: str | None = None,
    *,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    **settings: Any,
) -> Log:
    """`open` for writing, of a directory that may be one broker's of a cluster: the broker itself does so."""
    of_log, of_topics = sorted_settings(settings, LogSettings, TopicSettings)
    return Log(
        Store(
            path,
            layout=layout,
            topic_settings=of_topics,
            settings=LogSettings().with_changes(of_log),
            fs=fs,
            progress=progress,
        )
    )


def _open_remote(address: str, given: Mapping[str, object], settings: dict[str, Any]) -> Log:
    if not address.startswith("kafka://"):
        raise InvalidArgument(
            f"{shown(address)} is an address of an unknown kind: a directory's path opens the directory, "
            '"kafka://host:9092" the log that brokers keep'
        )
    for name, value in given.items():
        if value is not None:
            raise UnsupportedByBackend(
                f"{name}={shown(value)} belongs to a directory, not to {shown(address)}"
            )
    # Who opens directories alone does not wait for the network's half to be imported.
    from .backends.remote import RemoteBackend

    return Log(RemoteBackend(address, settings))
