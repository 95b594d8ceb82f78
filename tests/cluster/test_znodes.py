"""Paths and contents of ZooKeeper nodes as Kafka 2.x and 0.7 write them."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.cluster.zookeeper import contents, paths
from embedlog.errors import CorruptZnode, InvalidArgument

PATHS = [
    ("/brokers/ids/7", "broker", {"broker": 7}),
    ("/brokers/seqid", "broker_sequence", {}),
    ("/brokers/topics/my.topic", "topic", {"topic": "my.topic"}),
    ("/brokers/topics/t/partitions/12/state", "partition_state", {"topic": "t", "partition": 12}),
    ("/brokers/topics/t/0", "topic_of_broker", {"topic": "t", "broker": 0}),
    ("/controller", "controller", {}),
    ("/controller_epoch", "controller_epoch", {}),
    ("/config/topics/t", "topic_config", {"topic": "t"}),
    ("/admin/delete_topics/t", "deletion", {"topic": "t"}),
    ("/cluster/id", "cluster_id", {}),
    ("/latest_producer_id_block", "producer_ids", {}),
    ("/consumers/g/ids/host:1-a", "consumer", {"group": "g", "consumer": "host:1-a"}),
    ("/consumers/g/offsets/t/3", "offset", {"group": "g", "topic": "t", "partition": 3}),
    ("/consumers/g/owners/t/3", "owner", {"group": "g", "topic": "t", "partition": 3}),
    ("/kafka-acl/Topic/*", "acl", {"resource_type": "Topic", "name": "*"}),
    ("/kafka-acl-extended/prefixed/Group/7", "prefixed_acl", {"resource_type": "Group", "name": "7"}),
    ("/consumers/g/owners/t/1-3", "owner", {"group": "g", "topic": "t", "partition": "1-3"}),
]


@pytest.mark.parametrize(("path", "kind", "values"), PATHS)
def test_a_path_is_built_and_parsed(path: str, kind: str, values: dict[str, Any]) -> None:
    assert getattr(paths, kind)(**values) == path
    assert paths.parse(path) == (kind, values)


@pytest.mark.parametrize(
    "path",
    ["/", "/brokers/ids", "/brokers/ids/x", "/brokers/ids/01", "/consumers/g/ids", "/controller/x", ""],
)
def test_other_paths_are_none_of_ours(path: str) -> None:
    assert paths.parse(path) is None


def test_parents_of_a_path() -> None:
    assert paths.consumers("g") == "/consumers/g/ids"
    assert paths.offset("g", "t", 0).startswith(paths.offsets("g", "t") + "/")
    assert paths.owner("g", "t", 0).startswith(paths.owners("g", "t") + "/")
    assert paths.partition_state("t", 0).startswith(paths.partitions("t") + "/")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\x00b", "a\nb", "\ud800"])
@pytest.mark.parametrize("build", [paths.topic, paths.topic_config, paths.consumers, paths.deletion])
def test_a_name_stays_within_its_path_segment(build: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be a name"):
        build(name)


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**31 - 1))
def test_built_paths_are_parsed(group: str, topic: str, partition: int) -> None:
    try:
        path = paths.owner(group, topic, partition)
    except InvalidArgument:
        return
    assert paths.parse(path) == ("owner", {"group": group, "topic": topic, "partition": partition})


# What Kafka 2.8 wrote, but for the names.
BROKER = (
    '{"version":5,"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,'
    '"timestamp":"1700000000000","listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"features":{}}'
)
TOPIC = (
    '{"version":3,"topic_id":"l7S--x86QoGx5Onftu4grw","partitions":{"0":[1,2],"1":[2,3],"10":[3]},'
    '"adding_replicas":{},"removing_replicas":{}}'
)
GOLDEN = [
    (contents.Broker("h", 9092, 1_700_000_000_000).encode(), BROKER),
    (contents.TopicAssignment({10: [3], 0: [1, 2], 1: [2, 3]}, "l7S--x86QoGx5Onftu4grw").encode(), TOPIC),
    (
        contents.TopicAssignment({0: [1]}).encode(),
        '{"version":2,"partitions":{"0":[1]},"adding_replicas":{},"removing_replicas":{}}',
    ),
    (
        contents.LeaderAndIsr(1, 4, (1, 2), 9).encode(),
        '{"version":1,"leader":1,"leader_epoch":4,"controller_epoch":9,"isr":[1,2]}',
    ),
    (
        contents.Controller(3, 1_700_000_000_000).encode(),
        '{"version":1,"brokerid":3,"timestamp":"1700000000000"}',
    ),
    (contents.encode_config({"retention.ms": "1"}), '{"version":1,"config":{"retention.ms":"1"}}'),
    (contents.encode_cluster_id("oduQod48SdC9vAi9DYTtQw"), '{"version":"1","id":"oduQod48SdC9vAi9DYTtQw"}'),
    (
        contents.ProducerIds(1, 1000, 1999).encode(),
        '{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}',
    ),
    (
        contents.Subscription({"clicks": 2}, "static", 1_700_000_000_000).encode(),
        '{"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1700000000000"}',
    ),
    (contents.encode_number(4711), "4711"),
    (contents.encode_owner("host:uuid-x", 3), "host:uuid-x-3"),
]


@pytest.mark.parametrize(("made", "golden"), GOLDEN)
def test_contents_are_kafkas(made: bytes, golden: str) -> None:
    assert made.decode() == golden


def test_contents_are_read_again() -> None:
    broker = contents.Broker("h", 9092, 5, "rack1", 99, (("PLAINTEXT", "h", 9092), ("INSIDE", "::1", 9093)))
    assert contents.Broker.decode(broker.encode()) == broker
    assert json.loads(broker.encode())["endpoints"][1] == "INSIDE://[::1]:9093"
    topic = contents.TopicAssignment({0: [1, 2], 1: [2]}, "id", {0: [2]}, {1: [3]})
    assert contents.TopicAssignment.decode(topic.encode()) == topic
    state = contents.LeaderAndIsr(contents.NO_LEADER, 3, (1,), 2)
    assert contents.LeaderAndIsr.decode(state.encode()) == state
    assert contents.Controller.decode(contents.Controller(1, 2).encode()) == (1, 2)
    wish = contents.Subscription({"a.*": 3}, contents.WHITE_LIST, 7)
    assert contents.Subscription.decode(wish.encode()) == wish
    assert contents.ProducerIds.decode(contents.ProducerIds(1, 2, 3).encode()) == (1, 2, 3)
    assert contents.decode_config(contents.encode_config({"a": "b"})) == {"a": "b"}
    assert contents.decode_cluster_id(contents.encode_cluster_id("abc_-")) == "abc_-"
    assert contents.decode_owner(contents.encode_owner("a-b", 12)) == ("a-b", 12)
    assert contents.decode_number(contents.encode_number(-1)) == -1


def test_contents_of_older_versions() -> None:
    v1 = contents.Broker.decode(
        b'{"jmx_port":9999,"timestamp":"1233345666","host":"h","version":1,"port":9092}'
    )
    assert (v1.host, v1.port, v1.endpoints) == ("h", 9092, (("PLAINTEXT", "h", 9092),))
    secure = contents.Broker.decode(
        b'{"version":4,"host":null,"port":-1,"jmx_port":-1,"timestamp":"1","endpoints":["SSL://h:9093"]}'
    )
    assert (secure.host, secure.port) == ("h", 9093)
    assert contents.TopicAssignment.decode(b'{"version":1,"partitions":{"1":[2],"0":[1]}}') == (
        {0: [1], 1: [2]},
        None,
        {},
        {},
    )


def test_contents_of_0_7() -> None:
    for text in (b"127.0.0.1-1328913:h:9092", b"h:9092", b"h-1:h:9092\n"):
        broker = contents.Broker.decode(text)
        assert (broker.host, broker.port) == ("h", 9092)
    assert contents.Subscription.decode(b'{"clicks": 2, "views":1}') == (
        {"clicks": 2, "views": 1},
        "static",
        0,
    )
    assert contents.Subscription.decode(b"*2*a.*") == ({"a.*": 2}, "white_list", 0)
    assert contents.Subscription.decode(b"!1!a|b") == ({"a|b": 1}, "black_list", 0)
    assert contents.decode_number(b"3") == 3


DECODERS = [
    contents.Broker.decode,
    contents.TopicAssignment.decode,
    contents.LeaderAndIsr.decode,
    contents.Controller.decode,
    contents.Subscription.decode,
    contents.ProducerIds.decode,
    contents.decode_config,
    contents.decode_cluster_id,
    contents.decode_number,
    contents.decode_owner,
]
BROKEN = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"version":1,"host":7,"port":"x","partitions":[],"leader":"a","brokerid":true,"subscription":[],"id":[],'
    b'"block_start":"x","config":3}',
    b'{"partitions":{"x":[1],"0":3},"endpoints":["what"],"subscription":{"a":"b"},"broker":1,"leader":1,'
    b'"leader_epoch":1,"controller_epoch":1,"isr":["a"],"id":"not/allowed","config":[1],"brokerid":"1"}',
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("decode", DECODERS)
def test_unreadable_contents_are_named(decode: Any, broken: bytes) -> None:
    with pytest.raises(CorruptZnode):
        decode(broken)


@given(st.binary(max_size=60), st.sampled_from(DECODERS))
def test_garbage_raises_nothing_else(data: bytes, decode: Any) -> None:
    try:
        decode(data)
    except CorruptZnode:
        pass


def test_every_kind_of_path_has_a_function() -> None:
    for kind, _, names in paths._FORMS:
        assert list(inspect.signature(getattr(paths, kind)).parameters) == list(names)
