"""A member of a share group over a raw connection."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from wire import Wire

from embedlog.cluster import Broker
from embedlog.codec import decode, scan
from embedlog.wire.apis import share_acknowledge as acknowledging
from embedlog.wire.apis import share_fetch as fetching
from embedlog.wire.apis.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from embedlog.wire.apis.share_fetch import PartitionData, ShareFetchRequest, ShareFetchResponse
from embedlog.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

ACCEPT, RELEASE, REJECT, RENEW = [1], [2], [3], [4]
GAP = [0]

Said = Sequence[tuple[int, int, list[int]]]
"""Ranges of offsets, each with the types of its acknowledgement."""


class Got(NamedTuple):
    """A record that was acquired."""

    partition: int
    offset: int
    value: bytes | None
    delivery_count: int


class ShareMember(Wire):
    """Heartbeats, fetches and acknowledges; the share session's epoch goes up by itself."""

    def __init__(
        self, broker: Broker, topic: str = "t", group: str = "g", member_id: str | None = None
    ) -> None:
        super().__init__(broker)
        self.group, self.member_id = group, member_id or str(uuid.uuid4())
        self.topic, self.topic_id = topic, broker.context.topic_id(topic)
        self.member_epoch = 0
        self.epoch = 0

    def beat(self, epoch: int | None = None, topics: list[str] | None = None) -> ShareGroupHeartbeatResponse:
        response: ShareGroupHeartbeatResponse = self.ask(
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.member_epoch if epoch is None else epoch,
                subscribed_topic_names=topics,
            ),
            1,
        )
        if not response.error_code:
            self.member_epoch = response.member_epoch
        return response

    def join(self) -> ShareMember:
        assert self.beat(0, [self.topic]).error_code == 0
        return self

    def fetch_request(
        self,
        *partitions: int,
        epoch: int | None = None,
        said: Said = (),
        max_records: int = 100,
        max_wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        batch_size: int = 0,
        mode: int = 0,
        forget: Iterable[int] = (),
        renews: bool = False,
    ) -> ShareFetchRequest:
        """`said` is of the first of the partitions. The session's epoch is the next one."""
        its_epoch = self.epoch if epoch is None else epoch
        self.epoch = its_epoch + 1 if its_epoch >= 0 else 0
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=its_epoch,
            max_wait_ms=max_wait_ms,
            max_records=max_records,
            max_bytes=max_bytes,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=renews,
            topics=[
                fetching.FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        fetching.FetchPartition(
                            partition_index=number,
                            acknowledgement_batches=[
                                _batch(fetching.AcknowledgementBatch, *each) for each in said
                            ]
                            if number == partitions[0]
                            else [],
                        )
                        for number in partitions
                    ],
                )
            ]
            if partitions
            else [],
            forgotten_topics_data=[fetching.ForgottenTopic(topic_id=self.topic_id, partitions=list(forget))]
            if forget
            else [],
        )

    def ask_fetch(self, *partitions: int, version: int = 2, **more: object) -> ShareFetchResponse:
        request = self.fetch_request(*partitions, **more)  # type: ignore[arg-type]
        response: ShareFetchResponse = self.ask(request, version)
        return response

    def fetch(self, *partitions: int, **more: object) -> list[Got]:
        return got(self.ask_fetch(*partitions, **more))

    def acknowledge(
        self,
        said: Said,
        partition: int = 0,
        *,
        epoch: int | None = None,
        version: int = 2,
        renews: bool = False,
    ) -> ShareAcknowledgeResponse:
        its_epoch = self.epoch if epoch is None else epoch
        response: ShareAcknowledgeResponse = self.ask(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=its_epoch,
                is_renew_ack=renews,
                topics=[
                    acknowledging.AcknowledgeTopic(
                        topic_id=self.topic_id,
                        partitions=[
                            acknowledging.AcknowledgePartition(
                                partition_index=partition,
                                acknowledgement_batches=[
                                    _batch(acknowledging.AcknowledgementBatch, *each) for each in said
                                ],
                            )
                        ],
                    )
                ]
                if said
                else [],
            ),
            version,
        )
        if not response.error_code:
            self.epoch = its_epoch + 1 if its_epoch >= 0 else 0
        return response

    def said(self, said: Said, partition: int = 0, **more: object) -> int:
        """The error code of an acknowledgement."""
        response = self.acknowledge(said, partition, **more)  # type: ignore[arg-type]
        assert response.error_code == 0, response.error_message
        ((found,),) = [topic.partitions for topic in response.responses]
        return found.error_code


def _batch(cls: type[Any], first: int, last: int, types: list[int]) -> Any:
    return cls(first_offset=first, last_offset=last, acknowledge_types=types)


def data_of(response: ShareFetchResponse, partition: int = 0) -> PartitionData:
    """What a response says of a partition."""
    assert response.error_code == 0, response.error_message
    (found,) = [
        each for topic in response.responses for each in topic.partitions if each.partition_index == partition
    ]
    return found


def got(response: ShareFetchResponse) -> list[Got]:
    """The records that a response calls acquired."""
    assert response.error_code == 0, response.error_message
    found = []
    for topic in response.responses:
        for each in topic.partitions:
            assert each.error_code == 0, each.error_message
            data = bytes(each.records)  # type: ignore[arg-type]
            batches = [decode(data, header, "t", each.partition_index) for header in scan(data).headers]
            records = {record.offset: record for batch in batches for record in batch}
            for acquired in each.acquired_records:
                for offset in range(acquired.first_offset, acquired.last_offset + 1):
                    value = records[offset].value
                    found.append(Got(each.partition_index, offset, value, acquired.delivery_count))
    return found
