"""`embedlog quotas`: list, set, remove, of a directory and over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import Ran, Run

from embedlog.cluster import Broker
from embedlog.files.names import CLUSTER_FILE, QUOTAS_FILE


@pytest.fixture(params=["directory", "wire"])
def quotas(run: Run, log: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run `embedlog quotas ACTION` on the directory ./data, or on its broker."""
    if request.param == "directory":
        yield lambda action, *arguments: run("quotas", action, "data", *arguments)
        return
    with Broker(log) as broker:

        def over_wire(action: str, *arguments: str) -> Ran:
            return run("quotas", action, "--bootstrap-server", broker.bootstrap_servers, *arguments)

        yield over_wire


def test_quotas_are_set_listed_and_removed(quotas: Run) -> None:
    assert quotas("list").out == "no quotas\n"
    ran = quotas("set", "--user", "alice", "--client-defaults", "--quota", "producer_byte_rate=1048576")
    assert ran.rows()[1] == ["alice", "<default>", "producer_byte_rate", "1,048,576"]
    more = ["--quota", "request_percentage=0.5", "--quota", "consumer_byte_rate=2e3"]
    (found,) = quotas("set", "--user-defaults", *more, "--json").objects
    assert found == {
        "entity": {"user": None},
        "quotas": {"request_percentage": 0.5, "consumer_byte_rate": 2000},
    }
    assert not quotas("set", "--ip", "10.0.0.1", "--quota", "connection_creation_rate=3").code
    assert [each["entity"] for each in quotas("list", "--json").objects] == [
        {"ip": "10.0.0.1"},
        {"user": None},
        {"user": "alice", "client-id": None},
    ]
    assert [each["entity"] for each in quotas("list", "--user", "alice", "--json").objects] == [
        {"user": "alice", "client-id": None}
    ]
    (removed,) = quotas("remove", "--user-defaults", "--quota", "request_percentage", "--json").objects
    assert removed == {"entity": {"user": None}, "quotas": {"request_percentage": 0.5}}
    assert quotas("remove", "--ip", "10.0.0.1").out.endswith("1 quota removed\n")
    assert quotas("remove", "--ip", "10.0.0.1").out == "no such quota\n"
    assert [each["quotas"] for each in quotas("list", "--json").objects] == [
        {"consumer_byte_rate": 2000},
        {"producer_byte_rate": 1048576},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["set", "--quota", "producer_byte_rate=1"], "at least one"),
        (["set", "--user", "a", "--quota", "producer_byte_rate"], "KEY=NUMBER"),
        (["set", "--user", "a", "--quota", "producer_byte_rate=many"], "KEY=NUMBER"),
        (["set", "--user", "a", "--quota", "producer_byte_rate=0"], "greater than 0"),
        (["set", "--user", "a", "--quota", "connection_creation_rate=1"], "is not a quota"),
        (["set", "--user", "a", "--ip", "b", "--quota", "producer_byte_rate=1"], "neither user"),
        (["remove", "--user", "a", "--quota", "nonsense"], "is not a quota"),
        (["set", "--user", "a", "--user-defaults", "--quota", "producer_byte_rate=1"], "not allowed with"),
    ],
)
def test_what_is_no_quota(run: Run, log: Path, arguments: list[str], says: str) -> None:
    action, *more = arguments
    ran = run("quotas", action, "data", *more)
    assert ran.code == 2
    assert says in ran.err
    assert not (log / QUOTAS_FILE).exists()


def test_a_clusters_quotas_are_not_in_the_directory(run: Run, log: Path) -> None:
    (log / CLUSTER_FILE).write_text("{}")
    ran = run("quotas", "list", "data")
    assert ran.code == 2
    assert "--bootstrap-server" in ran.err
