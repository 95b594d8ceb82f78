"""The options of a log's producers, consumers and queues and the settings of topics, for type checkers.

The signatures of the clients document options and defaults, config.TopicSettings documents settings; tests
compare these lists with them. A call may use Kafka's dotted names, too: for a type checker, these come in a
`dict[str, Any]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict, cast

from ..backends.port import Backend
from ..errors import InvalidArgument, InvalidGroup, InvalidType
from ..synonyms import CONSUMER_OPTIONS, PRODUCER_OPTIONS, Synonyms, plain
from ..validation import renamed
from .assignment import RebalanceCallback
from .assignors import Assignor
from .batch import Callback
from .offset_store import OffsetStore
from .partitioner import Partitioner
from .producer import Encoder


class ProducerOptions(TypedDict, total=False):
    """Keyword options of producer.Producer."""

    linger_ms: float
    batch_bytes: int
    compression: str | int | None
    partitioner: Partitioner | None
    encoder: Encoder | None
    key_encoder: Encoder | None
    callback: Callback | None
    buffer_bytes: int
    max_block_ms: float
    flush: bool
    clock: Callable[[], int]


class TransactionalOptions(ProducerOptions, total=False):
    """Keyword options of transactional_producer.TransactionalProducer."""

    transactional_id: Required[str]
    transaction_timeout_ms: int


class ConsumerOptions(TypedDict, total=False):
    """Keyword options of consumer.Consumer."""

    auto_offset_reset: str
    auto_commit: bool | None
    auto_commit_interval_ms: int
    assignors: Sequence[str | Assignor]
    isolation_level: str
    max_poll_records: int
    fetch_max_bytes: int
    max_poll_interval_ms: int
    client_id: str
    group_instance_id: str | None
    offset_store: OffsetStore | None
    stop_at_end: bool
    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None
    metadata_refresh_ms: int


class QueueOptions(TypedDict, total=False):
    """Keyword options of queue.Queue."""

    lock_ms: int
    max_deliveries: int
    backoff_ms: int
    max_backoff_ms: int
    ordered_by_key: bool
    dead_letter_topic: str | None
    prefetch: int
    flush: bool
    accept_linger_ms: int
    partitions: int


CleanupPolicy: TypeAlias = Literal["delete", "compact", "compact,delete", "delete,compact", ""]
CompressionType: TypeAlias = Literal["producer", "none", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
TimestampType: TypeAlias = Literal["CreateTime", "LogAppendTime"]


class TopicOptions(TypedDict, total=False):
    """Keyword settings of `Log.create_topic`: config.TopicSettings documents them."""

    cleanup_policy: CleanupPolicy | Sequence[str]
    compression_type: CompressionType
    delete_policy: str | Sequence[str]
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: TimestampType
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int


class TopicChanges(TypedDict, total=False):
    """Keyword settings of `Log.alter_topic`: those of `create_topic`, and None for the default."""

    cleanup_policy: CleanupPolicy | Sequence[str] | None
    compression_type: CompressionType | None
    delete_policy: str | Sequence[str] | None
    delete_retention_ms: int | None
    file_delete_delay_ms: int | None
    flush_messages: int | None
    flush_ms: int | None
    index_interval_bytes: int | None
    max_compaction_lag_ms: int | None
    max_message_bytes: int | None
    message_timestamp_after_max_ms: int | None
    message_timestamp_before_max_ms: int | None
    message_timestamp_type: TimestampType | None
    min_cleanable_dirty_ratio: float | None
    min_compaction_lag_ms: int | None
    preallocate: bool | None
    retention_bytes: int | None
    retention_ms: int | None
    segment_bytes: int | None
    segment_ms: int | None


_CALLABLES: Final = frozenset(
    ("partitioner", "encoder", "key_encoder", "callback", "clock", "on_assigned", "on_revoked", "on_lost")
)


_TRANSACTIONAL: Final = ("transactional_id", "transaction_timeout_ms")


def producer_options(arguments: Mapping[str, object]) -> ProducerOptions:
    """A producer's options by canonical name. Raises as `_checked`."""
    return cast(ProducerOptions, _checked(arguments, ProducerOptions.__annotations__, PRODUCER_OPTIONS))


def transactional_options(arguments: Mapping[str, object]) -> TransactionalOptions | None:
    """The options of a producer with a transactional id; None without one. Raises as `_checked`."""
    if not any(plain(typed) in _TRANSACTIONAL for typed in arguments):
        return None
    options = _checked(arguments, (*ProducerOptions.__annotations__, *_TRANSACTIONAL), PRODUCER_OPTIONS)
    if "transactional_id" not in options:
        raise InvalidArgument("transaction_timeout_ms is for a producer with transactional_id=")
    return cast(TransactionalOptions, options)


def consumer_options(arguments: Mapping[str, object]) -> ConsumerOptions:
    """A consumer's options by canonical name. Raises as `_checked`."""
    return cast(ConsumerOptions, _checked(arguments, ConsumerOptions.__annotations__, CONSUMER_OPTIONS))


def queue_options(arguments: Mapping[str, object]) -> QueueOptions:
    """A queue's options by canonical name. Raises UnknownSetting, InvalidArgument."""
    return cast(QueueOptions, renamed(arguments, QueueOptions.__annotations__, {}))


def _checked(arguments: Mapping[str, object], names: Collection[str], synonyms: Synonyms) -> dict[str, Any]:
    """The options by canonical name.

    Raises UnknownSetting for an unknown name, with a suggestion; InvalidArgument if an option is given under
    two names; InvalidType for a callback that is not callable, which another thread would find too late.
    """
    options = renamed(arguments, names, synonyms)
    for name, value in options.items():
        if name in _CALLABLES and value is not None and not callable(value):
            raise InvalidType(f"{name} must be callable, not {type(value).__name__}")
    return options


def check_group_possible(backend: Backend, group: str | None, options: ConsumerOptions) -> None:
    """Raises InvalidGroup if the log cannot keep the offsets of a group; Closed."""
    if group is not None and backend.coordinator is None and options.get("offset_store") is None:
        raise InvalidGroup(
            "a process that only reads cannot join a group: give its offsets a store of their own, e.g. "
            'offset_store=embedlog.FileOffsetStore("billing.offsets")'
        )
    backend.check_open()
