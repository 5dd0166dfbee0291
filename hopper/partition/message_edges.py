"""The edges that messages travel along, where edges are predicted.

What is to be predicted must not be read: links of validation and test, and whatever edge tells the
same, are left out of the topology that is divided. Training links stay; a run leaves those of its
own global batch out as it draws (docs/links.md). Where labels of edges are predicted, all edges
stay: that they are there is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb
from cache_server.kernel import kernel
from hopper.graph import layout
from hopper.graph.array_file import create_array
from hopper.graph.directory import GraphDirectory, open_topology
from hopper.graph.links import Links
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.graph.topology import Topology
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.training import SplitGraph
from hopper.scratch import scratch_folder

_EDGES_AT_ONCE: Final = 1 << 20
_PREFIX: Final = ".hopper-message-edges-"

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class MessageGraph(GraphDirectory):
    """A graph without some of its edges; splits and links are those of the whole.

    Attributes
    ----------
    whole: the graph with all edges.
    folder: of the topologies that have fewer.
    """

    whole: GraphDirectory
    folder: Path

    def topology(self, relation: Relation) -> Topology:
        """See :class:`GraphDirectory`; edge ids stay those of the whole graph."""
        kinds, folder = self.schema.node_types, self.topology_folder(relation)
        if folder == self.whole.path:
            return self.whole.topology(relation)
        counts = kinds[relation.src].count, kinds[relation.dst].count
        return open_topology(folder, relation, None, *counts)

    def topology_folder(self, relation: Relation) -> Path:
        """See :class:`GraphDirectory`."""
        is_whole = self.schema.relations[relation] == self.whole.schema.relations[relation]
        return self.whole.path if is_whole else self.folder

    def features_file(self, node_type: str) -> Path:
        """See :class:`GraphDirectory`."""
        return self.whole.features_file(node_type)

    def edge_features(self, relation: Relation) -> NDArray[Any]:
        """See :class:`GraphDirectory`: of all edges of the whole graph, by edge id."""
        return self.whole.edge_features(relation)

    def edge_weights(self, relation: Relation) -> NDArray[Any]:
        """See :class:`GraphDirectory`; of all edges of the whole graph, by edge id."""
        return self.whole.edge_weights(relation)

    def times(self, owner: Labelled) -> NDArray[np.int64]:
        """See :class:`GraphDirectory`; of all edges of the whole graph, by edge id."""
        return self.whole.times(owner)

    def labels(self, owner: Labelled) -> NDArray[Any]:
        """See :class:`GraphDirectory`; of all edges of the whole graph, by edge id."""
        return self.whole.labels(owner)

    def links(self, split: str) -> Links:
        """See :class:`GraphDirectory`."""
        return self.whole.links(split)


@contextmanager
def message_edges(
    graph: GraphDirectory, reverses: Mapping[Relation, Sequence[Relation]], parent: Path
) -> Iterator[GraphDirectory]:
    """A graph without what its validation and test links tell; the same one where labels of nodes
    or edges are predicted.

    Left out are all edges between the ends of such a link in its own relation, and those the other
    way round in its reverse relations.

    Parameters
    ----------
    reverses: of every target relation, as of :func:`find_reverses`.
    parent: where the topologies lie meanwhile.
    """
    schema = graph.schema
    held_out = [name for name in schema.splits if name != "train"]
    if schema.predicted != "link" or not held_out:
        yield graph
        return
    with scratch_folder(_PREFIX, parent) as folder:
        relations = dict(schema.relations)
        for relation, pairs in _told_by(graph, reverses, held_out).items():
            left = _write_without(graph, relation, pairs, folder)
            relations[relation] = replace(relations[relation], count=left)
        yield MessageGraph(graph.path, replace(schema, relations=relations), graph, folder)


def find_reverses(graph: GraphDirectory) -> dict[Relation, list[Relation]]:
    """By target relation, the relations that hold its edges turned round, and nothing else; a
    symmetric one is among its own. They are found by what they hold, not by name."""
    return {each: _reverses_of(graph, each) for each in graph.schema.target_relations}


def _reverses_of(graph: GraphDirectory, relation: Relation) -> list[Relation]:
    own = graph.schema.relations[relation].count
    turned = _checksum(graph.topology(relation), turned=True)
    return [
        each
        for each, kind in graph.schema.relations.items()
        if (each.src, each.dst) == (relation.dst, relation.src)
        and kind.count == own
        and _checksum(graph.topology(each), turned=False) == turned
    ]


def _told_by(
    graph: SplitGraph, reverses: Mapping[Relation, Sequence[Relation]], splits: Sequence[str]
) -> dict[Relation, Ids]:
    """By relation, [n] int64, ascending: the pairs that links of splits tell, as
    ``source * destinations + destination``."""
    schema, found = graph.schema, dict[Relation, list[Ids]]()
    links = [graph.links(name) for name in splits]
    for number, relation in enumerate(schema.target_relations):
        chosen = [each.relations == number for each in links]
        src, dst = (
            np.concatenate([ends[of] for ends, of in zip(sides, chosen, strict=True)])
            for sides in ([each.src for each in links], [each.dst for each in links])
        )
        found.setdefault(relation, []).append(src * _destinations(schema, relation) + dst)
        for each in reverses[relation]:
            found.setdefault(each, []).append(dst * _destinations(schema, each) + src)
    return {each: np.unique(np.concatenate(pairs)) for each, pairs in found.items()}


def count_untrained(graph: PartitionedGraph, relation: Relation) -> int:
    """How many of the edges that messages of a target relation travel along are no training links,
    where links are predicted."""
    schema, links = graph.schema, graph.links("train")
    own = links.relations == schema.target_relations.index(relation)
    pairs = links.src[own] * _destinations(schema, relation) + links.dst[own]
    held_out = [name for name in schema.splits if name != "train"]
    if held_out:
        reverses = {each: graph.reverse_relations(each) for each in schema.target_relations}
        told = _told_by(graph, reverses, held_out).get(relation, np.empty(0, np.int64))
        pairs = pairs[~np.isin(pairs, told)]
    return schema.relations[relation].count - pairs.size


def _destinations(schema: GraphSchema, relation: Relation) -> int:
    return schema.node_types[relation.dst].count


def _write_without(graph: GraphDirectory, relation: Relation, pairs: Ids, folder: Path) -> int:
    """Write a relation's topology without the edges of some pairs; returns how many are left."""
    old = graph.topology(relation)
    indptr, edges, nodes = np.asarray(old.indptr), old.indices.size, old.in_degrees.size
    kept = np.empty(edges, np.bool_)
    for first in range(0, edges, _EDGES_AT_ONCE):
        part = slice(first, min(edges, first + _EDGES_AT_ONCE))
        dst = np.searchsorted(indptr, np.arange(part.start, part.stop), side="right") - 1
        keys = old.indices[part] * nodes + dst
        places = np.searchsorted(pairs, keys)
        is_pair = np.take(pairs, places, mode="clip") == keys if pairs.size else False
        kept[part] = ~np.asarray(is_pair, np.bool_)
    left = int(np.count_nonzero(kept))

    def create(name: layout.TopologyArray, length: int) -> NDArray[Any]:
        return create_array(layout.topology_file(folder, relation, name), np.int64, (length,))

    in_degrees = create("in_degrees", nodes)
    _count_kept(indptr, kept, in_degrees)
    own = create("indptr", nodes + 1)
    own[0] = 0
    np.cumsum(in_degrees, out=own[1:])
    out_degrees = create("out_degrees", old.out_degrees.size)
    out_degrees[:] = 0
    arrays = {name: create(name, left) for name in ("indices", "edge_ids")}
    place = 0
    for first in range(0, edges, _EDGES_AT_ONCE):
        part = slice(first, first + _EDGES_AT_ONCE)
        stays = kept[part]
        stop = place + int(np.count_nonzero(stays))
        arrays["indices"][place:stop] = old.indices[part][stays]
        arrays["edge_ids"][place:stop] = old.edge_ids[part][stays]
        np.add.at(out_degrees, arrays["indices"][place:stop], 1)
        place = stop
    return left


def _checksum(topology: Topology, *, turned: bool) -> int:
    """Of all pairs of ends, in whatever order they stand."""
    return int(_add_up(np.asarray(topology.indptr), np.asarray(topology.indices), turned))


@kernel
def _add_up(indptr: Ids, indices: Ids, turned: bool) -> np.uint64:
    found = np.uint64(0)
    for node in range(indptr.size - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            ends = np.uint64(indices[edge]), np.uint64(node)
            first, second = (ends[1], ends[0]) if turned else ends
            found += absorb(absorb(np.uint64(0), first), second)
    return found


@kernel
def _count_kept(indptr: Ids, kept: NDArray[np.bool_], counts: Ids) -> None:
    for node in range(indptr.size - 1):
        counts[node] = 0
        for edge in range(indptr[node], indptr[node + 1]):
            counts[node] += kept[edge]
