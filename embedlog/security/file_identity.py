"""What tells a file from those that have been at its path before, without reading it.

A file that is replaced has another inode. One that is written in place has another time, to the nanosecond: a
certificate or a key that takes the place of another often has the same size. A time that has gone back, as
after a restore, counts as well, so identities are compared for equality only.
"""

from __future__ import annotations

import os


def file_identity(path: str) -> tuple[int, ...]:
    """The identity of the file that is at a path now. Raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
