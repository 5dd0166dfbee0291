"""Remove the links to predict from the edges that messages travel along.

A model must not read the links that it predicts. So links of validation and test, and all edges
that reveal them, are left out of the topology that is divided. Training links stay: while it draws,
a run leaves out those of its own global batch (docs/howto/links.md). Where labels of edges are
predicted, all edges stay, because it is known that they exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cache_server.draws.counter import absorb
from cache_server.kernel import kernel
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces
from hopper.graph.directory import GraphDirectory, open_topology
from hopper.graph.links import Links
from hopper.graph.memory_budget import row_ranges
from hopper.graph.publish import folder_beside
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.graph.topology import Topology
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.training import SplitGraph

_EDGES_AT_ONCE: Final = 1 << 20

Ids = NDArray[np.int64]
Reverses = Mapping[Relation, Sequence[Relation]]


@dataclass(frozen=True)
class _MessageGraph(GraphDirectory):
    """A graph without some of its edges. Edge ids, what stands by edge id, and links are those of
    the whole graph."""

    whole: GraphDirectory
    folder: Path
    """the folder of the topologies that have fewer edges"""

    def topology(self, relation: Relation) -> Topology:
        kinds, folder = self.schema.node_types, self.topology_folder(relation)
        if folder != self.folder:
            return self.whole.topology(relation)
        counts = kinds[relation.src].count, kinds[relation.dst].count
        return open_topology(folder, relation, None, *counts)

    def topology_folder(self, relation: Relation) -> Path:
        is_whole = self.schema.relations[relation] == self.whole.schema.relations[relation]
        return self.whole.path if is_whole else self.folder

    def features_file(self, node_type: str) -> Path:
        return self.whole.features_file(node_type)

    def edge_features(self, relation: Relation) -> NDArray[Any]:
        return self.whole.edge_features(relation)

    def edge_weights(self, relation: Relation) -> NDArray[Any]:
        return self.whole.edge_weights(relation)

    def times(self, owner: Labelled) -> Ids:
        return self.whole.times(owner)

    def labels(self, owner: Labelled) -> NDArray[Any]:
        return self.whole.labels(owner)

    def links(self, split: str) -> Links:
        return self.whole.links(split)


@contextmanager
def message_edges(graph: GraphDirectory, reverses: Reverses, out: Path) -> Iterator[GraphDirectory]:
    """Yield the graph without the edges that reveal validation and test links: all edges between
    the ends of such a link in its relation, and their reverses in the reverse relations.

    Where labels of nodes or edges are predicted, this yields ``graph`` itself. Temporary topologies
    lie beside ``out``.
    """
    schema = graph.schema
    held_out = [name for name in schema.splits if name != "train"]
    if schema.predicted != "link" or not held_out:
        yield graph
        return
    with folder_beside(out) as folder:
        relations = dict(schema.relations)
        for relation, pairs in _find_revealing(graph, reverses, held_out).items():
            remaining = _write_without(graph, relation, pairs, folder)
            relations[relation] = replace(relations[relation], count=remaining)
        yield _MessageGraph(graph.path, replace(schema, relations=relations), graph, folder)


def find_reverses(graph: GraphDirectory) -> dict[Relation, list[Relation]]:
    """Find the reverse relations of every target relation by their edges, not by name; a symmetric
    relation is its own reverse."""
    kinds, reverses = graph.schema.relations, dict[Relation, list[Relation]]()
    for relation in graph.schema.target_relations:
        checksum = _checksum(graph.topology(relation), turned=True)
        reverses[relation] = [
            reverse
            for reverse, kind in kinds.items()
            if (reverse.src, reverse.dst) == (relation.dst, relation.src)
            and kind.count == kinds[relation].count
            and _checksum(graph.topology(reverse), turned=False) == checksum
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
    for first, last in row_ranges(old.indptr, 0, nodes):
        bounds = old.indptr[first : last + 1]
        edges = slice(int(bounds[0]), int(bounds[-1]))
        dst = np.repeat(np.arange(first, last), np.diff(bounds))
        if pairs.size:
            keys = _pairs(graph.schema, relation, old.indices[edges].astype(np.int64), dst)
            kept[edges] = np.take(pairs, np.searchsorted(pairs, keys), mode="clip") != keys
        in_degrees[first:last] = np.bincount(dst[kept[edges]] - first, minlength=last - first)
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


def _checksum(topology: Topology, *, turned: bool) -> int:
    """Compute a checksum of all pairs of ends, whatever their order."""
    return int(_add_up(np.asarray(topology.indptr), np.asarray(topology.indices), turned))


@kernel
def _add_up(indptr: Ids, indices: Ids, turned: bool) -> np.uint64:
    checksum = np.uint64(0)
    for node in range(indptr.size - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            ends = np.uint64(indices[edge]), np.uint64(node)
            first, second = (ends[1], ends[0]) if turned else ends
            checksum += absorb(absorb(np.uint64(0), first), second)
    return checksum
