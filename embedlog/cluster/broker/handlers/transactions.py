"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: what producers ask for.

The coordinator decides (groups/transaction_coordinator.py). These handlers know the versions of Kafka's
requests, and which error codes each version of a client understands:

    before transaction.version 2    EndTxn to v4, TxnOffsetCommit to v4, Produce to v11: partitions are added
                                    first, by AddPartitionsToTxn and AddOffsetsToTxn
    transaction.version 2           EndTxn v5, TxnOffsetCommit v5, Produce v12 (KIP-890): the first batch and
                                    the first offsets add their partition, each end raises the epoch
    a fenced producer               PRODUCER_FENCED; INVALID_PRODUCER_EPOCH before InitProducerId v4 and v2
                                    of the others, and always to Produce and TxnOffsetCommit (KIP-588)
    a partition that was not added  INVALID_TXN_STATE; TRANSACTION_ABORTABLE from Produce v11 and
                                    TxnOffsetCommit v4 on (KIP-890)
    no room                         TRANSACTION_ABORTABLE from v4 of AddOffsetsToTxn, TxnOffsetCommit and
                                    EndTxn on, else POLICY_VIOLATION. An abort and a new epoch get a
                                    retriable code: to the Java client any other one is its end

In a cluster an id's coordinator, the brokers of its partitions and the coordinators of its groups may be
different brokers. The coordinator answers the producer, and brokers that ask whether their partitions are
part of the transaction. Offsets are committed where the group is coordinated, which asks like any other
partition's broker.

Requests are executed as those of groups are (group_requests.py): outside the processors' threads, and
once the groups have been loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final, TypeAlias

from ....errors import (
    ConcurrentTransactions,
    DiskFull,
    EmbedlogError,
    GroupNotFound,
    IllegalGeneration,
    InvalidArgument,
    InvalidTxnState,
    LogFull,
    UnknownMember,
)
from ....files.names import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from ....groups.machines.transaction import RAISES_EPOCHS, ProducerIdAndEpoch
from ....groups.offsets import OFFSETS_TOPIC
from ....groups.producer_processes import UNKNOWN, client
from ....groups.transaction_coordinator import TransactionCoordinator
from ....model import NO_EPOCH, CommittedOffset, TopicPartition
from ....wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ....wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ....wire.apis.end_txn import EndTxnRequest, EndTxnResponse
from ....wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ....wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ....wire.error_codes import ErrorCode
from ...network.server import PROCESS
from ..api_errors import ApiError, CodeFor, producer_error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..futures import completed, flatten_future, map_future
from ..group_requests import GroupRequests, complete, complete_after
from ..peers.transaction_permission import ADDED_FIRST, CoordinatorUnavailable

Refused: TypeAlias = Mapping[TopicPartition, ErrorCode]

_NO_PRODUCER: Final = ProducerIdAndEpoch(-1, -1)
_ID_CHARS: Final = 8_000  # of a transactional id: at most 32,000 bytes

# The first versions ...
_INIT_WITH_FENCED: Final = 4  # ... that know PRODUCER_FENCED
_OTHERS_WITH_FENCED: Final = 2
_COMMIT_WITH_LOADING: Final = 2  # ... that know COORDINATOR_LOAD_IN_PROGRESS
_WITH_ABORTABLE: Final = 4  # ... that know TRANSACTION_ABORTABLE
_COMMIT_THAT_ADDS: Final = 5  # ... of transaction.version 2
_END_THAT_RAISES_EPOCHS: Final = 5
_ADD_OF_BROKERS: Final = 4
_VERIFY_WITH_ABORTABLE: Final = 5

_LATER: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
_NOTHING_REFUSED: Final[Refused] = MappingProxyType({})
_MARKERS_WAIT_MS: Final = 1_000


class TransactionHandlers:
    """Handles the requests of producers about their ids and transactions."""

    def __init__(self, broker: BrokerContext, requests: GroupRequests, code_for: CodeFor) -> None:
        self._broker = broker
        self._requests = requests
        self._code_for = code_for

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        of_all: dict[str, Handler] = {"InitProducerId": self.init_producer_id}
        if self._broker.transactions is None:
            return of_all
        return {
            **of_all,
            "AddPartitionsToTxn": self.add_partitions,
            "AddOffsetsToTxn": self.add_offsets,
            "TxnOffsetCommit": self.commit_offsets,
            "EndTxn": self.end,
        }

    @property
    def _coordinator(self) -> TransactionCoordinator:
        assert self._broker.transactions is not None
        return self._broker.transactions

    # -- InitProducerId --------------------------------------------------------------------------------

    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
        """Without a transactional id each request gets a new producer id."""
        transactional_id = request.transactional_id
        if transactional_id is None:
            return self._broker.run_blocking(self._new_producer)
        if self._broker.transactions is None:
            return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if not 0 < len(transactional_id) <= _ID_CHARS or (min(expected) < 0 and expected != _NO_PRODUCER):
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)

        def begin() -> InitProducerIdResponse:
            producer = self._coordinator.init_producer_id(
                transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                expected=None if expected == _NO_PRODUCER else expected,
                process=_process(context),
            )
            return InitProducerIdResponse(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
            )

        def failed(error: EmbedlogError) -> InitProducerIdResponse:
            if isinstance(error, InvalidArgument):
                return InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            knows_fenced = context.version >= _INIT_WITH_FENCED
            full = ErrorCode.POLICY_VIOLATION if expected == _NO_PRODUCER else _LATER
            return InitProducerIdResponse(error_code=self._code(error, knows_fenced=knows_fenced, full=full))

        return self._requests.run(context, begin, failed, transactional_id=transactional_id)

    def _new_producer(self) -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=self._broker.producer_ids.next())
        except EmbedlogError as error:
            return InitProducerIdResponse(error_code=self._code_for(error))

    # -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------

    def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Future[AddPartitionsToTxnResponse]:
        """Add all of a transaction's partitions, or none. Brokers ask for several transactions at once, from
        v4 on."""
        if context.version >= _ADD_OF_BROKERS:
            return self._requests.run(
                context,
                lambda: AddPartitionsToTxnResponse(
                    results_by_transaction=[
                        self._add_for_broker(context, transaction) for transaction in request.transactions
                    ]
                ),
                lambda error: AddPartitionsToTxnResponse(
                    error_code=producer_error_code_for(error, knows_fenced=True)
                ),
            )
        transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)

        def answer(code: int, refused: Refused = _NOTHING_REFUSED) -> AddPartitionsToTxnResponse:
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=_results_by_topic(topics, code, refused)
            )

        def add() -> AddPartitionsToTxnResponse:
            names = self._partition_names(topics)
            refused = self._refused(names, INTERNAL_TOPICS)
            if refused:
                return answer(ErrorCode.OPERATION_NOT_ATTEMPTED, refused)
            self._coordinator.add_partitions(transactional_id, producer, names, client_version=ADDED_FIRST)
            return answer(ErrorCode.NONE)

        if not transactional_id:
            return answer(ErrorCode.INVALID_REQUEST)
        return self._requests.run(
            context,
            add,
            lambda error: answer(
                self._code(
                    error,
                    knows_fenced=context.version >= _OTHERS_WITH_FENCED,
                    full=ErrorCode.POLICY_VIOLATION,
                )
            ),
            transactional_id=transactional_id,
        )

    def _add_for_broker(
        self, context: RequestContext, transaction: AddPartitionsToTxnTransaction
    ) -> AddPartitionsToTxnResult:
        """Add the partitions of another broker, or verify that they were added."""
        refused = _NOTHING_REFUSED
        code = ErrorCode.NONE
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        try:
            self._requests.check_coordinates_transactions(transaction.transactional_id)
            names = self._partition_names(transaction.topics)
            if transaction.verify_only:
                self._coordinator.check_partitions(transaction.transactional_id, producer, names)
            elif refused := self._refused(names, INTERNAL_TOPICS - {OFFSETS_TOPIC}):
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
            else:
                self._coordinator.add_partitions(transaction.transactional_id, producer, names)
        except InvalidTxnState:
            with_abortable = context.version >= _VERIFY_WITH_ABORTABLE
            code = ErrorCode.TRANSACTION_ABORTABLE if with_abortable else ErrorCode.INVALID_TXN_STATE
        except EmbedlogError as error:
            code = producer_error_code_for(error, knows_fenced=True)
        return AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=_results_by_topic(transaction.topics, code, refused),
        )

    def _partition_names(self, topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
        """The partitions, once this broker knows the topics, which another one may just have created."""
        if unknown := self._broker.coordination.unknown_topics({topic.name for topic in topics}):
            self._broker.coordination.catch_up(unknown)
        return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]

    def _refused(self, names: Sequence[TopicPartition], internal: Collection[str]) -> Refused:
        """The partitions that cannot be added, and why."""
        refused = {}
        for name in names:
            forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED if name.topic in internal else ErrorCode.NONE
            if code := forbidden or self._broker.missing_code(name):
                refused[name] = code
        return refused

    def add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse | Future[AddOffsetsToTxnResponse]:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

        def add() -> AddOffsetsToTxnResponse:
            self._check_offsets_topic(request.group_id)
            self._coordinator.add_offsets(
                request.transactional_id, producer, request.group_id, client_version=ADDED_FIRST
            )
            return AddOffsetsToTxnResponse()

        def failed(error: EmbedlogError) -> AddOffsetsToTxnResponse:
            knows_fenced = context.version >= _OTHERS_WITH_FENCED
            code = self._code(error, knows_fenced=knows_fenced, full=_no_room(context))
            return AddOffsetsToTxnResponse(error_code=code)

        if not request.transactional_id:
            return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        return self._requests.run(context, add, failed, transactional_id=request.transactional_id)

    def _check_offsets_topic(self, group: str) -> None:
        """Raises ApiError if a cluster has not created the topic yet. A log of its own creates it at once."""
        coordination = self._broker.coordination
        if coordination.partition_of(group) is None:
            is_coming = coordination.coordinator_of(group) is None
        else:  # registered, but perhaps not here yet
            is_coming = OFFSETS_TOPIC not in self._broker.store.by_topic
        if is_coming:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is being created")

    # -- TxnOffsetCommit -------------------------------------------------------------------------------

    def commit_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse | Future[TxnOffsetCommitResponse]:
        offsets, refused = self._checked_offsets(request)
        if not offsets:
            return _commit_response(request, refused, ErrorCode.NONE)
        return self._requests.run_async(
            context,
            request.group_id,
            lambda: self._commit(context, request, offsets),
            lambda _: _commit_response(request, refused, ErrorCode.NONE),
            lambda error: _commit_response(request, refused, self._commit_code(context, request, error)),
            timeout_ms=self._broker.settings.offsets_commit_timeout_ms,
        )

    def _checked_offsets(
        self, request: TxnOffsetCommitRequest
    ) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]:
        """The offsets that can be committed, and why the others cannot."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        max_metadata_bytes = self._broker.settings.offset_metadata_max_bytes
        for topic in request.topics:
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition_index)
                metadata = partition.committed_metadata or ""
                code = self._broker.missing_code(name)
                if code is ErrorCode.NONE and len(metadata.encode()) > max_metadata_bytes:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                if code is not ErrorCode.NONE:
                    refused[name] = code
                    continue
                epoch = max(partition.committed_leader_epoch, NO_EPOCH)
                offsets[name] = CommittedOffset(partition.committed_offset, epoch, metadata)
        return offsets, refused

    def _commit(
        self,
        context: RequestContext,
        request: TxnOffsetCommitRequest,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> Future[None]:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        adds = context.version >= _COMMIT_THAT_ADDS
        if not self._broker.coordination.coordinates(request.transactional_id, TRANSACTION_STATE_TOPIC):
            return self._commit_permitted(request, producer, offsets, adds=adds)
        self._coordinator.commit_offsets(
            request.transactional_id,
            producer,
            request.group_id,
            offsets,
            member_id=request.member_id,
            generation=request.generation_id,
            group_instance_id=request.group_instance_id,
            client_version=RAISES_EPOCHS if adds else ADDED_FIRST,
        )
        return completed(None)

    def _commit_permitted(
        self,
        request: TxnOffsetCommitRequest,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        adds: bool,
    ) -> Future[None]:
        """Commit once the partition of the group's offsets has the permission of another broker's
        coordinator."""
        permissions = self._broker.permissions
        assert permissions is not None

        def commit() -> None:
            self._broker.groups.commit_in_transaction(
                request.group_id,
                offsets,
                *producer,
                member_id=request.member_id,
                generation=request.generation_id,
                group_instance_id=request.group_instance_id,
            )

        def commit_unless(refused: Mapping[TopicPartition, EmbedlogError]) -> Future[None]:
            for error in refused.values():
                raise error
            return self._broker.run_blocking(commit)

        name = self._broker.groups.offsets_partition(request.group_id)
        if self._broker.store.partition(*name).allows_transaction(*producer):
            commit()
            return completed(None)
        permission = permissions.get(request.transactional_id, producer, [name], adds=adds)
        return flatten_future(map_future(permission, commit_unless))

    def _commit_code(
        self, context: RequestContext, request: TxnOffsetCommitRequest, error: EmbedlogError
    ) -> int:
        if isinstance(error, InvalidTxnState) and context.version >= _WITH_ABORTABLE:
            return ErrorCode.TRANSACTION_ABORTABLE
        if isinstance(error, CoordinatorUnavailable) or (
            isinstance(error, ConcurrentTransactions) and context.version < _COMMIT_THAT_ADDS
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if isinstance(error, (UnknownMember, IllegalGeneration)) and request.generation_id >= 0:
            try:
                self._broker.groups.describe_group(request.group_id)
            except GroupNotFound:
                return ErrorCode.ILLEGAL_GENERATION
            except EmbedlogError:
                pass
        code = self._code(error, knows_fenced=False, full=_no_room(context))
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < _COMMIT_WITH_LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code

    # -- EndTxn ----------------------------------------------------------------------------------------

    def end(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Future[EndTxnResponse]:
        """Answered once all markers are written, if that does not take long: then the next transaction may
        begin."""
        raises_epoch = context.version >= _END_THAT_RAISES_EPOCHS

        def end() -> Future[EndTxnResponse]:
            producer = self._coordinator.end(
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                commit=request.committed,
                client_version=RAISES_EPOCHS if raises_epoch else ADDED_FIRST,
            )
            answer = EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
            ended: Future[EndTxnResponse] = Future()
            over = self._coordinator.when_over(request.transactional_id)
            over.add_done_callback(lambda _: complete(ended, answer))
            if not ended.done():
                complete_after(context, ended, _MARKERS_WAIT_MS, lambda: answer)
            return ended

        def failed(error: EmbedlogError) -> EndTxnResponse:
            knows_fenced = context.version >= _OTHERS_WITH_FENCED
            full = _no_room(context) if request.committed else _LATER
            return EndTxnResponse(error_code=self._code(error, knows_fenced=knows_fenced, full=full))

        if not request.transactional_id:
            return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        return self._requests.run_async(
            context, None, end, lambda answer: answer, failed, transactional_id=request.transactional_id
        )

    def _code(self, error: EmbedlogError, *, knows_fenced: bool, full: ErrorCode) -> int:
        """The error code that a producer gets; `full` on the network, if there is no room."""
        if isinstance(error, (DiskFull, LogFull)):
            code = self._code_for(error)
            return full if code == ErrorCode.POLICY_VIOLATION else code
        return producer_error_code_for(error, knows_fenced=knows_fenced)


def _results_by_topic(
    topics: Sequence[AddPartitionsToTxnTopic], code: int, refused: Refused
) -> list[AddPartitionsToTxnTopicResult]:
    """`code` is for all partitions without an error of their own."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number,
                    partition_error_code=refused.get(TopicPartition(topic.name, number), code),
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _commit_response(
    request: TxnOffsetCommitRequest, refused: Mapping[TopicPartition, ErrorCode], code: int
) -> TxnOffsetCommitResponse:
    """`code` is for all partitions without an error of their own."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=refused.get(TopicPartition(topic.name, partition.partition_index), code),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _no_room(context: RequestContext) -> ErrorCode:
    """What fails a producer's transaction at once: the log has no room for it."""
    knows_abortable = context.version >= _WITH_ABORTABLE
    return ErrorCode.TRANSACTION_ABORTABLE if knows_abortable else ErrorCode.POLICY_VIOLATION


def _process(context: RequestContext) -> str:
    """The process of a client on the owner's socket."""
    pid = context.connection.host.removeprefix(PROCESS)
    return client(int(pid)) if pid != context.connection.host else UNKNOWN
