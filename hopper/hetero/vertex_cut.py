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

import numba
import numpy as np
from numpy.typing import NDArray

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.hetero.metatree import Metatree
from hopper.partition.mapped_pages import release_pages

Mask = NDArray[np.bool_]

_EDGES_AT_ONCE: Final = 1 << 22
_NUMBER_BYTES: Final = 8
_EDGE_BYTES: Final = 3 * _NUMBER_BYTES
"""source, edge id, position"""


@dataclass(frozen=True)
class CutPart:
    """What one part has.

    Attributes
    ----------
    root: the relation whose edges into roots are divided.
    sources: [sources] bool, whose of these edges it has.
    roots: [destinations] bool, into which nodes: those of any split.
    expanded: by type, [nodes] bool, the nodes below the roots all of whose in-edges it has.
    nodes: by type, [nodes] bool, those whose rows it has.
    """

    root: Relation
    sources: Mask
    roots: Mask
    expanded: Mapping[str, Mask]
    nodes: Mapping[str, Mask]


def cut(graph: GraphDirectory, tree: Metatree, root: Relation, parts: int) -> list[CutPart]:
    """Divide a root relation's edges into so many parts, and find what each reads below.

    Memory holds ten bytes a node of the sub-metatree's types and part.
    """
    topology, target = graph.topology(root), tree.target
    roots = np.zeros(graph.schema.node_types[target].count, np.bool_)
    for name in graph.schema.splits:
        roots[graph.split(name)] = True
    degrees = np.zeros(graph.schema.node_types[root.src].count, np.int64)
    for edges in edges_into(topology, roots):
        np.add.at(degrees, np.asarray(topology.indices[edges]), 1)
    dealt = _dealt(degrees, row_bytes(graph, root.src), parts)
    return [
        CutPart(root, dealt == place, roots, *_below(graph, tree, root, dealt == place, roots))
        for place in range(parts)
    ]


def edges_into(topology: Topology, destinations: Mask) -> Iterator[NDArray[np.int64]]:
    """Numbers of the in-edges of some destinations, ascending, piece by piece."""
    for first, last in row_ranges(topology.indptr):
        counts = np.diff(topology.indptr[first : last + 1])
        chosen = np.repeat(destinations[first:last], counts)
        yield np.flatnonzero(chosen) + int(topology.indptr[first])
        release_pages(topology.indptr, topology.indices)


def row_ranges(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with few edges each, or of one row."""
    start, rows = 0, indptr.size - 1
    while start < rows:
        full = int(np.searchsorted(indptr, indptr[start] + _EDGES_AT_ONCE, side="right")) - 1
        last = min(rows, max(full, start + 1))
        yield start, last
        start = last


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
    for edges in edges_into(topology, part.roots):
        yield edges[part.sources[topology.indices[edges]]]


def count_edges(
    graph: GraphDirectory, part: CutPart, relations: Sequence[Relation]
) -> dict[Relation, int]:
    """How many edges a part has by relation, those into roots and those below."""
    counts = {
        relation: sum(
            each.size for each in edges_into(graph.topology(relation), part.expanded[relation.dst])
        )
        for relation in relations
    }
    counts[part.root] += sum(each.size for each in root_edges(graph, part))
    return counts


def part_bytes(
    graph: GraphDirectory, part: CutPart, relations: Sequence[Relation]
) -> tuple[int, int]:
    """Bytes of a part's rows (features, edge features, labels, ids) and of its topology."""
    rows = sum(
        int(mask.sum()) * (row_bytes(graph, each) + _NUMBER_BYTES)
        for each, mask in part.nodes.items()
    )
    schema, edges = graph.schema, count_edges(graph, part, relations)
    rows += sum(_feature_bytes(schema.relations[each]) * count for each, count in edges.items())
    ends = sum(
        schema.node_types[each.src].count + 2 * schema.node_types[each.dst].count + 1
        for each in (*relations, part.root)
    )
    own = sum(each.size for each in root_edges(graph, part))
    return rows, _NUMBER_BYTES * (ends + 2 * sum(edges.values()) + own)


def _feature_bytes(kind: NodeType | EdgeType) -> int:
    if kind.feature_dim is None or kind.feature_dtype is None:
        return 0
    return kind.feature_dim * np.dtype(kind.feature_dtype).itemsize


def _below(
    graph: GraphDirectory, tree: Metatree, root: Relation, sources: Mask, roots: Mask
) -> tuple[dict[str, Mask], dict[str, Mask]]:
    """By type, the nodes that are expanded below the roots, and those whose rows are read."""
    kinds = graph.schema.node_types
    found = {each: np.zeros(kinds[each].count, np.bool_) for each in tree.types_of([root])}
    expanded = {each: mask.copy() for each, mask in found.items()}
    found[root.src] |= sources
    for _ in range(tree.layers - 1):
        # Frontiers are cumulative: what one hop found, all later hops expand.
        expanded = {each: mask.copy() for each, mask in found.items()}
        for relation in tree.relations_of([root]):
            topology = graph.topology(relation)
            if expanded[relation.dst].any():
                for edges in edges_into(topology, expanded[relation.dst]):
                    found[relation.src][topology.indices[edges]] = True
    found[tree.target] |= roots
    return expanded, found


def _dealt(degrees: NDArray[np.int64], bytes_of_a_row: int, parts: int) -> NDArray[np.int64]:
    """[sources] int64: the part of every source; -1 = no root reads it."""
    loads = np.where(degrees > 0, bytes_of_a_row + degrees * _EDGE_BYTES, 0)
    return _deal_to_least(np.argsort(-loads, kind="stable"), loads, parts)


@numba.njit(cache=True)
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
