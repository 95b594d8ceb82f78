"""Keeps the start-up output of Java and Spark off the terminal.

A JVM inherits standard error, and writes a dozen lines to it before its logging can be configured. So it gets
a pipe instead. This file, run as a program, reads the pipe: it holds the output back until it is told that
the start is over, and passes on everything after that. If the start fails, it shows everything.

    JVM --said--> this program --> standard error          told over its standard output, which it reads

It is a process because the JVM outlives the program that started it by a moment and may still write; it ends
when the JVM does.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator

_SAID, _TOLD = 0, 1
_CHUNK = 1 << 16
_MOST_KEPT = 1000  # chunks
_STARTED = b"+"
_SHOWN_S = 2.0  # how long a start that has failed waits until all is shown


@contextlib.contextmanager
def kept_back() -> Iterator[int]:
    """The descriptor to use as the standard error of a JVM that the block starts.

    Output up to the end of the block is dropped, or shown if the block raises; later output is shown.
    """
    output, to_say = os.pipe()
    order, to_tell = os.pipe()
    try:
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, output, _SAID), (os.POSIX_SPAWN_DUP2, order, _TOLD)],
            setpgroup=0,  # Ctrl-C is not for it
        )
    except BaseException:
        os.close(to_say)
        os.close(to_tell)
        raise
    finally:
        os.close(output)
        os.close(order)
    try:
        yield to_say
        os.write(to_tell, _STARTED)
    except BaseException:
        os.close(to_say)
        os.close(to_tell)
        until = time.monotonic() + _SHOWN_S
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.01)
        raise
    os.close(to_say)
    os.close(to_tell)


def _run() -> None:
    kept: list[bytes] = []
    listens = [_SAID, _TOLD]
    while listens:
        ready, _, _ = select.select(listens, [], [])
        if _TOLD in ready:
            if os.read(_TOLD, 1) == _STARTED:
                while select.select([_SAID], [], [], 0)[0] and os.read(_SAID, _CHUNK):
                    pass
            else:
                _show(b"".join(kept))
            listens.remove(_TOLD)
            continue
        chunk = os.read(_SAID, _CHUNK)
        if not chunk:
            listens.remove(_SAID)  # whether the start went well may yet be told
        elif _TOLD in listens:
            kept = [*kept, chunk][-_MOST_KEPT:]
        else:
            _show(chunk)


def _show(output: bytes) -> None:
    while output:
        output = output[os.write(2, output) :]


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the reader of standard error is gone
        _run()
