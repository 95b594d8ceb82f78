"""Share groups of brokers, to look at: ListGroups, ShareGroupDescribe, DescribeShareGroupOffsets.

Brokers tell where a group is in each partition, and how many records it has not finished (lag, from Kafka 4.2
on). They do not tell which of these are locked, delayed, or have been delivered before: a directory does
(../stored_shares.py). Each broker is asked for the groups that it coordinates.

Source: KIP-932, KIP-1226.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...model import TopicPartition
from ...wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ...wire.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from ...wire.apis.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ...wire.error_codes import ErrorCode
from ...wire_client.settings import Address
from .brokers import Brokers, check_code
from .metadata import Metadata

SHARE_PROTOCOL: Final = "share"
"""The protocol type of a share group."""
_TOGETHER: Final = 100  # groups in a request


class ShareMember(NamedTuple):
    """A member of a share group, with the partitions that it takes records of."""

    member_id: str
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class SharePosition(NamedTuple):
    """Where a share group is in a partition: it has finished all before start_offset. unfinished: how many
    records it has not finished; -1 if the broker does not tell."""

    start_offset: int
    unfinished: int


class RemoteShareGroup(NamedTuple):
    """A share group as its coordinator tells. state is Kafka's name for it: "Stable", "Empty", "Dead"."""

    group: str
    state: str
    members: tuple[ShareMember, ...]
    partitions: dict[TopicPartition, SharePosition]


class RemoteShareGroups:
    """Methods raise UnsupportedByBackend (brokers before Kafka 4.1), BrokerUnavailable, and the errors of the
    codes that brokers answer. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata) -> None:
        self._brokers = brokers
        self._metadata = metadata

    def describe_all(self) -> list[RemoteShareGroup]:
        """All share groups of the cluster, by name."""

        def attempt(deadline: float) -> list[RemoteShareGroup]:
            groups: list[RemoteShareGroup] = []

            def look(node: Address) -> None:
                response = self._brokers.ask(node, ListGroupsRequest(), ListGroupsResponse, deadline)
                check_code(response.error_code, "listing groups")
                names = sorted(
                    group.group_id for group in response.groups if group.protocol_type == SHARE_PROTOCOL
                )
                for first in range(0, len(names), _TOGETHER):
                    groups.extend(self._describe(node, names[first : first + _TOGETHER], deadline))

            self._metadata.ask_each(look, deadline)
            return sorted(groups, key=lambda group: group.group)

        return self._brokers.retried(attempt)

    def _describe(self, node: Address, names: list[str], deadline: float) -> list[RemoteShareGroup]:
        described = self._brokers.ask(
            node, ShareGroupDescribeRequest(group_ids=names), ShareGroupDescribeResponse, deadline
        )
        request_groups = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names]
        response = self._brokers.ask(
            node,
            DescribeShareGroupOffsetsRequest(groups=request_groups),
            DescribeShareGroupOffsetsResponse,
            deadline,
        )
        positions: dict[str, dict[TopicPartition, SharePosition]] = {}
        for group in response.groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                continue
            check_code(
                group.error_code, f"the offsets of share group {group.group_id!r}", group.error_message
            )
            positions[group.group_id] = {
                TopicPartition(topic.topic_name, part.partition_index): SharePosition(
                    part.start_offset, part.lag
                )
                for topic in group.topics
                for part in topic.partitions
                if not part.error_code and part.start_offset >= 0
            }
        groups = []
        for description in described.groups:
            if description.error_code == ErrorCode.GROUP_ID_NOT_FOUND:  # deleted meanwhile
                continue
            check_code(
                description.error_code,
                f"describing share group {description.group_id!r}",
                description.error_message,
            )
            groups.append(
                RemoteShareGroup(
                    description.group_id,
                    description.group_state,
                    _members(description),
                    positions.get(description.group_id, {}),
                )
            )
        return groups


def _members(group: DescribedGroup) -> tuple[ShareMember, ...]:
    return tuple(
        ShareMember(
            member.member_id,
            member.client_id,
            member.client_host,
            tuple(member.subscribed_topic_names),
            tuple(
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for member in group.members
    )
