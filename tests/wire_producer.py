"""A transactional producer over a raw connection, by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from wire import Wire, batch_of

from embedlog.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from embedlog.wire.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from embedlog.wire.apis.end_txn import EndTxnRequest
from embedlog.wire.apis.init_producer_id import InitProducerIdRequest
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from embedlog.wire.error_codes import ErrorCode

T, G, TX = "t", "g", "tx"
TIMEOUT_MS = 60_000
V1, V2 = 11, 12  # versions of Produce, before and with transaction.version 2


class Id(NamedTuple):
    number: int
    epoch: int


class Producer:
    """A transactional producer of one of the two transaction.versions."""

    def __init__(self, wire: Wire, *, raises: bool = True, transactional_id: str = TX) -> None:
        self.wire = wire
        self.raises = raises
        self.transactional_id = transactional_id
        self.sequences: dict[tuple[str, int], int] = {}
        self.id = Id(-1, -1)

    def init(self, version: int = 5, **more: Any) -> ErrorCode:
        fields = {"transaction_timeout_ms": TIMEOUT_MS, "transactional_id": self.transactional_id}
        response = self.wire.ask(InitProducerIdRequest(**{**fields, **more}), version)
        if not response.error_code:
            self.id = Id(response.producer_id, response.producer_epoch)
            self.sequences.clear()
        return ErrorCode(response.error_code)

    def add(self, *partitions: int, topic: str = T, version: int = 3) -> list[ErrorCode]:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        response = self.wire.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.id.number,
                v3_and_below_producer_epoch=self.id.epoch,
                v3_and_below_topics=topics,
            ),
            version,
        )
        (of_topic,) = response.results_by_topic_v3_and_below
        return [ErrorCode(each.partition_error_code) for each in of_topic.results_by_partition]

    def batch(self, *values: bytes, partition: int = 0) -> bytes:
        sequence = self.sequences.get((T, partition), 0)
        return batch_of(
            *values,
            producer_id=self.id.number,
            producer_epoch=self.id.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def request(self, batches: dict[int, bytes]) -> ProduceRequest:
        data = [PartitionProduceData(index=number, records=batch) for number, batch in batches.items()]
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=T, partition_data=data)],
        )

    def send(self, *values: bytes, partition: int = 0, version: int = 0) -> ErrorCode:
        version = version or (V2 if self.raises else V1)
        request = self.request({partition: self.batch(*values, partition=partition)})
        (part,) = self.wire.ask(request, version).responses[0].partition_responses
        if not part.error_code:
            key = T, partition
            self.sequences[key] = self.sequences.get(key, 0) + len(values)
        return ErrorCode(part.error_code)

    def end(self, *, commit: bool, version: int = 0) -> ErrorCode:
        version = version or (5 if self.raises else 4)
        response = self.wire.ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.id.number,
                producer_epoch=self.id.epoch,
                committed=commit,
            ),
            version,
        )
        if version >= 5:
            assert (response.producer_id < 0) is bool(response.error_code)
            if not response.error_code:
                self.id = Id(response.producer_id, response.producer_epoch)
                self.sequences.clear()
        return ErrorCode(response.error_code)

    def add_offsets(self, group: str = G, version: int = 4) -> ErrorCode:
        response = self.wire.ask(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.id.number,
                producer_epoch=self.id.epoch,
                group_id=group,
            ),
            version,
        )
        return ErrorCode(response.error_code)

    def commit_offsets(
        self, offsets: dict[int, int], *, version: int = 0, metadata: str = "", **member: Any
    ) -> list[ErrorCode]:
        parts = [
            TxnOffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=metadata
            )
            for number, offset in offsets.items()
        ]
        response = self.wire.ask(
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=G,
                producer_id=self.id.number,
                producer_epoch=self.id.epoch,
                topics=[TxnOffsetCommitRequestTopic(name=T, partitions=parts)],
                **{"group_instance_id": None, **member},
            ),
            version or (5 if self.raises else 3),
        )
        return [ErrorCode(each.error_code) for each in response.topics[0].partitions]
