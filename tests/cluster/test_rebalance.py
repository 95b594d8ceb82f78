"""The documents' rebalance as a pure function: the result for each member, and that all members agree."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.cluster.classic.rebalance import ConsumerThread, assigned_to, by_broker, dealt, streams_for
from embedlog.cluster.zookeeper.contents import BLACK_LIST, STATIC, WHITE_LIST, Subscription
from embedlog.model import TopicPartition

TOPICS = ("clicks", "views", "orders")
IDS = st.text(string.ascii_lowercase + "-:0123456789", min_size=1, max_size=8)
BROKERS = st.integers(0, 5)
REPLICAS = st.lists(st.lists(BROKERS, min_size=1, max_size=3, unique=True), max_size=40)
FILTERS = st.sampled_from(["clicks", "clicks,views", "c.*", ".*", "nothing", "(views|orders)", "("])
SUBSCRIPTIONS = st.one_of(
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 4), max_size=3).map(
        lambda topics: Subscription(topics, STATIC, 0)
    ),
    st.builds(
        lambda text, count, kind: Subscription({text: count}, kind, 0),
        FILTERS,
        st.integers(1, 4),
        st.sampled_from([WHITE_LIST, BLACK_LIST]),
    ),
)
GROUPS = st.dictionaries(IDS, SUBSCRIPTIONS, min_size=1, max_size=8)
CLUSTERS = st.fixed_dictionaries(
    {topic: REPLICAS.map(lambda parts: dict(enumerate(parts))) for topic in TOPICS}
)


@given(GROUPS, CLUSTERS)
def test_every_partition_has_one_owner_and_no_more(
    members: dict[str, Subscription], topics: dict[str, dict[int, list[int]]]
) -> None:
    owners: dict[TopicPartition, str] = {}
    for member in members:
        for name in assigned_to(member, members, topics):
            assert owners.setdefault(name, member) == member, name
    read = {topic for topic in topics if any(streams_for(topic, each) for each in members.values())}
    assert set(owners) == {TopicPartition(topic, number) for topic in read for number in topics[topic]}


@given(GROUPS, CLUSTERS)
def test_streams_of_a_topic_differ_by_one_partition_at_most(
    members: dict[str, Subscription], topics: dict[str, dict[int, list[int]]]
) -> None:
    for topic in topics:
        loads = {
            ConsumerThread(member, number): 0
            for member, each in members.items()
            for number in range(streams_for(topic, each))
        }
        for member in members:
            for name, number in assigned_to(member, members, topics).items():
                if name.topic == topic:
                    loads[ConsumerThread(member, number)] += 1
        counts = [loads[thread] for thread in sorted(loads)]
        assert counts == sorted(counts, reverse=True)  # who comes first takes the remainder
        assert not counts or counts[0] - counts[-1] <= 1


@given(GROUPS, CLUSTERS, st.randoms())
def test_the_order_of_notifications_does_not_matter(
    members: dict[str, Subscription], topics: dict[str, dict[int, list[int]]], random: object
) -> None:
    def shuffled(given: dict) -> dict:  # type: ignore[type-arg]
        items = list(given.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other_topics = {topic: shuffled(parts) for topic, parts in shuffled(topics).items()}
    for member in members:
        assert assigned_to(member, members, topics) == assigned_to(member, shuffled(members), other_topics)


@given(REPLICAS, st.dictionaries(IDS, st.integers(1, 4), min_size=1, max_size=8))
def test_a_consumer_connects_to_as_few_brokers_as_a_run_of_its_size_can(
    replicas: list[list[int]], consumers: dict[str, int]
) -> None:
    """Of the brokers of a consumer's run, all but the first and the last have no other reader."""
    brokers = {number: each[0] for number, each in enumerate(replicas)}
    order = by_broker(dict(enumerate(replicas)))
    threads = [ConsumerThread(each, number) for each, count in consumers.items() for number in range(count)]
    owner = {number: thread.consumer for number, thread in dealt(order, threads).items()}
    runs = {each: [brokers[number] for number in order if owner[number] == each] for each in consumers}
    for consumer, run in runs.items():
        assert run == sorted(run)
        inner = set(run) - {run[0], run[-1]} if run else set()
        for broker in inner:
            readers = {owner[number] for number in order if brokers[number] == broker}
            assert readers == {consumer}
    used = [each for each in consumers if runs[each]]
    connections = sum(len(set(run)) for run in runs.values())
    # Each border between two consumers splits one broker at most.
    assert connections <= len(set(brokers.values())) + max(len(used) - 1, 0)


@pytest.mark.parametrize(
    ("partitions", "threads", "sizes"),
    [(7, 3, [3, 2, 2]), (3, 7, [1, 1, 1, 0, 0, 0, 0]), (6, 3, [2, 2, 2]), (0, 2, [0, 0]), (10, 1, [10])],
)
def test_the_remainder_goes_to_the_first(partitions: int, threads: int, sizes: list[int]) -> None:
    streams = [ConsumerThread("c", number) for number in range(threads)]
    found = dealt(range(partitions), streams)
    assert [sum(owner == each for owner in found.values()) for each in streams] == sizes


def test_streams_are_ordered_by_their_names_as_kafka_orders_them() -> None:
    """So that a consumer of Kafka's in the same group arrives at the same owners."""
    threads = [ConsumerThread("a", number) for number in range(12)]
    threads += [ConsumerThread("a-1", 0), ConsumerThread("a\uff5e", 0), ConsumerThread("a\U0001f600", 0)]
    expected = ["a-0", "a-1", "a-1-0", "a-10", "a-11", *(f"a-{n}" for n in range(2, 10))]
    expected += ["a\U0001f600-0", "a\uff5e-0"]  # Java compares UTF-16
    assert [str(thread) for thread in dealt(range(15), reversed(threads)).values()] == expected


def test_a_consumer_with_more_than_ten_streams_agrees_with_kafkas() -> None:
    """26 partitions for 24 streams: the first two get two each, then the streams 10 and 11 come."""
    members = {each: Subscription({"t": 12}, STATIC, 0) for each in ("host_b", "host_a")}
    found = assigned_to("host_a", members, {"t": {number: [0] for number in range(26)}})
    assert found[TopicPartition("t", 4)] == 10
    assert [number for _, number in sorted(found.items())] == [0, 0, 1, 1, 10, 11, *range(2, 10)]


def test_no_members_and_no_partitions() -> None:
    assert dealt([0, 1], []) == {}
    assert by_broker({0: [], 1: [2], 2: [1]}) == [0, 2, 1]


@pytest.mark.parametrize(
    ("expression", "kind", "topic", "streams"),
    [
        ("clicks", WHITE_LIST, "clicks", 2),
        ("clicks", WHITE_LIST, "clicks2", 0),
        ("clicks,views", WHITE_LIST, "views", 2),
        (" 'clicks , views' ", WHITE_LIST, "views", 2),
        ("clicks,views", BLACK_LIST, "views", 0),
        ("clicks,views", BLACK_LIST, "orders", 2),
        ("c.*", WHITE_LIST, "clicks", 2),
        (".*", WHITE_LIST, "__consumer_offsets", 0),
        ("x", BLACK_LIST, "__consumer_offsets", 0),
    ],
)
def test_filters(expression: str, kind: str, topic: str, streams: int) -> None:
    assert streams_for(topic, Subscription({expression: 2}, kind, 0)) == streams


def test_internal_topics_are_read_if_wanted() -> None:
    everything = Subscription({".*": 1}, WHITE_LIST, 0)
    assert streams_for("__consumer_offsets", everything, internal=True) == 1
    assert streams_for("__consumer_offsets", Subscription({"__consumer_offsets": 1}, STATIC, 0)) == 1
