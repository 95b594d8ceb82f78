"""The input of the design documents' producer, and the interfaces of its plug-ins.

    ProducerData     a topic, a key, one value or several
    Encoder          to_message(data) -> the bytes that are sent
    Partitioner      partition(key, num_partitions) -> an index into the sorted list of (broker, partition)
    EventHandler     handle(events, sender, encoder): encodes a batch and sends it
    CallbackHandler  is called at each stage of the queue of an asynchronous producer

Source: Kafka 0.7 and 0.10 design, "Producer APIs"; the stages are those of 0.7's CallbackHandler, and
`after_sending`, which reports batches that failed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...clients.partitioner import partition_for_key
from ...errors import InvalidType, shown


class ProducerData(NamedTuple):
    """One value for a topic, or a list of them. `key` chooses the partition; without a key it is random."""

    topic: str
    data: Any
    key: Any = None


class Event(NamedTuple):
    """One value to send."""

    topic: str
    data: Any
    key: Any = None


class BrokerPartition(NamedTuple):
    """A partition and the broker that accepts its records."""

    broker: int
    partition: int


class Encoder(Protocol):
    """Encodes a value as a message."""

    def to_message(self, data: Any) -> bytes | None: ...


class Partitioner(Protocol):
    """Chooses a partition. `key` is never None."""

    def partition(self, key: Any, num_partitions: int) -> int:
        """An index into the sorted list of (broker, partition): 0 to num_partitions - 1."""


class Sender(Protocol):
    """Sends the events of an EventHandler."""

    def send(self, messages: Sequence[Event]) -> None:
        """Send events whose data are bytes or None, each to the partition of its key."""


class EventHandler(Protocol):
    """Encodes and sends a batch. If it raises, the batch has failed."""

    def handle(self, events: Sequence[Event], sender: Sender, encoder: Encoder) -> None: ...

    def close(self) -> None: ...


class CallbackHandler:
    """Called at each stage of an "async" producer. Subclass it for logging, or to change the events.

    `before_enqueue` and `after_enqueue` run in the thread that calls `send`, which raises their exceptions.
    `close` runs in the thread that closes the producer. The others run in the producer's own thread. Their
    exceptions fail the batch, except for those of `after_sending`, which are logged.
    """

    def before_enqueue(self, event: Event) -> Event:
        """Return the event to put into the queue."""
        return event

    def after_enqueue(self, event: Event, added: bool) -> None:
        """Called when the event is queued, or, if `added` is False, when the queue is full."""

    def after_dequeuing(self, event: Event | None) -> Sequence[Event]:
        """Return the events to add to the batch for a dequeued one (None: `queue_time_ms` have passed)."""
        return [] if event is None else [event]

    def before_sending(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events to send for a complete batch."""
        return events

    def after_sending(self, events: Sequence[Event], error: Exception | None) -> None:
        """Called when the batch was sent, or failed with `error` and was dropped."""

    def last_batch_before_close(self) -> Sequence[Event]:
        """Return events to send last, when the producer is closed."""
        return []

    def close(self) -> None:
        """Called last, when the producer is closed."""


class DefaultEncoder:
    """Sends values as they are: bytes or None."""

    def to_message(self, data: Any) -> bytes | None:
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType(
                f"a message must be bytes, not {type(data).__name__} ({shown(data)}): encode it, or give the "
                "producer an encoder"
            )
        return None if data is None else bytes(data)


class DefaultPartitioner:
    """hash(key) % n, by a hash that is the same in every process: murmur2 of bytes and of strings in UTF-8;
    an integer is its own hash."""

    def partition(self, key: Any, num_partitions: int) -> int:
        if isinstance(key, int) and not isinstance(key, bool):
            return key % num_partitions
        encoded = key_bytes(key)
        if encoded is None:
            raise InvalidType(
                f"a key of type {type(key).__name__} has no hash that is the same in every process: use "
                "bytes, str or int, or give the producer a partitioner"
            )
        return partition_for_key(encoded, num_partitions)


class DefaultEventHandler:
    """Encodes and sends each value."""

    def handle(self, events: Sequence[Event], sender: Sender, encoder: Encoder) -> None:
        sender.send([event._replace(data=encoder.to_message(event.data)) for event in events])

    def close(self) -> None:
        pass


def key_bytes(key: Any) -> bytes | None:
    """The key as it is stored with the message: bytes, and strings in UTF-8. None for other types, which only
    the partitioner uses."""
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    return key.encode() if isinstance(key, str) else None


def random_index(count: int) -> int:
    return random.randrange(count)
