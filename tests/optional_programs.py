"""The programs that tests may start: those of every machine, and those that a test names.

embedlog needs Python and make. During a test, PATH has UTILITIES alone, so a test that starts another program
must name it: @pytest.mark.program("kcat"). Where the program is missing, the test is skipped and says how to
install it; a test that names none does not find it on any machine. `pytest -m program` selects the tests that
name one. A test with required=False uses the program if it is there, and runs without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UTILITIES = """
awk basename bash cat chmod comm cp cut date dd df diff dirname du echo env expr false find getconf grep gzip
head id join kill ldconfig ln locale ls make mkdir mkfifo mktemp mount mv nice nohup od paste printf ps pwd
python python3 readlink realpath rm rmdir sed seq sh sleep sort split stat stty sync tail tar tee test timeout
touch tr true tty uname uniq unshare wc which xargs
"""
"""What a system without any package of its own has: POSIX's utilities, bash, and Python."""

INSTALL = {
    "chromium": "apt-get install chromium",
    "curl": "apt-get install curl",
    "fish": "apt-get install fish",
    "go": "https://go.dev/dl/",
    "java": "apt-get install default-jdk",
    "kcat": "apt-get install kcat",
    "mvn": "apt-get install maven",
    "node": "https://nodejs.org/",
    "openssl": "apt-get install openssl",
    "redis-server": "apt-get install redis-server",
    "zsh": "apt-get install zsh",
}
"""How to get each program that is not a Python package, on Debian."""


class Programs:
    """This machine's programs as links, in a directory for the utilities and one for each other program."""

    def __init__(self) -> None:
        self._root = tempfile.TemporaryDirectory(prefix="programs-")
        self._link("utilities", UTILITIES.split())
        for name in INSTALL:
            self._link(name, [name])

    def close(self) -> None:
        self._root.cleanup()

    def missing(self, item: pytest.Item) -> list[str]:
        """What a test needs and this machine lacks: a sentence for each program."""
        required = [mark for mark in item.iter_markers("program") if mark.kwargs.get("required", True)]
        return [
            f"{name} is not installed: {INSTALL[name]}"
            for name in _names(required)
            if not (self._directory(name) / name).exists()
        ]

    @contextmanager
    def named_by(self, item: pytest.Item) -> Iterator[None]:
        """While a test runs, PATH has the utilities and the programs that it names."""
        before = os.environ["PATH"]
        directories = [self._directory(name) for name in (*_names(item.iter_markers("program")), "utilities")]
        os.environ["PATH"] = os.pathsep.join(map(str, directories))
        try:
            yield
        finally:
            os.environ["PATH"] = before

    def _directory(self, name: str) -> Path:
        return Path(self._root.name, name)

    def _link(self, directory: str, names: Iterable[str]) -> None:
        self._directory(directory).mkdir()
        for name in names:
            program = shutil.which(name)
            if program is not None and (name != "openssl" or _is_openssl(program)):
                (self._directory(directory) / name).symlink_to(program)


def find(name: str) -> str | None:
    """The path of a program that a test names."""
    assert name in INSTALL, name
    return shutil.which(name)


def _names(marks: Iterable[pytest.Mark]) -> list[str]:
    return sorted({name for mark in marks for name in mark.args})


def _is_openssl(program: str) -> bool:
    """macOS has another library's command of this name."""
    return "OpenSSL" in subprocess.run([program, "version"], capture_output=True, text=True).stdout
