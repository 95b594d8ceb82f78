"""Administration of consumer groups in Python: over a directory, over the wire, beside another writer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from group_administration import administer
from programs import Program

import embedlog
from embedlog import CommittedOffset, Log, OffsetReset, PartitionOffsets, TopicPartition
from embedlog.cluster import Broker

START_MS = 1_700_000_000_000
T0, T1, T2 = (TopicPartition("clicks", number) for number in range(3))


def filled(log: Log) -> Log:
    """Ten records a second apart in each of three partitions. Group billing has read four of the first and
    all of the second."""
    log.create_topic("clicks", 3)
    log.create_topic("idle", 2)
    for partition in range(3):
        for number in range(10):
            log.append("clicks", b"%d" % number, partition=partition, timestamp_ms=START_MS + 1000 * number)
    with log.consumer(group="billing", auto_commit=False) as consumer:
        consumer.assign([T0, T1])
        consumer.commit({T0: CommittedOffset(4, metadata="here"), T1: 10})
    return log


@pytest.fixture(params=["directory", "shared", "wire"])
def admin(request: pytest.FixtureRequest, path: Path) -> Iterator[Log]:
    if request.param == "directory":
        with embedlog.open(path, offsets_topic_num_partitions=3) as log:
            yield filled(log)
    elif request.param == "shared":
        with (
            embedlog.open(path, shared=True, offsets_topic_num_partitions=3),
            embedlog.open(path, shared=True) as client,
        ):
            yield filled(client)
    else:
        with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
            yield filled(log)


def test_groups_are_listed_and_described(admin: Log) -> None:
    assert admin.groups() == ["billing"]
    (found,) = admin.describe_groups()
    assert found == admin.group("billing").describe()
    assert (found.group, found.state, found.members, found.topics) == ("billing", "Empty", (), ["clicks"])
    assert found.lag == 6
    assert [each.lag for each in found.partitions.values()] == [6, 0, None]
    first = found.partitions[T0]
    assert first.committed is not None
    assert (first.committed.offset, first.committed.metadata) == (4, "here")
    assert first.offsets is not None and first.offsets.log_end_offset == 10
    assert found.partitions[T2].committed is None
    assert admin.group("billing").oldest_unread_ms() == START_MS + 4000


def test_a_group_that_is_not_there(admin: Log) -> None:
    group = admin.group("other")
    assert group.offsets() == {}
    with pytest.raises(embedlog.GroupNotFound, match=r"no group 'other' \(groups: billing\)"):
        group.describe()
    for change in (group.members, group.delete, lambda: group.delete_offsets("clicks")):
        with pytest.raises(embedlog.GroupNotFound):
            change()
    with pytest.raises(embedlog.InvalidGroup):
        admin.group("")


def test_members_are_shown_and_keep_the_group_from_being_changed(admin: Log) -> None:
    group = admin.group("billing")
    with admin.consumer("clicks", group="billing", group_instance_id="web-1", client_id="web") as consumer:
        assert consumer.poll(10_000)
        consumer.commit()
        found = group.describe()
        (member,) = found.members
        assert (found.state, found.protocol) == ("Stable", "range")
        assert member.group_instance_id == "web-1"
        assert set(member.partitions) == {T0, T1, T2}
        assert {each.member for each in found.partitions.values()} == {member}
        assert group.members() == (member,)
        before = group.offsets()
        for change in (
            lambda: group.reset(to="earliest"),
            group.delete,
            lambda: group.delete_offsets(["clicks"]),
        ):
            with pytest.raises(embedlog.GroupNotEmpty, match="billing"):
                change()
        assert {name: each.offset for name, each in group.offsets().items()} == {
            name: each.offset for name, each in before.items()
        }
        assert group.reset(to="earliest", dry_run=True)[T0].after == 0


@pytest.mark.parametrize(
    ("to", "partitions", "expected"),
    [
        ("earliest", None, [(4, 0), (10, 0), (None, 0)]),
        ("latest", None, [(4, 10), (10, 10), (None, 10)]),
        (3, 1, [(10, 3)]),
        (10, [2], [(None, 10)]),
        (datetime.fromtimestamp(START_MS / 1000 + 6.5, UTC), None, [(4, 7), (10, 7), (None, 7)]),
        (datetime(2099, 1, 1, tzinfo=UTC), [2, 0], [(None, 10), (4, 10)]),
    ],
)
def test_reset(
    admin: Log,
    to: embedlog.Where,
    partitions: int | list[int] | None,
    expected: list[tuple[int | None, int]],
) -> None:
    group = admin.group("billing")
    before = {name: each.offset for name, each in group.offsets().items()}
    planned = group.reset(to=to, partitions=partitions, dry_run=True)
    assert list(planned.values()) == [OffsetReset(*each) for each in expected]
    assert {name: each.offset for name, each in group.offsets().items()} == before
    assert group.reset("clicks", to=to, partitions=partitions) == planned
    after = before | {name: each.after for name, each in planned.items()}
    assert {name: each.offset for name, each in group.offsets().items()} == after
    with admin.consumer("clicks", group="billing", stop_at_end=True) as consumer:
        left = sum(1 for _ in consumer)
    assert left == sum(10 - after.get(name, 0) for name in (T0, T1, T2))


def test_a_reset_makes_a_group_and_takes_several_topics(admin: Log) -> None:
    made = admin.group("new").reset(["clicks", "idle", "clicks"], to="latest")
    assert {name: each.after for name, each in made.items()} == {
        **dict.fromkeys((T0, T1, T2), 10),
        TopicPartition("idle", 0): 0,
        TopicPartition("idle", 1): 0,
    }
    assert admin.groups() == ["billing", "new"]
    assert admin.group("new").describe().lag == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"to": 5}, embedlog.InvalidArgument, "belongs to one partition: give partitions=0..2"),
        ({"to": 5, "partitions": [0, 1]}, embedlog.InvalidArgument, "belongs to one partition"),
        ({"to": 11, "partitions": 0}, embedlog.OffsetOutOfRange, "clicks 0: offset 11 is outside 0..10"),
        ({"to": -1, "partitions": 0}, embedlog.InvalidArgument, "to must not be negative"),
        ({"to": "end"}, embedlog.InvalidArgument, 'to must be "earliest"'),
        ({"to": 1.5, "partitions": 0}, embedlog.InvalidType, "to must be"),
        ({"to": True, "partitions": 0}, embedlog.InvalidType, "to must be"),
        ({"to": None, "partitions": 0}, embedlog.InvalidType, "to must be"),
        ({"to": "latest", "partitions": 3}, embedlog.PartitionNotFound, "there is no 3"),
        ({"to": "latest", "partitions": "0"}, embedlog.InvalidType, "partition must be int"),
        ({"to": "latest", "topics": "nope"}, embedlog.TopicNotFound, "nope"),
        ({"to": "latest", "topics": [b"clicks"]}, embedlog.InvalidType, "topic must be str"),
        ({"to": "latest", "topics": []}, embedlog.InvalidArgument, "give topics="),
        ({"to": "latest", "dry_run": 1}, embedlog.InvalidType, "dry_run"),
    ],
)
def test_a_mistaken_reset_changes_nothing(
    admin: Log, arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    group = admin.group("billing")
    before = group.offsets()
    for dry in ({}, {"dry_run": True}):
        with pytest.raises(error, match=words):
            group.reset(**{**dry, **arguments})  # type: ignore[arg-type]
    assert group.offsets() == before


def test_delete_offsets_and_groups(admin: Log) -> None:
    group = admin.group("billing")
    group.reset("idle", to="latest")
    group.delete_offsets("clicks")
    assert {name.topic for name in group.offsets()} == {"idle"}
    with pytest.raises(embedlog.InvalidType):
        group.delete_offsets([3])  # type: ignore[list-item]
    group.delete_offsets([])
    group.delete()
    assert admin.groups() == []
    assert group.offsets() == {}


def test_partitions_that_the_lag_does_not_show(path: Path) -> None:
    with embedlog.open(path, offsets_topic_num_partitions=3) as log:
        filled(log).delete_records("clicks", 0, 7)
        coordinator = log.backend.coordinator
        assert coordinator is not None  # a topic that never was, as another program may have written it
        coordinator.commit_offsets("billing", {TopicPartition("gone", 0): CommittedOffset(3)})
        found = log.group("billing").describe().partitions
        assert found[TopicPartition("gone", 0)].offsets is None
        assert found[TopicPartition("gone", 0)].lag is None
        assert found[T0].offsets == PartitionOffsets(7, 10, log.offsets("clicks")[0].flushed_offset)
        assert log.group("billing").oldest_unread_ms() == START_MS + 7000
        coordinator.commit_offsets("billing", {T1: CommittedOffset(99)})
        assert log.group("billing").describe().partitions[T1].lag == 0


def test_beside_another_client(path: Path) -> None:
    """As with Apache Kafka's broker: tests/java/test_group_admin.py."""
    with Broker(path) as broker:
        administer(broker.bootstrap_servers)


WRITER = """
import sys, embedlog
log = embedlog.open(sys.argv[1])
consumer = log.consumer("clicks", group="live", group_instance_id="web-1")
assert consumer.poll(10_000)
consumer.commit()
print("reading", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_only_reads_sees_groups_and_changes_none(
    path: Path, program: Callable[..., Program]
) -> None:
    with embedlog.open(path, offsets_topic_num_partitions=3) as log:
        filled(log)
    with embedlog.open(path, mode="r") as reader:
        assert reader.groups() == ["billing"]
        assert reader.group("billing").describe().lag == 6
        planned = reader.group("billing").reset(to="latest", dry_run=True)
        assert planned[T0] == OffsetReset(4, 10)
        for change in (
            lambda: reader.group("billing").reset(to="latest"),
            reader.group("billing").delete,
            lambda: reader.group("billing").delete_offsets("clicks"),
        ):
            with pytest.raises(embedlog.ReadOnly, match="only its writer can change groups"):
                change()
        writer = program(WRITER, path)
        assert writer.line() == "reading"
        found = reader.group("live").describe()
        assert (found.state, found.generation, len(found.members)) == ("Stable", 1, 1)
        assert set(found.members[0].partitions) == {T0, T1, T2}
        writer.process.send_signal(signal.SIGKILL)
        writer.process.wait()
        found = reader.group("live").describe()
        assert (found.state, found.generation, found.members) == ("Empty", 1, ())
        assert reader.groups() == ["billing", "live"]
        with pytest.raises(embedlog.GroupNotFound):
            reader.group("other").describe()
        stale = reader.group("live")
    with pytest.raises(embedlog.Closed):
        stale.describe()
    with pytest.raises(embedlog.Closed):
        stale.delete()


def test_a_log_without_groups(log: Log, path: Path) -> None:
    assert log.groups() == log.describe_groups() == []
    with embedlog.open(path, mode="r") as reader:
        assert reader.groups() == reader.describe_groups() == []
        with pytest.raises(embedlog.GroupNotFound, match="none yet"):
            reader.group("g").describe()


def test_members_of_another_kind_have_no_partitions(path: Path) -> None:
    """Kafka Connect's workers form groups, too."""
    with embedlog.open(path) as log:
        coordinator = log.backend.coordinator
        assert coordinator is not None
        joined = coordinator.join_group(
            "connect", "", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocols=[("p", b"\xff")]
        ).result()
        coordinator.sync_group("connect", joined.member_id, joined.generation, {joined.member_id: b"\xff"})
        (member,) = log.group("connect").describe().members
        assert member.partitions == ()
