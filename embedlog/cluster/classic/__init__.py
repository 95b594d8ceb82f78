"""The clients of the design documents, over the wire.

SimpleConsumer (simple_consumer.py) reads one broker's partitions from offsets that its user keeps.
"""

from .simple_consumer import EARLIEST_TIME, LATEST_TIME, FetchRequest, MessageSet, SimpleConsumer

__all__ = ["EARLIEST_TIME", "LATEST_TIME", "FetchRequest", "MessageSet", "SimpleConsumer"]
