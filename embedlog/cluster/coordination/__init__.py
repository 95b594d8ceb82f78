"""Who is in the cluster, who leads what: a port, and what stands behind it.

port.py     what a broker asks
single.py   a broker on its own: no ZooKeeper, everything is its own
"""

from .port import BrokerAddress, Coordination
from .single import SingleBroker

__all__ = ["BrokerAddress", "Coordination", "SingleBroker"]
