"""`embedlog.open`: from a path (or, one day, an address) to a Log."""

from __future__ import annotations

import os
from typing import Any

from .config import LogSettings, TopicSettings, unknown_setting
from .errors import InvalidArgument, InvalidType, UnknownSetting
from .filenames import LAYOUTS
from .follower import Follower
from .fs import FileSystem
from .log import Log
from .recovery import Progress
from .store import Store


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    layout: str | None = None,
    *,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    **settings: Any,
) -> Log:
    """Open a log directory, creating it where it is not there (mode "rw").

    Args:
        path: the directory; a relative path is resolved now.
        mode: "rw" to be its one writer, "r" to read what some process writes (no lock, any number).
        layout: "classic" (the design documents' names) or "kafka" (Kafka's), for a new directory;
            by default what is there, and classic for a new one.
        progress: called as (partition, bytes done, bytes in all) while tails are checked after a crash.
        fs: the system calls; for tests that make them fail.
        settings: of the whole log (config.LogSettings, e.g. max_bytes), and defaults for its topics
            (config.TopicSettings, e.g. flush_messages=1), in Kafka's names.

    Raises:
        DirectoryLocked: somebody else writes it. NotALog, UnsupportedFormat: it is left unchanged.
        DirectoryError, ReadOnly, CorruptCheckpoint, StorageError, InvalidSetting, UnknownSetting,
        InvalidArgument, InvalidType.
    """
    directory = _directory(path)
    if mode not in ("rw", "r"):
        raise InvalidArgument(f'mode must be "rw" or "r", not {mode!r}')
    if layout not in (None, *LAYOUTS):
        raise InvalidArgument(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    of_log, of_topics = _sorted_settings(settings)
    if mode == "r":
        return Log(Follower(directory, layout=layout, topic_settings=of_topics, fs=fs))
    return Log(
        Store(
            directory,
            layout=layout,
            topic_settings=of_topics,
            settings=LogSettings().with_changes(of_log),
            fs=fs,
            progress=progress,
        )
    )


def _directory(path: object) -> str:
    """An absolute path, so that a later chdir does not move the log."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str):
        raise InvalidType(f"path must be str or os.PathLike of str, not {type(path).__name__}")
    if not name or "\0" in name:
        raise InvalidArgument(f"{name!r} cannot be the path of a directory")
    if "://" in name:
        raise InvalidArgument(f"{name!r} is an address: this version opens directories")
    return os.path.abspath(name)


def _sorted_settings(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Which settings are the log's and which its topics'. Raises UnknownSetting."""
    of_log = {name: value for name, value in given.items() if _plain(name) in LogSettings.names()}
    of_topics = {name: value for name, value in given.items() if name not in of_log}
    for name in of_topics:
        if _plain(name) not in TopicSettings.names():
            raise UnknownSetting(unknown_setting(name, (*LogSettings.names(), *TopicSettings.names())))
    return of_log, of_topics


def _plain(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")
