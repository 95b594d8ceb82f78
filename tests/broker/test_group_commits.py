"""Committed offsets over raw connections: every version, refusals and expiration."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Clock, FaultyFileSystem, open_log, store_of
from housekeeping import housekeep
from members import G, Member
from rounds import first_is_quick
from wire import Wire
from zookeepers import eventually

import embedlog
from embedlog import CommittedOffset, TopicPartition
from embedlog.cluster import Broker
from embedlog.files.filesystem import FileSystem
from embedlog.open import log_over
from embedlog.store.store import Store
from embedlog.wire.apis.delete_groups import DeleteGroupsRequest
from embedlog.wire.apis.describe_groups import DescribeGroupsRequest
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.list_groups import ListGroupsRequest
from embedlog.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from embedlog.wire.apis.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from embedlog.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from embedlog.wire.error_codes import ErrorCode

COMMIT_MAX = FETCH_MAX = 10
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic("t", partitions=2)


def commit_request(
    broker: Broker, offsets: dict[TopicPartition, int], *, group: str = G, metadata: str = "", **more: Any
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for name, offset in offsets.items():
        of = topics.setdefault(name.topic, OffsetCommitRequestTopic(name=name.topic))
        if name.topic in broker.log.topics():
            of.topic_id = broker.context.topic_id(name.topic)
        else:
            of.topic_id = b"no such topic id"
        of.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=name.partition, committed_offset=offset, committed_metadata=metadata
            )
        )
    return OffsetCommitRequest(group_id=group, group_instance_id=None, topics=list(topics.values()), **more)


def commit(
    broker: Broker,
    wire: Wire,
    offsets: dict[TopicPartition, int],
    *,
    version: int = COMMIT_MAX,
    member: Member | None = None,
    **more: Any,
) -> list[int]:
    """The error codes, in the order of the offsets."""
    if member is not None:
        more["member_id"], more["generation_id_or_member_epoch"] = member.member_id, member.generation
    response = wire.ask(commit_request(broker, offsets, **more), version)
    return [part.error_code for topic in response.topics for part in topic.partitions]


def fetch_request(
    broker: Broker, version: int, names: list[TopicPartition] | None, *groups: str
) -> OffsetFetchRequest:
    if version < 8:
        topics = (
            None
            if names is None
            else [OffsetFetchRequestTopic(name=n.topic, partition_indexes=[n.partition]) for n in names]
        )
        return OffsetFetchRequest(group_id=groups[0], topics=topics)
    asked = []
    for group in groups:
        each = None
        if names is not None:
            each = [OffsetFetchRequestTopics(name=n.topic, partition_indexes=[n.partition]) for n in names]
            for topic in each:
                there = topic.name in broker.log.topics()
                topic.topic_id = broker.context.topic_id(topic.name) if there else b"no such topic id"
        asked.append(OffsetFetchRequestGroup(group_id=group, member_id=None, topics=each))
    return OffsetFetchRequest(groups=asked)


def fetched(
    broker: Broker,
    wire: Wire,
    names: list[TopicPartition] | None = None,
    *,
    version: int = 9,
    group: str = G,
) -> dict[TopicPartition, tuple[int, int]]:
    """Offset and error code of each. A broker that has just started may still load its groups."""
    error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    while error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        response = wire.ask(fetch_request(broker, version, names, group), version)
        if version >= 8:
            (response,) = response.groups
        error_code = response.error_code
    assert error_code == 0
    return {
        TopicPartition(topic.name or str(broker.context.topic_name(topic.topic_id)), part.partition_index): (
            part.committed_offset,
            part.error_code,
        )
        for topic in response.topics
        for part in topic.partitions
    }


# -- every version ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(COMMIT_MAX + 1))
def test_a_member_commits_in_every_version(broker: Broker, wire: Wire, version: int) -> None:
    member = Member(wire)
    if version:  # in the first there was no membership
        member.settle()
    offsets = {T0: 5, T1: 7}
    assert commit(
        broker, wire, offsets, version=version, member=member if version else None, metadata="mark"
    ) == [0, 0]
    found = broker.context.groups.committed_offsets(G)
    assert {name: committed.offset for name, committed in found.items()} == offsets
    assert {committed.metadata for committed in found.values()} == {"mark"}


@pytest.mark.parametrize("version", range(FETCH_MAX + 1))
def test_commits_are_fetched_in_every_version(broker: Broker, wire: Wire, version: int) -> None:
    broker.context.groups.commit_offsets(G, {T1: CommittedOffset(7, 3, "mark")})
    missing = ErrorCode.NONE if version else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = fetched(broker, wire, [T0, T1], version=version)
    assert found == {T0: (-1, missing), T1: (7, 0)}
    if version >= 2:
        assert fetched(broker, wire, version=version) == {T1: (7, 0)}
        assert fetched(broker, wire, version=version, group="nobody") == {}


def test_epoch_and_metadata_come_back(broker: Broker, wire: Wire) -> None:
    broker.context.groups.commit_offsets(G, {T1: CommittedOffset(7, 3, "mark")})
    for version in (5, 8):
        response = wire.ask(fetch_request(broker, version, [T1], G), version)
        of = response.groups[0] if version >= 8 else response
        part = of.topics[0].partitions[0]
        assert (part.committed_leader_epoch, part.metadata) == (3, "mark")


def test_several_groups_in_one_request(broker: Broker, wire: Wire) -> None:
    broker.context.groups.commit_offsets("a", {T0: CommittedOffset(1)})
    broker.context.groups.commit_offsets("b", {T1: CommittedOffset(2)})
    response = wire.ask(fetch_request(broker, 8, None, "a", "b", "c"), 8)
    assert [(group.group_id, group.error_code) for group in response.groups] == [
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]
    assert [
        [topic.partitions[0].committed_offset for topic in group.topics] for group in response.groups
    ] == [
        [1],
        [2],
        [],
    ]


# -- refusals ---------------------------------------------------------------------------------------------


def test_partitions_are_refused_one_by_one(broker: Broker, wire: Wire) -> None:
    offsets = {T0: 3, TopicPartition("t", 2): 3, TopicPartition("no", 0): 3}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sorted(commit(broker, wire, offsets, version=9)) == sorted([0, unknown, unknown])
    assert ErrorCode.UNKNOWN_TOPIC_ID in commit(broker, wire, offsets, version=10)
    assert broker.context.groups.committed_offsets(G).keys() == {T0}
    assert fetched(broker, wire, [TopicPartition("no", 0)], version=9) == {TopicPartition("no", 0): (-1, 0)}
    (by_id,) = fetched(broker, wire, [TopicPartition("no", 0)], version=10).values()
    assert by_id == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", first_is_quick(range(COMMIT_MAX, -1, -1), 2))
def test_negative_offsets_are_kept_and_count_as_none(
    broker: Broker, wire: Wire, version: int, tmp_path: Path
) -> None:
    """kafkajs resets a group with -1 and -2, and reads back which of them it was."""
    broker.log.append("t", b"first", partition=0)
    assert commit(broker, wire, {T0: 1, T1: 1}, version=version) == [0, 0]
    assert commit(broker, wire, {T0: -2, T1: -(1 << 63)}, version=version) == [0, 0]
    kept = {T0: (-2, 0), T1: (-(1 << 63), 0)}
    assert fetched(broker, wire, [T0, T1]) == fetched(broker, wire) == kept
    broker.log.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy", mode="r") as reader:
        assert reader.groups() == [G]
        assert reader.group(G).offsets() == {}
    with Broker(tmp_path / "copy") as again, Wire(again) as to_it:
        assert fetched(again, to_it) == kept
    with broker.log.consumer("t", group=G, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(10)] == [b"first"]


def test_too_much_metadata(broker: Broker, wire: Wire) -> None:
    most = broker.settings.offset_metadata_max_bytes
    assert commit(broker, wire, {T0: 1}, metadata="x" * most) == [0]
    assert commit(broker, wire, {T0: 2}, metadata="x" * most + "x") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert broker.context.groups.committed_offsets(G)[T0].offset == 1


def test_commits_of_strangers(broker: Broker, wire: Wire) -> None:
    member = Member(wire)
    member.member_id, member.generation = "nobody", 1
    assert commit(broker, wire, {T0: 1}, member=member, version=8) == [ErrorCode.ILLEGAL_GENERATION]
    assert commit(broker, wire, {T0: 1}, member=member, version=9) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert broker.context.groups.list_groups() == []
    member = Member(wire)
    member.settle()
    assert commit(broker, wire, {T0: 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    member.generation += 1
    assert commit(broker, wire, {T0: 1}, member=member) == [ErrorCode.ILLEGAL_GENERATION]
    assert broker.context.groups.committed_offsets(G) == {}


def test_a_fenced_instance_cannot_commit(broker: Broker, wire: Wire) -> None:
    with Wire(broker) as other:
        before = Member(wire, group_instance_id="one")
        before.settle()
        assert Member(other, group_instance_id="one").join().error_code == 0
        request = commit_request(
            broker, {T0: 1}, member_id=before.member_id, generation_id_or_member_epoch=before.generation
        )
        request.group_instance_id = "one"
        codes = [part.error_code for part in wire.ask(request, 9).topics[0].partitions]
        assert codes == [ErrorCode.FENCED_INSTANCE_ID]


def test_no_more_groups_than_the_maximum_by_commits_either() -> None:
    with Broker(max_groups=1) as broker, Wire(broker) as wire:
        broker.log.create_topic("t", partitions=2)
        assert commit(broker, wire, {T0: 1}) == [0]
        assert commit(broker, wire, {T0: 1}, group="other") == [ErrorCode.POLICY_VIOLATION]
        assert commit(broker, wire, {T0: 2}) == [0]


# -- a disk that stands still -----------------------------------------------------------------------------


class Stalling(FileSystem):
    """The real one, but reads or fsyncs of the offsets topic do not come back before `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.reached = threading.Event()
        self._offsets: set[int] = set()

    def open_read(self, path: str) -> int:
        return self._noted(super().open_read(path), path)

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        return self._noted(super().open_write(path, create=create, truncate=truncate), path)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self._stand(fd)
        return super().pread(fd, size, pos)

    def pread_into(self, fd: int, buffer: bytearray | memoryview, pos: int) -> int:
        self._stand(fd)
        return super().pread_into(fd, buffer, pos)

    def sync(self, fd: int) -> None:
        self._stand(fd)
        super().sync(fd)

    def _noted(self, fd: int, path: str) -> int:
        (self._offsets.add if "__consumer_offsets" in path else self._offsets.discard)(fd)
        return fd

    def _stand(self, fd: int) -> None:
        if fd in self._offsets and not self.go.is_set():
            self.reached.set()
            self.go.wait()


@pytest.fixture
def stalling() -> Iterator[Stalling]:
    fs = Stalling()
    yield fs
    fs.go.set()


def test_a_slow_commit_times_out(path: Path, stalling: Stalling) -> None:
    with log_over(Store(str(path), fs=stalling)) as log, Broker(log, offsets_commit_timeout_ms=100) as broker:
        log.create_topic("t", partitions=2)
        with Wire(broker) as wire, Wire(broker) as other:
            while commit(broker, wire, {T0: 1}) != [0]:  # the first one makes the topic
                pass
            log.alter_topic("__consumer_offsets", flush_messages=1)
            stalling.go.clear()
            assert commit(broker, wire, {T0: 2}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            assert stalling.reached.is_set()
            assert other.produce("t", b"").error_code  # the processor serves all others
            stalling.go.set()
            while commit(broker, wire, {T0: 3}) != [0]:
                pass
            assert fetched(broker, wire)[T0] == (3, 0)


def test_a_commit_without_room_fails_at_once(tmp_path: Path) -> None:
    """A client would retry COORDINATOR_NOT_AVAILABLE for a minute. Members that join still do."""
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log, Broker(log) as broker, Wire(broker) as wire, Wire(broker) as other:
        log.create_topic("t", partitions=2)
        assert commit(broker, wire, {T0: 1}) == [0]
        full = fs.fail("write", errno.ENOSPC, path="__consumer_offsets", times=1 << 30)
        assert commit(broker, wire, {T0: 2}) == [ErrorCode.POLICY_VIOLATION]
        deleted = other.ask(DeleteGroupsRequest(groups_names=[G]), 2)
        assert [result.error_code for result in deleted.results] == [ErrorCode.POLICY_VIOLATION]
        fs.rules.remove(full)
        assert commit(broker, wire, {T0: 3}) == [0]
        assert fetched(broker, wire)[T0] == (3, 0)


def test_requests_during_group_loading_are_retriable(path: Path, stalling: Stalling) -> None:
    with Broker(path) as broker, Wire(broker) as wire:
        broker.log.create_topic("t", partitions=2)
        assert commit(broker, wire, {T0: 8}) == [0]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with log_over(Store(str(path), fs=stalling)) as log:
        stalling.go.clear()
        with Broker(log) as broker, Wire(broker) as wire:
            assert wire.ask(fetch_request(broker, 7, None, G), 7).error_code == loading
            assert wire.ask(fetch_request(broker, 8, None, G), 8).groups[0].error_code == loading
            old = wire.ask(fetch_request(broker, 1, [T0], G), 1)
            assert old.topics[0].partitions[0].error_code == loading
            assert commit(broker, wire, {T0: 9}) == [loading]
            assert Member(wire).join().error_code == loading
            assert Member(wire).sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS
            assert Member(wire).leave().error_code == loading
            beat = HeartbeatRequest(group_id=G, generation_id=1, member_id="m", group_instance_id=None)
            assert wire.ask(beat, 4).error_code == ErrorCode.NONE  # as in Kafka: nothing is known of it yet
            assert wire.ask(ListGroupsRequest(), 4).error_code == loading
            assert wire.ask(DescribeGroupsRequest(groups=[G]), 5).groups[0].error_code == loading
            assert wire.ask(DeleteGroupsRequest(groups_names=[G]), 2).results[0].error_code == loading
            assert wire.ask(OffsetDeleteRequest(group_id=G), 0).error_code == loading
            stalling.go.set()
            while wire.ask(fetch_request(broker, 7, None, G), 7).error_code == loading:
                pass
            assert fetched(broker, wire) == {T0: (8, 0)}


# -- forgetting -------------------------------------------------------------------------------------------


MINUTE_MS = 60_000


def test_unused_offsets_expire(path: Path) -> None:
    clock = Clock()
    log = log_over(Store(str(path), clock_ms=clock, background=False))
    with log, Broker(log, offsets_retention_minutes=10) as broker, Wire(broker) as wire:
        groups = broker.context.groups
        groups.load()
        log.create_topic("t")
        log.create_topic("u")
        u0 = TopicPartition("u", 0)
        groups.commit_offsets("simple", {T0: CommittedOffset(1)})
        member = Member(wire, "reads-t", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
        member.settle()
        assert commit(broker, wire, {T0: 1, u0: 2}, member=member, group="reads-t") == [0, 0]
        with Wire(broker) as other:
            left = Member(other, "left", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
            left.settle()
            assert commit(broker, other, {T0: 3}, member=left, group="left") == [0]
            clock.now_ms += 5 * MINUTE_MS
            left.leave()
        clock.now_ms += 5 * MINUTE_MS - 1
        housekeep(store_of(log))
        assert groups.list_groups() == ["left", "reads-t", "simple"]
        assert groups.committed_offsets("reads-t").keys() == {T0, u0}
        clock.now_ms += 1
        housekeep(store_of(log))
        assert groups.list_groups() == ["left", "reads-t"]
        assert groups.committed_offsets("reads-t").keys() == {T0}  # whose topic its member reads
        assert groups.committed_offsets("left").keys() == {T0}  # since it had a member
        clock.now_ms += 5 * MINUTE_MS
        housekeep(store_of(log))
        assert groups.list_groups() == ["reads-t"]
        assert member.heartbeat() == 0
    with log_over(Store(str(path), clock_ms=clock, background=False)) as log, Broker(log) as broker:
        assert broker.context.groups.list_groups() == ["reads-t"]
        assert broker.context.groups.committed_offsets("left") == {}


def test_members_have_time_to_rejoin_after_a_restart(path: Path) -> None:
    clock = Clock()
    with log_over(Store(str(path), clock_ms=clock, background=False)) as log, Broker(log) as broker:
        log.create_topic("t")
        broker.context.groups.load()
        with Wire(broker) as wire:
            member = Member(wire)
            member.settle()
            assert commit(broker, wire, {T0: 1}, member=member) == [0]
        clock.now_ms += 60 * MINUTE_MS
    # Restarts, all of them. In the second one its session ends; from then on its offsets' time runs.
    for waited, there in [(0, True), (9 * MINUTE_MS, True), (9 * MINUTE_MS, True), (MINUTE_MS, False)]:
        log = log_over(Store(str(path), clock_ms=clock, background=False))
        with log, Broker(log, offsets_retention_minutes=10) as broker:
            eventually(lambda broker=broker: broker.context.groups.is_loaded)
            clock.now_ms += waited
            housekeep(store_of(log))
            assert bool(broker.context.groups.committed_offsets(G)) == there


def test_a_closed_broker_expires_nothing(path: Path) -> None:
    clock = Clock()
    with log_over(Store(str(path), clock_ms=clock, background=False)) as log:
        log.create_topic("t")
        with Broker(log, offsets_retention_minutes=10) as broker:
            groups = broker.context.groups
            groups.load()
        groups.commit_offsets(G, {T0: CommittedOffset(1)})
        clock.now_ms += 60 * MINUTE_MS
        housekeep(store_of(log))
        assert groups.committed_offsets(G).keys() == {T0}


def test_offsets_expire_in_the_background(path: Path) -> None:
    """By the store's own thread, without a request."""
    clock = Clock()
    log = log_over(Store(str(path), clock_ms=clock))
    pause = threading.Event()
    with log, Broker(log, offsets_retention_minutes=10, offsets_retention_check_interval_ms=5) as broker:
        log.create_topic("t")
        broker.context.groups.commit_offsets(G, {T0: CommittedOffset(1)})
        clock.now_ms += 10 * MINUTE_MS
        while broker.context.groups.committed_offsets(G):
            pause.wait(0.005)


def test_a_deleted_topics_offsets_are_removed(path: Path) -> None:
    """Or the next topic of that name would be read from somewhere in its middle."""
    with Broker(path) as broker, Wire(broker) as wire:
        broker.log.create_topic("t", partitions=2)
        broker.log.create_topic("u")
        u0 = TopicPartition("u", 0)
        for group in ("a", "b"):
            assert commit(broker, wire, {T0: 5, T1: 6, u0: 7}, group=group) == [0, 0, 0]
        broker.log.delete_topic("t")
        broker.log.create_topic("t", partitions=2)
        for group in ("a", "b"):
            assert fetched(broker, wire, group=group) == {u0: (7, 0)}
    with Broker(path) as broker:
        assert broker.context.groups.committed_offsets("a").keys() == {u0}


def delete(wire: Wire, *names: TopicPartition, group: str = G) -> tuple[int, list[int]]:
    topics = [
        OffsetDeleteRequestTopic(
            name=name.topic, partitions=[OffsetDeleteRequestPartition(partition_index=name.partition)]
        )
        for name in names
    ]
    response = wire.ask(OffsetDeleteRequest(group_id=group, topics=topics), 0)
    return response.error_code, [topic.partitions[0].error_code for topic in response.topics]


def test_offsets_are_deleted_unless_members_read_them(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("u")
    u0 = TopicPartition("u", 0)
    assert delete(wire, T0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    member = Member(wire)
    member.settle()
    assert commit(broker, wire, {T0: 1, T1: 1, u0: 1}, member=member) == [0, 0, 0]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(wire, T0, u0, TopicPartition("no", 0)) == (
        0,
        [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, unknown],
    )
    assert broker.context.groups.committed_offsets(G).keys() == {T0, T1}
    member.leave()
    assert delete(wire, T0, TopicPartition("t", 2)) == (0, [0, unknown])
    assert fetched(broker, wire) == {T1: (1, 0)}


# -- groups as administrators see them --------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(broker: Broker, wire: Wire, version: int) -> None:
    Member(wire, "full").settle()
    broker.context.groups.commit_offsets("simple", {T0: CommittedOffset(1)})
    response = wire.ask(ListGroupsRequest(), version)
    assert response.error_code == 0
    assert [(g.group_id, g.protocol_type) for g in response.groups] == [("full", "consumer"), ("simple", "")]
    if version >= 4:
        assert [g.group_state for g in response.groups] == ["Stable", "Empty"]
        some = wire.ask(ListGroupsRequest(states_filter=["empty"]), version)
        assert [g.group_id for g in some.groups] == ["simple"]
    if version >= 5:
        assert [g.group_type for g in response.groups] == ["classic", "classic"]
        assert wire.ask(ListGroupsRequest(types_filter=["consumer"]), version).groups == []
        assert len(wire.ask(ListGroupsRequest(types_filter=["Classic"]), version).groups) == 2


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(broker: Broker, wire: Wire, version: int) -> None:
    member = Member(wire, group_instance_id="one")
    member.settle()
    asked = DescribeGroupsRequest(groups=[G, "nobody"], include_authorized_operations=True)
    there, missing = wire.ask(asked, version).groups
    assert (there.error_code, there.group_state, there.protocol_type) == (0, "Stable", "consumer")
    assert there.protocol_data == "range"
    (shown,) = there.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member.member_id, "wire", "/127.0.0.1")
    assert shown.member_assignment == b"all"
    assert shown.member_metadata != b""
    if version >= 3:
        assert there.authorized_operations > 0
    if version >= 4:
        assert shown.group_instance_id == "one"
    gone = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert (missing.error_code, missing.group_state) == (gone, "Dead")


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(broker: Broker, wire: Wire, version: int) -> None:
    member = Member(wire, "full")
    member.settle()
    broker.context.groups.commit_offsets("simple", {T0: CommittedOffset(1)})
    response = wire.ask(DeleteGroupsRequest(groups_names=["full", "simple", "nobody"]), version)
    assert [result.error_code for result in response.results] == [
        ErrorCode.NON_EMPTY_GROUP,
        0,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert broker.context.groups.list_groups() == ["full"]
    assert member.heartbeat() == 0
