"""Requests of every API, about a topic, a group and a transactional id of one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from wire import Wire, batch_of

from embedlog.cluster import Broker
from embedlog.wire import apis
from embedlog.wire.apis import APIS
from embedlog.wire.frames import decode_response_header
from embedlog.wire.messages import Request
from embedlog.wire.schema import NO_UUID

THERE: Final = "secret-a"
MISSING: Final = "secret-b"
MISSING_ID: Final = bytes(range(100, 116))
BY_EXCHANGE: Final = {exchange.api.name: exchange for exchange in APIS.values()}


class Named(NamedTuple):
    """What a request is about: a topic, a group and a transactional id of this name."""

    name: str
    topic_id: bytes


def made(api: str, kind: str, **fields: Any) -> Any:
    """A message or a part of one, of an API's module."""
    module = __import__(f"{apis.__name__}.{_module(api)}", fromlist=[kind])
    return getattr(module, kind)(**fields)


def _module(api: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in api).lstrip("_")


def request(api: str, **fields: Any) -> Request:
    found: Request = made(api, f"{api}Request", **fields)
    return found


def _topics(api: str, kind: str, part: str | None, n: Named, **fields: Any) -> list[Any]:
    """One topic with one partition, by name and, where there is one, by id."""
    topic = made(api, kind)
    for field, value in (("name", n.name), ("topic", n.name), ("topic_name", n.name)):
        if hasattr(topic, field):
            setattr(topic, field, value)
    if hasattr(topic, "topic_id"):
        topic.topic_id = n.topic_id
    for field in ("partitions", "partition_indexes", "partition_data"):
        if hasattr(topic, field):
            setattr(topic, field, [0 if part is None else made(api, part, **fields)])
    return [topic]


def _produce(n: Named) -> Request:
    topics = _topics("Produce", "TopicProduceData", "PartitionProduceData", n, records=batch_of(b"x"))
    return request("Produce", acks=1, timeout_ms=1000, topic_data=topics)


def _metadata(n: Named, *, by_id: bool = False) -> Request:
    topic = made("Metadata", "MetadataRequestTopic", name=None if by_id else n.name)
    topic.topic_id = n.topic_id if by_id else NO_UUID
    return request("Metadata", topics=[topic], include_topic_authorized_operations=True)


def _configs(api: str, kind: str) -> Callable[[Named], Request]:
    return lambda n: request(
        api,
        resources=[
            made(api, kind, resource_type=type, resource_name=name)
            for type, name in ((2, n.name), (32, n.name), (4, "0"))
        ],
    )


def _offset_fetch(n: Named) -> Request:
    api = "OffsetFetch"
    group = made(api, "OffsetFetchRequestGroup", group_id=n.name)
    group.topics = _topics(api, "OffsetFetchRequestTopics", None, n)
    return request(
        api, group_id=n.name, topics=_topics(api, "OffsetFetchRequestTopic", None, n), groups=[group]
    )


def _add_partitions(n: Named) -> Request:
    api = "AddPartitionsToTxn"
    topics = _topics(api, "AddPartitionsToTxnTopic", None, n)
    asked = made(api, "AddPartitionsToTxnTransaction", transactional_id=n.name, topics=topics)
    return request(
        api, v3_and_below_transactional_id=n.name, v3_and_below_topics=topics, transactions=[asked]
    )


def _markers(n: Named) -> Request:
    api = "WriteTxnMarkers"
    topics = _topics(api, "WritableTxnMarkerTopic", None, n)
    return request(api, markers=[made(api, "WritableTxnMarker", producer_id=1, topics=topics)])


def _share_offsets(n: Named) -> Request:
    api = "DescribeShareGroupOffsets"
    topics = _topics(api, f"{api}RequestTopic", None, n)
    return request(api, groups=[made(api, f"{api}RequestGroup", group_id=n.name, topics=topics)])


def _delete_topics(n: Named, *, by_id: bool = False) -> Request:
    api = "DeleteTopics"
    state = made(api, "DeleteTopicState", name=None if by_id else n.name)
    state.topic_id = n.topic_id if by_id else NO_UUID
    return request(api, topic_names=[n.name], topics=[state], timeout_ms=1000)


def _of_topics(api: str, kind: str, part: str | None = None, **fields: Any) -> Callable[[Named], Request]:
    return lambda n: request(api, topics=_topics(api, kind, part, n, **fields))


def _of_group(api: str, **fields: Any) -> Callable[[Named], Request]:
    return lambda n: request(api, group_id=n.name, **fields)


REQUESTS: Final[dict[str, Callable[[Named], Request]]] = {
    "Produce": _produce,
    "Fetch": _of_topics("Fetch", "FetchTopic", "FetchPartition", partition_max_bytes=1000),
    "ListOffsets": _of_topics("ListOffsets", "ListOffsetsTopic", "ListOffsetsPartition", timestamp=-1),
    "Metadata": _metadata,
    "OffsetCommit": lambda n: request(
        "OffsetCommit",
        group_id=n.name,
        generation_id_or_member_epoch=-1,
        topics=_topics("OffsetCommit", "OffsetCommitRequestTopic", "OffsetCommitRequestPartition", n),
    ),
    "OffsetFetch": _offset_fetch,
    "FindCoordinator": lambda n: request("FindCoordinator", key=n.name, coordinator_keys=[n.name]),
    "JoinGroup": _of_group("JoinGroup", session_timeout_ms=10_000, protocol_type="consumer"),
    "Heartbeat": _of_group("Heartbeat"),
    "LeaveGroup": _of_group("LeaveGroup"),
    "SyncGroup": _of_group("SyncGroup"),
    "DescribeGroups": lambda n: request(
        "DescribeGroups", groups=[n.name], include_authorized_operations=True
    ),
    "ListGroups": lambda n: request("ListGroups"),
    "CreateTopics": lambda n: request(
        "CreateTopics",
        topics=[made("CreateTopics", "CreatableTopic", name=n.name, num_partitions=1, replication_factor=1)],
        timeout_ms=1000,
        validate_only=True,
    ),
    "DeleteTopics": _delete_topics,
    "DeleteRecords": _of_topics("DeleteRecords", "DeleteRecordsTopic", "DeleteRecordsPartition"),
    "InitProducerId": lambda n: request(
        "InitProducerId", transactional_id=n.name, transaction_timeout_ms=1000
    ),
    "OffsetForLeaderEpoch": _of_topics(
        "OffsetForLeaderEpoch", "OffsetForLeaderTopic", "OffsetForLeaderPartition"
    ),
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": lambda n: request("AddOffsetsToTxn", transactional_id=n.name, group_id=n.name),
    "EndTxn": lambda n: request("EndTxn", transactional_id=n.name),
    "WriteTxnMarkers": _markers,
    "TxnOffsetCommit": lambda n: request(
        "TxnOffsetCommit",
        transactional_id=n.name,
        group_id=n.name,
        topics=_topics(
            "TxnOffsetCommit", "TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition", n
        ),
    ),
    "DescribeAcls": lambda n: request(
        "DescribeAcls", resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    ),
    "CreateAcls": lambda n: request("CreateAcls", creations=[made("CreateAcls", "AclCreation")]),
    "DeleteAcls": lambda n: request("DeleteAcls", filters=[made("DeleteAcls", "DeleteAclsFilter")]),
    "DescribeConfigs": _configs("DescribeConfigs", "DescribeConfigsResource"),
    "AlterConfigs": _configs("AlterConfigs", "AlterConfigsResource"),
    "IncrementalAlterConfigs": _configs("IncrementalAlterConfigs", "AlterConfigsResource"),
    "DescribeLogDirs": lambda n: request("DescribeLogDirs", topics=None),
    "CreatePartitions": lambda n: request(
        "CreatePartitions",
        topics=[made("CreatePartitions", "CreatePartitionsTopic", name=n.name, count=3)],
        timeout_ms=1000,
        validate_only=True,
    ),
    "DeleteGroups": lambda n: request("DeleteGroups", groups_names=[n.name]),
    "ElectLeaders": lambda n: request(
        "ElectLeaders", topic_partitions=_topics("ElectLeaders", "TopicPartitions", None, n)
    ),
    "AlterReplicaLogDirs": lambda n: request(
        "AlterReplicaLogDirs",
        dirs=[
            made(
                "AlterReplicaLogDirs",
                "AlterReplicaLogDir",
                topics=_topics("AlterReplicaLogDirs", "AlterReplicaLogDirTopic", None, n),
            )
        ],
    ),
    "AlterPartitionReassignments": lambda n: request("AlterPartitionReassignments"),
    "ListPartitionReassignments": lambda n: request("ListPartitionReassignments", topics=None),
    "OffsetDelete": lambda n: request(
        "OffsetDelete",
        group_id=n.name,
        topics=_topics("OffsetDelete", "OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition", n),
    ),
    "DescribeClientQuotas": lambda n: request("DescribeClientQuotas"),
    "AlterClientQuotas": lambda n: request(
        "AlterClientQuotas", entries=[made("AlterClientQuotas", "RequestEntryData")], validate_only=True
    ),
    "DescribeUserScramCredentials": lambda n: request("DescribeUserScramCredentials", users=None),
    "AlterUserScramCredentials": lambda n: request(
        "AlterUserScramCredentials",
        deletions=[made("AlterUserScramCredentials", "ScramCredentialDeletion", name=n.name, mechanism=1)],
    ),
    "DescribeQuorum": lambda n: request("DescribeQuorum"),
    "DescribeCluster": lambda n: request("DescribeCluster", include_cluster_authorized_operations=True),
    "DescribeProducers": _of_topics("DescribeProducers", "TopicRequest"),
    "DescribeTransactions": lambda n: request("DescribeTransactions", transactional_ids=[n.name]),
    "ListTransactions": lambda n: request("ListTransactions"),
    "ConsumerGroupHeartbeat": _of_group(
        "ConsumerGroupHeartbeat", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=[THERE]
    ),
    "ConsumerGroupDescribe": lambda n: request("ConsumerGroupDescribe", group_ids=[n.name]),
    "ListConfigResources": lambda n: request("ListConfigResources"),
    "DescribeTopicPartitions": _of_topics("DescribeTopicPartitions", "TopicRequest"),
    "ShareGroupHeartbeat": _of_group("ShareGroupHeartbeat", member_id="m"),
    "ShareGroupDescribe": lambda n: request("ShareGroupDescribe", group_ids=[n.name]),
    "ShareFetch": lambda n: request(
        "ShareFetch",
        group_id=n.name,
        member_id="m",
        topics=_topics("ShareFetch", "FetchTopic", "FetchPartition", n),
    ),
    "ShareAcknowledge": lambda n: request("ShareAcknowledge", group_id=n.name, member_id="m"),
    "DescribeShareGroupOffsets": _share_offsets,
    "AlterShareGroupOffsets": lambda n: request(
        "AlterShareGroupOffsets",
        group_id=n.name,
        topics=_topics(
            "AlterShareGroupOffsets",
            "AlterShareGroupOffsetsRequestTopic",
            "AlterShareGroupOffsetsRequestPartition",
            n,
        ),
    ),
    "DeleteShareGroupOffsets": lambda n: request(
        "DeleteShareGroupOffsets",
        group_id=n.name,
        topics=_topics("DeleteShareGroupOffsets", "DeleteShareGroupOffsetsRequestTopic", None, n),
    ),
}
BY_ID: Final[dict[str, tuple[int, Callable[[Named], Request]]]] = {
    "Metadata": (12, lambda n: _metadata(n, by_id=True)),
    "DeleteTopics": (6, lambda n: _delete_topics(n, by_id=True)),
    "Produce": (13, _produce),
    "Fetch": (13, REQUESTS["Fetch"]),
}
LISTS: Final = {  # answered with what may be seen, which is nothing
    "ListGroups": REQUESTS["ListGroups"],
    "ListTransactions": REQUESTS["ListTransactions"],
    "Metadata": lambda n: request("Metadata", topics=None),
    "DescribeTopicPartitions": lambda n: request("DescribeTopicPartitions"),
    "DescribeCluster": REQUESTS["DescribeCluster"],
}


def offered(broker: Broker) -> dict[str, range]:
    with Wire(broker) as wire:
        found = wire.ask(request("ApiVersions", client_software_name="a", client_software_version="1"), 3)
    names = {key: exchange.api.name for key, exchange in APIS.items()}
    return {names[each.api_key]: range(each.min_version, each.max_version + 1) for each in found.api_keys}


def answer(broker: Broker, asked: Request, version: int) -> bytes:
    """The body of the response, on a connection of its own."""
    with Wire(broker) as wire:
        wire.send(asked, version)
        frame = wire.receive_frame()
    return frame[decode_response_header(frame, asked.api, version)[1] :]
