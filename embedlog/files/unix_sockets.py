"""Unix sockets in a directory, however long its name.

The address of a Unix socket has room for about 100 bytes. A longer path is reached through a symbolic link to
its directory, which has a short name and exists only for the moment of the call; the socket itself is in the
directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

_MAX_PATH_BYTES: Final = 100  # Linux has room for 107, macOS for 103
_BACKLOG: Final = 512
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_MAC_LOCAL: Final = 0  # SOL_LOCAL
_MAC_PEER_PID: Final = 2  # LOCAL_PEERPID


def listen(path: str) -> socket.socket:
    """A socket that listens at a path; replaces one that is there, and nothing else. Raises OSError.

    Its permissions are those of the directory: who may write there may connect.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file of that name that is not a socket", path)
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as short:
            listening.bind(short)
        directory = os.stat(os.path.dirname(path))
        with contextlib.suppress(PermissionError):
            os.chown(path, -1, directory.st_gid)
        os.chmod(path, stat.S_IMODE(directory.st_mode) & 0o666)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def identity(path: str) -> tuple[int, int]:
    """What tells the file at a path from another that takes its place. Raises OSError."""
    stat = os.lstat(path)
    return stat.st_dev, stat.st_ino


def connect(path: str, timeout_s: float) -> socket.socket:
    """Connect to the socket at a path. Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        with _short(path) as short:
            connected.connect(short)
    except BaseException:
        connected.close()
        raise
    return connected


def peer_pid(connected: socket.socket) -> int:
    """The process that connected; 0 if it is in another container, or the system does not tell.

    Source: unix(7), SO_PEERCRED; macOS's sys/un.h.
    """
    try:
        if sys.platform == "linux":
            credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(credentials)[0])
        return connected.getsockopt(_MAC_LOCAL, _MAC_PEER_PID)
    except OSError:
        return 0


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """A path of the same file that fits an address."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    directory, name = os.path.split(path)
    with tempfile.TemporaryDirectory(prefix="embedlog-", dir="/tmp") as temporary:
        link = os.path.join(temporary, "d")
        os.symlink(directory, link)
        yield os.path.join(link, name)
