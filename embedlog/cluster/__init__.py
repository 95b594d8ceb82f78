"""The same log for more than one process: a broker that any Kafka client can talk to.

from embedlog.cluster import Broker
with Broker("./data", port=9092) as broker: ...

protocol/      the wire protocol, without I/O
connection.py  one client: frames in, answers out
processor.py   an event loop with its share of the connections (poll.py: epoll, where there is one)
server.py      the acceptor and the processors
dispatch.py    a frame -> the handler of its API -> a frame
handlers/      what is done with each request, over a Node (broker_context.py): log, groups, cluster, settings
coordination/  who is in the cluster
metrics.py     what it says of itself over HTTP: Prometheus, health
broker.py      all of it together
"""

from .broker import Broker
from .server import AddressInUse
from .settings import BrokerSettings

__all__ = ["AddressInUse", "Broker", "BrokerSettings"]
