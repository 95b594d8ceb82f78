"""The remote backend: embedlog's own API against any Kafka-compatible brokers.

embedlog.open("kafka://host:9092,host2:9092")

backend.py      the port: what producers, consumers and Log call
appending.py    Produce, idempotent            fetching.py   Fetch, and waiting
arrivals.py     which partitions have records again
lookups.py      ListOffsets                    metadata.py   topics, leaders, settings
brokers.py      addresses of brokers, retries
maintenance.py  requests to a log's owner
                `wire_client/` has the connections
"""

from .backend import RemoteBackend

__all__ = ["RemoteBackend"]
