"""From Kafka's error codes to embedlog's errors: what a client here makes of a broker's answer.

The other way round is problems.py. A code that has an error of its own in embedlog becomes that; every other
one a BrokerError, which keeps it. A message names the code as Kafka does, and says what to do.
"""

from __future__ import annotations

from typing import Final

from ... import errors
from ...wire.error_codes import ErrorCode

_OWN: Final[dict[ErrorCode, tuple[type[errors.EmbedlogError], str]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        errors.OffsetOutOfRange,
        "no such offset in the log: look up where it begins and ends, and go on from there",
    ),
    ErrorCode.CORRUPT_MESSAGE: (
        errors.CorruptRecord,
        "the bytes are damaged: `embedlog verify --deep` at the broker's directory tells where",
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        errors.TopicNotFound,
        "no such topic or partition: create it, or ask again once it is known to all brokers",
    ),
    ErrorCode.MESSAGE_TOO_LARGE: (errors.RecordTooLarge, "larger than the topic's max.message.bytes"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (errors.InvalidTopicName, "no name that a topic can have"),
    ErrorCode.ILLEGAL_GENERATION: (errors.IllegalGeneration, "the group has gone on without us: join again"),
    ErrorCode.INVALID_GROUP_ID: (errors.InvalidGroup, "no id that a group can have"),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        errors.UnknownMember,
        "the group has members, and this is none of them: join it, or stop them before offsets are "
        "committed by hand",
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: (errors.RebalanceInProgress, "the group rebalances: join again"),
    ErrorCode.FENCED_INSTANCE_ID: (errors.FencedInstance, "another consumer has this group.instance.id"),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        errors.InconsistentProtocol,
        "no assignor that all members of the group have",
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (errors.GroupNotFound, "no such group"),
    ErrorCode.NON_EMPTY_GROUP: (errors.GroupNotEmpty, "the group has members: stop them before"),
    ErrorCode.TOPIC_ALREADY_EXISTS: (errors.TopicExists, "there is such a topic already"),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        errors.OutOfOrderSequence,
        "records before these are missing, or these overlap records that were appended before",
    ),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: (errors.DuplicateSequence, "these records were appended before"),
    ErrorCode.INVALID_PRODUCER_EPOCH: (errors.InvalidProducerEpoch, "a newer producer has this id"),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        errors.CompressionUnavailable,
        "the codec is newer than this version of the protocol: use a newer client or another codec",
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: (errors.StorageError, "the broker's disk failed: its log tells more"),
    ErrorCode.RECORD_LIST_TOO_LARGE: (errors.RecordTooLarge, "larger than a segment of the broker"),
    ErrorCode.INVALID_RECORD: (errors.InvalidArgument, "a record that the topic does not take"),
    ErrorCode.INVALID_TIMESTAMP: (errors.InvalidArgument, "a time that the topic does not take"),
    ErrorCode.INVALID_REQUEST: (errors.InvalidArgument, "not a thing to ask for"),
    ErrorCode.INVALID_PARTITIONS: (errors.InvalidArgument, "no number of partitions that there can be"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (errors.InvalidArgument, "the cluster has not so many brokers"),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        errors.InvalidArgument,
        "outside of the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    ErrorCode.UNKNOWN_PRODUCER_ID: (errors.OutOfOrderSequence, "the broker has forgotten this producer"),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (errors.InvalidProducerEpoch, "the id is another producer's"),
    ErrorCode.PRODUCER_FENCED: (errors.InvalidProducerEpoch, "a newer producer has this id"),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        errors.InvalidCommit,
        "longer than the broker's offset.metadata.max.bytes",
    ),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: (errors.InvalidCommit, "too large to be kept"),
    ErrorCode.INVALID_CONFIG: (errors.InvalidSetting, "a setting has a value that it cannot have"),
}

_WHAT_TO_DO: Final[dict[ErrorCode, str]] = {
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader just now: ask again",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition: ask for metadata, then there",
    ErrorCode.REQUEST_TIMED_OUT: "the broker could not finish in time: ask again",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator still reads its offsets: ask again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the group has no coordinator just now: ask again",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates the group: find it, and ask there",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not have this version of the request",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this client may not use the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this client may not use the group",
}


def error_of(code: int, what: str, details: str | None = None) -> errors.EmbedlogError:
    """The error for a code that is not 0.

    `what` was asked, in a few words; `details` are the broker's own, where it gives any.
    """
    known = ErrorCode(code) if code in set(ErrorCode) else None
    name = f"error {code}" if known is None else f"{known.name} ({code})"
    said = f" [{details}]" if details else ""
    if known in _OWN:
        kind, advice = _OWN[known]
        return kind(f"{what}: {name}: {advice}{said}")
    advice = f": {_WHAT_TO_DO[known]}" if known in _WHAT_TO_DO else ""
    retriable = known is not None and known.retriable
    return errors.BrokerError(f"{what}: {name}{advice}{said}", code=code, retriable=retriable)
