"""Kafka without the server: a durable, replayable, partitioned log inside your Python process.

log = embedlog.open("./data")
log.create_topic("clicks", partitions=4)
log.append("clicks", b'{"page": "/"}', key=b"user-7")
for record in log.read("clicks"): ...
"""

from . import errors
from .clients.assignment import RebalanceCallback
from .clients.assignors import Assignor
from .clients.consumer import Consumer
from .clients.offset_store import FileOffsetStore, OffsetStore
from .clients.partitioner import Partitioner
from .clients.producer import Encoder, Producer
from .clients.reader import Where
from .clients.results import AppendedMany
from .config import LogSettings, TopicSettings
from .errors import *  # noqa: F403 - the whole tree is part of the face
from .log import Log
from .mirroring import Mirror, MirroredTopic, MirrorStatus
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
from .open import open

__version__ = "0.1.0"

__all__ = [
    "AppendedMany",
    "Assignor",
    "CommittedOffset",
    "Consumer",
    "Encoder",
    "FileOffsetStore",
    "Health",
    "Log",
    "LogSettings",
    "Mirror",
    "MirrorStatus",
    "MirroredTopic",
    "OffsetAndTimestamp",
    "OffsetStore",
    "PartitionOffsets",
    "PartitionRecovery",
    "Partitioner",
    "Producer",
    "RebalanceCallback",
    "Record",
    "RecordMetadata",
    "RecoveryReport",
    "TopicDescription",
    "TopicPartition",
    "TopicSettings",
    "Where",
    "open",
]
__all__ += errors.__all__
