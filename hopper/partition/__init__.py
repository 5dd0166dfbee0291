"""Dividing a graph over servers, and reading what was written."""

from hopper.partition.book import PartitionBook
from hopper.partition.build import partition_graph
from hopper.partition.partitioned_graph import PartitionedGraph

__all__ = ["PartitionBook", "PartitionedGraph", "partition_graph"]
