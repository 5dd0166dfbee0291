"""A drawn subgraph as PyG's ``Data`` or ``HeteroData``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from hopper.features import PartitionedRows
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.subgraph import Subgraph
from hopper.partition import PartitionedGraph
from hopper.pipeline.loader import read_features, read_nodes


def is_typed(schema: GraphSchema) -> bool:
    """Return whether PyG has a ``HeteroData`` for a graph."""
    return len(schema.node_types) > 1 or len(schema.relations) > 1


def to_data(
    subgraph: Subgraph, rows: PartitionedRows, *, with_features: bool = True
) -> Data | HeteroData:
    """Make a batch as PyG's loaders do: all types and relations, also those without nodes or edges.

    Nodes are in the order of their discovery, and so are edges, hop after hop; ids are original
    ones. ``e_id`` is missing where a server has only a part of the topology.

    Parameters
    ----------
    subgraph: one whose nodes are expanded once.
    rows: reads the features of nodes and edges.
    with_features: whether those of nodes are read.
    """
    schema, graph = rows.graph.schema, rows.graph
    typed = is_typed(schema)
    data: Any = HeteroData() if typed else Data()
    for name, kind in schema.node_types.items():
        nodes, store = subgraph.nodes[name], data[name] if typed else data
        if kind.feature_dim and with_features:
            store.x = read_nodes(rows, subgraph, name)
        else:
            store.num_nodes = nodes.size
        store.n_id = torch.from_numpy(graph.original_ids(name)[nodes])
        store.num_sampled_nodes = node_counts(subgraph, name)
    for relation, edges in schema.relations.items():
        store = data[tuple(relation)] if typed else data
        edge_index, counts = edge_index_of(subgraph, relation)
        store.edge_index, store.num_sampled_edges = edge_index, counts
        topology = subgraph.topologies[relation]
        if edges.feature_dim or topology.stored is None:
            places = edge_places(subgraph, relation)
            if edges.feature_dim:
                store.edge_attr = read_features(rows, str(relation), places)
            if topology.stored is None:
                store.e_id = edge_ids(topology, places)
    return data


def node_counts(subgraph: Subgraph, node_type: str) -> list[int]:
    """Return how many nodes of a type are roots, and how many each hop has found."""
    counts: list[int] = np.diff([size[node_type] for size in subgraph.sizes], prepend=0).tolist()
    return counts


def edge_index_of(subgraph: Subgraph, relation: Relation) -> tuple[Tensor, list[int]]:
    """Return ``edge_index`` of all hops, and the number of edges of each."""
    indices, destinations = [], []
    firsts = [0, *(size[relation.dst] for size in subgraph.sizes)]
    for first, hop in zip(firsts, subgraph.hops, strict=False):
        indptr = hop[relation].indptr
        rows = first + np.arange(indptr.size - 1)
        indices.append(hop[relation].indices)
        destinations.append(np.repeat(rows, np.diff(indptr)))
    edge_index = np.stack([np.concatenate(indices), np.concatenate(destinations)])
    return torch.from_numpy(edge_index), [int(part.size) for part in indices]


def edge_ids(topology: Topology, places: Ids) -> Tensor:
    """Return [edges] int64: original ids of edges, given :func:`edge_places` in a whole CSC."""
    return torch.from_numpy(topology.edge_ids[places].astype(np.int64))


def edges_by_id(graph: PartitionedGraph, relation: Relation) -> tuple[Ids, Ids]:
    """Return the sources and destinations, in global ids, of all edges in the order of their
    original ids."""
    topology = graph.topology(relation)
    order = np.argsort(topology.edge_ids, kind="stable")
    sources = np.asarray(topology.indices, np.int64)
    return sources[order], topology.list_destinations()[order]


def edge_places(subgraph: Subgraph, relation: Relation) -> Ids:
    """Return [edges] int64: indices of the edges in the relation's CSC."""
    nodes, topology = subgraph.nodes[relation.dst], subgraph.topologies[relation]
    bounds = [0, *(size[relation.dst] for size in subgraph.sizes)]
    places = [
        topology.edge_indices(nodes[first:stop], hop[relation].indptr, hop[relation].positions)
        for first, stop, hop in zip(bounds, bounds[1:], subgraph.hops, strict=False)
    ]
    return np.concatenate(places)
