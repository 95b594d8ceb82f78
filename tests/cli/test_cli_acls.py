"""`embedlog acls`, on a directory and over the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_commands import Run

from embedlog.cluster import Broker


def rules(run: Run, *arguments: str) -> list[tuple[str, ...]]:
    return [
        (each["resource_type"], each["name"], each["pattern_type"], each["principal"], each["operation"])
        for each in run("acls", *arguments, "--json").objects
    ]


def test_producers_and_consumers(run: Run, log: Path) -> None:
    who = ["--allow-principal", "User:alice"]
    added = run("acls", "add", "data", *who, "--consumer", "--topic", "clicks", "--group", "billing")
    assert (added.code, added.err) == (0, "")
    assert added.out.endswith("3 ACLs added\n")
    producing = ["--producer", "--topic", "clicks", "--transactional-id", "tx", "--idempotent"]
    assert len(rules(run, "add", "data", *who, *producing)) == 6
    found = rules(run, "list", "data")
    assert found == [
        *(
            ("Topic", "clicks", "LITERAL", "User:alice", operation)
            for operation in ("Read", "Write", "Create", "Describe")
        ),
        ("Group", "billing", "LITERAL", "User:alice", "Read"),
        ("Cluster", "kafka-cluster", "LITERAL", "User:alice", "IdempotentWrite"),
        ("TransactionalId", "tx", "LITERAL", "User:alice", "Write"),
        ("TransactionalId", "tx", "LITERAL", "User:alice", "Describe"),
    ]
    assert rules(run, "list", "data", "--principal", "User:bob") == []
    assert len(rules(run, "remove", "data", *who, *producing)) == 6  # what consumers share goes, too
    assert rules(run, "remove", "data", "--group", "billing") == [found[4]]
    assert rules(run, "list", "data") == [found[0]]
    assert run("acls", "remove", "data", "--group", "billing").out == "no such ACL\n"


def test_denied_hosts_and_prefixes(run: Run, log: Path) -> None:
    ran = run(
        *("acls", "add", "data", "--topic", "audit-", "--resource-pattern-type", "prefixed"),
        *("--deny-principal", "User:*", "--deny-host", "10.0.0.7", "--operation", "write", "--json"),
    )
    assert ran.objects == [
        {
            "resource_type": "Topic",
            "name": "audit-",
            "pattern_type": "PREFIXED",
            "principal": "User:*",
            "host": "10.0.0.7",
            "operation": "Write",
            "permission": "Deny",
        }
    ]
    assert len(rules(run, "list", "data", "--topic", "audit-1", "--resource-pattern-type", "MATCH")) == 1
    assert rules(run, "list", "data", "--topic", "audit-1") == []
    # Of a resource, all are listed, and only its literal ones are removed.
    assert len(rules(run, "list", "data", "--topic", "audit-")) == 1
    assert rules(run, "remove", "data", "--topic", "audit-") == []
    prefixed = ["--topic", "audit-", "--resource-pattern-type", "prefixed"]
    assert len(rules(run, "remove", "data", *prefixed)) == 1
    assert rules(run, "list", "data") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "t"], "say who"),
        (["--allow-principal", "User:a"], "say of what"),
        (["--allow-principal", "alice", "--topic", "t"], "User:name"),
        (["--allow-principal", "User:a", "--topic", "t", "--operation", "Eat"], "none of All, Read"),
        (["--allow-principal", "User:a", "--topic", "t", "--operation", "ClusterAction"], "no operation"),
        (["--allow-principal", "User:a", "--topic", "t", "--consumer"], "--consumer needs"),
        (["--allow-host", "h", "--topic", "t"], "--allow-host goes with"),
        (["--allow-principal", "User:a", "--topic", "t", "--idempotent"], "goes with --producer"),
        (
            ["--allow-principal", "User:a", "--topic", "t", "--resource-pattern-type", "match"],
            "LITERAL or PREFIXED",
        ),
    ],
)
def test_mistakes_are_explained(run: Run, log: Path, arguments: list[str], said: str) -> None:
    ran = run("acls", "add", "data", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert not (log / "acls.json").exists()


def test_over_the_wire(run: Run, log: Path) -> None:
    run("acls", "add", "data", "--allow-principal", "User:ANONYMOUS", "--cluster")
    with Broker(log, authorizer_class_name="AclAuthorizer") as broker:
        there = ["--bootstrap-server", broker.bootstrap_servers]
        added = rules(run, "add", *there, "--allow-principal", "User:bob", "--topic", "clicks")
        assert added == [("Topic", "clicks", "LITERAL", "User:bob", "All")]
        assert added[0] in rules(run, "list", *there)
        assert added == rules(run, "list", "data", "--topic", "clicks")
        assert rules(run, "remove", *there, "--topic", "clicks") == added
        run("acls", "remove", "data", "--cluster")


def test_a_broker_without_an_authorizer(run: Run) -> None:
    with Broker() as broker:
        ran = run("acls", "list", "--bootstrap-server", broker.bootstrap_servers)
    assert ran.code != 0
    assert "authorizer_class_name" in ran.err
