"""DescribeTransactions, ListTransactions, WriteTxnMarkers: what administrators ask of transactions.

WriteTxnMarkers comes from the coordinators of a cluster's other brokers, for partitions that this one leads.
It also ends what is open in a partition and unknown to the coordinator, say in files that were imported:
`Admin.abortTransaction` and `kafka-transactions.sh abort` send it, after DescribeProducers. This broker's own
coordinator writes its markers itself.

An earlier coordinator epoch than a partition knows of the producer is refused. A later one is written as far
as there is one: at most the latest leader epoch of `__transaction_state`, which on a standalone broker is 0.
Otherwise anybody could have the markers of the real coordinator refused from then on. With -1 administrators
give none.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, TransactionNotFound
from ....files.names import INTERNAL_TOPICS
from ....groups.marker import Marker
from ....groups.offsets import OFFSETS_TOPIC
from ....groups.transaction_coordinator import TransactionCoordinator
from ....model import TopicPartition
from ....wire.apis import describe_transactions, list_transactions
from ....wire.apis.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ....wire.apis.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ....wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ....wire.error_codes import ErrorCode
from ....wire.transaction_state import TransactionMetadata, TransactionState
from ..api_errors import error_code_for, group_error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext, internal_topic
from ..group_requests import GroupRequests

_NAMES: Final = {state: state.name.title().replace("_", "") for state in TransactionState}
_EPOCH: Final = 0  # of the coordinator


class TransactionAdminHandlers:
    """Handles the requests of administrators about transactions."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests) -> None:
        self._broker = broker
        self._requests = requests

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        if self._broker.transactions is None:
            return {}
        return {
            "DescribeTransactions": self.describe,
            "ListTransactions": self.list_all,
            "WriteTxnMarkers": self.write_markers,
        }

    @property
    def _coordinator(self) -> TransactionCoordinator:
        assert self._broker.transactions is not None
        return self._broker.transactions

    def describe(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse | Future[DescribeTransactionsResponse]:
        return self._requests.run_each(
            context,
            dict.fromkeys(request.transactional_ids),
            self._describe,
            _failed,
            lambda states: DescribeTransactionsResponse(transaction_states=states),
        )

    def _describe(self, transactional_id: str) -> describe_transactions.TransactionState:
        if not transactional_id:
            return describe_transactions.TransactionState(error_code=ErrorCode.INVALID_REQUEST)
        self._requests.check_coordinates_transactions(transactional_id)
        return _described(transactional_id, self._coordinator.describe(transactional_id))

    def list_all(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse | Future[ListTransactionsResponse]:
        """As in Kafka, names of states are matched exactly, and unknown ones alone leave nothing out."""
        state_names = set(_NAMES.values())
        states = state_names.intersection(request.state_filters)
        producer_ids = frozenset(request.producer_id_filters)
        unknown = [name for name in request.state_filters if name not in state_names]

        def is_wanted(transaction: TransactionMetadata) -> bool:
            open_ms = self._broker.store.clock_ms() - transaction.start_ms
            return (
                (not producer_ids or transaction.producer_id in producer_ids)
                and (not states or _NAMES[transaction.state] in states)
                and (request.duration_filter < 0 or open_ms > request.duration_filter)
            )

        def find() -> ListTransactionsResponse:
            response = ListTransactionsResponse(unknown_state_filters=unknown)
            for transactional_id in self._coordinator.transactional_ids():
                with contextlib.suppress(TransactionNotFound):  # expired meanwhile
                    transaction = self._coordinator.describe(transactional_id)
                    if is_wanted(transaction):
                        response.transaction_states.append(
                            list_transactions.TransactionState(
                                transactional_id=transactional_id,
                                producer_id=transaction.producer_id,
                                transaction_state=_NAMES[transaction.state],
                            )
                        )
            return response

        return self._requests.run(
            context, find, lambda error: ListTransactionsResponse(error_code=group_error_code_for(error))
        )

    # -- WriteTxnMarkers -------------------------------------------------------------------------------

    def write_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse | Future[WriteTxnMarkersResponse]:
        def answer(error: EmbedlogError | None) -> WriteTxnMarkersResponse:
            return WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=[
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=[
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=number,
                                        error_code=self._write(marker, TopicPartition(topic.name, number))
                                        if error is None
                                        else group_error_code_for(error),
                                    )
                                    for number in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in request.markers
                ]
            )

        return self._requests.run(context, lambda: answer(None), answer)

    def _write(self, marker: WritableTxnMarker, name: TopicPartition) -> ErrorCode:
        try:
            partition = self._broker.led_partition(*name)
            if name.topic != OFFSETS_TOPIC and name.topic in INTERNAL_TOPICS:
                raise internal_topic(name.topic)
            producer = partition.log.known_producers().get(marker.producer_id)
            known_epoch = _EPOCH if producer is None else max(producer.coordinator_epoch, _EPOCH)
            written = Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.transaction_version,
                self._coordinator_epoch(marker.coordinator_epoch, known_epoch),
            )
            if name.topic == OFFSETS_TOPIC:
                self._broker.groups.end_transaction(name.partition, written)
            else:
                written.write(partition, self._broker.store.clock_ms())
        except EmbedlogError as error:
            return error_code_for(error)
        return ErrorCode.NONE

    def _coordinator_epoch(self, epoch: int, known_epoch: int) -> int:
        """The coordinator epoch to write; an earlier one than is known, so that the partition refuses it."""
        if 0 <= epoch < known_epoch:
            return epoch
        return max(known_epoch, min(epoch, self._broker.coordination.latest_coordinator_epoch))


def _described(
    transactional_id: str, transaction: TransactionMetadata
) -> describe_transactions.TransactionState:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(number)
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=_NAMES[transaction.state],
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            describe_transactions.TopicData(topic=topic, partitions=numbers)
            for topic, numbers in by_topic.items()
        ],
    )


def _failed(transactional_id: str, error: EmbedlogError) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(
        error_code=group_error_code_for(error), transactional_id=transactional_id
    )
