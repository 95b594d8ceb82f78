"""Transactions over the wire: asks the coordinator of a transactional id, and appends its batches.

The brokers, or the owner of a shared log, must have transaction.version 2 (KIP-890). Then a partition is
added to a transaction by its first batch, and a group's offsets by their commit; each end raises the
producer's epoch. So `add_partitions` only checks that there are such partitions.

Each request may be repeated, after a lost response or to the next owner: a batch is recognized by its
sequence number, an end by its epoch, offsets are the same.

Source: KIP-98, KIP-890.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from ...codec import read_header, set_create_time
from ...errors import TransactionNotFound, UnsupportedByBackend
from ...groups.machines.transaction import ProducerIdAndEpoch
from ...model import Appended, CommittedOffset, ProducerDescription, TopicPartition
from ...wire.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from ...wire.apis.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ...wire.apis.describe_transactions import TransactionState as DescribedTransaction
from ...wire.apis.end_txn import EndTxnRequest, EndTxnResponse
from ...wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ...wire.apis.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ...wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ...wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ...wire.transaction_state import TransactionMetadata, TransactionState
from ...wire_client.connection import Connection, NotKafka
from ...wire_client.settings import Address
from .brokers import Brokers, check_code
from .coordinators import Coordinators
from .groups import RemoteCoordinator
from .metadata import Metadata, names_in

_ALL: Final = -1
_NEEDED: Final = 2  # transaction.version
_TOGETHER: Final = 1_000  # transactional ids in a request
_PRODUCE: Final = 12  # the version that adds partitions and has topics by name
_STATES: Final = {state.name.title().replace("_", ""): state for state in TransactionState}


class RemoteTransactions:
    """Implements `coordinators.TransactionCoordinator`, and appends what is in a transaction. Thread-safe.

    appended: called for each partition that has grown.
    """

    def __init__(
        self,
        brokers: Brokers,
        metadata: Metadata,
        groups: RemoteCoordinator,
        appended: Callable[[TopicPartition], None],
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._groups = groups
        self._appended = appended
        self._coordinators = Coordinators(brokers, of_transactions=True)

    # -- producers and transactions ----------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        producer_id, epoch = expected or (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        def begun(response: InitProducerIdResponse) -> ProducerIdAndEpoch:
            subject = f"beginning with transactional id {transactional_id!r}"
            self._coordinators.check(transactional_id, response.error_code, subject)
            return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

        return self._coordinators.ask(
            transactional_id, request, InitProducerIdResponse, begun, on=_check_version
        )

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        for name in partitions:
            self._metadata.check_partition(name)

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for name, committed in offsets.items():
            topic = topics.setdefault(name.topic, TxnOffsetCommitRequestTopic(name=name.topic))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            topics=list(topics.values()),
        )

        def committed_all(response: TxnOffsetCommitResponse) -> None:
            for topic_response in response.topics:
                for part in topic_response.partitions:
                    subject = f"committing {topic_response.name} {part.partition_index} for group {group!r}"
                    self._groups.coordinators.check(group, part.error_code, subject, topic_response.name)

        self._groups.coordinators.ask(group, request, TxnOffsetCommitResponse, committed_all)

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, flush: bool = False
    ) -> ProducerIdAndEpoch:
        if flush:
            raise UnsupportedByBackend(
                "flush=True: the end of a transaction cannot ask a broker to fsync; set flush_messages=1 for "
                "the topics, or begin the transaction in the process that has the log's directory open"
            )
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )

        def ended(response: EndTxnResponse) -> ProducerIdAndEpoch:
            subject = f"ending the transaction of {transactional_id!r}"
            self._coordinators.check(transactional_id, response.error_code, subject)
            return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

        return self._coordinators.ask(transactional_id, request, EndTxnResponse, ended)

    # -- administration ----------------------------------------------------------------------------------

    def abort(self, transactional_id: str) -> None:
        """Begin a producer with the id: the one whose transaction is aborted can go on no more."""
        transaction = self.describe(transactional_id)
        if transaction.state is TransactionState.ONGOING:
            self.init_producer_id(transactional_id, timeout_ms=transaction.timeout_ms)

    def describe(self, transactional_id: str) -> TransactionMetadata:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def described(response: DescribeTransactionsResponse) -> TransactionMetadata:
            for transaction in response.transaction_states:
                if transaction.transactional_id == transactional_id:
                    return self._described(transaction)
            raise NotKafka(f"the response to DescribeTransactions lacks {transactional_id!r}")

        return self._coordinators.ask(transactional_id, request, DescribeTransactionsResponse, described)

    def _described(self, transaction: DescribedTransaction) -> TransactionMetadata:
        """Raises TransactionNotFound, Retry, NotKafka."""
        subject = f"describing transactional id {transaction.transactional_id!r}"
        self._coordinators.check(transaction.transactional_id, transaction.error_code, subject)
        state = _STATES.get(transaction.transaction_state)
        if state is None:
            raise NotKafka(f"a broker reports the unknown state {transaction.transaction_state!r}")
        partitions = [
            TopicPartition(topic.topic, number) for topic in transaction.topics for number in topic.partitions
        ]
        return TransactionMetadata(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.transaction_timeout_ms,
            state,
            frozenset(partitions),
            start_ms=transaction.transaction_start_time_ms,
        )

    def transactional_ids(self) -> list[str]:
        def attempt(deadline: float) -> list[str]:
            of_nodes = self._metadata.ask_each(lambda node: self._ids_of(node, deadline), deadline)
            return sorted(itertools.chain.from_iterable(of_nodes))

        return self._brokers.retried(attempt)

    def describe_all(self) -> dict[str, TransactionMetadata]:
        """The last state of each transactional id: each broker is asked for those that it coordinates, in
        one request. Raises as `describe`."""

        def attempt(deadline: float) -> dict[str, TransactionMetadata]:
            transactions = {}

            def look(node: Address) -> None:
                ids = self._ids_of(node, deadline)
                for first in range(0, len(ids), _TOGETHER):
                    request = DescribeTransactionsRequest(transactional_ids=ids[first : first + _TOGETHER])
                    response = self._brokers.ask(node, request, DescribeTransactionsResponse, deadline)
                    for transaction in response.transaction_states:
                        with contextlib.suppress(TransactionNotFound):  # it has expired meanwhile
                            transactions[transaction.transactional_id] = self._described(transaction)

            self._metadata.ask_each(look, deadline)
            return transactions

        return self._brokers.retried(attempt)

    def _ids_of(self, node: Address, deadline: float) -> list[str]:
        """The transactional ids that a broker coordinates."""
        response = self._brokers.ask(node, ListTransactionsRequest(), ListTransactionsResponse, deadline)
        check_code(response.error_code, "listing transactions")
        return sorted({transaction.transactional_id for transaction in response.transaction_states})

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """See `Backend.producers`: one request to each leader."""

        def attempt(deadline: float) -> dict[TopicPartition, list[ProducerDescription]]:
            producers: dict[TopicPartition, list[ProducerDescription]] = {}
            for leader, numbers_by_topic in self._metadata.led(partitions, deadline).items():
                request = DescribeProducersRequest(
                    topics=[
                        TopicRequest(name=topic, partition_indexes=numbers)
                        for topic, numbers in numbers_by_topic.items()
                    ]
                )
                with self._metadata.asking(names_in(numbers_by_topic)):
                    response = self._brokers.ask(leader, request, DescribeProducersResponse, deadline)
                for topic_response in response.topics:
                    for part in topic_response.partitions:
                        name = TopicPartition(topic_response.name, part.partition_index)
                        self._metadata.check_code(
                            part.error_code, name.topic, f"the producers of {name}", part.error_message
                        )
                        producers[name] = [_producer(state) for state in part.active_producers]
            return {name: producers[name] for name in partitions if name in producers}

        return self._brokers.retried(attempt)

    # -- appends -----------------------------------------------------------------------------------------

    def append(
        self, transactional_id: str, name: TopicPartition, batch: bytearray, timeout_ms: int | None = None
    ) -> Appended:
        """Append a batch of a transaction, which has the producer's id, epoch and sequence number.

        Raises InvalidTxnState, ProducerFenced, the broker's error; BrokerUnavailable after
        timeout_ms (by default delivery_timeout_ms): it may have been appended.
        """
        header = read_header(batch)
        if header.timestamp_type:
            set_create_time(batch)  # the mark of append time is the broker's to set
        base, log_append_time_ms = self._brokers.retried(
            partial(self._send, name, transactional_id, batch),
            self._brokers.settings.delivery_timeout_ms if timeout_ms is None else timeout_ms,
        )
        self._appended(name)
        time_ms = log_append_time_ms if log_append_time_ms >= 0 else header.max_timestamp_ms
        return Appended(base, base + header.last_offset_delta, time_ms, False)

    def _send(
        self, name: TopicPartition, transactional_id: str, batch: bytearray, deadline: float
    ) -> tuple[int, int]:
        """Returns the base offset, and the log append time or -1. For an attempt: raises Retry."""
        partition_data = PartitionProduceData(index=name.partition, records=batch)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=_ALL,
            timeout_ms=self._brokers.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=name.topic, partition_data=[partition_data])],
        )
        leader = self._metadata.leader(name, deadline)
        limit = self._brokers.limit(deadline)
        with self._metadata.asking((name,)), self._brokers.connection(leader, limit) as connection:
            response = connection.exchange(request, ProduceResponse, limit, version=_PRODUCE)
        for topic in response.responses:
            for part in topic.partition_responses:
                if topic.name == name.topic and part.index == name.partition:
                    subject = f"appending to {name}"
                    self._metadata.check_code(part.error_code, name.topic, subject, part.error_message)
                    return part.base_offset, part.log_append_time_ms
        raise NotKafka(f"{name}: the response to an append lacks the partition")


def _check_version(connection: Connection) -> None:
    if connection.transaction_version < _NEEDED:
        raise UnsupportedByBackend(
            f"transactions need brokers with transaction.version {_NEEDED} (Kafka 4, or a broker of embedlog "
            f"on its own): {connection!r} has version {connection.transaction_version}"
        )


def _producer(state: ProducerState) -> ProducerDescription:
    return ProducerDescription(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.current_txn_start_offset,
    )
