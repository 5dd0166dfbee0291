"""Divide a graph over servers, and open the partitioned directory."""

from hopper.partition.build import partition_graph
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.placement import PartitionBook

__all__ = ["PartitionBook", "PartitionedGraph", "partition_graph"]
