"""Who is in the cluster, who leads what: a port, and what stands behind it.

port.py           what a broker asks
single.py         a broker on its own: no ZooKeeper, everything is its own
registered.py     a broker of a cluster, over ZooKeeper; behind it
  joining.py        how it comes into the cluster
  cluster_view.py   what the registries say
  controller.py     who decides, and what
  local_replicas.py    the directory follows
  lease.py          until when the broker counts
  zookeeper_offsets.py  offsets that groups keep there
membership.py     what a directory remembers of its cluster
assignment.py     which brokers are to keep which partitions
"""

from .assignment import check_assignment
from .membership import check_on_its_own
from .port import BrokerAddress, ConsumerOffsets, Coordination, Placement
from .single import SingleBroker

__all__ = [
    "BrokerAddress",
    "ConsumerOffsets",
    "Coordination",
    "Placement",
    "SingleBroker",
    "check_assignment",
    "check_on_its_own",
]
