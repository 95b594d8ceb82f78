"""The requests of transactions, by hand: what each version is answered, and the errors of each."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest
from faults import FaultyFileSystem, open_log
from members import Member
from wire import Wire, batch_of, produce, records_of
from wire_producer import TIMEOUT_MS, TX, V1, V2, G, Id, Producer, T

from embedlog.cluster import Broker
from embedlog.cluster.broker.peers.transaction_permission import TransactionPermissions
from embedlog.cluster.coordination.port import BrokerAddress
from embedlog.cluster.coordination.single import SingleBroker
from embedlog.codec import decode, scan
from embedlog.errors import PartitionFailed
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from embedlog.wire.apis.describe_transactions import DescribeTransactionsRequest
from embedlog.wire.apis.find_coordinator import FindCoordinatorRequest
from embedlog.wire.apis.list_transactions import ListTransactionsRequest
from embedlog.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from embedlog.wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from embedlog.wire.error_codes import ErrorCode


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic(T, partitions=3)


@pytest.fixture(params=[False, True], ids=["version-1", "version-2"])
def producer(wire: Wire, request: pytest.FixtureRequest) -> Producer:
    made = Producer(wire, raises=request.param)
    assert made.init() is ErrorCode.NONE
    return made


def committed(wire: Wire, partition: int = 0) -> list[bytes | None]:
    """What a read_committed consumer makes of the partition."""
    found: list[bytes | None] = []
    data = wire.fetch(T, 0, version=11, isolation_level=1, partition=partition)
    aborted = {(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()}
    skipped: set[int] = set()
    chunk = bytes(data.records)  # type: ignore[arg-type]
    for header in scan(chunk).headers:
        if header.is_control:
            skipped.discard(header.producer_id)
            continue
        if (header.producer_id, header.base_offset) in aborted:
            skipped.add(header.producer_id)
        if header.producer_id not in skipped:
            found += [record.value for record in decode(chunk, header, T, partition)]
    return found


def sent(producer: Producer, *values: bytes, partition: int = 0) -> None:
    if not producer.raises:
        assert producer.add(partition) == [ErrorCode.NONE]
    assert producer.send(*values, partition=partition) is ErrorCode.NONE


# -- transactions -----------------------------------------------------------------------------------------


def test_what_is_committed_is_read_and_what_is_aborted_is_not(producer: Producer) -> None:
    sent(producer, b"a", b"b")
    sent(producer, b"c", partition=1)
    assert committed(producer.wire) == []
    assert producer.end(commit=True) is ErrorCode.NONE
    assert committed(producer.wire) == [b"a", b"b"]
    assert committed(producer.wire, 1) == [b"c"]
    sent(producer, b"d")
    assert producer.end(commit=False) is ErrorCode.NONE
    sent(producer, b"e")
    assert producer.end(commit=True) is ErrorCode.NONE
    assert committed(producer.wire) == [b"a", b"b", b"e"]


def test_each_end_raises_the_epoch_of_version_2(producer: Producer) -> None:
    began = producer.id
    for number in range(1, 4):
        sent(producer, b"v")
        assert producer.end(commit=number % 2 == 0) is ErrorCode.NONE
        assert producer.id == (began.number, began.epoch + number * producer.raises)


def test_an_end_may_be_repeated(producer: Producer) -> None:
    for commit in (True, False):
        sent(producer, b"v")
        before = producer.id
        assert producer.end(commit=commit) is ErrorCode.NONE
        after, producer.id = producer.id, before
        assert producer.end(commit=not commit) is ErrorCode.INVALID_TXN_STATE
        assert producer.end(commit=commit) is ErrorCode.NONE
        assert producer.id == after


def test_one_request_adds_all_its_partitions(broker: Broker, wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    transactions = broker.context.transactions
    assert transactions is not None
    request = producer.request({number: producer.batch(b"v") for number in (0, 9, 1, 2)})
    parts = {p.index: p.error_code for p in wire.ask(request, V2).responses[0].partition_responses}
    assert parts == {0: 0, 1: 0, 2: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert {name.partition for name in transactions.describe(TX).partitions} == {0, 1, 2}
    assert broker.log.offsets("__transaction_state")[0].log_end_offset == 2, "one record begins it, one adds"


@pytest.mark.parametrize("version", [V2, 13])
def test_a_large_request_of_a_transaction(broker: Broker, wire: Wire, version: int) -> None:
    producer = Producer(wire)
    producer.init()
    request = producer.request({number: producer.batch(b"x" * 500_000) for number in range(3)})
    request.topic_data[0].topic_id = broker.context.topic_id(T)
    assert [part.error_code for part in wire.ask(request, version).responses[0].partition_responses] == [
        0
    ] * 3
    assert producer.end(commit=True) is ErrorCode.NONE
    assert len(committed(wire, 2)) == 1


def test_a_batch_outside_the_transaction_does_not_get_into_it(producer: Producer) -> None:
    sent(producer, b"v")
    stray = produce(
        T,
        batch_of(b"stray", producer_id=producer.id.number, producer_epoch=producer.id.epoch, base_sequence=1),
    )
    (part,) = producer.wire.ask(stray, 9).responses[0].partition_responses
    assert part.error_code == ErrorCode.INVALID_TXN_STATE
    alone = produce(T, producer.batch(b"without the id"))
    (part,) = producer.wire.ask(alone, 9).responses[0].partition_responses
    assert part.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_batch_without_producer_id(wire: Wire) -> None:
    request = Producer(wire).request({0: batch_of(b"v", transactional=True)})
    for version in (V1, V2):
        (part,) = wire.ask(request, version).responses[0].partition_responses
        assert part.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_plain_batch_in_a_request_with_a_transactional_id(wire: Wire) -> None:
    request = Producer(wire).request({0: batch_of(b"v")})
    for version in (V1, V2):
        (part,) = wire.ask(request, version).responses[0].partition_responses
        assert part.error_code == 0


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (V1, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_before_version_2_partitions_are_added_first(wire: Wire, version: int, code: ErrorCode) -> None:
    producer = Producer(wire, raises=False)
    producer.init()
    assert producer.send(b"v", version=version) is code
    assert producer.add(0) == [ErrorCode.NONE]
    assert producer.send(b"v", partition=1, version=version) is code
    assert producer.send(b"v", version=version) is ErrorCode.NONE


class CoordinatedElsewhere(SingleBroker):
    """What a broker asks whose transactions the broker of the address coordinates."""

    def coordinates(self, name: str, topic: str = "") -> bool:
        return False


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (V1, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_what_another_broker_refuses_has_the_code_of_the_clients_version(
    broker: Broker, wire: Wire, version: int, code: ErrorCode
) -> None:
    """The coordinator says TRANSACTION_ABORTABLE, which not every client knows."""
    context = broker.context
    with Broker() as coordinator, Wire(coordinator) as there:
        coordinator.log.create_topic(T)
        while not coordinator.context.groups.is_loaded:
            time.sleep(0.001)
        at_the_coordinator = Producer(there, raises=False)
        assert at_the_coordinator.init() is ErrorCode.NONE
        assert context.permissions is not None and context.transactions is not None
        context.permissions.close()
        coordination = CoordinatedElsewhere(context.store, BrokerAddress(1, "127.0.0.1", coordinator.port))
        context.permissions = TransactionPermissions(context.store, coordination, context.transactions)
        producer = Producer(wire, raises=False)
        producer.id = at_the_coordinator.id
        assert producer.send(b"v", version=version) is code
        assert at_the_coordinator.add(0) == [ErrorCode.NONE]
        assert producer.send(b"v", version=version) is ErrorCode.NONE
        assert at_the_coordinator.init() is ErrorCode.NONE
        assert producer.send(b"w", partition=1, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
        context.permissions.close()


def test_a_failed_partition_leaves_the_others(broker: Broker, producer: Producer) -> None:
    sent(producer, b"v", partition=1)
    partition = broker.context.store.partition(T, 0)
    partition.log.fail(PartitionFailed("by hand"))
    if not producer.raises:
        assert producer.add(0, 2) == [ErrorCode.NONE] * 2
    request = producer.request({0: producer.batch(b"v"), 2: producer.batch(b"v", partition=2)})
    version = V2 if producer.raises else V1
    parts = producer.wire.ask(request, version).responses[0].partition_responses
    assert [part.error_code for part in parts] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]


# -- InitProducerId ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_another_producer_raises_the_epoch(wire: Wire, version: int) -> None:
    producer = Producer(wire)
    assert producer.init(version) is ErrorCode.NONE
    first = producer.id
    assert producer.init(version) is ErrorCode.NONE
    assert producer.id == (first.number, first.epoch + 1)


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_may_raise_its_own_epoch(wire: Wire, version: int) -> None:
    producer = Producer(wire)
    producer.init(version)
    sent(producer, b"v")
    first = producer.id
    own = {"producer_id": first.number, "producer_epoch": first.epoch}
    assert producer.init(version, **own) is ErrorCode.NONE
    assert producer.id.number == first.number and producer.id.epoch > first.epoch
    assert Producer(wire).init(version) is ErrorCode.NONE
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 4 else ErrorCode.PRODUCER_FENCED
    assert producer.init(version, **own) is fenced
    assert committed(wire) == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "x" * 30_000}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 4}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 4}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_impossible_producers(wire: Wire, more: dict[str, Any], code: ErrorCode) -> None:
    assert Producer(wire).init(5, **more) is code


# -- fencing ----------------------------------------------------------------------------------------------


def test_a_fenced_producer(wire: Wire, producer: Producer) -> None:
    sent(producer, b"old")
    assert producer.add_offsets() is ErrorCode.NONE
    newer = Producer(wire)
    newer.init()
    fenced, epoch = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(b"v") is epoch
    assert producer.send(b"v", partition=2, version=V2) is epoch
    for version in range(4):
        assert producer.add(0, version=version) == [fenced if version >= 2 else epoch]
    for version in range(5):
        assert producer.add_offsets(version=version) is (fenced if version >= 2 else epoch)
    for version in range(1, 6):
        assert producer.end(commit=True, version=version) is (fenced if version >= 2 else epoch)
    for version in range(1, 6):
        assert producer.commit_offsets({0: 1}, version=version) == [epoch]
    assert committed(wire) == []
    sent(newer, b"new")
    assert newer.end(commit=True) is ErrorCode.NONE
    assert committed(wire) == [b"new"]


def test_an_id_that_no_producer_has(wire: Wire, producer: Producer) -> None:
    stranger = Producer(wire, transactional_id="unknown")
    stranger.id = producer.id
    producer.id = Id(producer.id.number + 1, 0)
    for each in (stranger, producer):
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert each.add(0) == [mapping]
        assert each.send(b"v", version=V2) is mapping
        assert each.add_offsets() is mapping
        assert each.end(commit=True) is mapping
        assert each.commit_offsets({0: 1}, version=5) == [mapping]


def test_an_empty_transactional_id(wire: Wire) -> None:
    producer = Producer(wire, transactional_id="")
    assert producer.add(0) == [ErrorCode.INVALID_REQUEST]
    assert producer.add_offsets() is ErrorCode.INVALID_REQUEST
    assert producer.end(commit=True) is ErrorCode.INVALID_REQUEST


def test_nothing_to_end(wire: Wire) -> None:
    producer = Producer(wire, raises=False)
    producer.init()
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=True, version=5) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False, version=5) is ErrorCode.NONE


def test_partitions_are_added_all_or_none(broker: Broker, wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    none, unknown = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.add(0, 9, 1) == [none, unknown, none]
    assert producer.add(0, topic="__consumer_offsets") == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    transactions = broker.context.transactions
    assert transactions is not None and not transactions.describe(TX).partitions


def test_a_transaction_that_takes_too_long(broker: Broker, wire: Wire, producer: Producer) -> None:
    assert producer.init(transaction_timeout_ms=1) is ErrorCode.NONE
    if not producer.raises:
        assert producer.add(0) == [ErrorCode.NONE]
    producer.send(b"late")  # perhaps too late already
    while described(wire, TX)[0].transaction_state != "CompleteAbort":
        pass
    assert not broker.context.store.partition(T, 0).open_transactions()
    assert producer.send(b"more") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert committed(wire) == []


# -- offsets ----------------------------------------------------------------------------------------------


def fetched(wire: Wire, version: int, *, stable: bool = True) -> list[tuple[int, int]]:
    """(offset, error code) of the group's offsets of partitions 0 and 1."""
    request = OffsetFetchRequest(
        group_id=G,
        require_stable=stable,
        topics=[OffsetFetchRequestTopic(name=T, partition_indexes=[0, 1])],
        groups=[
            OffsetFetchRequestGroup(
                group_id=G,
                member_id=None,
                topics=[OffsetFetchRequestTopics(name=T, partition_indexes=[0, 1])],
            )
        ],
    )
    response = wire.ask(request, version)
    (topic,) = (response.groups[0] if version >= 8 else response).topics
    return [(each.committed_offset, each.error_code) for each in topic.partitions]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_committed_with_the_transaction(producer: Producer, commit: bool) -> None:
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    if not producer.raises:
        assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offsets({0: 5}) == [ErrorCode.NONE]
    for version in (7, 9):
        assert fetched(producer.wire, version) == [(-1, unstable), (-1, 0)]
        assert fetched(producer.wire, version, stable=False) == [(-1, 0), (-1, 0)]
    assert fetched(producer.wire, 6) == [(-1, 0), (-1, 0)]
    assert producer.end(commit=commit) is ErrorCode.NONE
    assert fetched(producer.wire, 9) == [(5 if commit else -1, 0), (-1, 0)]


@pytest.mark.parametrize("version", range(5))
def test_before_version_2_offsets_are_added_first(wire: Wire, version: int) -> None:
    producer = Producer(wire, raises=False)
    producer.init()
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert producer.commit_offsets({0: 1}, version=version) == [code]
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offsets({0: 1}, version=version) == [ErrorCode.NONE]
    assert producer.end(commit=True) is ErrorCode.NONE
    assert fetched(wire, 9)[0] == (1, 0)


def test_members_of_earlier_generations_are_refused(broker: Broker, wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    with Wire(broker) as of_member:
        member = Member(of_member, G)
        joined = member.join()
        assert not joined.error_code
        mine = {"member_id": member.member_id, "generation_id": member.generation}
        # It has its generation, and its assignment is not there yet: the group is being rebalanced.
        assert producer.commit_offsets({0: 1}, **mine) == [ErrorCode.NONE]
        other = {**mine, "generation_id": member.generation + 1}
        assert producer.commit_offsets({0: 2}, **other) == [ErrorCode.ILLEGAL_GENERATION]
        other = {**mine, "member_id": "unknown"}
        assert producer.commit_offsets({0: 3}, **other) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert producer.commit_offsets({1: 4}) == [ErrorCode.NONE], "without a member nothing is checked"
    assert producer.end(commit=True) is ErrorCode.NONE
    assert fetched(wire, 9) == [(1, 0), (4, 0)]


def test_a_group_that_is_not_there(wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    mine = {"member_id": "m", "generation_id": 1}
    assert producer.commit_offsets({0: 1}, **mine) == [ErrorCode.ILLEGAL_GENERATION]
    assert producer.add_offsets("") is ErrorCode.INVALID_GROUP_ID


def test_one_wrong_offset_leaves_the_others(wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    assert producer.commit_offsets({0: 1, 9: 1, 1: 2}) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    long = "x" * 5_000
    assert producer.commit_offsets({0: 3}, metadata=long) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert producer.end(commit=True) is ErrorCode.NONE
    assert fetched(wire, 9) == [(1, 0), (2, 0)]


# -- administration ---------------------------------------------------------------------------------------


def described(wire: Wire, *transactional_ids: str) -> list[Any]:
    request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    found: list[Any] = wire.ask(request, 0).transaction_states
    return found


def listed(wire: Wire, version: int = 1, **filters: Any) -> list[tuple[str, int, str]]:
    response = wire.ask(ListTransactionsRequest(**filters), version)
    assert not response.error_code
    return [(t.transactional_id, t.producer_id, t.transaction_state) for t in response.transaction_states]


def test_transactions_are_described(broker: Broker, producer: Producer) -> None:
    wire = producer.wire
    (empty,) = described(wire, TX)
    assert (empty.transaction_state, empty.transaction_start_time_ms) == ("Empty", -1)
    sent(producer, b"v", partition=2)
    sent(producer, b"v")
    found, missing, unnamed = described(wire, TX, "other", "", TX)
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == producer.id
    assert found.transaction_timeout_ms == TIMEOUT_MS
    assert 0 < found.transaction_start_time_ms <= broker.context.store.clock_ms()
    assert [(t.topic, t.partitions) for t in found.topics] == [(T, [0, 2])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert unnamed.error_code == ErrorCode.INVALID_REQUEST
    assert producer.end(commit=True) is ErrorCode.NONE
    (done,) = described(wire, TX)
    assert (done.transaction_state, done.topics) == ("CompleteCommit", [])


@pytest.mark.parametrize("version", [0, 1])
def test_transactions_are_listed(wire: Wire, version: int) -> None:
    first, second = Producer(wire), Producer(wire, transactional_id="ty")
    first.init()
    second.init()
    sent(second, b"v")
    one, two = (TX, first.id.number, "Empty"), ("ty", second.id.number, "Ongoing")
    assert listed(wire, version) == [one, two]
    assert listed(wire, version, state_filters=["Ongoing"]) == [two]
    assert listed(wire, version, state_filters=["Ongoing", "Empty", "CompleteAbort"]) == [one, two]
    assert listed(wire, version, producer_id_filters=[first.id.number]) == [one]
    unknown = wire.ask(ListTransactionsRequest(state_filters=["ongoing", "Empty"]), version)
    assert unknown.unknown_state_filters == ["ongoing"]
    assert [each.transactional_id for each in unknown.transaction_states] == [TX]


def test_transactions_are_listed_by_how_long_they_are_open(broker: Broker, wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    sent(producer, b"v")
    (found,) = described(wire, TX)
    assert listed(wire, duration_filter=3_600_000) == []
    while broker.context.store.clock_ms() <= found.transaction_start_time_ms:
        pass
    assert len(listed(wire, duration_filter=0)) == 1


def open_producers(wire: Wire) -> list[Any]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=T, partition_indexes=[0])])
    (part,) = wire.ask(request, 0).topics[0].partitions
    return [each for each in part.active_producers if each.current_txn_start_offset >= 0]


def ended(wire: Wire, version: int = 1, **changes: Any) -> ErrorCode:
    """End a transaction in partition 0, as `Admin.abortTransaction` does."""
    fields = {"transaction_result": False, "coordinator_epoch": -1}
    topics = [WritableTxnMarkerTopic(name=changes.pop("topic", T), partition_indexes=[0])]
    marker = WritableTxnMarker(topics=topics, **{**fields, **changes})
    (found,) = wire.ask(WriteTxnMarkersRequest(markers=[marker]), version).markers
    assert found.producer_id == marker.producer_id
    return ErrorCode(found.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_what_hangs_is_ended_by_hand(broker: Broker, wire: Wire, version: int, commit: bool) -> None:
    partition = broker.context.store.partition(T, 0)
    partition.allow_transaction(4711, 3, transaction_version=1)
    hanging = batch_of(b"v", producer_id=4711, producer_epoch=3, base_sequence=0, transactional=True)
    partition.append(bytearray(hanging))
    (found,) = open_producers(wire)
    assert (found.producer_id, found.producer_epoch, found.current_txn_start_offset) == (4711, 3, 0)
    producer = {"producer_id": 4711, "producer_epoch": found.producer_epoch}
    earlier = {**producer, "producer_epoch": 2}
    assert ended(wire, version, **earlier) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ended(wire, version, **producer, topic="no") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ended(wire, version, **producer, transaction_result=commit) is ErrorCode.NONE
    assert open_producers(wire) == []
    assert committed(wire) == ([b"v"] if commit else [])


def test_a_marker_by_hand_does_not_keep_later_ones_away(broker: Broker, producer: Producer) -> None:
    wire = producer.wire
    sent(producer, b"v")
    by_hand = {"producer_id": producer.id.number, "producer_epoch": producer.id.epoch}
    assert ended(wire, **by_hand, coordinator_epoch=1_000_000) is ErrorCode.NONE
    assert producer.end(commit=False) is ErrorCode.NONE
    sent(producer, b"w")
    assert producer.end(commit=True) is ErrorCode.NONE
    assert not broker.context.store.partition(T, 0).open_transactions()
    assert committed(wire) == [b"w"]


def test_offsets_of_a_transaction_are_ended_by_hand(broker: Broker, wire: Wire) -> None:
    producer = Producer(wire)
    producer.init()
    assert producer.commit_offsets({0: 5}) == [ErrorCode.NONE]
    number = broker.context.groups.offsets_partition(G).partition
    topics = [WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[number])]
    marker = WritableTxnMarker(
        producer_id=producer.id.number,
        producer_epoch=producer.id.epoch,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=0,
    )
    wire.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
    assert fetched(wire, 9) == [(-1, 0), (-1, 0)]
    assert ended(wire, producer_id=1, producer_epoch=0, topic="__transaction_state") is (
        ErrorCode.INVALID_TOPIC_EXCEPTION
    )


# -- what is advertised -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_the_features(wire: Wire, version: int) -> None:
    response = wire.ask(ApiVersionsRequest(), version)
    finalized = [(f.name, f.min_version_level, f.max_version_level) for f in response.finalized_features]
    supported = [(f.name, f.min_version, f.max_version) for f in response.supported_features]
    levels = {"group.version": 1, "transaction.version": 2, "share.version": 1}
    assert finalized == ([(name, level, level) for name, level in levels.items()] if version >= 3 else [])
    assert supported == ([(name, 0, level) for name, level in levels.items()] if version >= 4 else [])


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_is_this_broker(broker: Broker, wire: Wire, version: int) -> None:
    request = FindCoordinatorRequest(key=TX, key_type=1, coordinator_keys=[TX])
    found = wire.ask(request, version)
    (one,) = found.coordinators if version >= 4 else [found]
    assert (one.error_code, one.node_id, one.port) == (0, broker.address.node_id, broker.port)


# -- what readers are told --------------------------------------------------------------------------------


def test_a_fetch_lists_the_aborted_transactions_of_its_range(wire: Wire) -> None:
    """As in Kafka: those that began before the end of what is returned, by the sparse index."""
    producer = Producer(wire)
    producer.init()
    began = []
    for _ in range(40):
        began.append(sum(2 for _ in began))
        sent(producer, b"x" * 2_000)
        assert producer.end(commit=False) is ErrorCode.NONE
    everything = wire.fetch(T, 0, isolation_level=1, version=11)
    assert [t.first_offset for t in everything.aborted_transactions or ()] == began
    offset, listed_in_all = 0, 0
    while offset < 80:
        part = wire.fetch(T, offset, isolation_level=1, version=11, partition_max_bytes=5_000)
        told = [t.first_offset for t in part.aborted_transactions or ()]
        last = max(record.offset for record in records_of(part))
        assert set(told) >= {first for first in began if offset <= first <= last}
        assert min(told) >= offset - 1
        listed_in_all += len(told)
        offset = last + 1
    assert listed_in_all < 200, "not all of them in each of twenty answers"


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_no_room_for_a_transaction_is_said_at_once(tmp_path: Path, version: int) -> None:
    """A code that clients do not retry, and after which they may abort; the abort itself waits for room."""
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path, fs) as log, Broker(log) as broker, Wire(broker) as wire:
        log.create_topic(T, partitions=2)
        producer = Producer(wire, raises=version >= 5)
        assert producer.init() is ErrorCode.NONE
        if version < 5:
            assert producer.add(0) == [ErrorCode.NONE]
            assert producer.add_offsets() is ErrorCode.NONE
        assert producer.send(b"never seen") is ErrorCode.NONE
        assert producer.commit_offsets({0: 1}, version=version) == [ErrorCode.NONE]
        full = [
            fs.fail("write", errno.ENOSPC, path=topic, times=1 << 30)
            for topic in ("__transaction_state", "__consumer_offsets")
        ]
        refused = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.POLICY_VIOLATION
        if version < 5:
            assert producer.add(1) == [ErrorCode.POLICY_VIOLATION]
            assert producer.add_offsets("other", version=min(version, 4)) is refused
        assert producer.commit_offsets({0: 2}, version=version) == [refused]
        assert producer.end(commit=True, version=version) is refused
        assert producer.end(commit=False, version=version) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        other = Producer(wire, transactional_id="other")
        assert other.init() is ErrorCode.POLICY_VIOLATION
        more = {"producer_id": producer.id.number, "producer_epoch": producer.id.epoch}
        assert producer.init(**more) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        for rule in full:
            fs.rules.remove(rule)
        assert other.init() is ErrorCode.NONE
        assert producer.end(commit=False, version=version) is ErrorCode.NONE
        assert list(log.read(T)) == []
