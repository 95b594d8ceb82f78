"""What Kafka's error codes mean here: a client's error for a code, and a broker's code for an error.

A broker answers with the first code of an error or of its nearest base; cluster/broker/api_errors.py adds the
errors that only a broker has. A client raises BrokerError for a code that is in no table here;
wire_client/error_mapping.py has advice for some of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .. import errors
from .error_codes import ErrorCode

__all__ = ["CODES", "DENIED", "MEANINGS", "known_code"]


MEANINGS: Final[dict[ErrorCode, tuple[type[errors.EmbedlogError], str]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        errors.OffsetOutOfRange,
        "no such offset in the log: look up its edges, and continue within them",
    ),
    ErrorCode.CORRUPT_MESSAGE: (
        errors.CorruptRecord,
        "the bytes are damaged: `embedlog verify --deep` on the broker's directory locates the damage",
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        errors.TopicNotFound,
        "no such topic or partition: create it, or retry once all brokers know it",
    ),
    ErrorCode.MESSAGE_TOO_LARGE: (errors.RecordTooLarge, "larger than the topic's max.message.bytes"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (errors.InvalidTopicName, "not a valid topic name"),
    ErrorCode.ILLEGAL_GENERATION: (errors.IllegalGeneration, "the group has a newer generation: join again"),
    ErrorCode.INVALID_GROUP_ID: (errors.InvalidGroup, "not a valid group id"),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        errors.UnknownMember,
        "the group has members, and this is not one of them: join it, or stop them before committing offsets "
        "by hand",
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: (errors.RebalanceInProgress, "the group is rebalancing: join again"),
    ErrorCode.FENCED_INSTANCE_ID: (errors.FencedInstance, "another consumer has this group.instance.id"),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        errors.InconsistentProtocol,
        "no assignor that all members of the group have",
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (errors.GroupNotFound, "no such group"),
    ErrorCode.NON_EMPTY_GROUP: (errors.GroupNotEmpty, "the group has members: stop them first"),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (errors.GroupNotEmpty, "the group's members read the topic"),
    ErrorCode.TOPIC_ALREADY_EXISTS: (errors.TopicExists, "the topic already exists"),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        errors.OutOfOrderSequence,
        "earlier records are missing, or these overlap records that were appended before",
    ),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: (errors.DuplicateSequence, "these records were appended before"),
    ErrorCode.INVALID_PRODUCER_EPOCH: (errors.InvalidProducerEpoch, "a newer producer has this id"),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        errors.CompressionUnavailable,
        "the codec is newer than this version of the protocol: use a newer client or another codec",
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: (errors.StorageError, "the broker's disk failed: see its log"),
    ErrorCode.RECORD_LIST_TOO_LARGE: (errors.RecordTooLarge, "larger than a segment of the broker"),
    ErrorCode.INVALID_REQUEST: (errors.InvalidArgument, "the broker rejects the request"),
    ErrorCode.INVALID_RECORD: (errors.InvalidArgument, "the topic does not accept a record"),
    ErrorCode.INVALID_TIMESTAMP: (errors.InvalidTimestamp, "the topic does not accept a timestamp"),
    ErrorCode.INVALID_PARTITIONS: (errors.InvalidArgument, "not a valid number of partitions"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        errors.InvalidArgument,
        "these brokers cannot keep so many copies",
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        errors.InvalidArgument,
        "outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    ErrorCode.UNKNOWN_PRODUCER_ID: (errors.OutOfOrderSequence, "the broker has forgotten this producer"),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        errors.InvalidProducerIdMapping,
        "the transactional id has another producer id now",
    ),
    ErrorCode.PRODUCER_FENCED: (errors.ProducerFenced, "a newer producer has this id"),
    ErrorCode.INVALID_TXN_STATE: (errors.InvalidTxnState, "the transaction has ended, or has not begun"),
    ErrorCode.TRANSACTION_ABORTABLE: (errors.InvalidTxnState, "abort the transaction"),
    ErrorCode.CONCURRENT_TRANSACTIONS: (
        errors.ConcurrentTransactions,
        "the last transaction is still being ended: retry",
    ),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: (errors.TransactionNotFound, "no such transactional id"),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        errors.InvalidArgument,
        "timeout_ms is above the broker's transaction.max.timeout.ms",
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        errors.InvalidCommit,
        "longer than the broker's offset.metadata.max.bytes",
    ),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: (errors.InvalidCommit, "too large to store"),
    ErrorCode.INVALID_CONFIG: (errors.InvalidSetting, "a setting has an invalid value"),
}
"""Code -> the error, and what a client tells its user beside the code's name."""

CODES: Final[Mapping[type[errors.EmbedlogError], ErrorCode]] = {
    error: code for code, (error, _) in reversed(MEANINGS.items())
}
"""Error -> its first code above."""

DENIED: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "delegation token",
}
"""Code -> the type of the resource with which the principal may not do what it wants."""

_KNOWN: Final = {int(code): code for code in ErrorCode}


def known_code(number: int) -> ErrorCode | None:
    """The error code of a response; None if it is not in this version of Kafka's protocol."""
    return _KNOWN.get(number)
