"""Share groups on the wire (KIP-932), over raw connections: sessions, acknowledgements, waiting, restarts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from share_members import ACCEPT, GAP, REJECT, RELEASE, RENEW, Got, ShareMember, data_of, got

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.broker.handlers import share_fetch
from embedlog.groups.machines.share_partition import SharePartition
from embedlog.groups.share_group import ShareGroup
from embedlog.groups.share_part import Part
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from embedlog.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from embedlog.wire.apis.delete_groups import DeleteGroupsRequest
from embedlog.wire.apis.describe_groups import DescribeGroupsRequest
from embedlog.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from embedlog.wire.apis.list_groups import ListGroupsRequest
from embedlog.wire.apis.share_fetch import AcknowledgementBatch, FetchPartition
from embedlog.wire.apis.share_group_describe import DescribedGroup, ShareGroupDescribeRequest
from embedlog.wire.error_codes import ErrorCode

HOUR_MS = 3_600_000


def loaded(broker: Broker) -> Broker:
    while not broker.context.groups.is_loaded:  # until then clients are told to retry
        time.sleep(0.001)
    return broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With a topic of two partitions. New groups begin with the first record."""
    with Broker(group_share_record_lock_duration_ms=HOUR_MS) as broker:
        loaded(broker).log.create_topic("t", partitions=2)
        broker.context.group_configs.alter("g", {"share_auto_offset_reset": "earliest"}, 10)
        yield broker


def send(broker: Broker, count: int, partition: int = 0) -> None:
    """In one batch."""
    broker.log.append_many("t", [b"%d" % number for number in range(count)], partition=partition)


def described(member: ShareMember, group: str = "g") -> DescribedGroup:
    (found,) = member.ask(ShareGroupDescribeRequest(group_ids=[group]), 1).groups
    return found


def offsets(found: list[Got]) -> list[int]:
    return [each.offset for each in found]


# -- members -----------------------------------------------------------------------------------------------


def test_members_come_and_go(broker: Broker) -> None:
    with ShareMember(broker) as one, ShareMember(broker) as two:
        joined = one.beat(0, ["t"])
        assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 1, 5_000)
        assert joined.assignment is not None
        ((topic),) = joined.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (one.topic_id, [0, 1])
        assert one.beat().assignment is None
        two.join()
        assert one.beat().member_epoch == 2
        group = described(one)
        assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 2, "simple")
        assert {each.member_id for each in group.members} == {one.member_id, two.member_id}
        assert all(each.subscribed_topic_names == ["t"] for each in group.members)
        assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
        assert two.beat(-1).member_epoch == -1
        assert one.beat(-1).error_code == 0
        assert described(one).group_state == "Empty"
        assert one.beat(1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_fencing_and_bad_heartbeats(broker: Broker) -> None:
    with ShareMember(broker) as member:
        assert member.beat(0, []).error_code == ErrorCode.INVALID_REQUEST
        assert member.beat(0).error_code == ErrorCode.INVALID_REQUEST
        assert member.beat(-2, ["t"]).error_code == ErrorCode.INVALID_REQUEST
        assert member.beat(7).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        member.join()
        assert member.beat(7).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        member.member_id = "x" * 10_000
        assert member.beat(0, ["t"]).error_code == ErrorCode.INVALID_REQUEST
        member.member_id, member.group = "m", ""
        assert member.beat(0, ["t"]).error_code == ErrorCode.INVALID_GROUP_ID


def test_a_name_that_no_topic_can_have_is_ignored(broker: Broker) -> None:
    """As each name that no topic has."""
    with ShareMember(broker) as member:
        joined = member.beat(0, ["t", "no such topic!", "", "..", "x" * 300])
        assert joined.error_code == 0
        assert joined.assignment is not None
        assert [topic.partitions for topic in joined.assignment.topic_partitions] == [[0, 1]]


def test_a_full_group() -> None:
    with Broker(group_share_max_size=1) as broker:
        loaded(broker).log.create_topic("t")
        with ShareMember(broker) as one, ShareMember(broker) as two:
            one.join()
            assert two.beat(0, ["t"]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
            one.beat(-1)
            two.join()


def test_a_member_that_is_silent() -> None:
    with Broker(group_share_session_timeout_ms=1) as broker:
        loaded(broker).log.create_topic("t")
        with ShareMember(broker) as member:
            member.join()
            while described(member).group_state != "Empty":
                pass
            assert member.beat(1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("of_group", [True, False], ids=["of-the-group", "of-the-broker"])
def test_the_session_timeout_of_consumer_groups_is_not_that_of_share_groups(of_group: bool) -> None:
    """A member of a consumer group that joins later expires, and the share group's member is still there."""
    with Broker(**{} if of_group else {"group_consumer_session_timeout_ms": 1}) as broker:
        loaded(broker).log.create_topic("t")
        if of_group:
            for group in ("g", "c"):
                broker.context.group_configs.alter(group, {"consumer_session_timeout_ms": 1}, 10)
        with ShareMember(broker) as member:
            member.join()
            assert member.ask(consumer_heartbeat("c"), 1).error_code == 0
            request = ConsumerGroupDescribeRequest(group_ids=["c"])
            while member.ask(request, 1).groups[0].group_state != "Empty":
                pass
            assert described(member).group_state == "Stable"
            assert member.beat().error_code == 0


def consumer_heartbeat(group: str) -> ConsumerGroupHeartbeatRequest:
    """With which a member joins."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )


def test_groups_of_other_types(broker: Broker) -> None:
    with ShareMember(broker) as member, ShareMember(broker, group="c") as other:
        beat = consumer_heartbeat("c")
        assert member.ask(beat, 1).error_code == 0
        assert other.beat(0, ["t"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described(other, "c").error_code == ErrorCode.GROUP_ID_NOT_FOUND
        member.join()
        beat.group_id = "g"
        assert member.ask(beat, 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        assert member.ask(join, 9).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        (found,) = member.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
        assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = member.ask(ListGroupsRequest(types_filter=["Share"]), 5).groups
        assert [(each.group_id, each.group_type, each.group_state) for each in listed] == [
            ("g", "share", "Stable")
        ]
        everything = member.ask(ListGroupsRequest(), 5).groups
        assert {each.group_id: each.group_type for each in everything} == {"c": "consumer", "g": "share"}


def test_clients_of_the_library_list_other_groups(broker: Broker) -> None:
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as remote, ShareMember(broker) as member:
        member.join()
        with remote.consumer("t", group="c", auto_offset_reset="earliest") as consumer:
            send(broker, 1)
            assert consumer.poll(timeout_ms=60_000)
            for log in (broker.log, remote):
                assert log.groups() == ["c"]


def test_the_feature_is_offered(broker: Broker) -> None:
    with ShareMember(broker) as member:
        response = member.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
        features = {each.name: each.max_version_level for each in response.finalized_features}
        assert features["share.version"] == 1
        offered = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert offered[76] == offered[77] == (1, 1)
        assert offered[78] == offered[79] == (1, 2)


# -- records -----------------------------------------------------------------------------------------------


def test_each_record_goes_to_one_member(broker: Broker) -> None:
    send(broker, 10)
    with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
        assert one.fetch(0, max_records=4, mode=1) == [Got(0, n, b"%d" % n, 1) for n in range(4)]
        assert offsets(two.fetch(0)) == [4, 5, 6, 7, 8, 9]
        assert one.said([(0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT)]) == 0
        assert two.fetch() == [Got(0, 2, b"2", 2)]  # of a batch whose other records are done
        assert two.said([(2, 2, ACCEPT), (4, 9, ACCEPT)]) == 0
        coordinator = broker.log.backend.share_coordinator
        while coordinator.describe_share_group("g", "t").partitions[0].start_offset < 10:
            time.sleep(0.001)  # the rejected record is archived in the background
        assert "dlq.t" not in broker.log.topics()


def test_modes_batches_and_limits(broker: Broker) -> None:
    for _ in range(3):
        send(broker, 10)
    with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
        assert offsets(one.fetch(0, max_records=4)) == list(range(10))  # whole batches
        assert offsets(two.fetch(0, max_records=4, mode=1)) == [10, 11, 12, 13]  # strictly
        assert offsets(two.fetch(max_records=4, version=1)) == [14, 15, 16, 17, 18, 19]
        assert two.fetch(max_records=0) == []
        assert offsets(two.fetch(max_records=1, max_bytes=1)) == list(range(20, 30))  # one batch at least
        assert two.acknowledge([(10, 29, RELEASE)]).error_code == 0
        response = two.ask_fetch(batch_size=5)
        ranges = [(each.first_offset, each.last_offset) for each in data_of(response).acquired_records]
        assert ranges == [(10, 19), (20, 29)]


def test_locks_are_limited() -> None:
    with Broker(group_share_partition_max_record_locks=3) as broker:
        loaded(broker).log.create_topic("t")
        broker.context.group_configs.alter("g", {"share_auto_offset_reset": "earliest"}, 10)
        broker.log.append_many("t", [b""] * 5)
        with ShareMember(broker).join() as member:
            assert offsets(member.fetch(0)) == [0, 1, 2]
            assert member.fetch() == []
            assert member.said([(1, 1, ACCEPT)]) == 0
            assert offsets(member.fetch()) == [3]


def test_where_a_new_group_begins(broker: Broker) -> None:
    send(broker, 3)
    now_ms = broker.log.backend.store.clock_ms()
    broker.log.append("t", b"old", partition=1, timestamp_ms=now_ms - 2 * HOUR_MS)
    broker.log.append("t", b"new", partition=1, timestamp_ms=now_ms - HOUR_MS // 2)
    broker.context.group_configs.alter("d", {"share_auto_offset_reset": "by_duration:PT1H"}, 10)
    expected = {"g": [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], "l": [], "d": [(0, 0), (0, 1), (0, 2), (1, 1)]}
    for group, places in expected.items():
        with ShareMember(broker, group=group).join() as member:
            found = member.fetch(0, 1) + member.fetch()
            assert sorted((each.partition, each.offset) for each in found) == places
    send(broker, 1)
    with ShareMember(broker, group="l").join() as member:
        assert offsets(member.fetch(0)) == [3]


def test_acknowledgements_within_a_fetch(broker: Broker) -> None:
    send(broker, 4)
    with ShareMember(broker).join() as member:
        assert offsets(member.fetch(0, max_records=2, mode=1)) == [0, 1]
        response = member.ask_fetch(0, said=[(0, 1, [1, 2])])
        assert data_of(response).acknowledge_error_code == 0
        assert [(each.offset, each.delivery_count) for each in got(response)] == [(1, 2), (2, 1), (3, 1)]
        response = member.ask_fetch(0, said=[(0, 0, ACCEPT)])
        assert data_of(response).acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        response = member.ask_fetch(0, epoch=-1, said=[(1, 3, ACCEPT)])
        assert data_of(response).acknowledge_error_code == 0
        assert got(response) == []
        assert member.ask_fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([(0, 3, ACCEPT)], ErrorCode.NONE),
        ([(0, 3, [1, 2, 3, 0])], ErrorCode.NONE),
        ([(0, 0, ACCEPT), (1, 1, RELEASE), (2, 3, GAP)], ErrorCode.NONE),
        ([(0, 4, ACCEPT)], ErrorCode.INVALID_RECORD_STATE),
        ([(0, 0, ACCEPT), (4, 4, ACCEPT)], ErrorCode.INVALID_RECORD_STATE),
        ([(0, 1 << 62, ACCEPT)], ErrorCode.INVALID_RECORD_STATE),
        ([(1 << 62, 1 << 62, RELEASE)], ErrorCode.INVALID_RECORD_STATE),
        ([(1, 0, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(-1, 0, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 1, ACCEPT), (1, 2, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(2, 3, ACCEPT), (0, 1, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 3, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 3, [1, 1])], ErrorCode.INVALID_REQUEST),
        ([(0, 3, [5])], ErrorCode.INVALID_REQUEST),
        ([(0, 3, [-1])], ErrorCode.INVALID_REQUEST),
        ([(0, 3, RENEW)], ErrorCode.INVALID_REQUEST),  # without is_renew_ack
    ],
)
def test_acknowledgements(broker: Broker, said: list[tuple[int, int, list[int]]], code: ErrorCode) -> None:
    """All of what a request says of a partition is applied, or nothing."""
    send(broker, 4)
    with ShareMember(broker).join() as member:
        assert len(member.fetch(0)) == 4
        assert member.said(said) == code
        if code:
            assert member.said([(0, 3, ACCEPT)]) == 0
        elif said[0][2] == ACCEPT:
            assert member.said([(0, 0, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE


def test_many_gaps_cost_little(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a member has locked is looked up once."""
    held_by = SharePartition.held_by
    looks: list[str] = []

    def counted(self: SharePartition, member_id: str, now_ms: int) -> list[tuple[int, int, int]]:
        looks.append(member_id)
        return held_by(self, member_id, now_ms)

    monkeypatch.setattr(SharePartition, "held_by", counted)
    send(broker, 5)
    with ShareMember(broker).join() as member:
        assert len(member.fetch(0)) == 5
        assert member.said([(1, 1, GAP), (3, 7, GAP), *((n, n, GAP) for n in range(8, 1_000))]) == 0
        assert len(looks) == 1
        request = member.fetch_request(0)
        for number in range(1_000, 1_100):  # a partition that is named again and again
            gap = AcknowledgementBatch(first_offset=number, last_offset=number, acknowledge_types=GAP)
            partition = FetchPartition(partition_index=0, acknowledgement_batches=[gap])
            request.topics[0].partitions.append(partition)
        assert data_of(member.ask(request, 2)).acknowledge_error_code == 0
        assert len(looks) == 2
        assert member.said([(1, 1, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE
        assert member.said([(0, 0, ACCEPT), (2, 2, ACCEPT)]) == 0
        (part, _) = broker.log.backend.share_coordinator.describe_share_group("g", "t").partitions
        assert part.start_offset == part.end_offset


def test_another_member_cannot_acknowledge(broker: Broker) -> None:
    send(broker, 2)
    with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
        assert len(one.fetch(0)) == 2
        assert two.fetch(0) == []
        assert two.said([(0, 1, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE
        assert two.said([(0, 1, ACCEPT)], 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        two.topic_id = bytes(range(16))
        assert two.said([(0, 1, ACCEPT)]) == ErrorCode.UNKNOWN_TOPIC_ID
        assert one.said([(0, 1, ACCEPT)]) == 0


def test_renewal(broker: Broker) -> None:
    send(broker, 2)
    with ShareMember(broker).join() as member:
        assert len(member.fetch(0)) == 2
        assert member.said([(0, 0, RENEW), (1, 1, ACCEPT)], renews=True) == 0
        response = member.acknowledge([(0, 0, RENEW)], renews=True)
        assert response.acquisition_lock_timeout_ms == HOUR_MS
        response = member.ask_fetch(0, said=[(0, 0, RENEW)], renews=True)
        assert response.error_code == ErrorCode.INVALID_REQUEST  # it asks for records
        member.epoch -= 1
        response = member.ask_fetch(0, said=[(0, 0, RENEW)], renews=True, max_records=0, max_bytes=0)
        assert data_of(response).acknowledge_error_code == 0
        assert member.said([(0, 0, ACCEPT)]) == 0


def test_a_group_without_renewals(broker: Broker) -> None:
    own = {"share_auto_offset_reset": "earliest", "share_renew_acknowledge_enable": False}
    broker.context.group_configs.alter("g", own, 10)
    send(broker, 2)
    with ShareMember(broker).join() as member:
        assert len(member.fetch(0)) == 2
        said = [(0, 0, RENEW), (1, 1, ACCEPT)]
        assert member.said(said, renews=True) == ErrorCode.INVALID_RECORD_STATE
        assert member.said([(0, 1, ACCEPT)]) == 0


def test_a_lock_that_expires(broker: Broker) -> None:
    broker.context.group_configs.alter(
        "g", {"share_auto_offset_reset": "earliest", "share_record_lock_duration_ms": 1}, 10
    )
    send(broker, 1)
    with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
        assert one.ask_fetch(0).acquisition_lock_timeout_ms == 1
        counts = []
        two.fetch(0)
        while len(counts) < 2:
            counts += [each.delivery_count for each in two.fetch(max_wait_ms=60_000)]
        assert one.said([(0, 0, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE
        # After five deliveries it is archived.
        coordinator = broker.log.backend.share_coordinator
        while coordinator.describe_share_group("g", "t").partitions[0].start_offset == 0:
            counts += [each.delivery_count for each in two.fetch(max_wait_ms=10)]
        assert counts == sorted(set(counts))
        assert counts[-1] == 5


# -- waiting -----------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records(broker: Broker) -> None:
    with ShareMember(broker).join() as member:
        member.fetch(0, 1)
        request = member.fetch_request(max_wait_ms=60_000)
        number = member.send(request, 2)
        send(broker, 1, 1)
        assert got(member.receive(request, 2, number)) == [Got(1, 0, b"0", 1)]
        assert member.fetch(max_wait_ms=1) == []


def test_a_fetch_waits_for_a_release(broker: Broker) -> None:
    send(broker, 2)
    with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
        assert len(one.fetch(0)) == 2
        two.fetch(0)
        request = two.fetch_request(max_wait_ms=60_000)
        number = two.send(request, 2)
        assert one.said([(0, 0, ACCEPT), (1, 1, RELEASE)]) == 0
        assert got(two.receive(request, 2, number)) == [Got(0, 1, b"1", 2)]


def test_many_that_wait_cost_little(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is looked at once for all of them, and for a new one alone."""
    fill_part = ShareGroup.fill_part
    looks: list[int] = []
    calls: list[int] = []

    def counted(self: ShareGroup, number: int, wanted: int) -> Part | None:
        looks.append(number)
        return fill_part(self, number, wanted)

    clients = broker.log.backend.share_coordinator.clients
    with ShareMember(broker).join() as member:
        member.fetch(0)
    monkeypatch.setattr(ShareGroup, "fill_part", counted)
    for number in range(100):
        clients.watch("g", "t", [0], partial(calls.append, number), 2_000)
    assert len(looks) == 100
    send(broker, 1)
    while len(calls) < 100:
        time.sleep(0.001)
    assert len(looks) < 110


def test_waiting_ends_with_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        loaded(broker).log.create_topic("t")
        member = ShareMember(broker).join()
        member.fetch(0)
        request = member.fetch_request(max_wait_ms=600_000)
        number = member.send(request, 2)
        handlers = broker._dispatcher._share_fetch
        assert handlers is not None
        while not handlers._waiting:
            time.sleep(0.001)
    assert got(member.receive(request, 2, number)) == []
    member.close()


# -- sessions ----------------------------------------------------------------------------------------------


def test_a_new_session_keeps_what_it_acquires(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins while the old one's last fetch, which is answered, has not returned."""
    send(broker, 3)
    handlers = broker._dispatcher._share_fetch
    assert handlers is not None
    ended, is_old_done, acquired = threading.Event(), threading.Event(), threading.Event()
    old: list[int] = []  # the thread of the old session's last fetch

    def complete(*args: Any, real: Any = share_fetch._complete) -> bool:
        done: bool = real(*args)
        if armed and not old:
            old.append(threading.get_ident())
            ended.wait(10)
        return done

    def attempt(*args: Any, real: Any = handlers._attempt, **options: Any) -> None:
        real(*args, **options)
        if threading.get_ident() in old:
            is_old_done.set()

    def end(*args: Any, real: Any = handlers._sessions.end) -> Any:
        session = real(*args)
        if armed:
            ended.set()
            is_old_done.wait(10)
        return session

    clients = handlers._shares().clients

    def release(*args: Any, real: Any = clients.release) -> None:
        if threading.get_ident() in old:
            is_old_done.set()
            acquired.wait(10)
        real(*args)

    armed = False
    monkeypatch.setattr(share_fetch, "_complete", complete)
    monkeypatch.setattr(handlers, "_attempt", attempt)
    monkeypatch.setattr(handlers._sessions, "end", end)
    monkeypatch.setattr(clients, "release", release)
    with ShareMember(broker).join() as member, ShareMember(broker).join() as other:
        assert len(member.fetch(0)) == 3
        armed = True
        assert member.fetch(0) == []
        assert offsets(member.fetch(0, epoch=0)) == [0, 1, 2]
        acquired.set()
        is_old_done.wait(10)
        assert other.fetch(0) == []


def test_session_epochs(broker: Broker) -> None:
    send(broker, 3)
    with ShareMember(broker).join() as member:
        assert member.ask_fetch(0, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert member.ask_fetch(0, epoch=0, said=[(0, 0, ACCEPT)]).error_code == ErrorCode.INVALID_REQUEST
        assert member.acknowledge([(0, 0, ACCEPT)], epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert len(member.fetch(0, epoch=0)) == 3
        for epoch in (0, 2, 1 << 30, -2):
            code = member.acknowledge([(0, 0, ACCEPT)], epoch=epoch).error_code
            assert code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        for epoch in (2, -5):
            assert member.ask_fetch(epoch=epoch).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert member.said([(0, 0, ACCEPT)], epoch=1) == 0
        assert member.fetch(0, epoch=2) == []
        # A new session releases what was acquired in the old one, uncounted.
        assert [(each.offset, each.delivery_count) for each in member.fetch(0, epoch=0)] == [(1, 1), (2, 1)]
        assert member.fetch(forget=[0]) == []
        send(broker, 1)
        assert member.fetch() == []  # it has forgotten the partition
        assert offsets(member.fetch(0)) == [3]
        assert member.acknowledge([], epoch=-1).error_code == 0
        assert offsets(member.fetch(0, epoch=0)) == [1, 2, 3]


def test_sessions_are_limited() -> None:
    with Broker(group_share_max_share_sessions=1) as broker:
        loaded(broker).log.create_topic("t")
        with ShareMember(broker).join() as one, ShareMember(broker).join() as two:
            assert one.ask_fetch(0).error_code == 0
            assert two.ask_fetch(0).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert one.ask_fetch(0, epoch=0).error_code == 0
            assert one.ask_fetch(epoch=-1).error_code == 0
            assert two.ask_fetch(0, epoch=0).error_code == 0


def test_the_end_of_a_connection_releases(broker: Broker) -> None:
    send(broker, 3)
    with ShareMember(broker).join() as two:
        with ShareMember(broker).join() as one:
            assert len(one.fetch(0)) == 3
            two.fetch(0)
            request = two.fetch_request(max_wait_ms=60_000)
            number = two.send(request, 2)
        assert [(each.offset, each.delivery_count) for each in got(two.receive(request, 2, number))] == [
            (0, 1),
            (1, 1),
            (2, 1),
        ]


def test_a_new_session_ends_a_fetch_that_waits(broker: Broker) -> None:
    """The member is back over another connection: the old one gets nothing more."""
    with ShareMember(broker).join() as one, ShareMember(broker, member_id=one.member_id) as again:
        one.fetch(0)
        request = one.fetch_request(max_wait_ms=600_000)
        number = one.send(request, 2)
        handlers = broker._dispatcher._share_fetch
        assert handlers is not None
        while not handlers._waiting:
            time.sleep(0.001)
        assert again.fetch(0, epoch=0) == []
        send(broker, 1)
        assert got(one.receive(request, 2, number)) == []
        assert again.fetch(max_wait_ms=60_000) == [Got(0, 0, b"0", 1)]
        assert again.said([(0, 0, ACCEPT)]) == 0


def test_hostile_fetches(broker: Broker) -> None:
    send(broker, 3)
    with ShareMember(broker).join() as member:
        for epoch, partitions in ((0, [7, 1 << 30, -1]), (1, list(range(5_000, 5_500)))):
            response = member.ask_fetch(*partitions, epoch=epoch)
            codes = {each.error_code for topic in response.responses for each in topic.partitions}
            assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        response = member.ask_fetch(*range(100_000), epoch=2)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert member.ask_fetch(0, epoch=0, mode=7).error_code == ErrorCode.INVALID_REQUEST
        assert member.fetch(0, epoch=0, max_records=-1) == []
        assert member.fetch(max_records=5, max_bytes=-1, max_wait_ms=-1, batch_size=-1) == []
        assert len(member.fetch(max_records=(1 << 31) - 1, max_bytes=(1 << 31) - 1)) == 3
        topic_id, member.topic_id = member.topic_id, bytes(range(16))
        response = member.ask_fetch(0, epoch=0)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        member.topic_id, member.member_id = topic_id, ""
        assert member.ask_fetch(0, epoch=0).error_code == ErrorCode.INVALID_REQUEST
        member.member_id = "x" * 300
        assert member.ask_fetch(0, epoch=0).error_code == ErrorCode.INVALID_REQUEST
        member.member_id, member.group = "m", "nobody"
        assert member.ask_fetch(0, epoch=0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        member.group = ""
        assert member.ask_fetch(0, epoch=0).error_code == ErrorCode.INVALID_GROUP_ID


def test_a_fetch_does_not_make_a_deleted_group_again(broker: Broker) -> None:
    send(broker, 3)
    with ShareMember(broker).join() as member, ShareMember(broker) as other:
        assert len(member.fetch(0)) == 3
        other.fetch(0)
        request = other.fetch_request(max_wait_ms=60_000)
        number = other.send(request, 2)
        assert member.beat(-1).error_code == 0
        assert member.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == 0
        for response in (other.receive(request, 2, number), member.ask_fetch(0)):
            assert data_of(response).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert broker.log.backend.share_coordinator.list_share_groups() == []
        other.join()
        assert len(other.fetch()) == 3


# -- compaction --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_records", [1, 4])
def test_records_that_are_compacted_meanwhile(broker: Broker, max_records: int) -> None:
    broker.log.create_topic("c", cleanup_policy="compact", segment_bytes=2_000)
    for number in range(60):
        broker.log.append("c", b"%d" % number, key=b"%d" % (number % 3))
    with ShareMember(broker, "c").join() as member:
        found = member.fetch(0, max_records=max_records)
        assert offsets(found) == list(range(max_records))  # and later ones are known to be ready
        assert broker.log.compact("c") > 0
        left = [record.offset for record in broker.log.read("c")]
        assert 3 <= len(left) < 50
        assert left[0] > max_records
        for _ in left:
            found += member.fetch(max_records=max_records)
        assert offsets(found)[max_records:] == left
        assert member.said([(0, max_records - 1, ACCEPT), *((n, n, ACCEPT) for n in left)]) == 0
        (part,) = broker.log.backend.share_coordinator.describe_share_group("g", "c").partitions
        assert part.start_offset == part.end_offset == 60


# -- transactions ------------------------------------------------------------------------------------------


def test_isolation_levels(broker: Broker) -> None:
    log = broker.log
    with log.transaction("x") as tx:
        tx.append("t", b"committed", partition=0)
    with contextlib.suppress(ZeroDivisionError), log.transaction("x") as tx:
        tx.append("t", b"aborted", partition=0)
        raise ZeroDivisionError
    log.append("t", b"plain", partition=0)
    broker.context.group_configs.alter(
        "c", {"share_auto_offset_reset": "earliest", "share_isolation_level": "read_committed"}, 10
    )
    values = {"g": [b"committed", b"aborted", b"plain"], "c": [b"committed", b"plain"]}
    for group, expected in values.items():
        with ShareMember(broker, group=group).join() as member:
            found = member.fetch(0)
            assert [each.value for each in found] == expected  # and no control batch
            for each in found:
                assert member.said([(each.offset, each.offset, ACCEPT)]) == 0
            assert member.fetch() == []
            (part, _) = log.backend.share_coordinator.describe_share_group(group, "t").partitions
            assert part.start_offset == part.end_offset


# -- the library's queues ----------------------------------------------------------------------------------


def test_a_queue_and_a_member_share_a_group(broker: Broker) -> None:
    with broker.log.queue("t", group="q") as queue:
        send(broker, 2)
        job = queue.take(timeout_ms=60_000)
        with ShareMember(broker, group="q") as member:
            assert described(member, "q").group_state == "Empty"
            listed = member.ask(ListGroupsRequest(types_filter=["share"]), 5).groups
            assert [each.group_id for each in listed] == ["q"]
            (other,) = member.join().fetch(0)
            assert {job.offset, other.offset} == {0, 1}
            assert member.said([(job.offset, job.offset, ACCEPT)]) == ErrorCode.INVALID_RECORD_STATE
            job.accept()
            assert queue.take(default=None) is None
            assert member.said([(other.offset, other.offset, RELEASE)]) == 0
            again = queue.take(timeout_ms=60_000)
            assert (again.offset, again.deliveries) == (other.offset, 2)


def test_a_queues_dead_letters_stay(broker: Broker) -> None:
    """What a queue has said of its group holds for members, too, while the log is open."""
    broker.log.create_topic("dead")
    with broker.log.queue("t", group="q", dead_letter_topic="dead") as queue:
        assert queue.take(default=None) is None
        send(broker, 1)
        with ShareMember(broker, group="q").join() as member:
            assert len(member.fetch(0)) == 1
            assert member.said([(0, 0, REJECT)]) == 0
        with broker.log.consumer("dead", auto_offset_reset="earliest") as letters:
            found = letters.poll(timeout_ms=60_000)
            assert [record.value for record in found] == [b"0"]


# -- restarts ----------------------------------------------------------------------------------------------


def test_a_restart_keeps_members_locks_and_counts(tmp_path: Path) -> None:
    with Broker(tmp_path, group_share_record_lock_duration_ms=HOUR_MS) as broker:
        loaded(broker).log.create_topic("t")
        broker.context.group_configs.alter("g", {"share_auto_offset_reset": "earliest"}, 10)
        broker.log.append_many("t", [b"0", b"1", b"2"])
        one, other = ShareMember(broker).join(), ShareMember(broker).join()
        assert len(one.fetch(0, max_records=2, mode=1)) == 2
        assert one.said([(0, 0, ACCEPT), (1, 1, RELEASE)]) == 0
        one.close()
        epoch = other.member_epoch
        other.close()
    with Broker(tmp_path) as broker:
        loaded(broker)
        assert broker.context.group_configs.own("g") == {"share_auto_offset_reset": "earliest"}
        with ShareMember(broker, member_id=other.member_id) as member:
            assert described(member).group_state == "Stable"
            assert member.beat(epoch).error_code == 0
            assert member.ask_fetch(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            found = member.fetch(0, epoch=0)
            assert [(each.offset, each.delivery_count) for each in found] == [(1, 2), (2, 1)]


def test_deleting_groups(broker: Broker) -> None:
    send(broker, 2)

    def delete(member: ShareMember, group: str) -> int:
        (result,) = member.ask(DeleteGroupsRequest(groups_names=[group]), 2).results
        return result.error_code

    with broker.log.queue("t", group="q") as queue:
        assert queue.take(timeout_ms=60_000) is not None
    with ShareMember(broker).join() as member:
        member.fetch(0)
        assert delete(member, "g") == ErrorCode.NON_EMPTY_GROUP
        member.beat(-1)
        assert [delete(member, name) for name in ("g", "q", "nobody")] == [0, 0, ErrorCode.GROUP_ID_NOT_FOUND]
        assert member.ask(ListGroupsRequest(), 5).groups == []
        member.join()
        assert len(member.fetch(0, epoch=0)) == 2  # from the beginning again
