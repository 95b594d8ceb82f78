"""A broker: serves a log to any Kafka client.

from embedlog.cluster import Broker
with Broker("./data", port=9092) as broker: ...

transport.py   a connection's byte stream: plain TCP
connection.py  one client: request frames in, responses out
processor.py   an event loop with its share of the connections (poll.py: epoll on Linux)
server.py      the acceptor and the processors
dispatch.py    a frame -> the handler of its API -> a frame
handlers/      the request handlers, over a BrokerContext: log, groups, cluster, settings
coordination/  the brokers of a cluster and the leaders of partitions
zookeeper/     paths and contents of znodes, a client, servers to run
classic/       the clients of the design documents, over the wire
metrics.py     Prometheus metrics and health over HTTP
broker.py      puts these together
"""

from .broker import Broker
from .server import AddressInUse
from .settings import BrokerSettings

__all__ = ["AddressInUse", "Broker", "BrokerSettings"]
