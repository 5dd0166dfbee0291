"""Remove the links to predict from the edges that messages travel along.

A model must not read the links that it predicts. So links of validation and test, and all edges
that reveal them, are left out of the topology that is divided. Training links stay: while it draws,
a run leaves out those of its own global batch (docs/howto/links.md). Where labels of edges are
predicted, all edges stay, because it is known that they exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cache_server.draws.counter import absorb_each
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces
from hopper.graph.directory import GraphDirectory
from hopper.graph.publish import folder_beside
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Ids, Topology
from hopper.partition.balance import SplitGraph
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.stacked_ids import iter_edges
from hopper.partition.stored_forms import OverlaidGraph

_EDGES_AT_ONCE: Final = 1 << 20

Reverses = Mapping[Relation, Sequence[Relation]]


@contextmanager
def message_edges(graph: GraphDirectory, out: Path) -> Iterator[tuple[GraphDirectory, Reverses]]:
    """Yield the graph without the edges that reveal validation and test links, which are all edges
    between the ends of such a link in its relation, and their reverses in the reverse relations;
    and the reverse relations of every target relation.

    Where labels of nodes or edges are predicted, the graph is ``graph`` itself. Temporary
    topologies lie beside ``out``.
    """
    schema, reverses = graph.schema, _find_reverses(graph)
    held_out = [name for name in schema.splits if name != "train"]
    if schema.predicted != "link" or not held_out:
        yield graph, reverses
        return
    with folder_beside(out) as folder:
        relations = dict(schema.relations)
        for relation, pairs in _find_revealing(graph, reverses, held_out).items():
            remaining = _write_without(graph, relation, pairs, folder)
            relations[relation] = replace(relations[relation], count=remaining)
        reduced = replace(schema, relations=relations)
        yield OverlaidGraph(graph.path, reduced, graph, folder), reverses


def describe_reverses(reverses: Reverses) -> dict[str, Any]:
    """Return what partition.json says of reverse relations, if there are target relations."""
    names = {str(relation): list(map(str, turned)) for relation, turned in reverses.items()}
    return {"reverse_relations": names} if names else {}


def _find_reverses(graph: GraphDirectory) -> dict[Relation, list[Relation]]:
    """Find the reverse relations of every target relation by their edges, not by name; a symmetric
    relation is its own reverse."""
    kinds, reverses = graph.schema.relations, dict[Relation, list[Relation]]()
    for relation in graph.schema.target_relations:
        checksum = _checksum(graph.schema, relation, graph.topology(relation), turned=False)
        reverses[relation] = [
            reverse
            for reverse, kind in kinds.items()
            if (reverse.src, reverse.dst) == (relation.dst, relation.src)
            and kind.count == kinds[relation].count
            and _checksum(graph.schema, relation, graph.topology(reverse), turned=True) == checksum
        ]
    return reverses


def _find_revealing(
    graph: SplitGraph, reverses: Reverses, splits: Sequence[str]
) -> dict[Relation, Ids]:
    """Find the pairs of nodes in each relation whose edges reveal links of splits: by relation
    [n] int64, ascending, as :func:`_pairs` makes them."""
    revealing: dict[Relation, list[Ids]] = {}
    for links in map(graph.links, splits):
        for number, relation in enumerate(graph.schema.target_relations):
            mask = links.relations == number
            src, dst = links.src[mask], links.dst[mask]
            revealing.setdefault(relation, []).append(_pairs(graph.schema, relation, src, dst))
            for reverse in reverses[relation]:
                revealing.setdefault(reverse, []).append(_pairs(graph.schema, reverse, dst, src))
    return {relation: np.unique(np.concatenate(pairs)) for relation, pairs in revealing.items()}


def _pairs(schema: GraphSchema, relation: Relation, src: Ids, dst: Ids) -> Ids:
    """Return ``source * destinations + destination``."""
    return src * schema.node_types[relation.dst].count + dst


def count_untrained(graph: PartitionedGraph, relation: Relation) -> int:
    """Count the edges of a target relation in the topology that are not training links, where links
    are predicted."""
    schema, links = graph.schema, graph.links("train")
    mask = links.relations == schema.target_relations.index(relation)
    pairs = _pairs(schema, relation, links.src[mask], links.dst[mask])
    held_out = [name for name in schema.splits if name != "train"]
    reverses = {target: graph.reverse_relations(target) for target in schema.target_relations}
    revealing = _find_revealing(graph, reverses, held_out).get(relation, np.empty(0, np.int64))
    return schema.relations[relation].count - int(np.count_nonzero(~np.isin(pairs, revealing)))


def _write_without(graph: GraphDirectory, relation: Relation, pairs: Ids, folder: Path) -> int:
    """Write a relation's topology without the edges of some pairs; return its number of edges."""
    old, nodes = graph.topology(relation), graph.schema.node_types[relation.dst].count

    def create(name: layout.TopologyArray, length: int, dtype: DTypeLike) -> NDArray[Any]:
        return create_array(layout.topology_file(folder, relation, name), dtype, (length,))

    kept, in_degrees = np.ones(old.indices.size, np.bool_), create("in_degrees", nodes, np.int64)
    for first, src, dst in iter_edges(old):
        edges = slice(first, first + src.size)
        if pairs.size:
            keys = _pairs(graph.schema, relation, src, dst)
            kept[edges] = np.take(pairs, np.searchsorted(pairs, keys), mode="clip") != keys
        np.add.at(in_degrees, dst[kept[edges]], 1)
    remaining, written = int(np.count_nonzero(kept)), 0
    np.cumsum(in_degrees, out=create("indptr", nodes + 1, np.int64)[1:])
    out_degrees = create("out_degrees", old.out_degrees.size, np.int64)
    indices = create("indices", remaining, old.indices.dtype)
    edge_ids = create("edge_ids", remaining, old.edge_ids.dtype)
    for first, mask in iter_pieces(kept, _EDGES_AT_ONCE):
        edges = slice(first, first + mask.size)
        target = slice(written, written + int(np.count_nonzero(mask)))
        indices[target], edge_ids[target] = old.indices[edges][mask], old.edge_ids[edges][mask]
        np.add.at(out_degrees, indices[target], 1)
        written = target.stop
    return remaining


def _checksum(schema: GraphSchema, target: Relation, edges: Topology, *, turned: bool) -> int:
    """Compute a checksum of all pairs of ends, whatever their order; the edges are those of a
    target relation, or turned round."""
    checksum = 0
    for _, src, dst in iter_edges(edges):
        pairs = _pairs(schema, target, *((dst, src) if turned else (src, dst)))
        checksum += int(absorb_each(np.uint64(0), pairs).sum())
    return checksum % 2**64
