"""Every API, in every version, about what there is and what there is not, without permission.

A client that may not do something must not learn from the answer whether there is such a thing: the answers
about `secret-a`, which is there, and `secret-b`, which is not, are equal byte by byte, up to these names and
topic ids. The requests come from one table, and the test fails for an API that is not in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import pytest
from api_requests import (
    BY_EXCHANGE,
    BY_ID,
    LISTS,
    MISSING,
    MISSING_ID,
    REQUESTS,
    THERE,
    Named,
    answer,
    offered,
)

from embedlog.cluster import Broker
from embedlog.cluster.broker.guards.api_permissions import PERMISSIONS
from embedlog.cluster.broker.guards.authorization import OPEN_TO_ALL
from embedlog.security.acls import (
    CLUSTER_NAME,
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)
from embedlog.security.authorizer import Authorizer
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.schema import NO_UUID

REFUSALS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
RULED: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With a topic, a group and a transactional id that no user may see."""
    with Broker(authorizer_class_name="AclAuthorizer") as broker:
        broker.log.create_topic(THERE)
        broker.log.append_many(THERE, [b"one", b"two"])
        broker.log.group(THERE).reset(THERE, to="latest")
        with broker.log.transaction(THERE) as tx:
            tx.append(THERE, b"three")
        yield broker


@pytest.fixture
def authorizer(broker: Broker) -> Iterator[Authorizer]:
    assert broker.context.access is not None
    authorizer = broker.context.access.authorizer
    yield authorizer
    authorizer.remove([BindingFilter()])


def codes(message: Any) -> set[int]:
    """All error codes in a message."""
    if isinstance(message, list):
        return set().union(*map(codes, message))
    found: set[int] = set()
    if dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                found.add(value)
            else:
                found |= codes(value)
    return found - {0}


def allow(
    type: ResourceType, name: str, who: str = "User:*", permission: Permission = Permission.ALLOW
) -> Binding:
    pattern = PatternType.PREFIXED if name.endswith("-") else PatternType.LITERAL
    return Binding(Resource(type, name, pattern), Rule(who, "*", Operation.ALL, permission))


NOTHING: Final[list[Binding]] = []
ANOTHERS: Final = [
    *(allow(type, "*", "User:other") for type in RULED),
    allow(ResourceType.CLUSTER, CLUSTER_NAME, "User:other"),
    Binding(
        Resource(ResourceType.TOPIC, "*"),
        Rule("User:*", "10.9.9.9", Operation.ALL, Permission.ALLOW),
    ),
]
DENIED_PREFIX: Final = [
    *(allow(type, "*") for type in RULED),
    *(allow(type, "secret-", permission=Permission.DENY) for type in RULED),
]


def test_every_api_has_a_row_and_a_request(broker: Broker) -> None:
    apis = set(offered(broker))
    assert apis <= set(PERMISSIONS)
    open_to_all = {name for name, row in PERMISSIONS.items() if row == OPEN_TO_ALL}
    assert open_to_all == {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "Fetch"}
    assert set(PERMISSIONS) - open_to_all | {"Fetch"} == set(REQUESTS)
    assert set(PERMISSIONS) == set(BY_EXCHANGE)


@pytest.mark.parametrize("rules", [NOTHING, ANOTHERS, DENIED_PREFIX], ids=["none", "anothers", "prefix"])
def test_existence_is_not_told(broker: Broker, authorizer: Authorizer, rules: list[Binding]) -> None:
    authorizer.add(rules)
    topics, ends = broker.log.topics(), broker.log.offsets(THERE)[0].log_end_offset
    there = Named(THERE, broker.context.topic_id(THERE))
    missing = Named(MISSING, MISSING_ID)
    for api, versions in offered(broker).items():
        if api not in REQUESTS:
            continue
        for version in versions:
            if api in LISTS and api not in ("Metadata", "DescribeTopicPartitions"):
                continue
            about = answer(broker, REQUESTS[api](there), version)
            other = answer(broker, REQUESTS[api](missing), version)
            as_other = about.replace(THERE.encode(), MISSING.encode()).replace(there.topic_id, MISSING_ID)
            assert as_other == other, f"{api} v{version}"
            found = codes(BY_EXCHANGE[api].response.decode(about, version))
            if api == "DescribeLogDirs" and version < 3:
                assert not found
            else:
                assert found & (REFUSALS | {ErrorCode.UNKNOWN_TOPIC_ID}), f"{api} v{version}: {found}"
    assert broker.log.topics() == topics
    assert broker.log.offsets(THERE)[0].log_end_offset == ends


@pytest.mark.parametrize("rules", [NOTHING, DENIED_PREFIX], ids=["none", "prefix"])
def test_an_id_does_not_tell_that_a_topic_exists(
    broker: Broker, authorizer: Authorizer, rules: list[Binding]
) -> None:
    authorizer.add(rules)
    there = Named("", broker.context.topic_id(THERE))
    for api, (first, make) in BY_ID.items():
        for version in range(first, BY_EXCHANGE[api].api.max_version + 1):
            about = answer(broker, make(there), version)
            other = answer(broker, make(Named("", MISSING_ID)), version)
            assert about.replace(there.topic_id, MISSING_ID) == other, f"{api} v{version}"
            assert codes(BY_EXCHANGE[api].response.decode(about, version)) == {ErrorCode.UNKNOWN_TOPIC_ID}


@pytest.mark.parametrize("rules", [NOTHING, DENIED_PREFIX], ids=["none", "prefix"])
def test_lists_leave_out_what_may_not_be_described(
    broker: Broker, authorizer: Authorizer, rules: list[Binding]
) -> None:
    authorizer.add(rules)
    for api, make in LISTS.items():
        for version in offered(broker)[api]:
            asked: Any = make(Named(THERE, NO_UUID))
            if api == "Metadata" and not version:
                asked.topics = []
            found = answer(broker, asked, version)
            assert THERE.encode() not in found, f"{api} v{version}"


def test_with_permission_nothing_is_refused(broker: Broker, authorizer: Authorizer) -> None:
    """What the other tests compare is not refused for another reason."""
    authorizer.add([*(allow(type, "*") for type in RULED), allow(ResourceType.CLUSTER, CLUSTER_NAME)])
    for api, versions in offered(broker).items():
        if api in REQUESTS and api not in ("DeleteTopics", "DeleteGroups", "JoinGroup", "DeleteAcls"):
            for version in (versions[0], versions[-1]):
                found = answer(broker, REQUESTS[api](Named(MISSING, MISSING_ID)), version)
                assert not codes(BY_EXCHANGE[api].response.decode(found, version)) & REFUSALS, api
