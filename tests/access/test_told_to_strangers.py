"""What a broker tells clients of errors: nothing of the log that they have not sent.

The requests of api_requests.py, in every version of every API, about things that are missing,
wrong or broken. All else in the log has `hush` in its name: topics, groups, transactional ids, users, the
directory.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from api_requests import (
    BY_EXCHANGE,
    BY_ID,
    LISTS,
    MISSING_ID,
    REQUESTS,
    Named,
    answer,
    made,
    offered,
    request,
)
from test_authorization_matrix import RULED, allow
from wire import Wire

import embedlog
from embedlog import errors
from embedlog.cluster import Broker
from embedlog.errors.public import public_message
from embedlog.files.names import GROUP_SETTINGS_FILE
from embedlog.security.scram import credential_of
from embedlog.store.store import Store
from embedlog.wire.schema import NO_UUID

SECRET: Final = "hush"
MINE: Final = "mine-there"
BROKEN: Final = "mine-broken"
NAMES: Final = (MINE, BROKEN, "mine-missing", "mine-", "mine/../..", "mine-\0", "mine-" + "x" * 300)
"""Those of topics and groups that a client may do all with, if it may do anything."""


@pytest.fixture(scope="module", params=["AclAuthorizer", ""], ids=["acls", "open"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without ACLs, or with those that let an anonymous client do all with what begins with mine-."""
    authorizer = request.param
    with Broker(
        tmp_path_factory.mktemp("told") / f"{SECRET}-log",
        listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms="SCRAM-SHA-256",
        metrics_port=0,
        authorizer_class_name=authorizer,
        super_users=f"User:{SECRET}-boss" if authorizer else "",
    ) as broker:
        assert broker.context.users is not None
        broker.context.users.alter(f"{SECRET}-boss", {"SCRAM-SHA-256": credential_of("SCRAM-SHA-256", "x")})
        log = broker.log
        for topic in (f"{SECRET}-payroll", MINE, BROKEN):
            log.create_topic(topic)
            log.append(topic, b"one")
        log.group(f"{SECRET}-auditors").reset(f"{SECRET}-payroll", to="latest")
        log.group(MINE).reset(MINE, to="latest")
        with log.transaction(f"{SECRET}-ledger") as transaction:
            transaction.append(f"{SECRET}-payroll", b"two")
        store = broker.context.store
        assert isinstance(store, Store)
        store.partition(BROKEN, 0).log.fail(f"fsync of {store.path}/{BROKEN}-0 failed")
        broken = Path(store.path) / GROUP_SETTINGS_FILE
        broken.write_text(json.dumps({"version": 1, "groups": {f"{SECRET}-auditors": {"no.such": 1}}}))
        if broker.context.access is not None:
            broker.context.access.authorizer.add([allow(type, "mine-") for type in RULED])
        yield broker
        broken.unlink()


def texts(message: Any) -> list[str]:
    """All that a response says of errors in words."""
    if isinstance(message, list):
        return [text for each in message for text in texts(each)]
    if not dataclasses.is_dataclass(message):
        return []
    found = []
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        found += [value] if field.name.endswith("error_message") and value else texts(value)
    return found


def wrong(api: str, version: int) -> Iterator[Any]:
    """Requests of an API that fail, or that fail for some of what they name."""
    for name in NAMES:
        if not (api.startswith("Delete") and name in (MINE, BROKEN)):
            yield REQUESTS[api](Named(name, MISSING_ID))
    if api in BY_ID and version >= BY_ID[api][0]:
        yield BY_ID[api][1](Named("", MISSING_ID))
    if api in ("AlterConfigs", "IncrementalAlterConfigs"):
        kind = "AlterableConfig"
        for type in (2, 4, 32, 99):
            for setting, value in (("no.such", "1"), ("retention.ms", "x"), ("delete.policy", "os:remove")):
                config = made(api, kind, name=setting, value=value)
                yield request(
                    api,
                    resources=[
                        made(
                            api,
                            "AlterConfigsResource",
                            resource_type=type,
                            resource_name=name,
                            configs=[config],
                        )
                        for name in NAMES
                    ],
                )
    if api == "CreateTopics":
        for count, factor in ((-5, 1), (1, 3), (1_000_000_000, 1)):
            topics = [
                made(api, "CreatableTopic", name=name, num_partitions=count, replication_factor=factor)
                for name in NAMES
            ]
            yield request(api, topics=topics, timeout_ms=1000, validate_only=True)


def test_errors_name_nothing_that_the_client_has_not_sent(broker: Broker) -> None:
    said = set()
    for api, versions in offered(broker).items():
        if api not in REQUESTS:
            continue
        for version in versions if api == "Produce" else (versions[0], versions[-1]):
            for asked in wrong(api, version):
                body = answer(broker, asked, version)
                words = texts(BY_EXCHANGE[api].response.decode(body, version))
                assert not [text for text in words if SECRET in text], f"{api} v{version}"
                assert not [text for text in words if "/" in text and "mine/" not in text], f"{api} {words}"
                said.update(words)
                if broker.context.access is not None:
                    assert SECRET.encode() not in body, f"{api} v{version}"
    assert "there is no such topic" in said
    assert any("the disk failed" in text for text in said)


def test_a_missing_topic_is_missing_whoever_asks(broker: Broker) -> None:
    """The three requests that named all topics, in words that clients can show."""
    missing = "mine-missing"
    for api, fields in (
        ("DescribeConfigs", {"resources": [made("DescribeConfigs", "DescribeConfigsResource")]}),
        ("IncrementalAlterConfigs", {"resources": [made("IncrementalAlterConfigs", "AlterConfigsResource")]}),
        ("CreatePartitions", {"topics": [made("CreatePartitions", "CreatePartitionsTopic", count=3)]}),
    ):
        [entry] = next(iter(fields.values()))
        if api == "CreatePartitions":
            entry.name = missing
        else:
            entry.resource_type, entry.resource_name = 2, missing
        version = BY_EXCHANGE[api].api.max_version
        body = answer(broker, request(api, **fields), version)
        assert texts(BY_EXCHANGE[api].response.decode(body, version)) == ["there is no such topic"]


def test_health_does_not_tell_where_the_directory_is(broker: Broker) -> None:
    with pytest.raises(OSError) as caught:
        urlopen(f"http://127.0.0.1:{broker.metrics_port}/health")
    said = json.loads(caught.value.read())  # type: ignore[attr-defined]
    assert said["partitions"] == {f"{BROKEN} 0": f"fsync of {BROKEN}-0 failed"}


def test_the_owner_of_the_directory_reads_the_whole_message(broker: Broker) -> None:
    with pytest.raises(errors.TopicNotFound, match=rf"topics: .*{SECRET}-payroll"):
        broker.log.describe_topic("mine-missing")


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_a_text_for_strangers(name: str) -> None:
    """Those whose message is told are about the request alone; a new kind is not told."""
    kind = getattr(errors, name)
    error = kind.__new__(kind)
    error.args = (f"{SECRET} in /{SECRET}",)
    told = public_message(error)
    assert told
    kinds = (errors.InvalidArgument, errors.InvalidType, errors.GroupError, errors.TransactionError)
    others = (
        errors.AuthorizationFailed,
        errors.CompressionUnavailable,
        errors.RecordTooLarge,
        errors.OutOfOrderSequence,
        errors.DuplicateSequence,
        errors.InvalidProducerEpoch,
    )
    assert (SECRET in told) == issubclass(kind, kinds + others), told

    class New(kind):  # type: ignore[misc,valid-type]
        pass

    another = New.__new__(New)
    another.args = error.args
    assert public_message(another) == told


def test_an_error_of_another_kind_is_not_told() -> None:
    assert SECRET not in public_message(KeyError(SECRET))


def test_handlers_send_no_message_of_their_own() -> None:
    """Only the owner's API, on a socket in the directory, sends errors as they are."""
    own = re.compile(r"\bstr\((error|found|failed|refused)\)|message=.*\{error")
    for path in sorted((Path(embedlog.__file__).parent / "cluster/broker/handlers").glob("*.py")):
        if path.name != "log.py":
            assert own.search(path.read_text()) is None, path


def test_lists_are_not_errors(broker: Broker) -> None:
    """The requests above would find something: it is there."""
    if broker.context.access is None:
        asked: Any = LISTS["Metadata"](Named("", NO_UUID))
        with Wire(broker) as wire:
            found = wire.ask(asked, BY_EXCHANGE["Metadata"].api.max_version)
        assert f"{SECRET}-payroll" in {topic.name for topic in found.topics}
