"""What brokers ask each other about transactions, by hand: AddPartitionsToTxn from v4 on, WriteTxnMarkers.

Anybody may ask it, so that whatever comes must cost little and break nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers, cluster
from wire import Wire
from wire_producer import TX, Id, Producer
from zookeepers import Znodes, eventually

from embedlog.cluster import Broker
from embedlog.wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from embedlog.wire.apis.describe_transactions import DescribeTransactionsRequest
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
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


# -- in a cluster --------------------------------------------------------------------------------------


@pytest.fixture
def own(zookeeper: Znodes, tmp_path: Path) -> Iterator[Brokers]:
    with cluster(tmp_path, zookeeper.connect, 2, "--set", "zookeeper.session.timeout.ms=2000") as brokers:
        brokers.create(T, 2)
        yield brokers


def coordinator_of(brokers: Brokers) -> int:
    with Wire(brokers[0], host=brokers[0].host) as wire:

        def node() -> str:
            found = wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[TX]), 4).coordinators[0]
            return str(found.node_id) if not found.error_code else ""

        return int(eventually(node, "there is a coordinator"))


def test_brokers_that_are_not_asked_in_the_right_place(own: Brokers) -> None:
    coordinator = coordinator_of(own)
    other = 1 - coordinator
    led = {leader: number for number, leader in own.leaders(T).items()}
    with Wire(own[coordinator], host=own[coordinator].host) as there:
        producer = Producer(there)
        eventually(lambda: producer.init() is ErrorCode.NONE)
        with Wire(own[other], host=own[other].host) as wire:
            lost = ErrorCode.NOT_COORDINATOR
            stray = Producer(wire)
            assert stray.init() is lost
            stray.id = producer.id
            assert stray.add(0) == [lost]
            assert stray.add_offsets() is lost
            assert stray.end(commit=True) is lost
            for verify in (True, False):
                assert asked(wire, 5, producer.id, 0, verify=verify) == [lost]
            described = wire.ask(DescribeTransactionsRequest(transactional_ids=[TX]), 0)
            assert described.transaction_states[0].error_code == lost
            assert marked(wire, producer.id, led[coordinator]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert marked(wire, producer.id, 9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused = {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
            # That there is such a topic now, this broker hears from ZooKeeper, not from the other.
            eventually(lambda: marked(wire, producer.id, topic="__transaction_state") in refused)
            stray.sequences.clear()
            assert stray.send(b"v", partition=led[other]) is ErrorCode.NONE, "its coordinator is asked"
            assert stray.send(b"v", partition=led[coordinator]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert producer.end(commit=True) is ErrorCode.NONE


@pytest.mark.slow
def test_an_earlier_coordinator_is_fenced(own: Brokers) -> None:
    """Each start of a coordinator's broker gives it a later epoch, which its markers have."""
    coordinator = coordinator_of(own)
    other = 1 - coordinator
    away = {leader: number for number, leader in own.leaders(T).items()}[other]
    with Wire(own[coordinator], host=own[coordinator].host) as there:
        eventually(lambda: Producer(there).init() is ErrorCode.NONE)
    own[coordinator].kill()
    own[coordinator].start()
    assert coordinator_of(own) == coordinator
    with (
        Wire(own[coordinator], host=own[coordinator].host) as there,
        Wire(own[other], host=own[other].host) as wire,
    ):
        producer = Producer(there)
        eventually(lambda: producer.init() is ErrorCode.NONE)
        for number in range(2):
            stray = Producer(wire)
            stray.id = producer.id
            assert stray.send(b"%d" % number, partition=away) is ErrorCode.NONE
            assert producer.end(commit=True) is ErrorCode.NONE
        code = marked(wire, producer.id, away, coordinator_epoch=0, transaction_version=1)
        assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        # Somebody says that there is a later coordinator: the real one's markers are taken all the same.
        code = marked(wire, producer.id, away, coordinator_epoch=LARGEST, transaction_version=1)
        assert code is ErrorCode.NONE
        stray = Producer(wire)
        stray.id, stray.sequences = producer.id, {(T, away): 0}
        assert stray.send(b"w", partition=away) is ErrorCode.NONE
        assert producer.end(commit=True) is ErrorCode.NONE

        def is_over() -> bool:
            found = there.ask(DescribeTransactionsRequest(transactional_ids=[TX]), 0).transaction_states[0]
            return bool(found.transaction_state == "CompleteCommit")

        eventually(is_over, "the marker is taken")
