"""Links and edges of a divided graph, by global ids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Links
from hopper.partition import PartitionedGraph
from hopper.partition.placement import Placement
from hopper.tasks.target import Side

VersionsAt = Callable[[str, Ids, Ids | None], Ids]
"""a function like :meth:`hopper.micrograph.sample.NeighborSampler.versions_at`"""


class Edges(NamedTuple):
    """Edges of one relation: their ids and the global ids of both ends, [n] int64 each."""

    ids: Ids
    src: Ids
    dst: Ids

    def pick(self, chosen: NDArray[np.bool_] | Ids) -> Edges:
        """Return some edges, by a mask [n] bool or by their places [m] int64."""
        return Edges(*(array[chosen] for array in self))


class TargetEdges:
    """The edges of target relations that are also part of the topology.

    If topology is divided, each rank reads the edges into nodes that it owns by a placement, and
    sends them to the ranks that need them. So every rank must call each method, of which a
    :class:`ClusterError` says that a rank was lost or a deadline passed.
    """

    def __init__(self, graph: PartitionedGraph, cluster: Cluster, placement: Placement) -> None:
        self._graph, self._cluster, self._placement = graph, cluster, placement
        self._has_all = graph.layout.draws_alone
        """whether this rank can read all edges"""

    def all_of(self, relation: Relation) -> Edges:
        """Return all edges of a relation in ascending order of ids."""
        edges = self._stored(relation)
        if not self._has_all:
            world = self._cluster.world
            edges = self._exchange([[array] * world for array in self._into_mine(edges, relation)])
        return edges.pick(np.argsort(edges.ids))

    def find_known(self, relation: Relation, side: Side, is_asked: NDArray[np.bool_]) -> Edges:
        """Return the edges between this rank's nodes at ``side`` and those nodes at the other end
        that are asked for ([nodes] bool, the same on every rank), and maybe further edges."""
        edges = self._stored(relation)
        if self._has_all or side == "tail":
            # In-edges are stored with their destinations.
            return edges
        edges = self._into_mine(edges, relation)
        edges = edges.pick(is_asked[edges.dst])
        ranks = self._placement.rank_of(relation.src, edges.src)
        parts = [edges.pick(ranks == rank) for rank in range(self._cluster.world)]
        return self._exchange([list(arrays) for arrays in zip(*parts, strict=True)])

    def _stored(self, relation: Relation) -> Edges:
        """Return all edges of a relation that this rank can read."""
        topology = self._graph.topology(relation, None if self._has_all else self._cluster.server)
        ids, src = np.asarray(topology.edge_ids), np.asarray(topology.indices)
        return Edges(ids, src, topology.list_destinations())

    def _into_mine(self, edges: Edges, relation: Relation) -> Edges:
        """Return the edges into nodes that this rank owns."""
        return edges.pick(self._placement.rank_of(relation.dst, edges.dst) == self._cluster.rank)

    def _exchange(self, groups: list[list[Ids]]) -> Edges:
        """Send every rank its part of each of the three arrays, and return what is received."""
        operation = "telling edges that are known"
        received = exchange_arrays(self._cluster, groups, "topology", operation)
        return Edges(*(np.concatenate(parts) for parts in received))


@dataclass(frozen=True)
class LinkTable(Links):
    """Links or labelled edges whose ends have global ids, or versions (:meth:`in_versions`)."""

    targets: tuple[Relation, ...] = field(kw_only=True)
    """the target relations, by number"""

    @property
    def label_rows(self) -> NDArray[Any]:
        """The labels as [n, k]. There have to be labels."""
        assert self.labels is not None
        # Of no edges, numpy could not tell k.
        return self.labels.reshape(len(self.labels), math.prod(self.labels.shape[1:]))

    @classmethod
    def of(cls, graph: PartitionedGraph, links: Links) -> LinkTable:
        """Convert links of a graph, which have original ids, to a table."""
        ids, relations = np.asarray(links.ids), np.asarray(links.relations)
        others = links.src, links.dst, links.labels, links.times
        table = cls(ids, relations, *others, targets=graph.schema.target_relations)
        return table.in_versions(lambda node_type, ids, _: graph.global_ids(node_type)[ids])

    @classmethod
    def all_edges(cls, graph: PartitionedGraph, edges: TargetEdges) -> LinkTable:
        """Make a table of all edges of the target relations, without labels, of a graph with labels
        of edges; every rank must call it."""
        schema, parts, first = graph.schema, [np.empty((4, 0), np.int64)], 0
        for number, relation in enumerate(schema.target_relations):
            ids, src, dst = edges.all_of(relation)
            parts.append(np.stack([ids + first, np.full(ids.size, number), src, dst]))
            first += schema.relations[relation].count
        ids, relations, src, dst = np.concatenate(parts, axis=1)
        times = None
        if schema.links_are_timed:
            times = np.concatenate([graph.times(target) for target in schema.target_relations])
        return cls(ids, relations, src, dst, None, times, targets=schema.target_relations)

    def of_relation(self, number: int) -> LinkTable:
        """Return the links of one target relation."""
        return self.pick(np.flatnonzero(self.relations == number))

    def pick(self, places: Ids) -> LinkTable:
        """Return the links at ``places`` ([m] int64, ascending)."""
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        del arrays["targets"]
        return replace(self, **{name: array[places] for name, array in arrays.items()})

    def in_versions(self, versions_at: VersionsAt) -> LinkTable:
        """Return the same links with versions of both ends at the links' times."""
        src, dst = np.empty((2, self.ids.size), np.int64)
        for number, relation in enumerate(self.targets):
            is_chosen = self.relations == number
            times = None if self.times is None else self.times[is_chosen]
            src[is_chosen] = versions_at(relation.src, self.src[is_chosen], times)
            dst[is_chosen] = versions_at(relation.dst, self.dst[is_chosen], times)
        return replace(self, src=src, dst=dst)

    def ends(self, node_type: str, places: Ids | None = None) -> Ids:
        """Return the ends of a node type, relation by relation, sources first: [m] int64, of the
        links at ``places``, whose order is kept; None = all."""
        places = np.arange(self.count) if places is None else places
        ends = [np.empty(0, np.int64)]
        for number, relation in enumerate(self.targets):
            of_relation = places[self.relations[places] == number]
            for end_type, ids in ((relation.src, self.src), (relation.dst, self.dst)):
                if end_type == node_type:
                    ends.append(ids[of_relation])
        return np.concatenate(ends)


class TrainingLinks:
    """Training roots that are links, named by their indices in a table. A link's home is that of
    its tail, which a placement tells."""

    def __init__(self, graph: PartitionedGraph, placement: Placement) -> None:
        self._graph, self._placement = graph, placement

    @cached_property
    def table(self) -> LinkTable:
        """All links of the training split."""
        return LinkTable.of(self._graph, self._graph.links("train"))

    @property
    def count(self) -> int:
        """The number of links."""
        return self.table.count

    def at(self, places: Ids) -> Ids:
        """Return ``places``: the table is in the order of training roots."""
        return places

    def home_ranks(self, roots: Ids) -> Ids:
        """Return [m] int64: the home rank of each link."""
        table, ranks = self.table, np.empty(roots.size, np.int64)
        relations = table.relations[roots]
        for number, relation in enumerate(self._graph.schema.target_relations):
            is_chosen = relations == number
            ranks[is_chosen] = self._placement.rank_of(relation.dst, table.dst[roots[is_chosen]])
        return ranks
