"""`embedlog users`, on a directory and over the wire."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import Run

import embedlog
from embedlog.cluster import Broker
from embedlog.errors import AuthenticationFailed

PASSWORD = "correct horse"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with Broker(tmp_path / "data", listeners=listeners) as broker:
        yield broker


def topics_of(broker: Broker, user: str, password: str) -> list[str]:
    """What somebody finds who authenticates."""
    address = f"kafka://{user}@127.0.0.1:{broker.listeners[1].port}"
    with embedlog.open(
        address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_password=password
    ) as log:
        return log.topics()


def test_the_command_beside_a_broker(broker: Broker, run: Run, tmp_path: Path) -> None:
    (tmp_path / "first").write_text("first\nnot read\n")
    (tmp_path / "second").write_text("second")
    assert run("users", "list", "data").out == "no users yet\n"
    added = run("users", "add", "data", "alice", "--password-file", "first")
    assert (added.code, added.out) == (0, "alice can authenticate by SCRAM-SHA-256, SCRAM-SHA-512\n")
    assert topics_of(broker, "alice", "first") == []  # at once
    users = tmp_path / "data" / "users.json"
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert "first" not in users.read_text()
    assert run("users", "add", "data", "alice", "--password-file", "second").code == 2
    assert run("users", "passwd", "data", "alice", "--password-file", "second", "--json").code == 0
    assert topics_of(broker, "alice", "second") == []
    with pytest.raises(AuthenticationFailed):
        topics_of(broker, "alice", "first")
    assert run("users", "describe", "data", "alice", "--json").objects == [
        {"user": "alice", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
    ]
    assert run("users", "delete", "data", "alice").code == 0
    with pytest.raises(AuthenticationFailed):
        topics_of(broker, "alice", "second")


def test_the_command_over_the_wire(broker: Broker, run: Run, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    there = ["--bootstrap-server", broker.bootstrap_servers]
    added = run(
        *("users", "add", *there, "alice", "--password-file", "password"),
        *("--mechanism", "SCRAM-SHA-512", "--iterations", "5000"),
    )
    assert (added.code, added.err) == (0, "")
    assert topics_of(broker, "alice", PASSWORD) == []
    found = run("users", "list", *there, "--json").objects
    assert found == [{"user": "alice", "mechanisms": {"SCRAM-SHA-512": 5000}}]
    assert run("users", "passwd", *there, "nobody", "--password-file", "password").code == 2
    assert run("users", "delete", *there, "alice").code == 0
    assert run("users", "list", *there).out == "no users yet\n"
