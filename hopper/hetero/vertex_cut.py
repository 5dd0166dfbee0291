"""Cuts a sub-metatree that is too large for a server, by the edges of its root relation.

Every part has some of the edges into roots, and what the sources of these edges read below. All
servers aggregate for all roots anyway, so copies of roots cost nothing, and only copies of sources
count. HDRF's rule (Petroni et al., CIKM 2015) then puts all edges of a source into one part.
Sources are dealt in order of their bytes, most first, each to the part with fewest bytes so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.array_file import release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import draw_bytes, stored_features
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import EdgeType, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.hetero.metatree import Metatree

Mask = NDArray[np.bool_]

_NUMBER_BYTES: Final = 8
_EDGE_BYTES: Final = 3 * _NUMBER_BYTES
"""the weight of an edge's source, edge id and position beside the bytes of a row"""


@dataclass(frozen=True)
class CutPart:
    """One part of a sub-metatree."""

    root: Relation
    """the root relation, whose edges are divided over parts"""
    relations: Sequence[Relation]
    """the relations of the sub-metatree"""
    sources: Mask
    """[sources] bool, the sources whose edges into roots the part has"""
    root_nodes: Mask
    """[destinations] bool, the nodes of any split"""
    expanded: Mapping[str, Mask]
    """by type, [nodes] bool, the nodes below the roots all of whose in-edges the part has"""
    nodes: Mapping[str, Mask]
    """by type, [nodes] bool, the nodes whose rows the part has"""
    edges: Mapping[Relation, int]
    """by relation, the number of the part's edges below the roots"""
    root_edges: int
    """the number of the part's edges into roots"""
    list_edges: int
    """the number of all parts' edges into roots"""


def cut(graph: GraphDirectory, tree: Metatree, root: Relation, parts: int) -> list[CutPart]:
    """Divide a root relation's edges into parts, and find what each part reads below.

    It takes two bytes of memory for each part and node of the sub-metatree's types, and forty bytes
    for each source.
    """
    topology, kinds = graph.topology(root), graph.schema.node_types
    root_nodes = np.zeros(kinds[tree.target].count, np.bool_)
    for name in graph.schema.splits:
        root_nodes[graph.split(name)] = True
    degrees = np.zeros(kinds[root.src].count, np.int64)
    for edges in edges_into(topology, root_nodes):
        degrees += np.bincount(topology.indices[edges], minlength=degrees.size)
    loads = np.where(degrees > 0, _row_bytes(graph, root.src) + degrees * _EDGE_BYTES, 0)
    part_of = _deal_to_least(np.argsort(-loads, kind="stable"), loads, parts)
    cut_parts = []
    for part in range(parts):
        sources = part_of == part
        expanded, nodes, edges_below = _find_read(graph, tree, root, sources)
        nodes[tree.target] |= root_nodes
        cut_parts.append(
            CutPart(
                root,
                tree.relations_of([root]),
                sources,
                root_nodes,
                expanded,
                nodes,
                edges_below,
                int(degrees[sources].sum()),
                int(degrees.sum()),
            )
        )
    return cut_parts


def edges_into(topology: Topology, destinations: Mask) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the in-edges of some destinations, ascending, piece by piece."""
    for first, last in row_ranges(topology.indptr, 0, destinations.size):
        counts = np.diff(topology.indptr[first : last + 1])
        is_chosen = np.repeat(destinations[first:last], counts)
        yield np.flatnonzero(is_chosen) + int(topology.indptr[first])
        release_pages(topology.indptr, topology.indices)


def _row_bytes(graph: GraphDirectory, node_type: str) -> int:
    """Return the bytes of a node's features and label."""
    size = _feature_bytes(graph.schema.node_types[node_type])
    if node_type in graph.schema.labels:
        labels = graph.labels(node_type)
        size += labels.dtype.itemsize * int(np.prod(labels.shape[1:]))
    return size


def root_edges(graph: GraphDirectory, part: CutPart) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of a part's edges into roots, ascending, piece by piece."""
    topology = graph.topology(part.root)
    for edges in edges_into(topology, part.root_nodes):
        yield edges[part.sources[topology.indices[edges]]]


def part_bytes(graph: GraphDirectory, part: CutPart) -> tuple[int, int]:
    """Return the bytes of a part's rows (features, edge features, labels, ids) and topology."""
    schema = graph.schema
    rows = sum(
        int(mask.sum()) * (_row_bytes(graph, node_type) + _NUMBER_BYTES)
        for node_type, mask in part.nodes.items()
    )
    stored = [*part.edges.items(), (part.root, part.root_edges)]
    rows += sum(_feature_bytes(schema.relations[relation]) * count for relation, count in stored)
    # The positions of edges into roots are as wide as edge ids.
    numbers, nbytes = 0, part.root_edges * graph.topology(part.root).edge_ids.itemsize
    for relation, count in stored:
        sources = schema.node_types[relation.src].count
        destinations = schema.node_types[relation.dst].count
        numbers += sources + 2 * destinations + 1
        topology = graph.topology(relation)
        nbytes += count * (topology.indices.itemsize + topology.edge_ids.itemsize)
    for relation, count in [*part.edges.items(), (part.root, part.list_edges)]:
        nbytes += count * draw_bytes(schema, relation)
    return rows, _NUMBER_BYTES * numbers + nbytes


def _feature_bytes(kind: NodeType | EdgeType) -> int:
    stored = stored_features(kind)
    return 0 if stored is None else stored.row_bytes


def _find_read(
    graph: GraphDirectory, tree: Metatree, root: Relation, sources: Mask
) -> tuple[dict[str, Mask], dict[str, Mask], dict[Relation, int]]:
    """Find what hops from some sources of a root relation read: the nodes that are expanded and
    those that are reached, by type, and the number of edges by relation."""
    kinds, relations = graph.schema.node_types, tree.relations_of([root])
    nodes = {name: np.zeros(kinds[name].count, np.bool_) for name in tree.types_of([root])}
    expanded = {name: mask.copy() for name, mask in nodes.items()}
    edges_below = dict.fromkeys(relations, 0)
    nodes[root.src] |= sources
    for _ in range(tree.layers - 1):
        # Frontiers are cumulative: later hops expand all nodes that earlier hops reached.
        expanded = {name: mask.copy() for name, mask in nodes.items()}
        for relation in relations:
            topology, count = graph.topology(relation), 0
            if expanded[relation.dst].any():
                for edges in edges_into(topology, expanded[relation.dst]):
                    nodes[relation.src][topology.indices[edges]] = True
                    count += edges.size
            edges_below[relation] = count
    return expanded, nodes, edges_below


@kernel
def _deal_to_least(
    order: NDArray[np.int64], loads: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
    """Return the part of every source, [sources] int64; -1 = no root reads the source."""
    totals = np.zeros(parts, np.int64)
    part_of = np.full(loads.size, -1, np.int64)
    for source in order:
        if loads[source] == 0:
            break
        part = np.argmin(totals)
        part_of[source] = part
        totals[part] += loads[source]
    return part_of
