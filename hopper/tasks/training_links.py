"""Links of a divided graph, by global ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.links import Links, ends_of
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph
from hopper.partition.placement import Placement
from hopper.tasks.target_edges import TargetEdges

Ids = NDArray[np.int64]
VersionsAt = Callable[[str, Ids, Ids | None], Ids]
"""as :meth:`hopper.micrograph.sample.NeighborSampler.versions_at`"""


@dataclass(frozen=True)
class LinkTable:
    """Links, by global ids; otherwise as :class:`hopper.graph.links.Links`.

    Attributes
    ----------
    targets: the target relations, by number.
    times: [n] int64, where edges of all target relations have any.
    """

    targets: tuple[Relation, ...]
    ids: Ids
    relations: Ids
    src: Ids
    dst: Ids
    labels: NDArray[Any] | None
    times: Ids | None

    @classmethod
    def of(cls, graph: PartitionedGraph, links: Links) -> LinkTable:
        """Those of a graph."""
        src, dst = (np.empty(links.count, np.int64) for _ in range(2))
        for number, relation in enumerate(graph.schema.target_relations):
            own = links.relations == number
            src[own] = graph.global_ids(relation.src)[links.src[own]]
            dst[own] = graph.global_ids(relation.dst)[links.dst[own]]
        ids, relations = np.asarray(links.ids), np.asarray(links.relations)
        targets, times = graph.schema.target_relations, links.times
        return cls(targets, ids, relations, src, dst, links.labels, times)

    @classmethod
    def all_edges(cls, graph: PartitionedGraph, edges: TargetEdges) -> LinkTable:
        """All edges of the target relations, where labels of edges are predicted; without these.
        Every rank has to call it.

        Raises
        ------
        ClusterError: a rank was lost, or a deadline passed.
        """
        schema, parts, first = graph.schema, [np.empty((4, 0), np.int64)], 0
        for number, relation in enumerate(schema.target_relations):
            ids, src, dst = edges.all_of(relation)
            parts.append(np.stack([ids + first, np.full(ids.size, number), src, dst]))
            first += schema.relations[relation].count
        ids, relations, src, dst = np.concatenate(parts, axis=1)
        times = None
        if schema.links_are_timed:
            times = np.concatenate([graph.times(each) for each in schema.target_relations])
        return cls(schema.target_relations, ids, relations, src, dst, None, times)

    def of_relation(self, number: int) -> LinkTable:
        """Those of a target relation."""
        return self.pick(np.flatnonzero(self.relations == number))

    def pick(self, places: Ids) -> LinkTable:
        """Some of them, by ascending places."""
        return replace(
            self,
            ids=self.ids[places],
            relations=self.relations[places],
            src=self.src[places],
            dst=self.dst[places],
            labels=None if self.labels is None else self.labels[places],
            times=None if self.times is None else self.times[places],
        )

    def in_versions(self, versions_at: VersionsAt) -> LinkTable:
        """The same, with versions of both ends, for roots of the links' times, in the place of
        their ids."""
        src, dst = np.empty_like(self.src), np.empty_like(self.dst)
        for number, relation in enumerate(self.targets):
            own = self.relations == number
            times = None if self.times is None else self.times[own]
            src[own] = versions_at(relation.src, self.src[own], times)
            dst[own] = versions_at(relation.dst, self.dst[own], times)
        return replace(self, src=src, dst=dst)

    def ends(self, node_type: str, places: Ids | None = None) -> Ids:
        """[m] int64 global ids: the ends of a type, relation by relation, sources first.

        Parameters
        ----------
        places: of which links, in that order; None = of all.
        """
        return ends_of(self, self.targets, node_type, places)


class TrainingLinks:
    """Links as roots: their places in a table. A link's home is its tail's.

    Parameters
    ----------
    placement: who owns nodes.
    """

    def __init__(self, graph: PartitionedGraph, placement: Placement) -> None:
        self._graph, self._placement = graph, placement

    @cached_property
    def table(self) -> LinkTable:
        """All of the training split."""
        return LinkTable.of(self._graph, self._graph.links("train"))

    @property
    def count(self) -> int:
        """See :class:`hopper.micrograph.route.TrainingRoots`."""
        return int(self.table.ids.size)

    def at(self, places: Ids) -> Ids:
        """See :class:`hopper.micrograph.route.TrainingRoots`: the table is in that order."""
        return places

    def home_ranks(self, roots: Ids) -> Ids:
        """See :class:`hopper.micrograph.route.TrainingRoots`."""
        table, ranks = self.table, np.empty(roots.size, np.int64)
        of = table.relations[roots]
        for number, relation in enumerate(self._graph.schema.target_relations):
            own = of == number
            ranks[own] = self._placement.rank_of(relation.dst, table.dst[roots[own]])
        return ranks
