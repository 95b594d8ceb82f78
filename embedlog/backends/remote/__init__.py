"""A log at the other end of the wire: embedlog's own API against any Kafka-compatible brokers.

embedlog.open("kafka://host:9092,host2:9092")

backend.py      the port: what producers, consumers and Log call
appending.py    Produce, idempotent            fetching.py   Fetch, and waiting
lookups.py      ListOffsets                    metadata.py   topics, leaders, settings
brokers.py      where brokers are, asking again
connection.py   one connection: requests and responses, versions
settings.py     addresses, and Kafka's names for how patiently they are asked
"""

from .backend import RemoteBackend

__all__ = ["RemoteBackend"]
