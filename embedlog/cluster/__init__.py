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
broker_for_tests.py   stops, starts again and fails on demand (injected_faults.py)
owner.py       the same without a port: the socket in a log's directory, for other processes
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from .broker import Broker
    from .broker_for_tests import BrokerForTests
    from .injected_faults import InjectedFault
    from .server import AddressInUse
    from .settings import BrokerSettings

# A name is imported when it is first used (PEP 562): a log's owner serves its socket without a broker's port.
_MODULE_OF = {
    "AddressInUse": "server",
    "Broker": "broker",
    "BrokerForTests": "broker_for_tests",
    "BrokerSettings": "settings",
    "InjectedFault": "injected_faults",
}


if not _typing.TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value


__all__ = ["AddressInUse", "Broker", "BrokerForTests", "BrokerSettings", "InjectedFault"]
