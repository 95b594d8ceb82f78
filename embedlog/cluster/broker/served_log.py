"""The log that a broker serves: opened for it, or one that its program has open."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from typing import Any, Final

from ...backends.local import WriterBackend
from ...config import HOUR_MS, LogSettings, TopicSettings, sorted_settings
from ...errors import InvalidArgument, ReadOnly
from ...files.descriptors import default_open_files
from ...log import Log
from ...runtime.closing import Closing
from ...runtime.locks import Lock
from ...store.store import Store
from ...validation import as_path
from .owner import OwnerServer

# The logs that brokers of this process serve. Each broker assigns producer ids: two on one log would assign
# the same id to two producers, and mistake the records of one for retries of the other.
_served: Final[weakref.WeakSet[Store]] = weakref.WeakSet()
_serving: Final = Lock()


class ServedLog(Closing):
    """A log with its backend, for one broker at a time. `close` closes what was opened for the broker.

    Args:
        path: the directory; an open log, which stays open; None for a temporary directory, which is deleted.
        log_settings: of the log and its topics; the broker's defaults are added.

    Raises InvalidArgument, ReadOnly, DirectoryLocked and other errors of `embedlog.open`.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Log | None, log_settings: dict[str, Any], *, in_cluster: bool
    ) -> None:
        with contextlib.ExitStack() as undo:
            if isinstance(path, Log):
                _check_open_log(log_settings, in_cluster=in_cluster)
                self.log = path
            else:
                if path is None:
                    path = tempfile.mkdtemp(prefix="embedlog-broker-")
                    undo.callback(shutil.rmtree, path, ignore_errors=True)
                # Half of it: the other half is for connections.
                log_settings.setdefault("max_open_files", default_open_files() // 2)
                log_settings.setdefault("message_timestamp_after_max_ms", HOUR_MS)  # Kafka's default
                self.log = _open_log(as_path(path), in_cluster=in_cluster, **log_settings)
                undo.callback(self.log.close)
            if not isinstance(self.log.backend, WriterBackend):
                raise ReadOnly("a broker is the writer of its directory: open the log with mode='rw'")
            self.backend = self.log.backend
            _claim(self.backend.store)
            undo.callback(_served.discard, self.backend.store)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Let another broker serve the log, and close it if it was opened for this one."""
        self._undo.close()


def _open_log(path: str, layout: str | None = None, *, in_cluster: bool, **settings: Any) -> Log:
    """Open the directory. Unless it is a cluster's, other processes of this machine share the log."""
    of_log, of_topics = sorted_settings(settings, LogSettings, TopicSettings)
    store = Store(path, layout=layout, topic_settings=of_topics, settings=LogSettings().with_changes(of_log))
    return Log(WriterBackend(store, lambda: OwnerServer, shared=not in_cluster, in_cluster=in_cluster))


def _check_open_log(log_settings: dict[str, Any], *, in_cluster: bool) -> None:
    """Raises InvalidArgument if the program's own log cannot be served so."""
    if in_cluster:
        raise InvalidArgument(
            "a broker of a cluster opens its directory itself: its program would append to "
            "partitions that other brokers lead. Give the path"
        )
    if log_settings:
        raise InvalidArgument("an open log has its settings already: leave them out")


def _claim(store: Store) -> None:
    """Raises InvalidArgument if the log is served already."""
    with _serving:
        if store in _served:
            raise InvalidArgument(
                f"another Broker of this program serves {store.path}: a log has one at a time"
            )
        _served.add(store)
