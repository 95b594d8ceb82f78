"""Every setting of Kafka 4.3's brokers, topics and groups is supported, or known with what becomes of it.

kafka_4_3_settings.tsv has them with their types and defaults, as Kafka 4.3.1's own definitions say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from api_requests import made, request
from wire import Wire

from embedlog.cluster import Broker
from embedlog.cluster.broker.group_settings import FIXED as GROUP_FIXED
from embedlog.cluster.settings.broker_settings import BrokerSettings
from embedlog.cluster.settings.kafka_settings import KNOWN, with_effect
from embedlog.cluster.settings.topic_configs import FIXED, broker_name
from embedlog.config import LogSettings, TopicSettings, sorted_settings
from embedlog.errors import InvalidSetting, UnknownSetting
from embedlog.synonyms import BROKER_ARGUMENTS, plain
from embedlog.wire.error_codes import ErrorCode

PAGE: Final = Path(__file__).parents[2] / "docs/reference/settings.md"


class Setting(NamedTuple):
    kind: str
    name: str
    type: str
    default: str


def _settings() -> Iterator[Setting]:
    for line in (Path(__file__).parent / "kafka_4_3_settings.tsv").read_text().splitlines():
        kind, name, type, default = line.split("\t")
        if default.startswith("class "):
            default = default.removeprefix("class ")
        elif default.startswith("["):
            default = default[1:-1].replace(", ", ",")
        yield Setting(kind, name, type, "" if default in ("null", "(required)") else default)


ALL: Final = list(_settings())
OF_BROKER: Final = [each for each in ALL if each.kind == "broker"]
REFUSED: Final = {  # with their defaults: more than one replica, and another directory
    "log.dir",
    "offsets.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
}
OWN: Final = {"listeners", "log.dirs", "sasl.enabled.mechanisms", "ssl.keystore.type", "ssl.truststore.type"}
"""A broker with Kafka's defaults of these would not start here: a port that may be taken, GSSAPI, JKS."""


def parsed(given: dict[str, Any], path: str | None = None) -> dict[str, Any]:
    of_broker, of_log, of_topics = sorted_settings(
        with_effect(given, path), BrokerSettings, LogSettings, TopicSettings
    )
    BrokerSettings().with_changes(of_broker)
    LogSettings().with_changes(of_log)
    TopicSettings().with_changes(of_topics)
    return of_broker | of_log | of_topics


def test_no_setting_of_a_broker_is_unknown() -> None:
    """With its default each is accepted, but for those that ask for what is not so here."""
    refused = {}
    for name, value in ((each.name, _default(each)) for each in OF_BROKER):
        if plain(name) in BROKER_ARGUMENTS or name == "log.dirs":
            continue
        try:
            parsed({name: value})
        except InvalidSetting as error:
            refused[name] = str(error)
    assert refused.keys() == REFUSED, refused
    assert all(name in message for name, message in refused.items()), refused


def _default(setting: Setting) -> str:
    if setting.name == "process.roles":
        return "broker"
    return "1" if not setting.default and setting.type in ("INT", "LONG") else setting.default


def test_a_broker_starts_with_the_defaults_of_kafka(caplog: pytest.LogCaptureFixture) -> None:
    given = {each.name: each.default for each in OF_BROKER if each.default}
    left_out = REFUSED | OWN | {"log.retention.hours", "log.roll.hours", "log.roll.jitter.hours"}
    with Broker(**{name: value for name, value in given.items() if name not in left_out}) as broker:
        broker.log.append("t", b"x") if "t" in broker.log.topics() else broker.log.create_topic("t")
        assert broker.settings.broker_id == 0
    assert "settings of Kafka's brokers without effect here: add.partitions.to.txn" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("default.replication.factor", 3, "each partition has one replica"),
        ("min.insync.replicas", "2", "each partition has one replica"),
        ("transaction.state.log.min.isr", "2", "each partition has one replica"),
        ("log.cleaner.enable", "false", "compacted"),
        ("log.cleaner.enable", False, "compacted"),
        ("remote.log.storage.system.enable", True, "tiered storage"),
        ("transaction.two.phase.commit.enable", "true", "one phase"),
        ("create.topic.policy.class.name", "com.example.Policy", "load no classes"),
        ("principal.builder.class", "com.example.Names", "load no classes"),
        ("sasl.server.callback.handler.class", "com.example.Users", "embedlog users"),
        ("ssl.keystore.key", "-----BEGIN", "ssl_keystore_location"),
        ("security.inter.broker.protocol", "SSL", "inter_broker_listener_name"),
        ("process.roles", "controller", "ZooKeeper"),
        ("config.providers", "file", "values themselves"),
        ("max.connections.per.ip.overrides", "host:3", "all addresses"),
        ("group.consumer.assignors", ["com.example.Assignor"], "uniform"),
        ("log.dirs", "/tmp/kafka-logs", "started with"),
    ],
)
def test_what_would_not_be_done_is_refused(name: str, value: object, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        parsed({name: value})
    with pytest.raises(InvalidSetting, match=why):
        Broker(**{plain(name): value})


def test_names_as_in_toml_and_values_of_its_types(tmp_path: Path) -> None:
    assert parsed({"log_dirs": str(tmp_path)}, str(tmp_path)) == {}
    assert parsed({"group_consumer_assignors": ["uniform", "range"], "log-cleaner-threads": 2}) == {}
    assert parsed({"queued.max.request.bytes": -1})["queued_max_request_bytes"] == 1 << 50
    assert parsed({"node.id": 7}) == {"broker_id": "7"}
    assert parsed({"broker.id": -1}) == {}
    with pytest.raises(InvalidSetting):
        parsed({"broker.id": -2})
    with pytest.raises(UnknownSetting, match=r"log\.cleaner\.treads"):
        parsed({"log.cleaner.treads": 2})


def test_the_value_of_a_secret_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    parsed(
        {"ssl.keystore.password": "hush", "sasl.jaas.config": "hush", "delegation.token.secret.key": "hush"}
    )
    assert "hush" not in caplog.text
    assert "ssl.keystore.password" in caplog.text


def test_a_broker_says_which_settings_have_no_effect() -> None:
    """To a client that wants to change one."""
    with Broker() as broker, Wire(broker) as wire:
        config = made(
            "IncrementalAlterConfigs", "AlterableConfig", name="remote.log.reader.threads", value="3"
        )
        resource = made("IncrementalAlterConfigs", "AlterConfigsResource", resource_type=4, configs=[config])
        resource.resource_name = "0"
        (answer,) = wire.ask(request("IncrementalAlterConfigs", resources=[resource]), 1).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "no tiered storage" in answer.error_message


# -- groups and topics -------------------------------------------------------------------------------------


def altered(wire: Wire, kind: int, name: str, **values: str) -> tuple[int, str]:
    """The code and the message of setting these, and what a group or topic shows then."""
    api = "IncrementalAlterConfigs"
    configs = [
        made(api, "AlterableConfig", name=key.replace("_", "."), value=text) for key, text in values.items()
    ]
    resource = made(api, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    (answer,) = wire.ask(request(api, resources=[resource]), 1).responses
    return answer.error_code, answer.error_message or ""


def shown(wire: Wire, kind: int, name: str) -> dict[str, str]:
    resource = made("DescribeConfigs", "DescribeConfigsResource", resource_type=kind, resource_name=name)
    resource.configuration_keys = None
    (answer,) = wire.ask(request("DescribeConfigs", resources=[resource]), 4).results
    assert not answer.error_code
    return {each.name: each.value for each in answer.configs}


def test_each_setting_of_a_group_is_accepted_and_shown() -> None:
    of_groups = [each for each in ALL if each.kind == "group"]
    with Broker() as broker, Wire(broker) as wire:
        for each in of_groups:
            assert altered(wire, 32, "g", **{plain(each.name): each.default}) == (0, ""), each
        assert {each.name for each in of_groups} == set(shown(wire, 32, "g"))
        assert altered(wire, 32, "g", streams_num_standby_replicas="2") == (0, "")
        assert shown(wire, 32, "g")["streams.num.standby.replicas"] == "0"
    assert set(GROUP_FIXED) < {each.name for each in of_groups}


@pytest.mark.parametrize(
    "setting", [each for each in ALL if each.kind == "topic"], ids=lambda each: each.name
)
def test_each_setting_of_a_topic_is_known(topics: Broker, setting: Setting) -> None:
    if setting.name == "internal.segment.bytes":
        return
    with Wire(topics) as wire:
        code, message = altered(wire, 2, "t", **{plain(setting.name): setting.default})
        assert code in (0, ErrorCode.INVALID_CONFIG)
        assert "unknown" not in message
        assert setting.name in shown(wire, 2, "t")


@pytest.fixture(scope="module")
def topics() -> Iterator[Broker]:
    with Broker() as broker:
        broker.log.create_topic("t")
        yield broker


def test_a_broker_bounds_the_settings_of_groups() -> None:
    with Broker(**{"group.share.min.record.lock.duration.ms": 15_000}) as broker, Wire(broker) as wire:
        code, message = altered(wire, 32, "g", share_record_lock_duration_ms="14999")
        assert code == ErrorCode.INVALID_CONFIG
        assert "share.record.lock.duration.ms must be 15,000 to" in message
        assert altered(wire, 32, "g", share_record_lock_duration_ms="15000") == (0, "")
    with pytest.raises(InvalidSetting, match=r"share.session.timeout.ms must be 1 to 40,000"):
        Broker(group_share_max_session_timeout_ms=40_000)


def test_the_page_lists_them() -> None:
    section = PAGE.read_text().split("### Kafka's settings of a broker without effect\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([a-z0-9.]+)`", section))
    of_topics = set(FIXED) | {broker_name(name) for name in FIXED}
    assert (KNOWN - of_topics) <= listed
    assert listed & KNOWN == KNOWN - of_topics
