"""The embedded coordinator over a real store: persistence and refusals."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from ctrl_c import strike
from programs import crash

import embedlog
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.errors import (
    Closed,
    CommitFailed,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InvalidCommit,
    InvalidTopicName,
    RebalanceInProgress,
    UnknownMember,
)
from embedlog.groups.coordinator import GroupCoordinator
from embedlog.wire.offsets_topic import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def coordinator_of(log: Log) -> GroupCoordinator:
    assert log.backend.coordinator is not None
    return log.backend.coordinator


def join(coordinator: GroupCoordinator, group: str, member_id: str = "") -> tuple[str, int]:
    """A member alone in its group: joined, synced, stable."""
    joined = coordinator.join_group(
        group,
        member_id,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocols=[("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")],
    ).result(10)
    coordinator.sync_group(group, joined.member_id, joined.generation, {joined.member_id: b"all"}).result(10)
    return joined.member_id, joined.generation


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_offsets_of_a_topic_whose_deletion_was_killed_do_not_count(tmp_path: Path, mode: str) -> None:
    """The kill comes when the topic is gone, before its offsets are."""
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append_many("t", [b"old"] * 10)
        coordinator_of(log).commit_offsets("g", {T0: CommittedOffset(10)})
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            log = embedlog.open(path)
            log.backend.store.deletions._listeners.insert(0, lambda topic: os._exit(9))  # type: ignore[attr-defined]
            log.delete_topic("t")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append_many("t", [b"new"] * 15)
    with embedlog.open(path, mode=mode) as log:
        assert log.group("g").offsets() == {}
        if mode == "rw":
            with log.consumer("t", "g", stop_at_end=True) as consumer:
                assert len(list(consumer)) == 15
            assert log.group("g").offsets()[T0].offset == 15


def test_a_commit_for_a_topic_that_was_made_again_is_dropped(tmp_path: Path) -> None:
    """Also in a transaction that is open when the topic is deleted."""
    with embedlog.open(tmp_path / "log") as log:
        old = log.create_topic("t").topic_id
        log.append_many("t", [b"old"] * 10)
        with log.consumer("t", "g", auto_commit=False) as consumer, log.transaction("tx") as tx:
            while not consumer.poll(10):
                pass
            tx.commit_offsets(consumer)
            log.delete_topic("t")
            new = log.create_topic("t").topic_id
        coordinator = coordinator_of(log)
        assert coordinator.committed_offsets("g") == {}
        coordinator.commit_offsets("g", {T0: CommittedOffset(7, topic_id=old)})
        assert coordinator.committed_offsets("g") == {}
        coordinator.commit_offsets("g", {T0: CommittedOffset(3, topic_id=new)})
        assert coordinator.committed_offsets("g")[T0].offset == 3
    with embedlog.open(tmp_path / "log") as log:
        assert coordinator_of(log).committed_offsets("g")[T0].offset == 3


def java_hash(text: str) -> int:
    """String.hashCode of Java."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


# -- offsets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "crashed"])
def test_commits_outlive_the_log(path: Path, tmp_path: Path, how: str) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2)
        coordinator = coordinator_of(log)
        coordinator.commit_offsets("a", {T0: CommittedOffset(5, 3, "note"), T1: CommittedOffset(7)})
        coordinator.commit_offsets("b", {T0: CommittedOffset(1)})
        coordinator.commit_offsets("a", {T0: CommittedOffset(6, 4)})
        before = coordinator.committed_offsets("a")
        if how == "crashed":
            path = crash(path, tmp_path / "crashed")
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)
        found = coordinator.committed_offsets("a")
        assert found == before
        assert found[T0][:3] == (6, 4, "")
        assert found[T0].commit_timestamp_ms > 1_600_000_000_000
        assert coordinator.committed_offsets("a", [T1, TopicPartition("no", 0)]) == {T1: before[T1]}
        assert coordinator.committed_offsets("b")[T0].offset == 1
        assert coordinator.committed_offsets("nobody") == {}
        assert coordinator.list_groups() == ["a", "b"]


@pytest.mark.parametrize("count", [50, 7])
def test_a_groups_records_lie_in_kafkas_partition_for_it(path: Path, count: int) -> None:
    groups = ["g", "billing", "a-group", "übung", "日本", "😀", "x" * 200]
    settings = {} if count == 50 else {"offsets_topic_num_partitions": count}
    with embedlog.open(path, **settings) as log:
        for group in groups:
            coordinator_of(log).commit_offsets(group, {T0: CommittedOffset(1)})
        topic = log.describe_topic("__consumer_offsets")
        assert (topic.partitions, topic.internal) == (count, True)
        assert topic.settings["cleanup_policy"] == "compact"
        for record in log.read("__consumer_offsets"):
            key = decode_key(record.key)
            assert isinstance(key, OffsetKey)
            assert (key.topic, key.partition) == T0
            assert record.partition == abs(java_hash(key.group)) % count
            assert record.value is not None
            assert decode_offset_value(record.value).offset == 1
    with embedlog.open(path, offsets_topic_num_partitions=3) as log:  # what was configured once, stays
        coordinator_of(log).commit_offsets("g", {T1: CommittedOffset(2)})
        assert log.describe_topic("__consumer_offsets").partitions == count
        assert coordinator_of(log).committed_offsets("g").keys() == {T0, T1}


def test_the_offsets_topic_is_protected(path: Path) -> None:
    with embedlog.open(path, offsets_topic_num_partitions=2) as log:
        coordinator = coordinator_of(log)
        coordinator.commit_offsets("g", {T0: CommittedOffset(5)})
        refused: list[Callable[[], object]] = [
            lambda: log.delete_topic("__consumer_offsets"),
            lambda: log.create_partitions("__consumer_offsets", 3),
            lambda: log.alter_topic("__consumer_offsets", cleanup_policy="delete"),
            lambda: log.alter_topic("__consumer_offsets", flush_ms=5, cleanup_policy=None),
            lambda: log.delete_records("__consumer_offsets", 0, 0),
        ]
        for act in refused:
            with pytest.raises(InvalidTopicName, match="is an internal topic"):
                act()
        log.alter_topic("__consumer_offsets", flush_messages=1)
        log.flush()
        coordinator.commit_offsets("g", {T1: CommittedOffset(6)})
        edges = log.offsets("__consumer_offsets").values()
        assert all(edge.log_end_offset == edge.flushed_offset for edge in edges)
    with embedlog.open(path) as log:
        assert coordinator_of(log).committed_offsets("g").keys() == {T0, T1}


def test_commits_survive_the_compaction_of_their_topic(path: Path) -> None:
    with embedlog.open(path, offsets_topic_num_partitions=1, offsets_topic_segment_bytes=1024) as log:
        coordinator = coordinator_of(log)
        for i in range(200):
            coordinator.commit_offsets("g", {T0: CommittedOffset(i), T1: CommittedOffset(2 * i)})
        size = log.health().bytes
        assert log.compact("__consumer_offsets") > size / 2
    with embedlog.open(path) as log:
        found = coordinator_of(log).committed_offsets("g")
        assert {name: committed.offset for name, committed in found.items()} == {T0: 199, T1: 398}


def test_deleted_offsets_stay_deleted(path: Path) -> None:
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)
        coordinator.commit_offsets("g", {T0: CommittedOffset(5), T1: CommittedOffset(7)})
        coordinator.delete_offsets("g", [T0])
        assert coordinator.committed_offsets("g").keys() == {T1}
    with embedlog.open(path) as log:
        assert coordinator_of(log).committed_offsets("g").keys() == {T1}
        with pytest.raises(GroupNotFound):
            coordinator_of(log).delete_offsets("nobody", [T0])


def test_a_deleted_group_stays_deleted(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        coordinator = coordinator_of(log)
        member, generation = join(coordinator, "g")
        coordinator.commit_offsets("g", {T0: CommittedOffset(5)}, member_id=member, generation=generation)
        with pytest.raises(GroupNotEmpty):
            coordinator.delete_group("g")
        with pytest.raises((GroupNotEmpty, UnknownMember)):
            coordinator.delete_offsets("g", [T0])
        coordinator.leave_group("g", member)
        coordinator.delete_group("g")
        with pytest.raises(GroupNotFound):
            coordinator.delete_group("g")
        with pytest.raises(GroupNotFound):
            coordinator.describe_group("g")
        assert coordinator.committed_offsets("g") == {}
    with embedlog.open(path) as log:
        assert coordinator_of(log).list_groups() == []
        assert coordinator_of(log).committed_offsets("g") == {}


# -- members ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "crashed"])
def test_a_generation_is_not_used_twice(path: Path, tmp_path: Path, how: str) -> None:
    """Or a commit of the old generation's member would be taken for one of the new."""
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)
        member, first = join(coordinator, "g")
        member, second = join(coordinator, "g", member)
        assert second > first
        if how == "crashed":
            path = crash(path, tmp_path / "crashed")
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)
        assert coordinator.describe_group("g").generation >= second
        assert coordinator.describe_group("g").members == ()
        for generation in (first, second):
            with pytest.raises((UnknownMember, IllegalGeneration)):
                coordinator.commit_offsets(
                    "g", {T0: CommittedOffset(1)}, member_id=member, generation=generation
                )
            with pytest.raises((UnknownMember, IllegalGeneration)):
                coordinator.heartbeat("g", member, generation)
        _, third = join(coordinator, "g")
        assert third > second


def test_metadata_is_kept_as_kafka_keeps_it(path: Path) -> None:
    with embedlog.open(path) as log:
        member, generation = join(coordinator_of(log), "g")
        kept = [
            (decode_key(r.key), decode_group_value(r.value))
            for r in log.read("__consumer_offsets")
            if r.value
        ]
        assert [key for key, _ in kept] == [GroupKey("g")] * len(kept)
        last = kept[-1][1]
        assert (last.protocol_type, last.generation, last.protocol) == ("consumer", generation, "range")
        assert (last.leader_id, [m.member_id for m in last.members]) == (member, [member])
        assert last.members[0].assignment == b"all"


def test_refused_commits(log: Log) -> None:
    log.create_topic("t")
    coordinator = coordinator_of(log)
    member, generation = join(coordinator, "g")
    good = {T0: CommittedOffset(1)}
    with pytest.raises(UnknownMember):
        coordinator.commit_offsets("g", good, member_id="somebody", generation=generation)
    with pytest.raises(IllegalGeneration):
        coordinator.commit_offsets("g", good, member_id=member, generation=generation - 1)
    with pytest.raises(UnknownMember):  # the group has members: who are you?
        coordinator.commit_offsets("g", good)
    with pytest.raises(InvalidCommit, match="-1"):
        coordinator.commit_offsets("g", {T0: CommittedOffset(-1)}, member_id=member, generation=generation)
    assert coordinator.committed_offsets("g") == {}
    coordinator.commit_offsets("g", good, member_id=member, generation=generation)
    second = coordinator.join_group(
        "g",
        "",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocols=[("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")],
    )
    with pytest.raises(RebalanceInProgress):
        coordinator.heartbeat("g", member, generation)
    assert not second.done()
    log.close()
    with pytest.raises(Closed):
        second.result(10)
    with pytest.raises(Closed):
        coordinator.commit_offsets("g", good, member_id=member, generation=generation)


def test_a_consumer_cannot_commit_lost_partitions(log: Log) -> None:
    log.create_topic("t", partitions=2)
    log.append_many("t", [b"x"] * 10, partition=0)
    log.append_many("t", [b"x"] * 10, partition=1)
    slow = log.consumer("t", group="g", auto_commit=False)
    assert slow.poll(10_000)
    assert slow.assignment() == {T0, T1}
    done = threading.Event()

    def take_over() -> None:
        with log.consumer("t", group="g") as other:
            while not done.is_set():
                other.poll(20)

    thread = threading.Thread(target=take_over)
    thread.start()
    while len(slow.assignment()) != 1:
        slow.poll(20)
    (mine,) = slow.assignment()
    with pytest.raises(CommitFailed):
        slow.commit({T1 if mine == T0 else T0: 1})
    slow.commit({mine: 1})
    done.set()
    thread.join()
    slow.close()
    assert coordinator_of(log).committed_offsets("g")[mine].offset == 1


def test_a_silent_member_is_removed_after_its_session_timeout(log: Log) -> None:
    """By the store's own timer, without a request."""
    coordinator = coordinator_of(log)
    left = threading.Event()
    joined = coordinator.join_group(
        "g",
        "",
        session_timeout_ms=60,
        rebalance_timeout_ms=60_000,
        protocols=[("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")],
    ).result(10)
    with contextlib.suppress(UnknownMember):  # where 60 ms were over
        coordinator.sync_group("g", joined.member_id, joined.generation, {joined.member_id: b"all"}).result(
            10
        )
    while coordinator.describe_group("g").members:
        left.wait(0.01)
    with pytest.raises(UnknownMember):
        coordinator.heartbeat("g", joined.member_id, joined.generation)


def test_many_threads_commit_at_once(path: Path) -> None:
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)

        def commit(who: int) -> None:
            for i in range(100):
                coordinator.commit_offsets(f"g{who % 3}", {TopicPartition("t", who): CommittedOffset(i)})

        threads = [threading.Thread(target=commit, args=(who,)) for who in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with embedlog.open(path) as log:
        for who in range(6):
            name = TopicPartition("t", who)
            assert coordinator_of(log).committed_offsets(f"g{who % 3}")[name].offset == 99


def test_ctrl_c_leaves_no_group_half_way(path: Path) -> None:
    with embedlog.open(path) as log:
        coordinator = coordinator_of(log)
        for point in itertools.count():
            member_id, _ = join(coordinator, "g")
            struck = strike(point, lambda who=member_id: coordinator.leave_group("g", who))
            other = threading.Thread(target=coordinator.list_groups)
            other.start()
            other.join()  # for ever, if the lock were still held
            if not struck:
                break
            with contextlib.suppress(UnknownMember):  # it has left
                coordinator.leave_group("g", member_id)
        assert point > 5
