"""Maps embedlog's errors to Kafka's error codes, and to what clients may read of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from ... import errors
from ...errors.public import PublicError, is_public, public_message
from ...groups.consumer_member import (
    FencedMemberEpoch,
    InvalidRegularExpression,
    StaleMemberEpoch,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from ...groups.share_clients import InvalidRecordState
from ...runtime.log_throttle import LogThrottle
from ...wire.error_codes import ErrorCode
from ...wire.owner_apis import STORAGE_ERRORS

logger = logging.getLogger(__name__)

CodeFor: TypeAlias = Callable[[errors.EmbedlogError], int]
"""The error code that a client gets for an error."""


class ApiError(PublicError):
    """A request fails for a reason that has its own error code in Kafka. Its client reads the message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRecords(ApiError):
    """A batch is rejected because of some of its records; `record_indexes` are the first of these."""

    def __init__(self, code: ErrorCode, message: str, record_indexes: Sequence[int], reason: str) -> None:
        super().__init__(code, message)
        self.record_indexes = record_indexes
        self.reason = reason


_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (  # subclasses before their bases
    (errors.TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.PartitionNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.LogTruncated, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.InvalidProducerIdMapping, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (errors.ProducerFenced, ErrorCode.PRODUCER_FENCED),
    (errors.TransactionNotFound, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    (errors.InvalidTxnState, ErrorCode.INVALID_TXN_STATE),
    (errors.ConcurrentTransactions, ErrorCode.CONCURRENT_TRANSACTIONS),
    (errors.TransactionCoordinatorFenced, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (errors.InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.CompressionUnavailable, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.CorruptRecord, ErrorCode.CORRUPT_MESSAGE),
    (errors.RequestTimedOut, ErrorCode.REQUEST_TIMED_OUT),
    (errors.ZooKeeperUnavailable, ErrorCode.REQUEST_TIMED_OUT),
    (errors.DiskFull, ErrorCode.POLICY_VIOLATION),  # KAFKA_STORAGE_ERROR would have clients retry for minutes
    (errors.LogFull, ErrorCode.POLICY_VIOLATION),
    (errors.StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.UnknownMember, ErrorCode.UNKNOWN_MEMBER_ID),
    (errors.IllegalGeneration, ErrorCode.ILLEGAL_GENERATION),
    (FencedMemberEpoch, ErrorCode.FENCED_MEMBER_EPOCH),
    (StaleMemberEpoch, ErrorCode.STALE_MEMBER_EPOCH),
    (UnreleasedInstance, ErrorCode.UNRELEASED_INSTANCE_ID),
    (UnsupportedAssignor, ErrorCode.UNSUPPORTED_ASSIGNOR),
    (InvalidRegularExpression, ErrorCode.INVALID_REGULAR_EXPRESSION),
    (InvalidRecordState, ErrorCode.INVALID_RECORD_STATE),
    (errors.RebalanceInProgress, ErrorCode.REBALANCE_IN_PROGRESS),
    (errors.FencedInstance, ErrorCode.FENCED_INSTANCE_ID),
    (errors.MemberIdRequired, ErrorCode.MEMBER_ID_REQUIRED),
    (errors.InconsistentProtocol, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (errors.InvalidGroup, ErrorCode.INVALID_GROUP_ID),
    (errors.UnstableOffsetCommit, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    (errors.GroupNotFound, ErrorCode.GROUP_ID_NOT_FOUND),
    (errors.GroupNotEmpty, ErrorCode.NON_EMPTY_GROUP),
    (errors.GroupFull, ErrorCode.GROUP_MAX_SIZE_REACHED),
    (errors.TooManyGroups, ErrorCode.POLICY_VIOLATION),
    (errors.InvalidSetting, ErrorCode.INVALID_CONFIG),
    (errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (errors.UnknownSetting, ErrorCode.INVALID_CONFIG),
    (errors.InvalidArgument, ErrorCode.INVALID_REQUEST),
    (errors.InvalidType, ErrorCode.INVALID_REQUEST),
    (errors.Closed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
)
_NO_ROOM: Final = (errors.DiskFull, errors.LogFull)
_FAILURES: Final = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR})
_failures_log: Final = LogThrottle()


def error_code_for(error: errors.EmbedlogError) -> ErrorCode:
    """The error code that a client gets."""
    if isinstance(error, ApiError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def message_for(error: errors.EmbedlogError) -> str:
    """What a client is told of an error, beside its code. What it is not told of a failure is logged."""
    fails = error_code_for(error) in _FAILURES or isinstance(error, _NO_ROOM)
    if fails and not is_public(error) and (count := _failures_log.count()):
        logger.warning("a request failed (%d since the last message): %s", count, error)
    return public_message(error)


def owner_error_code_for(error: errors.EmbedlogError) -> int:
    """The error code that a client of a log's owner gets: a failed disk has more codes than in Kafka."""
    if isinstance(error, errors.StorageError):
        return STORAGE_ERRORS.get(type(error), STORAGE_ERRORS[errors.StorageError])
    return error_code_for(error)


def group_error_code_for(error: errors.EmbedlogError, *, member: bool = False) -> ErrorCode:
    """The error code that a client gets for a failed operation on a group.

    Transient failures get a retriable code; so does a lack of room, to a member, which goes on by itself. A
    member of a missing group gets UNKNOWN_MEMBER_ID.
    """
    if isinstance(error, errors.RecordTooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if isinstance(error, _NO_ROOM) and not member:
        return error_code_for(error)
    if isinstance(error, (errors.StorageError, errors.ZooKeeperError, errors.Closed)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if member and isinstance(error, errors.GroupNotFound):
        return ErrorCode.UNKNOWN_MEMBER_ID
    return error_code_for(error)


def commit_error_code_for(error: errors.EmbedlogError) -> int:
    """The error code of a member's failed commit: without room, a retry would only hide the reason."""
    return group_error_code_for(error, member=not isinstance(error, _NO_ROOM))


def owner_commit_error_code_for(error: errors.EmbedlogError) -> int:
    """The error code of a failed commit on the socket of a log's owner: a retry would not help its disk."""
    if isinstance(error, errors.StorageError):
        return owner_error_code_for(error)
    return commit_error_code_for(error)


class ErrorAnswers(NamedTuple):
    """What clients get of errors: codes of failed requests and of members' failed commits, and messages."""

    code_for: CodeFor
    commit_code_for: CodeFor
    message_for: Callable[[errors.EmbedlogError], str]


TO_THE_NETWORK: Final = ErrorAnswers(error_code_for, commit_error_code_for, message_for)
TO_PROCESSES_OF_THE_LOG: Final = ErrorAnswers(owner_error_code_for, owner_commit_error_code_for, str)
"""On the owner's socket, whose clients can read the directory."""
