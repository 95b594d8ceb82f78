"""The clients of Kafka's design documents, over the wire.

`SimpleConsumer` reads partitions of one broker, from offsets that the application keeps.
`ConsumerConnector` shares topics with its group through ZooKeeper, and commits offsets.
`Producer` finds brokers through ZooKeeper or in a list, and sends at once or from a queue.
"""

from typing import TYPE_CHECKING, Any

from .producer import Producer
from .producer_data import CallbackHandler, Encoder, Event, EventHandler, Partitioner, ProducerData, Sender
from .simple_consumer import EARLIEST_TIME, LATEST_TIME, FetchRequest, MessageSet, SimpleConsumer

if TYPE_CHECKING:
    from .consumer_connector import ConsumerConnector
    from .streams import MessageStream

__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "CallbackHandler",
    "ConsumerConnector",
    "Encoder",
    "Event",
    "EventHandler",
    "FetchRequest",
    "MessageSet",
    "MessageStream",
    "Partitioner",
    "Producer",
    "ProducerData",
    "Sender",
    "SimpleConsumer",
]


def __getattr__(name: str) -> Any:
    """Import what needs kazoo on use: SimpleConsumer works without it."""
    if name == "ConsumerConnector":
        from .consumer_connector import ConsumerConnector

        return ConsumerConnector
    if name == "MessageStream":
        from .streams import MessageStream

        return MessageStream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
