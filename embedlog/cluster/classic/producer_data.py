"""The input of the design documents' producer, and the interfaces of its plug-ins.

    ProducerData     a topic, a key, one value or several
    Encoder          to_message(data) -> the bytes that are sent
    Partitioner      partition(key, num_partitions) -> an index into the sorted list of (broker, partition)
    EventHandler     handle(events, sender, encoder): serialises a batch and has it sent
    CallbackHandler  is called at each stage of the queue of an asynchronous producer

Source: Kafka 0.7 and 0.10 design, "Producer APIs"; the stages are those of 0.7's CallbackHandler, and
`after_sending`, without which nobody would hear of a batch that failed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...clients.partitioner import partition_for_key
from ...errors import InvalidType, shown


class ProducerData(NamedTuple):
    """Values for a topic: one, or a list of them. `key` chooses the partition; None: a random one."""

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
        """From 0 to num_partitions - 1: an index into the list of (broker, partition), which is sorted."""


class Sender(Protocol):
    """Sends the events of an EventHandler."""

    def send(self, messages: Sequence[Event]) -> None:
        """Send events whose data are bytes or None, each to the partition of its key."""


class EventHandler(Protocol):
    """Serialises and dispatches a batch. What it raises is the batch's failure."""

    def handle(self, events: Sequence[Event], sender: Sender, encoder: Encoder) -> None: ...

    def close(self) -> None: ...


class CallbackHandler:
    """Does nothing at any stage; subclass it for logging, tracing, monitoring, or to change what is sent.

    What a stage raises goes to `send` (the first two), else fails the batch. The first two are called in
    the threads of those who send, all others in the producer's own.
    """

    def before_enqueue(self, event: Event) -> Event:
        """About to go into the queue; what is returned goes."""
        return event

    def after_enqueue(self, event: Event, added: bool) -> None:
        """It is in the queue, or there was no room."""

    def after_dequeuing(self, event: Event | None) -> Sequence[Event]:
        """It has been taken out (None: queue_time_ms are over, and nothing came); what is returned joins the
        batch."""
        return [] if event is None else [event]

    def before_sending(self, events: Sequence[Event]) -> Sequence[Event]:
        """A batch is complete; what is returned is sent."""
        return events

    def after_sending(self, events: Sequence[Event], error: Exception | None) -> None:
        """It was sent, or failed, and is gone."""

    def last_batch_before_close(self) -> Sequence[Event]:
        """The producer is being closed: what is to be sent at the very end."""
        return []

    def close(self) -> None:
        """No more calls follow."""


class DefaultEncoder:
    """Does nothing: a value is the message already, bytes or None."""

    def to_message(self, data: Any) -> bytes | None:
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType(
                f"a message is bytes, not {type(data).__name__} ({shown(data)}): encode it, or give the "
                "producer an encoder"
            )
        return None if data is None else bytes(data)


class DefaultPartitioner:
    """hash(key) % n, by a hash that is the same in every process: murmur2 of bytes, and of texts in UTF-8;
    a whole number is its own."""

    def partition(self, key: Any, num_partitions: int) -> int:
        if isinstance(key, int) and not isinstance(key, bool):
            return key % num_partitions
        encoded = key_bytes(key)
        if encoded is None:
            raise InvalidType(
                f"a key that is {type(key).__name__} has no hash that every process agrees on: give bytes, "
                "str or int, or the producer a partitioner"
            )
        return partition_for_key(encoded, num_partitions)


class DefaultEventHandler:
    """Encodes each value, and sends all of them."""

    def handle(self, events: Sequence[Event], sender: Sender, encoder: Encoder) -> None:
        sender.send([event._replace(data=encoder.to_message(event.data)) for event in events])

    def close(self) -> None:
        pass


def key_bytes(key: Any) -> bytes | None:
    """The key as it is written beside the message: bytes, and texts in UTF-8; None for all others, which are
    for the partitioner alone."""
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    return key.encode() if isinstance(key, str) else None


def random_index(count: int) -> int:
    return random.randrange(count)
