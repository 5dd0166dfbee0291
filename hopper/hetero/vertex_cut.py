"""Cut a sub-metatree that is too large for a server, by its root relation's edges.

Every part has some of the edges into roots, and what the sources of these read below. Roots meet
all servers anyway, so cutting them costs nothing: only copies of sources do. Under HDRF's rule
(Petroni et al., CIKM 2015) with copies of sources alone counted, an edge goes where its source is
already; so sources are dealt whole, those with most bytes first, each to the part with fewest.
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
from hopper.graph.layout import draw_bytes
from hopper.graph.row_form import stored_features
from hopper.graph.row_ranges import row_ranges
from hopper.graph.schema import EdgeType, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.hetero.metatree import Metatree

Mask = NDArray[np.bool_]

_NUMBER_BYTES: Final = 8
_EDGE_BYTES: Final = 3 * _NUMBER_BYTES
"""source, edge id, position"""


@dataclass(frozen=True)
class CutPart:
    """What one part has.

    Attributes
    ----------
    root: the relation whose edges into roots are divided.
    relations: of its sub-metatree.
    sources: [sources] bool, whose edges into roots it has.
    root_nodes: [destinations] bool, the nodes of any split.
    expanded: by type, [nodes] bool, the nodes below the roots all of whose in-edges it has.
    nodes: by type, [nodes] bool, those whose rows it has.
    edges: by relation, how many it has below the roots.
    root_edges: how many it has into roots.
    list_edges: how many all parts have into roots.
    """

    root: Relation
    relations: Sequence[Relation]
    sources: Mask
    root_nodes: Mask
    expanded: Mapping[str, Mask]
    nodes: Mapping[str, Mask]
    edges: Mapping[Relation, int]
    root_edges: int
    list_edges: int


def cut(graph: GraphDirectory, tree: Metatree, root: Relation, parts: int) -> list[CutPart]:
    """Divide a root relation's edges into so many parts, and find what each reads below.

    Memory holds two bytes a part and node of the sub-metatree's types, and forty a source once.
    """
    topology = graph.topology(root)
    root_nodes = np.zeros(graph.schema.node_types[tree.target].count, np.bool_)
    for name in graph.schema.splits:
        root_nodes[graph.split(name)] = True
    degrees = np.zeros(graph.schema.node_types[root.src].count, np.int64)
    for edges in edges_into(topology, root_nodes):
        degrees += np.bincount(topology.indices[edges], minlength=degrees.size)
    dealt = _dealt(degrees, row_bytes(graph, root.src), parts)
    chosen = [dealt == place for place in range(parts)]
    total = int(degrees.sum())
    return [
        _make_part(graph, tree, root, own, root_nodes, int(degrees[own].sum()), total)
        for own in chosen
    ]


def edges_into(topology: Topology, destinations: Mask) -> Iterator[NDArray[np.int64]]:
    """Numbers of the in-edges of some destinations, ascending, piece by piece."""
    for first, last in row_ranges(topology.indptr, 0, destinations.size):
        counts = np.diff(topology.indptr[first : last + 1])
        chosen = np.repeat(destinations[first:last], counts)
        yield np.flatnonzero(chosen) + int(topology.indptr[first])
        release_pages(topology.indptr, topology.indices)


def row_bytes(graph: GraphDirectory, node_type: str) -> int:
    """Bytes of a node's features and label."""
    found = _feature_bytes(graph.schema.node_types[node_type])
    if node_type in graph.schema.labels:
        labels = graph.labels(node_type)
        found += labels.dtype.itemsize * int(np.prod(labels.shape[1:]))
    return found


def root_edges(graph: GraphDirectory, part: CutPart) -> Iterator[NDArray[np.int64]]:
    """Numbers of the root relation's edges that a part has, ascending, piece by piece."""
    topology = graph.topology(part.root)
    for edges in edges_into(topology, part.root_nodes):
        yield edges[part.sources[topology.indices[edges]]]


def part_bytes(graph: GraphDirectory, part: CutPart) -> tuple[int, int]:
    """Bytes of a part's rows (features, edge features, labels, ids) and of its topology."""
    schema = graph.schema
    rows = sum(
        int(mask.sum()) * (row_bytes(graph, each) + _NUMBER_BYTES)
        for each, mask in part.nodes.items()
    )
    stored = [*part.edges.items(), (part.root, part.root_edges)]
    rows += sum(_feature_bytes(schema.relations[each]) * count for each, count in stored)
    numbers = part.root_edges  # their positions
    for relation, count in stored:
        sources = schema.node_types[relation.src].count
        destinations = schema.node_types[relation.dst].count
        numbers += sources + 2 * destinations + 1 + 2 * count
    drawn = 0
    for relation, count in [*part.edges.items(), (part.root, part.list_edges)]:
        drawn += count * draw_bytes(schema, relation)
    return rows, _NUMBER_BYTES * numbers + drawn


def _feature_bytes(kind: NodeType | EdgeType) -> int:
    stored = stored_features(kind)
    return 0 if stored is None else stored.row_bytes


def _make_part(
    graph: GraphDirectory,
    tree: Metatree,
    root: Relation,
    sources: Mask,
    root_nodes: Mask,
    edges_into_roots: int,
    list_edges: int,
) -> CutPart:
    kinds, relations = graph.schema.node_types, tree.relations_of([root])
    found = {each: np.zeros(kinds[each].count, np.bool_) for each in tree.types_of([root])}
    expanded = {each: mask.copy() for each, mask in found.items()}
    edges_below = dict.fromkeys(relations, 0)
    found[root.src] |= sources
    for _ in range(tree.layers - 1):
        # Frontiers are cumulative: what one hop found, all later hops expand.
        expanded = {each: mask.copy() for each, mask in found.items()}
        for relation in relations:
            topology, count = graph.topology(relation), 0
            if expanded[relation.dst].any():
                for edges in edges_into(topology, expanded[relation.dst]):
                    found[relation.src][topology.indices[edges]] = True
                    count += edges.size
            edges_below[relation] = count
    found[tree.target] |= root_nodes
    return CutPart(
        *(root, relations, sources, root_nodes, expanded, found),
        *(edges_below, edges_into_roots, list_edges),
    )


def _dealt(degrees: NDArray[np.int64], bytes_of_a_row: int, parts: int) -> NDArray[np.int64]:
    """[sources] int64: the part of every source; -1 = no root reads it."""
    loads = np.where(degrees > 0, bytes_of_a_row + degrees * _EDGE_BYTES, 0)
    return _deal_to_least(np.argsort(-loads, kind="stable"), loads, parts)


@kernel
def _deal_to_least(
    order: NDArray[np.int64], loads: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
    totals = np.zeros(parts, np.int64)
    dealt = np.full(loads.size, -1, np.int64)
    for each in order:
        if loads[each] == 0:
            break
        place = np.argmin(totals)
        dealt[each] = place
        totals[place] += loads[each]
    return dealt
