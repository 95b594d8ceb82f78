"""Three broker processes and a ZooKeeper: what clients see in normal operation and during failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers, cluster
from cli_commands import runner
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from wire import Wire, batch_of, fetch
from zookeepers import WAIT_S, Znodes, eventually

import embedlog
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.describe_quorum import DescribeQuorumRequest
from embedlog.wire.apis.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from embedlog.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.apis.heartbeat import HeartbeatRequest
from embedlog.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.error_codes import ErrorCode

SESSION_MS = 3_000
SHORT = ("--set", f"zookeeper.session.timeout.ms={SESSION_MS}")


@pytest.fixture(scope="module")
def brokers(zookeeper_server: ZooKeepers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A cluster for the tests that leave it as they found it."""
    directory = tmp_path_factory.mktemp("cluster")
    with cluster(directory, f"{zookeeper_server.connect_string}/{directory.name}", 3) as brokers:
        yield brokers


def produced(bootstrap: str, topic: str, values: list[str]) -> None:
    """Send values, by turns to all partitions, and wait until all are acknowledged."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(WAIT_S) == 0
    assert not failed


def consumed(bootstrap: str, topic: str, count: int, group: str) -> list[str]:
    """So many values of a topic, committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    try:

        def more() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
            return len(found) >= count

        eventually(more, f"{count} records of {topic}")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


# -- all is well ---------------------------------------------------------------------------------------


def test_topics_are_changed_through_any_broker(brokers: Brokers) -> None:
    for number in range(3):
        topic = f"through-{number}"
        admin = brokers.admin(number)
        brokers.create(topic, 3, **{"retention.ms": "60000"})
        for other in range(3):
            eventually(lambda o=other, t=topic: set(brokers.leaders(t, o).values()) == {0, 1, 2})
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(WAIT_S)
        for other in range(3):
            eventually(lambda o=other, t=topic: len(brokers.leaders(t, o)) == 6)
        change = ConfigEntry("retention.ms", "120000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", topic, incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        for other in range(3):
            eventually(lambda o=other, t=topic: _config(brokers, o, t) == "120000")
        admin.delete_topics([topic])[topic].result(WAIT_S)
        for other in range(3):
            eventually(lambda o=other, t=topic: not brokers.leaders(t, o))


def _config(brokers: Brokers, number: int, topic: str) -> str:
    resource = ConfigResource("topic", topic)
    admin = brokers.admin(number)
    found: str = admin.describe_configs([resource])[resource].result(WAIT_S)["retention.ms"].value
    return found


def test_every_broker_knows_a_new_topic(brokers: Brokers) -> None:
    def answer(wire: Wire, topic: str, create: bool) -> tuple[int, list[int]]:
        topics = [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        (found,) = wire.ask(request, 9).topics
        return found.error_code, [partition.error_code for partition in found.partitions]

    with ExitStack() as connections:
        wires = [connections.enter_context(Wire(each, host=each.host)) for each in brokers.all]
        for number in range(30):
            topic = f"new-{number}"
            first, *others = wires[number % 3 :] + wires[: number % 3]
            assert answer(first, topic, True) == (0, [0])
            for other in others:
                assert answer(other, topic, False) == (0, [0]), topic
        unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert [answer(wire, "nowhere", False) for wire in wires] == [unknown] * 3


def test_records_reach_their_leaders(brokers: Brokers) -> None:
    brokers.create("shared", 6)
    values = [str(number) for number in range(300)]
    produced(brokers[0].address, "shared", values)
    assert sorted(consumed(brokers[1].address, "shared", 300, "reads-all")) == sorted(values)
    sizes: list[int] = []
    for broker in brokers.all:
        with embedlog.open(broker.directory, mode="r") as log:
            ends = [end.log_end_offset for end in log.offsets("shared").values()]
            leaders = brokers.leaders("shared")
            assert all((end > 0) == (leaders[number] == broker.number) for number, end in enumerate(ends))
            sizes.append(sum(ends))
    assert sum(sizes) == 300


def test_requests_for_others_partitions_are_rejected(brokers: Brokers) -> None:
    brokers.create("led", 3)
    leaders = brokers.leaders("led")
    for broker in brokers.all:
        with Wire(broker, host=broker.host) as wire:
            for partition, leader in leaders.items():
                wanted = 0 if leader == broker.number else ErrorCode.NOT_LEADER_OR_FOLLOWER

                def is_answered(wire: Wire = wire, partition: int = partition, wanted: int = wanted) -> bool:
                    return wire.produce("led", batch_of(b"x"), partition=partition).error_code == wanted

                eventually(is_answered, "it knows whether it leads")
                got = wire.ask(fetch("led", 0, partition=partition), 11)
                assert got.responses[0].partitions[0].error_code == wanted
                asked = ListOffsetsTopic(
                    name="led", partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)]
                )
                listed = wire.ask(ListOffsetsRequest(topics=[asked]), 5)
                assert listed.topics[0].partitions[0].error_code == wanted
            unknown = wire.produce("led", batch_of(b"x"), partition=3)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_groups_are_spread_over_the_brokers(brokers: Brokers) -> None:
    groups = [f"group-{number}" for number in range(12)]
    found: list[dict[str, int]] = []
    for broker in brokers.all:
        with Wire(broker, host=broker.host) as wire:

            def coordinators(wire: Wire = wire) -> dict[str, int]:
                asked = wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=groups), 4)
                at = {each.key: each.node_id for each in asked.coordinators if not each.error_code}
                return at if len(at) == len(groups) else {}

            found.append(eventually(coordinators))
            for group, node in found[-1].items():
                beat = HeartbeatRequest(group_id=group, member_id="nobody", generation_id=1)

                def answered(beat: HeartbeatRequest = beat, wire: Wire = wire) -> int:
                    code: int = wire.ask(beat, 3).error_code  # NONE while the groups are being loaded
                    return code

                own = node == broker.number
                wanted = ErrorCode.UNKNOWN_MEMBER_ID if own else ErrorCode.NOT_COORDINATOR
                assert eventually(answered) == wanted
    assert found[0] == found[1] == found[2]
    assert set(found[0].values()) == {0, 1, 2}


def test_kafkas_tools_read_the_registry(brokers: Brokers) -> None:
    brokers.create("found", 2, **{"cleanup.policy": "compact"})
    with Znodes(brokers.connect).client() as client:

        def read(path: str) -> Any:
            node = client.get(path)
            assert node is not None, path
            return json.loads(node.data)

        for broker in brokers.all:
            registered = read(paths.broker(broker.number))
            assert registered["endpoints"] == [f"PLAINTEXT://{broker.address}"]
            assert (registered["host"], registered["port"]) == (broker.host, broker.port)
            assert {"version", "jmx_port", "timestamp", "listener_security_protocol_map"} <= set(registered)
        assert read(paths.CLUSTER_ID)["id"] == brokers[0].began["cluster_id"]
        assert read(paths.CONTROLLER)["brokerid"] in {0, 1, 2}
        assert read(paths.CONTROLLER_EPOCH) >= 1
        assert read(paths.topic_config("found")) == {"version": 1, "config": {"cleanup.policy": "compact"}}
        topic = read(paths.topic("found"))
        leaders = brokers.leaders("found")
        assert topic["partitions"] == {str(number): [leader] for number, leader in leaders.items()}
        for number, leader in leaders.items():
            state = read(paths.partition_state("found", number))
            assert (state["leader"], state["isr"], state["leader_epoch"]) == (leader, [leader], 0)


# -- all is not well -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_broker_comes_back_with_all_acknowledged_records(zookeeper: Znodes, tmp_path: Path) -> None:
    with cluster(tmp_path, zookeeper.connect, 3, *SHORT) as brokers:
        brokers.create("kept", 3)
        produced(brokers.bootstrap, "kept", [str(number) for number in range(300)])
        consumed(brokers.bootstrap, "kept", 300, "goes-on")
        for broker in brokers.all:
            broker.kill()
            others = [each.number for each in brokers.all if each is not broker]
            eventually(
                lambda b=broker, o=others: -1 in brokers.leaders("kept", o[0]).values(), "it is missed"
            )
            broker.start()
            for number in range(3):
                eventually(lambda n=number: set(brokers.leaders("kept", n).values()) == {0, 1, 2})
        produced(brokers.bootstrap, "kept", [str(number) for number in range(300, 400)])
        rest = consumed(brokers.bootstrap, "kept", 100, "goes-on")
        assert sorted(rest, key=int) == [str(number) for number in range(300, 400)]
        assert len(consumed(brokers.bootstrap, "kept", 400, "reads-anew")) == 400


@pytest.mark.jvm
def test_a_broker_paused_past_its_lease_answers_no_request_and_recovers(
    zookeeper: Znodes, tmp_path: Path
) -> None:
    with cluster(tmp_path, zookeeper.connect, 2, *SHORT) as brokers:
        brokers.create("t", 2)
        leaders = brokers.leaders("t")
        partition = next(number for number, leader in leaders.items() if leader == 1)
        stopped = brokers[1]
        with Wire(stopped, host=stopped.host) as wire:

            def taken() -> bool:
                return wire.produce("t", batch_of(b"before"), partition=partition).error_code == 0

            eventually(taken, "it knows that it leads")
            stopped.pause()
            eventually(lambda: brokers.leaders("t")[partition] == -1, "its session is over")
            stopped.resume()
            with pytest.raises(ConnectionError):
                wire.produce("t", batch_of(b"late"), partition=partition)
        eventually(lambda: brokers.leaders("t")[partition] == 1, "it leads again")
        eventually(lambda: brokers.leaders("t", 1)[partition] == 1)
        with Wire(stopped, host=stopped.host) as wire:
            got = eventually(
                lambda: wire.produce("t", batch_of(b"after"), partition=partition).error_code == 0
            )
            assert got
        with Znodes(zookeeper.connect).client() as client:
            node = client.get(paths.partition_state("t", partition))
            assert node is not None
            # One epoch without a leader, one with it again: more if this machine was slow.
            assert contents.LeaderAndIsr.decode(node.data).leader_epoch >= 2


@pytest.mark.jvm
def test_a_paused_controller_makes_no_late_decision(zookeeper: Znodes, tmp_path: Path) -> None:
    with cluster(tmp_path, zookeeper.connect, 3, *SHORT) as brokers, zookeeper.client() as client:

        def controller() -> int:
            node = client.get(paths.CONTROLLER)
            return -1 if node is None else contents.Controller.decode(node.data).broker

        def epoch() -> int:
            node = client.get(paths.CONTROLLER_EPOCH)
            assert node is not None
            return contents.decode_number(node.data)

        first, before = controller(), epoch()
        brokers[first].pause()
        eventually(lambda: controller() not in (-1, first), "another one is elected")
        others = [number for number in range(3) if number != first]
        admin = brokers.admin(*others)
        eventually(lambda: len(brokers.admin(others[0]).list_topics(timeout=WAIT_S).brokers) == 2)
        admin.create_topics([NewTopic("meanwhile", 4, 1)])["meanwhile"].result(WAIT_S)
        brokers[first].resume()
        eventually(lambda: set(brokers.admin(first).list_topics(timeout=WAIT_S).brokers) == {0, 1, 2})
        assert controller() != first
        assert epoch() > before
        for number in range(4):
            node = client.get(paths.partition_state("meanwhile", number))
            assert node is not None
            assert contents.LeaderAndIsr.decode(node.data).controller_epoch > before


@pytest.mark.jvm
def test_the_cluster_survives_dying_zookeeper_servers(zookeeper_ensemble: ZooKeepers, tmp_path: Path) -> None:
    connect = f"{zookeeper_ensemble.connect_string}/{tmp_path.name}"
    with cluster(tmp_path, connect, 3) as brokers:
        brokers.create("t", 3)
        for server in zookeeper_ensemble.servers:
            server.kill()
            produced(brokers.bootstrap, "t", [str(number) for number in range(50)])
            brokers.create(f"without-{server.number}", 3)
            server.start()
            server.wait_until_ready()
        assert len(consumed(brokers.bootstrap, "t", 150, "g")) == 150


@pytest.mark.jvm
def test_a_broker_may_change_its_address(zookeeper: Znodes, tmp_path: Path) -> None:
    with cluster(tmp_path, zookeeper.connect, 2) as brokers:
        brokers.create("t", 2)
        produced(brokers.bootstrap, "t", [str(number) for number in range(100)])
        consumed(brokers.bootstrap, "t", 100, "g")
        moving = brokers[1]
        moving.stop()
        moving.directory = moving.directory.rename(tmp_path / "elsewhere")
        moving.host, moving.port = "127.0.0.40", 0
        moving.start()
        eventually(lambda: set(brokers.leaders("t").values()) == {0, 1})
        produced(brokers[0].address, "t", [str(number) for number in range(100, 200)])
        assert sorted(consumed(brokers[0].address, "t", 100, "g"), key=int) == [
            str(number) for number in range(100, 200)
        ]


@pytest.mark.jvm
def test_a_standalone_brokers_directory_joins_a_cluster(zookeeper: Znodes, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "broker-0") as log:
        log.create_topic("old", partitions=2)
        for number in range(10):
            log.append("old", str(number).encode(), partition=number % 2)
        with log.consumer("old", group="g") as consumer:
            consumer.poll(max_records=10)
            consumer.commit()
    with cluster(tmp_path, zookeeper.connect, 2) as brokers:
        eventually(lambda: set(brokers.leaders("old", 1).values()) == {0}, "broker 1 has heard of it")
        produced(brokers[1].address, "old", ["10", "11"])
        assert sorted(consumed(brokers[1].address, "old", 2, "g"), key=int) == ["10", "11"]
    served = subprocess.run(
        [sys.executable, "-m", "embedlog", "serve", str(tmp_path / "broker-0"), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert served.returncode == 2
    assert "give its ZooKeeper" in served.stderr.replace("\n", " ")


def test_a_second_broker_of_the_same_id_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    second = subprocess.run(
        [
            *(sys.executable, "-m", "embedlog", "serve", str(tmp_path / "x"), "--port", "0"),
            *("--broker-id", "1", "--zookeeper", brokers.connect),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert second.returncode == 2
    assert f"taken by the broker at {brokers[1].address}" in second.stderr.replace("\n", " ")


@pytest.mark.jvm
def test_a_broker_may_run_its_own_zookeeper(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "embedlog", "serve", str(tmp_path / "log"), "--port", "0", "--json"),
        *("--zookeeper", f"127.0.0.1:{port}/kafka", "--with-zookeeper"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        began = json.loads(process.stdout.readline())
        assert began["zookeeper"] == f"127.0.0.1:{port}/kafka"
        produced(began["listening"], "t", ["1"])
        process.terminate()
        assert process.wait(WAIT_S) == 0
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 1):
        pass


def test_more_replicas_than_one_are_refused(brokers: Brokers) -> None:
    admin = brokers.admin()
    with pytest.raises(KafkaException, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic("three", 1, 3)])["three"].result(WAIT_S)


def test_a_partition_stays_with_its_broker(zookeeper: Znodes, tmp_path: Path) -> None:
    with (
        cluster(tmp_path, zookeeper.connect, 2, *SHORT) as brokers,
        Wire(brokers[0], host=brokers[0].host) as wire,
    ):
        brokers.create("t", 2)
        eventually(lambda: set(brokers.leaders("t", 0).values()) == {0, 1}, "broker 0 knows the leaders")
        (number,) = [partition for partition, leader in brokers.leaders("t", 0).items() if leader == 1]

        def moved_to(replicas: list[int]) -> int:
            asked = ReassignablePartition(partition_index=number, replicas=replicas)
            topics = [ReassignableTopic(name="t", partitions=[asked])]
            response = wire.ask(AlterPartitionReassignmentsRequest(topics=topics), 1)
            return int(response.responses[0].partitions[0].error_code)

        def elected(kind: int, topics: list[TopicPartitions] | None) -> list[tuple[str, int, int]]:
            response = wire.ask(ElectLeadersRequest(election_type=kind, topic_partitions=topics), 2)
            return [
                (topic.topic, each.partition_id, each.error_code)
                for topic in response.replica_election_results
                for each in topic.partition_result
            ]

        def described() -> DescribeTopicPartitionsResponsePartition:
            response = wire.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0)
            found: DescribeTopicPartitionsResponsePartition = response.topics[0].partitions[number]
            return found

        offered = {each.api_key for each in wire.ask(ApiVersionsRequest(), 2).api_keys}
        assert DescribeQuorumRequest.api.key not in offered
        assert moved_to([1]) == ErrorCode.NONE
        assert moved_to([0]) == moved_to([1, 0]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        this = [TopicPartitions(topic="t", partitions=[number])]
        assert elected(0, this) == [("t", number, ErrorCode.ELECTION_NOT_NEEDED)]
        assert elected(0, None) == []
        assert (described().leader_id, described().offline_replicas) == (1, [])

        brokers[1].kill()
        eventually(lambda: described().leader_id == -1, "broker 1 is missed")
        eventually(lambda: described().offline_replicas == [1], "it is no longer there")
        assert described().error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert described().replica_nodes == [1]
        assert elected(0, None) == [("t", number, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
        assert elected(1, this) == [("t", number, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
        assert moved_to([0]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_describe_cluster(
    zookeeper: Znodes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(capsys, tmp_path, monkeypatch)

    def describe(address: str) -> Any:
        described = run("cluster", "describe", "--json", f"kafka://{address}")
        assert described.code == 0, described.err
        return json.loads(described.out)

    with cluster(tmp_path, zookeeper.connect, 3, *SHORT) as brokers:
        brokers.create("t", 6)
        produced(brokers.bootstrap, "t", [str(number) for number in range(30)])
        consumed(brokers.bootstrap, "t", 30, "reads")
        produced(brokers.bootstrap, "t", ["30", "31"])

        def described() -> Any:
            found = describe(brokers[1].address)
            assert sum(each["leads"] for each in found["brokers"]) == 6 + 50
            assert sum(each["coordinates"] for each in found["brokers"]) == 1
            return found

        found = eventually(described, "broker 1 knows who leads what")
        assert found["cluster_id"] == brokers[0].began["cluster_id"]
        assert [each["address"] for each in found["brokers"]] == [each.address for each in brokers.all]
        assert found["topics"]["t"] == [brokers.leaders("t")[number] for number in range(6)]
        (group,) = found["groups"]
        assert (group["group"], group["lag"]) == ("reads", 2)
        assert group["coordinator"] in {each.address for each in brokers.all}
        lost = next(each for each in brokers.all if each.address != group["coordinator"])
        lost.kill()
        asked = brokers[(lost.number + 1) % 3]
        monkeypatch.setattr("embedlog.cli.cluster._PATIENCE_MS", 1_000)  # with the one that is down

        def without_it() -> Any:
            found = describe(asked.address)
            assert {each["broker"] for each in found["brokers"]} == {0, 1, 2} - {lost.number}
            assert found["topics"]["t"].count(-1) == 2
            return found

        assert eventually(without_it, "it is missed")["groups"][0]["lag"] is None
        code, text, _ = run("cluster", "describe", "--bootstrap-server", asked.address)
        assert code == 0 and "2 brokers" in text and "none 2" in text


@pytest.mark.jvm
def test_a_directory_is_not_a_cluster(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "embedlog", "cluster", "describe", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 2
    assert "name a broker of the cluster" in said.stderr.replace("\n", " ")
