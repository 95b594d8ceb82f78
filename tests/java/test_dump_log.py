"""Kafka's dump tool reads the records of `__consumer_offsets` and `__share_group_state` as we wrote them.

Needs Java 17 or newer and Maven, which fetches what tools/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import kafka_tools

import embedlog
from embedlog import CommittedOffset, TopicPartition
from embedlog.backends.local import WriterBackend
from embedlog.groups.machines.events import GroupType
from embedlog.groups.machines.modern_member import JOIN, LEAVE, MemberHeartbeat
from embedlog.groups.machines.share_events import ShareChange, ShareKey, StoredShare
from embedlog.model import DeliveryState, StateBatch
from embedlog.runtime.java import java_home

RECORD = re.compile(r"^\| offset: \d+ .* key: (\{.*\}) payload: (.*)$", re.MULTILINE)


def dumped(path: Path, classpath: Path, decoder: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and value of each record in a file of an internal topic; a tombstone's value is None."""
    java = [str(java_home() / "bin" / "java"), "-cp", kafka_tools.classpath(classpath)]
    options = [decoder, "--print-data-log", "--files", str(path)]
    tool = [*java, "org.apache.kafka.tools.DumpLogSegments", *options]
    ran = subprocess.run(tool, capture_output=True, text=True, check=True)
    assert "isvalid: false" not in ran.stdout
    return [
        (json.loads(key), None if value == "<DELETE>" else json.loads(value))
        for key, value in RECORD.findall(ran.stdout)
    ]


def test_the_dump_tool_reads_offsets_and_groups(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", layout="kafka", offsets_topic_num_partitions=1) as log:
        topic_id = log.create_topic("clicks", partitions=2).topic_id
        log.append_many("clicks", [b"x"] * 10, partition=1)
        with log.consumer("clicks", group="grüppe", group_instance_id="i-1", auto_commit=False) as consumer:
            assert next(consumer).offset == 0
            consumer.commit({TopicPartition("clicks", 1): CommittedOffset(7, 0, "half of it")})
        with log.consumer("clicks", group="gone") as consumer:
            next(consumer)
        assert log.backend.coordinator is not None
        log.backend.coordinator.delete_group("gone")
        (segment,) = (tmp_path / "log").glob("__consumer_offsets-0/*.log")
    records = dumped(segment, tmp_path / "classpath", "--offsets-decoder")
    group = {"type": "2", "data": {"group": "grüppe"}}
    offset = {"type": "1", "data": {"group": "grüppe", "topic": "clicks", "partition": 1}}
    key, value = records[0]
    assert key == group
    assert value is not None and value["version"] == "3"
    assert value["data"].pop("currentStateTimestamp") > 0
    (member,) = value["data"].pop("members")
    assert value["data"].pop("leader") == member["memberId"]
    assert value["data"] == {"protocolType": "consumer", "generation": 1, "protocol": "range"}
    assert member["groupInstanceId"] == "i-1"
    assert member["subscription"]["topics"] == ["clicks"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "clicks", "partitions": [0, 1]}]
    (committed,) = (value for key, value in records if key == offset)
    assert committed is not None and committed["version"] == "4"
    assert committed["data"].pop("commitTimestamp") > 0
    assert committed["data"].pop("topicId") == topic_id
    assert committed["data"] == {"offset": 7, "leaderEpoch": 0, "metadata": "half of it"}
    assert ({"type": "2", "data": {"group": "gone"}}, None) in records


def test_the_dump_tool_reads_groups_of_the_consumer_protocol(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", layout="kafka", offsets_topic_num_partitions=1) as log:
        topic_id = log.create_topic("clicks", partitions=2).topic_id
        joins = MemberHeartbeat(
            "m-1", JOIN, rebalance_timeout_ms=60_000, topics=(), owned=frozenset(), pattern="cl.*"
        )
        coordinator = log.backend.coordinator
        coordinator.member_heartbeat(GroupType.CONSUMER, "grüppe", joins, session_timeout_ms=45_000)
        (segment,) = (tmp_path / "log").glob("__consumer_offsets-0/*.log")
    records = dumped(segment, tmp_path / "classpath", "--offsets-decoder")
    found = {key["type"]: value["data"] for key, value in records if value is not None}
    assert all(key["data"]["groupId"] == "grüppe" for key, _ in records)
    assert found["3"]["epoch"] == 1
    assert (found["5"]["subscribedTopicRegex"], found["5"]["rebalanceTimeoutMs"]) == ("cl.*", 60_000)
    assert found["6"]["assignmentEpoch"] == 1
    (target,) = found["7"]["topicPartitions"]
    assert target == {"topicId": topic_id, "partitions": [0, 1]}
    (assigned,) = found["8"]["assignedPartitions"]
    assert (assigned["topicId"], assigned["partitions"]) == (topic_id, [0, 1])
    assert found["16"]["topics"] == ["clicks"] and found["16"]["timestamp"] > 0


def test_the_dump_tool_reads_members_of_share_groups(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", layout="kafka", offsets_topic_num_partitions=1) as log:
        topic_id = log.create_topic("clicks", partitions=2).topic_id
        coordinator = log.backend.coordinator
        joins = MemberHeartbeat(
            "m-1", JOIN, rack_id="räck", topics=["clicks"], client_id="me", client_host="/127.0.0.1"
        )
        for beat in (joins, joins._replace(member_id="m-2"), MemberHeartbeat("m-2", LEAVE)):
            coordinator.member_heartbeat(GroupType.SHARE, "grüppe", beat, session_timeout_ms=45_000)
        (segment,) = (tmp_path / "log").glob("__consumer_offsets-0/*.log")
    records = dumped(segment, tmp_path / "classpath", "--offsets-decoder")
    assert all(key["data"]["groupId"] == "grüppe" for key, _ in records)
    found = {(key["type"], key["data"].get("memberId")): value for key, value in records}
    gone = {name for name, value in found.items() if value is None}
    assert gone == {("10", "m-2"), ("13", "m-2"), ("14", "m-2")}
    data = {kind: value["data"] for (kind, _), value in found.items() if value is not None}
    assert data["10"] == {
        "rackId": "räck",
        "clientId": "me",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["clicks"],
    }
    assert data["11"]["epoch"] == 3 and data["11"]["metadataHash"] != 0
    assert data["12"] == {"assignmentEpoch": 2}
    assert data["13"]["topicPartitions"] == [{"topicId": topic_id, "partitions": [0, 1]}]
    assert (data["14"]["memberEpoch"], data["14"]["previousMemberEpoch"], data["14"]["state"]) == (1, 0, 0)
    assert data["14"]["assignedPartitions"] == [{"topicId": topic_id, "partitions": [0, 1]}]


def test_the_dump_tool_reads_share_groups(tmp_path: Path) -> None:
    batches = (
        StateBatch(4, 6, DeliveryState.ACKNOWLEDGED, 1),
        StateBatch(7, 7, DeliveryState.AVAILABLE, 3),
        StateBatch(8, 8, DeliveryState.ARCHIVED, 5),
    )
    with embedlog.open(tmp_path / "log", layout="kafka") as log:
        topic_id = log.create_topic("jobs").topic_id
        log.append_many("jobs", [b"x"] * 10)
        assert isinstance(log.backend, WriterBackend)
        state = log.backend.share_state
        key, gone = ShareKey("grüppe", topic_id, 0), ShareKey("gone", topic_id, 0)
        state.begin(key, 2)
        state.begin(gone, 0)
        state.write(key, ShareChange(3, batches), lambda: StoredShare(2))
        state.delete(gone)
        (segment,) = (tmp_path / "log").glob("__share_group_state-0/*.log")
    records = dumped(segment, tmp_path / "classpath", "--share-group-state-decoder")
    about = {"groupId": "grüppe", "topicId": topic_id, "partition": 0}
    (snapshot,) = (value for found, value in records if found == {"type": "0", "data": about})
    assert snapshot is not None and snapshot["version"] == "0"
    assert snapshot["data"].pop("createTimestamp") > 0
    assert snapshot["data"].pop("writeTimestamp") > 0
    epochs = {"snapshotEpoch": 0, "leaderEpoch": 0}
    assert snapshot["data"] == {**epochs, "stateEpoch": 0, "startOffset": 2, "stateBatches": []}
    (update,) = (value for found, value in records if found == {"type": "1", "data": about})
    assert update is not None and update["version"] == "0"
    names = ("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
    written = [dict(zip(names, map(int, batch), strict=True)) for batch in batches]
    assert update["data"] == {**epochs, "startOffset": 3, "stateBatches": written}
    tombstone = {"type": "0", "data": {**about, "groupId": "gone"}}
    assert [value for found, value in records if found == tombstone][-1] is None
