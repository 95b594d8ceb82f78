"""A broker: serves a log to any Kafka client.

from embedlog.cluster import Broker
with Broker("./data", port=9092) as broker: ...

    testing/       a broker that stops, starts again and fails on demand
    broker/        Kafka's requests, executed on a log: dispatch, handlers, access
    classic/       the clients of the design documents, over the wire
    coordination/  the brokers of a cluster and the leaders of partitions
    zookeeper/     paths and contents of znodes, a client, servers to run
    network/       an event loop, connections, TLS; knows no protocol
    settings/      the settings of brokers and topics, under Kafka's names
    secured.py     certificates and an administrator for `embedlog serve --secure`

A package imports only those below it.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from .broker.broker import Broker
    from .network.server import AddressInUse
    from .settings.broker_settings import BrokerSettings
    from .testing.broker_for_tests import BrokerForTests
    from .testing.injected_faults import InjectedFault

# A name is imported when it is first used (PEP 562): a log's owner serves its socket without a broker's port.
_MODULE_OF = {
    "AddressInUse": "network.server",
    "Broker": "broker.broker",
    "BrokerForTests": "testing.broker_for_tests",
    "BrokerSettings": "settings.broker_settings",
    "InjectedFault": "testing.injected_faults",
}


if not _typing.TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value


__all__ = ["AddressInUse", "Broker", "BrokerForTests", "BrokerSettings", "InjectedFault"]
