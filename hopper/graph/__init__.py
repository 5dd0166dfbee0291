"""Graphs on disk: open, check, describe and write a graph directory, or import one."""

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.topology import Topology, build_topology
from hopper.graph.write import GraphWriter, required_bytes

__all__ = [
    "EdgeType",
    "GraphDirectory",
    "GraphSchema",
    "GraphWriter",
    "Labels",
    "NodeType",
    "Relation",
    "Topology",
    "build_topology",
    "required_bytes",
]
