"""Which brokers are in the cluster, and which of them leads each partition.

port.py                 the interface between a broker and its cluster
single.py               a standalone broker: it leads everything
registered.py           a broker of a cluster, over ZooKeeper; its parts:
  joining.py              how it joins the cluster
  cluster_view.py         the contents of the registries
  controller.py           elects leaders
  local_replicas.py       brings the directory in line with the registries
  lease.py                until when the broker's session is certainly valid
  zookeeper_offsets.py    offsets that groups keep in ZooKeeper
membership.py           either of them, for a block
broker_metadata.py      cluster.json: the cluster that a directory belongs to
assignment.py           which brokers keep which partitions
"""

from .assignment import check_assignment
from .broker_metadata import check_standalone
from .port import BrokerAddress, ConsumerOffsets, Coordination, Placement
from .single import SingleBroker

__all__ = [
    "BrokerAddress",
    "ConsumerOffsets",
    "Coordination",
    "Placement",
    "SingleBroker",
    "check_assignment",
    "check_standalone",
]
