"""The versions of Kafka's APIs that this client supports.

Topics are identified by name here, so versions with topic ids alone are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPOKEN: Final[Mapping[str, tuple[int, int]]] = {
    "AddPartitionsToTxn": (4, 5),
    "AlterClientQuotas": (0, 1),
    "AlterUserScramCredentials": (0, 0),
    "ApiVersions": (0, 4),
    "CreateAcls": (1, 3),
    "CreatePartitions": (0, 3),
    "CreateTopics": (4, 7),
    "DeleteAcls": (1, 3),
    "DeleteGroups": (0, 2),
    "DeleteRecords": (0, 2),
    "DeleteTopics": (1, 5),
    "DescribeAcls": (1, 3),
    "DescribeClientQuotas": (0, 1),
    "DescribeConfigs": (1, 4),
    "DescribeGroups": (0, 5),
    "DescribeLogDirs": (0, 4),
    "DescribeProducers": (0, 0),
    "DescribeShareGroupOffsets": (0, 1),
    "DescribeTransactions": (0, 0),
    "DescribeUserScramCredentials": (0, 0),
    "EndTxn": (5, 5),
    "Fetch": (4, 13),
    "FindCoordinator": (0, 3),
    "Heartbeat": (0, 4),
    "IncrementalAlterConfigs": (0, 1),
    "InitProducerId": (0, 5),
    "JoinGroup": (1, 9),
    "LeaveGroup": (0, 5),
    "ListGroups": (0, 5),
    "ListOffsets": (1, 10),
    "ListTransactions": (0, 1),
    "Metadata": (4, 12),
    "OffsetCommit": (2, 10),
    "OffsetDelete": (0, 0),
    "OffsetFetch": (2, 7),
    "Produce": (3, 12),
    "SaslAuthenticate": (0, 2),
    "SaslHandshake": (1, 1),
    "ShareAcknowledge": (2, 2),
    "ShareFetch": (2, 2),
    "ShareGroupDescribe": (1, 1),
    "ShareGroupHeartbeat": (1, 1),
    "SyncGroup": (0, 5),
    "TxnOffsetCommit": (5, 5),
    "WriteTxnMarkers": (1, 2),
}
"""API -> its oldest and newest version. AddPartitionsToTxn and WriteTxnMarkers are what a broker asks another
one."""
