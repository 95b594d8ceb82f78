"""Kafka without the server: a durable, replayable, partitioned log inside your Python process.

log = embedlog.open("./data")
log.create_topic("clicks", partitions=4)
log.append("clicks", b'{"page": "/"}', key=b"user-7")
for record in log.read("clicks"): ...
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

from . import errors
from .errors import *  # noqa: F403 - the whole tree is part of the face
from .open import open, scan_polars

if _typing.TYPE_CHECKING:
    from .clients.assignment import RebalanceCallback
    from .clients.assignors import Assignor
    from .clients.consumer import Consumer
    from .clients.group_admin import (
        ConsumerGroup,
        ConsumerGroupDescription,
        GroupMember,
        OffsetReset,
        PartitionLag,
    )
    from .clients.job import Job
    from .clients.offset_store import FileOffsetStore, OffsetStore
    from .clients.partitioner import Partitioner
    from .clients.producer import Encoder, Producer
    from .clients.queue import Queue
    from .clients.reader import Where
    from .clients.results import AppendedMany
    from .clients.serializers import Serializer
    from .clients.topic import Topic, TopicProducer
    from .clients.transaction import Transaction
    from .clients.transaction_admin import TransactionDescription
    from .clients.transactional_producer import TransactionalProducer
    from .clients.workers import Workers, worker
    from .config import LogSettings, TopicSettings
    from .log import Log
    from .mirroring import Mirror, MirroredGroup, MirroredTopic, MirrorStatus
    from .model import (
        CommittedOffset,
        Health,
        OffsetAndTimestamp,
        PartitionOffsets,
        PartitionRecovery,
        Record,
        RecordMetadata,
        RecoveryReport,
        TopicDescription,
        TopicPartition,
    )

__version__ = "0.1.0"

# A name is imported when it is first used (PEP 562): a program that only appends starts without consumers.
_MODULES = {
    "clients.assignment": ("RebalanceCallback",),
    "clients.assignors": ("Assignor",),
    "clients.consumer": ("Consumer",),
    "clients.group_admin": (
        "ConsumerGroup",
        "ConsumerGroupDescription",
        "GroupMember",
        "OffsetReset",
        "PartitionLag",
    ),
    "clients.job": ("Job",),
    "clients.offset_store": ("FileOffsetStore", "OffsetStore"),
    "clients.partitioner": ("Partitioner",),
    "clients.producer": ("Encoder", "Producer"),
    "clients.queue": ("Queue",),
    "clients.reader": ("Where",),
    "clients.results": ("AppendedMany",),
    "clients.serializers": ("Serializer",),
    "clients.topic": ("Topic", "TopicProducer"),
    "clients.transaction": ("Transaction",),
    "clients.transaction_admin": ("TransactionDescription",),
    "clients.transactional_producer": ("TransactionalProducer",),
    "clients.workers": ("Workers", "worker"),
    "config": ("LogSettings", "TopicSettings"),
    "log": ("Log",),
    "mirroring": ("Mirror", "MirrorStatus", "MirroredGroup", "MirroredTopic"),
    "model": (
        "CommittedOffset",
        "Health",
        "OffsetAndTimestamp",
        "PartitionOffsets",
        "PartitionRecovery",
        "Record",
        "RecordMetadata",
        "RecoveryReport",
        "TopicDescription",
        "TopicPartition",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not _typing.TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AppendedMany",
    "Assignor",
    "CommittedOffset",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupDescription",
    "Encoder",
    "FileOffsetStore",
    "GroupMember",
    "Health",
    "Job",
    "Log",
    "LogSettings",
    "Mirror",
    "MirrorStatus",
    "MirroredGroup",
    "MirroredTopic",
    "OffsetAndTimestamp",
    "OffsetReset",
    "OffsetStore",
    "PartitionLag",
    "PartitionOffsets",
    "PartitionRecovery",
    "Partitioner",
    "Producer",
    "Queue",
    "RebalanceCallback",
    "Record",
    "RecordMetadata",
    "RecoveryReport",
    "Serializer",
    "Topic",
    "TopicDescription",
    "TopicPartition",
    "TopicProducer",
    "TopicSettings",
    "Transaction",
    "TransactionDescription",
    "TransactionalProducer",
    "Where",
    "Workers",
    "open",
    "scan_polars",
    "worker",
]
__all__ += errors.__all__
