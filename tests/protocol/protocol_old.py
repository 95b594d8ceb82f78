"""Messages of the versions that Kafka 4, and so kio, no longer has, and their bytes by another encoder.

The bytes are kafka-python 3.0.12's (its kafka.protocol.old), and never made again.
"""

from __future__ import annotations

from embedlog.wire.apis.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from embedlog.wire.apis.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from embedlog.wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from embedlog.wire.apis.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from embedlog.wire.apis.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from embedlog.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from embedlog.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from embedlog.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from embedlog.wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from embedlog.wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from embedlog.wire.messages import Message

MESSAGES: list[tuple[Message, int]] = [
    (
        ProduceRequest(
            acks=-1,
            timeout_ms=1500,
            topic_data=[
                TopicProduceData(
                    name="clicks",
                    partition_data=[
                        PartitionProduceData(index=3, records=b"a message set"),
                        PartitionProduceData(index=4, records=b""),
                    ],
                )
            ],
        ),
        2,
    ),
    (
        ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name="clicks",
                    partition_responses=[
                        PartitionProduceResponse(
                            index=3, error_code=6, base_offset=-1, log_append_time_ms=1_700_000_000_000
                        ),
                        PartitionProduceResponse(index=4, base_offset=1 << 40),
                    ],
                )
            ],
            throttle_time_ms=9,
        ),
        2,
    ),
    (
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic="clicks",
                    partitions=[
                        FetchPartition(partition=3, fetch_offset=1 << 40, partition_max_bytes=65_536),
                        FetchPartition(partition=4, fetch_offset=0, partition_max_bytes=100),
                    ],
                ),
                FetchTopic(topic="vögel"),
            ],
        ),
        3,
    ),
    (
        FetchResponse(
            throttle_time_ms=7,
            responses=[
                FetchableTopicResponse(
                    topic="clicks",
                    partitions=[
                        PartitionData(partition_index=3, high_watermark=1 << 40, records=b"a message set"),
                        PartitionData(partition_index=4, error_code=1, high_watermark=-1, records=b""),
                    ],
                )
            ],
        ),
        3,
    ),
    (
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name="clicks",
                    partitions=[ListOffsetsPartition(partition_index=3, timestamp=-2, max_num_offsets=5)],
                )
            ],
        ),
        0,
    ),
    (
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="clicks",
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=3, old_style_offsets=[1 << 40, 70, 0]),
                        ListOffsetsPartitionResponse(partition_index=4, error_code=3),
                    ],
                )
            ]
        ),
        0,
    ),
    (
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="clicks", partitions=[OffsetForLeaderPartition(partition=3, leader_epoch=17)]
                )
            ]
        ),
        1,
    ),
    (
        OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic="clicks",
                    partitions=[EpochEndOffset(partition=3, leader_epoch=17, end_offset=1 << 40)],
                )
            ]
        ),
        1,
    ),
    (
        OffsetCommitRequest(
            group_id="billing",
            generation_id_or_member_epoch=12,
            member_id="billing-1",
            topics=[
                OffsetCommitRequestTopic(
                    name="clicks",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=3,
                            committed_offset=1 << 40,
                            commit_timestamp=1_700_000_000_000,
                            committed_metadata="at noon",
                        ),
                        OffsetCommitRequestPartition(partition_index=4, committed_offset=0),
                    ],
                )
            ],
        ),
        1,
    ),
    (
        OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name="clicks",
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=3),
                        OffsetCommitResponsePartition(partition_index=4, error_code=12),
                    ],
                )
            ]
        ),
        1,
    ),
    (
        OffsetFetchRequest(
            group_id="billing",
            topics=[OffsetFetchRequestTopic(name="clicks", partition_indexes=[3, 4, 1 << 30])],
        ),
        0,
    ),
    (
        OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name="clicks",
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=3, committed_offset=1 << 40, metadata="at noon"
                        ),
                        OffsetFetchResponsePartition(partition_index=4, committed_offset=-1, error_code=3),
                    ],
                )
            ]
        ),
        0,
    ),
    (
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="clicks",
                    num_partitions=4,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name="retention.ms", value="-1"),
                        CreatableTopicConfig(name="cleanup.policy"),
                    ],
                ),
                CreatableTopic(
                    name="placed",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])],
                ),
            ],
            timeout_ms=30_000,
            validate_only=True,
        ),
        1,
    ),
    (
        CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name="clicks", error_message=None),
                CreatableTopicResult(name="placed", error_code=36, error_message="there already"),
            ]
        ),
        1,
    ),
    (DeleteTopicsRequest(topic_names=["clicks", "placed"], timeout_ms=30_000), 0),
    (
        DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name="clicks"),
                DeletableTopicResult(name="placed", error_code=3),
            ]
        ),
        0,
    ),
    (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=2, resource_name="clicks", configuration_keys=["retention.ms"]
                ),
                DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None),
            ]
        ),
        0,
    ),
    (
        DescribeConfigsResponse(
            throttle_time_ms=2,
            results=[
                DescribeConfigsResult(
                    resource_type=2,
                    resource_name="clicks",
                    configs=[
                        DescribeConfigsResourceResult(name="retention.ms", value="-1", is_default=True),
                        DescribeConfigsResourceResult(name="secret", read_only=True, is_sensitive=True),
                    ],
                )
            ],
        ),
        0,
    ),
    (
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="clicks", partitions=[3, 4])]),
        0,
    ),
    (
        DescribeLogDirsResponse(
            throttle_time_ms=1,
            results=[
                DescribeLogDirsResult(
                    log_dir="/data",
                    topics=[
                        DescribeLogDirsTopic(
                            name="clicks",
                            partitions=[
                                DescribeLogDirsPartition(
                                    partition_index=3, partition_size=1 << 40, offset_lag=0
                                )
                            ],
                        )
                    ],
                )
            ],
        ),
        0,
    ),
]
"""Each with the last of its old versions: its fields say all that an older one has."""

BYTES: dict[tuple[str, int], str] = {
    ("ProduceRequest", 0): (
        "ffff000005dc000000010006636c69636b7300000002000000030000000d61206d657373616765207365740000000400"
        "000000"
    ),
    ("ProduceRequest", 1): (
        "ffff000005dc000000010006636c69636b7300000002000000030000000d61206d657373616765207365740000000400"
        "000000"
    ),
    ("ProduceRequest", 2): (
        "ffff000005dc000000010006636c69636b7300000002000000030000000d61206d657373616765207365740000000400"
        "000000"
    ),
    ("ProduceResponse", 0): (
        "000000010006636c69636b7300000002000000030006ffffffffffffffff0000000400000000010000000000"
    ),
    ("ProduceResponse", 1): (
        "000000010006636c69636b7300000002000000030006ffffffffffffffff000000040000000001000000000000000009"
    ),
    ("ProduceResponse", 2): (
        "000000010006636c69636b7300000002000000030006ffffffffffffffff0000018bcfe5680000000004000000000100"
        "00000000ffffffffffffffff00000009"
    ),
    ("FetchRequest", 0): (
        "ffffffff000001f400000001000000020006636c69636b73000000020000000300000100000000000001000000000004"
        "000000000000000000000064000676c3b667656c00000000"
    ),
    ("FetchRequest", 1): (
        "ffffffff000001f400000001000000020006636c69636b73000000020000000300000100000000000001000000000004"
        "000000000000000000000064000676c3b667656c00000000"
    ),
    ("FetchRequest", 2): (
        "ffffffff000001f400000001000000020006636c69636b73000000020000000300000100000000000001000000000004"
        "000000000000000000000064000676c3b667656c00000000"
    ),
    ("FetchRequest", 3): (
        "ffffffff000001f40000000100100000000000020006636c69636b730000000200000003000001000000000000010000"
        "00000004000000000000000000000064000676c3b667656c00000000"
    ),
    ("FetchResponse", 0): (
        "000000010006636c69636b730000000200000003000000000100000000000000000d61206d6573736167652073657400"
        "0000040001ffffffffffffffff00000000"
    ),
    ("FetchResponse", 1): (
        "00000007000000010006636c69636b730000000200000003000000000100000000000000000d61206d65737361676520"
        "736574000000040001ffffffffffffffff00000000"
    ),
    ("FetchResponse", 2): (
        "00000007000000010006636c69636b730000000200000003000000000100000000000000000d61206d65737361676520"
        "736574000000040001ffffffffffffffff00000000"
    ),
    ("FetchResponse", 3): (
        "00000007000000010006636c69636b730000000200000003000000000100000000000000000d61206d65737361676520"
        "736574000000040001ffffffffffffffff00000000"
    ),
    ("ListOffsetsRequest", 0): ("ffffffff000000010006636c69636b730000000100000003fffffffffffffffe00000005"),
    ("ListOffsetsResponse", 0): (
        "000000010006636c69636b73000000020000000300000000000300000100000000000000000000000046000000000000"
        "000000000004000300000000"
    ),
    ("OffsetForLeaderEpochRequest", 0): ("000000010006636c69636b73000000010000000300000011"),
    ("OffsetForLeaderEpochRequest", 1): ("000000010006636c69636b73000000010000000300000011"),
    ("OffsetForLeaderEpochResponse", 0): ("000000010006636c69636b73000000010000000000030000010000000000"),
    ("OffsetForLeaderEpochResponse", 1): (
        "000000010006636c69636b7300000001000000000003000000110000010000000000"
    ),
    ("OffsetCommitRequest", 0): (
        "000762696c6c696e67000000010006636c69636b730000000200000003000001000000000000076174206e6f6f6e0000"
        "00040000000000000000ffff"
    ),
    ("OffsetCommitRequest", 1): (
        "000762696c6c696e670000000c000962696c6c696e672d31000000010006636c69636b73000000020000000300000100"
        "000000000000018bcfe5680000076174206e6f6f6e000000040000000000000000ffffffffffffffffffff"
    ),
    ("OffsetCommitResponse", 0): ("000000010006636c69636b730000000200000003000000000004000c"),
    ("OffsetCommitResponse", 1): ("000000010006636c69636b730000000200000003000000000004000c"),
    ("OffsetFetchRequest", 0): ("000762696c6c696e67000000010006636c69636b7300000003000000030000000440000000"),
    ("OffsetFetchResponse", 0): (
        "000000010006636c69636b730000000200000003000001000000000000076174206e6f6f6e000000000004ffffffffff"
        "ffffffffff0003"
    ),
    ("CreateTopicsRequest", 0): (
        "000000020006636c69636b730000000400010000000000000002000c726574656e74696f6e2e6d7300022d31000e636c"
        "65616e75702e706f6c696379ffff0006706c61636564ffffffffffff0000000100000000000000020000000100000002"
        "0000000000007530"
    ),
    ("CreateTopicsRequest", 1): (
        "000000020006636c69636b730000000400010000000000000002000c726574656e74696f6e2e6d7300022d31000e636c"
        "65616e75702e706f6c696379ffff0006706c61636564ffffffffffff0000000100000000000000020000000100000002"
        "000000000000753001"
    ),
    ("CreateTopicsResponse", 0): ("000000020006636c69636b7300000006706c616365640024"),
    ("CreateTopicsResponse", 1): (
        "000000020006636c69636b730000ffff0006706c616365640024000d746865726520616c7265616479"
    ),
    ("DeleteTopicsRequest", 0): ("000000020006636c69636b730006706c6163656400007530"),
    ("DeleteTopicsResponse", 0): ("000000020006636c69636b7300000006706c616365640003"),
    ("DescribeConfigsRequest", 0): (
        "00000002020006636c69636b7300000001000c726574656e74696f6e2e6d7304000130ffffffff"
    ),
    ("DescribeConfigsResponse", 0): (
        "00000002000000010000ffff020006636c69636b7300000002000c726574656e74696f6e2e6d7300022d310001000006"
        "736563726574ffff010001"
    ),
    ("DescribeLogDirsResponse", 0): (
        "0000000100000001000000052f64617461000000010006636c69636b7300000001000000030000010000000000000000"
        "000000000000"
    ),
}
