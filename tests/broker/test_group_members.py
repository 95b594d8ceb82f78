"""Group membership over raw connections: every version and every refusal."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from members import JOIN_MAX, MEMBER_ID_SINCE, G, Member
from wire import Wire
from zookeepers import eventually

import embedlog
from embedlog.backends.local import WriterBackend
from embedlog.cluster import Broker
from embedlog.cluster.broker.owner import OwnerServer
from embedlog.errors import GroupNotFound
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.apis.join_group import JoinGroupRequestProtocol
from embedlog.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from embedlog.wire.error_codes import ErrorCode


class Table:
    """Makes members, each with a connection of its own."""

    def __init__(self, broker: Broker, connections: ExitStack) -> None:
        self.broker = broker
        self._connections = connections

    def member(self, *args: Any, **options: Any) -> Member:
        wire = self._connections.enter_context(Wire(self.broker))
        return Member(wire, *args, **options)


@pytest.fixture
def table(broker: Broker) -> Iterator[Table]:
    with ExitStack() as connections:
        yield Table(broker, connections)


@pytest.mark.parametrize("version", range(JOIN_MAX + 1))
def test_a_members_life_in_every_version(table: Table, version: int) -> None:
    member = table.member(version=version)
    joined = member.join()
    assert joined.error_code == 0
    assert joined.member_id.startswith("wire-")
    assert joined.leader == joined.member_id
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    assert [m.member_id for m in joined.members] == [member.member_id]
    synced = member.sync({member.member_id: b"all of it"})
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
    assert member.heartbeat() == 0
    described = table.broker.context.groups.describe_group(G)
    assert [(m.client_id, m.client_host) for m in described.members] == [("wire", "/127.0.0.1")]
    left = member.leave()
    assert left.error_code == 0
    assert [each.error_code for each in left.members] == ([0] if version >= 3 else [])
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_two_members_get_their_leaders_assignment(table: Table) -> None:
    leader, follower = table.member(), table.member()
    leader.settle()
    follower.send_join()
    while leader.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:  # the other join is on its way
        pass
    joined_again: Any = None
    leader.send_join()
    told = follower.joined()
    joined_again = leader.joined()
    assert (told.generation_id, joined_again.generation_id) == (2, 2)
    assert told.leader == joined_again.leader == leader.member_id
    assert told.members == []
    assert {m.member_id for m in joined_again.members} == {leader.member_id, follower.member_id}
    follower.send_sync({})
    leader.send_sync({leader.member_id: b"mine", follower.member_id: b"yours"})
    assert leader.synced().assignment == b"mine"
    assert follower.synced().assignment == b"yours"


def test_a_connection_that_ends_while_joining_does_no_harm(table: Table) -> None:
    leader, gone = table.member(), table.member(version=3)
    leader.settle()
    gone.send_join()
    while leader.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    gone.wire.close()
    joined = leader.join()
    assert joined.generation_id == 2
    assert len(joined.members) == 2  # until its session is over, or its client says that it is out
    assert leader.sync({leader.member_id: b"x"}).error_code == 0


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 3, 4, 7, 9])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "", "session_timeout_ms": 0, "protocols": []}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "nowhere", "member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [JoinGroupRequestProtocol(name="other", metadata=b"")]},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
    ],
)
def test_joins_that_are_refused(table: Table, version: int, changes: dict[str, Any], code: ErrorCode) -> None:
    there = table.member(version=version)
    there.settle()
    refused = there.wire.ask(Member(there.wire).request(**changes), version)
    assert refused.error_code == code
    assert refused.member_id == changes.get("member_id", "")
    assert refused.generation_id == -1
    assert there.heartbeat() == 0
    assert table.broker.context.groups.list_groups() == [G]


def test_an_instance_id_of_any_length_is_refused(table: Table) -> None:
    member = table.member(group_instance_id="x" * 256)
    assert member.join().error_code == ErrorCode.INVALID_REQUEST


def test_unknown_members(table: Table) -> None:
    member = table.member()
    member.settle()
    assert member.heartbeat(member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.heartbeat(generation_id=7) == ErrorCode.ILLEGAL_GENERATION
    assert member.heartbeat(group_id="nowhere") == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.sync(protocol_name="other").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.sync(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger = table.member()
    stranger.member_id, stranger.generation = "nobody", 1
    assert stranger.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [each.error_code for each in stranger.leave().members] == [ErrorCode.UNKNOWN_MEMBER_ID]
    stranger.group = "nowhere"
    assert stranger.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [each.error_code for each in stranger.leave().members] == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert member.heartbeat() == 0


def test_members_of_a_group_without_a_name(table: Table) -> None:
    member = table.member()
    member.settle()
    assert member.heartbeat(group_id="") == ErrorCode.INVALID_GROUP_ID
    member.group = ""
    assert member.sync().error_code == ErrorCode.INVALID_GROUP_ID
    assert member.leave().error_code == ErrorCode.INVALID_GROUP_ID


def test_a_group_takes_no_more_than_its_maximum() -> None:
    with Broker(group_max_size=2) as broker, ExitStack() as connections:
        table = Table(broker, connections)
        first, second, third = table.member(), table.member(), table.member(version=3)
        first.settle()
        second.send_join()
        while first.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        assert third.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        first.send_join()  # who is in, stays in
        assert second.joined().error_code == 0
        assert first.joined().error_code == 0


def test_there_are_no_more_groups_than_the_maximum() -> None:
    with Broker(max_groups=2) as broker, ExitStack() as connections:
        table = Table(broker, connections)
        for number in range(2):
            table.member(f"group-{number}").settle()
        assert table.member("group-2").join().error_code == ErrorCode.POLICY_VIOLATION
        assert broker.context.groups.list_groups() == ["group-0", "group-1"]


# -- static members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_member_resumes_its_membership(table: Table, version: int) -> None:
    before = table.member(group_instance_id="one", version=version)
    before.settle()
    after = table.member(group_instance_id="one", version=version)
    joined = after.join()
    assert (joined.error_code, joined.generation_id) == (0, before.generation)  # no rebalance
    assert after.member_id != before.member_id
    if version >= 9:
        assert (joined.skip_assignment, joined.leader) == (True, after.member_id)
        assert [m.group_instance_id for m in joined.members] == ["one"]
    else:
        assert joined.leader != after.member_id  # or it would assign once more
    assert after.sync().assignment == b"all"
    assert before.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert before.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert [each.error_code for each in before.leave().members] == [ErrorCode.FENCED_INSTANCE_ID]
    assert before.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert after.heartbeat() == 0


def test_the_leader_learns_which_members_are_static(table: Table) -> None:
    leader, static = table.member(), table.member(group_instance_id="one")
    leader.settle()
    static.send_join()
    while leader.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    members = leader.join().members
    static.joined()
    assert {m.member_id: m.group_instance_id for m in members} == {
        leader.member_id: None,
        static.member_id: "one",
    }


def test_several_leave_at_once_and_by_their_instance_ids(table: Table, wire: Wire) -> None:
    table.member(group_instance_id="one").settle()
    request = LeaveGroupRequest(
        group_id=G,
        members=[
            MemberIdentity(member_id="", group_instance_id="one", reason=None),
            MemberIdentity(member_id="", group_instance_id="two", reason=None),
            MemberIdentity(member_id="nobody", group_instance_id=None, reason=None),
        ],
    )
    left = wire.ask(request, 5)
    assert left.error_code == 0
    assert [(m.group_instance_id, m.error_code) for m in left.members] == [
        ("one", ErrorCode.NONE),
        ("two", ErrorCode.UNKNOWN_MEMBER_ID),
        (None, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert table.broker.context.groups.describe_group(G).members == ()


# -- finding the coordinator ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_this_broker(broker: Broker, wire: Wire, version: int) -> None:
    request = FindCoordinatorRequest(key=G, key_type=0, coordinator_keys=[G, ""])
    found = wire.ask(request, version)
    ones = found.coordinators if version >= 4 else [found]
    assert (ones[0].error_code, ones[0].node_id) == (0, broker.address.node_id)
    assert (ones[0].host, ones[0].port) == ("127.0.0.1", broker.port)
    if version >= 4:
        assert [one.key for one in ones] == [G, ""]
        assert (ones[1].error_code, ones[1].node_id) == (ErrorCode.INVALID_GROUP_ID, -1)


# -- the end ----------------------------------------------------------------------------------------------


def test_closing_the_broker_does_not_wait_for_a_rebalance() -> None:
    with ExitStack() as connections:
        with Broker(stop_timeout_s=200) as broker:
            table = Table(broker, connections)
            leader, waiting = table.member(), table.member(version=MEMBER_ID_SINCE - 1)
            leader.settle()
            waiting.send_join()
            while leader.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
                pass
        assert waiting.joined().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_broker_on_an_open_log_leaves_its_groups_as_they_are(table: Table) -> None:
    """Embedded consumers and clients are in the same groups."""
    log = table.broker.log
    log.create_topic("t", partitions=2)
    log.append_many("t", [b"x"], partition=0)
    with log.consumer("t", group=G) as embedded:
        assert embedded.poll(10_000)
        client = table.member(version=3)
        client.send_join()
        while len(embedded.assignment()) != 1:
            embedded.poll(10)
        joined = client.joined()
        assert joined.generation_id == 2
        assert joined.leader != client.member_id
        assert client.sync().assignment != b""


def test_clients_find_their_group_as_it_was_when_the_broker_comes_back(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Wire(broker) as wire:
        member = Member(wire, version=5)
        member.join()
        member.sync({member.member_id: b"all of it"})
        generation = member.generation
    with Broker(tmp_path) as broker, Wire(broker) as wire:
        again = Member(wire, version=5)
        again.member_id, again.generation = member.member_id, generation
        eventually(lambda: broker.context.groups.is_loaded, "loaded")
        assert again.heartbeat() == 0
        assert again.sync({}).assignment == b"all of it"
        described = broker.context.groups.describe_group(G)
        assert (described.state.value, described.generation) == ("Stable", generation)
        assert again.leave().error_code == 0


def test_a_client_that_does_not_come_back_loses_its_place(tmp_path: Path) -> None:
    with Broker(tmp_path, group_min_session_timeout_ms=1) as broker, Wire(broker) as wire:
        member = Member(wire, version=5, session_timeout_ms=100)
        member.join()
        member.sync({member.member_id: b"all of it"})
    with Broker(tmp_path) as broker:
        eventually(lambda: broker.context.groups.is_loaded, "loaded")

        def nobody_is_left() -> bool:
            with suppress(GroupNotFound):  # without members and offsets it goes itself
                return not broker.context.groups.describe_group(G).members
            return True

        eventually(nobody_is_left, "its session is over")


def test_a_program_that_opens_the_log_finds_no_members(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Wire(broker) as wire:
        member = Member(wire, version=5)
        member.join()
        member.sync({member.member_id: b"all of it"})
    with embedlog.open(tmp_path) as log:
        assert isinstance(log.backend, WriterBackend)
        assert log.backend.coordinator.describe_group(G).members == ()


def test_consumers_that_close_while_they_join_leave_their_places() -> None:
    """The broker would wait for more members for an hour, and has places for two."""
    with (
        Broker(group_max_size=2, group_initial_rebalance_delay_ms=3_600_000) as broker,
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
    ):
        log.create_topic("t")
        for _ in range(10):
            with log.consumer("t", group=G) as consumer:
                consumer.poll(0)
            eventually(lambda: all(each.name != "embedlog-group" for each in threading.enumerate()))
        with log.consumer("t", group=G) as consumer:
            consumer.poll(0)
            eventually(lambda: len(log.group(G).members()) == 1)


def test_a_member_that_only_stops_sending_gets_its_join_answered(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", shared=True) as log, ExitStack() as connections:
        first, second = (Member(connections.enter_context(Wire.to_owner(tmp_path / "log"))) for _ in range(2))
        first.join()
        first.sync({first.member_id: b""})
        second.send_join()
        second.wire.socket.shutdown(socket.SHUT_WR)
        backend = log.backend
        assert isinstance(backend, WriterBackend)
        server = backend._socket._server
        assert isinstance(server, OwnerServer)
        eventually(
            lambda: any(
                each.half_closed for processor in server._server.processors for each in processor.connections
            )
        )
        first.send_join()
        assert second.joined().error_code == 0
        assert second.wire.is_closed_by_peer()
        assert first.joined().generation_id == second.generation == 2
