"""Permission to append a transaction's batches, for the partitions of this broker.

    the id's coordinator is    permission
    here                       given when the partition is added: at once if the request adds it
    on another broker          asked for, by AddPartitionsToTxn: to add the partition (transaction.version 2),
                               or to verify that it was added

The log end is noted before the question. If a marker of the producer comes until the answer is here, the
answer is about a transaction that has ended: the client sends its batch again, and another question is asked.
See storage/producer_state_manager.py.

What a client gets when there is no permission:

    the coordinator is away, starting, or         NOT_ENOUGH_REPLICAS, which all clients retry without looking
    does not know the topic yet                   for another leader
    the last transaction is being ended           CONCURRENT_TRANSACTIONS; NOT_ENOUGH_REPLICAS before
                                                  transaction.version 2
    anything else                                 the error

Source: KIP-890; Kafka's AddPartitionsToTxnManager and ReplicaManager.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from ....errors import ConcurrentTransactions, EmbedlogError
from ....files.names import TRANSACTION_STATE_TOPIC
from ....groups.machines.transaction import RAISES_EPOCHS, ProducerIdAndEpoch
from ....groups.transaction_coordinator import TransactionCoordinator
from ....model import TopicPartition
from ....store.store import Store
from ....wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ....wire.error_codes import ErrorCode
from ....wire.error_meanings import MEANINGS, known_code
from ...coordination import Coordination
from ..api_errors import ApiError
from .broker_channel import BrokerChannels, BrokerClient, BrokerConnection

Refused = dict[TopicPartition, EmbedlogError]
"""The partitions without permission, and why."""

ADDED_FIRST: Final = 0
"""The transaction.version of clients that add partitions themselves, before they use them."""

_COMES_LATER: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


_REFUSED: Final = frozenset(  # by an error of the coordinator's
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


class CoordinatorUnavailable(ApiError):
    """The coordinator of a transaction cannot be asked just now, or cannot answer yet."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator of the transaction cannot be asked just now: {code.name}",
        )


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    asked_at: Mapping[TopicPartition, int]  # the partitions, and where their logs ended
    adds: bool
    refused: Future[Refused]


class TransactionPermissions:
    """Gets permission for a broker's partitions. Thread-safe."""

    def __init__(
        self,
        store: Store,
        coordination: Coordination,
        transactions: TransactionCoordinator,
        client: BrokerClient | None = None,
    ) -> None:
        self._store = store
        self._coordination = coordination
        self._transactions = transactions
        self._numbers = itertools.count()
        self._channels: BrokerChannels[int, _Question] = BrokerChannels(
            "permission", coordination.address_of, self._ask, client
        )

    def get(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        names: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> Future[Refused]:
        """Get permission to append to partitions, which are here. May block as any append does.

        adds: add them to the transaction; else they must have been.
        """
        refused: Future[Refused] = Future()
        try:
            if self._coordination.coordinates(transactional_id, TRANSACTION_STATE_TOPIC):
                if adds:
                    self._transactions.add_partitions(transactional_id, producer, names)
                refused.set_result({})  # if they were not added, the append fails
                return refused
            coordinator = self._coordination.coordinator_of(transactional_id, TRANSACTION_STATE_TOPIC)
            if coordinator is None:
                raise _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, adds)
            asked_at = {name: self._store.partition(*name).log.next_offset for name in names}
            question = _Question(transactional_id, producer, asked_at, adds, refused)
            if not self._channels.add(coordinator.node_id, next(self._numbers), question):
                raise _refusal(ErrorCode.NETWORK_EXCEPTION, adds)
        except EmbedlogError as error:
            refused.set_result(dict.fromkeys(names, error))
        return refused

    def close(self) -> None:
        """Ask no more. Idempotent."""
        for question in self._channels.close():
            _answer(question, _refuse_all(question, ErrorCode.NETWORK_EXCEPTION))

    def _ask(self, broker: int, connection: BrokerConnection, queue: Mapping[int, _Question]) -> tuple[()]:
        """Ask a coordinator. Each question is answered: the client asks again."""
        questions = list(queue.values())
        try:
            response = connection.exchange(_request(questions), AddPartitionsToTxnResponse)
        except EmbedlogError:
            for question in questions:
                _answer(question, _refuse_all(question, ErrorCode.NETWORK_EXCEPTION))
            return ()
        # In the order of the request: several questions may be about one transactional id.
        results = response.results_by_transaction
        if response.error_code or len(results) != len(questions):
            for question in questions:
                _answer(question, _refuse_all(question, response.error_code or ErrorCode.NETWORK_EXCEPTION))
            return ()
        for question, result in zip(questions, results, strict=True):
            codes = {
                TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            _answer(question, self._answered(question, codes))
        return ()

    def _answered(self, question: _Question, codes: Mapping[TopicPartition, int]) -> Refused:
        """Let the partitions permit what the coordinator permits."""
        refused: Refused = {}
        version = RAISES_EPOCHS if question.adds else ADDED_FIRST
        for name, asked_at in question.asked_at.items():
            code = codes.get(name, ErrorCode.NETWORK_EXCEPTION)
            try:
                if code:
                    raise _refusal(code, question.adds)
                self._store.partition(*name).allow_transaction(
                    *question.producer, transaction_version=version, asked_at=asked_at
                )
            except ConcurrentTransactions:
                refused[name] = _refusal(ErrorCode.NETWORK_EXCEPTION, question.adds)
            except EmbedlogError as error:
                refused[name] = error
        return refused


def _request(questions: Collection[_Question]) -> AddPartitionsToTxnRequest:
    request = AddPartitionsToTxnRequest()
    for question in questions:
        by_topic: dict[str, list[int]] = {}
        for topic, number in question.asked_at:
            by_topic.setdefault(topic, []).append(number)
        request.transactions.append(
            AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer.producer_id,
                producer_epoch=question.producer.producer_epoch,
                verify_only=not question.adds,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                    for topic, numbers in by_topic.items()
                ],
            )
        )
    return request


def _refusal(number: int, adds: bool) -> EmbedlogError:
    """The error of a client whose partition has no permission."""
    error_code = known_code(number)
    code = ErrorCode.UNKNOWN_SERVER_ERROR if error_code is None else error_code
    if code in _COMES_LATER or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return CoordinatorUnavailable(code)
    message = f"the coordinator of the transaction refuses the partition: {code.name}"
    if code in _REFUSED:
        error, _ = MEANINGS[code]
        return error(message)
    return ApiError(code, message)


def _refuse_all(question: _Question, code: int) -> Refused:
    return dict.fromkeys(question.asked_at, _refusal(code, question.adds))


def _answer(question: _Question, refused: Refused) -> None:
    if question.refused.set_running_or_notify_cancel():
        question.refused.set_result(refused)
