"""A cluster on one machine: nodes with their own address, host name and link, and real launchers on them.

``up`` makes the nodes (`virtual`), ``Cluster.run`` starts a program on them as torchrun, mpirun or srun would on a
real cluster (`launch`), and ``down`` leaves nothing behind. `holder` and `node` are the processes that own it all.
"""

from accelerando.cluster.hosts import Link, Node, parse_bandwidth, parse_latency, simulated_wait_s
from accelerando.cluster.launch import LAUNCHERS
from accelerando.cluster.making import up
from accelerando.cluster.places import ClusterError
from accelerando.cluster.virtual import Cluster, connect

__all__ = [
    "LAUNCHERS",
    "Cluster",
    "ClusterError",
    "Link",
    "Node",
    "connect",
    "parse_bandwidth",
    "parse_latency",
    "simulated_wait_s",
    "up",
]
