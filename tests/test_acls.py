"""The rules of ACLs, compared with a second implementation that has no index and no cache; their file."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.errors import CorruptCheckpoint, InvalidArgument
from embedlog.security.acl_store import DocumentAcls
from embedlog.security.acls import (
    Acls,
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    check_binding,
    parse_super_users,
)
from embedlog.security.authorizer import Authorizer
from embedlog.security.principal import Principal

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
NAMES = ["a", "ab", "abc", "b", "*"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
OPERATIONS = [Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]

bindings = st.builds(
    Binding,
    st.builds(
        Resource,
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from(NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    ),
    st.builds(
        Rule,
        st.sampled_from(["User:alice", "User:bob", "User:*"]),
        st.sampled_from([*HOSTS, "*"]),
        st.sampled_from([*OPERATIONS, Operation.ALL]),
        st.sampled_from([Permission.ALLOW, Permission.DENY]),
    ),
)


def may(found: Iterable[Binding], who: Principal, host: str, operation: Operation, name: str) -> bool | None:
    """What the rules say of a topic, in the words of Kafka's documentation; None if none is about it."""
    about = [
        rule
        for (type, named, pattern), rule in found
        if type is TOPIC
        and (named in (name, "*") if pattern is PatternType.LITERAL else name[: len(named)] == named)
    ]
    if not about:
        return None
    mine = [rule for rule in about if rule.principal in (str(who), "User:*") and rule.host in (host, "*")]
    if any(r.permission is Permission.DENY and r.operation in (operation, Operation.ALL) for r in mine):
        return False
    enough = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        enough |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        enough.add(Operation.ALTER_CONFIGS)
    return any(r.permission is Permission.ALLOW and r.operation in enough for r in mine)


@given(st.lists(bindings, max_size=12), st.booleans())
def test_decisions(found: list[Binding], allow_if_none: bool) -> None:
    acls = Acls(found, allow_if_none=allow_if_none)
    for who in (ALICE, BOB):
        for host in HOSTS:
            for operation in OPERATIONS:
                for name in ("a", "ab", "abcd", "b", "c"):
                    said = may(found, who, host, operation, name)
                    expected = allow_if_none if said is None else said
                    assert acls.allows(who, host, operation, TOPIC, name) is expected


@given(st.lists(bindings, max_size=6))
def test_some_topic(found: list[Binding]) -> None:
    """Names that no rule mentions stand for all others."""
    acls = Acls(found)
    names = [a + b for a in ("", "a", "ab", "abc", "b", "c", "*x") for b in ("", "x", "a", "b", "c")]
    for operation in (Operation.READ, Operation.ALTER_CONFIGS):
        expected = any(may(found, ALICE, HOSTS[0], operation, name) for name in names if name)
        assert acls.allows_some(ALICE, HOSTS[0], operation, TOPIC) is expected


def rule(
    name: str,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> Binding:
    return Binding(Resource(TOPIC, name, pattern), Rule("User:alice", "*", operation, permission))


def test_super_users_are_not_denied() -> None:
    everybody = Binding(Resource(TOPIC, "*"), Rule("User:*", "*", Operation.ALL, Permission.DENY))
    acls = Acls([everybody], parse_super_users("User:alice; User:carol"))
    assert acls.allows(ALICE, "h", Operation.WRITE, TOPIC, "t")
    assert acls.allows_some(ALICE, "h", Operation.WRITE, TOPIC)
    assert not acls.allows(BOB, "h", Operation.WRITE, TOPIC, "t")


@given(bindings, st.sampled_from(["a", "ab", "abc", "abcd", "b"]))
def test_a_match_chooses_what_decides_about_the_resource(binding: Binding, name: str) -> None:
    (type, _, _), ruled = binding
    chosen = BindingFilter(TOPIC, name, PatternType.MATCH).matches(binding)
    decides = Acls([binding], allow_if_none=True).allows(
        Principal("User", "nobody"), "h", Operation.WRITE, TOPIC, name
    )
    if ruled.principal != "User:*":
        assert chosen is not decides  # a rule that is about it, for somebody else, denies it to the rest
    assert chosen <= (type is TOPIC)


def test_filters_are_of_all_their_parts() -> None:
    binding = rule("ab", pattern=PatternType.PREFIXED)
    for chosen, expected in [
        (BindingFilter(), True),
        (BindingFilter(TOPIC, "ab"), True),
        (BindingFilter(TOPIC, "abc"), False),
        (BindingFilter(TOPIC, "abc", PatternType.MATCH), True),
        (BindingFilter(TOPIC, "ab", PatternType.LITERAL), False),
        (BindingFilter(GROUP), False),
        (BindingFilter(principal="User:alice"), True),
        (BindingFilter(principal="User:*"), False),
        (BindingFilter(host="10.0.0.1"), False),
        (BindingFilter(operation=Operation.ALL), False),
        (BindingFilter(permission=Permission.DENY), False),
    ]:
        assert chosen.matches(binding) is expected, chosen


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resource": Resource(ResourceType.ANY, "a")}, "one type"),
        ({"resource": Resource(TOPIC, "")}, "names a resource"),
        ({"resource": Resource(TOPIC, "a", PatternType.MATCH)}, "literal or prefixed"),
        ({"resource": Resource(ResourceType.CLUSTER, "a")}, "kafka-cluster"),
        ({"rule": Rule("alice", "*", Operation.READ, Permission.ALLOW)}, "User:name"),
        ({"rule": Rule("User:a", "", Operation.READ, Permission.ALLOW)}, "host"),
        ({"rule": Rule("User:a", "*", Operation.ANY, Permission.ALLOW)}, "one operation"),
        ({"rule": Rule("User:a", "*", Operation.READ, Permission.ANY)}, "allows or denies"),
        ({"rule": Rule("User:a\nb", "*", Operation.READ, Permission.ALLOW)}, "cannot be in"),
    ],
)
def test_what_is_no_acl_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_binding(rule("a")._replace(**change))  # type: ignore[arg-type]


def test_names_in_kafkas_spellings() -> None:
    for text in ("DescribeConfigs", "DESCRIBE_CONFIGS", "describe-configs"):
        assert Operation.parse(text) is Operation.DESCRIBE_CONFIGS
    assert Operation.DESCRIBE_CONFIGS.spelling == "DescribeConfigs"
    assert ResourceType.TRANSACTIONAL_ID.spelling == "TransactionalId"
    with pytest.raises(InvalidArgument, match="none of All, Read"):
        Operation.parse("Any")


# -- the file ------------------------------------------------------------------------------------------------


def test_a_private_file_with_kafkas_words(tmp_path: Path) -> None:
    store = DocumentAcls(str(tmp_path))
    store.add([rule("clicks"), rule("a", pattern=PatternType.PREFIXED), rule("clicks")])
    path = tmp_path / "acls.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["acls"][1] == {
        "resource_type": "Topic",
        "name": "clicks",
        "pattern_type": "LITERAL",
        "principal": "User:alice",
        "host": "*",
        "operation": "Read",
        "permission": "Allow",
    }
    chosen = [BindingFilter(TOPIC, "clicks", PatternType.MATCH), BindingFilter(GROUP)]
    assert store.remove(chosen) == [[rule("clicks")], []]
    assert store.bindings(BindingFilter()) == [rule("a", pattern=PatternType.PREFIXED)]


def test_another_process_changes_the_file(tmp_path: Path) -> None:
    changed = threading.Event()
    with Authorizer(DocumentAcls(str(tmp_path))) as authorizer:
        known = authorizer.changes
        assert not authorizer.allows(ALICE, "h", Operation.READ, TOPIC, "clicks")
        DocumentAcls(str(tmp_path)).add([rule("clicks")])
        while authorizer.changes == known:
            changed.wait(0.01)
        assert authorizer.allows(ALICE, "h", Operation.READ, TOPIC, "clicks")
        authorizer.remove([BindingFilter()])
        assert not authorizer.allows(ALICE, "h", Operation.READ, TOPIC, "clicks")


def test_a_damaged_file_is_an_error_and_changes_nothing_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "acls.json"
    DocumentAcls(str(tmp_path)).add([rule("clicks")])
    waiting = threading.Event()
    with Authorizer(DocumentAcls(str(tmp_path))) as authorizer:
        path.write_text(path.read_text().replace("Read", "Raed"))
        while not caplog.records:
            waiting.wait(0.01)
        assert "the ACLs stay as they were" in caplog.text
        assert authorizer.allows(ALICE, "h", Operation.READ, TOPIC, "clicks")
    with pytest.raises(CorruptCheckpoint, match="mend the file"):
        Authorizer(DocumentAcls(str(tmp_path)))


def test_a_decision_looks_at_few_of_many_rules(tmp_path: Path) -> None:
    """Counted, not timed: rules that it compares."""
    compared = 0

    class Counted(Rule):
        @property
        def principal(self) -> str:  # type: ignore[override]
            nonlocal compared
            compared += 1
            return self[0]

    many = [
        Binding(
            Resource(TOPIC, f"team-{n}-", PatternType.PREFIXED if n % 2 else PatternType.LITERAL),
            Counted("User:alice", "*", Operation.READ, Permission.ALLOW),
        )
        for n in range(10_000)
    ]
    acls = Acls(many)
    assert acls.allows(ALICE, "h", Operation.READ, TOPIC, "team-9999-clicks")
    assert not acls.allows(ALICE, "h", Operation.READ, TOPIC, "team-9998-clicks")
    assert 1 <= compared <= 2
