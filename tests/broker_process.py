"""The broker for foreign clients: one `embedlog serve` process for the whole run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """ "host:port". At the end the broker exits cleanly and has logged no error."""
    directory = tmp_path_factory.mktemp("served")
    with open(directory / "errors", "w+") as errors:
        command = [sys.executable, "-m", "embedlog", "serve", str(directory / "log"), "--json", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as served:
            assert served.stdout is not None
            try:
                yield json.loads(served.stdout.readline())["listening"]
            finally:
                served.send_signal(signal.SIGTERM)
                served.communicate()
        errors.seek(0)
        said = errors.read()
    assert served.returncode == 0
    assert "ERROR" not in said, said
