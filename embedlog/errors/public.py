"""What strangers may read of an error: clients on the network, and users of the page who see a part.

The message of an error is for those who may read the log's directory. It may name the directory, all topics,
groups and users, processes, files and positions in them. A stranger gets

    the message            of errors about what he has sent, which names nothing else
    a text of the class    of all others

A new class of errors is told by its nearest base in the tables, so at most that the request failed.
"""

from __future__ import annotations

from typing import Final

from .. import errors


class PublicError(errors.EmbedlogError):
    """An error whose message was written for strangers."""


_ABOUT_THE_REQUEST: Final[frozenset[type[BaseException]]] = frozenset(
    {
        PublicError,
        errors.InvalidArgument,
        errors.InvalidType,
        errors.AuthorizationFailed,
        errors.CompressionUnavailable,
        errors.RecordTooLarge,
        errors.OutOfOrderSequence,
        errors.DuplicateSequence,
        errors.InvalidProducerEpoch,
        errors.TransactionError,
        errors.GroupError,
    }
)
_TEXTS: Final[dict[type[BaseException], str]] = {
    errors.TopicNotFound: "there is no such topic",
    errors.TopicExists: "there is a topic of this name already",
    errors.PartitionNotFound: "the topic has no such partition",
    errors.OffsetOutOfRange: "the partition has no such offset",
    errors.UnexpectedOffset: "the next record gets another offset than the request expects",
    errors.LogTruncated: "the partition has lost the records up to this offset",
    errors.RecordsLost: "the log has lost records that the request needs",
    errors.DiskFull: "the disk is full: nothing was stored",
    errors.LogFull: "the log has reached its largest size (max_bytes): nothing was stored",
    errors.StorageError: "the disk failed, or the data on it is damaged: the log's operator can see why",
    errors.Located: "stored data is damaged: the log's operator can see where",
    errors.RequestTimedOut: "it took too long",
    errors.BrokerUnavailable: "another broker, which is needed for this, does not answer",
    errors.ZooKeeperUnavailable: "the broker has lost its cluster: try again",
    errors.ReadOnly: "the log is open for reading only",
    errors.Closed: "the log is closed",
    errors.UnsupportedByBackend: "this log does not support it",
    errors.EmbedlogError: "the request failed: the log's operator can see why",
}
_OF_OTHERS: Final = _TEXTS[errors.EmbedlogError]


def is_public(error: BaseException) -> bool:
    """Whether strangers may read the error's message."""
    return _text_of(type(error)) is None


def public_message(error: BaseException) -> str:
    """What strangers are told of an error."""
    text = _text_of(type(error))
    return str(error) if text is None else text


def _text_of(kind: type[BaseException]) -> str | None:
    """Of the nearest base; None for the error's own message."""
    for base in kind.__mro__:
        if base in _ABOUT_THE_REQUEST:
            return None
        if base in _TEXTS:
            return _TEXTS[base]
    return _OF_OTHERS
