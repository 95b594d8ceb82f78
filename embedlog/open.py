"""`embedlog.open`: opens a Log from a path or an address. `embedlog.scan_polars` opens it later.

It imports what it opens, so that `import embedlog` costs next to nothing. It puts the parts together that do
not know each other: a log in this process gets the server (cluster/broker/owner.py) through which others
reach it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument, InvalidType, UnsupportedByBackend, shown

if TYPE_CHECKING:
    import polars

    from .backends.owned_log import StartServer
    from .backends.port import Backend
    from .files.filesystem import FileSystem
    from .log import Log
    from .recovery import Progress
    from .store.store import Store


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    layout: str | None = None,
    *,
    shared: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    **settings: Any,
) -> Log:
    """Open a log: a directory, or the log of Kafka brokers.

    Args:
        path: the directory. Mode "rw" creates it if it does not exist. A relative path is resolved now. Or
            the addresses of brokers, of which one must answer: "kafka://user@host:9092,host2:9092". Any
            brokers that speak Kafka's protocol will do. The settings are then those of a client
            (`wire_client.settings.ClientSettings`, e.g. `request_timeout_ms`), or `client_config`, a file
            with such settings. The other arguments do not apply.
        mode: "rw" to write, as the only writer unless `shared` is set. "r" to read what others write, without
            a lock, in any number of processes.
        shared: let several processes write to the directory. One of them owns it, and the others reach it
            through a socket in the directory. If the owner ends, another process takes over. The owner's
            settings apply. A forked child's handle connects again at its next call.
        layout: the file names of a new directory: "classic" (the default, from Kafka's design documents) or
            "kafka" (Kafka's own). An existing directory keeps its layout.
        progress: called as `progress(partition, bytes_done, total_bytes)` while recovery checks the log after
            a crash.
        fs: replaces the system calls, for tests that make them fail.
        settings: settings of the log (`LogSettings`, e.g. `max_bytes`), and defaults for its topics
            (`TopicSettings`, e.g. `flush_messages=1`), under Kafka's names.

    Raises DirectoryLocked if the directory is open for writing elsewhere. Raises NotALog if it holds other
    files, UnsupportedFormat if another version of embedlog wrote it; both leave it unchanged. Raises
    DirectoryError for a cluster broker's directory, because other brokers lead some of its partitions.
    Raises ReadOnly, CorruptCheckpoint, StorageError, InvalidSetting, UnknownSetting, InvalidArgument,
    InvalidType; with brokers BrokerUnavailable, TlsFailed, AuthenticationFailed, UnsupportedByBackend.
    """
    from .files.filesystem import FileSystem
    from .files.names import LAYOUTS
    from .validation import as_path, check_choice, check_flag

    # 1. An address. "kafka:host" is taken for one: a slip must not make a directory of that name.
    if isinstance(path, str) and ("://" in path or path.startswith("kafka:")):
        check_choice("mode", mode, ("rw", "r"))
        return _open_remote(path, layout, progress, fs, mode, shared, settings)
    # 2. A directory: check all arguments before it is touched, for "rw" creates it.
    directory = as_path(path)
    check_choice("mode", mode, ("rw", "r"))
    if layout is not None:
        check_choice("layout", layout, LAYOUTS)
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress must be callable, not {type(progress).__name__}")
    check_flag("shared", shared)
    if shared and mode == "r":
        raise InvalidArgument('shared=True is for mode="rw": a reader needs no owner')
    if fs is not None and not isinstance(fs, FileSystem):
        raise InvalidType(f"fs must be an embedlog.files.filesystem.FileSystem, not {type(fs).__name__}")
    return _open_directory(directory, mode, layout, shared, progress, fs, settings)


def scan_polars(
    path: str | os.PathLike[str],
    topic: str,
    *,
    schema: str | Mapping[str, str] | None = None,
    isolation_level: str = "read_committed",
    **settings: Any,
) -> polars.LazyFrame:
    """Return a topic's table as a Polars LazyFrame (needs polars and duckdb). See docs/reference/sql.md.

        embedlog.scan_polars("./data", "clicks").filter(pl.col("offset") >= 1_000).select("city").collect()

    Each `collect` opens the log without a lock, reads up to the end that it has then, and closes it. It reads
    only the columns that the query needs. Conditions on offset, partition and timestamp limit the records
    that it reads.

    Args:
        path: as for `open`.
        settings: as for `open`.
        schema: the fields of JSON values, as "a INT, b VARCHAR" or a dict. By default they are inferred now.
        isolation_level: "read_uncommitted" also shows records of aborted and open transactions.

    Raises TopicNotFound, InvalidArgument, InvalidType, and what `open` raises for reading. Raises
    EmbedlogError if a library is not installed. Errors during `collect` are Polars errors.
    """
    from .sql.lazy import scan

    is_remote = isinstance(path, str) and "://" in path

    @contextlib.contextmanager
    def opened() -> Iterator[Backend]:
        with open(target, mode="rw" if is_remote else "r", **settings) as log:
            yield log.backend

    target = path
    if not is_remote:
        with open(path, mode="r", **settings) as log:
            target = log.path  # the working directory may change
    return scan(opened, topic, schema, isolation_level)


def log_over(store: Store) -> Log:
    """A log over a store, which is closed with it. Tools reach it through the socket in its directory."""
    from .backends.local import WriterBackend
    from .log import Log

    return Log(WriterBackend(store, owner_server))


def owner_server() -> StartServer:
    """Import what serves a log to other processes of this machine."""
    from .cluster.broker.owner import OwnerServer

    return OwnerServer


def client_settings_of(log: Log) -> dict[str, Any]:
    """The settings with which an address was opened, to open it again; none of a directory."""
    from .wire_client.settings import SCHEME, ClientSettings

    settings = getattr(log.backend, "settings", None)
    if not isinstance(settings, ClientSettings) or not log.path.startswith(SCHEME):
        return {}
    return settings.changed()


def _open_directory(
    path: str,
    mode: str,
    layout: str | None,
    shared: bool,
    progress: Progress | None,
    fs: FileSystem | None,
    settings: Mapping[str, Any],
) -> Log:
    """`open` of a directory; the arguments are checked."""
    from .config import LogSettings, TopicSettings, sorted_settings
    from .log import Log

    of_log, of_topics = sorted_settings(settings, LogSettings, TopicSettings)
    if mode == "r":
        from .backends.read_only import ReaderBackend
        from .store.read_only_store import ReadOnlyStore

        return Log(ReaderBackend(ReadOnlyStore(path, layout=layout, topic_settings=of_topics, fs=fs)))
    log_settings = LogSettings().with_changes(of_log)
    if shared:
        from .backends.shared import SharedDirectory

        directory = SharedDirectory(path, layout, log_settings, of_topics, owner_server, fs)
        return Log(directory.open(progress), reconnect=directory.open)
    from .store.store import Store

    store = Store(
        path, layout=layout, topic_settings=of_topics, settings=log_settings, fs=fs, progress=progress
    )
    log = log_over(store)
    with contextlib.ExitStack() as undo:
        undo.callback(log.close)
        store.catalog.check_whole()
        undo.pop_all()
    return log


def _open_remote(
    address: str,
    layout: str | None,
    progress: Progress | None,
    fs: FileSystem | None,
    mode: str,
    shared: bool,
    settings: dict[str, Any],
) -> Log:
    """`open` of an address. Raises UnsupportedByBackend for the arguments of a directory."""
    from .wire_client.settings import without_password

    if not address.startswith("kafka://"):
        raise InvalidArgument(
            f'{shown(without_password(address))} is neither an address of brokers ("kafka://host:9092") nor '
            "a directory"
        )
    of_directories = {
        "layout": layout,
        "progress": progress,
        "fs": fs,
        "mode": None if mode == "rw" else mode,
        "shared": shared or None,
    }
    for name, value in of_directories.items():
        if value is not None:
            raise UnsupportedByBackend(
                f"{name}={shown(value)} belongs to a directory, not to {shown(without_password(address))}"
            )
    from .backends.remote import RemoteBackend
    from .log import Log

    return Log(RemoteBackend(address, settings))
