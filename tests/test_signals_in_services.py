"""SIGTERM at any moment in programs of every kind: each ends, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_process import served
from programs import Program
from signalled import HANDLERS, STOPS, TOPIC, WORKS

import embedlog
from embedlog.store.verify import verify_log

MODES = ("alone", "owner", "client", "wire", "asyncio", "asyncio client", "asyncio wire", "broker")


@contextlib.contextmanager
def _log_of(mode: str, tmp_path: Path) -> Iterator[str]:
    """Where its services open their log: another process has it, if they are clients."""
    if mode.endswith("wire"):
        with served(tmp_path, "--port", "0") as told:
            yield f"kafka://{told['listening']}"
    elif mode.endswith("client"):
        with embedlog.open(tmp_path / "log", shared=True):
            yield str(tmp_path / "log")
    else:
        yield str(tmp_path / "log")


def stop_services(
    program: Callable[..., Program],
    tmp_path: Path,
    mode: str,
    works: list[str],
    handlers: list[str],
    count: int,
) -> None:
    acknowledged = tmp_path / "acknowledged"
    with _log_of(mode, tmp_path) as where:
        arguments = mode, where, ",".join(works), ",".join(handlers), count, acknowledged
        services = program("import signalled; signalled.main()", *arguments)
        services.end()
    assert verify_log(tmp_path / "log").ok
    with embedlog.open(tmp_path / "log") as log:
        assert mode == "owner" or log.recovery.clean  # its peer is killed
        kept = {record.value for record in log.read(TOPIC)}
    lost = set(acknowledged.read_bytes().split(b"\n")) - kept - {b""}
    assert not lost
    assert os.path.getsize(acknowledged)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["client", "wire", "asyncio", "broker"])
def test_services_end_at_sigterm(program: Callable[..., Program], tmp_path: Path, mode: str) -> None:
    """A few; the soak has many."""
    stop_services(program, tmp_path, mode, ["append", "transaction"], list(STOPS), 2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("mode", MODES)
def test_services_end_at_sigterm_whatever_they_do(
    program: Callable[..., Program], tmp_path: Path, mode: str, work: str
) -> None:
    stop_services(program, tmp_path, mode, [work], list(HANDLERS), 100)
