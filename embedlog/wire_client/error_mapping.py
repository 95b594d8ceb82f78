"""Maps Kafka's error codes to embedlog's errors, for clients.

The broker's reverse mapping is cluster/broker/api_errors.py. A code without an error of its own in embedlog
becomes a BrokerError, which keeps it. A message has Kafka's name of the code, and advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .. import errors
from ..errors.public import public_message
from ..wire.error_codes import ErrorCode
from ..wire.owner_apis import STORAGE_ERRORS

_OWN: Final[dict[ErrorCode, tuple[type[errors.EmbedlogError], str]]] = {
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
    ErrorCode.INVALID_RECORD: (errors.InvalidArgument, "the topic does not accept a record"),
    ErrorCode.INVALID_TIMESTAMP: (errors.InvalidTimestamp, "the topic does not accept a timestamp"),
    ErrorCode.INVALID_REQUEST: (errors.InvalidArgument, "the broker rejects the request"),
    ErrorCode.INVALID_PARTITIONS: (errors.InvalidArgument, "not a valid number of partitions"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (errors.InvalidArgument, "the cluster has fewer brokers"),
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

_FULL: Final = {public_message(kind("")): kind for kind in (errors.DiskFull, errors.LogFull)}
"""What an embedlog broker says beside POLICY_VIOLATION if it has no room."""

_OWNERS: Final = {code: kind for kind, code in STORAGE_ERRORS.items()}

_ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader: retry",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition: refresh the metadata",
    ErrorCode.REQUEST_TIMED_OUT: "the broker could not finish in time: retry",
    ErrorCode.POLICY_VIOLATION: "a rule of the broker does not allow it, or it has no room",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still reading its offsets: retry",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the group has no coordinator: retry",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates the group: look it up, and retry there",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not have this version of the request",
    ErrorCode.SECURITY_DISABLED: "start the brokers with authorizer_class_name=AclAuthorizer",
}

_FORBIDDEN: Final[dict[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "delegation token",
}


def error_of(
    code: int, what: str, details: str | None = None, names: Mapping[str, str] | None = None
) -> errors.EmbedlogError:
    """The error for a code that is not 0.

    `what` names the request in a few words; `details` is the broker's own message, if any; `names` has the
    topic, the group, the transactional id that it was about.
    """
    if code in _FORBIDDEN:
        kind = _FORBIDDEN[code]
        name = (names or {}).get(kind, "")
        of = f"{kind} {name!r}" if name else f"the {kind}"
        return errors.AuthorizationFailed(
            f"{what}: {ErrorCode(code).name} ({code}): the principal of this client may not do that with {of}"
            + (f" [{details}]" if details else ""),
            resource_type=kind,
            resource=name,
        )
    if code in _OWNERS:
        return _OWNERS[code](f"{what}: {details or 'the owner cannot write its files'}")
    if code == ErrorCode.POLICY_VIOLATION and details in _FULL:
        return _FULL[details](f"{what}: {details}")
    known = ErrorCode(code) if code in set(ErrorCode) else None
    name = f"error {code}" if known is None else f"{known.name} ({code})"
    own = f" [{details}]" if details else ""
    if known in _OWN:
        of_code, advice = _OWN[known]
        return of_code(f"{what}: {name}: {advice}{own}")
    advice = f": {_ADVICE[known]}" if known in _ADVICE else ""
    retriable = known is not None and known.retriable
    return errors.BrokerError(f"{what}: {name}{advice}{own}", code=code, retriable=retriable)
