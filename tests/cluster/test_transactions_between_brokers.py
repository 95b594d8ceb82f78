"""What brokers ask each other about transactions, by hand: AddPartitionsToTxn from v4 on, WriteTxnMarkers.

Anybody may ask it, so that whatever comes must cost little and break nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_transactions_wire import TX, Id, Producer
from wire import Wire

from embedlog.cluster import Broker
from embedlog.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from embedlog.wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from embedlog.wire.error_codes import ErrorCode

T = "t"
LARGEST = 2**31 - 1


def asked(
    wire: Wire,
    version: int,
    producer: Id,
    *partitions: int,
    topic: str = T,
    verify: bool = False,
    transactional_id: str = TX,
) -> list[ErrorCode]:
    """The code of each partition."""
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.number,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
    )
    response = wire.ask(AddPartitionsToTxnRequest(transactions=[transaction]), version)
    assert response.error_code == 0
    (result,) = response.results_by_transaction
    assert result.transactional_id == transactional_id
    return [ErrorCode(p.partition_error_code) for t in result.topic_results for p in t.results_by_partition]


def marked(wire: Wire, producer: Id, partition: int = 0, *, topic: str = T, **more: Any) -> ErrorCode:
    """The code of an abort marker."""
    topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])]
    fields = {"coordinator_epoch": 0, "transaction_version": 2, **more}
    marker = WritableTxnMarker(
        producer_id=producer.number, producer_epoch=producer.epoch, topics=topics, **fields
    )
    (found,) = wire.ask(WriteTxnMarkersRequest(markers=[marker]), 2).markers
    return ErrorCode(found.topics[0].partitions[0].error_code)


@pytest.fixture
def producer(broker: Broker, wire: Wire) -> Producer:
    broker.log.create_topic(T, partitions=2)
    made = Producer(wire)
    made.init()
    return made


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_are_verified_and_added(wire: Wire, producer: Producer, version: int) -> None:
    not_added = ErrorCode.TRANSACTION_ABORTABLE if version >= 5 else ErrorCode.INVALID_TXN_STATE
    assert asked(wire, version, producer.id, 0, 1, verify=True) == [not_added] * 2
    assert asked(wire, version, producer.id, 0) == [ErrorCode.NONE]
    assert asked(wire, version, producer.id, 0, verify=True) == [ErrorCode.NONE]
    assert asked(wire, version, producer.id, 0, 1, verify=True) == [not_added] * 2
    assert asked(wire, version, producer.id, 0, 1) == [ErrorCode.NONE] * 2
    assert producer.send(b"v", partition=1) is ErrorCode.NONE
    before = producer.id
    assert producer.end(commit=True) is ErrorCode.NONE
    for verify in (True, False):
        assert asked(wire, version, before, 0, verify=verify) == [ErrorCode.PRODUCER_FENCED]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("verify", [True, False])
def test_what_makes_no_sense_is_refused(wire: Wire, producer: Producer, version: int, verify: bool) -> None:
    def code(who: Id = producer.id, *partitions: int, **more: Any) -> ErrorCode:
        (found,) = asked(wire, version, who, *(partitions or (0,)), verify=verify, **more)
        return found

    number, epoch = producer.id
    assert code(Id(number + 1, epoch)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code(Id(-1, -1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code(Id(number, epoch + 1)) is ErrorCode.PRODUCER_FENCED
    assert code(transactional_id="nobody") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code(transactional_id="") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    missing = {code(topic="no"), code(producer.id, 7), code(producer.id, -1)}
    unknown = ErrorCode.TRANSACTION_ABORTABLE if version >= 5 else ErrorCode.INVALID_TXN_STATE
    assert missing == {unknown if verify else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert code(topic="../" * 80) is (unknown if verify else ErrorCode.INVALID_TOPIC_EXCEPTION)
    internal = code(topic="__transaction_state")
    assert internal is (unknown if verify else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert producer.send(b"v") is ErrorCode.NONE


def test_one_missing_partition_keeps_the_others_out(wire: Wire, producer: Producer) -> None:
    assert asked(wire, 5, producer.id, 0, 9) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert asked(wire, 5, producer.id, 0, verify=True) == [ErrorCode.TRANSACTION_ABORTABLE]


def test_many_transactions_in_one_request(broker: Broker, wire: Wire, producer: Producer) -> None:
    """Each is answered in its place, as one request has asked."""
    transactions = [
        AddPartitionsToTxnTransaction(
            transactional_id=TX if number == 4_321 else f"unknown-{number}",
            producer_id=producer.id.number,
            producer_epoch=producer.id.epoch,
            topics=[AddPartitionsToTxnTopic(name=T, partitions=[0])],
        )
        for number in range(10_000)
    ]
    answer = wire.ask(AddPartitionsToTxnRequest(transactions=transactions), 5)
    codes = [each.topic_results[0].results_by_partition[0] for each in answer.results_by_transaction]
    added = [number for number, code in enumerate(codes) if not code.partition_error_code]
    assert added == [4_321]
    assert broker.context.transactions is not None
    assert broker.context.transactions.transactional_ids() == [TX]
    assert wire.ask(AddPartitionsToTxnRequest(), 5).results_by_transaction == []
