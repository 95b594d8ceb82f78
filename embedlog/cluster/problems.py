"""From embedlog's errors to Kafka's error codes. The only place where both are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .. import errors
from ..wire.error_codes import ErrorCode


class ApiError(errors.EmbedlogError):
    """A request cannot be done, for a reason that has a code of its own in Kafka."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class RecordsRefused(ApiError):
    """A batch is refused because of some of its records; `guilty` are the indexes of the first of these."""

    def __init__(self, code: ErrorCode, message: str, guilty: Sequence[int], reason: str) -> None:
        super().__init__(code, message)
        self.guilty = guilty
        self.reason = reason


_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (  # the more special before the more general
    (errors.TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.PartitionNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.LogTruncated, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.CompressionUnavailable, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.CorruptRecord, ErrorCode.CORRUPT_MESSAGE),
    (errors.RequestTimedOut, ErrorCode.REQUEST_TIMED_OUT),
    (errors.ZooKeeperUnavailable, ErrorCode.REQUEST_TIMED_OUT),
    (errors.StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.UnknownMember, ErrorCode.UNKNOWN_MEMBER_ID),
    (errors.IllegalGeneration, ErrorCode.ILLEGAL_GENERATION),
    (errors.RebalanceInProgress, ErrorCode.REBALANCE_IN_PROGRESS),
    (errors.FencedInstance, ErrorCode.FENCED_INSTANCE_ID),
    (errors.MemberIdRequired, ErrorCode.MEMBER_ID_REQUIRED),
    (errors.InconsistentProtocol, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (errors.InvalidGroup, ErrorCode.INVALID_GROUP_ID),
    (errors.GroupNotFound, ErrorCode.GROUP_ID_NOT_FOUND),
    (errors.GroupNotEmpty, ErrorCode.NON_EMPTY_GROUP),
    (errors.GroupFull, ErrorCode.GROUP_MAX_SIZE_REACHED),
    (errors.TooManyGroups, ErrorCode.POLICY_VIOLATION),
    (errors.InvalidSetting, ErrorCode.INVALID_CONFIG),
    (errors.UnknownSetting, ErrorCode.INVALID_CONFIG),
    (errors.InvalidArgument, ErrorCode.INVALID_REQUEST),
    (errors.InvalidType, ErrorCode.INVALID_REQUEST),
    (errors.Closed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
)


def code_of(error: errors.EmbedlogError) -> ErrorCode:
    """The code by which a client is told of an error."""
    if isinstance(error, ApiError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def group_code_of(error: errors.EmbedlogError, *, member: bool = False) -> ErrorCode:
    """The code by which a client is told of an error of a group.

    What may pass is retriable here. To a member, a group that is not there is one that does not know it.
    """
    if isinstance(error, errors.RecordTooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if isinstance(error, (errors.StorageError, errors.ZooKeeperError, errors.Closed)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if member and isinstance(error, errors.GroupNotFound):
        return ErrorCode.UNKNOWN_MEMBER_ID
    return code_of(error)
