"""The broker for foreign clients: an `embedlog serve` process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def served(directory: Path, *options: str) -> Iterator[dict[str, Any]]:
    """What it says when it listens. At the end it exits cleanly and has logged no error."""
    with open(directory / "errors", "w+") as errors:
        command = [sys.executable, "-m", "embedlog", "serve", str(directory / "log"), "--json", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate()
        errors.seek(0)
        said = errors.read()
    assert process.returncode == 0
    assert "ERROR" not in said, said


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """ "host:port", one broker for the whole run."""
    with served(tmp_path_factory.mktemp("served"), "--port", "0") as told:
        yield told["listening"]
