"""Maps embedlog's errors to Kafka's error codes, and to what clients may read of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ... import errors
from ...errors.public import PublicError, is_public, public_message
from ...groups.machines.modern_member import (
    FencedMemberEpoch,
    InvalidRegularExpression,
    StaleMemberEpoch,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from ...groups.share_clients import InvalidRecordState
from ...runtime.log_throttle import LogThrottle
from ...wire.error_codes import ErrorCode
from ...wire.error_meanings import CODES
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


_CODES: Final[Mapping[type[errors.EmbedlogError], ErrorCode]] = {
    **CODES,
    errors.PartitionNotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.LogTruncated: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    errors.ZooKeeperUnavailable: ErrorCode.REQUEST_TIMED_OUT,
    errors.DiskFull: ErrorCode.POLICY_VIOLATION,  # KAFKA_STORAGE_ERROR would have clients retry for minutes
    errors.LogFull: ErrorCode.POLICY_VIOLATION,
    FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    InvalidRecordState: ErrorCode.INVALID_RECORD_STATE,
    errors.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    errors.UnstableOffsetCommit: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    errors.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    errors.TooManyGroups: ErrorCode.POLICY_VIOLATION,
    errors.UnknownSetting: ErrorCode.INVALID_CONFIG,
    errors.InvalidType: ErrorCode.INVALID_REQUEST,
    errors.Closed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.InvalidCommit: ErrorCode.UNKNOWN_SERVER_ERROR,  # no client of Kafka sends such an offset
}
"""Error -> its code, if no nearer base of the error has another one."""

_NO_ROOM: Final = (errors.DiskFull, errors.LogFull)
_FAILURES: Final = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR})
_failures_log: Final = LogThrottle()


def error_code_for(error: errors.EmbedlogError) -> ErrorCode:
    """The error code that a client gets."""
    if isinstance(error, ApiError):
        return error.code
    return next(
        (_CODES[base] for base in type(error).__mro__ if base in _CODES), ErrorCode.UNKNOWN_SERVER_ERROR
    )


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


def producer_error_code_for(error: errors.EmbedlogError, *, knows_fenced: bool) -> ErrorCode:
    """The error code that a transactional producer gets. What may succeed later gets a retriable one.

    knows_fenced: whether its version of the request knows PRODUCER_FENCED.
    """
    if isinstance(error, errors.ProducerFenced) and not isinstance(error, errors.InvalidProducerIdMapping):
        return ErrorCode.PRODUCER_FENCED if knows_fenced else ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, (errors.StorageError, errors.Closed)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return group_error_code_for(error, member=True)


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
