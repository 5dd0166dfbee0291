"""Divide a graph over servers, and open the partitioned directory."""

from hopper.partition.book import PartitionBook
from hopper.partition.build import partition_graph
from hopper.partition.partitioned_graph import PartitionedGraph

__all__ = ["PartitionBook", "PartitionedGraph", "partition_graph"]
