"""Opens a log in any process of Spark: a directory by its path, brokers by their addresses.

A LogLocation is a plain value that is sent between processes; each process opens the log itself, and keeps a
few logs open, because a Spark worker runs many small tasks.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeAlias

from ..fields import Secret
from ..files.names import FORMAT_FILE
from ..log import Log
from ..open import open as open_log

_KEPT: Final = 4

_Stamp: TypeAlias = tuple[int, ...]


class LogLocation(NamedTuple):
    """A log's directory, or its `address` ("kafka://host:9092") with client settings; `repr` shows no
    secret."""

    path: str | None = None
    address: str | None = None
    settings: tuple[tuple[str, str | Secret], ...] = ()

    def __str__(self) -> str:
        return self.path or self.address or "nowhere"


_opened: OrderedDict[tuple[int, LogLocation, _Stamp], Log] = OrderedDict()


def opened(location: LogLocation) -> Log:
    """Open a log for reading, or return it from this process's cache.

    Raises what embedlog.open raises.
    """
    which = os.getpid(), location, _stamp(location)
    log = _opened.get(which)
    if log is None:
        if location.path is not None:
            log = open_log(location.path, mode="r")
        else:
            settings: dict[str, Any] = dict(location.settings)
            log = open_log(str(location.address), **settings)
        _opened[which] = log
        while len(_opened) > _KEPT:
            _opened.popitem(last=False)[1].close()
    _opened.move_to_end(which)
    return log


def _stamp(location: LogLocation) -> _Stamp:
    """Tells a directory from another one that replaced it under the same path."""
    if location.path is None:
        return ()
    try:
        stat = os.stat(os.path.join(location.path, FORMAT_FILE))
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns
