"""Programs that run as servers with processes of their own, and clients that post to them.

Every process that such a program starts has its output's pipe. So the end of that output says that none is
left.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import DirectoryLocked
from embedlog.wire.offsets_topic import OffsetKey, decode_key, decode_offset_value

ROOT = Path(__file__).resolve().parent.parent
PREFORK = ROOT / "tests" / "prefork"


def owner_of(path: Path) -> int:
    """The process that owns the log."""
    with pytest.raises(DirectoryLocked) as locked:
        embedlog.open(path)
    assert locked.value.pid is not None
    return locked.value.pid


class Started:
    """A program that runs, and the lines that it and its processes print."""

    def __init__(self, *command: object, environment: dict[str, object] | None = None) -> None:
        given = {name: str(value) for name, value in (environment or {}).items()}
        given["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, PREFORK)))
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **given},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def find(self, pattern: str, count: int = 1) -> list[str]:
        """The groups of the lines that match, once there are `count` of them."""
        found: list[str] = []

        def enough() -> bool:
            found[:] = [match[1] for line in self.lines if (match := re.search(pattern, line))]
            return len(found) >= count or self._ended

        with self._changed:
            self._changed.wait_for(enough)
        assert len(found) >= count, "\n".join(self.lines)
        return found

    def end(self) -> str:
        """Wait for its success, and for the end of all its processes. Returns what they printed."""
        self._reader.join()
        assert self.process.wait() == 0, "\n".join(self.lines)
        return "\n".join(self.lines)

    def stop(self) -> str:
        """Ask it to end, and see that it does."""
        self.process.terminate()
        return self.end()

    def reap(self) -> None:
        """Wait for the end of all its processes, whatever their exit codes."""
        self._reader.join()
        self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.reap()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Clients:
    """Threads that post one thing after the other. What is not acknowledged is not posted again."""

    def __init__(self, port: int, path: str, make: Callable[[str], dict[str, Any]], threads: int = 3) -> None:
        self._port = port
        self._path = path
        self._make = make
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.refused: list[tuple[int, bytes]] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            name = f"{thread}-{number}"
            try:
                status, body = self.post(self._make(name))
            except (OSError, http.client.HTTPException):
                continue  # its worker was killed
            with self._changed:
                if status in (201, 202):
                    self.acknowledged[name] = json.loads(body)
                else:
                    self.refused.append((status, body))
                    self._stopping = True
                self._changed.notify_all()

    def post(self, content: object) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            body = json.dumps(content)
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def wait_for_more(self, count: int) -> None:
        """Wait for so many further acknowledgements."""
        with self._changed:
            enough = len(self.acknowledged) + count
            self._changed.wait_for(lambda: len(self.acknowledged) >= enough or self.refused)
        assert self.refused == []

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()
        assert self.refused == []


def wait_until_committed(path: Path, group: str, topic: str) -> None:
    """Read the commits of a group until it has the whole topic. They never go back."""
    with embedlog.open(path, "r") as log:
        left = {number: ends.log_end_offset for number, ends in log.offsets(topic).items()}
        assert min(left.values()) > 0
        committed = dict.fromkeys(left, 0)
        for record in log.read("__consumer_offsets", follow=True):
            key = decode_key(record.key)
            if not isinstance(key, OffsetKey) or record.value is None:
                continue
            assert key[:2] == (group, topic)
            offset = decode_offset_value(record.value).offset
            assert committed[key.partition] <= offset <= left[key.partition]
            committed[key.partition] = offset
            if committed == left:
                return
