"""ConsumerProtocol's bytes: golden ones from kafka-python and aiokafka, and live in both directions."""

import warnings

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.model import TopicPartition
from embedlog.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    same_topics,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas by a call that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

OWNED = (TopicPartition("a", 0), TopicPartition("a", 2))
FULL = Subscription(("a", "b"), None, OWNED, 7, "r1")

# kafka-python 3.0.12: ConsumerProtocolSubscription(...).encode(version=v)
SUBSCRIPTIONS = {
    0: "000000000002000161000162ffffffff",
    1: "000100000002000161000162ffffffff00000001000161000000020000000000000002",
    2: "000200000002000161000162ffffffff0000000100016100000002000000000000000200000007",
    3: "000300000002000161000162ffffffff000000010001610000000200000000000000020000000700027231",
}
# aiokafka 0.14: ConsumerProtocolMemberAssignment(0, [("a", [0, 2]), ("b", [1])], b"ud").encode()
ASSIGNMENT = "0000000000020001610000000200000000000000020001620000000100000001000000027564"
ASSIGNED = Assignment((*OWNED, TopicPartition("b", 1)), b"ud")


def as_version(version: int) -> Subscription:
    return FULL._replace(
        owned_partitions=OWNED if version >= 1 else (),
        generation=7 if version >= 2 else -1,
        rack_id="r1" if version >= 3 else None,
    )


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_golden_subscriptions(version: int) -> None:
    golden = bytes.fromhex(SUBSCRIPTIONS[version])
    assert encode_subscription(FULL, version=version) == golden
    assert decode_subscription(golden) == as_version(version)


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_kafka_python_agrees_on_subscriptions(version: int) -> None:
    theirs = ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=None,
        owned_partitions=[ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[0, 2])],
        generation_id=7,
        rack_id="r1",
    )
    assert encode_subscription(FULL, version=version) == theirs.encode(version=version)
    read = ConsumerProtocolSubscription.decode(encode_subscription(FULL, version=version))
    assert list(read.topics) == ["a", "b"]
    assert read.user_data is None
    if version == 3:
        assert (read.generation_id, read.rack_id) == (7, "r1")
        assert [(t.topic, list(t.partitions)) for t in read.owned_partitions] == [("a", [0, 2])]


def test_aiokafka_agrees_on_subscriptions() -> None:
    theirs = ConsumerProtocolMemberMetadata(0, ["a", "b"], b"ud").encode()
    ours = Subscription(("a", "b"), b"ud")
    assert encode_subscription(ours, version=0) == theirs
    assert decode_subscription(theirs) == ours
    read = ConsumerProtocolMemberMetadata.decode(encode_subscription(ours))
    assert (read.version, read.subscription, read.user_data) == (3, ["a", "b"], b"ud")


def test_golden_assignment() -> None:
    golden = bytes.fromhex(ASSIGNMENT)
    assert encode_assignment(ASSIGNED, version=0) == golden
    assert decode_assignment(golden) == ASSIGNED
    assert encode_assignment(ASSIGNED) == b"\0\1" + golden[2:]
    assert decode_assignment(b"\0\1" + golden[2:]) == ASSIGNED


def test_both_libraries_agree_on_assignments() -> None:
    theirs = ConsumerProtocolMemberAssignment(0, [("a", [0, 2]), ("b", [1])], b"ud").encode()
    assert encode_assignment(ASSIGNED, version=0) == theirs
    read = ConsumerProtocolMemberAssignment.decode(encode_assignment(ASSIGNED))
    assert [tuple(p) for p in read.partitions()] == list(ASSIGNED.partitions)
    kafka_python = ConsumerProtocolAssignment.decode(encode_assignment(ASSIGNED))
    assert [(t.topic, list(t.partitions)) for t in kafka_python.assigned_partitions] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]
    assert kafka_python.encode(version=1) == encode_assignment(ASSIGNED, version=1)


def test_a_forgotten_member_has_nothing() -> None:
    assert decode_assignment(b"") == Assignment(())


def test_newer_versions_are_read_as_the_newest_known() -> None:
    newer = b"\x00\x09" + bytes.fromhex(SUBSCRIPTIONS[3])[2:] + b"whatever comes"
    assert decode_subscription(newer) == FULL
    assert decode_assignment(b"\x7f\xff" + bytes.fromhex(ASSIGNMENT)[2:] + b"more") == ASSIGNED


def test_the_instance_id_comes_from_the_join() -> None:
    data = encode_subscription(FULL)
    assert decode_subscription(data, group_instance_id="i").group_instance_id == "i"


def test_negative_and_unknown_versions() -> None:
    with pytest.raises(CorruptRecord, match="version -1"):
        decode_subscription(b"\xff\xff" + bytes(20))
    with pytest.raises(CorruptRecord, match="version -2"):
        decode_assignment(b"\xff\xfe" + bytes(20))
    with pytest.raises(InvalidArgument, match="version 4"):
        encode_subscription(FULL, version=4)
    with pytest.raises(InvalidArgument, match="version -1"):
        encode_assignment(ASSIGNED, version=-1)


def test_cut_bytes_are_damage() -> None:
    subscription, assignment = bytes.fromhex(SUBSCRIPTIONS[3]), bytes.fromhex(ASSIGNMENT)
    for size in range(len(subscription)):
        with pytest.raises(CorruptRecord):
            decode_subscription(subscription[:size])
    for size in range(1, len(assignment)):
        with pytest.raises(CorruptRecord):
            decode_assignment(assignment[:size])


def test_hostile_lengths_are_refused_at_once() -> None:
    with pytest.raises(CorruptRecord, match="topics at byte 6: 2147483647 elements, 50 bytes remain"):
        decode_subscription(bytes.fromhex("00007fffffff") + bytes(50))
    with pytest.raises(
        CorruptRecord, match=r"partitions\.partitions at byte 13: 536870912 elements, 50 bytes remain"
    ):
        decode_assignment(bytes.fromhex("00000000000100016120000000") + bytes(50))
    with pytest.raises(CorruptRecord, match="user_data at byte 10: 2147483647 bytes, 50 remain"):
        decode_assignment(bytes.fromhex("0000000000007fffffff") + bytes(50))


def test_same_topics_ignores_changes_of_a_restart() -> None:
    one = encode_subscription(FULL)
    restarted = encode_subscription(Subscription(("b", "a"), b"new"), version=1)
    assert same_topics(one, one)
    assert same_topics(one, restarted)
    assert not same_topics(one, encode_subscription(Subscription(("a",))))
    assert same_topics(b"?", b"?")
    assert not same_topics(b"?", one)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOPICS = st.text(st.characters(codec="utf-8"), max_size=8)
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(-(2**31), 2**31 - 1))


def by_topic(partitions: list[TopicPartition]) -> tuple[TopicPartition, ...]:
    """The order that survives: topics as they first appear, partitions as given."""
    topics = list(dict.fromkeys(topic for topic, _ in partitions))
    return tuple(sorted(partitions, key=lambda p: topics.index(p.topic)))


@unhurried
@given(
    st.lists(TOPICS, max_size=5),
    st.none() | st.binary(),
    st.lists(PARTITIONS, max_size=8),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | TOPICS,
)
def test_subscriptions_round_trip(
    topics: list[str], user_data: bytes | None, owned: list[TopicPartition], generation: int, rack: str | None
) -> None:
    subscription = Subscription(tuple(topics), user_data, by_topic(owned), generation, rack)
    assert decode_subscription(encode_subscription(subscription)) == subscription


@unhurried
@given(st.lists(PARTITIONS, max_size=8), st.none() | st.binary())
def test_assignments_round_trip(partitions: list[TopicPartition], user_data: bytes | None) -> None:
    assignment = Assignment(by_topic(partitions), user_data)
    assert decode_assignment(encode_assignment(assignment)) == assignment


@unhurried
@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except CorruptRecord:
            pass
